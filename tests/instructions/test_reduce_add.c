/* REDUCE_ADD: the parts in order, then the residual; in fp32 that order shows, so it is compared bit for bit. */
#include <criterion/criterion.h>

#include "tests/support/numbers.h"
#include "tests/support/rig.h"

static void run(uint32_t parts_count, uint32_t hidden, uint32_t first, uint32_t count, bool token_row, uint64_t seed) {
  test_rig rig;
  test_rig_start(&rig, MK_OP_REDUCE_ADD, seed);
  uint32_t rows = (hidden + 15) / 16 * 16;
  uint16_t parts = test_rig_vector(&rig, MK_DTYPE_F32, MK_STORE_STAMPED, parts_count, rows, 16);
  uint16_t residual = test_rig_vector(&rig, MK_DTYPE_F32, MK_STORE_PLAIN, 1, rows, 16);
  uint16_t out = test_rig_vector(&rig, MK_DTYPE_BF16, MK_STORE_STAMPED, 1, rows, 16);
  uint16_t embedding = test_rig_weight(&rig, 40, hidden);
  test_rig_fill(&rig, parts, 3);
  test_rig_fill(&rig, residual, 3);
  rig.state.rows[0].token = 39;
  test_rig_operand(&rig, MK_SLOT_REDUCE_ADD_parts, parts, 0, parts_count, first, count);
  test_rig_operand(&rig, MK_SLOT_REDUCE_ADD_residual_in, residual, 0, 1, first, count);
  if (token_row) {
    test_rig_token_row(&rig, MK_SLOT_REDUCE_ADD_residual_in, embedding, first, count);
  }
  test_rig_operand(&rig, MK_SLOT_REDUCE_ADD_residual_out, residual, 0, 1, first, count);
  test_rig_operand(&rig, MK_SLOT_REDUCE_ADD_out, out, 0, 1, first, count);
  test_rig_expect_waits(&rig, parts_count);
  test_rig_expect_done(&rig);
  double want[512], got[512], sent[512], exact[512];
  for (uint32_t i = 0; i < count * 16; i++) {
    uint32_t at = first * 16 + i;
    float sum = (float)test_rig_value(&rig, parts, 0, at);
    exact[i] = test_rig_value(&rig, parts, 0, at);
    for (uint32_t p = 1; p < parts_count; p++) {
      sum += (float)test_rig_value(&rig, parts, p, at);
      exact[i] += test_rig_value(&rig, parts, p, at);
    }
    double before = !token_row    ? test_rig_value(&rig, residual, 0, at)
                    : at < hidden ? test_rig_value(&rig, embedding, 39, at)
                                  : 0;
    want[i] = (double)((float)before + sum);
    exact[i] += before;
    got[i] = test_rig_read(&rig, residual, 0, at);
    sent[i] = test_rig_read(&rig, out, 0, at);
    cr_assert(got[i] == want[i], "row %u is %.9g, not %.9g", at, got[i], want[i]);
  }
  test_expect_close("reduce_add", got, exact, count * 16, 1e-5);
  test_expect_bf16("reduce_add: broadcast", sent, want, count * 16, 0);
  test_rig_stop(&rig);
}

Test(reduce_add, adds_in_order) {
  for (uint32_t parts = 1; parts <= 5; parts++) {
    run(parts, 64, 0, 4, false, parts);
    run(parts, 200, 11, 2, false, parts + 10);
    run(parts, 200, 11, 2, true, parts + 20); /* the embedding ends within these rows */
    run(parts, 33, 2, 1, true, parts + 30);
    run(parts, 400, 0, 25, true, parts + 40);
  }
}
