/* See mla_check.h. First all items, each noted in its slot or at its block; then all reductions, the first of a block
 * following the chain of its slots; then that nothing is left over. */
#include "vm/verify/mla_check.h"

#include <string.h>

#include "instructions/mla.h"

enum { UNIT_WORDS = MK_MLA_MOST_ROWS * MK_MLA_ROW_UNITS / 64 };

typedef struct slot_note { /* who fills it; written == 0: nobody */
  uint32_t written, block, first, end;
} slot_note;

typedef struct block_note {
  bool direct;                  /* one item writes all of it */
  uint32_t first_slot, slots;   /* of its reductions; slots == 0: none yet */
  uint32_t units;               /* reduced so far */
  uint64_t reduced[UNIT_WORDS]; /* which */
} block_note;

struct mk_mla_checker {
  mk_mla_geometry g;
  slot_note *slots;
  block_note *blocks;
};

mk_status mk_mla_checker_new(const mk_program *program, mk_mla_checker **out) {
  mk_mla_geometry g;
  *out = NULL;
  if (!mk_mla_geometry_of(program, &g)) {
    return mk_error(MK_ERR_USAGE, "the program has no mla_part, hence no work list to check");
  }
  mk_mla_checker *c;
  MK_TRY(mk_alloc(1, sizeof *c, &c));
  c->g = g;
  mk_status status = mk_alloc(g.slots, sizeof *c->slots, &c->slots);
  if (status == MK_OK) {
    status = mk_alloc((size_t)g.sequences * g.blocks, sizeof *c->blocks, &c->blocks);
  }
  if (status != MK_OK) {
    mk_mla_checker_free(c);
    return status;
  }
  *out = c;
  return MK_OK;
}

void mk_mla_checker_free(mk_mla_checker *checker) {
  if (checker != NULL) {
    mk_free(checker->slots);
    mk_free(checker->blocks);
    mk_free(checker);
  }
}

typedef struct place {
  const char *what; /* "item", "reduction" */
  uint32_t sm, index;
} place;

#define REJECT(at, format, ...) \
  mk_error(MK_ERR_REJECTED, "work list: SM %u %s %u: " format, (at)->sm, (at)->what, (at)->index, __VA_ARGS__)

static mk_status note_item(mk_mla_checker *c, const place *at, const mk_mla_item *item, uint32_t blocks) {
  if (item->block >= blocks) {
    return REJECT(at, "block is %u; the batch has %u", item->block, blocks);
  }
  bool rest = item->end == MK_MLA_REST;
  if (item->first >= c->g.max_pages || (!rest && (item->end <= item->first || item->end > c->g.max_pages))) {
    return REJECT(at, "pages %u to %u; they must rise, within the %u of a sequence", item->first, item->end,
                  c->g.max_pages);
  }
  block_note *block = &c->blocks[item->block];
  if (item->slot == MK_MLA_OUT) {
    if (item->first != 0 || !rest || block->direct) {
      return REJECT(at, "block %u: pages %u to %u go straight to the output; only one item with all pages may",
                    item->block, item->first, item->end);
    }
    block->direct = true;
    return MK_OK;
  }
  if (item->slot >= c->g.slots) {
    return REJECT(at, "slot is %u; the program has %u", item->slot, c->g.slots);
  }
  slot_note *slot = &c->slots[item->slot];
  if (slot->written != 0) {
    return REJECT(at, "slot %u is also filled for block %u, pages %u to %u", item->slot, slot->block, slot->first,
                  slot->end);
  }
  *slot = (slot_note){.written = 1, .block = item->block, .first = item->first, .end = item->end};
  return MK_OK;
}

/* The slots of a block, from its first reduction: their pages follow each other from the first to the last. */
static mk_status follow_chain(const mk_mla_checker *c, const place *at, const mk_mla_reduction *r) {
  uint32_t page = 0;
  if (r->slots == 0 || r->first_slot >= c->g.slots || r->slots > c->g.slots - r->first_slot) {
    return REJECT(at, "slots: %u from %u on; the program has %u", r->slots, r->first_slot, c->g.slots);
  }
  for (uint32_t s = r->first_slot; s < r->first_slot + r->slots; s++) {
    const slot_note *slot = &c->slots[s];
    if (slot->written == 0 || slot->block != r->block) {
      return REJECT(at, "block %u: no item of it fills slot %u", r->block, s);
    }
    if (page == MK_MLA_REST || slot->first != page) {
      return REJECT(at, "block %u: slot %u begins at page %u, the one before it ends at %u", r->block, s, slot->first,
                    page);
    }
    page = slot->end;
  }
  return page == MK_MLA_REST
             ? MK_OK
             : REJECT(at, "block %u: its last slot ends at page %u and takes not the rest", r->block, page);
}

