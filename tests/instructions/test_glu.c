/* GLU against double precision. */
#include <criterion/criterion.h>
#include <math.h>

#include "tests/support/numbers.h"
#include "tests/support/rig.h"

static double silu(double g) { return g / (1 + exp(-g)); }
static double gelu(double g) { return 0.5 * g * (1 + tanh(sqrt(2 / acos(-1)) * (g + 0.044715 * g * g * g))); }

/* With gelu, and with `plus` added to the gains, as Gemma has them. */
static void run_as(uint32_t width, uint32_t features, uint32_t first, uint32_t count, float scale, uint64_t seed,
                   bool is_gelu, float plus) {
  test_rig rig;
  test_rig_start(&rig, MK_OP_GLU, seed);
  const float eps = 1e-6f;
  uint32_t padded = (width + 15) / 16 * 16, rows = 2 * ((features + 15) / 16 * 16);
  uint16_t x = test_rig_vector(&rig, MK_DTYPE_BF16, MK_STORE_STAMPED, 1, padded, 16);
  uint16_t gain = test_rig_vector(&rig, MK_DTYPE_BF16, MK_STORE_PLAIN, 1, width, 16);
  uint16_t weight = test_rig_weight(&rig, rows, width);
  uint16_t out = test_rig_vector(&rig, MK_DTYPE_BF16, MK_STORE_STAMPED, 1, rows / 2, 8);
  test_rig_fill(&rig, x, 2);
  for (uint32_t col = width; col < padded; col++) {
    test_rig_set(&rig, x, 0, col, 0);
  }
  test_rig_fill(&rig, gain, scale);
  test_rig_whole(&rig, MK_SLOT_GLU_x, x);
  test_rig_whole(&rig, MK_SLOT_GLU_gain, gain);
  test_rig_operand(&rig, MK_SLOT_GLU_weight, weight, first, count, 0, padded / 16);
  test_rig_operand(&rig, MK_SLOT_GLU_out, out, 0, 1, first, count);
  rig.instruction->params[MK_PARAM_GLU_eps] = mk_float_param(eps);
  rig.instruction->params[MK_PARAM_GLU_width] = width;
  rig.instruction->params[MK_PARAM_GLU_plus] = mk_float_param(plus);
  rig.instruction->params[MK_PARAM_GLU_gelu] = is_gelu;
  test_rig_expect_waits(&rig, 1);
  test_rig_expect_done(&rig);
  double norm = test_rig_norm(rig.values[x], width, (double)eps), want[512], got[512], gains[1024];
  for (uint32_t i = 0; i < width; i++) {
    gains[i] = (double)(plus + (float)rig.values[gain][i]);
  }
  for (uint32_t i = 0; i < count * 8; i++) {
    uint32_t feature = first * 8 + i, row = feature / 8 * 16 + feature % 8;
    double g = norm * test_rig_product(&rig, weight, row, 0, width, rig.values[x], gains);
    double u = norm * test_rig_product(&rig, weight, row + 8, 0, width, rig.values[x], gains);
    want[i] = (is_gelu ? gelu(g) : silu(g)) * u;
    got[i] = test_rig_read(&rig, out, 0, feature);
  }
  test_expect_bf16("glu", got, want, count * 8, 1e-5);
  test_rig_stop(&rig);
}

static void run(uint32_t width, uint32_t features, uint32_t first, uint32_t count, float scale, uint64_t seed) {
  run_as(width, features, first, count, scale, seed, false, 0);
}

Test(glu, equals_double_precision) {
  run(64, 32, 0, 4, 1, 1);
  run(100, 40, 1, 3, 1, 2); /* neither side in whole tiles */
  run(688, 256, 5, 27, 0.3f, 3);
  run(17, 8, 0, 1, 2, 4);
}

/* exp(-g) overflows fp32 for g < -88, where silu is zero. */
Test(glu, large_gates_stay_finite) { run(256, 64, 0, 8, 20, 5); }

Test(glu, gelu_equals_double_precision) {
  run_as(64, 32, 0, 4, 1, 1, true, 0);
  run_as(100, 40, 1, 3, 1, 2, true, 1);
  run_as(688, 256, 5, 27, 0.3f, 3, true, 1);
  run_as(256, 64, 0, 8, 20, 5, true, 0); /* exp(-2 z) overflows, where gelu is zero */
}

Test(glu, adds_to_its_gains) { run_as(100, 40, 1, 3, 1, 2, false, 1); }
