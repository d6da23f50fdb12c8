/* Phase 1, per opcode: the operands of one instruction fit together, and inside their buffers for every value of the step
 * parameters. Rules S09 (parameters), S10 (shapes), B02 (token), B03 (position and blocks).
 *
 * The rules read as the opcode's reference does: lengths are elements, cut off where a buffer ends. */
#include <inttypes.h>
#include <math.h>

#include "instructions/sampling.h"
#include "vm/program/plan.h"
#include "vm/verify/internal.h"

enum { MAX_SPAN = 1024 }; /* scores of one span that a machine holds */

typedef struct mk_shape { /* the instruction under examination */
  mk_verifier *v;
  uint32_t index;
  const mk_instruction *in;
  const mk_opcode_info *info;
  mk_extent extents[MK_MAX_OPERANDS];
  uint32_t line_tile; /* that its operands are of; MK_ALL_LINES: none has told yet */
} mk_shape;

static const mk_buffer *buffer_of(const mk_shape *s, uint32_t slot) {
  return &s->v->program->buffers[s->in->operands[slot].buffer];
}

static mk_status expect(mk_shape *s, uint32_t slot, const char *what, uint64_t have, uint64_t want) {
  if (have == want) {
    return MK_OK;
  }
  return mk_reject(s->v, "S10", s->index,
                   "%s: %s is %" PRIu64 " in buffer %s; it must be %" PRIu64 " to match the other operands",
                   s->info->operands[slot].name, what, have, buffer_of(s, slot)->name, want);
}

/* One element row, columns [col, col + cols). */
static mk_status expect_vector(mk_shape *s, uint32_t slot, uint32_t col, uint32_t cols) {
  if ((s->in->operands[slot].flags & MK_OPERAND_TOKEN_ROW) == 0) {
    MK_TRY(expect(s, slot, "number of rows", s->extents[slot].rows, 1));
  }
  MK_TRY(expect(s, slot, "first column", s->extents[slot].col, col));
  return expect(s, slot, "number of columns", s->extents[slot].cols, cols);
}

static uint32_t lines_of(const mk_shape *s) { return mk_program_rows(s->v->program); }
static uint32_t line_tile_of(const mk_shape *s) { return mk_line_tile(lines_of(s)); }

static bool token_row(const mk_shape *s, uint32_t slot) {
  return (s->in->operands[slot].flags & MK_OPERAND_TOKEN_ROW) != 0;
}

/* As expect_vector, with `rows` lines in tiles of `height`. */
static mk_status expect_tiles(mk_shape *s, uint32_t slot, uint64_t rows, uint32_t height, uint32_t col, uint32_t cols) {
  if (!token_row(s, slot)) {
    MK_TRY(expect(s, slot, "number of rows", s->extents[slot].rows, rows));
    MK_TRY(expect(s, slot, "tile height", buffer_of(s, slot)->tile_rows, height));
  }
  MK_TRY(expect(s, slot, "first column", s->extents[slot].col, col));
  return expect(s, slot, "number of columns", s->extents[slot].cols, cols);
}

/* A line for each row of a step, all in one tile; `vectors` of them, one after the other. */
static mk_status expect_lines(mk_shape *s, uint32_t slot, uint32_t vectors, uint32_t col, uint32_t cols) {
  return expect_tiles(s, slot, (uint64_t)vectors * lines_of(s), lines_of(s), col, cols);
}

/* A line for each row of a step, in tiles, all of them. */
static mk_status expect_all_lines(mk_shape *s, uint32_t slot, uint32_t col, uint32_t cols) {
  return expect_tiles(s, slot, lines_of(s), line_tile_of(s), col, cols);
}

/* All operands that are of a tile of the lines of a step are of the same one. */
static mk_status expect_same_tile(mk_shape *s, uint32_t slot, uint32_t tile) {
  if (s->line_tile == MK_ALL_LINES) {
    s->line_tile = tile;
  }
  return expect(s, slot, "tile of lines", tile, s->line_tile);
}

/* Of a value of a step, a tile of its lines. */
static mk_status expect_line_tile(mk_shape *s, uint32_t slot, uint32_t col, uint32_t cols) {
  MK_TRY(expect_tiles(s, slot, line_tile_of(s), line_tile_of(s), col, cols));
  return token_row(s, slot) ? MK_OK : expect_same_tile(s, slot, s->extents[slot].row / line_tile_of(s));
}

/* Machines look for such a vector at the start of its buffer, whatever row is named. */
static mk_status expect_sole(mk_shape *s, uint32_t slot) {
  return token_row(s, slot) ? MK_OK
                            : expect(s, slot, "number of rows in the buffer", buffer_of(s, slot)->rows, lines_of(s));
}

/* A constant vector from the start of its buffer. */
static mk_status expect_table(mk_shape *s, uint32_t slot, uint32_t cols) {
  MK_TRY(expect(s, slot, "first row", s->extents[slot].row, 0));
  return expect_vector(s, slot, 0, cols);
}

static uint64_t whole_tiles(const mk_shape *s, uint32_t slot) {
  return (uint64_t)s->in->operands[slot].cols * buffer_of(s, slot)->tile_cols;
}

/* As expect_line_tile, for a result of whole row tiles: a buffer may end before the padding of the last one does, and a
 * rectangle of whole tiles is then cut off. */
static mk_status expect_rows(mk_shape *s, uint32_t slot, uint32_t weight_slot) {
  const mk_extent *w = &s->extents[weight_slot];
  uint32_t left = buffer_of(s, slot)->cols > w->row ? buffer_of(s, slot)->cols - w->row : 0;
  return expect_line_tile(s, slot, w->row, w->rows < left ? w->rows : left);
}

static mk_status expect_positive(mk_shape *s, uint32_t param) {
  float value = mk_param_float(s->in->params[param]);
  if (!isfinite(value) || value <= 0) {
    return mk_reject(s->v, "S09", s->index, "%s is %g; it must be finite and above 0", s->info->params[param].name,
                     (double)value);
  }
  return MK_OK;
}

