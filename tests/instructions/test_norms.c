/* OFFSET, NORM_ADD, SQUARES and ADD_NORMED, and NORM_HEADS against double precision. */
#include <criterion/criterion.h>
#include <math.h>

#include "tests/support/numbers.h"
#include "tests/support/rig.h"

static void offset(float factor, bool biased, bool token_row, uint64_t seed) {
  enum { HIDDEN = 100, ROWS = 112, FIRST = 5, COUNT = 2 };
  test_rig rig;
  test_rig_start(&rig, MK_OP_OFFSET, seed);
  uint16_t residual = test_rig_vector(&rig, MK_DTYPE_F32, MK_STORE_PLAIN, 1, ROWS, 16);
  uint16_t out = test_rig_vector(&rig, MK_DTYPE_F32, MK_STORE_PLAIN, 1, ROWS, 16);
  uint16_t bias = test_rig_vector(&rig, MK_DTYPE_BF16, MK_STORE_PLAIN, 1, HIDDEN, 16);
  uint16_t embedding = test_rig_weight(&rig, 40, HIDDEN);
  test_rig_fill(&rig, residual, 3);
  test_rig_fill(&rig, bias, 3);
  rig.state.rows[0].token = 39;
  test_rig_operand(&rig, MK_SLOT_OFFSET_residual_in, residual, 0, 1, FIRST, COUNT);
  if (token_row) {
    test_rig_token_row(&rig, MK_SLOT_OFFSET_residual_in, embedding, FIRST, COUNT);
  }
  if (biased) {
    test_rig_whole(&rig, MK_SLOT_OFFSET_bias, bias);
  }
  test_rig_operand(&rig, MK_SLOT_OFFSET_residual_out, out, 0, 1, FIRST, COUNT);
  rig.instruction->params[MK_PARAM_OFFSET_factor] = mk_float_param(factor);
  test_rig_expect_done(&rig);
  double want[COUNT * 16], got[COUNT * 16];
  for (uint32_t i = 0; i < COUNT * 16; i++) {
    uint32_t at = FIRST * 16 + i;
    double before = !token_row    ? test_rig_value(&rig, residual, 0, at)
                    : at < HIDDEN ? test_rig_value(&rig, embedding, 39, at)
                                  : 0;
    want[i] =
        before * (factor != 0 ? (double)factor : 1) + (biased && at < HIDDEN ? test_rig_value(&rig, bias, 0, at) : 0);
    got[i] = test_rig_read(&rig, out, 0, at);
  }
  test_expect_close("offset", got, want, COUNT * 16, 1e-6);
  test_rig_stop(&rig);
}

Test(offset, factor_and_bias) {
  for (uint64_t i = 0; i < 8; i++) {
    offset((i & 1) != 0 ? 54.5f : 0, (i & 2) != 0, (i & 4) != 0, i + 1);
  }
}

