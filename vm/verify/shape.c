/* Phase 1, per opcode: the operands of one instruction fit together, and inside their buffers for every value of the
 * step parameters. Rules S09 (parameters), S10 (shapes), B02 (token), B03 (position and blocks); those of attention are
 * in shape_attention.c, and what rules are said in, expectations of one operand or parameter, in expect.c.
 *
 * The rules read as the opcode's reference does: lengths are elements, cut off where a buffer ends. */
#include "vm/verify/shape.h"

#include "instructions/sampling.h"
#include "vm/program/plan.h"

/* x [K] and weight [rows, K] over the same columns; all of K unless `part`. */
static mk_status check_product(mk_shape *s, uint32_t x, uint32_t weight, bool part) {
  const mk_extent *w = &s->extents[weight];
  if (!part) {
    MK_TRY(mk_expect(s, weight, "first column", w->col, 0));
    MK_TRY(mk_expect(s, weight, "number of columns", w->cols, mk_shape_buffer(s, weight)->cols));
  }
  return mk_expect_input(s, x, w->col, s->in->operands[weight].cols);
}

/* The parameters of a norm, by their indices. */
typedef struct norm_params {
  uint32_t eps, width, plus;
} norm_params;
#define NORM_PARAMS(NAME) ((norm_params){MK_PARAM_##NAME##_eps, MK_PARAM_##NAME##_width, MK_PARAM_##NAME##_plus})

/* gain has `width` elements, and `more` after them. */
static mk_status check_gain(mk_shape *s, uint32_t gain, uint32_t width, uint32_t more) {
  MK_TRY(mk_expect_param(s, width, (uint64_t)s->in->params[width] + more == mk_shape_buffer(s, gain)->cols,
                         more == 0 ? "it must be the number of columns of gain"
                                   : "it must be the number of columns of gain before the biases"));
  return mk_expect_table(s, gain, s->in->params[width] + more);
}

/* norm(x) by such a gain; and so many columns has the weight, where there is one. */
static mk_status check_norm(mk_shape *s, uint32_t gain, uint32_t weight, const norm_params *p, uint32_t more) {
  MK_TRY(mk_expect_positive(s, p->eps));
  MK_TRY(mk_expect_factor(s, p->plus));
  MK_TRY(check_gain(s, gain, p->width, more));
  return weight == gain || mk_operand_empty(&s->in->operands[weight])
             ? MK_OK
             : mk_expect(s, weight, "number of columns", s->extents[weight].cols, s->in->params[p->width]);
}

static uint32_t chains_of(uint32_t cols) { return (cols + MK_CHAIN_COLS - 1) / MK_CHAIN_COLS; }

/* Squares of chains, `chains` from `first` on, in a buffer that has those of so many columns. */
static mk_status expect_squares(mk_shape *s, uint32_t squares, uint32_t cols, uint32_t first, uint32_t chains) {
  MK_TRY(mk_expect_sole(s, squares));
  MK_TRY(mk_expect(s, squares, "tile width", mk_shape_buffer(s, squares)->tile_cols, 1));
  MK_TRY(mk_expect(s, squares, "number of columns in the buffer", mk_shape_buffer(s, squares)->cols, chains_of(cols)));
  return mk_expect_line_tile(s, squares, first, chains);
}

/* norm(x) where a NORM has begun the norm: what is left is the scale, by the squares of all `width` columns of x. */
static mk_status check_squares(mk_shape *s, uint32_t squares, uint32_t weight, uint32_t eps, uint32_t width) {
  const uint32_t cols = s->in->params[width];
  MK_TRY(mk_expect_positive(s, eps));
  MK_TRY(mk_expect_param(s, width, cols != 0, "it must be above 0"));
  if (!mk_operand_empty(&s->in->operands[weight])) {
    MK_TRY(mk_expect(s, weight, "number of columns", s->extents[weight].cols, cols));
  }
  return expect_squares(s, squares, cols, 0, chains_of(cols));
}

