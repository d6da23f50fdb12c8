/* NORM: x times the gain is what bf16 makes of it, and the squares are those of x; and a product that goes on from
 * there has the bits of one that norms x by itself. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "tests/support/numbers.h"
#include "tests/support/rig.h"

enum { CHAIN = MK_CHAIN_COLS };

static double element(const test_rig *rig, uint16_t buffer, uint32_t col) {
  const bool plain = rig->program->buffers[buffer].store == MK_STORE_PLAIN;
  return plain ? (double)mk_bf16_to_float(((const uint16_t *)(const void *)rig->memory[buffer])[col])
               : test_rig_read(rig, buffer, 0, col);
}

/* Chain number `chain` of x [width], which is stored as `store`; TILES: it is the row of token 5. gains: there are
 * some. */
static void run_with(bool gains, uint32_t width, uint32_t chain, mk_store store, mk_store result, uint64_t seed) {
  test_rig rig;
  test_rig_start(&rig, MK_OP_NORM, seed);
  const uint32_t padded = (width + 15) / 16 * 16, first = chain * CHAIN, token = 5;
  const uint32_t cols = padded - first < CHAIN ? padded - first : (uint32_t)CHAIN;
  const bool row = store == MK_STORE_TILES;
  const uint16_t x =
      row ? test_rig_weight(&rig, 32, width) : test_rig_vector(&rig, MK_DTYPE_BF16, store, 1, padded, 16);
  const uint16_t gain = test_rig_vector(&rig, MK_DTYPE_BF16, MK_STORE_PLAIN, 1, width, 16);
  const uint16_t out = test_rig_vector(&rig, MK_DTYPE_BF16, result, 1, padded, 16);
  const uint16_t squares = test_rig_vector(&rig, MK_DTYPE_F32, result, 1, (padded + CHAIN - 1) / CHAIN, 1);
  test_rig_fill(&rig, x, 2);
  test_rig_fill(&rig, gain, 3);
  rig.state.rows[0].token = token;
  if (row) {
    test_rig_token_row(&rig, MK_SLOT_NORM_x, x, first / 16, cols / 16);
  } else {
    test_rig_operand(&rig, MK_SLOT_NORM_x, x, 0, 1, first / 16, cols / 16);
    for (uint32_t col = width; col < padded; col++) {
      test_rig_set(&rig, x, 0, col, 0);
    }
  }
  if (gains) {
    test_rig_whole(&rig, MK_SLOT_NORM_gain, gain);
  }
  test_rig_operand(&rig, MK_SLOT_NORM_out, out, 0, 1, first / 16, cols / 16);
  test_rig_operand(&rig, MK_SLOT_NORM_squares, squares, 0, 1, chain, 1);
  test_rig_expect_waits(&rig, 1);
  test_rig_expect_done(&rig);
  double sum = 0;
  for (uint32_t col = first; col < first + cols; col++) {
    const double value = col < width ? test_rig_value(&rig, x, row ? token : 0, col) : 0;
    const float want = col >= width ? 0
                       : gains      ? (float)value * (float)test_rig_value(&rig, gain, 0, col)
                                    : (float)value;
    cr_assert_eq((float)element(&rig, out, col), mk_bf16_to_float(mk_float_to_bf16(want)), "column %u", col);
    sum += value * value;
  }
  const double have = test_rig_read(&rig, squares, 0, chain);
  cr_assert(fabs(have - sum) <= 1e-6 * sum, "squares are %g, not %g", have, sum);
  test_rig_stop(&rig);
}

static void run(uint32_t width, uint32_t chain, mk_store store, mk_store result, uint64_t seed) {
  run_with(true, width, chain, store, result, seed);
}

Test(norm, without_a_gain_leaves_x_as_it_is) {
  run_with(false, 200, 1, MK_STORE_PLAIN, MK_STORE_PLAIN, 9);
  run_with(false, 203, 1, MK_STORE_TILES, MK_STORE_PLAIN, 10);
  run_with(false, 40, 0, MK_STORE_TILES, MK_STORE_STAMPED, 11);
}

