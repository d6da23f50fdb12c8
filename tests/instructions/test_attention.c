/* ATTENTION against its definition, bit for bit, and against double precision: every split, scrambled block tables, the
 * appended token, idle splits; over a cache of bf16, and over one of fp8. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/support/numbers.h"
#include "tests/support/rig.h"

enum { BLOCK = 64, SPAN = 256, CONTEXT = 832, BLOCKS = CONTEXT / BLOCK, KV_HEADS = 2 };

typedef struct attention {
  test_rig rig;
  uint16_t qkv, kv, table, parts;
  uint32_t head_dim, group, splits, spans, heads, span, window;
  bool fp8;
  uint32_t blocks[BLOCKS];
} attention;

/* Random codes that are numbers, and random scales, which need not be powers of two. */
static void fill_fp8(attention *t) {
  const size_t half = BLOCK * (t->head_dim + 2), codes = (size_t)BLOCK * t->head_dim;
  uint8_t *cache = t->rig.memory[t->kv];
  cr_assert_eq(t->rig.program->buffers[t->kv].bytes, (size_t)BLOCKS * KV_HEADS * 2 * half);
  for (size_t i = 0; i < (size_t)BLOCKS * KV_HEADS * 2; i++, cache += half) {
    for (size_t c = 0; c < codes; c++) {
      const uint32_t code = test_random_below(&t->rig.seed, 256);
      cache[c] = (uint8_t)((code & 0x7f) == 0x7f ? code - 1 : code);
    }
    for (size_t token = 0; token < BLOCK; token++) {
      const uint16_t scale = mk_float_to_bf16(test_random_float(&t->rig.seed) / 200);
      memcpy(cache + codes + 2 * token, &scale, sizeof scale);
    }
  }
}

static void set_up_form(attention *t, uint32_t head_dim, uint32_t group, uint32_t splits, uint32_t span, bool fp8) {
  test_rig *rig = &t->rig;
  t->fp8 = fp8;
  t->window = 0;
  test_rig_start(rig, MK_OP_ATTENTION, head_dim * 100 + group * 10 + splits);
  t->head_dim = head_dim, t->group = group, t->splits = splits, t->heads = group * KV_HEADS, t->span = span;
  t->spans = (CONTEXT - 1) / span / splits + 1;
  t->qkv = test_rig_vector(rig, MK_DTYPE_F32, MK_STORE_STAMPED, 1, (t->heads + 2 * KV_HEADS) * head_dim, 16);
  t->kv = test_rig_add(rig, &(mk_buffer){.kind = MK_KIND_KV,
                                         .dtype = fp8 ? MK_DTYPE_E4M3 : MK_DTYPE_BF16,
                                         .store = MK_STORE_BLOCKS,
                                         .scale = fp8 ? MK_SCALE_BF16 : MK_SCALE_NONE,
                                         .scale_cols = (uint8_t)(fp8 ? head_dim : 0),
                                         .head_dim = (uint16_t)head_dim,
                                         .block_tokens = BLOCK,
                                         .span_tokens = span,
                                         .blocks = BLOCKS,
                                         .rows = splits,
                                         .cols = KV_HEADS,
                                         .tile_rows = 1,
                                         .tile_cols = 1});
  t->table = test_rig_vector(rig, MK_DTYPE_U32, MK_STORE_PLAIN, 1, BLOCKS, 16);
  t->parts =
      test_rig_vector(rig, MK_DTYPE_F32, MK_STORE_STAMPED, splits, t->heads * t->spans * (head_dim + 2), head_dim + 2);
  test_rig_fill(rig, t->qkv, 2);
  test_shuffle(&rig->seed, t->blocks, BLOCKS);
  memcpy(rig->memory[t->table], t->blocks, sizeof t->blocks);
  if (fp8) {
    fill_fp8(t);
    return;
  }
  uint16_t *cache = (uint16_t *)(void *)rig->memory[t->kv];
  for (size_t i = 0; i < rig->program->buffers[t->kv].bytes / 2; i++) {
    cache[i] = mk_float_to_bf16(2 * test_random_float(&rig->seed));
  }
}

static void set_up_span(attention *t, uint32_t head_dim, uint32_t group, uint32_t splits, uint32_t span) {
  set_up_form(t, head_dim, group, splits, span, false);
}

static void set_up(attention *t, uint32_t head_dim, uint32_t group, uint32_t splits) {
  set_up_span(t, head_dim, group, splits, SPAN);
}

