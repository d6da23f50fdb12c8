/* The rules of shape (S09, S10, B02, B03): what they share, in the verifier's first phase. shape.c has those of most
 * opcodes, shape_attention.c those of attention, expect.c the expectations that they are made of.
 *
 * A mk_shape belongs to one call of mk_verify_shape. What is not as it should be is told by mk_reject, with what it
 * would have to be. */
#ifndef MK_VERIFY_SHAPE_H
#define MK_VERIFY_SHAPE_H

#include "vm/verify/internal.h"

typedef struct mk_shape { /* the instruction under examination */
  mk_verifier *v;
  uint32_t index;
  const mk_instruction *in;
  const mk_opcode_info *info;
  mk_extent extents[MK_MAX_OPERANDS];
  uint32_t line_tile; /* the tile of lines that its operands belong to; MK_ALL_LINES: not known yet */
} mk_shape;

const mk_buffer *mk_shape_buffer(const mk_shape *s, uint32_t slot); /* of an operand */
uint32_t mk_shape_lines(const mk_shape *s);                         /* of a value of a step */
uint32_t mk_shape_line_tile(const mk_shape *s);
bool mk_shape_token_row(const mk_shape *s, uint32_t slot);

/* The functions below reject the instruction unless operand `slot` is what they say.
 *
 * A length or a place, which `what` names, is `want`. */
mk_status mk_expect(mk_shape *s, uint32_t slot, const char *what, uint64_t have, uint64_t want);
/* One element row, columns [col, col + cols). */
mk_status mk_expect_vector(mk_shape *s, uint32_t slot, uint32_t col, uint32_t cols);
/* As mk_expect_vector, with `rows` lines in tiles of `height`. */
mk_status mk_expect_tiles(mk_shape *s, uint32_t slot, uint64_t rows, uint32_t height, uint32_t col, uint32_t cols);
/* A line for each row of a step, all in one tile; `vectors` of them, one after the other. */
mk_status mk_expect_lines(mk_shape *s, uint32_t slot, uint32_t vectors, uint32_t col, uint32_t cols);
/* A line for each row of a step, in tiles, all of them. */
mk_status mk_expect_all_lines(mk_shape *s, uint32_t slot, uint32_t col, uint32_t cols);
/* All operands that belong to one tile of a step's lines belong to the same one. */
mk_status mk_expect_same_tile(mk_shape *s, uint32_t slot, uint32_t tile);
/* One tile of the lines of a value of a step. */
mk_status mk_expect_line_tile(mk_shape *s, uint32_t slot, uint32_t col, uint32_t cols);
/* Machines look for such a vector at the start of its buffer, whatever row is named. */
mk_status mk_expect_sole(mk_shape *s, uint32_t slot);
/* A constant vector from the start of its buffer. */
mk_status mk_expect_table(mk_shape *s, uint32_t slot, uint32_t cols);
/* As mk_expect_line_tile, for a result of whole row tiles: a buffer may end before the padding of the last one does,
 * and a rectangle of whole tiles is then cut off. */
mk_status mk_expect_rows(mk_shape *s, uint32_t slot, uint32_t weight_slot);
/* The input of a product: `steps` tiles of K columns from `col` on. A stamped one goes to the end of the last tile,
 * where the weight's padding is zero. */
mk_status mk_expect_input(mk_shape *s, uint32_t slot, uint32_t col, uint32_t steps);
/* Results that are published by whole row tiles. */
mk_status mk_expect_whole_rows(mk_shape *s, uint32_t weight);

/* The same for parameters. A number above 0; and what `rule` says. */
mk_status mk_expect_positive(mk_shape *s, uint32_t param);
mk_status mk_expect_param(mk_shape *s, uint32_t param, bool right, const char *rule);
/* A switch: 0 or 1. */
mk_status mk_expect_switch(mk_shape *s, uint32_t param);
/* A factor; 0: it is absent. */
mk_status mk_expect_factor(mk_shape *s, uint32_t param);

/* The rules of each opcode. */
#define MK_OPCODE(NAME, text, state, semantics) mk_status mk_shape_##NAME(mk_shape *s);
#include "vm/program/opcodes.def"

#endif
