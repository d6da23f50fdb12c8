/* See blocks.h. */
#include "engine/blocks.h"

#include <string.h>

static mk_status allocate(mk_blocks *b) {
  const mk_blocks_options *o = &b->options;
  for (b->list_count = 16; b->list_count < o->count; b->list_count *= 2) {
  }
  MK_TRY(mk_alloc(o->count, sizeof *b->spare, &b->spare));
  MK_TRY(mk_alloc((size_t)o->slots * o->columns, sizeof *b->table, &b->table));
  MK_TRY(mk_alloc(o->slots, sizeof *b->held, &b->held));
  MK_TRY(mk_alloc(o->slots, sizeof *b->shared, &b->shared));
  MK_TRY(mk_alloc(o->count, sizeof *b->blocks, &b->blocks));
  MK_TRY(mk_alloc((size_t)o->count * o->block_tokens, sizeof *b->tokens, &b->tokens));
  return mk_alloc(b->list_count, sizeof *b->lists, &b->lists);
}

/* All blocks are spare. */
static void reset(mk_blocks *b) {
  for (uint32_t i = 0; i < b->options.count; i++) {
    b->spare[i] = i;
    b->blocks[i] = (mk_block){0};
  }
  b->left = b->options.count;
  memset(b->lists, 0xff, b->list_count * sizeof *b->lists);
  b->oldest = b->newest = MK_NO_BLOCK;
  b->kept = 0;
}

mk_status mk_blocks_init(mk_blocks *b, const mk_blocks_options *options) {
  *b = (mk_blocks){.options = *options};
  mk_status status = allocate(b);
  if (status == MK_OK) {
    reset(b);
  }
  return status;
}

void mk_blocks_free(mk_blocks *b) {
  mk_free(b->spare);
  mk_free(b->table);
  mk_free(b->held);
  mk_free(b->shared);
  mk_free(b->blocks);
  mk_free(b->tokens);
  mk_free(b->lists);
}

uint32_t mk_blocks_available(const mk_blocks *b) { return b->left + b->kept; }
uint32_t mk_blocks_in_use(const mk_blocks *b) { return b->options.count - b->left - b->kept; }

/* ---- What is known ---- */

/* How the tokens of block `index` are computed, as one number. */
static uint32_t how_of(const mk_blocks *b, const mk_origin *o, uint32_t index) {
  enum {
    PROMPT = 16,
    REST = 24
  }; /* bits where the machines stand, above the number of tokens that are of the prompt */
  uint64_t first = (uint64_t)index * b->options.block_tokens;
  uint64_t left = o->prompt_count > first ? o->prompt_count - first : 0;
  if (left >= b->options.block_tokens || o->prompt == o->rest) {
    return o->prompt;
  }
  return left == 0 ? o->rest : (uint32_t)left | (uint32_t)o->prompt << PROMPT | (uint32_t)o->rest << REST;
}

static uint64_t mix(uint64_t hash, uint64_t word) { /* a step of FNV-1a by words, with the high bits brought down */
  hash = (hash ^ word) * UINT64_C(0x100000001b3);
  return hash ^ hash >> 29;
}

static uint64_t hash_of(const mk_blocks *b, uint64_t before, const mk_known *s, uint32_t index) {
  const uint32_t *tokens = s->tokens + (size_t)index * b->options.block_tokens;
  uint64_t hash = mix(before, how_of(b, &s->origin, index));
  for (uint32_t i = 0; i < b->options.block_tokens; i++) {
    hash = mix(hash, tokens[i]);
  }
  return b->options.fault == MK_BLOCKS_COLLIDE ? hash & 3 : hash;
}

static bool is_it(const mk_blocks *b, uint32_t block, uint64_t hash, uint32_t before, const mk_known *s,
                  uint32_t index) {
  const mk_block *k = &b->blocks[block];
  uint32_t tokens = b->options.block_tokens;
  if (k->hash != hash || b->options.fault == MK_BLOCKS_COLLIDE) {
    return k->hash == hash;
  }
  return k->before == before && k->how == how_of(b, &s->origin, index) &&
         memcmp(b->tokens + (size_t)block * tokens, s->tokens + (size_t)index * tokens, tokens * sizeof *s->tokens) ==
             0;
}

/* The known block that comes after `before`; MK_NO_BLOCK: there is none. */
static uint32_t find(const mk_blocks *b, uint64_t hash, uint32_t before, const mk_known *s, uint32_t index) {
  uint32_t block = b->lists[hash & (b->list_count - 1)];
  while (block != MK_NO_BLOCK && !is_it(b, block, hash, before, s, index)) {
    block = b->blocks[block].chained;
  }
  return block;
}

static uint64_t hash_before(const mk_blocks *b, uint32_t before) {
  return before == MK_NO_BLOCK ? b->options.seed : b->blocks[before].hash;
}

static void make_known(mk_blocks *b, uint32_t block, uint64_t hash, uint32_t before, const mk_known *s,
                       uint32_t index) {
  uint32_t *list = &b->lists[hash & (b->list_count - 1)], tokens = b->options.block_tokens;
  mk_block *k = &b->blocks[block];
  k->known = true;
  k->before = before;
  k->how = how_of(b, &s->origin, index);
  k->hash = hash;
  k->chained = *list;
  *list = block;
  memcpy(b->tokens + (size_t)block * tokens, s->tokens + (size_t)index * tokens, tokens * sizeof *s->tokens);
}

