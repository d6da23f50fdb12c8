/* `mkvm bench --load`: an engine under a load, as a table, CSV or JSON on standard output.
 *
 * Texts stay the caller's. One thread. Failure: that of the load (tools/lib/bench_load.h), MK_ERR_USAGE for lengths
 * that do not fit, MK_ERR_RUNTIME (memory, standard output). */
#ifndef MK_BENCH_LOAD_TABLE_H
#define MK_BENCH_LOAD_TABLE_H

#include <argp.h>

#include "tools/lib/bench_load.h"
#include "tools/mkvm/bench_table.h"

typedef struct mk_bench_load_option {
  bool load, decode_only, json, logprobs;
  bool given; /* one of the flags that need --load */
  const char *lengths;
  double rate;
  uint32_t concurrency, requests, in, out, shared, prompt_tokens, prompt_slots, decode_steps,
      most_logprobs; /* 0: not given */
  uint64_t prefix_tokens, kv_tokens;
} mk_bench_load_option;

/* Flags, as a child of an argp whose ARGP_KEY_INIT sets the child's input to a zeroed mk_bench_load_option. */
extern const struct argp mk_bench_load_argp;

/* Before the engine is opened: the load (mk_load_free, after the engine is closed), and what the engine needs for it.
 * rows, ctx_size: 0: not given. */
mk_status mk_bench_load_prepare(const mk_bench_load_option *option, uint64_t seed, uint32_t rows, uint64_t ctx_size,
                                const mk_config *config, mk_engine_options *open, mk_load **out);

mk_status mk_bench_load_table(const mk_bench_load_option *option, mk_load *load, mk_engine *engine,
                              const mk_bench_about *about);

#endif
