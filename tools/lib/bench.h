/* What `mkvm bench` measures: decode steps on the GPU machine, beside the read bandwidth that the same GPU reaches in the same run.
 *
 * Nothing is kept between calls. One thread. Failure: MK_ERR_USAGE for an engine on the CPU or a range that leaves the context,
 * else that of the GPU machine. */
#ifndef MK_BENCH_H
#define MK_BENCH_H

#include "tools/lib/engine.h"

typedef struct mk_bench_options {
  uint32_t depth;    /* position of the first step: tokens of context before it */
  uint32_t tokens;   /* steps per launch; 0: 128 */
  uint32_t launches; /* 0: 10; one more warms up and is not counted */
  bool no_bandwidth; /* leave the bandwidth out */
} mk_bench_options;

typedef struct mk_bench_result {
  uint32_t tokens, launches;
  double token_ms_p50, token_ms_p99;   /* between two tokens as the host sees them */
  double launch_ms_p50, launch_ms_p99; /* per token: a launch, from its first to its last event, over its tokens */
  double launch_ms_mean, launch_ms_deviation; /* the same; of the sample, 0 for one launch */
  double first_ms_p50;                        /* from the start of a launch to its first token at the host */
  double weight_bytes, kv_bytes;              /* read per token; KV at the mean position */
  double bandwidth;                           /* bytes per second, best of three; 0: not measured */
  double share; /* (weight_bytes + kv_bytes) / launch_ms_p50 / bandwidth; 0: not measured */
} mk_bench_result;

mk_status mk_bench_run(mk_engine *engine, const mk_bench_options *options, mk_bench_result *out);

/* Bytes of weight tiles that the program's instructions stream in one step. */
double mk_bench_weight_bytes(const mk_program *program);

#endif