/* The words of program.h, not mk_block_offset, which is under test. Tiles of K are W[token][dim], of V W[dim][token];
 * the table: element i of lane 4 g + t is W[g + 8 (i / 2 % 2)][2 t + i % 2 + 8 (i / 4)]. */
static size_t block_offset(uint32_t head_dim, uint32_t which, uint32_t token, uint32_t d) {
  uint32_t row = (which == 0 ? token : d) % 16, col = (which == 0 ? d : token) % 16;
  size_t lane = row % 8 * 4 + col % 8 / 2, i = (col >= 8 ? 4u : 0u) + (row >= 8 ? 2u : 0u) + col % 2;
  return (size_t)which * BLOCK * head_dim + (token / 16 * (head_dim / 16) + d / 16) * 256 + lane * 8 + i;
}

/* [block][kv head][K, V] */
static uint16_t *cached(const attention *t, uint32_t head, uint32_t which, uint32_t token, uint32_t d) {
  size_t pair = t->blocks[token / BLOCK] * (size_t)KV_HEADS + head;
  return (uint16_t *)(void *)t->rig.memory[t->kv] + pair * 2 * BLOCK * t->head_dim +
         block_offset(t->head_dim, which, token % BLOCK, d);
}

/* The words of strips.h, not its functions. Sixteen tokens of K, or 32 of V, are steps in the order above, two of which
 * are a line of 512 bytes: a lane has 16, eight of each step, in the order 0 2 1 3 4 6 5 7. */
static uint8_t *code_at(const attention *t, uint32_t head, uint32_t which, uint32_t token, uint32_t d) {
  static const uint32_t order[8] = {0, 2, 1, 3, 4, 6, 5, 7};
  const uint32_t in_block = token % BLOCK, row = (which == 0 ? in_block : d) % 16, col = which == 0 ? d : in_block % 32;
  const size_t half = (size_t)BLOCK * (t->head_dim + 2), pair = t->blocks[token / BLOCK] * (size_t)KV_HEADS + head;
  const size_t run = which == 0 ? in_block / 16 * 16 * t->head_dim : in_block / 32 * 32 * t->head_dim + d / 16 * 512;
  const size_t lane = row % 8 * 4 + col % 8 / 2, e = (col % 16 >= 8 ? 4u : 0u) + (row >= 8 ? 2u : 0u) + col % 2;
  return t->rig.memory[t->kv] + (2 * pair + which) * half + run + col / 32 * 512 + lane * 16 + col / 16 % 2 * 8 +
         order[e];
}

/* Of K tokens 0, 8, 1, 9, ... of sixteen lie side by side, of V they follow each other. */
static uint8_t *scale_at(const attention *t, uint32_t head, uint32_t which, uint32_t token) {
  const uint32_t at = token % BLOCK, place = which == 0 ? at / 16 * 16 + at % 8 * 2 + at / 8 % 2 : at;
  const size_t half = (size_t)BLOCK * (t->head_dim + 2), pair = t->blocks[token / BLOCK] * (size_t)KV_HEADS + head;
  return t->rig.memory[t->kv] + (2 * pair + which) * half + (size_t)BLOCK * t->head_dim + 2 * (size_t)place;
}

static double number_of(uint32_t code) {
  const double size = (code & 127) == 127 ? NAN
                      : (code & 127) < 8  ? ldexp(code & 7, -9)
                                          : ldexp(8 + (code & 7), (int)(code >> 3 & 15) - 10);
  return code < 128 ? size : -size;
}

/* What is read of the cache. */
static float cached_value(const attention *t, uint32_t head, uint32_t which, uint32_t token, uint32_t d) {
  if (!t->fp8) {
    return mk_bf16_to_float(*cached(t, head, which, token, d));
  }
  uint16_t scale;
  memcpy(&scale, scale_at(t, head, which, token), sizeof scale);
  const float product = mk_bf16_to_float(scale) * (float)number_of(*code_at(t, head, which, token, d));
  return mk_bf16_to_float(mk_float_to_bf16(product));
}

