/* `mkvm bench --mla`: MLA decode attention of one batch, right or wrong, and how its work is placed. Prints to standard output; one thread.
 * Failure: MK_ERR_USAGE for lengths that are none, MK_ERR_DEVICE when the output is off. */
#ifndef MK_BENCH_MLA_H
#define MK_BENCH_MLA_H

#include "vm/status.h"

typedef struct mk_bench_mla {
  const char *
      lengths; /* "4641,45118", "64x512", "random:COUNT:LOW:HIGH:SEED", or several of them after commas; NULL: not asked for */
  uint32_t new_tokens, heads; /* 0: 1 and 16 */
  uint32_t sms;               /* 0: MK_DEFAULT_SMS */
  bool cuda;
} mk_bench_mla;

mk_status mk_bench_mla_run(const mk_bench_mla *options);

#endif