static mk_status expect_param(mk_shape *s, uint32_t param, bool right, const char *rule) {
  return right ? MK_OK
               : mk_reject(s->v, "S09", s->index, "%s is %u; %s", s->info->params[param].name, s->in->params[param],
                           rule);
}

/* The input of a product: `steps` tiles of K columns from `col` on. A stamped one goes to the end of the last tile, where the weight's padding is
 * zero. */
static mk_status expect_input(mk_shape *s, uint32_t slot, uint32_t col, uint32_t steps) {
  uint32_t whole = steps * MK_TILE;
  MK_TRY(expect_sole(s, slot));
  MK_TRY(expect(s, slot, "number of columns in whole tiles", whole_tiles(s, slot), whole));
  return expect_line_tile(s, slot, col, token_row(s, slot) ? s->extents[slot].cols : whole);
}

/* x [K] and weight [rows, K] over the same columns; all of K unless `part`. */
static mk_status check_product(mk_shape *s, uint32_t x, uint32_t weight, bool part) {
  const mk_extent *w = &s->extents[weight];
  if (!part) {
    MK_TRY(expect(s, weight, "first column", w->col, 0));
    MK_TRY(expect(s, weight, "number of columns", w->cols, buffer_of(s, weight)->cols));
  }
  return expect_input(s, x, w->col, s->in->operands[weight].cols);
}

/* Results that are published by whole row tiles. */
static mk_status expect_whole_rows(mk_shape *s, uint32_t weight) {
  return expect(s, weight, "number of rows modulo 16", s->extents[weight].rows % MK_TILE, 0);
}

/* A switch. */
static mk_status expect_switch(mk_shape *s, uint32_t param) {
  return expect_param(s, param, s->in->params[param] <= 1, "it must be 0 or 1");
}

/* A factor that may be absent. */
static mk_status expect_factor(mk_shape *s, uint32_t param) {
  return s->in->params[param] == 0 ? MK_OK : expect_positive(s, param);
}

/* norm(x): gain has `width` elements, and `more` after them; and so many columns has the weight, where there is one. */
static mk_status check_norm(mk_shape *s, uint32_t gain, uint32_t weight, uint32_t eps, uint32_t width, uint32_t more) {
  MK_TRY(expect_positive(s, eps));
  MK_TRY(expect_param(s, width, (uint64_t)s->in->params[width] + more == buffer_of(s, gain)->cols,
                      more == 0 ? "it must be the number of columns of gain"
                                : "it must be the number of columns of gain before the biases"));
  if (weight != gain && !mk_operand_empty(&s->in->operands[weight])) {
    MK_TRY(expect(s, weight, "number of columns", s->extents[weight].cols, s->in->params[width]));
  }
  return expect_table(s, gain, s->in->params[width] + more);
}

static uint32_t chains_of(uint32_t cols) { return (cols + MK_CHAIN_COLS - 1) / MK_CHAIN_COLS; }

/* norm(x) of which x is normed but for the scale, by the squares of all of its `width` columns. */
static mk_status check_squares(mk_shape *s, uint32_t squares, uint32_t weight, uint32_t eps, uint32_t width) {
  const uint32_t cols = s->in->params[width];
  MK_TRY(expect_positive(s, eps));
  MK_TRY(expect_param(s, width, cols != 0, "it must be above 0"));
  if (!mk_operand_empty(&s->in->operands[weight])) {
    MK_TRY(expect(s, weight, "number of columns", s->extents[weight].cols, cols));
  }
  MK_TRY(expect_sole(s, squares));
  MK_TRY(expect(s, squares, "tile width", buffer_of(s, squares)->tile_cols, 1));
  MK_TRY(expect(s, squares, "number of columns in the buffer", buffer_of(s, squares)->cols, chains_of(cols)));
  return expect_line_tile(s, squares, 0, chains_of(cols));
}

/* check_norm, or check_squares, or the norm is left out, with its parameters. */
static mk_status check_norm_or_none(mk_shape *s, uint32_t gain, uint32_t squares, uint32_t weight, uint32_t eps,
                                    uint32_t width, uint32_t more) {
  const bool has_gain = !mk_operand_empty(&s->in->operands[gain]);
  if (!mk_operand_empty(&s->in->operands[squares])) {
    return has_gain || more != 0
               ? mk_reject(s->v, "S10", s->index, "squares: are those of an x that is normed; there can be no gain")
               : check_squares(s, squares, weight, eps, width);
  }
  if (has_gain) {
    return check_norm(s, gain, weight, eps, width, more);
  }
  MK_TRY(expect_param(s, eps, s->in->params[eps] == 0, "it must be 0 where there is no gain"));
  MK_TRY(expect_param(s, width, s->in->params[width] == 0, "it must be 0 where there is no gain"));
  return more == 0 ? MK_OK : mk_reject(s->v, "S10", s->index, "gain: is absent; it has the biases");
}

/* Tiles of 16 values and what follows them. */
static mk_status expect_squared(mk_shape *s, uint32_t slot, uint32_t tile, uint32_t tiles) {
  MK_TRY(expect(s, slot, "tile width", buffer_of(s, slot)->tile_cols, MK_SQUARED_TILE));
  MK_TRY(expect(s, slot, "number of tiles", s->in->operands[slot].cols, tiles));
  return expect_line_tile(s, slot, tile * MK_SQUARED_TILE, tiles * MK_SQUARED_TILE);
}

