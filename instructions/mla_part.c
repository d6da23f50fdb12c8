/* MLA_PART: the partial attention of the items in one row of the work list (mla.h), in their order. o = sum_t p_t v_t,
 * p_t = exp(s_t - max), s_t = scale q k_t, over the tokens of an item that the query row sees; k_t is a row of a page,
 * v_t its first 512 columns. An item alone in its block writes bf16(o / sum_t p_t), zeros where it sees no token;
 * others leave that, in fp16 over a power of two, and log2 sum_t exp(s_t) in a partial slot.
 *
 * Pages are taken in order with a running maximum, so a row's bits depend on the item's pages and the length, and on
 * nothing else. Tokens that no row sees are not touched: what lies after the last token of a page, or in other pages,
 * may be anything. */
#include "instructions/mla.h"

#include <math.h>
#include <string.h>

#include "instructions/reference.h"
#include "vm/widest.h"

typedef float float16 __attribute__((vector_size(64)));

enum { LANES = 16, STEPS = MK_MLA_WIDTH / LANES, GROUP = 4, CHUNK = 128, RESULT = MK_MLA_LATENT + 2 };
static const float kLog2E = 1.44269504088896f;

typedef struct part_view {
  const uint16_t *q, *kv;
  const uint32_t *sequences;
  uint32_t rows, blocks, tokens, sequence_words;
  float scale;
  float *query;    /* [rows][576] */
  float *page;     /* [64][576] */
  float *result;   /* [rows][514]: o, max, sum_t p_t */
  float *scores;   /* [64] */
  uint32_t *words; /* of a slot */
} part_view;

static void expand(const uint16_t *from, size_t count, float *to) {
  for (size_t i = 0; i < count; i++) {
    to[i] = mk_bf16_to_float(from[i]);
  }
}

/* scores[t] = q k_t, four tokens at a time. A score is sixteen sums, which are added in a fixed order. There is no
 * fused multiply-add (-ffp-contract=off): the bits are the same on every x86-64. */
MK_WIDEST static void score_tokens(const float *restrict query, const float *restrict page, uint32_t count,
                                   float *restrict scores) {
  for (uint32_t t = 0; t < count; t += GROUP) {
    float16 sums[GROUP] = {{0}}, x, y;
    uint32_t group = count - t < GROUP ? count - t : GROUP;
    const float *keys[GROUP]; /* those beyond the last token are the last one again */
    for (uint32_t j = 0; j < GROUP; j++) {
      keys[j] = page + (size_t)(t + (j < group ? j : group - 1)) * MK_MLA_WIDTH;
    }
    for (uint32_t i = 0; i < STEPS; i++) {
      memcpy(&x, query + (size_t)i * LANES, sizeof x);
      for (uint32_t j = 0; j < GROUP; j++) {
        memcpy(&y, keys[j] + (size_t)i * LANES, sizeof y);
        sums[j] += x * y;
      }
    }
    for (uint32_t j = 0; j < group; j++) {
      float sum = 0;
      for (uint32_t i = 0; i < LANES; i++) {
        sum += sums[j][i];
      }
      scores[t + j] = sum;
    }
  }
}

/* sum += p[t] v_t over `count` tokens of the page, token by token in every column. */
MK_WIDEST static void add_values(const float *restrict page, const float *restrict p, uint32_t count,
                                 float *restrict sum) {
  for (uint32_t c = 0; c < MK_MLA_LATENT; c += CHUNK) {
    float16 parts[CHUNK / LANES], v;
    memcpy(parts, sum + c, sizeof parts);
    for (uint32_t t = 0; t < count; t++) {
      for (uint32_t i = 0; i < CHUNK / LANES; i++) {
        memcpy(&v, page + (size_t)t * MK_MLA_WIDTH + (c + i * LANES), sizeof v);
        parts[i] += v * p[t];
      }
    }
    memcpy(sum + c, parts, sizeof parts);
  }
}

