/* The verifier's rule of shape of the test's opcode. */
#include "vm/verify/shape.h"

mk_status mk_shape_WIDE(mk_shape *s) {
  uint32_t cols = s->extents[MK_SLOT_WIDE_x].cols, modulus = s->in->params[MK_PARAM_WIDE_modulus];
  static const uint32_t beside[] = {MK_SLOT_WIDE_first_gain, MK_SLOT_WIDE_second_gain, MK_SLOT_WIDE_bias,
                                    MK_SLOT_WIDE_scales, MK_SLOT_WIDE_zeros};
  for (size_t i = 0; i < sizeof beside / sizeof beside[0]; i++) {
    MK_TRY(mk_expect_vector(s, beside[i], 0, cols));
  }
  MK_TRY(mk_expect_param(s, MK_PARAM_WIDE_modulus, modulus != 0, "it must be above 0"));
  MK_TRY(mk_expect_param(s, MK_PARAM_WIDE_index,
                         s->in->params[MK_PARAM_WIDE_index] < s->extents[MK_SLOT_WIDE_expert].cols,
                         "it must be a column of expert"));
  return mk_expect_vector(s, MK_SLOT_WIDE_out, 0, cols);
}