static mk_status shape_QKV(mk_shape *s) {
  MK_TRY(check_product(s, MK_SLOT_QKV_x, MK_SLOT_QKV_weight, false));
  MK_TRY(check_norm_or_none(s, MK_SLOT_QKV_gain, MK_SLOT_QKV_squares, MK_SLOT_QKV_weight, MK_PARAM_QKV_eps,
                            MK_PARAM_QKV_width, 0));
  MK_TRY(expect_whole_rows(s, MK_SLOT_QKV_weight));
  uint32_t head_dim = s->in->params[MK_PARAM_QKV_head_dim], rope = s->in->params[MK_PARAM_QKV_rope_tiles];
  MK_TRY(expect_param(s, MK_PARAM_QKV_head_dim, head_dim == 64 || head_dim == 128, "it must be 64 or 128"));
  MK_TRY(expect_param(s, MK_PARAM_QKV_rope_tiles,
                      rope <= mk_buffer_grid_rows(buffer_of(s, MK_SLOT_QKV_weight)) && rope % (head_dim / MK_TILE) == 0,
                      "it must be whole heads, within the weight"));
  uint32_t extras = s->in->params[MK_PARAM_QKV_extras], rows = buffer_of(s, MK_SLOT_QKV_weight)->rows;
  uint64_t more = (uint64_t)rows * (((extras & MK_QKV_BIASES) != 0 ? 1U : 0U) + ((extras & MK_QKV_GAINS) != 0));
  MK_TRY(expect_param(s, MK_PARAM_QKV_extras, extras < 2 * MK_QKV_SQUARES, "it must be a sum of some of 1, 2 and 4"));
  MK_TRY(expect_param(s, MK_PARAM_QKV_extras, head_dim / 2 + more <= UINT32_MAX, "the vectors are too long"));
  MK_TRY(expect_table(s, MK_SLOT_QKV_inv_freq, head_dim / 2 + (uint32_t)more));
  const mk_extent *w = &s->extents[MK_SLOT_QKV_weight];
  return (extras & MK_QKV_SQUARES) != 0 ? expect_squared(s, MK_SLOT_QKV_out, w->row / MK_TILE, w->rows / MK_TILE)
                                        : expect_line_tile(s, MK_SLOT_QKV_out, w->row, w->rows);
}

/* Of an opcode with a cache. */
static mk_status check_block_table(mk_shape *s) {
  const uint32_t slot = (uint32_t)mk_opcode_reads(s->info, MK_CONTENT_TABLE);
  const mk_buffer *kv = buffer_of(s, (uint32_t)mk_opcode_cache(s->info));
  const mk_step_ranges *ranges = &s->v->program->ranges;
  const mk_extent *table = &s->extents[slot];
  uint32_t blocks = ranges->position.high / kv->block_tokens + 1;
  MK_TRY(expect(s, slot, "number of rows", table->rows, mk_program_slots(s->v->program)));
  MK_TRY(expect(s, slot, "first row", table->row, 0));
  MK_TRY(expect(s, slot, "first column", table->col, 0));
  if (table->cols < blocks) {
    return mk_reject(s->v, "B03", s->index, "table: %u entries; position %u needs %u blocks of %u tokens", table->cols,
                     ranges->position.high, blocks, kv->block_tokens);
  }
  /* One sequence needs so many blocks; of several, plans see to it (vm/program/plan.h). */
  if (ranges->block.high - ranges->block.low + 1 < blocks && mk_program_rows(s->v->program) == 1) {
    return mk_reject(s->v, "B03", s->index,
                     "table: names blocks %u to %u; %u different ones are needed up to position %u", ranges->block.low,
                     ranges->block.high, blocks, ranges->position.high);
  }
  if (kv->blocks <= ranges->block.high) {
    return mk_reject(s->v, "B03", s->index, "kv: buffer %s has %u blocks; the table may name block %u", kv->name,
                     kv->blocks, ranges->block.high);
  }
  return MK_OK;
}

/* Machines take q, k and v by pairs of words. */
static mk_status expect_even(mk_shape *s, uint32_t slot) {
  const mk_buffer *b = buffer_of(s, slot);
  MK_TRY(expect(s, slot, "first column modulo 2", s->extents[slot].col % 2, 0));
  return b->rows == 1 ? MK_OK : expect(s, slot, "number of columns in the buffer modulo 2", b->cols % 2, 0);
}

/* Of all lines. Where q and k are normed, tiles are 18 columns wide. */
static mk_status expect_head(mk_shape *s, uint32_t slot, uint32_t cols, bool normed) {
  if (normed) {
    MK_TRY(expect(s, slot, "tile width", buffer_of(s, slot)->tile_cols, MK_SQUARED_TILE));
    cols = cols / MK_TILE * MK_SQUARED_TILE;
  }
  MK_TRY(expect_all_lines(s, slot, s->extents[slot].col, cols));
  return expect_even(s, slot);
}

/* Where several sequences share a step ATTENTION takes a span in pieces. */
static mk_status check_pieces(mk_shape *s) {
  uint32_t span = buffer_of(s, MK_SLOT_ATTENTION_kv)->span_tokens, pieces = span / MK_PIECE_TOKENS;
  bool fits = span % MK_PIECE_TOKENS == 0 && pieces != 0 && (pieces & (pieces - 1)) == 0;
  return fits || mk_program_is_for_prompts(s->v->program)
             ? MK_OK
             : mk_reject(s->v, "S10", s->index,
                         "kv: span_tokens is %u; with several sequences a step it is %d times a power of two", span,
                         MK_PIECE_TOKENS);
}

