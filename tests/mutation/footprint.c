/* What every opcode touches, by the semantics of vm/program/opcodes.def, against what its operands declare. See
 * mutation.h. */
#include <math.h>

#include "tests/mutation/mutation.h"

typedef struct rectangle { /* elements [row, end_row) x [col, end_col), cut off where the buffer ends */
  uint32_t row, end_row, col, end_col;
} rectangle;

typedef struct view {
  const mk_program *program;
  const mk_instruction *in;
  rectangle at[MK_MAX_OPERANDS];
} view;

static const mk_buffer *buffer_of(const view *v, uint32_t slot) {
  return &v->program->buffers[v->in->operands[slot].buffer];
}

static uint32_t least(uint64_t a, uint32_t b) { return a < b ? (uint32_t)a : b; }

static bool is_empty(const mk_operand *o) { return o->rows == 0 || o->cols == 0; }

static uint32_t width(const view *v, uint32_t slot) { return v->at[slot].end_col - v->at[slot].col; }

/* One row, columns [col, col + count), up to the end of the buffer. */
static bool row_of(const view *v, uint32_t slot, uint32_t col, uint32_t count) {
  const rectangle *r = &v->at[slot];
  bool one = (v->in->operands[slot].flags & MK_OPERAND_TOKEN_ROW) != 0 || r->end_row - r->row == 1;
  return one && r->col == col && r->end_col == least((uint64_t)col + count, buffer_of(v, slot)->cols) &&
         r->end_col > col;
}

/* As row_of; may go on to the end of the last tile of 16, which the weight pads with zeros. */
static bool input_of(const view *v, uint32_t slot, uint32_t col, uint32_t count) {
  return row_of(v, slot, col, count) || row_of(v, slot, col, (count + MK_TILE - 1) / MK_TILE * MK_TILE);
}

static bool all_columns(const view *v, uint32_t weight) {
  return v->at[weight].col == 0 && v->at[weight].end_col == buffer_of(v, weight)->cols;
}

static bool all_rows(const view *v, uint32_t slot) {
  return v->at[slot].row == 0 && v->at[slot].end_row == buffer_of(v, slot)->rows;
}

/* out covers the rows of the weight, divided by `per`. */
static bool rows_of_weight(const view *v, uint32_t slot, uint32_t weight, uint32_t per) {
  const rectangle *w = &v->at[weight];
  return row_of(v, slot, w->row / per, (w->end_row - w->row) / per);
}

static bool whole_width(const view *v, uint32_t slot, uint32_t col, uint32_t count) {
  return row_of(v, slot, col, count) && width(v, slot) == count;
}

static bool residual(const view *v, uint32_t in, uint32_t col, uint32_t count) {
  return row_of(v, in, col, count) && whole_width(v, in + 1, col, count) && row_of(v, in + 2, col, count);
}

/* A square for each chain of 128 columns. */
static bool squares_of(const view *v, uint32_t slot, uint32_t count) {
  return !is_empty(&v->in->operands[slot]) && whole_width(v, slot, 0, (count + 127) / 128);
}

static bool normed(const view *v, uint32_t x, uint32_t gain, uint32_t squares, uint32_t count, uint32_t more) {
  return input_of(v, x, 0, count) && (is_empty(&v->in->operands[gain]) ? more == 0 && squares_of(v, squares, count)
                                                                       : whole_width(v, gain, 0, count + more));
}

static bool normed_or_not(const view *v, uint32_t x, uint32_t gain, uint32_t squares, uint32_t count, uint32_t more) {
  bool neither = is_empty(&v->in->operands[gain]) && is_empty(&v->in->operands[squares]);
  return neither ? count == 0 && more == 0 : normed(v, x, gain, squares, count, more);
}

static bool touches_QKV(const view *v) {
  const rectangle *w = &v->at[MK_SLOT_QKV_weight];
  uint32_t extras = v->in->params[MK_PARAM_QKV_extras], rows = buffer_of(v, MK_SLOT_QKV_weight)->rows;
  uint32_t beside = (extras & 1) * rows + (extras >> 1 & 1) * rows, tile = (extras & 4) != 0 ? 18 : 16;
  return extras < 8 && all_columns(v, MK_SLOT_QKV_weight) && input_of(v, MK_SLOT_QKV_x, 0, w->end_col) &&
         normed_or_not(v, MK_SLOT_QKV_x, MK_SLOT_QKV_gain, MK_SLOT_QKV_squares, v->in->params[MK_PARAM_QKV_width], 0) &&
         whole_width(v, MK_SLOT_QKV_inv_freq, 0, v->in->params[MK_PARAM_QKV_head_dim] / 2 + beside) &&
         whole_width(v, MK_SLOT_QKV_out, w->row / 16 * tile, (w->end_row - w->row) / 16 * tile);
}