/* check_norm, or check_squares, or the norm is left out, with its parameters. */
static mk_status check_norm_or_none(mk_shape *s, uint32_t gain, uint32_t squares, uint32_t weight, norm_params p,
                                    uint32_t more) {
  const bool has_gain = !mk_operand_empty(&s->in->operands[gain]);
  if (has_gain && mk_operand_empty(&s->in->operands[squares])) {
    return check_norm(s, gain, weight, &p, more);
  }
  MK_TRY(mk_expect_param(s, p.plus, s->in->params[p.plus] == 0, "it must be 0 where there is no gain"));
  if (!mk_operand_empty(&s->in->operands[squares])) {
    if (has_gain != (more != 0)) {
      return mk_reject(s->v, "S10", s->index,
                       "squares: are those of an x that is normed; there can be no gain but that "
                       "which the biases follow, where there are some");
    }
    MK_TRY(!has_gain ? MK_OK : check_gain(s, gain, p.width, more));
    return check_squares(s, squares, weight, p.eps, p.width);
  }
  MK_TRY(mk_expect_param(s, p.eps, s->in->params[p.eps] == 0, "it must be 0 where there is no gain"));
  MK_TRY(mk_expect_param(s, p.width, s->in->params[p.width] == 0, "it must be 0 where there is no gain"));
  return more == 0 ? MK_OK : mk_reject(s->v, "S10", s->index, "gain: is absent; it has the biases");
}

/* Tiles of 16 values and what follows them. */
static mk_status expect_squared(mk_shape *s, uint32_t slot, uint32_t tile, uint32_t tiles) {
  MK_TRY(mk_expect(s, slot, "tile width", mk_shape_buffer(s, slot)->tile_cols, MK_SQUARED_TILE));
  MK_TRY(mk_expect(s, slot, "number of tiles", s->in->operands[slot].cols, tiles));
  return mk_expect_line_tile(s, slot, tile * MK_SQUARED_TILE, tiles * MK_SQUARED_TILE);
}

mk_status mk_shape_QKV(mk_shape *s) {
  MK_TRY(check_product(s, MK_SLOT_QKV_x, MK_SLOT_QKV_weight, false));
  MK_TRY(check_norm_or_none(s, MK_SLOT_QKV_gain, MK_SLOT_QKV_squares, MK_SLOT_QKV_weight, NORM_PARAMS(QKV), 0));
  MK_TRY(mk_expect_whole_rows(s, MK_SLOT_QKV_weight));
  uint32_t head_dim = s->in->params[MK_PARAM_QKV_head_dim], rope = s->in->params[MK_PARAM_QKV_rope_tiles];
  MK_TRY(mk_expect_param(s, MK_PARAM_QKV_head_dim, mk_head_dim_exists(head_dim), "it must be 64, 128 or 256"));
  MK_TRY(mk_expect_param(
      s, MK_PARAM_QKV_rope_tiles,
      rope <= mk_buffer_grid_rows(mk_shape_buffer(s, MK_SLOT_QKV_weight)) && rope % (head_dim / MK_TILE) == 0,
      "it must be whole heads, within the weight"));
  uint32_t extras = s->in->params[MK_PARAM_QKV_extras], rows = mk_shape_buffer(s, MK_SLOT_QKV_weight)->rows;
  uint64_t more = (uint64_t)rows * (((extras & MK_QKV_BIASES) != 0 ? 1U : 0U) + ((extras & MK_QKV_GAINS) != 0));
  MK_TRY(
      mk_expect_param(s, MK_PARAM_QKV_extras, extras < 2 * MK_QKV_SQUARES, "it must be a sum of some of 1, 2 and 4"));
  MK_TRY(mk_expect_param(s, MK_PARAM_QKV_extras, head_dim / 2 + more <= UINT32_MAX, "the vectors are too long"));
  MK_TRY(mk_expect_table(s, MK_SLOT_QKV_inv_freq, head_dim / 2 + (uint32_t)more));
  const mk_extent *w = &s->extents[MK_SLOT_QKV_weight];
  return (extras & MK_QKV_SQUARES) != 0 ? expect_squared(s, MK_SLOT_QKV_out, w->row / MK_TILE, w->rows / MK_TILE)
                                        : mk_expect_line_tile(s, MK_SLOT_QKV_out, w->row, w->rows);
}

/* One chain, whose last tile may end before the padding does. Its columns are those that the chain's place among the
 * squares says. */