static mk_status shape_ATTENTION(mk_shape *s) {
  const mk_buffer *kv = buffer_of(s, MK_SLOT_ATTENTION_kv), *parts = buffer_of(s, MK_SLOT_ATTENTION_out);
  const mk_extent *at = &s->extents[MK_SLOT_ATTENTION_kv];
  uint32_t group = s->in->params[MK_PARAM_ATTENTION_group], head_dim = kv->head_dim;
  MK_TRY(expect_positive(s, MK_PARAM_ATTENTION_scale));
  MK_TRY(expect_factor(s, MK_PARAM_ATTENTION_eps));
  MK_TRY(expect_param(s, MK_PARAM_ATTENTION_splits, s->in->params[MK_PARAM_ATTENTION_splits] == kv->rows,
                      "it must be the number of rows of the KV buffer"));
  MK_TRY(expect_param(s, MK_PARAM_ATTENTION_group, group >= 1 && group <= MK_MAX_COORDINATE,
                      "it must be from 1 to 65535"));
  MK_TRY(expect(s, MK_SLOT_ATTENTION_kv, "number of rows", at->rows, 1));
  MK_TRY(expect(s, MK_SLOT_ATTENTION_kv, "number of columns", at->cols, 1));
  if (kv->span_tokens > MAX_SPAN) {
    return mk_reject(s->v, "S10", s->index, "kv: span_tokens is %u; a machine takes at most %d at a time",
                     kv->span_tokens, MAX_SPAN);
  }
  const bool normed = s->in->params[MK_PARAM_ATTENTION_eps] != 0;
  MK_TRY(expect_head(s, MK_SLOT_ATTENTION_q, group * head_dim, normed));
  MK_TRY(expect_head(s, MK_SLOT_ATTENTION_k, head_dim, normed));
  MK_TRY(expect_head(s, MK_SLOT_ATTENTION_v, head_dim, normed));
  MK_TRY(expect(s, MK_SLOT_ATTENTION_out, "tile width", parts->tile_cols, head_dim + 2u));
  MK_TRY(expect(s, MK_SLOT_ATTENTION_out, "number of columns in the buffer modulo the tile width",
                parts->cols % parts->tile_cols, 0));
  uint32_t lines = lines_of(s);
  if (lines > 1) {
    MK_TRY(expect(s, MK_SLOT_ATTENTION_v, "number of columns in the buffer", buffer_of(s, MK_SLOT_ATTENTION_v)->cols,
                  buffer_of(s, MK_SLOT_ATTENTION_k)->cols));
    MK_TRY(check_pieces(s));
  }
  if (lines > 1 && kv->rows > MK_MAX_UNITS) {
    return mk_reject(s->v, "S10", s->index, "kv: buffer %s has %u rows; with several rows a step, a machine takes %d",
                     kv->name, kv->rows, MK_MAX_UNITS);
  }
  MK_TRY(expect(s, MK_SLOT_ATTENTION_out, "number of rows in the buffer", parts->rows, (uint64_t)kv->rows * lines));
  MK_TRY(expect(s, MK_SLOT_ATTENTION_out, "row", s->extents[MK_SLOT_ATTENTION_out].row, (uint64_t)at->row * lines));
  MK_TRY(expect_lines(s, MK_SLOT_ATTENTION_out, 1, at->col * group * (head_dim + 2u), group * (head_dim + 2u)));
  return check_block_table(s);
}

/* One head of a cache that is not split: where any token of any slot may be. */
static mk_status expect_whole_head(mk_shape *s, uint32_t slot) {
  MK_TRY(expect(s, slot, "number of rows in the buffer", buffer_of(s, slot)->rows, 1));
  MK_TRY(expect(s, slot, "number of rows", s->extents[slot].rows, 1));
  return expect(s, slot, "number of columns", s->extents[slot].cols, 1);
}

static mk_status shape_APPEND(mk_shape *s) {
  const uint32_t head_dim = buffer_of(s, MK_SLOT_APPEND_kv)->head_dim;
  MK_TRY(expect_whole_head(s, MK_SLOT_APPEND_kv));
  MK_TRY(expect_sole(s, MK_SLOT_APPEND_k));
  MK_TRY(expect_head(s, MK_SLOT_APPEND_k, head_dim, false));
  MK_TRY(expect_sole(s, MK_SLOT_APPEND_v));
  MK_TRY(expect_head(s, MK_SLOT_APPEND_v, head_dim, false));
  return check_block_table(s);
}

static mk_status shape_ATTEND(mk_shape *s) {
  const uint32_t head_dim = buffer_of(s, MK_SLOT_ATTEND_kv)->head_dim;
  static const uint32_t heads[] = {MK_SLOT_ATTEND_q, MK_SLOT_ATTEND_out};
  const bool listed = !mk_operand_empty(&s->in->operands[MK_SLOT_ATTEND_work]);
  const uint32_t share = s->in->params[MK_PARAM_ATTEND_share], shares = s->in->params[MK_PARAM_ATTEND_shares];
  const uint32_t group = listed ? s->extents[MK_SLOT_ATTEND_q].cols / head_dim : 1;
  MK_TRY(expect_param(s, MK_PARAM_ATTEND_shares, listed == (shares != 0), "it is 0 where there is no work list"));
  MK_TRY(expect_param(s, MK_PARAM_ATTEND_share, share < shares || !listed, "it must be below the number of shares"));
  MK_TRY(expect_param(s, MK_PARAM_ATTEND_share, share == 0 || listed, "it is 0 where there is no work list"));
  MK_TRY(expect_positive(s, MK_PARAM_ATTEND_scale));
  MK_TRY(expect_whole_head(s, MK_SLOT_ATTEND_kv));
  for (uint32_t i = 0; i < 2; i++) {
    MK_TRY(expect_sole(s, heads[i]));
    MK_TRY(expect(s, heads[i], "tile width", buffer_of(s, heads[i])->tile_cols, MK_TILE));
    MK_TRY(expect_line_tile(s, heads[i], s->extents[heads[i]].col, group * head_dim));
  }
  return check_block_table(s);
}

/* One chain, whose last tile may end before the padding does. Its columns are those that the chain's place among the
 * squares says. */
