/* The graph of a decode call of multi-head latent attention (DeepSeek's MLA): one node, so its shape says everything.
 *
 * Per sequence of length L, q new tokens with h query heads each attend over one latent KV head of 576 columns (512 +
 * 64 rotary), whose first 512 columns are also the values. The keys of the new tokens are in the cache already: new
 * token i, from 0, sees the first L - q + i + 1 tokens, none where that is not above zero, and its output is then zero.
 * bf16 in and out.
 *
 * The q x h query rows of a sequence, token by token, are dealt in blocks of at most 64 rows, all of one size. Plain
 * data; any thread. Failure: MK_ERR_USAGE, naming the field. */
#ifndef MK_MLA_MODEL_H
#define MK_MLA_MODEL_H

#include "vm/status.h"

enum {
  MK_MLA_WIDTH = 576,  /* columns of a query and of a token in the cache */
  MK_MLA_LATENT = 512, /* of which so many, from the first, are its value */
  MK_MLA_PAGE_TOKENS = 64,
  MK_MLA_MOST_ROWS = 64, /* of a block */
  MK_MLA_MOST_HEADS = 128,
  MK_MLA_MOST_TOKENS = 8,
};

/* The largest batch that a program takes. */
typedef struct mk_mla_shape {
  uint32_t heads;         /* 8, 16, ... 128 */
  uint32_t new_tokens;    /* 1..8 */
  uint32_t max_sequences; /* 1..65535 / blocks of a sequence */
  uint32_t max_pages;     /* of one sequence, 1..65530 */
  uint32_t pool_pages;    /* of the cache, 1..2^26 */
  float scale;            /* on q k, above zero */
} mk_mla_shape;

mk_status mk_mla_shape_check(const mk_mla_shape *shape);

/* Query rows of a block, and blocks of a sequence: functions of heads and new_tokens alone. */
uint32_t mk_mla_block_rows(const mk_mla_shape *shape);
uint32_t mk_mla_blocks(const mk_mla_shape *shape);

#endif
