/* ATTENTION: one split of the decode attention of one KV head.
 * q [group * head_dim], k, v [head_dim] fp32; kv: the blocks of the spans s, s + splits, ... up to the position; out
 * [group] rows of (sum_t p_t v_t [head_dim], max score, sum p), p_t = exp(score_t - max).
 *
 * The split whose span holds the position rounds k and v to bf16, appends them and uses them like all others. Every split waits
 * for q, k and v; one whose first span lies beyond the position writes nothing. Tokens are taken in order, span by span.
 *
 * K of a block is a matrix of weight tiles [block_tokens, head_dim], V of sixteen tokens one [head_dim, 16] (program.h), so both
 * products are mk_matvec's. Scores of tokens beyond the position are computed with their tile and dropped; V must not hold
 * them, as 0 times what lies there may be NaN, so the tile of the position is copied and cleared there. */
#include <math.h>
#include <string.h>

#include "instructions/reference.h"

enum { SCORES = 1024 };

typedef struct split_view {
  const mk_buffer *buffer;
  uint16_t *memory;
  const uint32_t *table;
  uint32_t head, head_dim;
  float *scores, *product, *scratch; /* [SCORES], [head_dim], mk_matvec's */
  uint16_t *newest_v;                /* [head_dim, 16]: V of the position and the tokens before it in its tile */
} split_view;

/* K (which = 0) or V (which = 1) of token t. */
static uint16_t *cached(const split_view *view, uint32_t which, uint32_t t, uint32_t dim) {
  const mk_buffer *b = view->buffer;
  uint64_t pair = (uint64_t)view->table[t / b->block_tokens] * b->cols + view->head;
  return view->memory + pair * 2 * b->block_tokens * view->head_dim +
         mk_block_offset(b->block_tokens, view->head_dim, which, t % b->block_tokens, dim);
}

static void append(const split_view *view, uint32_t position, const float *k, const float *v) {
  for (uint32_t d = 0; d < view->head_dim; d++) {
    *cached(view, 0, position, d) = mk_float_to_bf16(k[d]);
    *cached(view, 1, position, d) = mk_float_to_bf16(v[d]);
  }
}

static void copy_newest_v(const split_view *view, uint32_t position) {
  uint32_t first = position / MK_TILE * MK_TILE;
  memcpy(view->newest_v, cached(view, 1, first, 0), (size_t)view->head_dim * MK_TILE * sizeof *view->newest_v);
  for (uint32_t d = 0; d < view->head_dim; d++) {
    for (uint32_t t = position + 1; t < first + MK_TILE; t++) {
      view->newest_v[mk_tile_offset(1, d, t - first)] = 0;
    }
  }
}

/* y = W x of rows x cols weight tiles. */
static void multiply(const split_view *view, uint16_t *tiles, uint32_t rows, uint32_t cols, const float *x, float *y) {
  mk_buffer shape = {.rows = rows, .cols = cols, .tile_rows = MK_TILE, .tile_cols = MK_TILE};
  mk_span weight = {.buffer = &shape, .memory = (uint8_t *)tiles, .rows = rows, .cols = cols};
  mk_matvec(&weight, x, view->scratch, y);
}