mk_status mk_shape_NORM(mk_shape *s) {
  const mk_buffer *to = mk_shape_buffer(s, MK_SLOT_NORM_out);
  static const uint32_t slots[] = {MK_SLOT_NORM_x, MK_SLOT_NORM_out};
  const uint32_t chain = s->extents[MK_SLOT_NORM_squares].col, col = chain * MK_CHAIN_COLS;
  MK_TRY(expect_squares(s, MK_SLOT_NORM_squares, to->cols, chain, 1));
  MK_TRY(mk_expect(s, MK_SLOT_NORM_out, "number of columns in the buffer modulo 16", to->cols % MK_TILE, 0));
  for (uint32_t i = 0; i < 2; i++) {
    const uint32_t size = mk_shape_buffer(s, slots[i])->cols, left = size > col ? size - col : 0;
    MK_TRY(mk_expect(s, slots[i], "tile width", mk_shape_buffer(s, slots[i])->tile_cols, MK_TILE));
    MK_TRY(mk_expect(s, slots[i], "number of tiles of 16 columns in the buffer", (size + MK_TILE - 1) / MK_TILE,
                     to->cols / MK_TILE));
    MK_TRY(mk_expect_sole(s, slots[i]));
    MK_TRY(mk_expect_line_tile(s, slots[i], col, left < MK_CHAIN_COLS ? left : (uint32_t)MK_CHAIN_COLS));
  }
  const uint32_t all = mk_shape_buffer(s, MK_SLOT_NORM_gain)->cols, given = s->in->params[MK_PARAM_NORM_gains];
  if (mk_operand_empty(&s->in->operands[MK_SLOT_NORM_gain])) {
    return mk_expect_param(s, MK_PARAM_NORM_gains, given == 0, "it must be 0 where there is no gain");
  }
  const uint32_t gains = given == 0 ? all : given;
  MK_TRY(mk_expect_param(s, MK_PARAM_NORM_gains, given < all, "it must be below the number of columns of gain"));
  MK_TRY(mk_expect(s, MK_SLOT_NORM_gain, "number of tiles of 16 columns", (gains + MK_TILE - 1) / MK_TILE,
                   to->cols / MK_TILE));
  return mk_expect_table(s, MK_SLOT_NORM_gain, all);
}

/* residual_out has as many columns as the sum, as far as its buffer goes; what comes in and goes out may end within the
 * last of its tiles. */
static mk_status check_residual(mk_shape *s, uint32_t in, uint32_t to, uint32_t out, uint32_t col, uint32_t cols) {
  const uint32_t slots[] = {to, in, out};
  for (uint32_t i = 0; i < 3; i++) {
    uint32_t slot = slots[i], size = mk_shape_buffer(s, slot)->cols, left = size > col ? size - col : 0;
    uint32_t have = i == 0 ? cols : cols < left ? cols : left;
    MK_TRY(mk_expect_sole(s, slot));
    MK_TRY(mk_expect_line_tile(s, slot, col, have));
    MK_TRY(mk_expect(s, slot, "number of tiles of 16 columns", (have + MK_TILE - 1) / MK_TILE,
                     (cols + MK_TILE - 1) / MK_TILE));
    if (i < 2 || mk_shape_lines(s) > 1) {
      MK_TRY(mk_expect(s, slot, "tile width", mk_shape_buffer(s, slot)->tile_cols, MK_TILE));
    }
  }
  return MK_OK;
}

mk_status mk_shape_LINEAR_ADD(mk_shape *s) {
  const mk_extent *w = &s->extents[MK_SLOT_LINEAR_ADD_weight];
  MK_TRY(check_product(s, MK_SLOT_LINEAR_ADD_x, MK_SLOT_LINEAR_ADD_weight, false));
  return check_residual(s, MK_SLOT_LINEAR_ADD_residual_in, MK_SLOT_LINEAR_ADD_residual_out, MK_SLOT_LINEAR_ADD_out,
                        w->row, w->rows);
}

/* How many rows of a buffer [tile of lines][part][line] belong to one tile of lines. */
static uint32_t rows_of_parts(const mk_shape *s, uint32_t slot) {
  const uint32_t rows = mk_shape_buffer(s, slot)->rows / (mk_shape_lines(s) / mk_shape_line_tile(s));
  return rows != 0 ? rows : 1;
}

mk_status mk_shape_LINEAR_PART(mk_shape *s) {
  const mk_extent *w = &s->extents[MK_SLOT_LINEAR_PART_weight];
  MK_TRY(check_product(s, MK_SLOT_LINEAR_PART_x, MK_SLOT_LINEAR_PART_weight, true));
  MK_TRY(mk_expect_whole_rows(s, MK_SLOT_LINEAR_PART_weight));
  MK_TRY(mk_expect_tiles(s, MK_SLOT_LINEAR_PART_out, mk_shape_line_tile(s), mk_shape_line_tile(s), w->row, w->rows));
  return mk_expect_same_tile(s, MK_SLOT_LINEAR_PART_out,
                             s->extents[MK_SLOT_LINEAR_PART_out].row / rows_of_parts(s, MK_SLOT_LINEAR_PART_out));
}

