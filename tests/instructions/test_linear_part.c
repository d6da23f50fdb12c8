/* LINEAR_PART against double precision: K ranges of a weight, from shapes that end within a tile too. */
#include <criterion/criterion.h>

#include "tests/support/numbers.h"
#include "tests/support/rig.h"

typedef struct shape {
  uint32_t rows, cols, x_tile; /* x in tiles of 8 where a GLU writes it */
  uint32_t first_row, row_tiles, first_step, steps;
} shape;

static const shape shapes[] = {
    {32, 16, 16, 0, 2, 0, 1},     {48, 100, 16, 1, 2, 0, 7}, {64, 1000, 16, 2, 2, 30, 33},
    {160, 2048, 8, 0, 10, 0, 64}, {16, 688, 8, 0, 1, 42, 1}, {96, 9000, 16, 5, 1, 500, 63},
};

Test(linear_part, equals_double_precision) {
  for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
    const shape *s = &shapes[i];
    test_rig rig;
    test_rig_start(&rig, MK_OP_LINEAR_PART, i);
    uint32_t padded = (s->cols + 15) / 16 * 16, x_tiles = 16 / s->x_tile, parts = 3, part = (uint32_t)i % 3;
    uint16_t x = test_rig_vector(&rig, MK_DTYPE_BF16, MK_STORE_STAMPED, 1, padded, s->x_tile);
    uint16_t weight = test_rig_weight(&rig, s->rows, s->cols);
    uint16_t out = test_rig_vector(&rig, MK_DTYPE_F32, MK_STORE_STAMPED, parts, s->rows, 16);
    test_rig_fill(&rig, x, 3);
    for (uint32_t col = s->cols; col < padded; col++) {
      test_rig_set(&rig, x, 0, col, 0);
    }
    test_rig_operand(&rig, MK_SLOT_LINEAR_PART_x, x, 0, 1, s->first_step * x_tiles, s->steps * x_tiles);
    test_rig_operand(&rig, MK_SLOT_LINEAR_PART_weight, weight, s->first_row, s->row_tiles, s->first_step, s->steps);
    test_rig_operand(&rig, MK_SLOT_LINEAR_PART_out, out, part, 1, s->first_row, s->row_tiles);
    test_rig_expect_waits(&rig, 1);
    test_rig_expect_done(&rig);
    uint32_t first = s->first_step * 16, count = s->cols - first < s->steps * 16 ? s->cols - first : s->steps * 16;
    double want[160], got[160];
    for (uint32_t row = 0; row < s->row_tiles * 16; row++) {
      uint32_t at = s->first_row * 16 + row;
      want[row] = test_rig_product(&rig, weight, at, first, count, rig.values[x] + first, NULL);
      got[row] = test_rig_read(&rig, out, part, at);
    }
    test_expect_close("linear_part", got, want, s->row_tiles * 16, 1e-5);
    test_rig_stop(&rig);
  }
}

/* Words outside of its K range may be as late as they like. */
Test(linear_part, waits_for_its_own_columns_alone) {
  test_rig rig;
  test_rig_start(&rig, MK_OP_LINEAR_PART, 9);
  uint16_t x = test_rig_vector(&rig, MK_DTYPE_BF16, MK_STORE_STAMPED, 1, 96, 16);
  uint16_t weight = test_rig_weight(&rig, 16, 96),
           out = test_rig_vector(&rig, MK_DTYPE_F32, MK_STORE_STAMPED, 1, 16, 16);
  test_rig_fill(&rig, x, 1);
  test_rig_operand(&rig, MK_SLOT_LINEAR_PART_x, x, 0, 1, 2, 2);
  test_rig_operand(&rig, MK_SLOT_LINEAR_PART_weight, weight, 0, 1, 2, 2);
  test_rig_whole(&rig, MK_SLOT_LINEAR_PART_out, out);
  *test_rig_word(&rig, x, 0, 31) = 0;
  *test_rig_word(&rig, x, 0, 64) = 0;
  test_rig_expect_done(&rig);
  *test_rig_word(&rig, x, 0, 63) = 0;
  cr_assert_eq(test_rig_run(&rig), MK_REFERENCE_WAIT);
  test_rig_stop(&rig);
}