static bool touches_ATTENTION(const view *v) {
  const mk_buffer *kv = buffer_of(v, MK_SLOT_ATTENTION_kv);
  const rectangle *at = &v->at[MK_SLOT_ATTENTION_kv], *table = &v->at[MK_SLOT_ATTENTION_table];
  uint32_t group = v->in->params[MK_PARAM_ATTENTION_group], parts = v->in->operands[MK_SLOT_ATTENTION_out].cols;
  uint32_t out = parts * (kv->head_dim + 2u), last = v->program->ranges.position.high / kv->span_tokens;
  uint32_t head = v->in->params[MK_PARAM_ATTENTION_eps] != 0 ? kv->head_dim / 16u * 18u : kv->head_dim;
  return at->end_row - at->row == 1 && at->end_col - at->col == 1 &&
         whole_width(v, MK_SLOT_ATTENTION_q, v->at[MK_SLOT_ATTENTION_q].col, group * head) &&
         whole_width(v, MK_SLOT_ATTENTION_k, v->at[MK_SLOT_ATTENTION_k].col, head) &&
         whole_width(v, MK_SLOT_ATTENTION_v, v->at[MK_SLOT_ATTENTION_v].col, head) &&
         table->end_row - table->row == 1 && table->col == 0 &&
         table->end_col > v->program->ranges.position.high / kv->block_tokens && group != 0 && parts % group == 0 &&
         parts / group > last / kv->rows && v->at[MK_SLOT_ATTENTION_out].row == at->row &&
         whole_width(v, MK_SLOT_ATTENTION_out, at->col * out, out);
}

/* A head of a cache that has all tokens, and a table of them. */
static bool cache_and_table(const view *v, uint32_t cache, uint32_t table) {
  const rectangle *at = &v->at[cache], *blocks = &v->at[table];
  return at->end_row - at->row == 1 && buffer_of(v, cache)->rows == 1 && at->end_col - at->col == 1 &&
         blocks->end_row - blocks->row == 1 && blocks->col == 0 &&
         blocks->end_col > v->program->ranges.position.high / buffer_of(v, cache)->block_tokens;
}

static bool touches_APPEND(const view *v) {
  const uint32_t head_dim = buffer_of(v, MK_SLOT_APPEND_kv)->head_dim;
  return cache_and_table(v, MK_SLOT_APPEND_kv, MK_SLOT_APPEND_table) &&
         whole_width(v, MK_SLOT_APPEND_k, v->at[MK_SLOT_APPEND_k].col, head_dim) &&
         whole_width(v, MK_SLOT_APPEND_v, v->at[MK_SLOT_APPEND_v].col, head_dim);
}

static bool touches_ATTEND(const view *v) {
  const uint32_t head_dim = buffer_of(v, MK_SLOT_ATTEND_kv)->head_dim;
  const bool shares = !is_empty(&v->in->operands[MK_SLOT_ATTEND_work]);
  const uint32_t heads = shares ? width(v, MK_SLOT_ATTEND_q) / head_dim : 1; /* the query heads of a KV head */
  return cache_and_table(v, MK_SLOT_ATTEND_kv, MK_SLOT_ATTEND_table) &&
         shares == (v->in->params[MK_PARAM_ATTEND_share] < v->in->params[MK_PARAM_ATTEND_shares]) &&
         whole_width(v, MK_SLOT_ATTEND_q, v->at[MK_SLOT_ATTEND_q].col, heads * head_dim) &&
         whole_width(v, MK_SLOT_ATTEND_out, v->at[MK_SLOT_ATTEND_out].col, heads * head_dim);
}

static bool touches_NORM(const view *v) {
  const rectangle *squares = &v->at[MK_SLOT_NORM_squares];
  return row_of(v, MK_SLOT_NORM_x, squares->col * 128, 128) && row_of(v, MK_SLOT_NORM_out, squares->col * 128, 128) &&
         whole_width(v, MK_SLOT_NORM_squares, squares->col, 1) && v->at[MK_SLOT_NORM_gain].col == 0 &&
         (is_empty(&v->in->operands[MK_SLOT_NORM_gain]) ||
          width(v, MK_SLOT_NORM_gain) == buffer_of(v, MK_SLOT_NORM_gain)->cols);
}