/* The operand has all parts [P, columns] of a sum, for one tile of lines. */
static mk_status check_parts(mk_shape *s, uint32_t slot) {
  const mk_buffer *b = mk_shape_buffer(s, slot);
  const uint32_t rows = rows_of_parts(s, slot);
  MK_TRY(mk_expect(s, slot, "tile height", b->tile_rows, mk_shape_line_tile(s)));
  MK_TRY(mk_expect(s, slot, "tile width", b->tile_cols, MK_TILE));
  if (b->rows > 1) {
    MK_TRY(mk_expect(s, slot, "number of columns in the buffer modulo 2", b->cols % 2, 0));
  }
  MK_TRY(mk_expect(s, slot, "first row", s->extents[slot].row, (uint64_t)s->extents[slot].row / rows * rows));
  MK_TRY(mk_expect(s, slot, "number of rows", s->extents[slot].rows, rows));
  return mk_expect_same_tile(s, slot, s->extents[slot].row / rows);
}

mk_status mk_shape_REDUCE_ADD(mk_shape *s) {
  const mk_extent *parts = &s->extents[MK_SLOT_REDUCE_ADD_parts];
  MK_TRY(check_parts(s, MK_SLOT_REDUCE_ADD_parts));
  return check_residual(s, MK_SLOT_REDUCE_ADD_residual_in, MK_SLOT_REDUCE_ADD_residual_out, MK_SLOT_REDUCE_ADD_out,
                        parts->col, parts->cols);
}

/* The norm of a sum, over all columns of parts, is added to a residual. Both opcodes have the same operands in the same
 * slots. */
static mk_status check_norm_add(mk_shape *s) {
  const mk_extent *to = &s->extents[MK_SLOT_NORM_ADD_residual_out];
  const uint32_t width = s->in->params[MK_PARAM_NORM_ADD_width], all = mk_shape_buffer(s, MK_SLOT_NORM_ADD_parts)->cols;
  MK_TRY(mk_expect_switch(s, MK_PARAM_NORM_ADD_biased));
  MK_TRY(mk_expect_param(s, MK_PARAM_NORM_ADD_width, width <= all, "it must be at most the columns of parts"));
  MK_TRY(check_norm(s, MK_SLOT_NORM_ADD_gain, MK_SLOT_NORM_ADD_gain, &NORM_PARAMS(NORM_ADD),
                    s->in->params[MK_PARAM_NORM_ADD_biased] != 0 ? width : 0));
  MK_TRY(mk_expect(s, MK_SLOT_NORM_ADD_residual_out, "first column modulo 16", to->col % MK_TILE, 0));
  return check_residual(s, MK_SLOT_NORM_ADD_residual_in, MK_SLOT_NORM_ADD_residual_out, MK_SLOT_NORM_ADD_out, to->col,
                        to->cols);
}

/* The instruction reads all columns of the sum, and writes those of residual_out. */
mk_status mk_shape_NORM_ADD(mk_shape *s) {
  const mk_extent *parts = &s->extents[MK_SLOT_NORM_ADD_parts];
  MK_TRY(check_parts(s, MK_SLOT_NORM_ADD_parts));
  MK_TRY(mk_expect(s, MK_SLOT_NORM_ADD_parts, "first column", parts->col, 0));
  MK_TRY(mk_expect(s, MK_SLOT_NORM_ADD_parts, "number of columns", parts->cols,
                   mk_shape_buffer(s, MK_SLOT_NORM_ADD_parts)->cols));
  return check_norm_add(s);
}

/* Of the sum it reads the columns of residual_out. */
mk_status mk_shape_ADD_NORMED(mk_shape *s) {
  const mk_extent *parts = &s->extents[MK_SLOT_ADD_NORMED_parts], *to = &s->extents[MK_SLOT_ADD_NORMED_residual_out];
  const uint32_t all = mk_shape_buffer(s, MK_SLOT_ADD_NORMED_parts)->cols;
  MK_TRY(check_parts(s, MK_SLOT_ADD_NORMED_parts));
  MK_TRY(mk_expect(s, MK_SLOT_ADD_NORMED_parts, "first column", parts->col, to->col));
  MK_TRY(mk_expect(s, MK_SLOT_ADD_NORMED_parts, "number of columns", parts->cols, to->cols));
  MK_TRY(expect_squares(s, MK_SLOT_ADD_NORMED_squares, all, 0, chains_of(all)));
  return check_norm_add(s);
}

