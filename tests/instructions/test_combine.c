/* COMBINE against double precision; spans that are not in use are neither waited for nor read. */
#include <criterion/criterion.h>
#include <math.h>

#include "tests/support/numbers.h"
#include "tests/support/rig.h"

enum { SPAN = 256, HEADS = 6 };

typedef struct combine {
  test_rig rig;
  uint16_t parts, out;
  uint32_t head_dim, first, count, splits, spans;
} combine;

/* Row and column of element d of a span's part. */
static uint32_t row_of(const combine *t, uint32_t span) { return span % t->splits; }
static uint32_t col_of(const combine *t, uint32_t head, uint32_t span, uint32_t d) {
  return (head * t->spans + span / t->splits) * (t->head_dim + 2) + d;
}

static void set_up_spans(combine *t, uint32_t head_dim, uint32_t splits, uint32_t spans, uint32_t first,
                         uint32_t count) {
  test_rig *rig = &t->rig;
  test_rig_start(rig, MK_OP_COMBINE, head_dim + splits * 7 + count);
  t->head_dim = head_dim, t->first = first, t->count = count, t->splits = splits, t->spans = spans;
  t->parts = test_rig_vector(rig, MK_DTYPE_F32, MK_STORE_STAMPED, splits, HEADS * spans * (head_dim + 2), head_dim + 2);
  t->out = test_rig_vector(rig, MK_DTYPE_BF16, MK_STORE_STAMPED, 1, HEADS * head_dim, 16);
  test_rig_fill(rig, t->parts, 4);
  for (uint32_t span = 0; span < splits * spans; span++) {
    for (uint32_t head = 0; head < HEADS; head++) {
      const uint32_t row = row_of(t, span), at = col_of(t, head, span, head_dim);
      test_rig_set(rig, t->parts, row, at, roundf(20 * test_random_float(&rig->seed)));
      test_rig_set(rig, t->parts, row, at + 1, 1 + 250 * fabsf(test_random_float(&rig->seed)));
    }
  }
  test_rig_operand(rig, MK_SLOT_COMBINE_parts, t->parts, 0, splits, first * spans, count * spans);
  test_rig_operand(rig, MK_SLOT_COMBINE_out, t->out, 0, 1, first * head_dim / 16, count * head_dim / 16);
  rig->instruction->params[MK_PARAM_COMBINE_span] = SPAN;
  rig->instruction->params[MK_PARAM_COMBINE_spans] = spans;
}

static void set_up(combine *t, uint32_t head_dim, uint32_t splits, uint32_t first, uint32_t count) {
  set_up_spans(t, head_dim, splits, 1, first, count);
}

/* It waits for the parts of each span in use. */
static void expect_waits(combine *t, uint32_t in_use) {
  for (uint32_t span = 0; span < in_use; span++) {
    const uint32_t head = t->first + test_random_below(&t->rig.seed, t->count);
    const uint32_t col = col_of(t, head, span, test_random_below(&t->rig.seed, t->head_dim + 2));
    uint64_t *word = test_rig_word(&t->rig, t->parts, row_of(t, span), col), good = *word;
    *word = (uint64_t)(t->rig.generation - 1) << 32 | (uint32_t)good;
    cr_assert_eq(test_rig_run(&t->rig), MK_REFERENCE_WAIT, "span %u of %u is late", span, in_use);
    *word = good;
  }
}

/* Runs it, and looks at columns [from, end) of each head. */
static void run_columns(combine *t, uint32_t position, uint32_t from, uint32_t end) {
  test_rig *rig = &t->rig;
  uint32_t most = t->splits * t->spans, in_use = position / SPAN + 1;
  in_use = in_use < most ? in_use : most;
  rig->state.rows[0].position = position;
  for (uint32_t span = in_use; span < most; span++) {
    *test_rig_word(rig, t->parts, row_of(t, span), col_of(t, t->first, span, 3)) = 0; /* stale: nobody wrote it */
  }
  if (t->spans == 1) {
    test_rig_expect_waits(rig, in_use);
  }
  expect_waits(t, in_use);
  test_rig_expect_done(rig);
  cr_assert_eq(rig->rows_used[MK_SLOT_COMBINE_parts], in_use < t->splits ? in_use : t->splits);
  for (uint32_t head = t->first; head < t->first + t->count; head++) {
    double max = -INFINITY, total = 0, want[MK_MAX_HEAD_DIM] = {0}, got[MK_MAX_HEAD_DIM];
    for (uint32_t span = 0; span < in_use; span++) {
      max = fmax(max, test_rig_value(rig, t->parts, row_of(t, span), col_of(t, head, span, t->head_dim)));
    }
    for (uint32_t span = 0; span < in_use; span++) {
      const uint32_t row = row_of(t, span);
      double factor = exp2(test_rig_value(rig, t->parts, row, col_of(t, head, span, t->head_dim)) - max);
      total += factor * test_rig_value(rig, t->parts, row, col_of(t, head, span, t->head_dim + 1));
      for (uint32_t d = 0; d < t->head_dim; d++) {
        want[d] += factor * test_rig_value(rig, t->parts, row, col_of(t, head, span, d));
      }
    }
    for (uint32_t d = from; d < end; d++) {
      want[d] /= total;
      got[d] = test_rig_read(rig, t->out, 0, head * t->head_dim + d);
    }
    test_expect_bf16("combine", got + from, want + from, end - from, 1e-5);
  }
}