static void norm_add(uint32_t parts_count, bool biased, float plus, uint64_t seed) {
  enum { WIDTH = 200, ROWS = 208, FIRST = 11, COUNT = 2 };
  test_rig rig;
  test_rig_start(&rig, MK_OP_NORM_ADD, seed);
  uint16_t parts = test_rig_vector(&rig, MK_DTYPE_F32, MK_STORE_STAMPED, parts_count, ROWS, 16);
  uint16_t gain = test_rig_vector(&rig, MK_DTYPE_BF16, MK_STORE_PLAIN, 1, biased ? 2 * WIDTH : WIDTH, 16);
  uint16_t residual = test_rig_vector(&rig, MK_DTYPE_F32, MK_STORE_PLAIN, 1, ROWS, 16);
  uint16_t out = test_rig_vector(&rig, MK_DTYPE_BF16, MK_STORE_STAMPED, 1, ROWS, 16);
  test_rig_fill(&rig, parts, 3);
  test_rig_fill(&rig, gain, 3);
  test_rig_fill(&rig, residual, 3);
  test_rig_operand(&rig, MK_SLOT_NORM_ADD_parts, parts, 0, parts_count, 0, ROWS / 16);
  test_rig_whole(&rig, MK_SLOT_NORM_ADD_gain, gain);
  test_rig_operand(&rig, MK_SLOT_NORM_ADD_residual_in, residual, 0, 1, FIRST, COUNT);
  test_rig_operand(&rig, MK_SLOT_NORM_ADD_residual_out, residual, 0, 1, FIRST, COUNT);
  test_rig_operand(&rig, MK_SLOT_NORM_ADD_out, out, 0, 1, FIRST, COUNT);
  rig.instruction->params[MK_PARAM_NORM_ADD_eps] = mk_float_param(1e-5f);
  rig.instruction->params[MK_PARAM_NORM_ADD_width] = WIDTH;
  rig.instruction->params[MK_PARAM_NORM_ADD_biased] = biased;
  rig.instruction->params[MK_PARAM_NORM_ADD_plus] = mk_float_param(plus);
  double sum[WIDTH], want[COUNT * 16], got[COUNT * 16], sent[COUNT * 16];
  for (uint32_t i = 0; i < WIDTH; i++) {
    sum[i] = biased ? test_rig_value(&rig, gain, 0, WIDTH + i) : 0;
    for (uint32_t p = 0; p < parts_count; p++) {
      sum[i] += test_rig_value(&rig, parts, p, i);
    }
  }
  double scale = test_rig_norm(sum, WIDTH, 1e-5);
  for (uint32_t i = 0; i < COUNT * 16; i++) {
    uint32_t at = FIRST * 16 + i;
    const double factor = at < WIDTH ? (double)plus + test_rig_value(&rig, gain, 0, at) : 0;
    want[i] = test_rig_value(&rig, residual, 0, at) + (at < WIDTH ? sum[at] * scale * factor : 0);
  }
  test_rig_expect_waits(&rig, parts_count);
  test_rig_expect_done(&rig);
  for (uint32_t i = 0; i < COUNT * 16; i++) {
    got[i] = test_rig_read(&rig, residual, 0, FIRST * 16 + i);
    sent[i] = test_rig_read(&rig, out, 0, FIRST * 16 + i);
  }
  test_expect_close("norm_add", got, want, COUNT * 16, 1e-5);
  test_expect_bf16("norm_add: broadcast", sent, got, COUNT * 16, 0);
  test_rig_stop(&rig);
}

Test(norm_add, equals_double_precision) {
  for (uint32_t parts = 1; parts <= 3; parts++) {
    norm_add(parts, false, 0, parts);
    norm_add(parts, true, 0, parts + 10);
    norm_add(parts, parts == 2, 1, parts + 20);
  }
}

/* Chain by chain, and then of two tiles by the squares of all chains; or of one, where the sum has no more. Columns
 * beyond the width count for nothing. */
enum { SUM_WIDTH = 203, SUM_ROWS = 208, CHAINS = 2 };

static uint16_t gain_of_sum(test_rig *rig, bool biased) {
  const uint16_t gain = test_rig_vector(rig, MK_DTYPE_BF16, MK_STORE_PLAIN, 1, biased ? 2 * SUM_WIDTH : SUM_WIDTH, 16);
  test_rig_fill(rig, gain, 3);
  return gain;
}

static double element_of_sum(const test_rig *rig, uint16_t parts, uint32_t count, uint16_t gain, bool biased,
                             uint32_t i) {
  double sum = biased ? test_rig_value(rig, gain, 0, SUM_WIDTH + i) : 0;
  for (uint32_t p = 0; p < count; p++) {
    sum += test_rig_value(rig, parts, p, i);
  }
  return sum;
}

