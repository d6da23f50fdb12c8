/* HEAD: logits against double precision, and the candidate among them. */
#include <criterion/criterion.h>
#include <math.h>

#include "tests/support/numbers.h"
#include "tests/support/rig.h"

enum { SMS = 3, ROW = 1 };
static const float eps = 1e-5f;

typedef struct head {
  test_rig rig;
  uint16_t x, gain, weight, logits, candidates;
  uint32_t width, vocab;
} head;

static void set_up(head *t, uint32_t width, uint32_t vocab, uint32_t first, uint32_t count) {
  test_rig *rig = &t->rig;
  test_rig_start(rig, MK_OP_HEAD, width + vocab);
  t->width = width, t->vocab = vocab;
  uint32_t padded = (width + 15) / 16 * 16, rows = (vocab + 15) / 16 * 16;
  t->x = test_rig_vector(rig, MK_DTYPE_BF16, MK_STORE_STAMPED, 1, padded, 16);
  t->gain = test_rig_vector(rig, MK_DTYPE_BF16, MK_STORE_PLAIN, 1, width, 16);
  t->weight = test_rig_weight(rig, rows, width);
  t->logits = test_rig_vector(rig, MK_DTYPE_F32, MK_STORE_PLAIN, 1, vocab, 16);
  t->candidates = test_rig_vector(rig, MK_DTYPE_U32, MK_STORE_STAMPED, SMS, 2, 2);
  test_rig_fill(rig, t->x, 1);
  for (uint32_t col = width; col < padded; col++) {
    test_rig_set(rig, t->x, 0, col, 0);
  }
  test_rig_fill(rig, t->gain, 1);
  test_rig_whole(rig, MK_SLOT_HEAD_x, t->x);
  test_rig_whole(rig, MK_SLOT_HEAD_gain, t->gain);
  test_rig_operand(rig, MK_SLOT_HEAD_weight, t->weight, first, count, 0, count == 0 ? 0 : padded / 16);
  test_rig_operand(rig, MK_SLOT_HEAD_logits, t->logits, 0, count == 0 ? 0 : 1, first, count);
  test_rig_operand(rig, MK_SLOT_HEAD_candidate, t->candidates, ROW, 1, 0, 1);
  rig->instruction->params[MK_PARAM_HEAD_eps] = mk_float_param(eps);
  rig->instruction->params[MK_PARAM_HEAD_width] = width;
  rig->instruction->params[MK_PARAM_HEAD_vocab] = vocab;
  rig->state.rows[0] = (mk_step_row){.position = 4, .flags = MK_ROW_ACTIVE | MK_ROW_CHOOSES};
}

static uint32_t candidate(head *t, float *value) {
  uint64_t bits = *test_rig_word(&t->rig, t->candidates, ROW, 0),
           index = *test_rig_word(&t->rig, t->candidates, ROW, 1);
  cr_assert_eq(bits >> 32, t->rig.publish);
  cr_assert_eq(index >> 32, t->rig.publish);
  *value = mk_param_float((uint32_t)bits);
  return (uint32_t)index;
}

Test(head, equals_double_precision) {
  static const uint32_t shapes[][4] = {
      {64, 100, 0, 7}, {64, 100, 6, 1}, {200, 333, 3, 18}, {17, 16, 0, 1}, {256, 512, 9, 5}};
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    head t;
    const uint32_t *s = shapes[i];
    set_up(&t, s[0], s[1], s[2], s[3]);
    test_rig *rig = &t.rig;
    const float plus = i % 2 != 0 ? 1.0f : 0.0f;
    double gain[256];
    for (uint32_t k = 0; k < t.width; k++) {
      gain[k] = (double)(plus + (float)rig->values[t.gain][k]);
    }
    rig->instruction->params[MK_PARAM_HEAD_plus] = mk_float_param(plus);
    test_rig_expect_waits(rig, 1);
    test_rig_expect_done(rig);
    uint32_t first = s[2] * 16, end = (s[2] + s[3]) * 16 < s[1] ? (s[2] + s[3]) * 16 : s[1], best = first;
    double norm = test_rig_norm(rig->values[t.x], t.width, (double)eps), want[512], got[512];
    for (uint32_t row = first; row < end; row++) {
      want[row - first] = norm * test_rig_product(rig, t.weight, row, 0, t.width, rig->values[t.x], gain);
      got[row - first] = test_rig_read(rig, t.logits, 0, row);
      best = got[row - first] > got[best - first] ? row : best;
    }
    test_expect_close("head", got, want, end - first, 1e-5);
    float value;
    cr_assert_eq(candidate(&t, &value), best);
    cr_assert((double)value == got[best - first]);
    test_rig_stop(rig);
  }
}

/* The sum of the squares of x as the norm has it, written the long way: by places of an array for every name that the
 * order has. */