/* Adds the first `count` tokens of the page to the row's result. */
static void fold(const part_view *view, const float *query, uint32_t count, float *result) {
  float *max = result + MK_MLA_LATENT, *total = max + 1, old = *max;
  score_tokens(query, view->page, count, view->scores);
  for (uint32_t t = 0; t < count; t++) {
    float score = view->scores[t] *= view->scale;
    *max = score > *max || isnan(score) ? score : *max;
  }
  float keep = *total == 0 ? 0.0f : mk_exp(old - *max);
  *total *= keep;
  for (uint32_t d = 0; d < MK_MLA_LATENT; d++) {
    result[d] *= keep;
  }
  for (uint32_t t = 0; t < count; t++) {
    view->scores[t] = mk_exp(view->scores[t] - *max);
    *total += view->scores[t];
  }
  add_values(view->page, view->scores, count, result);
}

/* How many tokens row `row` of a block sees. */
static uint32_t seen(const part_view *view, uint32_t length, uint32_t block, uint32_t row) {
  uint32_t heads = view->rows * view->blocks / view->tokens;
  uint32_t token = (block % view->blocks * view->rows + row) / heads, behind = view->tokens - 1 - token;
  return length > behind ? length - behind : 0;
}

static void attend(const part_view *view, const mk_mla_item *item) {
  const uint32_t *sequence = view->sequences + (size_t)(item->block / view->blocks) * view->sequence_words;
  uint32_t length = sequence[0], pages = length / MK_MLA_PAGE_TOKENS + (length % MK_MLA_PAGE_TOKENS != 0);
  uint32_t end = item->end < pages ? item->end : pages;
  size_t row_elements = (size_t)view->rows * MK_MLA_WIDTH;
  expand(view->q + item->block * row_elements, row_elements, view->query);
  for (uint32_t r = 0; r < view->rows; r++) {
    float *result = view->result + (size_t)r * RESULT;
    memset(result, 0, RESULT * sizeof *result);
    result[MK_MLA_LATENT] = -INFINITY;
  }
  for (uint32_t p = item->first; p < end; p++) {
    uint32_t start = p * MK_MLA_PAGE_TOKENS, left = length - start;
    uint32_t tokens = left < MK_MLA_PAGE_TOKENS ? left : MK_MLA_PAGE_TOKENS;
    expand(view->kv + (size_t)sequence[MK_MLA_SEQUENCE_HEAD + p] * MK_MLA_PAGE_TOKENS * MK_MLA_WIDTH,
           (size_t)tokens * MK_MLA_WIDTH, view->page);
    for (uint32_t r = 0; r < view->rows; r++) {
      uint32_t sees = seen(view, length, item->block, r), count = sees > start ? sees - start : 0;
      if (count != 0) {
        fold(view, view->query + (size_t)r * MK_MLA_WIDTH, count < tokens ? count : tokens,
             view->result + (size_t)r * RESULT);
      }
    }
  }
}

static void write_out(const part_view *view, uint32_t block, uint16_t *out) {
  for (uint32_t r = 0; r < view->rows; r++) {
    const float *result = view->result + (size_t)r * RESULT;
    float total = result[MK_MLA_LATENT + 1];
    uint16_t *to = out + ((size_t)block * view->rows + r) * MK_MLA_LATENT;
    for (uint32_t d = 0; d < MK_MLA_LATENT; d++) {
      to[d] = total == 0 ? 0 : mk_float_to_bf16(result[d] / total);
    }
  }
}

/* The power of two that brings values of up to `most` below two. */
static float unit_above(float most) {
  uint32_t bits = mk_float_param(most) & 0x7f800000u;
  return mk_param_float(bits < 0x0c800000u ? 0x0c800000u : bits > 0x72000000u ? 0x72000000u : bits);
}

