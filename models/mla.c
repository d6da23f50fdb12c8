/* See mla.h. */
#include "models/mla.h"

#include <math.h>

uint32_t mk_mla_block_rows(const mk_mla_shape *shape) {
  uint32_t all = shape->heads * shape->new_tokens, rows = all < MK_MLA_MOST_ROWS ? all : MK_MLA_MOST_ROWS;
  while (all % rows != 0) {
    rows--;
  }
  return rows;
}

uint32_t mk_mla_blocks(const mk_mla_shape *shape) {
  return shape->heads * shape->new_tokens / mk_mla_block_rows(shape);
}

static mk_status check_range(const char *name, uint32_t value, uint32_t most) {
  return value >= 1 && value <= most ? MK_OK
                                     : mk_error(MK_ERR_USAGE, "%s is %u; it must be from 1 to %u", name, value, most);
}

mk_status mk_mla_shape_check(const mk_mla_shape *shape) {
  enum { MOST = 65535, MOST_PAGES = 65530, MOST_POOL = 1 << 26 };
  if (shape->heads % 8 != 0 || shape->heads < 8 || shape->heads > MK_MLA_MOST_HEADS) {
    return mk_error(MK_ERR_USAGE, "heads is %u; it must be a multiple of 8 from 8 to %d", shape->heads,
                    MK_MLA_MOST_HEADS);
  }
  MK_TRY(check_range("new_tokens", shape->new_tokens, MK_MLA_MOST_TOKENS));
  MK_TRY(check_range("max_sequences", shape->max_sequences, MOST / mk_mla_blocks(shape)));
  MK_TRY(check_range("max_pages", shape->max_pages, MOST_PAGES));
  MK_TRY(check_range("pool_pages", shape->pool_pages, MOST_POOL));
  if (!isfinite(shape->scale) || shape->scale <= 0) {
    return mk_error(MK_ERR_USAGE, "scale is %g; it must be finite and above 0", (double)shape->scale);
  }
  return MK_OK;
}