/* One chain, whose columns are those that its place among the squares says. */
mk_status mk_shape_SQUARES(mk_shape *s) {
  const mk_extent *parts = &s->extents[MK_SLOT_SQUARES_parts];
  const uint32_t all = mk_shape_buffer(s, MK_SLOT_SQUARES_parts)->cols, width = s->in->params[MK_PARAM_SQUARES_width];
  const uint32_t chain = s->extents[MK_SLOT_SQUARES_squares].col, col = chain * MK_CHAIN_COLS;
  const uint32_t left = all > col ? all - col : 0;
  MK_TRY(check_parts(s, MK_SLOT_SQUARES_parts));
  MK_TRY(mk_expect(s, MK_SLOT_SQUARES_parts, "number of columns in the buffer modulo 16", all % MK_TILE, 0));
  MK_TRY(expect_squares(s, MK_SLOT_SQUARES_squares, all, chain, 1));
  MK_TRY(mk_expect(s, MK_SLOT_SQUARES_parts, "first column", parts->col, col));
  MK_TRY(mk_expect(s, MK_SLOT_SQUARES_parts, "number of columns", parts->cols,
                   left < MK_CHAIN_COLS ? left : (uint32_t)MK_CHAIN_COLS));
  MK_TRY(mk_expect_param(s, MK_PARAM_SQUARES_width, width != 0 && width <= all,
                         "it must be above 0, and at most the columns of parts"));
  return mk_operand_empty(&s->in->operands[MK_SLOT_SQUARES_gain])
             ? MK_OK
             : check_gain(s, MK_SLOT_SQUARES_gain, MK_PARAM_SQUARES_width, width);
}

/* The result stays with the SM, so there is no rounded copy of it; everything else is as in check_residual. */
mk_status mk_shape_OFFSET(mk_shape *s) {
  const mk_extent *to = &s->extents[MK_SLOT_OFFSET_residual_out];
  MK_TRY(mk_expect_factor(s, MK_PARAM_OFFSET_factor));
  MK_TRY(check_residual(s, MK_SLOT_OFFSET_residual_in, MK_SLOT_OFFSET_residual_out, MK_SLOT_OFFSET_residual_out,
                        to->col, to->cols));
  if (mk_operand_empty(&s->in->operands[MK_SLOT_OFFSET_bias])) {
    return MK_OK;
  }
  const uint32_t cols = mk_shape_buffer(s, MK_SLOT_OFFSET_bias)->cols;
  MK_TRY(mk_expect_table(s, MK_SLOT_OFFSET_bias, cols));
  return mk_expect(s, MK_SLOT_OFFSET_bias, "number of tiles of 16 columns", (cols + MK_TILE - 1) / MK_TILE,
                   (mk_shape_buffer(s, MK_SLOT_OFFSET_residual_out)->cols + MK_TILE - 1) / MK_TILE);
}

mk_status mk_shape_NORM_HEADS(mk_shape *s) {
  const mk_extent *out = &s->extents[MK_SLOT_NORM_HEADS_out];
  const uint64_t tiles = mk_buffer_grid_cols(mk_shape_buffer(s, MK_SLOT_NORM_HEADS_values));
  const uint32_t queries = s->in->params[MK_PARAM_NORM_HEADS_query_tiles];
  const uint32_t keys = s->in->params[MK_PARAM_NORM_HEADS_key_tiles];
  MK_TRY(mk_expect_positive(s, MK_PARAM_NORM_HEADS_eps));
  MK_TRY(mk_expect_param(s, MK_PARAM_NORM_HEADS_query_tiles, queries != 0 && queries < tiles,
                         "it must be above 0 and below the tiles of values"));
  MK_TRY(mk_expect_param(s, MK_PARAM_NORM_HEADS_key_tiles, keys != 0 && keys <= tiles - queries,
                         "it must be above 0, and with the query tiles within the tiles of values"));
  MK_TRY(mk_expect_sole(s, MK_SLOT_NORM_HEADS_values));
  MK_TRY(expect_squared(s, MK_SLOT_NORM_HEADS_values, 0, (uint32_t)tiles));
  MK_TRY(mk_expect_sole(s, MK_SLOT_NORM_HEADS_out));
  MK_TRY(mk_expect(s, MK_SLOT_NORM_HEADS_out, "tile width", mk_shape_buffer(s, MK_SLOT_NORM_HEADS_out)->tile_cols,
                   MK_TILE));
  MK_TRY(mk_expect(s, MK_SLOT_NORM_HEADS_out, "number of columns in the buffer",
                   mk_shape_buffer(s, MK_SLOT_NORM_HEADS_out)->cols, tiles * MK_TILE));
  return mk_expect_line_tile(s, MK_SLOT_NORM_HEADS_out, out->col, out->cols);
}