static mk_status shape_NORM(mk_shape *s) {
  const mk_extent *squares = &s->extents[MK_SLOT_NORM_squares];
  const mk_buffer *to = buffer_of(s, MK_SLOT_NORM_out);
  static const uint32_t slots[] = {MK_SLOT_NORM_x, MK_SLOT_NORM_out};
  MK_TRY(expect_sole(s, MK_SLOT_NORM_squares));
  MK_TRY(expect(s, MK_SLOT_NORM_squares, "tile width", buffer_of(s, MK_SLOT_NORM_squares)->tile_cols, 1));
  MK_TRY(expect_line_tile(s, MK_SLOT_NORM_squares, squares->col, 1));
  MK_TRY(expect(s, MK_SLOT_NORM_squares, "number of columns in the buffer", buffer_of(s, MK_SLOT_NORM_squares)->cols,
                chains_of(to->cols)));
  const uint32_t col = squares->col * MK_CHAIN_COLS;
  MK_TRY(expect(s, MK_SLOT_NORM_out, "number of columns in the buffer modulo 16", to->cols % MK_TILE, 0));
  for (uint32_t i = 0; i < 2; i++) {
    const uint32_t size = buffer_of(s, slots[i])->cols, left = size > col ? size - col : 0;
    MK_TRY(expect(s, slots[i], "tile width", buffer_of(s, slots[i])->tile_cols, MK_TILE));
    MK_TRY(expect(s, slots[i], "number of tiles of 16 columns in the buffer", (size + MK_TILE - 1) / MK_TILE,
                  to->cols / MK_TILE));
    MK_TRY(expect_sole(s, slots[i]));
    MK_TRY(expect_line_tile(s, slots[i], col, left < MK_CHAIN_COLS ? left : (uint32_t)MK_CHAIN_COLS));
  }
  const uint32_t gains = buffer_of(s, MK_SLOT_NORM_gain)->cols;
  MK_TRY(expect(s, MK_SLOT_NORM_gain, "number of tiles of 16 columns", (gains + MK_TILE - 1) / MK_TILE,
                to->cols / MK_TILE));
  return expect_table(s, MK_SLOT_NORM_gain, gains);
}

static mk_status shape_COMBINE(mk_shape *s) {
  const mk_buffer *parts = buffer_of(s, MK_SLOT_COMBINE_parts);
  const mk_extent *at = &s->extents[MK_SLOT_COMBINE_parts];
  uint32_t head_dim = parts->tile_cols - 2u, heads = s->in->operands[MK_SLOT_COMBINE_parts].cols;
  MK_TRY(expect_param(s, MK_PARAM_COMBINE_span, s->in->params[MK_PARAM_COMBINE_span] != 0, "it must be above 0"));
  if (parts->tile_rows != mk_program_rows(s->v->program) || (head_dim != 64 && head_dim != 128) ||
      parts->cols % parts->tile_cols != 0) {
    return mk_reject(s->v, "S10", s->index,
                     "parts: buffer %s has tiles of %ux%u; they must be %ux66 or %ux130 and whole", parts->name,
                     parts->tile_rows, parts->tile_cols, mk_program_rows(s->v->program),
                     mk_program_rows(s->v->program));
  }
  MK_TRY(expect(s, MK_SLOT_COMBINE_parts, "first row", at->row, 0));
  MK_TRY(expect(s, MK_SLOT_COMBINE_parts, "number of rows", at->rows, parts->rows));
  return expect_line_tile(s, MK_SLOT_COMBINE_out, s->in->operands[MK_SLOT_COMBINE_parts].col * head_dim,
                          heads * head_dim);
}

/* residual_out has as many columns as the sum, as far as its buffer goes; what comes in and goes out may end within the last of its tiles. */
static mk_status check_residual(mk_shape *s, uint32_t in, uint32_t to, uint32_t out, uint32_t col, uint32_t cols) {
  const uint32_t slots[] = {to, in, out};
  for (uint32_t i = 0; i < 3; i++) {
    uint32_t slot = slots[i], size = buffer_of(s, slot)->cols, left = size > col ? size - col : 0;
    uint32_t have = i == 0 ? cols : cols < left ? cols : left;
    MK_TRY(expect_sole(s, slot));
    MK_TRY(expect_line_tile(s, slot, col, have));
    MK_TRY(expect(s, slot, "number of tiles of 16 columns", (have + MK_TILE - 1) / MK_TILE,
                  (cols + MK_TILE - 1) / MK_TILE));
    if (i < 2 || lines_of(s) > 1) {
      MK_TRY(expect(s, slot, "tile width", buffer_of(s, slot)->tile_cols, MK_TILE));
    }
  }
  return MK_OK;
}

static mk_status shape_LINEAR_ADD(mk_shape *s) {
  const mk_extent *w = &s->extents[MK_SLOT_LINEAR_ADD_weight];
  MK_TRY(check_product(s, MK_SLOT_LINEAR_ADD_x, MK_SLOT_LINEAR_ADD_weight, false));
  return check_residual(s, MK_SLOT_LINEAR_ADD_residual_in, MK_SLOT_LINEAR_ADD_residual_out, MK_SLOT_LINEAR_ADD_out,
                        w->row, w->rows);
}

/* Of a buffer [tile of lines][part][line]: rows of all parts of such a tile. */
static uint32_t rows_of_parts(const mk_shape *s, uint32_t slot) {
  const uint32_t rows = buffer_of(s, slot)->rows / (lines_of(s) / line_tile_of(s));
  return rows != 0 ? rows : 1;
}

static mk_status shape_LINEAR_PART(mk_shape *s) {
  const mk_extent *w = &s->extents[MK_SLOT_LINEAR_PART_weight];
  MK_TRY(check_product(s, MK_SLOT_LINEAR_PART_x, MK_SLOT_LINEAR_PART_weight, true));
  MK_TRY(expect_whole_rows(s, MK_SLOT_LINEAR_PART_weight));
  MK_TRY(expect_tiles(s, MK_SLOT_LINEAR_PART_out, line_tile_of(s), line_tile_of(s), w->row, w->rows));
  return expect_same_tile(s, MK_SLOT_LINEAR_PART_out,
                          s->extents[MK_SLOT_LINEAR_PART_out].row / rows_of_parts(s, MK_SLOT_LINEAR_PART_out));
}

/* Parts [P, columns] of a sum, all of a tile of lines. */
static mk_status check_parts(mk_shape *s, uint32_t slot) {
  const mk_buffer *b = buffer_of(s, slot);
  const uint32_t rows = rows_of_parts(s, slot);
  MK_TRY(expect(s, slot, "tile height", b->tile_rows, line_tile_of(s)));
  MK_TRY(expect(s, slot, "tile width", b->tile_cols, MK_TILE));
  if (b->rows > 1) {
    MK_TRY(expect(s, slot, "number of columns in the buffer modulo 2", b->cols % 2, 0));
  }
  MK_TRY(expect(s, slot, "first row", s->extents[slot].row, (uint64_t)s->extents[slot].row / rows * rows));
  MK_TRY(expect(s, slot, "number of rows", s->extents[slot].rows, rows));
  return expect_same_tile(s, slot, s->extents[slot].row / rows);
}

