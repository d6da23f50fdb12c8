/* `mkvm bench --rows T`: steps that several sequences share, and prompts in chunks, as a table, CSV or JSON on standard
 * output. One thread. Failure: that of the machine, MK_ERR_RUNTIME (memory, standard output). */
#ifndef MK_BENCH_ROWS_TABLE_H
#define MK_BENCH_ROWS_TABLE_H

#include "tools/lib/bench_rows.h"
#include "tools/mkvm/bench_table.h"

typedef struct mk_bench_rows_tests {
  const uint32_t *prompts, *generated, *depths; /* tokens; 0 in the first two: none */
  size_t prompt_count, generated_count, depth_count;
  uint32_t launches;
} mk_bench_rows_tests;

/* An engine of 2 rows or more, on cuda. More than MK_MAX_ROWS: prompts alone. *last: the last test that was
 * measured. */
mk_status mk_bench_rows_table(mk_engine *engine, const mk_bench_about *about, const mk_bench_rows_tests *tests,
                              mk_bench_rows_options *last);

#endif