mk_status mk_shape_GLU(mk_shape *s) {
  const mk_extent *w = &s->extents[MK_SLOT_GLU_weight];
  uint32_t biases = s->in->params[MK_PARAM_GLU_biased] != 0 ? mk_shape_buffer(s, MK_SLOT_GLU_weight)->rows : 0;
  MK_TRY(check_product(s, MK_SLOT_GLU_x, MK_SLOT_GLU_weight, false));
  MK_TRY(mk_expect_switch(s, MK_PARAM_GLU_biased));
  MK_TRY(mk_expect_switch(s, MK_PARAM_GLU_gelu));
  MK_TRY(check_norm_or_none(s, MK_SLOT_GLU_gain, MK_SLOT_GLU_squares, MK_SLOT_GLU_weight, NORM_PARAMS(GLU), biases));
  MK_TRY(mk_expect_whole_rows(s, MK_SLOT_GLU_weight));
  if (mk_shape_lines(s) > 1) {
    MK_TRY(mk_expect(s, MK_SLOT_GLU_out, "tile width", mk_shape_buffer(s, MK_SLOT_GLU_out)->tile_cols, MK_TILE / 2));
  }
  return mk_expect_line_tile(s, MK_SLOT_GLU_out, w->row / 2, w->rows / 2);
}

/* The next token is an index into the `count` columns of this operand's buffer. */
static mk_status check_named(mk_shape *s, uint32_t slot, uint32_t count) {
  const mk_range *token = &s->v->program->ranges.token;
  if (token->low != 0 || token->high < count - 1) {
    return mk_reject(s->v, "B02", s->index, "%s: names tokens 0 to %u by buffer %s; tokens are %u to %u",
                     s->info->operands[slot].name, count - 1, mk_shape_buffer(s, slot)->name, token->low, token->high);
  }
  return MK_OK;
}

/* Candidates: pairs of words, one pair after the other in memory. */
static mk_status expect_pairs(mk_shape *s, uint32_t slot) {
  MK_TRY(mk_expect(s, slot, "number of columns in the buffer", mk_shape_buffer(s, slot)->cols, 2));
  return mk_expect(s, slot, "tile width", mk_shape_buffer(s, slot)->tile_cols, 2);
}

mk_status mk_shape_HEAD(mk_shape *s) {
  const mk_operand *weight = &s->in->operands[MK_SLOT_HEAD_weight], *logits = &s->in->operands[MK_SLOT_HEAD_logits];
  MK_TRY(mk_expect_factor(s, MK_PARAM_HEAD_factor));
  if (mk_operand_empty(&s->in->operands[MK_SLOT_HEAD_gain]) &&
      mk_operand_empty(&s->in->operands[MK_SLOT_HEAD_squares])) {
    return mk_reject(s->v, "S10", s->index, "gain and squares: both are empty; a head norms by one of them");
  }
  MK_TRY(check_norm_or_none(s, MK_SLOT_HEAD_gain, MK_SLOT_HEAD_squares, MK_SLOT_HEAD_weight, NORM_PARAMS(HEAD), 0));
  MK_TRY(mk_expect_param(s, MK_PARAM_HEAD_vocab,
                         s->in->params[MK_PARAM_HEAD_vocab] == mk_shape_buffer(s, MK_SLOT_HEAD_logits)->cols,
                         "it must be the number of logits"));
  MK_TRY(check_named(s, MK_SLOT_HEAD_logits, s->in->params[MK_PARAM_HEAD_vocab]));
  MK_TRY(expect_pairs(s, MK_SLOT_HEAD_candidate));
  MK_TRY(mk_expect_tiles(s, MK_SLOT_HEAD_candidate, mk_shape_line_tile(s), mk_shape_line_tile(s), 0, 2));
  MK_TRY(mk_expect_same_tile(s, MK_SLOT_HEAD_candidate,
                             s->extents[MK_SLOT_HEAD_candidate].row % mk_shape_lines(s) / mk_shape_line_tile(s)));
  if (mk_operand_empty(weight) != mk_operand_empty(logits)) {
    return mk_reject(s->v, "S10", s->index, "weight and logits: one is empty, the other is not");
  }
  if (mk_operand_empty(weight)) {
    return mk_expect_input(s, MK_SLOT_HEAD_x, 0, (s->in->params[MK_PARAM_HEAD_width] + MK_TILE - 1) / MK_TILE);
  }
  MK_TRY(mk_expect_sole(s, MK_SLOT_HEAD_logits));
  MK_TRY(check_product(s, MK_SLOT_HEAD_x, MK_SLOT_HEAD_weight, false));
  return mk_expect_rows(s, MK_SLOT_HEAD_logits, MK_SLOT_HEAD_weight);
}