static void write_unit(const float *o, float total, float logarithm, uint32_t *words) {
  float most = 0, inverse = total == 0 ? 0.0f : 1.0f / total;
  for (uint32_t d = 0; d < MK_MLA_UNIT; d++) {
    most = fabsf(o[d]) > most ? fabsf(o[d]) : most;
  }
  float unit = unit_above(most * inverse), factor = inverse / unit;
  words[0] = mk_float_param(logarithm);
  words[1] = mk_float_param(unit);
  for (uint32_t d = 0; d < MK_MLA_UNIT; d += 2) {
    words[MK_MLA_UNIT_HEAD + d / 2] = mk_float_to_half(o[d] * factor) | (uint32_t)mk_float_to_half(o[d + 1] * factor)
                                                                            << 16;
  }
}

static void write_slot(const part_view *view) {
  for (uint32_t r = 0; r < view->rows; r++) {
    const float *o = view->result + (size_t)r * RESULT;
    float total = o[MK_MLA_LATENT + 1];
    float logarithm = total == 0 ? -INFINITY : o[MK_MLA_LATENT] * kLog2E + (float)log2((double)total);
    for (uint32_t unit = 0; unit < MK_MLA_ROW_UNITS; unit++) {
      write_unit(o + (size_t)unit * MK_MLA_UNIT, total, logarithm,
                 view->words + (size_t)(r * MK_MLA_ROW_UNITS + unit) * MK_MLA_UNIT_WORDS);
    }
  }
}

mk_reference_result mk_reference_MLA_PART(mk_reference *machine, const mk_instruction *instruction) {
  mk_span q = mk_operand_span(machine, instruction, MK_SLOT_MLA_PART_q);
  mk_span kv = mk_operand_span(machine, instruction, MK_SLOT_MLA_PART_kv);
  mk_span sequences = mk_operand_span(machine, instruction, MK_SLOT_MLA_PART_sequences);
  mk_span work = mk_operand_span(machine, instruction, MK_SLOT_MLA_PART_work);
  mk_span parts = mk_operand_span(machine, instruction, MK_SLOT_MLA_PART_parts);
  mk_span out = mk_operand_span(machine, instruction, MK_SLOT_MLA_PART_out);
  uint32_t rows = out.buffer->cols / MK_MLA_LATENT;
  part_view view = {.q = (const uint16_t *)(const void *)q.memory,
                    .kv = (const uint16_t *)(const void *)kv.memory,
                    .sequences = (const uint32_t *)(const void *)sequences.memory,
                    .rows = rows,
                    .blocks = out.buffer->rows / sequences.buffer->rows,
                    .tokens = instruction->params[MK_PARAM_MLA_PART_tokens],
                    .sequence_words = sequences.buffer->cols,
                    .scale = mk_param_float(instruction->params[MK_PARAM_MLA_PART_scale]),
                    .query = machine->scratch};
  view.page = view.query + (size_t)rows * MK_MLA_WIDTH;
  view.result = view.page + (size_t)MK_MLA_PAGE_TOKENS * MK_MLA_WIDTH;
  view.scores = view.result + (size_t)rows * RESULT;
  view.words = (uint32_t *)(void *)(view.scores + MK_MLA_PAGE_TOKENS);
  const uint32_t *row = (const uint32_t *)(const void *)work.memory + (size_t)work.row * work.buffer->cols;
  mk_mla_list list = mk_mla_list_of(row);
  for (uint32_t i = 0; i < list.items; i++) {
    attend(&view, &list.item[i]);
    if (list.item[i].slot == MK_MLA_OUT) {
      write_out(&view, list.item[i].block, (uint16_t *)(void *)out.memory);
      mk_note_write(machine, &out, list.item[i].block, 0, out.cols);
    } else {
      write_slot(&view);
      mk_publish_words(machine, &parts, list.item[i].slot, 0, rows * MK_MLA_PART_WIDTH, view.words);
    }
  }
  return MK_REFERENCE_DONE;
}
