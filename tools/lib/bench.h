/* What `mkvm bench` measures: how long tokens take, one launch after another, beside the read bandwidth that the same
 * GPU reaches in the same run.
 *
 * Nothing is kept between calls, but the KV cache and the prompt buffer are overwritten. One thread. Failure:
 * MK_ERR_USAGE for a range that leaves the context, or a prompt test at a depth on the CPU; else that of the
 * machine. */
#ifndef MK_BENCH_H
#define MK_BENCH_H

#include "engine/engine.h"

typedef struct mk_bench_options {
  bool prompt;       /* the tokens are a prompt's, known beforehand; else each step takes the token of the one before */
  uint32_t depth;    /* position of the first step: tokens of context before it */
  uint32_t tokens;   /* steps per launch; 0: 128 */
  uint32_t launches; /* 0: 10; one more warms up and is not counted */
  bool no_bandwidth; /* leave the bandwidth out */
} mk_bench_options;

/* Times in milliseconds. The CPU has no events: there a launch takes what the host's clock says. */
typedef struct mk_bench_result {
  uint32_t tokens, launches;
  double token_ms_p50,
      token_ms_p99; /* between two tokens as the host sees them; 0: the CPU tells nothing of a prompt's */
  double launch_ms_p50, launch_ms_p99; /* per token: a launch, from its first to its last event, over its tokens */
  double launch_ms_mean, launch_ms_deviation; /* the same; of the sample, 0 for one launch */
  double rate_mean, rate_deviation;           /* tokens per second, over the launches */
  double first_ms_p50;                        /* from the start of a launch to its first token at the host */
  double weight_bytes, kv_bytes;              /* read per token; KV at the mean position */
  double sm_mhz;                              /* SM clock in the slowest launch, by the GPU's own clocks; 0: not told */
  double bandwidth;                           /* bytes per second, best of three; 0: not measured */
  double share; /* (weight_bytes + kv_bytes) / launch_ms_p50 / bandwidth; 0: not measured */
} mk_bench_result;

/* On the CPU a context of `depth` tokens is computed anew before each launch, untimed. On a GPU the launch starts at
 * that position and reads whatever the KV cache holds: mk_bench_fill_kv first. */
mk_status mk_bench_run(mk_engine *engine, const mk_bench_options *options, mk_bench_result *out);

/* One launch as mk_bench_run's, not timed, whose steps the window names (MK_FIRST_GENERATED: from the first measured
 * one on) are recorded. */
mk_status mk_bench_trace(mk_engine *engine, const mk_bench_options *options, const mk_trace_window *window,
                         mk_trace **out);

/* Fills the KV cache with hash values in [-1, 1), so that reading it costs what real keys and values cost. Nothing on
 * the CPU. */
mk_status mk_bench_fill_kv(mk_engine *engine, uint64_t seed);

/* Tokens of context that a test takes on that engine. */
uint64_t mk_bench_context(bool cuda, uint64_t depth, uint64_t tokens);

/* Bytes of weight tiles that the program's instructions stream in one step. */
double mk_bench_weight_bytes(const mk_program *program);
/* Bytes of the caches of all layers that a token of context takes. */
double mk_bench_kv_bytes(const mk_program *program);

#endif