/* Folds tokens [first, end) into out = (sum p v, max, sum p) of one query head. */
static void fold_tokens(const split_view *view, const float *q, float scale, uint32_t first, uint32_t end, float *out) {
  float *max = out + view->head_dim, *total = max + 1, old = *max, *scores = view->scores;
  uint32_t block_tokens = view->buffer->block_tokens, count = end - first;
  uint32_t padded = (count + MK_TILE - 1) / MK_TILE * MK_TILE;
  for (uint32_t i = 0; i < count; i += block_tokens) {
    uint32_t rows = padded - i < block_tokens ? padded - i : block_tokens;
    multiply(view, cached(view, 0, first + i, 0), rows, view->head_dim, q, scores + i);
  }
  for (uint32_t i = 0; i < count; i++) {
    scores[i] *= scale;
    *max = scores[i] > *max || isnan(scores[i]) ? scores[i] : *max;
  }
  float keep = isinf(old) ? 0.0f : expf(old - *max);
  *total *= keep;
  for (uint32_t d = 0; d < view->head_dim; d++) {
    out[d] *= keep;
  }
  for (uint32_t i = 0; i < padded; i++) {
    scores[i] = i < count ? expf(scores[i] - *max) : 0;
    *total += scores[i];
  }
  for (uint32_t i = 0; i < count; i += MK_TILE) {
    uint16_t *v = count - i < MK_TILE ? view->newest_v : cached(view, 1, first + i, 0);
    multiply(view, v, view->head_dim, MK_TILE, scores + i, view->product);
    for (uint32_t d = 0; d < view->head_dim; d++) {
      out[d] += view->product[d];
    }
  }
}

mk_reference_result mk_reference_ATTENTION(mk_reference *machine, const mk_instruction *instruction) {
  mk_span q_span = mk_operand_span(machine, instruction, MK_SLOT_ATTENTION_q);
  mk_span k_span = mk_operand_span(machine, instruction, MK_SLOT_ATTENTION_k);
  mk_span v_span = mk_operand_span(machine, instruction, MK_SLOT_ATTENTION_v);
  mk_span kv = mk_operand_span(machine, instruction, MK_SLOT_ATTENTION_kv);
  mk_span out_span = mk_operand_span(machine, instruction, MK_SLOT_ATTENTION_out);
  mk_span table = mk_operand_span(machine, instruction, MK_SLOT_ATTENTION_table);
  float *q = machine->scratch, *k = q + q_span.cols, *v = k + k_span.cols, *scores = v + v_span.cols;
  if (!mk_stage_stamped(machine, &q_span, 1, q) || !mk_stage_stamped(machine, &k_span, 1, k) ||
      !mk_stage_stamped(machine, &v_span, 1, v)) {
    return MK_REFERENCE_WAIT;
  }
  uint32_t position = machine->state->position, span_tokens = kv.buffer->span_tokens;
  uint32_t split = kv.row, splits = instruction->params[MK_PARAM_ATTENTION_splits];
  uint32_t newest = position / span_tokens, head_dim = kv.buffer->head_dim;
  if (split > newest) {
    machine->rows_used[MK_SLOT_ATTENTION_kv] = machine->rows_used[MK_SLOT_ATTENTION_out] = 0;
    return MK_REFERENCE_DONE;
  }
  float *out = scores + SCORES, *product = out + head_dim + 2, *newest_v = product + head_dim;
  split_view view = {.buffer = kv.buffer,
                     .memory = (uint16_t *)(void *)kv.memory,
                     .table = (const uint32_t *)(const void *)table.memory,
                     .head = kv.col,
                     .head_dim = head_dim,
                     .scores = scores,
                     .product = product,
                     .scratch = newest_v + (size_t)head_dim * MK_TILE / 2,
                     .newest_v = (uint16_t *)(void *)newest_v};
  if (newest % splits == split) {
    append(&view, position, k, v);
    copy_newest_v(&view, position);
  }
  float scale = mk_param_float(instruction->params[MK_PARAM_ATTENTION_scale]);
  for (uint32_t h = 0; h < instruction->params[MK_PARAM_ATTENTION_group]; h++) {
    memset(out, 0, head_dim * sizeof *out);
    out[head_dim] = -INFINITY;
    out[head_dim + 1] = 0;
    for (uint32_t span = split; span <= newest; span += splits) {
      uint32_t first = span * span_tokens, end = first + span_tokens;
      end = end > position + 1 ? position + 1 : end;
      fold_tokens(&view, q + (size_t)h * head_dim, scale, first, end, out);
    }
    mk_publish_floats(machine, &out_span, 0, h * (head_dim + 2), head_dim + 2, out);
  }
  return MK_REFERENCE_DONE;
}
