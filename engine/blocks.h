/* KV blocks: who has which, the block table that says so, and the prefix cache.
 *
 * A block is spare, or held by one sequence that fills it, or *known*: it is full, and its tokens and those of all
 * blocks before it in its sequence are on record. Known blocks are never written again. So sequences that begin with
 * the same tokens hold the same ones, and a known block that nobody holds is kept, up to a limit, until its room is
 * needed: the one let go longest ago goes first. A sequence lets go of its last block first, so a block is always given
 * up before the one that it follows.
 *
 * How a block is found: by a hash over that of the block before it, its tokens, and how each was computed (mk_origin);
 * a hit compares all three themselves. What else the bits depend on, the model and the rules of its sums, begins the
 * chain (`seed`).
 *
 * A mk_blocks owns its tables until mk_blocks_free. One thread. Failure: MK_ERR_RUNTIME for memory, in mk_blocks_init
 * alone. */
#ifndef MK_BLOCKS_H
#define MK_BLOCKS_H

#include "vm/program/program.h"

/* How the positions of a sequence are computed: its prompt by one machine, what it generates by another one, whose bits
 * may differ. */
typedef struct mk_origin {
  uint32_t prompt_count;
  uint8_t prompt, rest; /* mk_batch_machine */
} mk_origin;

/* A sequence as far as it is known: blocks are for its first tokens. */
typedef struct mk_known {
  const uint32_t *tokens;
  uint32_t count;
  mk_origin origin;
} mk_known;

typedef struct mk_block {
  uint32_t holders;      /* slots whose table names it */
  bool known;            /* then the rest counts */
  uint32_t before;       /* the block before it in its sequence; MK_NO_BLOCK: it is the first */
  uint32_t how;          /* its tokens were computed */
  uint64_t hash;         /* of the chain up to it */
  uint32_t chained;      /* the next one in its list of the hash table */
  uint32_t older, newer; /* of those that are kept */
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
  uint32_t kept; /* known blocks that nobody holds, at most; 0: no prefix cache */
  uint64_t seed;
  mk_blocks_fault fault;
} mk_blocks_options;

typedef struct mk_blocks {
  mk_blocks_options options;
  uint32_t *spare; /* [left]; the last one goes first, so that a freed block is soon used again */
  uint32_t left;
  uint32_t *table;  /* [slots][columns], as the program's buffer */
  uint32_t *held;   /* per slot: entries of the table that name its blocks */
  uint32_t *shared; /* per slot: the first so many of them are known */
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

/* How many known blocks begin this sequence. Its last token is left out: somebody wants to know what follows. */
uint32_t mk_blocks_match(const mk_blocks *blocks, const mk_known *sequence);
/* Gives these blocks to a slot that has none; returns how many. */
uint32_t mk_blocks_begin(mk_blocks *blocks, uint32_t slot, const mk_known *sequence);
/* Of the first so many blocks of these sequences, tokens and how they are computed are the same. */
uint32_t mk_blocks_alike(const mk_blocks *blocks, const mk_known *a, const mk_known *b);

/* Sees to it that the slot has blocks for its first `tokens` tokens; false, and nothing has changed: there are not
 * enough. */
bool mk_blocks_hold(mk_blocks *blocks, uint32_t slot, uint32_t tokens);
/* What the slot's sequence has filled becomes known: `count` of its tokens have been computed. A block of which there
 * is a known one already is given back for that one. Between launches, or before a slot is released. */
void mk_blocks_learn(mk_blocks *blocks, uint32_t slot, const mk_known *sequence);
/* Gives all blocks of the slot back. */
void mk_blocks_release(mk_blocks *blocks, uint32_t slot);
/* The machine has lost what blocks held: none is known any more. Nobody may hold any. */
void mk_blocks_forget(mk_blocks *blocks);

/* With MK_BLOCKS_FREE_EARLY: takes the last block from a slot that still needs it. */
void mk_blocks_free_early(mk_blocks *blocks, uint32_t slot);

#endif