static mk_status shape_REDUCE_ADD(mk_shape *s) {
  const mk_extent *parts = &s->extents[MK_SLOT_REDUCE_ADD_parts];
  MK_TRY(check_parts(s, MK_SLOT_REDUCE_ADD_parts));
  return check_residual(s, MK_SLOT_REDUCE_ADD_residual_in, MK_SLOT_REDUCE_ADD_residual_out, MK_SLOT_REDUCE_ADD_out,
                        parts->col, parts->cols);
}

/* All columns come in; those of residual_out go out. */
static mk_status shape_NORM_ADD(mk_shape *s) {
  const mk_extent *parts = &s->extents[MK_SLOT_NORM_ADD_parts], *to = &s->extents[MK_SLOT_NORM_ADD_residual_out];
  const uint32_t width = s->in->params[MK_PARAM_NORM_ADD_width], all = buffer_of(s, MK_SLOT_NORM_ADD_parts)->cols;
  MK_TRY(check_parts(s, MK_SLOT_NORM_ADD_parts));
  MK_TRY(expect(s, MK_SLOT_NORM_ADD_parts, "first column", parts->col, 0));
  MK_TRY(expect(s, MK_SLOT_NORM_ADD_parts, "number of columns", parts->cols, all));
  MK_TRY(expect_switch(s, MK_PARAM_NORM_ADD_biased));
  MK_TRY(expect_param(s, MK_PARAM_NORM_ADD_width, width <= all, "it must be at most the columns of parts"));
  MK_TRY(check_norm(s, MK_SLOT_NORM_ADD_gain, MK_SLOT_NORM_ADD_gain, MK_PARAM_NORM_ADD_eps, MK_PARAM_NORM_ADD_width,
                    s->in->params[MK_PARAM_NORM_ADD_biased] != 0 ? width : 0));
  MK_TRY(expect(s, MK_SLOT_NORM_ADD_residual_out, "first column modulo 16", to->col % MK_TILE, 0));
  return check_residual(s, MK_SLOT_NORM_ADD_residual_in, MK_SLOT_NORM_ADD_residual_out, MK_SLOT_NORM_ADD_out, to->col,
                        to->cols);
}

/* What is left stays with the SM, so there is no rounded copy; the rest is as in check_residual. */
static mk_status shape_OFFSET(mk_shape *s) {
  const mk_extent *to = &s->extents[MK_SLOT_OFFSET_residual_out];
  MK_TRY(expect_factor(s, MK_PARAM_OFFSET_factor));
  MK_TRY(check_residual(s, MK_SLOT_OFFSET_residual_in, MK_SLOT_OFFSET_residual_out, MK_SLOT_OFFSET_residual_out,
                        to->col, to->cols));
  if (mk_operand_empty(&s->in->operands[MK_SLOT_OFFSET_bias])) {
    return MK_OK;
  }
  const uint32_t cols = buffer_of(s, MK_SLOT_OFFSET_bias)->cols;
  MK_TRY(expect_table(s, MK_SLOT_OFFSET_bias, cols));
  return expect(s, MK_SLOT_OFFSET_bias, "number of tiles of 16 columns", (cols + MK_TILE - 1) / MK_TILE,
                (buffer_of(s, MK_SLOT_OFFSET_residual_out)->cols + MK_TILE - 1) / MK_TILE);
}

static mk_status shape_NORM_HEADS(mk_shape *s) {
  const mk_extent *out = &s->extents[MK_SLOT_NORM_HEADS_out];
  const uint64_t tiles = mk_buffer_grid_cols(buffer_of(s, MK_SLOT_NORM_HEADS_values));
  const uint32_t queries = s->in->params[MK_PARAM_NORM_HEADS_query_tiles];
  const uint32_t keys = s->in->params[MK_PARAM_NORM_HEADS_key_tiles];
  MK_TRY(expect_positive(s, MK_PARAM_NORM_HEADS_eps));
  MK_TRY(expect_param(s, MK_PARAM_NORM_HEADS_query_tiles, queries != 0 && queries < tiles,
                      "it must be above 0 and below the tiles of values"));
  MK_TRY(expect_param(s, MK_PARAM_NORM_HEADS_key_tiles, keys != 0 && keys <= tiles - queries,
                      "it must be above 0, and with the query tiles within the tiles of values"));
  MK_TRY(expect_sole(s, MK_SLOT_NORM_HEADS_values));
  MK_TRY(expect_squared(s, MK_SLOT_NORM_HEADS_values, 0, (uint32_t)tiles));
  MK_TRY(expect_sole(s, MK_SLOT_NORM_HEADS_out));
  MK_TRY(expect(s, MK_SLOT_NORM_HEADS_out, "tile width", buffer_of(s, MK_SLOT_NORM_HEADS_out)->tile_cols, MK_TILE));
  MK_TRY(expect(s, MK_SLOT_NORM_HEADS_out, "number of columns in the buffer",
                buffer_of(s, MK_SLOT_NORM_HEADS_out)->cols, tiles * MK_TILE));
  return expect_line_tile(s, MK_SLOT_NORM_HEADS_out, out->col, out->cols);
}