static bool touches_OFFSET(const view *v) {
  const rectangle *to = &v->at[MK_SLOT_OFFSET_residual_out];
  uint32_t count = to->end_col - to->col;
  return row_of(v, MK_SLOT_OFFSET_residual_in, to->col, count) &&
         whole_width(v, MK_SLOT_OFFSET_residual_out, to->col, count) &&
         (is_empty(&v->in->operands[MK_SLOT_OFFSET_bias]) || v->at[MK_SLOT_OFFSET_bias].col == 0);
}

static bool touches_NORM_ADD(const view *v) {
  const rectangle *to = &v->at[MK_SLOT_NORM_ADD_residual_out];
  uint32_t width_of_norm = v->in->params[MK_PARAM_NORM_ADD_width];
  return all_rows(v, MK_SLOT_NORM_ADD_parts) && all_columns(v, MK_SLOT_NORM_ADD_parts) &&
         width(v, MK_SLOT_NORM_ADD_parts) >= width_of_norm &&
         whole_width(v, MK_SLOT_NORM_ADD_gain, 0, width_of_norm * (1 + v->in->params[MK_PARAM_NORM_ADD_biased])) &&
         residual(v, MK_SLOT_NORM_ADD_residual_in, to->col, to->end_col - to->col);
}

static bool touches_ADD_NORMED(const view *v) {
  const rectangle *to = &v->at[MK_SLOT_ADD_NORMED_residual_out], *parts = &v->at[MK_SLOT_ADD_NORMED_parts];
  const uint32_t all = buffer_of(v, MK_SLOT_ADD_NORMED_parts)->cols, count = v->in->params[MK_PARAM_ADD_NORMED_width];
  return all_rows(v, MK_SLOT_ADD_NORMED_parts) && parts->col == to->col && parts->end_col == to->end_col &&
         count <= all && squares_of(v, MK_SLOT_ADD_NORMED_squares, all) &&
         whole_width(v, MK_SLOT_ADD_NORMED_gain, 0, count * (1 + v->in->params[MK_PARAM_ADD_NORMED_biased])) &&
         residual(v, MK_SLOT_ADD_NORMED_residual_in, to->col, to->end_col - to->col);
}

static bool touches_SQUARES(const view *v) {
  const rectangle *parts = &v->at[MK_SLOT_SQUARES_parts], *squares = &v->at[MK_SLOT_SQUARES_squares];
  const uint32_t all = buffer_of(v, MK_SLOT_SQUARES_parts)->cols, count = v->in->params[MK_PARAM_SQUARES_width];
  return all_rows(v, MK_SLOT_SQUARES_parts) && parts->col == squares->col * 128 &&
         parts->end_col == least(parts->col + UINT64_C(128), all) && parts->end_col > parts->col &&
         whole_width(v, MK_SLOT_SQUARES_squares, squares->col, 1) && count != 0 && count <= all &&
         (is_empty(&v->in->operands[MK_SLOT_SQUARES_gain]) || whole_width(v, MK_SLOT_SQUARES_gain, 0, 2 * count));
}

static bool touches_NORM_HEADS(const view *v) {
  const rectangle *out = &v->at[MK_SLOT_NORM_HEADS_out];
  return all_rows(v, MK_SLOT_NORM_HEADS_values) && all_columns(v, MK_SLOT_NORM_HEADS_values) &&
         width(v, MK_SLOT_NORM_HEADS_values) / 18 >= out->end_col / 16 &&
         v->in->params[MK_PARAM_NORM_HEADS_query_tiles] + v->in->params[MK_PARAM_NORM_HEADS_key_tiles] <=
             width(v, MK_SLOT_NORM_HEADS_values) / 18;
}