static void aim(attention *t, uint32_t head, uint32_t split, uint32_t position) {
  test_rig *rig = &t->rig;
  uint32_t tiles = t->head_dim / 16, heads = t->heads;
  test_rig_operand(rig, MK_SLOT_ATTENTION_q, t->qkv, 0, 1, head * t->group * tiles, t->group * tiles);
  test_rig_operand(rig, MK_SLOT_ATTENTION_k, t->qkv, 0, 1, (heads + head) * tiles, tiles);
  test_rig_operand(rig, MK_SLOT_ATTENTION_v, t->qkv, 0, 1, (heads + KV_HEADS + head) * tiles, tiles);
  test_rig_operand(rig, MK_SLOT_ATTENTION_kv, t->kv, split, 1, head, 1);
  test_rig_whole(rig, MK_SLOT_ATTENTION_table, t->table);
  test_rig_operand(rig, MK_SLOT_ATTENTION_out, t->parts, split, 1, head * t->group * t->spans, t->group * t->spans);
  rig->instruction->params[MK_PARAM_ATTENTION_scale] = mk_float_param(1 / sqrtf((float)t->head_dim));
  rig->instruction->params[MK_PARAM_ATTENTION_splits] = t->splits;
  rig->instruction->params[MK_PARAM_ATTENTION_group] = t->group;
  rig->instruction->params[MK_PARAM_ATTENTION_window] = t->window;
  rig->state.rows[0].position = position;
}

typedef struct part {
  float sum[MK_MAX_HEAD_DIM], m, total;
} part;

/* A sum of products in the order of one chain of mk_matvec's: sixteen running sums. */
static float chain(const float *a, const float *b, uint32_t count) {
  float sums[16] = {0}, total = 0;
  for (uint32_t i = 0; i < count; i++) {
    sums[i % 16] += a[i] * b[i];
  }
  for (uint32_t t = 0; t < 8; t += 2) {
    total += (sums[t] + sums[t + 1]) + (sums[t + 8] + sums[t + 9]);
  }
  return total;
}

static float rounded(float x) { return mk_bf16_to_float(mk_float_to_bf16(x)); }

/* Whether a line at a position sees a token that is not after it. */
static bool sees(const attention *t, uint32_t position, uint32_t token) {
  return t->window == 0 || position - token < t->window;
}

/* Tokens [first, end) of a part of 32, K and V as they lie in the cache; end - 1 is seen by a line at `position`. */
static part block_part(const attention *t, uint32_t head, uint32_t query, uint32_t first, uint32_t end,
                       uint32_t position) {
  const double *from = t->rig.values[t->qkv] + (size_t)(head * t->group + query) * t->head_dim;
  float q[MK_MAX_HEAD_DIM], row[MK_MAX_HEAD_DIM], p[32] = {0}, scale = 1 / sqrtf((float)t->head_dim) * 1.44269504f;
  part result = {.m = -INFINITY};
  for (uint32_t d = 0; d < t->head_dim; d++) {
    q[d] = rounded((float)from[d] * scale);
  }
  for (uint32_t token = first; token < end; token++) {
    for (uint32_t d = 0; d < t->head_dim; d++) {
      row[d] = cached_value(t, head, 0, token, d);
    }
    p[token - first] = chain(q, row, t->head_dim);
    result.m = sees(t, position, token) ? fmaxf(result.m, ceilf(p[token - first])) : result.m;
  }
  for (uint32_t i = 0; i < end - first; i++) {
    p[i] = sees(t, position, first + i) ? rounded((float)exp2((double)(p[i] - result.m))) : 0;
    result.total += p[i];
  }
  for (uint32_t d = 0; d < t->head_dim; d++) {
    for (uint32_t token = first; token < end; token++) {
      row[token - first] = sees(t, position, token) ? cached_value(t, head, 1, token, d) : 0;
    }
    result.sum[d] = chain(row, p, end - first);
  }
  return result;
}

/* sum += other, in the way that parts are added; a sum of total 0 is empty. */
static void add(part *sum, const part *other) {
  if (sum->total == 0) {
    *sum = *other;
    return;
  }
  float m = fmaxf(sum->m, other->m);
  for (uint32_t d = 0; d < MK_MAX_HEAD_DIM; d++) {
    sum->sum[d] = ldexpf(sum->sum[d], (int)(sum->m - m)) + ldexpf(other->sum[d], (int)(other->m - m));
  }
  sum->total = ldexpf(sum->total, (int)(sum->m - m)) + ldexpf(other->total, (int)(other->m - m));
  sum->m = m;
}

