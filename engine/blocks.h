/* KV blocks: who has which, the block table that says so, and the prefix cache.
 *
 * A block is spare, or held by one sequence that fills it, or *known*: it is full, and its tokens and those of all
 * blocks before it in its sequence are recorded. Known blocks are never written again. So sequences that begin with the
 * same tokens hold the same known blocks. A known block that no sequence holds is kept, up to a limit, until its room
 * is needed; the block that was let go longest ago goes first. A sequence lets go of its last block first, so a block
 * always goes before the block that it follows.
 *
 * A block is found by a hash over three things: the hash of the block before it, its tokens, and how each token was
 * computed (mk_origin). On a hit all three are compared themselves. The first block's hash begins with `seed`, which
 * stands for all else on which the bits depend: the model and the rules of its sums.
 *
 * A mk_blocks owns its tables until mk_blocks_free. One thread. Failure: MK_ERR_RUNTIME for memory, in mk_blocks_init
 * alone. */
#ifndef MK_BLOCKS_H
#define MK_BLOCKS_H

#include "vm/program/program.h"

/* By which machines the positions of a sequence are computed: the first prompt_count by `prompt`, all later ones by
 * `rest`. The bits of the two may differ. */
typedef struct mk_origin {
  uint32_t prompt_count;
  uint8_t prompt, rest; /* mk_batch_machine */
} mk_origin;

/* The first tokens of a sequence, for which blocks are looked for or recorded. */
typedef struct mk_known {
  const uint32_t *tokens;
  uint32_t count;
  mk_origin origin;
} mk_known;

typedef struct mk_block {
  uint32_t holders;      /* slots whose table names it */
  bool known;            /* only then the fields below mean anything */
  uint32_t before;       /* the block before it in its sequence; MK_NO_BLOCK: it is the first */
  uint32_t how;          /* how its tokens were computed */
  uint64_t hash;         /* of all blocks up to this one */
  uint32_t chained;      /* the next block in the same list of the hash table */
  uint32_t older, newer; /* its neighbours among the blocks that are kept */
} mk_block;

enum { MK_NO_BLOCK = UINT32_MAX };

typedef enum mk_blocks_fault { /* planted by tests */
                               MK_BLOCKS_SOUND,
                               MK_BLOCKS_FREE_EARLY, /* mk_blocks_free_early does what it says */
                               MK_BLOCKS_COLLIDE,    /* hashes have two bits, and a hit compares nothing */
} mk_blocks_fault;

typedef struct mk_blocks_options {
  uint32_t slots, columns; /* of the table */
  uint32_t block_tokens, count;
  uint32_t kept; /* how many known blocks that no sequence holds are kept at most; 0: no prefix cache */
  uint64_t seed;
  mk_blocks_fault fault;
} mk_blocks_options;

typedef struct mk_blocks {
  mk_blocks_options options;
  uint32_t *spare; /* [left]; the last one goes first, so that a freed block is soon used again */
  uint32_t left;
  uint32_t *table;  /* [slots][columns], as the program's buffer */
  uint32_t *held;   /* per slot: how many entries of its row of the table name blocks */
  uint32_t *shared; /* per slot: how many of these, from the first on, are known */
  mk_block *blocks;
  uint32_t *tokens; /* [count][block_tokens], of known blocks */
  uint32_t *lists;  /* hash table, its size a power of two */
  uint32_t list_count;
  uint32_t oldest, newest, kept; /* known and held by nobody */
} mk_blocks;

mk_status mk_blocks_init(mk_blocks *blocks, const mk_blocks_options *options);
void mk_blocks_free(mk_blocks *blocks);

/* Blocks that could be had at once. */
uint32_t mk_blocks_available(const mk_blocks *blocks);
/* Blocks that somebody holds. */
uint32_t mk_blocks_in_use(const mk_blocks *blocks);

/* How many known blocks begin this sequence. Its last token is left out, since that has to be computed to know what
 * follows. */
uint32_t mk_blocks_match(const mk_blocks *blocks, const mk_known *sequence);
/* Gives these blocks to a slot that has none; returns how many. */
uint32_t mk_blocks_begin(mk_blocks *blocks, uint32_t slot, const mk_known *sequence);
/* How many blocks of the two sequences, from the first on, have the same tokens, computed in the same way. */
uint32_t mk_blocks_alike(const mk_blocks *blocks, const mk_known *a, const mk_known *b);

/* Sees to it that the slot has blocks for its first `tokens` tokens; false, and nothing has changed: there are not
 * enough. */
bool mk_blocks_hold(mk_blocks *blocks, uint32_t slot, uint32_t tokens);
/* The blocks that the slot's sequence has filled become known; sequence->count of its tokens have been computed. Where
 * there is a known block like it already, a block is given back and the known one is held in its place. To be called
 * between launches, or before the slot is released. */
void mk_blocks_learn(mk_blocks *blocks, uint32_t slot, const mk_known *sequence);
/* Gives all blocks of the slot back. */
void mk_blocks_release(mk_blocks *blocks, uint32_t slot);
/* The machine has lost what blocks held: none is known any more. No sequence may hold any block. */
void mk_blocks_forget(mk_blocks *blocks);

/* With MK_BLOCKS_FREE_EARLY: takes the last block from a slot that still needs it. */
void mk_blocks_free_early(mk_blocks *blocks, uint32_t slot);

#endif
