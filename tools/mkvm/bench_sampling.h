/* `mkvm bench --sampling`: what each way of choosing a token takes over a greedy one, as a table, CSV or JSON on
 * standard output. One thread. Failure: that of opening an engine or of the machine, MK_ERR_USAGE without a GPU,
 * MK_ERR_RUNTIME (memory, standard output). */
#ifndef MK_BENCH_SAMPLING_TABLE_H
#define MK_BENCH_SAMPLING_TABLE_H

#include "tools/mkvm/bench_table.h"

/* Opens the engine that samples; model and `open` are those of the greedy one. */
mk_status mk_bench_sampling_open(const char *model, const mk_engine_options *open, mk_engine **sampling);

/* tokens: generated in a launch. */
mk_status mk_bench_sampling_table(mk_engine *greedy, mk_engine *sampling, const mk_bench_about *about, uint32_t tokens,
                                  uint32_t rounds);

#endif
