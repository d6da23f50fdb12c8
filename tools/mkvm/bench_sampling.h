/* `mkvm bench --sampling`: what each way of choosing a token takes over a greedy one. Prints a table to standard output; one thread. Failure:
 * that of opening the engines or of the machine, MK_ERR_USAGE without a GPU. */
#ifndef MK_BENCH_SAMPLING_TABLE_H
#define MK_BENCH_SAMPLING_TABLE_H

#include "tools/lib/engine.h"

/* model: a directory, or NULL for the hash weights of `open`, which opens a greedy engine. tokens: generated in a launch. */
mk_status mk_bench_sampling_table(const char *model, const mk_engine_options *open, uint32_t tokens, uint32_t rounds);

#endif
