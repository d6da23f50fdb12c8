/* `mkvm bench --mla`: MLA decode attention of one batch, right or wrong, and how its work is placed. Prints to standard
 * output; one thread. Failure: MK_ERR_USAGE for lengths that are none, MK_ERR_DEVICE when the output is off. */
#ifndef MK_BENCH_MLA_H
#define MK_BENCH_MLA_H

#include "tools/mkvm/bench_table.h"
#include "tools/mkvm/trace_option.h"

typedef struct mk_bench_mla {
  const char *lengths; /* "4641,45118", "64x512", "random:COUNT:LOW:HIGH:SEED", or several of them after commas; NULL:
                          not asked for */
  uint32_t new_tokens, heads; /* 0: 1 and 16 */
  uint32_t sms;               /* 0: MK_DEFAULT_SMS */
  bool cuda;
  uint32_t device; /* cuda: its index */
  mk_bench_format format;
  bool flush;                   /* cuda: also launches by themselves, some of them after a flush of the L2 */
  bool sweep;                   /* cuda: a fixed list of batches in the place of `lengths`, a line each */
  bool measure;                 /* cuda: the costs that schedules are made by, in the place of a batch */
  const mk_trace_option *trace; /* of one more launch of `lengths`, on the CPU alone */
  const char *costs; /* to schedule by: "item,page,out_row,slot_row,reduction,unit" in ns; NULL: the defaults */
} mk_bench_mla;

mk_status mk_bench_mla_run(const mk_bench_mla *options);

#endif