static mk_status shape_GLU(mk_shape *s) {
  const mk_extent *w = &s->extents[MK_SLOT_GLU_weight];
  uint32_t biases = s->in->params[MK_PARAM_GLU_biased] != 0 ? buffer_of(s, MK_SLOT_GLU_weight)->rows : 0;
  MK_TRY(check_product(s, MK_SLOT_GLU_x, MK_SLOT_GLU_weight, false));
  MK_TRY(expect_switch(s, MK_PARAM_GLU_biased));
  MK_TRY(check_norm_or_none(s, MK_SLOT_GLU_gain, MK_SLOT_GLU_squares, MK_SLOT_GLU_weight, MK_PARAM_GLU_eps,
                            MK_PARAM_GLU_width, biases));
  MK_TRY(expect_whole_rows(s, MK_SLOT_GLU_weight));
  if (lines_of(s) > 1) {
    MK_TRY(expect(s, MK_SLOT_GLU_out, "tile width", buffer_of(s, MK_SLOT_GLU_out)->tile_cols, MK_TILE / 2));
  }
  return expect_line_tile(s, MK_SLOT_GLU_out, w->row / 2, w->rows / 2);
}

/* The next token is an index into the `count` columns of this operand's buffer. */
static mk_status check_named(mk_shape *s, uint32_t slot, uint32_t count) {
  const mk_range *token = &s->v->program->ranges.token;
  if (token->low != 0 || token->high < count - 1) {
    return mk_reject(s->v, "B02", s->index, "%s: names tokens 0 to %u by buffer %s; tokens are %u to %u",
                     s->info->operands[slot].name, count - 1, buffer_of(s, slot)->name, token->low, token->high);
  }
  return MK_OK;
}

/* Candidates: pairs of words, one behind the other in memory. */
static mk_status expect_pairs(mk_shape *s, uint32_t slot) {
  MK_TRY(expect(s, slot, "number of columns in the buffer", buffer_of(s, slot)->cols, 2));
  return expect(s, slot, "tile width", buffer_of(s, slot)->tile_cols, 2);
}

static mk_status shape_HEAD(mk_shape *s) {
  const mk_operand *weight = &s->in->operands[MK_SLOT_HEAD_weight], *logits = &s->in->operands[MK_SLOT_HEAD_logits];
  MK_TRY(expect_factor(s, MK_PARAM_HEAD_factor));
  if (mk_operand_empty(&s->in->operands[MK_SLOT_HEAD_gain]) &&
      mk_operand_empty(&s->in->operands[MK_SLOT_HEAD_squares])) {
    return mk_reject(s->v, "S10", s->index, "gain and squares: both are empty; a head norms by one of them");
  }
  MK_TRY(check_norm_or_none(s, MK_SLOT_HEAD_gain, MK_SLOT_HEAD_squares, MK_SLOT_HEAD_weight, MK_PARAM_HEAD_eps,
                            MK_PARAM_HEAD_width, 0));
  MK_TRY(expect_param(s, MK_PARAM_HEAD_vocab,
                      s->in->params[MK_PARAM_HEAD_vocab] == buffer_of(s, MK_SLOT_HEAD_logits)->cols,
                      "it must be the number of logits"));
  MK_TRY(check_named(s, MK_SLOT_HEAD_logits, s->in->params[MK_PARAM_HEAD_vocab]));
  MK_TRY(expect_pairs(s, MK_SLOT_HEAD_candidate));
  MK_TRY(expect_tiles(s, MK_SLOT_HEAD_candidate, line_tile_of(s), line_tile_of(s), 0, 2));
  MK_TRY(expect_same_tile(s, MK_SLOT_HEAD_candidate,
                          s->extents[MK_SLOT_HEAD_candidate].row % lines_of(s) / line_tile_of(s)));
  if (mk_operand_empty(weight) != mk_operand_empty(logits)) {
    return mk_reject(s->v, "S10", s->index, "weight and logits: one is empty, the other is not");
  }
  if (mk_operand_empty(weight)) {
    return expect_input(s, MK_SLOT_HEAD_x, 0, (s->in->params[MK_PARAM_HEAD_width] + MK_TILE - 1) / MK_TILE);
  }
  MK_TRY(expect_sole(s, MK_SLOT_HEAD_logits));
  MK_TRY(check_product(s, MK_SLOT_HEAD_x, MK_SLOT_HEAD_weight, false));
  return expect_rows(s, MK_SLOT_HEAD_logits, MK_SLOT_HEAD_weight);
}

/* The plan of a whole launch, and as many steps of the ring. */
static mk_status shape_NEXT(mk_shape *s) {
  uint32_t lines = lines_of(s);
  const mk_buffer *from = buffer_of(s, MK_SLOT_NEXT_candidates);
  const mk_extent *plan = &s->extents[MK_SLOT_NEXT_plan], *ring = &s->extents[MK_SLOT_NEXT_ring];
  MK_TRY(expect_pairs(s, MK_SLOT_NEXT_candidates));
  uint32_t tiles = s->in->operands[MK_SLOT_NEXT_candidates].rows;
  tiles = tiles == 1 ? 1 : mk_buffer_grid_rows(from); /* one: its own SM's choice (rule N04) */
  MK_TRY(expect_tiles(s, MK_SLOT_NEXT_candidates, (uint64_t)tiles * line_tile_of(s), line_tile_of(s), 0, 2));
  MK_TRY(expect_table(s, MK_SLOT_NEXT_plan, buffer_of(s, MK_SLOT_NEXT_plan)->cols));
  uint32_t rows = plan->cols / MK_ROW_WORDS;
  if (rows == 0 || rows % lines != 0 || plan->cols % MK_ROW_WORDS != 0) {
    return mk_reject(s->v, "B03", s->index, "plan: %u words; a step of %u rows has %u, and a launch whole steps",
                     plan->cols, lines, lines * MK_ROW_WORDS);
  }
  if (mk_operand_empty(&s->in->operands[MK_SLOT_NEXT_ring])) {
    return MK_OK;
  }
  MK_TRY(expect_table(s, MK_SLOT_NEXT_ring, ring->cols));
  if (ring->cols < plan->cols / MK_ROW_WORDS) {
    return mk_reject(s->v, "B03", s->index, "ring: %u tokens; %u rows in each of the plan's steps need %u", ring->cols,
                     lines, plan->cols / MK_ROW_WORDS);
  }
  return MK_OK;
}