static void squares_of_sum(uint32_t parts_count, uint32_t chain, bool biased, mk_store store, uint64_t seed) {
  test_rig rig;
  test_rig_start(&rig, MK_OP_SQUARES, seed);
  const uint16_t parts = test_rig_vector(&rig, MK_DTYPE_F32, store, parts_count, SUM_ROWS, 16);
  const uint16_t gain = gain_of_sum(&rig, biased);
  const uint16_t squares = test_rig_vector(&rig, MK_DTYPE_F32, store, 1, CHAINS, 1);
  const uint32_t first = chain * MK_CHAIN_COLS;
  const uint32_t end = SUM_WIDTH < first + MK_CHAIN_COLS ? (uint32_t)SUM_WIDTH : first + MK_CHAIN_COLS;
  test_rig_fill(&rig, parts, 3);
  test_rig_operand(&rig, MK_SLOT_SQUARES_parts, parts, 0, parts_count, first / 16,
                   chain == 0 ? MK_CHAIN_COLS / 16 : (SUM_ROWS - MK_CHAIN_COLS) / 16);
  if (biased) {
    test_rig_whole(&rig, MK_SLOT_SQUARES_gain, gain);
  }
  test_rig_operand(&rig, MK_SLOT_SQUARES_squares, squares, 0, 1, chain, 1);
  rig.instruction->params[MK_PARAM_SQUARES_width] = SUM_WIDTH;
  test_rig_expect_waits(&rig, parts_count);
  test_rig_expect_done(&rig);
  double want = 0, have = test_rig_read(&rig, squares, 0, chain);
  for (uint32_t i = first; i < end; i++) {
    const double s = element_of_sum(&rig, parts, parts_count, gain, biased, i);
    want += s * s;
  }
  test_expect_close("squares", &have, &want, 1, 1e-6);
  test_rig_stop(&rig);
}

Test(squares, of_the_chains_of_a_sum) {
  for (uint32_t parts = 1; parts <= 3; parts++) {
    for (uint32_t chain = 0; chain < CHAINS; chain++) {
      squares_of_sum(parts, chain, parts == 2, parts == 3 ? MK_STORE_PLAIN : MK_STORE_STAMPED, parts + 10 * chain);
    }
  }
}

static void add_normed(uint32_t parts_count, bool biased, mk_store store, uint64_t seed) {
  enum { FIRST = 11, COUNT = 2 };
  static const float of_chains[CHAINS] = {371.5f, 212.25f};
  test_rig rig;
  test_rig_start(&rig, MK_OP_ADD_NORMED, seed);
  const uint16_t parts = test_rig_vector(&rig, MK_DTYPE_F32, store, parts_count, SUM_ROWS, 16);
  const uint16_t gain = gain_of_sum(&rig, biased);
  const uint16_t residual = test_rig_vector(&rig, MK_DTYPE_F32, MK_STORE_PLAIN, 1, SUM_ROWS, 16);
  const uint16_t out = test_rig_vector(&rig, MK_DTYPE_BF16, store, 1, SUM_ROWS, 16);
  const uint16_t squares = test_rig_vector(&rig, MK_DTYPE_F32, store, 1, CHAINS, 1);
  test_rig_fill(&rig, parts, 3);
  test_rig_fill(&rig, residual, 3);
  test_rig_fill(&rig, squares, 3);
  for (uint32_t chain = 0; chain < CHAINS; chain++) {
    test_rig_set(&rig, squares, 0, chain, of_chains[chain]);
  }
  test_rig_operand(&rig, MK_SLOT_ADD_NORMED_parts, parts, 0, parts_count, FIRST, COUNT);
  test_rig_whole(&rig, MK_SLOT_ADD_NORMED_gain, gain);
  test_rig_operand(&rig, MK_SLOT_ADD_NORMED_residual_in, residual, 0, 1, FIRST, COUNT);
  test_rig_operand(&rig, MK_SLOT_ADD_NORMED_residual_out, residual, 0, 1, FIRST, COUNT);
  test_rig_operand(&rig, MK_SLOT_ADD_NORMED_out, out, 0, 1, FIRST, COUNT);
  test_rig_operand(&rig, MK_SLOT_ADD_NORMED_squares, squares, 0, 1, 0, CHAINS);
  rig.instruction->params[MK_PARAM_ADD_NORMED_eps] = mk_float_param(1e-5f);
  rig.instruction->params[MK_PARAM_ADD_NORMED_width] = SUM_WIDTH;
  rig.instruction->params[MK_PARAM_ADD_NORMED_biased] = biased;
  const double scale = 1 / sqrt((double)(of_chains[0] + of_chains[1]) / SUM_WIDTH + 1e-5);
  double want[COUNT * 16], got[COUNT * 16], sent[COUNT * 16];
  for (uint32_t i = 0; i < COUNT * 16; i++) {
    const uint32_t at = FIRST * 16 + i;
    want[i] = test_rig_value(&rig, residual, 0, at);
    if (at < SUM_WIDTH) {
      want[i] += element_of_sum(&rig, parts, parts_count, gain, biased, at) * scale * test_rig_value(&rig, gain, 0, at);
    }
  }
  test_rig_expect_waits(&rig, parts_count);
  test_rig_expect_done(&rig);
  for (uint32_t i = 0; i < COUNT * 16; i++) {
    const uint32_t at = FIRST * 16 + i;
    got[i] = test_rig_read(&rig, residual, 0, at);
    sent[i] = store == MK_STORE_STAMPED
                  ? test_rig_read(&rig, out, 0, at)
                  : (double)mk_bf16_to_float(((const uint16_t *)(const void *)rig.memory[out])[at]);
  }
  test_expect_close("add_normed", got, want, COUNT * 16, 1e-5);
  test_expect_bf16("add_normed: broadcast", sent, got, COUNT * 16, 0);
  test_rig_stop(&rig);
}