/* The plan of a whole launch, and as many steps of the ring. */
mk_status mk_shape_NEXT(mk_shape *s) {
  uint32_t lines = mk_shape_lines(s);
  const mk_buffer *from = mk_shape_buffer(s, MK_SLOT_NEXT_candidates);
  const mk_extent *plan = &s->extents[MK_SLOT_NEXT_plan], *ring = &s->extents[MK_SLOT_NEXT_ring];
  MK_TRY(expect_pairs(s, MK_SLOT_NEXT_candidates));
  uint32_t tiles = s->in->operands[MK_SLOT_NEXT_candidates].rows;
  tiles = tiles == 1 ? 1 : mk_buffer_grid_rows(from); /* one: its own SM's choice (rule N04) */
  MK_TRY(mk_expect_tiles(s, MK_SLOT_NEXT_candidates, (uint64_t)tiles * mk_shape_line_tile(s), mk_shape_line_tile(s), 0,
                         2));
  MK_TRY(mk_expect_table(s, MK_SLOT_NEXT_plan, mk_shape_buffer(s, MK_SLOT_NEXT_plan)->cols));
  uint32_t rows = plan->cols / MK_ROW_WORDS;
  if (rows == 0 || rows % lines != 0 || plan->cols % MK_ROW_WORDS != 0) {
    return mk_reject(s->v, "B03", s->index, "plan: %u words; a step of %u rows has %u, and a launch whole steps",
                     plan->cols, lines, lines * MK_ROW_WORDS);
  }
  if (mk_operand_empty(&s->in->operands[MK_SLOT_NEXT_ring])) {
    return MK_OK;
  }
  MK_TRY(mk_expect_table(s, MK_SLOT_NEXT_ring, ring->cols));
  if (ring->cols < plan->cols / MK_ROW_WORDS) {
    return mk_reject(s->v, "B03", s->index, "ring: %u tokens; %u rows in each of the plan's steps need %u", ring->cols,
                     lines, plan->cols / MK_ROW_WORDS);
  }
  return MK_OK;
}

/* The words of the sampling buffer (instructions/sampling.h), for each slot: of programs that draw there are as many
 * slots as rows. */
static mk_status check_sampling(mk_shape *s, uint32_t slot) {
  if (mk_shape_lines(s) > MK_MOST_DRAWING_ROWS) {
    return mk_reject(s->v, "S10", s->index, "%s draws for at most %d rows a step; the program has %u", s->info->name,
                     MK_MOST_DRAWING_ROWS, mk_shape_lines(s));
  }
  const mk_extent *at = &s->extents[slot];
  MK_TRY(mk_expect(s, slot, "number of rows in the buffer", mk_shape_buffer(s, slot)->rows, mk_shape_lines(s)));
  MK_TRY(mk_expect(s, slot, "first column", at->col, 0));
  return mk_expect(s, slot, "number of columns", at->cols, MK_SAMPLING_WORDS);
}

/* A word for each token, of each row or slot: machines find it by line and tile of 16 alone. */
static mk_status expect_by_token(mk_shape *s, uint32_t slot) {
  MK_TRY(mk_expect(s, slot, "number of rows in the buffer", mk_shape_buffer(s, slot)->rows, mk_shape_lines(s)));
  return mk_expect(s, slot, "tile width", mk_shape_buffer(s, slot)->tile_cols, MK_TILE);
}

/* What an SM publishes for a search: a row tile of its own in a buffer of such tiles. */
static mk_status expect_words(mk_shape *s, uint32_t slot, uint32_t words) {
  MK_TRY(mk_expect(s, slot, "number of columns in the buffer", mk_shape_buffer(s, slot)->cols, words));
  return mk_expect_lines(s, slot, 1, 0, words);
}

mk_status mk_shape_SCORE(mk_shape *s) {
  const mk_extent *logits = &s->extents[MK_SLOT_SCORE_logits];
  static const uint32_t beside[] = {MK_SLOT_SCORE_bias, MK_SLOT_SCORE_counts, MK_SLOT_SCORE_scores};
  bool none = mk_operand_empty(&s->in->operands[MK_SLOT_SCORE_logits]);
  for (uint32_t i = 0; i < 3; i++) {
    MK_TRY(expect_by_token(s, beside[i]));
    MK_TRY(mk_expect(s, beside[i], "number of row tiles", s->in->operands[beside[i]].rows, none ? 0 : 1));
    if (!none) {
      MK_TRY(mk_expect_lines(s, beside[i], 1, logits->col, logits->cols));
    }
  }
  MK_TRY(expect_by_token(s, MK_SLOT_SCORE_logits));
  MK_TRY(expect_words(s, MK_SLOT_SCORE_front, MK_FRONT_WORDS));
  return check_sampling(s, MK_SLOT_SCORE_sampling);
}

