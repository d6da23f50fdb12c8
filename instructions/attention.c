/* ATTENTION: one split of the decode attention of one KV head.
 * q [group * head_dim], k, v [head_dim] fp32; kv: the blocks of the spans s, s + splits, ... up to the position; out
 * [group] rows of (sum_t p_t v_t [head_dim], max score, sum p), p_t = exp(score_t - max).
 *
 * The split whose span holds the position rounds k and v to bf16, appends them and uses them like all others. Every split waits
 * for q, k and v; one whose first span lies beyond the position writes nothing. Tokens are taken in order, span by span. */
#include <math.h>
#include <string.h>

#include "instructions/reference.h"

enum { SCORES = 1024 };

typedef struct split_view {
  const mk_buffer *buffer;
  uint8_t *memory;
  const uint32_t *table;
  uint32_t head, head_dim;
} split_view;

/* K (which = 0) or V (which = 1) of token t. */
static uint16_t *cache_row(const split_view *view, uint32_t t, uint32_t which) {
  const mk_buffer *b = view->buffer;
  uint64_t block = view->table[t / b->block_tokens];
  uint64_t row = (((block * b->cols + view->head) * 2 + which) * b->block_tokens) + t % b->block_tokens;
  return (uint16_t *)(void *)view->memory + row * view->head_dim;
}

static float dot(const float *q, const uint16_t *k, uint32_t head_dim) {
  float sums[16] = {0};
  for (uint32_t d = 0; d < head_dim; d += 16) {
    for (uint32_t j = 0; j < 16; j++) {
      sums[j] += q[d + j] * mk_bf16_to_float(k[d + j]);
    }
  }
  float sum = 0;
  for (uint32_t j = 0; j < 16; j++) {
    sum += sums[j];
  }
  return sum;
}

/* Folds tokens [first, end) into out = (sum p v, max, sum p) of one query head. */
static void fold_tokens(const split_view *view, const float *q, float scale, uint32_t first, uint32_t end,
                        float *scores, float *out) {
  float *max = out + view->head_dim, *total = max + 1, old = *max;
  for (uint32_t t = first; t < end; t++) {
    scores[t - first] = scale * dot(q, cache_row(view, t, 0), view->head_dim);
    *max = scores[t - first] > *max || isnan(scores[t - first]) ? scores[t - first] : *max;
  }
  float keep = isinf(old) ? 0.0f : expf(old - *max);
  *total *= keep;
  for (uint32_t d = 0; d < view->head_dim; d++) {
    out[d] *= keep;
  }
  for (uint32_t t = first; t < end; t++) {
    float p = expf(scores[t - first] - *max);
    const uint16_t *v = cache_row(view, t, 1);
    *total += p;
    for (uint32_t d = 0; d < view->head_dim; d++) {
      out[d] += p * mk_bf16_to_float(v[d]);
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
  uint32_t newest = position / span_tokens;
  if (split > newest) {
    machine->rows_used[MK_SLOT_ATTENTION_kv] = machine->rows_used[MK_SLOT_ATTENTION_out] = 0;
    return MK_REFERENCE_DONE;
  }
  split_view view = {.buffer = kv.buffer,
                     .memory = kv.memory,
                     .table = (const uint32_t *)(const void *)table.memory,
                     .head = kv.col,
                     .head_dim = kv.buffer->head_dim};
  if (newest % splits == split) {
    uint16_t *k_row = cache_row(&view, position, 0), *v_row = cache_row(&view, position, 1);
    for (uint32_t d = 0; d < view.head_dim; d++) {
      k_row[d] = mk_float_to_bf16(k[d]);
      v_row[d] = mk_float_to_bf16(v[d]);
    }
  }
  float scale = mk_param_float(instruction->params[MK_PARAM_ATTENTION_scale]);
  float *out = scores + SCORES;
  for (uint32_t h = 0; h < instruction->params[MK_PARAM_ATTENTION_group]; h++) {
    memset(out, 0, view.head_dim * sizeof *out);
    out[view.head_dim] = -INFINITY;
    out[view.head_dim + 1] = 0;
    for (uint32_t span = split; span <= newest; span += splits) {
      uint32_t first = span * span_tokens, end = first + span_tokens;
      end = end > position + 1 ? position + 1 : end;
      fold_tokens(&view, q + (size_t)h * view.head_dim, scale, first, end, scores, out);
    }
    mk_publish_floats(machine, &out_span, 0, h * (view.head_dim + 2), view.head_dim + 2, out);
  }
  return MK_REFERENCE_DONE;
}
