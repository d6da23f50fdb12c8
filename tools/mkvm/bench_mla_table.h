/* The results of `mkvm bench --mla`, of its sweep and of its costs on standard output: Markdown tables, CSV or JSON,
 * row by row as they come. Owns nothing; texts stay the caller's. One thread. Failure: MK_ERR_RUNTIME (memory, standard
 * output). */
#ifndef MK_BENCH_MLA_TABLE_H
#define MK_BENCH_MLA_TABLE_H

#include "tools/lib/mla_time.h"
#include "tools/mkvm/bench_table.h"

/* What all rows have in common. */
typedef struct mk_bench_mla_about {
  mk_bench_format format;
  bool gpu;            /* there are times */
  bool each;           /* also of launches by themselves */
  uint32_t index, sms; /* of the GPU; of the machine */
} mk_bench_mla_about;

/* A batch by a placement. */
typedef struct mk_bench_mla_row {
  const char *lengths; /* as they were asked for */
  uint32_t sequences, new_tokens, heads;
  uint64_t tokens;
  mk_mla_placement placement;
  mk_mla_summary summary;
  double schedule_us, check_us;      /* 0: not measured */
  mk_mla_time times[MK_MLA_TIMINGS]; /* us 0: not measured */
  mk_mla_floor floor;
  double error, row_error;
} mk_bench_mla_row;

/* The head of the table, in Markdown; the list's beginning in JSON. */
mk_status mk_bench_mla_begin(const mk_bench_mla_about *about);
mk_status mk_bench_mla_put(const mk_bench_mla_about *about, const mk_bench_mla_row *row, bool first);
/* The same, with a line of its own for the batch and fewer columns. */
mk_status mk_bench_mla_begin_sweep(const mk_bench_mla_about *about);
mk_status mk_bench_mla_put_sweep(const mk_bench_mla_about *about, const mk_bench_mla_row *row, bool first);
/* The list's end in JSON. */
mk_status mk_bench_mla_end(const mk_bench_mla_about *about);

mk_status mk_bench_mla_put_costs(const mk_bench_mla_about *about, const mk_mla_costs *costs);

#endif
