/* LINEAR_ADD against double precision, with the residual from its buffer and from the embedding. */
#include <criterion/criterion.h>

#include "tests/support/numbers.h"
#include "tests/support/rig.h"

typedef struct shape {
  uint32_t hidden, cols, first, count; /* hidden need not be whole tiles: the embedding's rows end there */
  bool token_row;
} shape;

static const shape shapes[] = {
    {64, 128, 0, 4, false}, {100, 200, 5, 2, false}, {100, 200, 5, 2, true},
    {33, 17, 0, 3, true},   {256, 704, 7, 1, true},
};

Test(linear_add, equals_double_precision) {
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    const shape *s = &shapes[i];
    test_rig rig;
    test_rig_start(&rig, MK_OP_LINEAR_ADD, i);
    uint32_t padded = (s->cols + 15) / 16 * 16, rows = (s->hidden + 15) / 16 * 16, vocab = 21;
    uint16_t x = test_rig_vector(&rig, MK_DTYPE_BF16, MK_STORE_STAMPED, 1, padded, 16);
    uint16_t weight = test_rig_weight(&rig, rows, s->cols);
    uint16_t residual = test_rig_vector(&rig, MK_DTYPE_F32, MK_STORE_PLAIN, 1, rows, 16);
    uint16_t out = test_rig_vector(&rig, MK_DTYPE_BF16, MK_STORE_STAMPED, 1, rows, 16);
    uint16_t embedding = test_rig_weight(&rig, vocab, s->hidden);
    for (uint32_t row = s->hidden; row < rows; row++) {
      for (uint32_t col = 0; col < s->cols; col++) {
        test_rig_set(&rig, weight, row, col, 0); /* rows of padding */
      }
    }
    test_rig_fill(&rig, x, 2);
    for (uint32_t col = s->cols; col < padded; col++) {
      test_rig_set(&rig, x, 0, col, 0);
    }
    test_rig_fill(&rig, residual, 5);
    rig.state.rows[0].token = 18;
    test_rig_whole(&rig, MK_SLOT_LINEAR_ADD_x, x);
    test_rig_operand(&rig, MK_SLOT_LINEAR_ADD_weight, weight, s->first, s->count, 0, padded / 16);
    test_rig_operand(&rig, MK_SLOT_LINEAR_ADD_residual_in, residual, 0, 1, s->first, s->count);
    if (s->token_row) {
      test_rig_token_row(&rig, MK_SLOT_LINEAR_ADD_residual_in, embedding, s->first, s->count);
    }
    test_rig_operand(&rig, MK_SLOT_LINEAR_ADD_residual_out, residual, 0, 1, s->first, s->count);
    test_rig_operand(&rig, MK_SLOT_LINEAR_ADD_out, out, 0, 1, s->first, s->count);
    double want[256], kept[256], sent[256];
    for (uint32_t row = 0; row < s->count * 16; row++) {
      uint32_t at = s->first * 16 + row;
      double before = !s->token_row    ? test_rig_value(&rig, residual, 0, at)
                      : at < s->hidden ? test_rig_value(&rig, embedding, rig.state.rows[0].token, at)
                                       : 0;
      want[row] = before + test_rig_product(&rig, weight, at, 0, s->cols, rig.values[x], NULL);
    }
    test_rig_expect_waits(&rig, 1);
    test_rig_expect_done(&rig);
    for (uint32_t row = 0; row < s->count * 16; row++) {
      kept[row] = test_rig_read(&rig, residual, 0, s->first * 16 + row);
      sent[row] = test_rig_read(&rig, out, 0, s->first * 16 + row);
    }
    test_expect_close("linear_add: residual", kept, want, s->count * 16, 1e-5);
    test_expect_bf16("linear_add: broadcast", sent, want, s->count * 16, 1e-5);
    test_rig_stop(&rig);
  }
}