/* The part of one query head over the span's tokens: parts of 32 make pieces of 256, and these are added as a tree. */
static part reference(const attention *t, uint32_t head, uint32_t query, uint32_t span, uint32_t position) {
  part pieces[4] = {{.m = -INFINITY}, {.m = -INFINITY}, {.m = -INFINITY}, {.m = -INFINITY}};
  for (uint32_t piece = span * t->span; piece < (span + 1) * t->span && piece <= position; piece += 256) {
    part sum = {.total = 0};
    for (uint32_t first = piece; first < piece + 256 && first <= position; first += 32) {
      const uint32_t end = first + 32 <= position ? first + 32 : position + 1;
      if (sees(t, position, end - 1)) {
        part one = block_part(t, head, query, first, end, position);
        add(&sum, &one);
      }
    }
    if (sum.total != 0) {
      add(&pieces[(piece - span * t->span) / 256], &sum);
    }
  }
  for (uint32_t i = 0; i < 4; i += 2) {
    if (pieces[i + 1].total != 0) {
      add(&pieces[i], &pieces[i + 1]);
    }
  }
  if (pieces[2].total != 0) {
    add(&pieces[0], &pieces[2]);
  }
  return pieces[0];
}

/* The weighted mean of V over the span's tokens, and the logarithm of all weights in base 2, in double precision,
 * without rounding. */
static void exact(const attention *t, uint32_t head, uint32_t query, uint32_t span, uint32_t position, double *want) {
  static double scores[CONTEXT];
  const double *q = t->rig.values[t->qkv] + (size_t)(head * t->group + query) * t->head_dim;
  double max = -INFINITY, total = 0;
  for (uint32_t token = 0; token <= position; token++) {
    scores[token] = 0;
    for (uint32_t d = 0; d < t->head_dim; d++) {
      double rounded_q = (double)rounded((float)q[d] * (1 / sqrtf((float)t->head_dim) * 1.44269504f));
      scores[token] += rounded_q * (double)cached_value(t, head, 0, token, d) * log(2);
    }
    const bool counts = token / t->span == span && sees(t, position, token);
    max = counts && scores[token] > max ? scores[token] : max;
  }
  memset(want, 0, t->head_dim * sizeof *want);
  for (uint32_t token = 0; token <= position; token++) {
    double p = token / t->span == span && sees(t, position, token) ? exp(scores[token] - max) : 0;
    if (p == 0) {
      continue; /* V may be no number there */
    }
    total += p;
    for (uint32_t d = 0; d < t->head_dim; d++) {
      want[d] += p * (double)cached_value(t, head, 1, token, d);
    }
  }
  for (uint32_t d = 0; d < t->head_dim; d++) {
    want[d] /= total;
  }
  want[t->head_dim] = max / log(2) + log2(total);
}

/* The first column of the part of a query head and span. */
static uint32_t part_at(const attention *t, uint32_t head, uint32_t query, uint32_t span) {
  return ((head * t->group + query) * t->spans + span / t->splits) * (t->head_dim + 2);
}

static void expect_part(const attention *t, uint32_t head, uint32_t query, uint32_t span, uint32_t position) {
  uint32_t hd = t->head_dim, first = part_at(t, head, query, span), split = span % t->splits;
  part want = reference(t, head, query, span, position);
  double close[MK_MAX_HEAD_DIM + 1], got[MK_MAX_HEAD_DIM + 1];
  for (uint32_t i = 0; i < hd + 2; i++) {
    float value = (float)test_rig_read(&t->rig, t->parts, split, first + i);
    float wanted = i < hd ? want.sum[i] : i == hd ? want.m : want.total;
    cr_assert_eq(mk_float_param(value), mk_float_param(wanted), "position %u, span %u, query %u: [%u] is %a, not %a",
                 position, span, query, i, (double)value, (double)wanted);
    if (i < hd) {
      got[i] = (double)(value / want.total);
    }
  }
  if (want.total == 0) { /* no token of the span is seen, as the bits have shown */
    return;
  }
  exact(t, head, query, span, position, close);
  test_expect_close("attention: mean of v", got, close, hd, 4e-3); /* p has eight bits: 2^-8 */
  got[hd] = (double)want.m + log2((double)want.total);
  cr_assert_lt(fabs(got[hd] - close[hd]), 6e-3 + 1e-5 * fabs(close[hd]), "weights at %u: 2^%g, not 2^%g", position,
               got[hd], close[hd]);
}