static bool touches_COMBINE(const view *v) {
  const mk_operand *parts = &v->in->operands[MK_SLOT_COMBINE_parts];
  uint32_t head_dim = buffer_of(v, MK_SLOT_COMBINE_parts)->tile_cols - 2, spans = v->in->params[MK_PARAM_COMBINE_spans];
  if (!all_rows(v, MK_SLOT_COMBINE_parts) || spans == 0 || parts->col % spans != 0 || parts->cols % spans != 0) {
    return false;
  }
  uint32_t first = parts->col / spans * head_dim, cols = parts->cols / spans * head_dim;
  const rectangle *out = &v->at[MK_SLOT_COMBINE_out];
  uint32_t count = out->end_col - out->col, slice = head_dim / 4;
  bool some = cols == head_dim && out->col % slice == 0 && count % slice == 0 && out->col >= first &&
              out->end_col <= first + cols;
  return some ? whole_width(v, MK_SLOT_COMBINE_out, out->col, count) : whole_width(v, MK_SLOT_COMBINE_out, first, cols);
}

static bool touches_LINEAR_ADD(const view *v) {
  const rectangle *w = &v->at[MK_SLOT_LINEAR_ADD_weight];
  return all_columns(v, MK_SLOT_LINEAR_ADD_weight) && input_of(v, MK_SLOT_LINEAR_ADD_x, 0, w->end_col) &&
         residual(v, MK_SLOT_LINEAR_ADD_residual_in, w->row, w->end_row - w->row);
}

static bool touches_LINEAR_PART(const view *v) {
  const rectangle *w = &v->at[MK_SLOT_LINEAR_PART_weight];
  return input_of(v, MK_SLOT_LINEAR_PART_x, w->col, w->end_col - w->col) &&
         whole_width(v, MK_SLOT_LINEAR_PART_out, w->row, w->end_row - w->row);
}

static bool touches_REDUCE_ADD(const view *v) {
  const rectangle *parts = &v->at[MK_SLOT_REDUCE_ADD_parts];
  return all_rows(v, MK_SLOT_REDUCE_ADD_parts) &&
         residual(v, MK_SLOT_REDUCE_ADD_residual_in, parts->col, parts->end_col - parts->col);
}

static bool touches_GLU(const view *v) {
  const rectangle *w = &v->at[MK_SLOT_GLU_weight];
  return all_columns(v, MK_SLOT_GLU_weight) && input_of(v, MK_SLOT_GLU_x, 0, w->end_col) &&
         normed_or_not(v, MK_SLOT_GLU_x, MK_SLOT_GLU_gain, MK_SLOT_GLU_squares, v->in->params[MK_PARAM_GLU_width],
                       v->in->params[MK_PARAM_GLU_biased] * buffer_of(v, MK_SLOT_GLU_weight)->rows) &&
         rows_of_weight(v, MK_SLOT_GLU_out, MK_SLOT_GLU_weight, 2) &&
         2 * width(v, MK_SLOT_GLU_out) == w->end_row - w->row;
}

static bool touches_HEAD(const view *v) {
  bool none = is_empty(&v->in->operands[MK_SLOT_HEAD_weight]);
  if (!normed(v, MK_SLOT_HEAD_x, MK_SLOT_HEAD_gain, MK_SLOT_HEAD_squares, v->in->params[MK_PARAM_HEAD_width], 0) ||
      !whole_width(v, MK_SLOT_HEAD_candidate, 0, 2) || none != is_empty(&v->in->operands[MK_SLOT_HEAD_logits])) {
    return false;
  }
  return none ||
         (all_columns(v, MK_SLOT_HEAD_weight) && input_of(v, MK_SLOT_HEAD_x, 0, v->at[MK_SLOT_HEAD_weight].end_col) &&
          rows_of_weight(v, MK_SLOT_HEAD_logits, MK_SLOT_HEAD_weight, 1));
}

static bool touches_NEXT(const view *v) {
  const rectangle *candidates = &v->at[MK_SLOT_NEXT_candidates], *plan = &v->at[MK_SLOT_NEXT_plan];
  const rectangle *ring = &v->at[MK_SLOT_NEXT_ring];
  uint32_t words = plan->end_col;
  return (all_rows(v, MK_SLOT_NEXT_candidates) || candidates->end_row - candidates->row == 1) && candidates->col == 0 &&
         candidates->end_col == 2 && plan->end_row - plan->row == 1 && plan->col == 0 && words != 0 && words % 4 == 0 &&
         (is_empty(&v->in->operands[MK_SLOT_NEXT_ring]) ||
          (ring->end_row - ring->row == 1 && ring->col == 0 && 4 * ring->end_col >= words));
}

