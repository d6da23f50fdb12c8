/* QKV against double precision: norm, product, and the rotation of the heads' pairs. */
#include <criterion/criterion.h>
#include <math.h>

#include "tests/support/numbers.h"
#include "tests/support/rig.h"

typedef struct shape {
  uint32_t width, heads, kv_heads, head_dim;
  bool token_row; /* x is the embedding row of the token */
  float plus;
} shape;

typedef struct qkv {
  test_rig rig;
  uint16_t x, gain, weight, frequencies, out;
  uint32_t rows, rotated;
} qkv;

enum { VOCAB = 37 };
static const float eps = 1e-5f;

static void set_up(qkv *t, const shape *s, uint64_t seed) {
  test_rig *rig = &t->rig;
  test_rig_start(rig, MK_OP_QKV, seed);
  t->rows = (s->heads + 2 * s->kv_heads) * s->head_dim;
  t->rotated = (s->heads + s->kv_heads) * s->head_dim;
  uint32_t padded = (s->width + 15) / 16 * 16;
  t->x = s->token_row ? test_rig_weight(rig, VOCAB, s->width)
                      : test_rig_vector(rig, MK_DTYPE_BF16, MK_STORE_STAMPED, 1, padded, 16);
  t->gain = test_rig_vector(rig, MK_DTYPE_BF16, MK_STORE_PLAIN, 1, s->width, 16);
  t->weight = test_rig_weight(rig, t->rows, s->width);
  t->frequencies = test_rig_vector(rig, MK_DTYPE_F32, MK_STORE_PLAIN, 1, s->head_dim / 2, 16);
  t->out = test_rig_vector(rig, MK_DTYPE_F32, MK_STORE_STAMPED, 1, t->rows, 16);
  test_rig_fill(rig, t->x, 2);
  for (uint32_t i = s->width; i < padded && !s->token_row; i++) {
    test_rig_set(rig, t->x, 0, i, 0);
  }
  test_rig_fill(rig, t->gain, 1.5f);
  for (uint32_t i = 0; i < s->head_dim / 2; i++) {
    test_rig_set(rig, t->frequencies, 0, i, powf(10000, -2.0f * (float)i / (float)s->head_dim));
  }
  test_rig_whole(rig, MK_SLOT_QKV_x, t->x);
  if (s->token_row) {
    test_rig_token_row(rig, MK_SLOT_QKV_x, t->x, 0, padded / 16);
  }
  test_rig_whole(rig, MK_SLOT_QKV_gain, t->gain);
  test_rig_whole(rig, MK_SLOT_QKV_inv_freq, t->frequencies);
  uint32_t *params = rig->instruction->params;
  params[MK_PARAM_QKV_eps] = mk_float_param(eps);
  params[MK_PARAM_QKV_width] = s->width;
  params[MK_PARAM_QKV_rope_tiles] = t->rotated / 16;
  params[MK_PARAM_QKV_head_dim] = s->head_dim;
  params[MK_PARAM_QKV_plus] = mk_float_param(s->plus);
}

/* Packed row of dimension d of a head: tile u holds dims [8 u, 8 u + 8), then their partners half a head further. */
static uint32_t packed(uint32_t head, uint32_t head_dim, uint32_t d) {
  uint32_t half = d >= head_dim / 2, i = d % (head_dim / 2);
  return head * head_dim + i / 8 * 16 + half * 8 + i % 8;
}

