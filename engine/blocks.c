/* See blocks.h. */
#include "engine/blocks.h"

#include <string.h>

mk_status mk_blocks_init(mk_blocks *blocks, uint32_t slots, uint32_t columns, uint32_t block_tokens, uint32_t count) {
  *blocks =
      (mk_blocks){.slots = slots, .columns = columns, .block_tokens = block_tokens, .count = count, .left = count};
  mk_status status = mk_alloc(count, sizeof *blocks->spare, &blocks->spare);
  if (status == MK_OK) {
    status = mk_alloc((size_t)slots * columns, sizeof *blocks->table, &blocks->table);
  }
  if (status == MK_OK) {
    status = mk_alloc(slots, sizeof *blocks->held, &blocks->held);
  }
  for (uint32_t b = 0; status == MK_OK && b < count; b++) {
    blocks->spare[b] = b;
  }
  return status;
}

void mk_blocks_free(mk_blocks *blocks) {
  mk_free(blocks->spare);
  mk_free(blocks->table);
  mk_free(blocks->held);
}

mk_status mk_blocks_hold(mk_blocks *blocks, uint32_t slot, uint32_t tokens) {
  uint32_t need = (tokens + blocks->block_tokens - 1) / blocks->block_tokens, *held = &blocks->held[slot];
  if (need > *held && need - *held > blocks->left) {
    return mk_error(
        MK_ERR_RUNTIME,
        "the KV cache is full: %u tokens need %u blocks of %u, this sequence has %u, and %u of %u are free; "
        "run fewer sequences at a time or shorter ones",
        tokens, need, blocks->block_tokens, *held, blocks->left, blocks->count);
  }
  while (*held < need) {
    blocks->table[(size_t)slot * blocks->columns + (*held)++] = blocks->spare[--blocks->left];
  }
  return MK_OK;
}

void mk_blocks_release(mk_blocks *blocks, uint32_t slot) {
  while (blocks->held[slot] != 0) {
    blocks->spare[blocks->left++] = blocks->table[(size_t)slot * blocks->columns + --blocks->held[slot]];
  }
}