static mk_status note_reduction(mk_mla_checker *c, const place *at, const mk_mla_reduction *r, uint32_t blocks,
                                uint32_t *read) {
  if (r->block >= blocks) {
    return REJECT(at, "block is %u; the batch has %u", r->block, blocks);
  }
  block_note *block = &c->blocks[r->block];
  if (block->direct) {
    return REJECT(at, "block %u is written by an item alone", r->block);
  }
  if (block->slots == 0) {
    MK_TRY(follow_chain(c, at, r));
    block->first_slot = r->first_slot;
    block->slots = r->slots;
    *read += r->slots;
  } else if (block->first_slot != r->first_slot || block->slots != r->slots) {
    return REJECT(at, "block %u: slots: %u from %u on; another reduction of it has %u from %u on", r->block, r->slots,
                  r->first_slot, block->slots, block->first_slot);
  }
  uint32_t first = mk_mla_first_unit(r), count = mk_mla_unit_count(r), all = c->g.rows * MK_MLA_ROW_UNITS;
  if (count == 0 || first >= all || count > all - first) {
    return REJECT(at, "block %u: units: %u from %u on; it has %u", r->block, count, first, all);
  }
  for (uint32_t word = first / 64; word <= (first + count - 1) / 64; word++) {
    uint32_t from = word == first / 64 ? first % 64 : 0,
             to = word == (first + count - 1) / 64 ? (first + count - 1) % 64 : 63;
    uint64_t mask = UINT64_MAX << from & UINT64_MAX >> (63 - to);
    if ((block->reduced[word] & mask) != 0) {
      return REJECT(at, "block %u: units: %u from %u on; another reduction writes some of them, too", r->block, count,
                    first);
    }
    block->reduced[word] |= mask;
  }
  block->units += count;
  return MK_OK;
}

static mk_status check_heads(const mk_mla_checker *c, const uint32_t *work) {
  for (uint32_t sm = 0; sm < c->g.sms; sm++) {
    const uint32_t *row = work + (size_t)sm * c->g.list_words;
    if (row[0] > c->g.capacity || row[1] > c->g.capacity - row[0] || row[2] != 0 || row[3] != 0) {
      return mk_error(MK_ERR_REJECTED,
                      "work list: SM %u has %u items and %u reductions (then %u, %u); %u fit, then zeros", sm, row[0],
                      row[1], row[2], row[3], c->g.capacity);
    }
  }
  return MK_OK;
}

mk_status mk_mla_check_list(mk_mla_checker *c, const uint32_t *work, uint32_t sequences) {
  const mk_mla_geometry *g = &c->g;
  if (sequences > g->sequences) {
    return mk_error(MK_ERR_REJECTED, "a batch of %u sequences; the program takes %u", sequences, g->sequences);
  }
  uint32_t blocks = sequences * g->blocks, written = 0, read = 0;
  memset(c->slots, 0, g->slots * sizeof *c->slots);
  memset(c->blocks, 0, blocks * sizeof *c->blocks);
  MK_TRY(check_heads(c, work));
  for (uint32_t sm = 0; sm < g->sms; sm++) {
    mk_mla_list list = mk_mla_list_of(work + (size_t)sm * g->list_words);
    for (uint32_t i = 0; i < list.items; i++) {
      MK_TRY(note_item(c, &(place){"item", sm, i}, &list.item[i], blocks));
      written += list.item[i].slot != MK_MLA_OUT;
    }
  }
  for (uint32_t sm = 0; sm < g->sms; sm++) {
    mk_mla_list list = mk_mla_list_of(work + (size_t)sm * g->list_words);
    for (uint32_t i = 0; i < list.reductions; i++) {
      MK_TRY(note_reduction(c, &(place){"reduction", sm, i}, &list.reduction[i], blocks, &read));
    }
  }
  for (uint32_t b = 0; b < blocks; b++) {
    if (!c->blocks[b].direct && c->blocks[b].units != g->rows * MK_MLA_ROW_UNITS) {
      return mk_error(MK_ERR_REJECTED, "work list: block %u of sequence %u: %u of its %u units are written",
                      b % g->blocks, b / g->blocks, c->blocks[b].units, g->rows * MK_MLA_ROW_UNITS);
    }
  }
  return written == read
             ? MK_OK
             : mk_error(MK_ERR_REJECTED, "work list: items fill %u slots, reductions read %u; each must be read",
                        written, read);
}

mk_status mk_mla_check_batch(const mk_mla_checker *c, const uint32_t *batch, uint32_t sequences) {
  const mk_mla_geometry *g = &c->g;
  if (sequences > g->sequences) {
    return mk_error(MK_ERR_REJECTED, "a batch of %u sequences; the program takes %u", sequences, g->sequences);
  }
  for (uint32_t s = 0; s < sequences; s++) {
    const uint32_t *row = batch + (size_t)s * (MK_MLA_SEQUENCE_HEAD + g->max_pages);
    uint64_t pages = ((uint64_t)row[0] + MK_MLA_PAGE_TOKENS - 1) / MK_MLA_PAGE_TOKENS;
    if (pages > g->max_pages || row[1] != 0 || row[2] != 0 || row[3] != 0) {
      return mk_error(MK_ERR_REJECTED, "sequence %u: length %u (then %u, %u, %u); at most %u tokens, then zeros", s,
                      row[0], row[1], row[2], row[3], g->max_pages * MK_MLA_PAGE_TOKENS);
    }
    for (uint32_t p = 0; p < pages; p++) {
      if (row[MK_MLA_SEQUENCE_HEAD + p] >= g->pool_pages) {
        return mk_error(MK_ERR_REJECTED, "sequence %u: page %u is page %u of the cache, which has %u", s, p,
                        row[MK_MLA_SEQUENCE_HEAD + p], g->pool_pages);
      }
    }
  }
  return MK_OK;
}
