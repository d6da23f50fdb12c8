// What NORM_ADD, or ADD_NORMED, has of one element, as all kernels of other families have it; norm_add.c.
#pragma once
#include "instructions/linear_operands.cuh"

namespace mk {

// The bias of element i, which the gains go on with.
__device__ inline float norm_bias(const mk_instruction_word &in, uint32_t i) {
  uint32_t width = param(in, MK_PARAM_NORM_ADD_width);
  return param(in, MK_PARAM_NORM_ADD_biased) == 0 || i >= width
             ? 0.0f
             : element_of(whole_buffer(in, MK_WHOLE_NORM_ADD_gain), width + i);
}
__device__ inline float norm_gain(const mk_instruction_word &in, uint32_t i) {
  return i < param(in, MK_PARAM_NORM_ADD_width) ? element_of(whole_buffer(in, MK_WHOLE_NORM_ADD_gain), i) : 0.0f;
}

}  // namespace mk
