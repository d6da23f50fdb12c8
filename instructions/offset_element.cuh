// OFFSET of one element, as all kernels of other families have it; offset.c.
#pragma once
#include "instructions/linear_operands.cuh"

namespace mk {

// Of an element and its bias.
__device__ inline float offset_of(const mk_instruction_word &in, float x, float bias) {
  float factor = __uint_as_float(param(in, MK_PARAM_OFFSET_factor));
  return __fadd_rn(factor != 0.0f ? __fmul_rn(x, factor) : x, bias);
}

}  // namespace mk