static void make_unknown(mk_blocks *b, uint32_t block) {
  mk_block *k = &b->blocks[block];
  uint32_t *at = &b->lists[k->hash & (b->list_count - 1)];
  while (*at != block) {
    at = &b->blocks[*at].chained;
  }
  *at = k->chained;
  k->known = false;
}

/* ---- What is kept ---- */

static void keep(mk_blocks *b, uint32_t block) {
  mk_block *k = &b->blocks[block];
  k->older = b->newest;
  k->newer = MK_NO_BLOCK;
  *(b->newest == MK_NO_BLOCK ? &b->oldest : &b->blocks[b->newest].newer) = block;
  b->newest = block;
  b->kept++;
}

static void take_from_kept(mk_blocks *b, uint32_t block) {
  const mk_block *k = &b->blocks[block];
  *(k->older == MK_NO_BLOCK ? &b->oldest : &b->blocks[k->older].newer) = k->newer;
  *(k->newer == MK_NO_BLOCK ? &b->newest : &b->blocks[k->newer].older) = k->older;
  b->kept--;
}

static void give_up_oldest(mk_blocks *b) {
  uint32_t block = b->oldest;
  take_from_kept(b, block);
  make_unknown(b, block);
  b->spare[b->left++] = block;
}

static void hold_known(mk_blocks *b, uint32_t block) {
  if (b->blocks[block].holders++ == 0) {
    take_from_kept(b, block);
  }
}

static void let_go(mk_blocks *b, uint32_t block) {
  if (--b->blocks[block].holders != 0) {
    return;
  }
  if (!b->blocks[block].known) {
    b->spare[b->left++] = block;
    return;
  }
  keep(b, block);
  if (b->kept > b->options.kept) {
    give_up_oldest(b);
  }
}

/* ---- Slots ---- */

/* How many known blocks begin a sequence; they are noted in `found` unless it is NULL. */
static uint32_t follow(const mk_blocks *b, const mk_known *s, uint32_t *found) {
  uint32_t whole = s->count == 0 ? 0 : (s->count - 1) / b->options.block_tokens, before = MK_NO_BLOCK, i = 0;
  for (; i < whole && b->options.kept != 0; i++) {
    uint64_t hash = hash_of(b, hash_before(b, before), s, i);
    uint32_t block = find(b, hash, before, s, i);
    if (block == MK_NO_BLOCK) {
      break;
    }
    if (found != NULL) {
      found[i] = block;
    }
    before = block;
  }
  return i;
}

uint32_t mk_blocks_match(const mk_blocks *b, const mk_known *s) { return follow(b, s, NULL); }

uint32_t mk_blocks_begin(mk_blocks *b, uint32_t slot, const mk_known *s) {
  uint32_t *row = b->table + (size_t)slot * b->options.columns, count = follow(b, s, row);
  for (uint32_t i = 0; i < count; i++) {
    hold_known(b, row[i]);
  }
  b->held[slot] = b->shared[slot] = count;
  return count;
}

uint32_t mk_blocks_alike(const mk_blocks *b, const mk_known *x, const mk_known *y) {
  uint32_t tokens = b->options.block_tokens, count = x->count < y->count ? x->count : y->count, i = 0;
  while (i < count / tokens && how_of(b, &x->origin, i) == how_of(b, &y->origin, i) &&
         memcmp(x->tokens + (size_t)i * tokens, y->tokens + (size_t)i * tokens, tokens * sizeof *x->tokens) == 0) {
    i++;
  }
  return i;
}

bool mk_blocks_hold(mk_blocks *b, uint32_t slot, uint32_t tokens) {
  uint32_t need = (tokens + b->options.block_tokens - 1) / b->options.block_tokens, *held = &b->held[slot];
  if (need > *held && need - *held > mk_blocks_available(b)) {
    return false;
  }
  while (*held < need) {
    if (b->left == 0) {
      give_up_oldest(b);
    }
    uint32_t block = b->spare[--b->left];
    b->blocks[block].holders = 1;
    b->table[(size_t)slot * b->options.columns + (*held)++] = block;
  }
  return true;
}

void mk_blocks_learn(mk_blocks *b, uint32_t slot, const mk_known *s) {
  uint32_t *row = b->table + (size_t)slot * b->options.columns, *shared = &b->shared[slot];
  for (; b->options.kept != 0 && *shared < s->count / b->options.block_tokens && *shared < b->held[slot]; ++*shared) {
    uint32_t before = *shared == 0 ? MK_NO_BLOCK : row[*shared - 1];
    uint64_t hash = hash_of(b, hash_before(b, before), s, *shared);
    uint32_t block = find(b, hash, before, s, *shared);
    if (block == MK_NO_BLOCK) {
      make_known(b, row[*shared], hash, before, s, *shared);
    } else { /* another sequence computed it, too, and was known first */
      hold_known(b, block);
      let_go(b, row[*shared]);
      row[*shared] = block;
    }
  }
}

void mk_blocks_release(mk_blocks *b, uint32_t slot) {
  while (b->held[slot] != 0) {
    let_go(b, b->table[(size_t)slot * b->options.columns + --b->held[slot]]);
  }
  b->shared[slot] = 0;
}

void mk_blocks_forget(mk_blocks *b) { reset(b); }

void mk_blocks_free_early(mk_blocks *b, uint32_t slot) {
  if (b->options.fault == MK_BLOCKS_FREE_EARLY && b->held[slot] > b->shared[slot]) {
    let_go(b, b->table[(size_t)slot * b->options.columns + --b->held[slot]]);
  }
}