static void run(combine *t, uint32_t position) { run_columns(t, position, 0, t->head_dim); }

Test(combine, equals_double_precision) {
  static const uint32_t positions[] = {0, 255, 256, 511, 512, 767, 768, 5000};
  for (uint32_t splits = 1; splits <= 9; splits += 2) {
    for (uint32_t shape = 0; shape < 3; shape++) {
      for (size_t p = 0; p < sizeof positions / sizeof positions[0]; p++) {
        combine t;
        set_up(&t, shape == 0 ? 64 : 128 * shape, splits, shape, shape == 0 ? HEADS : shape);
        run(&t, positions[p]);
        test_rig_stop(&t.rig);
      }
    }
  }
}

/* Spans of a split lie beside one another; and of one head some columns are made. */
Test(combine, several_spans_of_a_split) {
  static const uint32_t positions[] = {0, 767, 768, 1023, 1024, 3071, 3072, 5000};
  for (uint32_t splits = 1; splits <= 4; splits++) {
    for (size_t p = 0; p < sizeof positions / sizeof positions[0]; p++) {
      combine t;
      set_up_spans(&t, 64, splits, 5, 1, 3);
      run(&t, positions[p]);
      test_rig_stop(&t.rig);
      set_up_spans(&t, 128, splits, 5, 2, 1);
      test_rig_operand(&t.rig, MK_SLOT_COMBINE_out, t.out, 0, 1, 2 * 128 / 16 + 2, 4);
      run_columns(&t, positions[p], 32, 96);
      test_rig_stop(&t.rig);
    }
  }
}

/* 1 is lost beside 2^24, 1 + 1 is not: splits of 256 tokens are added as trees of sixteen, those of 1,024 as trees of
 * four, and trees one after the other. */
static void expect_order(uint32_t span, const float *sums, uint32_t count, float want) {
  combine t;
  set_up(&t, 64, count, 1, 2);
  for (uint32_t split = 0; split < count; split++) {
    for (uint32_t i = 0; i < HEADS * 66; i++) {
      /* Each split has an m of its own, and the larger ones of it are smaller sums. */
      float m = (float)(split % 3), scale = exp2f(-m);
      test_rig_set(&t.rig, t.parts, split, i, i % 66 == 64 ? m : i % 66 == 65 ? scale : sums[split] * scale);
    }
  }
  t.rig.instruction->params[MK_PARAM_COMBINE_span] = span;
  t.rig.state.rows[0].position = span * count - 1;
  test_rig_expect_done(&t.rig);
  for (uint32_t d = 0; d < 128; d++) {
    float got = (float)test_rig_read(&t.rig, t.out, 0, 64 + d),
          mean = mk_bf16_to_float(mk_float_to_bf16(want / (float)count));
    cr_assert_eq(got, mean, "span %u, element %u: %a, not %a", span, d, (double)got, (double)mean);
  }
  test_rig_stop(&t.rig);
}

Test(combine, order_of_splits) {
  static const float sixteen[] = {0x1p24f, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, -0x1p24f};
  static const float four[] = {0x1p24f, 1, 1, 1, -0x1p24f};
  expect_order(256, sixteen, 17, 2);
  expect_order(64, sixteen, 17, 2);
  expect_order(1024, sixteen, 17, 0);
  expect_order(1024, four, 5, 2);
  expect_order(256, four, 5, 2);
}

Test(combine, not_a_number_is_not_hidden) {
  combine t;
  set_up(&t, 64, 3, 0, 1);
  test_rig_set(&t.rig, t.parts, 1, 64, NAN);
  t.rig.state.rows[0].position = 5000;
  test_rig_expect_done(&t.rig);
  for (uint32_t d = 0; d < 64; d++) {
    cr_assert(isnan(test_rig_read(&t.rig, t.out, 0, d)));
  }
  test_rig_stop(&t.rig);
}

/* Splits that see no token through a window leave m = -inf and zeros, and change nothing, wherever they stand. */
Test(combine, splits_without_tokens) {
  for (uint32_t seen = 1; seen < 31; seen += 3) { /* a bit for each of five splits */
    combine t;
    set_up(&t, 64, 5, 0, HEADS);
    for (uint32_t i = 0; i < 5 * HEADS * 66; i++) {
      const uint32_t at = i % (HEADS * 66);
      if ((seen >> i / (HEADS * 66) & 1) == 0) {
        test_rig_set(&t.rig, t.parts, i / (HEADS * 66), at, at % 66 == 64 ? -INFINITY : 0);
      }
    }
    run(&t, 5000);
    test_rig_stop(&t.rig);
  }
}
