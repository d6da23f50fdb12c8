/* What the opcodes that attend over a paged cache have in common (ATTENTION, APPEND, ATTEND): where a token lies
 * there, and the sums over tokens in the order of docs/NUMERICS.md.
 *
 * Views belong to the call that makes them, in the machine's scratch memory. One thread. */
#ifndef MK_INSTRUCTIONS_ATTENTION_H
#define MK_INSTRUCTIONS_ATTENTION_H

#include "instructions/reference.h"

enum {
  MK_OLD_TILES = 64,  /* 1,024 tokens */
  MK_TREE_LEVELS = 5, /* sums of 1, 2, 4 and 8 neighbouring pieces, and of all that are MK_TREE_PIECES */
};
_Static_assert(MK_TREE_PIECES == 1 << (MK_TREE_LEVELS - 1) && (int)MK_SPAN_PIECES <= (int)MK_TREE_LEVELS,
               "levels of the tree");

/* Parts of all query heads: of the tokens at hand, and what they are added up to. */
typedef enum mk_part_level { MK_FOLD, MK_PIECE, MK_CLASS, MK_PART_LEVELS = MK_CLASS + MK_TREE_LEVELS } mk_part_level;

typedef struct mk_unit_view {
  const mk_reference *machine;
  const mk_buffer *buffer;
  uint8_t *memory;
  const mk_span *table;
  const float *k, *v; /* [lines][head_dim]; of an opcode that takes all tokens from the cache, NULL */
  uint32_t head, head_dim, group, unit, splits;
  float *weights;      /* [group][tokens that are folded]: scores, then p */
  float *product;      /* of mk_matvec, [group][MK_FOLD_TOKENS or head_dim] */
  float *parts;        /* [MK_PART_LEVELS][group][head_dim + 2] */
  float *scratch;      /* mk_matvec's */
  uint16_t *new_tiles; /* [MK_NEW_TILES][K, V][16 * head_dim]: of the line at hand */
  uint16_t *v_tiles;   /* [head_dim / 16][tiles of tokens]: of the tokens at hand */
  /* Of a quantised cache, so that not every line has to make the same: sixteen tokens of K or V, tile t of the sequence
   * in place t % MK_OLD_TILES: [MK_OLD_TILES][K, V][16 * head_dim], and of which slot and tile they are. */
  uint16_t *old_tiles;
  struct mk_old_tile *old;
} mk_unit_view;

typedef struct mk_line_view { /* of the line at hand */
  uint32_t slot, position, split;
  uint32_t first_new;  /* position of the slot's first token that does not come from the cache */
  uint32_t first_seen; /* the first token of the line's window; 0: it sees all up to its position */
} mk_line_view;

/* The first token that a line at that position sees through a window; 0: there is none. */
static inline uint32_t mk_first_seen(uint32_t position, uint32_t window) {
  return window != 0 && window <= position ? position + 1 - window : 0;
}

/* The arrays of a view of so many query heads, from `memory` on: mk_attention_scratch floats. */
void mk_unit_lay_out(mk_unit_view *view, float *memory);

/* Whether this unit keeps token t of the slot. */
bool mk_unit_keeps(const mk_unit_view *view, uint32_t slot, uint32_t t);
/* Whether the table has a block of the cache for every token that this unit keeps of the active lines; if not, that
 * is a fault. */
bool mk_unit_check_blocks(const mk_unit_view *view, mk_reference *machine);
/* K and V of active line l go into the cache, in its form: bf16, or codes with a scale. */
void mk_unit_append(const mk_unit_view *view, uint32_t l);
/* Makes copies of the tiles of sixteen tokens that hold the first token that is not the cache's, and those after it,
 * as the line sees them: later tokens are cleared. */
void mk_unit_copy_new_tiles(const mk_unit_view *view, const mk_line_view *line);

float *mk_unit_part(const mk_unit_view *view, mk_part_level level, uint32_t h);
/* Begins all sums. */
void mk_unit_begin(const mk_unit_view *view);
/* Adds tokens [first, end) to the part of PIECE, MK_FOLD_TOKENS at a time, as far as the line sees them. */
void mk_unit_add_tokens(const mk_unit_view *view, const mk_line_view *line, const float *q, uint32_t first,
                        uint32_t end);
/* Adds the parts of a level to those of another one, and begins new ones. */
void mk_unit_add_level(const mk_unit_view *view, mk_part_level from, mk_part_level to);

/* Vectors of heads in tiles of 18 columns, in place to heads of head_dim; normed by the squares of their tiles if so
 * asked. */
void mk_take_heads(float *x, uint32_t lines, uint32_t heads, uint32_t head_dim, bool normed, float eps);

/* q [count] times the scale in base 2, rounded. */
void mk_scale_queries(float *q, size_t count, float scale);

#endif