/* Codes and scale of a head: by its definition, one code after the other. */
static void expect_codes(const attention *t, uint8_t *before, uint32_t head, uint32_t which, uint32_t position) {
  const uint8_t *cache = t->rig.memory[t->kv], *scale = scale_at(t, head, which, position);
  const uint32_t at = (t->heads + which * KV_HEADS + head) * t->head_dim;
  double largest = 0, unit = ldexp(1, -117);
  for (uint32_t d = 0; d < t->head_dim; d++) {
    largest = fmax(largest, fabs((double)(float)test_rig_value(&t->rig, t->qkv, 0, at + d)));
  }
  while (largest > 448 * unit) {
    unit *= 2;
  }
  const uint16_t want = largest == 0 ? 0 : mk_float_to_bf16((float)unit);
  cr_assert_eq(memcmp(scale, &want, sizeof want), 0, "scale of head %u at %u: not %a", head, position, unit);
  memcpy(before + (scale - cache), scale, sizeof want);
  for (uint32_t d = 0; d < t->head_dim; d++) {
    const double x = (double)(float)test_rig_value(&t->rig, t->qkv, 0, at + d) / unit;
    const uint8_t *now = code_at(t, head, which, position, d);
    for (uint32_t code = 0; code < 255; code++) { /* none is nearer, and of two that are as near this one is even */
      const double off = fabs(number_of(code) - x), has = fabs(number_of(*now) - x);
      cr_assert(code == 127 || off > has || (off == has && (*now % 2 == 0 || number_of(code) == number_of(*now))),
                "%g became %g", x, number_of(*now));
    }
    before[now - cache] = *now;
  }
}

/* The cache after the run is the cache before it, but for the newest token of this head where `appended`. */
static void expect_cache(const attention *t, uint16_t *before, uint32_t head, uint32_t position, bool appended) {
  const test_rig *rig = &t->rig;
  for (uint32_t which = 0; which < 2 && appended && t->fp8; which++) {
    expect_codes(t, (uint8_t *)before, head, which, position);
  }
  const uint16_t *cache = (const uint16_t *)(const void *)rig->memory[t->kv];
  for (uint32_t which = 0; which < 2 && appended && !t->fp8; which++) {
    uint32_t at = (t->heads + which * KV_HEADS + head) * t->head_dim;
    for (uint32_t d = 0; d < t->head_dim; d++) {
      uint16_t *now = cached(t, head, which, position, d);
      cr_assert_eq(*now, mk_float_to_bf16((float)test_rig_value(rig, t->qkv, 0, at + d)));
      before[now - cache] = *now;
    }
  }
  cr_assert_eq(memcmp(before, cache, rig->program->buffers[t->kv].bytes), 0, "other tokens of the cache changed");
}

static void run(attention *t, uint32_t head, uint32_t split, uint32_t position) {
  test_rig *rig = &t->rig;
  aim(t, head, split, position);
  size_t bytes = rig->program->buffers[t->kv].bytes;
  uint16_t *before;
  cr_assert_eq(mk_alloc(bytes, 1, &before), MK_OK);
  memcpy(before, rig->memory[t->kv], bytes);
  rig->publish++; /* what an earlier run wrote does not count */
  test_rig_expect_waits(rig, 1);
  test_rig_expect_done(rig);
  bool idle = split > position / t->span;
  cr_assert_eq(rig->rows_used[MK_SLOT_ATTENTION_out], !idle);
  cr_assert_eq(rig->rows_used[MK_SLOT_ATTENTION_kv], !idle);
  cr_assert_eq(rig->rows_used[MK_SLOT_ATTENTION_q], 1);
  expect_cache(t, before, head, position, position / t->span % t->splits == split);
  mk_free(before);
  for (uint32_t query = 0; query < t->group; query++) {
    for (uint32_t span = split; span < t->spans * t->splits; span += t->splits) {
      if (span <= position / t->span) {
        expect_part(t, head, query, span, position);
      } else {
        cr_assert_neq(*test_rig_word(rig, t->parts, split, part_at(t, head, query, span)) >> 32, rig->publish,
                      "a span beyond the position was written");
      }
    }
  }
}

Test(attention, block_offset_is_the_layout_of_the_header) {
  static uint8_t seen[2 * BLOCK * 128];
  for (uint32_t head_dim = 64; head_dim <= 128; head_dim += 64) {
    memset(seen, 0, sizeof seen);
    for (uint32_t i = 0; i < 2 * BLOCK * head_dim; i++) {
      uint32_t which = i / (BLOCK * head_dim), token = i / head_dim % BLOCK, d = i % head_dim;
      uint64_t at = mk_block_offset(BLOCK, head_dim, which, token, d);
      cr_assert_eq(at, block_offset(head_dim, which, token, d), "which %u, token %u, dim %u", which, token, d);
      cr_assert_lt(at, 2 * BLOCK * head_dim);
      cr_assert_eq(seen[at]++, 0, "two elements at %llu", (unsigned long long)at);
    }
  }
}