static bool touches_SCORE(const view *v) {
  const rectangle *logits = &v->at[MK_SLOT_SCORE_logits];
  static const uint32_t slots[] = {MK_SLOT_SCORE_logits, MK_SLOT_SCORE_bias, MK_SLOT_SCORE_counts,
                                   MK_SLOT_SCORE_scores};
  bool none = is_empty(&v->in->operands[MK_SLOT_SCORE_logits]);
  for (uint32_t i = 0; i < 4; i++) {
    if (none != is_empty(&v->in->operands[slots[i]]) ||
        (!none && !whole_width(v, slots[i], logits->col, logits->end_col - logits->col))) {
      return false;
    }
  }
  return whole_width(v, MK_SLOT_SCORE_front, 0, 98) && whole_width(v, MK_SLOT_SCORE_sampling, 0, 16);
}

/* One row for each SM, and the SM's own is that of `out`. */
static bool row_per_sm(const view *v, uint32_t slot, uint32_t out, uint32_t count) {
  return all_rows(v, slot) && v->at[slot].col == 0 && v->at[slot].end_col == count &&
         buffer_of(v, slot)->rows == buffer_of(v, out)->rows;
}

static bool touches_SIFT(const view *v) {
  const rectangle *scores = &v->at[MK_SLOT_SIFT_scores];
  return whole_width(v, MK_SLOT_SIFT_round, 0, 256) && whole_width(v, MK_SLOT_SIFT_sampling, 0, 16) &&
         row_per_sm(v, MK_SLOT_SIFT_fronts, MK_SLOT_SIFT_round, 98) &&
         (is_empty(&v->in->operands[MK_SLOT_SIFT_rounds]) ||
          row_per_sm(v, MK_SLOT_SIFT_rounds, MK_SLOT_SIFT_round, 256)) &&
         (is_empty(&v->in->operands[MK_SLOT_SIFT_scores]) || scores->end_row - scores->row == 1);
}

static bool touches_DRAW(const view *v) {
  const mk_buffer *scores = buffer_of(v, MK_SLOT_DRAW_scores);
  return whole_width(v, MK_SLOT_DRAW_choice, 0, 2) && whole_width(v, MK_SLOT_DRAW_sampling, 0, 16) &&
         row_per_sm(v, MK_SLOT_DRAW_fronts, MK_SLOT_DRAW_choice, 98) &&
         (is_empty(&v->in->operands[MK_SLOT_DRAW_rounds]) ||
          row_per_sm(v, MK_SLOT_DRAW_rounds, MK_SLOT_DRAW_choice, 256)) &&
         scores->rows == 1 && whole_width(v, MK_SLOT_DRAW_scores, 0, scores->cols);
}

/* What they touch is up to a work list; no mutation has one. */
static bool touches_MLA_PART(const view *v) { return all_rows(v, MK_SLOT_MLA_PART_out); }
static bool touches_MLA_REDUCE(const view *v) { return all_rows(v, MK_SLOT_MLA_REDUCE_out); }

static bool touches_declared(const view *v) {
  switch ((mk_opcode)v->in->opcode) {
#define MK_OPCODE(NAME, text, state, semantics) \
  case MK_OP_##NAME:                            \
    return touches_##NAME(v);
#include "vm/program/opcodes.def"
    case MK_OP_NONE:
    case MK_OP_COUNT:
      break;
  }
  return false;
}

/* Pages that the loader fills, the KV cache being as long as it may become. */
static uint64_t pages_filled(const view *v) {
  uint64_t page = v->program->machine.page_bytes, pages = 0;
  const mk_opcode_info *info = mk_opcode_lookup(v->in->opcode);
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand *o = &v->in->operands[slot];
    const mk_buffer *b = buffer_of(v, slot);
    if (info->operands[slot].store == MK_OPERAND_STORE_TILES) {
      pages += o->rows * ((o->cols * (uint64_t)MK_TILE_STEP_ELEMENTS * 2 + page - 1) / page);
    } else if (info->operands[slot].store == MK_OPERAND_STORE_BLOCKS &&
               info->operands[slot].access != MK_ACCESS_WRITE) {
      const uint64_t element = b->dtype == MK_DTYPE_BF16 ? 2 : 1, scale = b->dtype == MK_DTYPE_BF16 ? 0 : 2;
      uint64_t block_bytes = (uint64_t)b->block_tokens * (b->head_dim * element + scale) * 2;
      for (uint32_t t = 0; t <= v->program->ranges.position.high; t += b->block_tokens) {
        pages += t / b->span_tokens % b->rows == o->row ? (block_bytes + page - 1) / page : 0;
      }
    }
  }
  return pages;
}