/* The words of the sampling buffer (instructions/sampling.h), for each slot: of programs that draw there are as many
 * slots as rows. */
static mk_status check_sampling(mk_shape *s, uint32_t slot) {
  if (lines_of(s) > MK_MOST_DRAWING_ROWS) {
    return mk_reject(s->v, "S10", s->index, "%s draws for at most %d rows a step; the program has %u", s->info->name,
                     MK_MOST_DRAWING_ROWS, lines_of(s));
  }
  const mk_extent *at = &s->extents[slot];
  MK_TRY(expect(s, slot, "number of rows in the buffer", buffer_of(s, slot)->rows, lines_of(s)));
  MK_TRY(expect(s, slot, "first column", at->col, 0));
  return expect(s, slot, "number of columns", at->cols, MK_SAMPLING_WORDS);
}

/* A word for each token, of each row or slot: machines find it by line and tile of 16 alone. */
static mk_status expect_by_token(mk_shape *s, uint32_t slot) {
  MK_TRY(expect(s, slot, "number of rows in the buffer", buffer_of(s, slot)->rows, lines_of(s)));
  return expect(s, slot, "tile width", buffer_of(s, slot)->tile_cols, MK_TILE);
}

/* What an SM publishes for a search: a row tile of its own in a buffer of such tiles. */
static mk_status expect_words(mk_shape *s, uint32_t slot, uint32_t words) {
  MK_TRY(expect(s, slot, "number of columns in the buffer", buffer_of(s, slot)->cols, words));
  return expect_lines(s, slot, 1, 0, words);
}

static mk_status shape_SCORE(mk_shape *s) {
  const mk_extent *logits = &s->extents[MK_SLOT_SCORE_logits];
  static const uint32_t beside[] = {MK_SLOT_SCORE_bias, MK_SLOT_SCORE_counts, MK_SLOT_SCORE_scores};
  bool none = mk_operand_empty(&s->in->operands[MK_SLOT_SCORE_logits]);
  for (uint32_t i = 0; i < 3; i++) {
    MK_TRY(expect_by_token(s, beside[i]));
    MK_TRY(expect(s, beside[i], "number of row tiles", s->in->operands[beside[i]].rows, none ? 0 : 1));
    if (!none) {
      MK_TRY(expect_lines(s, beside[i], 1, logits->col, logits->cols));
    }
  }
  MK_TRY(expect_by_token(s, MK_SLOT_SCORE_logits));
  MK_TRY(expect_words(s, MK_SLOT_SCORE_front, MK_FRONT_WORDS));
  return check_sampling(s, MK_SLOT_SCORE_sampling);
}

/* All of a buffer of so many vectors. */
static mk_status expect_all(mk_shape *s, uint32_t slot, uint32_t vectors, uint32_t cols) {
  MK_TRY(expect(s, slot, "first row", s->extents[slot].row, 0));
  MK_TRY(expect(s, slot, "number of rows in the buffer", buffer_of(s, slot)->rows, (uint64_t)vectors * lines_of(s)));
  MK_TRY(expect(s, slot, "number of columns in the buffer", buffer_of(s, slot)->cols, cols));
  return expect_lines(s, slot, vectors, 0, cols);
}

/* What all SMs have published, whole: SIFT and DRAW have the same operands in the same slots. The row tile of the
 * result is this SM's in all of them. */
static mk_status check_search(mk_shape *s) {
  uint32_t sms = mk_buffer_grid_rows(buffer_of(s, MK_SLOT_SIFT_round));
  MK_TRY(expect_all(s, MK_SLOT_SIFT_fronts, sms, MK_FRONT_WORDS));
  if (!mk_operand_empty(&s->in->operands[MK_SLOT_SIFT_rounds])) {
    MK_TRY(expect_all(s, MK_SLOT_SIFT_rounds, sms, MK_SIFT_WORDS));
  }
  return check_sampling(s, MK_SLOT_SIFT_sampling);
}

static mk_status shape_SIFT(mk_shape *s) {
  MK_TRY(expect_by_token(s, MK_SLOT_SIFT_scores));
  MK_TRY(expect_words(s, MK_SLOT_SIFT_round, MK_SIFT_WORDS));
  return check_search(s);
}

static mk_status shape_DRAW(mk_shape *s) {
  const mk_buffer *scores = buffer_of(s, MK_SLOT_DRAW_scores);
  MK_TRY(expect_by_token(s, MK_SLOT_DRAW_scores));
  MK_TRY(expect_all(s, MK_SLOT_DRAW_scores, 1, scores->cols));
  MK_TRY(check_named(s, MK_SLOT_DRAW_scores, scores->cols));
  MK_TRY(expect_pairs(s, MK_SLOT_DRAW_choice));
  MK_TRY(expect_lines(s, MK_SLOT_DRAW_choice, 1, 0, 2));
  return check_search(s);
}

static mk_status shape_MLA_PART(mk_shape *s) { return mk_verify_listed_shape(s->v, s->index); }
static mk_status shape_MLA_REDUCE(mk_shape *s) { return mk_verify_listed_shape(s->v, s->index); }

/* The tiles of a row that the step's token names hold every token of the declared range. */
static mk_status check_token_row(mk_shape *s, uint32_t slot) {
  const mk_range *token = &s->v->program->ranges.token;
  const mk_extent *rows = &s->extents[slot];
  if (rows->row > token->low || token->high - rows->row >= rows->rows) {
    return mk_reject(s->v, "B02", s->index, "%s: rows %u to %u of buffer %s; tokens are %u to %u",
                     s->info->operands[slot].name, rows->row, rows->row + rows->rows - 1, buffer_of(s, slot)->name,
                     token->low, token->high);
  }
  return MK_OK;
}

static mk_status check_opcode(mk_shape *s) {
  switch ((mk_opcode)s->in->opcode) {
#define MK_OPCODE(NAME, text, state, semantics) \
  case MK_OP_##NAME:                            \
    return shape_##NAME(s);
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
  const bool several = line_tile_of(s) != lines_of(s);
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
