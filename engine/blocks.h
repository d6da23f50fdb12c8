/* KV blocks for the slots of a program of several rows: who has which, and the block table that says so.
 *
 * A mk_blocks owns its tables until mk_blocks_free. One thread. Failure: MK_ERR_RUNTIME when no block is left, which leaves everything
 * as it was, or for memory. */
#ifndef MK_BLOCKS_H
#define MK_BLOCKS_H

#include "vm/program/program.h"

typedef struct mk_blocks {
  uint32_t slots, columns; /* of the table */
  uint32_t block_tokens, count, left;
  uint32_t
      *spare; /* [left] blocks that nobody has; the last one goes first, so that a freed block is soon used again */
  uint32_t *table; /* [slots][columns], as the program's buffer */
  uint32_t *held;  /* per slot: entries that name blocks of its own */
} mk_blocks;

mk_status mk_blocks_init(mk_blocks *blocks, uint32_t slots, uint32_t columns, uint32_t block_tokens, uint32_t count);
void mk_blocks_free(mk_blocks *blocks);

/* Sees to it that the slot has blocks for its first `tokens` tokens. */
mk_status mk_blocks_hold(mk_blocks *blocks, uint32_t slot, uint32_t tokens);
/* Gives all blocks of the slot back. */
void mk_blocks_release(mk_blocks *blocks, uint32_t slot);

#endif
