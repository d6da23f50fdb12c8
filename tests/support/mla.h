/* The shape of a program for a batch, as tests want it: room for sequences that grow by two pages, and three pages that
 * nobody uses. */
#ifndef MK_TEST_MLA_H
#define MK_TEST_MLA_H

#include "tools/lib/mla.h"

static inline mk_mla_shape test_mla_shape(uint32_t heads, uint32_t new_tokens, const uint32_t *lengths,
                                          uint32_t sequences) {
  mk_mla_shape shape = {.heads = heads,
                        .new_tokens = new_tokens,
                        .max_sequences = sequences,
                        .max_pages = 2,
                        .pool_pages = 3,
                        .scale = 0.07f};
  for (uint32_t q = 0; q < sequences; q++) {
    uint32_t pages = mk_mla_pages_of(lengths[q]);
    shape.max_pages = pages + 2 > shape.max_pages ? pages + 2 : shape.max_pages;
    shape.pool_pages += pages + 2;
  }
  return shape;
}

#endif