/* Bytes of shared memory in which consumers stage their inputs; these opcodes take theirs word by word. */
static uint64_t bytes_staged(const view *v) {
  uint64_t bytes = 0;
  const mk_opcode_info *info = mk_opcode_lookup(v->in->opcode);
  if (v->in->opcode == MK_OP_COMBINE || v->in->opcode == MK_OP_REDUCE_ADD || v->in->opcode == MK_OP_NEXT ||
      v->in->opcode == MK_OP_SCORE || v->in->opcode == MK_OP_SIFT || v->in->opcode == MK_OP_DRAW ||
      v->in->opcode == MK_OP_NORM_ADD || v->in->opcode == MK_OP_NORM_HEADS || v->in->opcode == MK_OP_SQUARES ||
      v->in->opcode == MK_OP_ADD_NORMED) {
    return 0;
  }
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    bool staged = info->operands[slot].access == MK_ACCESS_READ && info->operands[slot].role == MK_ROLE_CONSUMER &&
                  info->operands[slot].when == MK_WHEN_WAITS;
    uint32_t bytes_each = info->operands[slot].dtype == MK_DTYPE_BF16 ? 2 : 4;
    bytes += staged ? (uint64_t)width(v, slot) * bytes_each : 0;
  }
  return bytes;
}

static mk_status fault(const view *v, const char *what) {
  return mk_error(MK_ERR_DEVICE, "footprint: instruction %u (%s) %s", v->in->uid, mk_opcode_lookup(v->in->opcode)->name,
                  what);
}

static bool counters_exist(const mk_program *p, const mk_instruction *in) {
  bool exist = true;
  for (uint32_t w = 0; w < in->wait_count; w++) {
    exist &= in->waits[w].counter < p->counter_count;
  }
  for (uint32_t s = 0; s < in->signal_count; s++) {
    exist &= in->signals[s].counter < p->counter_count;
  }
  return exist;
}

static mk_status inside(view *v) {
  const mk_opcode_info *info = mk_opcode_lookup(v->in->opcode);
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand *o = &v->in->operands[slot];
    if (o->buffer >= v->program->buffer_count) {
      return fault(v, "names a buffer that does not exist");
    }
    const mk_buffer *b = buffer_of(v, slot);
    if ((uint32_t)o->row + o->rows > mk_buffer_grid_rows(b) || (uint32_t)o->col + o->cols > mk_buffer_grid_cols(b)) {
      return fault(v, "reaches outside a buffer");
    }
    v->at[slot] = (rectangle){.row = o->row * b->tile_rows,
                              .end_row = least(((uint64_t)o->row + o->rows) * b->tile_rows, b->rows),
                              .col = o->col * b->tile_cols,
                              .end_col = least(((uint64_t)o->col + o->cols) * b->tile_cols, b->cols)};
    const mk_range *token = &v->program->ranges.token;
    if ((o->flags & MK_OPERAND_TOKEN_ROW) != 0 &&
        (v->at[slot].row > token->low || v->at[slot].end_row <= token->high)) {
      return fault(v, "reads the row of a token outside its operand");
    }
  }
  return counters_exist(v->program, v->in) ? MK_OK
                                           : fault(v, "waits for a counter that does not exist, or signals one");
}

bool mutation_can_run(const mk_program *program) {
  bool can = true;
  for (size_t i = 0; i < program->instruction_count; i++) {
    can &= counters_exist(program, &program->instructions[i]);
  }
  return can;
}

mk_status mutation_footprint(const mk_program *program) {
  for (size_t i = 0; i < program->instruction_count; i++) {
    view v = {.program = program, .in = &program->instructions[i]};
    MK_TRY(inside(&v));
    if (!touches_declared(&v)) {
      return fault(&v, "touches other elements than its operands declare");
    }
    if (pages_filled(&v) != v.in->pages) {
      return fault(&v, "gives back other pages than its loader has filled");
    }
    if (bytes_staged(&v) > (uint64_t)v.in->resident * MK_RESIDENT_UNIT) {
      return fault(&v, "stages more than its resident bytes");
    }
  }
  return MK_OK;
}