static void expect_definition(bool fp8) {
  static const uint32_t positions[] = {0, 1, 63, 64, 200, 255, 256, 319, 511, 512, 699, 768, CONTEXT - 1};
  static const uint32_t shapes[][3] = {{64, 1, 1},  {64, 2, 4},  {64, 4, 2},  {64, 8, 3}, {128, 1, 3},
                                       {128, 3, 4}, {128, 8, 2}, {256, 2, 3}, {256, 4, 1}};
  for (size_t s = 0; s < sizeof shapes / sizeof shapes[0] && (!fp8 || shapes[s][0] != 256); s++) {
    attention t;
    set_up_form(&t, shapes[s][0], shapes[s][1], shapes[s][2], SPAN, fp8);
    for (size_t p = 0; p < sizeof positions / sizeof positions[0]; p++) {
      for (uint32_t split = 0; split < t.splits; split++) {
        run(&t, (uint32_t)(p + split) % KV_HEADS, split, positions[p]);
      }
    }
    test_rig_stop(&t.rig);
  }
}

Test(attention, has_the_bits_of_its_definition) { expect_definition(false); }
Test(attention, has_the_bits_of_its_definition_in_fp8) { expect_definition(true); }

/* Spans of 2 to 16 rows: several pieces, and several spans of a split. */
Test(attention, long_spans_go_in_pieces) {
  static const uint32_t positions[] = {0, 255, 256, 511, 512, 600, 767, CONTEXT - 1};
  for (uint32_t splits = 1; splits <= 2; splits++) {
    attention t;
    set_up_span(&t, splits * 64, 2, splits, 512);
    for (size_t p = 0; p < sizeof positions / sizeof positions[0]; p++) {
      run(&t, (uint32_t)p % KV_HEADS, (uint32_t)p % splits, positions[p]);
    }
    test_rig_stop(&t.rig);
  }
  attention t;
  set_up_span(&t, 64, 1, 1, 1024);
  run(&t, 0, 0, CONTEXT - 1);
  test_rig_stop(&t.rig);
}

/* Tokens beyond the position are never looked at: the cache is not cleared between sequences. */
Test(attention, later_tokens_do_not_matter) {
  attention t;
  set_up(&t, 64, 2, 2);
  for (uint32_t token = 301; token < CONTEXT; token++) {
    for (uint32_t d = 0; d < 64; d++) {
      *cached(&t, 0, 0, token, d) = *cached(&t, 0, 1, token, d) = 0x7fc0;
    }
  }
  run(&t, 0, 0, 300);
  run(&t, 0, 1, 300);
  test_rig_stop(&t.rig);
}

Test(attention, later_tokens_do_not_matter_in_fp8) {
  attention t;
  set_up_form(&t, 128, 2, 2, SPAN, true);
  for (uint32_t token = 301; token < CONTEXT; token++) {
    for (uint32_t d = 0; d < 128; d++) {
      *code_at(&t, 0, 0, token, d) = *code_at(&t, 0, 1, token, d) = 0x7f;
    }
    memset(scale_at(&t, 0, token % 2, token), 0x7f, 2);
  }
  run(&t, 0, 0, 300);
  run(&t, 0, 1, 300);
  test_rig_stop(&t.rig);
}

/* Of the last tokens K is all zeros, and V the largest and the smallest that there is. */
/* Windows that begin within a part, at its end, at the end of a span, with the first token, and with the newest one. */
static void expect_windows(bool fp8) {
  static const uint32_t windows[] = {1, 2, 31, 32, 33, 64, 100, 256, 257, 300, 511, CONTEXT};
  static const uint32_t positions[] = {0, 31, 32, 99, 255, 256, 300, 511, 600, CONTEXT - 1};
  static const uint32_t shapes[][4] = {
      {64, 2, 4, SPAN}, {128, 1, 3, SPAN}, {64, 3, 1, SPAN}, {64, 1, 2, 512}, {256, 2, 2, SPAN}};
  for (size_t s = 0; s < sizeof shapes / sizeof shapes[0] && (!fp8 || shapes[s][0] != 256); s++) {
    attention t;
    set_up_form(&t, shapes[s][0], shapes[s][1], shapes[s][2], shapes[s][3], fp8);
    for (size_t w = 0; w < sizeof windows / sizeof windows[0]; w++) {
      t.window = windows[w];
      for (size_t p = 0; p < sizeof positions / sizeof positions[0]; p++) {
        for (uint32_t split = 0; split < t.splits; split++) {
          run(&t, (uint32_t)(p + split) % KV_HEADS, split, positions[p]);
        }
      }
    }
    test_rig_stop(&t.rig);
  }
}