static void reference(const qkv *t, const shape *s, double *want) {
  const test_rig *rig = &t->rig;
  double x[512], gain[512];
  for (uint32_t i = 0; i < s->width; i++) {
    x[i] = test_rig_value(rig, t->x, s->token_row ? rig->state.rows[0].token : 0, i);
    gain[i] = (double)(s->plus + (float)test_rig_value(rig, t->gain, 0, i));
  }
  double scale = test_rig_norm(x, s->width, (double)eps);
  for (uint32_t row = 0; row < t->rows; row++) {
    want[row] = scale * test_rig_product(rig, t->weight, row, 0, s->width, x, gain);
  }
  for (uint32_t head = 0; head < s->heads + s->kv_heads; head++) {
    for (uint32_t d = 0; d < s->head_dim / 2; d++) {
      uint32_t low = packed(head, s->head_dim, d), high = packed(head, s->head_dim, d + s->head_dim / 2);
      /* The angle is a product of two fp32 numbers in fp32, as transformers has it. */
      float angle = (float)rig->state.rows[0].position * (float)test_rig_value(rig, t->frequencies, 0, d);
      /* NOLINTNEXTLINE(clang-analyzer-core.uninitialized.Assign): each row of a head is one of all rows, above */
      double c = cos((double)angle), sine = sin((double)angle), a = want[low], b = want[high];
      want[low] = a * c - b * sine;
      want[high] = b * c + a * sine;
    }
  }
}

static const shape shapes[] = {{48, 2, 1, 64, false, 0},   {200, 3, 1, 64, false, 0}, {65, 1, 1, 128, false, 0},
                               {256, 4, 2, 64, true, 0},   {71, 2, 2, 128, true, 0},  {16, 1, 1, 64, true, 0},
                               {100, 1, 1, 256, false, 1}, {71, 2, 1, 64, true, 1}};

Test(qkv, equals_double_precision) {
  static const uint32_t positions[] = {0, 1, 37, 700, 4095};
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    const shape *s = &shapes[i];
    qkv t;
    set_up(&t, s, i);
    for (uint32_t run = 0; run < 5; run++) {
      test_rig *rig = &t.rig;
      rig->state.rows[0] =
          (mk_step_row){.position = positions[run], .token = (run * 17 + 20) % VOCAB, .flags = MK_ROW_ACTIVE};
      /* The whole weight, and then a share that begins within a head and one that straddles the end of the rotation. */
      uint32_t tiles = t.rows / 16, first = run == 0 ? 0 : run % 2 != 0 ? 1 : t.rotated / 16 - 1;
      uint32_t count = run == 0 ? tiles : run == 4 ? 1 : 2;
      test_rig_operand(rig, MK_SLOT_QKV_weight, t.weight, first, count, 0, (s->width + 15) / 16);
      test_rig_operand(rig, MK_SLOT_QKV_out, t.out, 0, 1, first, count);
      double want[1024], got[1024];
      reference(&t, s, want);
      test_rig_expect_waits(rig, 1);
      test_rig_expect_done(rig);
      for (uint32_t row = 0; row < count * 16; row++) {
        got[row] = test_rig_read(rig, t.out, 0, first * 16 + row);
      }
      test_expect_close("qkv", got, want + first * 16, count * 16, 1e-5);
    }
    test_rig_stop(&t.rig);
  }
}

Test(qkv, writes_the_stamp_it_is_told) {
  qkv t;
  set_up(&t, &shapes[0], 3);
  t.rig.publish = UINT32_MAX;
  test_rig_whole(&t.rig, MK_SLOT_QKV_weight, t.weight);
  test_rig_whole(&t.rig, MK_SLOT_QKV_out, t.out);
  test_rig_expect_done(&t.rig);
  for (uint32_t row = 0; row < t.rows; row++) {
    (void)test_rig_read(&t.rig, t.out, 0, row);
  }
  test_rig_stop(&t.rig);
}

Test(qkv, other_tokens_rows_do_not_matter) {
  qkv t;
  set_up(&t, &shapes[3], 4);
  t.rig.state.rows[0] = (mk_step_row){.position = 5, .token = VOCAB - 1, .flags = MK_ROW_ACTIVE};
  test_rig_whole(&t.rig, MK_SLOT_QKV_weight, t.weight);
  test_rig_whole(&t.rig, MK_SLOT_QKV_out, t.out);
  test_rig_expect_done(&t.rig);
  double before = test_rig_read(&t.rig, t.out, 0, 70);
  for (uint32_t col = 0; col < shapes[3].width; col++) {
    test_rig_set(&t.rig, t.x, VOCAB - 2, col, NAN);
  }
  test_rig_expect_done(&t.rig);
  cr_assert(test_rig_read(&t.rig, t.out, 0, 70) == before);
  test_rig_stop(&t.rig);
}
