/* What `mkvm bench --sampling` measures, on a GPU: microseconds that each way of choosing a token adds to a greedy one.
 *
 * One thread. Both engines' KV caches are overwritten, and the sampling one is left with the parameters of the last
 * way. Failure: that of the machine, or MK_ERR_USAGE for engines without a GPU. */
#ifndef MK_BENCH_SAMPLING_H
#define MK_BENCH_SAMPLING_H

#include "engine/engine.h"

enum { MK_BENCH_WAYS = 8, MK_BENCH_SAMPLING_PROMPT = 7 };

typedef struct mk_bench_way {
  const char *name;
  mk_sampling sampling;
} mk_bench_way;

/* [MK_BENCH_WAYS]: temperature, min-p, top-k, top-p, both of these, penalties, penalties without a temperature, all of
 * it. */
extern const mk_bench_way mk_bench_ways[MK_BENCH_WAYS];

/* Microseconds per token (of several rows: per step) over greedy: the median over the rounds, and the rounds'
 * quartiles. */
typedef struct mk_bench_sampling_result {
  double greedy_us; /* a greedy token: the median of all greedy launches */
  struct {
    double token_us, over_us, low_us, high_us;
  } ways[MK_BENCH_WAYS];
} mk_bench_sampling_result;

/* `rounds` rounds, after one that warms up. In a round every way's launch of `tokens` tokens stands between two greedy
 * ones, and what it takes over their mean counts: clocks drift by more than a way costs. Prompts of
 * MK_BENCH_SAMPLING_PROMPT tokens, whose steps count as tokens. */
mk_status mk_bench_sampling_run(mk_engine *greedy, mk_engine *sampling, uint32_t tokens, uint32_t rounds,
                                mk_bench_sampling_result *out);

/* One launch as mk_bench_sampling_run's of the last way, not timed, whose steps the window names (MK_FIRST_GENERATED:
 * from the first one on that generates a token) are recorded. One row: on the CPU, too. */
mk_status mk_bench_sampling_trace(mk_engine *sampling, uint32_t tokens, const mk_trace_window *window, mk_trace **out);

#endif