/* The operand is a whole buffer of `vectors` vectors. */
static mk_status expect_all(mk_shape *s, uint32_t slot, uint32_t vectors, uint32_t cols) {
  MK_TRY(mk_expect(s, slot, "first row", s->extents[slot].row, 0));
  MK_TRY(mk_expect(s, slot, "number of rows in the buffer", mk_shape_buffer(s, slot)->rows,
                   (uint64_t)vectors * mk_shape_lines(s)));
  MK_TRY(mk_expect(s, slot, "number of columns in the buffer", mk_shape_buffer(s, slot)->cols, cols));
  return mk_expect_lines(s, slot, vectors, 0, cols);
}

/* What all SMs have published, whole: SIFT and DRAW have the same operands in the same slots. The row tile of the
 * result is this SM's in all of them. */
static mk_status check_search(mk_shape *s) {
  uint32_t sms = mk_buffer_grid_rows(mk_shape_buffer(s, MK_SLOT_SIFT_round));
  MK_TRY(expect_all(s, MK_SLOT_SIFT_fronts, sms, MK_FRONT_WORDS));
  if (!mk_operand_empty(&s->in->operands[MK_SLOT_SIFT_rounds])) {
    MK_TRY(expect_all(s, MK_SLOT_SIFT_rounds, sms, MK_SIFT_WORDS));
  }
  return check_sampling(s, MK_SLOT_SIFT_sampling);
}

mk_status mk_shape_SIFT(mk_shape *s) {
  MK_TRY(expect_by_token(s, MK_SLOT_SIFT_scores));
  MK_TRY(expect_words(s, MK_SLOT_SIFT_round, MK_SIFT_WORDS));
  return check_search(s);
}

mk_status mk_shape_DRAW(mk_shape *s) {
  const mk_buffer *scores = mk_shape_buffer(s, MK_SLOT_DRAW_scores);
  MK_TRY(expect_by_token(s, MK_SLOT_DRAW_scores));
  MK_TRY(expect_all(s, MK_SLOT_DRAW_scores, 1, scores->cols));
  MK_TRY(check_named(s, MK_SLOT_DRAW_scores, scores->cols));
  MK_TRY(expect_pairs(s, MK_SLOT_DRAW_choice));
  MK_TRY(mk_expect_lines(s, MK_SLOT_DRAW_choice, 1, 0, 2));
  return check_search(s);
}

mk_status mk_shape_MLA_PART(mk_shape *s) { return mk_verify_listed_shape(s->v, s->index); }
mk_status mk_shape_MLA_REDUCE(mk_shape *s) { return mk_verify_listed_shape(s->v, s->index); }

/* The tiles of a row that the step's token names hold every token of the declared range. */
static mk_status check_token_row(mk_shape *s, uint32_t slot) {
  const mk_range *token = &s->v->program->ranges.token;
  const mk_extent *rows = &s->extents[slot];
  if (rows->row > token->low || token->high - rows->row >= rows->rows) {
    return mk_reject(s->v, "B02", s->index, "%s: rows %u to %u of buffer %s; tokens are %u to %u",
                     s->info->operands[slot].name, rows->row, rows->row + rows->rows - 1,
                     mk_shape_buffer(s, slot)->name, token->low, token->high);
  }
  return MK_OK;
}

static mk_status check_opcode(mk_shape *s) {
  switch ((mk_opcode)s->in->opcode) {
#define MK_OPCODE(NAME, text, state, semantics) \
  case MK_OP_##NAME:                            \
    return mk_shape_##NAME(s);
#include "vm/program/opcodes.def"
    case MK_OP_NONE:
    case MK_OP_COUNT:
      break;
  }
  return MK_OK;
}

/* Machines compute the tile of lines that mk_instruction_lines tells, and nobody else's: so it has to be the one that
 * all operands are of. */
static mk_status check_line_tile(mk_shape *s) {
  const uint32_t told = mk_instruction_lines(s->v->program, s->in);
  const bool several = mk_shape_line_tile(s) != mk_shape_lines(s);
  return !several || told == s->line_tile
             ? MK_OK
             : mk_reject(s->v, "S10", s->index, "its operands do not tell which tile of the step's lines it computes");
}

mk_status mk_verify_shape(mk_verifier *v, uint32_t instruction) {
  mk_shape s = {.v = v, .index = instruction, .in = mk_at(v, instruction), .line_tile = MK_ALL_LINES};
  s.info = mk_info(s.in);
  for (uint32_t i = 0; i < s.info->operand_count; i++) {
    s.extents[i] = mk_extent_of(v, &s.in->operands[i]);
    if ((s.in->operands[i].flags & MK_OPERAND_TOKEN_ROW) != 0) {
      MK_TRY(check_token_row(&s, i));
    }
  }
  MK_TRY(check_opcode(&s));
  return check_line_tile(&s);
}
