/* The work list of an MLA batch, and the shapes of an MLA program's buffers: what the scheduler writes, the checker
 * proves, and MLA_PART and MLA_REDUCE follow.
 *
 * The list is an input buffer of 32-bit words with a row per SM:
 *   word 0: items; 1: reductions; 2, 3: zero; then the items, then the reductions, four words each.
 * An item is the attention of one block of query rows over the KV pages [first, end) of its sequence, those beyond the
 * sequence's length being empty. The last item of a block has MK_MLA_REST for an end: it takes whatever pages the
 * sequence has by then, so a list holds for any lengths, and a longer sequence costs its last item more. An item alone
 * writes the output; several of one block each fill a partial slot, in the order of their pages, and reductions turn
 * those into output. A reduction's part of the block is counted in units of 128 columns, four to a row.
 *
 * Buffers: a row of q, out is a block (block b of sequence s is row s * blocks + b), a row of kv a page, a row of parts
 * a slot. Blocks hold `rows` query rows one after the other: q rows x 576, out rows x 512, a slot rows x 4 x 66 words,
 * a unit after the other: the logarithm (base 2) of the row's sum of weights, -infinity where no token was seen; a
 * power of two; and the normalised sum over that power, two fp16 a word. Eleven bits of a unit's largest values are
 * kept: 2e-4 of its size. (A GPU keeps three words and their stamp in 128 bits, in the order of its own: mla_slot.cuh.)
 * A row of `sequences` is the length, three zeros, and the pages of the sequence in order.
 *
 * Plain data; any thread. */
#ifndef MK_MLA_H
#define MK_MLA_H

#include "models/mla.h"
#include "vm/program/program.h"

#define MK_MLA_OUT 0xffffffffu  /* slot: straight to the output */
#define MK_MLA_REST 0xffffffffu /* end: through the last page */

enum {
  MK_MLA_MOST_FOLDED = 4, /* slots of a block: mk_mla_folds */
  MK_MLA_LIST_HEAD = 4,   /* words in front of the entries */
  MK_MLA_ENTRY = 4,       /* words of an item or a reduction */
  MK_MLA_SEQUENCE_HEAD = 4,
  MK_MLA_UNIT = 128, /* columns */
  MK_MLA_UNIT_HEAD = 2,
  MK_MLA_UNIT_WORDS = MK_MLA_UNIT_HEAD + MK_MLA_UNIT / 2, /* in a slot */
  MK_MLA_PART_WIDTH = MK_MLA_LATENT / MK_MLA_UNIT * MK_MLA_UNIT_WORDS,
  MK_MLA_ROW_UNITS = MK_MLA_LATENT / MK_MLA_UNIT,
  MK_MLA_SCRATCH = MK_MLA_MOST_ROWS * (MK_MLA_WIDTH + MK_MLA_LATENT + 2 + MK_MLA_PART_WIDTH) +
                   MK_MLA_PAGE_TOKENS * (MK_MLA_WIDTH + 1),
};

typedef struct mk_mla_item {
  uint32_t block;      /* row of q */
  uint32_t first, end; /* pages of the sequence; end: MK_MLA_REST */
  uint32_t slot;       /* row of parts, or MK_MLA_OUT */
} mk_mla_item;

typedef struct mk_mla_reduction {
  uint32_t block;             /* row of out */
  uint32_t first_slot, slots; /* rows of parts, all of this block, added in this order */
  uint32_t units;             /* low half: the first, high half: how many */
} mk_mla_reduction;

#ifndef __CUDACC__
static inline uint32_t mk_mla_first_unit(const mk_mla_reduction *r) { return r->units & 0xffffu; }
static inline uint32_t mk_mla_unit_count(const mk_mla_reduction *r) { return r->units >> 16; }

/* One row of a list. */
typedef struct mk_mla_list {
  uint32_t items, reductions;
  const mk_mla_item *item;
  const mk_mla_reduction *reduction;
} mk_mla_list;

static inline mk_mla_list mk_mla_list_of(const uint32_t *row) {
  return (mk_mla_list){
      .items = row[0],
      .reductions = row[1],
      .item = (const mk_mla_item *)(const void *)(row + MK_MLA_LIST_HEAD),
      .reduction = (const mk_mla_reduction *)(const void *)(row + MK_MLA_LIST_HEAD + (size_t)MK_MLA_ENTRY * row[0])};
}

/* Whether the first reduction of a row is of the block of its last item, of few slots, and of whole groups of eight
 * query rows: then the item's own part of those rows need not leave its SM. (A GPU keeps it in registers and never
 * writes it to the slot, which nobody else reads there.) */
static inline bool mk_mla_folds(const mk_mla_list *list) {
  const mk_mla_item *item = list->item + list->items - (list->items != 0);
  const mk_mla_reduction *r = list->reduction;
  return list->items != 0 && list->reductions != 0 && item->slot != MK_MLA_OUT && item->block == r->block &&
         r->slots <= MK_MLA_MOST_FOLDED && mk_mla_first_unit(r) % (8 * MK_MLA_ROW_UNITS) == 0 &&
         mk_mla_unit_count(r) % (8 * MK_MLA_ROW_UNITS) == 0;
}

/* The sizes of a program, from its buffers, and which those are. */
typedef struct mk_mla_geometry {
  uint32_t sms;          /* rows of the list */
  uint32_t rows, blocks; /* query rows of a block, blocks of a sequence */
  uint32_t new_tokens, sequences, max_pages, pool_pages, slots;
  uint32_t list_words, capacity; /* of a row of the list: words, and entries that fit */
  uint16_t q, kv, sequence_buffer, work, parts, out;
} mk_mla_geometry;

/* false: the program has no MLA_PART. Of a verified program all sizes fit each other. */
bool mk_mla_geometry_of(const mk_program *program, mk_mla_geometry *out);

/* What a work list says about one operand: tiles [row, col) to [row + 1, col + cols) of its buffer. */
typedef struct mk_listed_tiles {
  uint32_t row, col, cols;
  uint32_t entry, sub; /* where the next one is found; zeros at first */
} mk_listed_tiles;

/* The next tiles of the listed operand in `slot`; false: no more. `memory` as in mk_reference. */
bool mk_listed_next(const mk_program *program, uint8_t *const *memory, const mk_instruction *instruction, uint32_t slot,
                    mk_listed_tiles *tiles);
/* Whether some operand of the instruction is listed. */
bool mk_instruction_listed(const mk_instruction *instruction);
bool mk_program_listed(const mk_program *program); /* of some instruction */
#endif

#endif
