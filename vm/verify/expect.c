/* What the rules of shape are said in: what an operand, or a parameter, has to be. See shape.h. Rules S09, S10. */
#include <inttypes.h>
#include <math.h>

#include "vm/verify/shape.h"

const mk_buffer *mk_shape_buffer(const mk_shape *s, uint32_t slot) {
  return &s->v->program->buffers[s->in->operands[slot].buffer];
}

mk_status mk_expect(mk_shape *s, uint32_t slot, const char *what, uint64_t have, uint64_t want) {
  if (have == want) {
    return MK_OK;
  }
  return mk_reject(s->v, "S10", s->index,
                   "%s: %s is %" PRIu64 " in buffer %s; it must be %" PRIu64 " to match the other operands",
                   s->info->operands[slot].name, what, have, mk_shape_buffer(s, slot)->name, want);
}

mk_status mk_expect_vector(mk_shape *s, uint32_t slot, uint32_t col, uint32_t cols) {
  if ((s->in->operands[slot].flags & MK_OPERAND_TOKEN_ROW) == 0) {
    MK_TRY(mk_expect(s, slot, "number of rows", s->extents[slot].rows, 1));
  }
  MK_TRY(mk_expect(s, slot, "first column", s->extents[slot].col, col));
  return mk_expect(s, slot, "number of columns", s->extents[slot].cols, cols);
}

uint32_t mk_shape_lines(const mk_shape *s) { return mk_program_rows(s->v->program); }
uint32_t mk_shape_line_tile(const mk_shape *s) { return mk_line_tile(mk_shape_lines(s)); }

bool mk_shape_token_row(const mk_shape *s, uint32_t slot) {
  return (s->in->operands[slot].flags & MK_OPERAND_TOKEN_ROW) != 0;
}

mk_status mk_expect_tiles(mk_shape *s, uint32_t slot, uint64_t rows, uint32_t height, uint32_t col, uint32_t cols) {
  if (!mk_shape_token_row(s, slot)) {
    MK_TRY(mk_expect(s, slot, "number of rows", s->extents[slot].rows, rows));
    MK_TRY(mk_expect(s, slot, "tile height", mk_shape_buffer(s, slot)->tile_rows, height));
  }
  MK_TRY(mk_expect(s, slot, "first column", s->extents[slot].col, col));
  return mk_expect(s, slot, "number of columns", s->extents[slot].cols, cols);
}

mk_status mk_expect_lines(mk_shape *s, uint32_t slot, uint32_t vectors, uint32_t col, uint32_t cols) {
  return mk_expect_tiles(s, slot, (uint64_t)vectors * mk_shape_lines(s), mk_shape_lines(s), col, cols);
}

mk_status mk_expect_all_lines(mk_shape *s, uint32_t slot, uint32_t col, uint32_t cols) {
  return mk_expect_tiles(s, slot, mk_shape_lines(s), mk_shape_line_tile(s), col, cols);
}

mk_status mk_expect_same_tile(mk_shape *s, uint32_t slot, uint32_t tile) {
  if (s->line_tile == MK_ALL_LINES) {
    s->line_tile = tile;
  }
  return mk_expect(s, slot, "tile of lines", tile, s->line_tile);
}

mk_status mk_expect_line_tile(mk_shape *s, uint32_t slot, uint32_t col, uint32_t cols) {
  MK_TRY(mk_expect_tiles(s, slot, mk_shape_line_tile(s), mk_shape_line_tile(s), col, cols));
  return mk_shape_token_row(s, slot) ? MK_OK
                                     : mk_expect_same_tile(s, slot, s->extents[slot].row / mk_shape_line_tile(s));
}

mk_status mk_expect_sole(mk_shape *s, uint32_t slot) {
  return mk_shape_token_row(s, slot)
             ? MK_OK
             : mk_expect(s, slot, "number of rows in the buffer", mk_shape_buffer(s, slot)->rows, mk_shape_lines(s));
}

mk_status mk_expect_table(mk_shape *s, uint32_t slot, uint32_t cols) {
  MK_TRY(mk_expect(s, slot, "first row", s->extents[slot].row, 0));
  return mk_expect_vector(s, slot, 0, cols);
}

static uint64_t whole_tiles(const mk_shape *s, uint32_t slot) {
  return (uint64_t)s->in->operands[slot].cols * mk_shape_buffer(s, slot)->tile_cols;
}

mk_status mk_expect_rows(mk_shape *s, uint32_t slot, uint32_t weight_slot) {
  const mk_extent *w = &s->extents[weight_slot];
  uint32_t left = mk_shape_buffer(s, slot)->cols > w->row ? mk_shape_buffer(s, slot)->cols - w->row : 0;
  return mk_expect_line_tile(s, slot, w->row, w->rows < left ? w->rows : left);
}

mk_status mk_expect_positive(mk_shape *s, uint32_t param) {
  float value = mk_param_float(s->in->params[param]);
  if (!isfinite(value) || value <= 0) {
    return mk_reject(s->v, "S09", s->index, "%s is %g; it must be finite and above 0", s->info->params[param].name,
                     (double)value);
  }
  return MK_OK;
}

mk_status mk_expect_param(mk_shape *s, uint32_t param, bool right, const char *rule) {
  return right ? MK_OK
               : mk_reject(s->v, "S09", s->index, "%s is %u; %s", s->info->params[param].name, s->in->params[param],
                           rule);
}

mk_status mk_expect_input(mk_shape *s, uint32_t slot, uint32_t col, uint32_t steps) {
  uint32_t whole = steps * MK_TILE;
  MK_TRY(mk_expect_sole(s, slot));
  MK_TRY(mk_expect(s, slot, "number of columns in whole tiles", whole_tiles(s, slot), whole));
  return mk_expect_line_tile(s, slot, col, mk_shape_token_row(s, slot) ? s->extents[slot].cols : whole);
}

mk_status mk_expect_whole_rows(mk_shape *s, uint32_t weight) {
  return mk_expect(s, weight, "number of rows modulo 16", s->extents[weight].rows % MK_TILE, 0);
}

mk_status mk_expect_switch(mk_shape *s, uint32_t param) {
  return mk_expect_param(s, param, s->in->params[param] <= 1, "it must be 0 or 1");
}

mk_status mk_expect_factor(mk_shape *s, uint32_t param) {
  return s->in->params[param] == 0 ? MK_OK : mk_expect_positive(s, param);
}