Test(attention, windows) { expect_windows(false); }
Test(attention, windows_in_fp8) { expect_windows(true); }

/* Nor are tokens before the window, also where a part holds both, and whole splits hold nothing else. */
Test(attention, tokens_before_the_window_do_not_matter) {
  attention t;
  set_up(&t, 64, 2, 3);
  t.window = 250;
  for (uint32_t token = 0; token <= 580 - 250; token++) {
    for (uint32_t d = 0; d < 64; d++) {
      *cached(&t, 0, 0, token, d) = *cached(&t, 0, 1, token, d) = 0x7fc0;
    }
  }
  for (uint32_t split = 0; split < 3; split++) {
    run(&t, 0, split, 580);
  }
  test_rig_stop(&t.rig);
}

Test(attention, corner_values_in_fp8) {
  static const float corners[] = {3e38f, -3e38f, 1e-38f, -1e-45f, 448, 449, -0.0f, 1e-6f};
  attention t;
  set_up_form(&t, 64, 1, 1, SPAN, true);
  test_rig *rig = &t.rig;
  for (size_t scale = 0; scale < 4; scale++) {
    for (uint32_t d = 0; d < 64; d++) {
      const uint32_t k = t.heads * 64 + d, v = (t.heads + KV_HEADS) * 64 + d;
      const float value = corners[scale == 0 ? d % 8 : 2 * (scale - 1) + 2 + d % 2] * (scale == 0 ? 0x1p-40f : 1);
      test_rig_set(rig, t.qkv, 0, k, d % 2 == 0 ? 0.0f : -0.0f);
      test_rig_set(rig, t.qkv, 0, v, value);
    }
    run(&t, 0, 0, (uint32_t)(40 + scale));
  }
  test_rig_stop(&t.rig);
}

Test(attention, large_scores_do_not_overflow) {
  attention t;
  set_up(&t, 64, 2, 2);
  test_rig_fill(&t.rig, t.qkv, 3000);
  run(&t, 1, 0, 600);
  run(&t, 1, 1, 600);
  test_rig_stop(&t.rig);
}

Test(attention, not_a_number_is_not_hidden) {
  attention t;
  set_up(&t, 64, 1, 1);
  *cached(&t, 0, 0, 17, 3) = 0x7fc0;
  aim(&t, 0, 0, 600);
  test_rig_expect_done(&t.rig);
  for (uint32_t i = 0; i < 66; i++) {
    cr_assert(isnan(test_rig_read(&t.rig, t.parts, 0, i)), "element %u", i);
  }
  test_rig_stop(&t.rig);
}

/* Neither where it is in the cache, nor where it comes to it, as an infinity does. */
Test(attention, not_a_number_is_not_hidden_in_fp8) {
  attention t;
  set_up_form(&t, 64, 1, 1, SPAN, true);
  *code_at(&t, 0, 0, 17, 3) = 0xff;
  aim(&t, 0, 0, 600);
  test_rig_expect_done(&t.rig);
  for (uint32_t i = 0; i < 66; i++) {
    cr_assert(isnan(test_rig_read(&t.rig, t.parts, 0, i)), "element %u", i);
  }
  test_rig_stop(&t.rig);
  set_up_form(&t, 64, 1, 1, SPAN, true);
  test_rig_set(&t.rig, t.qkv, 0, (t.heads + KV_HEADS) * 64 + 5, INFINITY);
  aim(&t, 0, 0, 600);
  test_rig_expect_done(&t.rig);
  for (uint32_t i = 0; i < 66; i++) {
    cr_assert_eq(isnan(test_rig_read(&t.rig, t.parts, 0, part_at(&t, 0, 0, 600 / SPAN) + i)), i == 5, "element %u", i);
  }
  test_rig_stop(&t.rig);
}