Test(add_normed, by_the_squares_of_all_chains) {
  for (uint32_t parts = 1; parts <= 3; parts++) {
    add_normed(parts, false, MK_STORE_PLAIN, parts);
    add_normed(parts, true, MK_STORE_PLAIN, parts + 10);
    add_normed(parts, parts == 2, MK_STORE_STAMPED, parts + 20);
  }
}

Test(norm_heads, each_over_all_of_its_tiles) {
  enum { QUERIES = 8, KEYS = 4, TILES = 16, FIRST = 6, COUNT = 8 };
  test_rig rig;
  test_rig_start(&rig, MK_OP_NORM_HEADS, 5);
  uint16_t values = test_rig_vector(&rig, MK_DTYPE_F32, MK_STORE_STAMPED, 1, TILES * MK_SQUARED_TILE, MK_SQUARED_TILE);
  uint16_t out = test_rig_vector(&rig, MK_DTYPE_F32, MK_STORE_STAMPED, 1, TILES * 16, 16);
  test_rig_fill(&rig, values, 3);
  for (uint32_t t = 0; t < TILES; t++) {
    test_rig_set(&rig, values, 0, t * MK_SQUARED_TILE + 16, 5 + (float)t);
  }
  test_rig_operand(&rig, MK_SLOT_NORM_HEADS_values, values, 0, 1, 0, TILES);
  test_rig_operand(&rig, MK_SLOT_NORM_HEADS_out, out, 0, 1, FIRST, COUNT);
  rig.instruction->params[MK_PARAM_NORM_HEADS_eps] = mk_float_param(1e-5f);
  rig.instruction->params[MK_PARAM_NORM_HEADS_query_tiles] = QUERIES;
  rig.instruction->params[MK_PARAM_NORM_HEADS_key_tiles] = KEYS;
  test_rig_expect_waits(&rig, 1);
  test_rig_expect_done(&rig);
  double want[COUNT * 16], got[COUNT * 16], squares[2] = {0};
  for (uint32_t t = 0; t < QUERIES + KEYS; t++) {
    squares[t >= QUERIES] += 5.0 + t;
  }
  const double scales[] = {1 / sqrt(squares[0] / (QUERIES * 16) + 1e-5), 1 / sqrt(squares[1] / (KEYS * 16) + 1e-5), 1};
  for (uint32_t i = 0; i < COUNT * 16; i++) {
    uint32_t tile = FIRST + i / 16;
    want[i] = test_rig_value(&rig, values, 0, tile * MK_SQUARED_TILE + i % 16) * scales[tile < QUERIES          ? 0
                                                                                        : tile < QUERIES + KEYS ? 1
                                                                                                                : 2];
    got[i] = test_rig_read(&rig, out, 0, FIRST * 16 + i);
  }
  test_expect_close("norm_heads", got, want, COUNT * 16, 1e-6);
  test_rig_stop(&rig);
}
