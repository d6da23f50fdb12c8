/* What `mkvm bench --rows T` measures, on a GPU: steps that T sequences share, and the time from a prompt to its first
 * token.
 *
 * One thread. The KV cache is overwritten. Failure: MK_ERR_USAGE for a range that leaves the context, or an engine of
 * one row or without a GPU; else that of the machine. */
#ifndef MK_BENCH_ROWS_H
#define MK_BENCH_ROWS_H

#include "engine/engine.h"

typedef struct mk_bench_rows_options {
  uint32_t prompt;   /* tokens of a prompt from position 0 on; 0: sequences that generate, one in each row */
  uint32_t depth;    /* of those: tokens of context before each, hash values (mk_bench_fill_kv) */
  uint32_t steps;    /* of those, per launch: 1 to MK_PLAN_STEPS */
  uint32_t launches; /* one more warms up and is not counted */
  bool no_bandwidth;
} mk_bench_rows_options;

typedef struct mk_bench_rows_result {
  /* A step's, by GPU events: a launch divided by its steps. A prompt's, to its first token, by the host's clock. */
  double ms_p50, ms_slowest;
  double sm_mhz;    /* SM clock in the slowest launch, by the GPU's own clocks; 0: not told */
  double bytes;     /* read by a step: weight tiles, keys and values */
  double bandwidth; /* bytes per second, best of three; 0: not measured */
  double share;     /* bytes / ms_p50 / bandwidth; 0: not measured, or a prompt */
} mk_bench_rows_result;

mk_status mk_bench_rows_run(mk_engine *engine, const mk_bench_rows_options *options, mk_bench_rows_result *out);

/* One launch as mk_bench_rows_run's, not timed, whose steps the window names are recorded (MK_FIRST_GENERATED: from the
 * first on); of a prompt in the launch that has the first of them. */
mk_status mk_bench_rows_trace(mk_engine *engine, const mk_bench_rows_options *options, const mk_trace_window *window,
                              mk_trace **out);

#endif