Test(norm, is_a_product_and_a_sum) {
  run(256, 0, MK_STORE_STAMPED, MK_STORE_STAMPED, 1);
  run(256, 1, MK_STORE_PLAIN, MK_STORE_PLAIN, 2);
  run(200, 1, MK_STORE_PLAIN, MK_STORE_STAMPED, 3);
  run(203, 1, MK_STORE_STAMPED, MK_STORE_PLAIN, 4);
  run(17, 0, MK_STORE_PLAIN, MK_STORE_PLAIN, 5);
}

Test(norm, takes_the_row_of_the_token) {
  run(256, 1, MK_STORE_TILES, MK_STORE_PLAIN, 6);
  run(203, 1, MK_STORE_TILES, MK_STORE_STAMPED, 7);
  run(40, 0, MK_STORE_TILES, MK_STORE_PLAIN, 8);
}

/* GLU of x and a gain, and of what NORM makes of them. */
static void expect_same_product(uint32_t width, uint64_t seed) {
  enum { FEATURES = 32 };
  test_rig rig;
  test_rig_start(&rig, MK_OP_GLU, seed);
  const uint32_t padded = (width + 15) / 16 * 16, chains = (padded + CHAIN - 1) / CHAIN;
  const uint16_t x = test_rig_vector(&rig, MK_DTYPE_BF16, MK_STORE_PLAIN, 1, padded, 16);
  const uint16_t gain = test_rig_vector(&rig, MK_DTYPE_BF16, MK_STORE_PLAIN, 1, width, 16);
  const uint16_t weight = test_rig_weight(&rig, 2 * FEATURES, width);
  const uint16_t out = test_rig_vector(&rig, MK_DTYPE_BF16, MK_STORE_PLAIN, 1, FEATURES, 8);
  const uint16_t h = test_rig_vector(&rig, MK_DTYPE_BF16, MK_STORE_PLAIN, 1, padded, 16);
  const uint16_t squares = test_rig_vector(&rig, MK_DTYPE_F32, MK_STORE_PLAIN, 1, chains, 1);
  uint16_t want[FEATURES];
  test_rig_fill(&rig, x, 2);
  test_rig_fill(&rig, gain, 1);
  for (uint32_t col = width; col < padded; col++) {
    test_rig_set(&rig, x, 0, col, 0);
  }
  test_rig_whole(&rig, MK_SLOT_GLU_x, x);
  test_rig_whole(&rig, MK_SLOT_GLU_gain, gain);
  test_rig_whole(&rig, MK_SLOT_GLU_weight, weight);
  test_rig_whole(&rig, MK_SLOT_GLU_out, out);
  rig.instruction->params[MK_PARAM_GLU_eps] = mk_float_param(1e-5f);
  rig.instruction->params[MK_PARAM_GLU_width] = width;
  const mk_instruction glu = *rig.instruction;
  test_rig_expect_done(&rig);
  memcpy(want, rig.memory[out], sizeof want);
  memset(rig.memory[out], 0, sizeof want);
  for (uint32_t chain = 0; chain < chains; chain++) {
    const uint32_t first = chain * (CHAIN / 16), left = padded / 16 - first, tiles = left < 8 ? left : 8;
    *rig.instruction = (mk_instruction){.opcode = MK_OP_NORM, .version = MK_INSTRUCTION_VERSION, .uid = 1};
    test_rig_operand(&rig, MK_SLOT_NORM_x, x, 0, 1, first, tiles);
    test_rig_whole(&rig, MK_SLOT_NORM_gain, gain);
    test_rig_operand(&rig, MK_SLOT_NORM_out, h, 0, 1, first, tiles);
    test_rig_operand(&rig, MK_SLOT_NORM_squares, squares, 0, 1, chain, 1);
    test_rig_expect_done(&rig);
  }
  *rig.instruction = glu;
  test_rig_whole(&rig, MK_SLOT_GLU_x, h);
  test_rig_operand(&rig, MK_SLOT_GLU_gain, 0, 0, 0, 0, 0);
  test_rig_whole(&rig, MK_SLOT_GLU_squares, squares);
  test_rig_expect_done(&rig);
  cr_assert_eq(memcmp(want, rig.memory[out], sizeof want), 0, "width %u", width);
  test_rig_stop(&rig);
}

Test(norm, leaves_what_a_product_takes) {
  expect_same_product(64, 1);
  expect_same_product(203, 2);
  expect_same_product(1024, 3);
  expect_same_product(1300, 4); /* more chains than are added as one tree */
}