static float squares_in_order(const head *t) {
  float e[64][8][8], E[8], F[4], q[64], sum = 0; /* e: [chain][step][pair] */
  memset(e, 0, sizeof e);
  for (uint32_t i = 0; i < t->width; i += 2) {
    float lo = (float)t->rig.values[t->x][i], hi = i + 1 < t->width ? (float)t->rig.values[t->x][i + 1] : 0;
    e[i / 128][i % 128 / 16][i % 16 / 2] = lo * lo + hi * hi;
  }
  for (uint32_t chain = 0; chain < 64; chain++) {
    for (uint32_t k = 0; k < 8; k++) {
      float e01 = e[chain][0][k] + e[chain][1][k], e23 = e[chain][2][k] + e[chain][3][k];
      float e45 = e[chain][4][k] + e[chain][5][k], e67 = e[chain][6][k] + e[chain][7][k];
      E[k] = (e01 + e23) + (e45 + e67);
    }
    for (uint32_t i = 0; i < 4; i++) {
      F[i] = E[i] + E[i + 4];
    }
    q[chain] = (F[0] + F[2]) + (F[1] + F[3]);
  }
  for (uint32_t i = 0; i < 64; i += 8) {
    sum += ((q[i] + q[i + 1]) + (q[i + 2] + q[i + 3])) + ((q[i + 4] + q[i + 5]) + (q[i + 6] + q[i + 7]));
  }
  return sum;
}

/* A weight of ones in a diagonal: each logit is one element of x * gain, rounded to bf16, times the scale. */
Test(head, norm_has_the_bits_of_its_definition) {
  static const uint32_t widths[] = {1, 16, 17, 127, 128, 129, 1000, 1024, 1040, 2050, 8192};
  uint32_t others = 0;
  for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++) {
    head t;
    test_rig *rig = &t.rig;
    uint32_t first = widths[i] < 16 ? 0 : widths[i] - 16;
    set_up(&t, widths[i], 16, 0, 1);
    for (uint32_t row = 0; row < 16; row++) {
      for (uint32_t col = 0; col < t.width; col++) {
        test_rig_set(rig, t.weight, row, col, col == first + row ? 1 : 0);
      }
    }
    test_rig_expect_done(rig);
    float sum = squares_in_order(&t), plain = 0;
    float scale = 1.0f / sqrtf(sum * (1.0f / (float)t.width) + eps);
    for (uint32_t k = 0; k < t.width; k++) {
      plain += (float)(rig->values[t.x][k] * rig->values[t.x][k]);
    }
    others += plain != sum;
    for (uint32_t row = 0; row < 16 && first + row < t.width; row++) {
      double product = rig->values[t.x][first + row] * rig->values[t.gain][first + row];
      float want = mk_bf16_to_float(mk_float_to_bf16((float)product)) * scale;
      float got = (float)test_rig_read(rig, t.logits, 0, row);
      cr_assert_eq(mk_float_param(got), mk_float_param(want), "width %u: element %u is %a, not %a", t.width,
                   first + row, (double)got, (double)want);
    }
    test_rig_stop(rig);
  }
  cr_assert_gt(others, 3, "the order decides about no bits here");
}

static void copy_row(head *t, uint32_t from, uint32_t to) {
  for (uint32_t col = 0; col < t->width; col++) {
    test_rig_set(&t->rig, t->weight, to, col, (float)test_rig_value(&t->rig, t->weight, from, col));
  }
}

Test(head, ties_go_to_the_lowest_index) {
  head t;
  set_up(&t, 64, 96, 0, 6);
  float value, again;
  test_rig_expect_done(&t.rig);
  uint32_t best = candidate(&t, &value);
  uint32_t other = best >= 50 ? 3 : 90;
  copy_row(&t, best, other);
  copy_row(&t, best, other + 2);
  test_rig_expect_done(&t.rig);
  cr_assert_eq(candidate(&t, &again), best < other ? best : other);
  cr_assert(value == again);
  test_rig_stop(&t.rig);
}

Test(head, not_a_number_ranks_above_all_numbers) {
  head t;
  set_up(&t, 64, 96, 0, 6);
  test_rig_set(&t.rig, t.weight, 77, 5, NAN);
  test_rig_set(&t.rig, t.weight, 41, 63, NAN);
  test_rig_set(&t.rig, t.weight, 3, 0, INFINITY);
  float value;
  test_rig_expect_done(&t.rig);
  cr_assert_eq(candidate(&t, &value), 41);
  cr_assert(isnan(value));
  test_rig_stop(&t.rig);
}

Test(head, minus_infinity_everywhere_still_names_a_row) {
  head t;
  set_up(&t, 16, 32, 0, 2);
  for (uint32_t row = 0; row < 32; row++) {
    test_rig_set(&t.rig, t.weight, row, 0,
                 test_rig_value(&t.rig, t.x, 0, 0) * test_rig_value(&t.rig, t.gain, 0, 0) > 0 ? -INFINITY : INFINITY);
  }
  float value;
  test_rig_expect_done(&t.rig);
  cr_assert_eq(candidate(&t, &value), 0);
  cr_assert(isinf(value) && value < 0);
  test_rig_stop(&t.rig);
}

static void expect_empty(head *t) {
  float value;
  test_rig_expect_done(&t->rig);
  cr_assert_eq(candidate(t, &value), MK_CANDIDATE_NONE);
  cr_assert(isinf(value) && value < 0);
}

Test(head, no_rows_give_an_empty_candidate) {
  head t;
  set_up(&t, 200, 96, 0, 0);
  test_rig_expect_waits(&t.rig, 1);
  expect_empty(&t);
  test_rig_stop(&t.rig);
}

Test(head, inside_the_prompt_only_an_empty_candidate_is_written) {
  head t;
  set_up(&t, 64, 96, 0, 6);
  t.rig.state.rows[0].flags = MK_ROW_ACTIVE;
  test_rig_expect_waits(&t.rig, 1);
  expect_empty(&t);
  for (uint32_t row = 0; row < 96; row++) {
    cr_assert(test_rig_read(&t.rig, t.logits, 0, row) == 0);
  }
  test_rig_stop(&t.rig);
}
