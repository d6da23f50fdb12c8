// Where the operands of a linear opcode are: x, its gain where it is normed, the weight.
#pragma once
#include "vm/gpu/device.cuh"

namespace mk {

enum { LINEAR_X = 0, LINEAR_GAIN = 1 };
static_assert(MK_SLOT_QKV_x == LINEAR_X && MK_SLOT_GLU_x == LINEAR_X && MK_SLOT_HEAD_x == LINEAR_X &&
                  MK_SLOT_LINEAR_ADD_x == LINEAR_X && MK_SLOT_LINEAR_PART_x == LINEAR_X,
              "x is the first operand");
static_assert(MK_SLOT_QKV_gain == LINEAR_GAIN && MK_SLOT_GLU_gain == LINEAR_GAIN && MK_SLOT_HEAD_gain == LINEAR_GAIN,
              "its gain comes next");
static_assert(MK_SLOT_QKV_weight == 2 && MK_SLOT_GLU_weight == 2 && MK_SLOT_HEAD_weight == 2 &&
                  MK_SLOT_LINEAR_ADD_weight == 1 && MK_SLOT_LINEAR_PART_weight == 1,
              "then comes the weight");
// Whether x is normed; then the norm's parameters are the first two of the instruction.
__device__ inline bool has_norm(const mk_instruction &in) {
  return in.opcode == MK_OP_QKV || in.opcode == MK_OP_GLU || in.opcode == MK_OP_HEAD;
}
static_assert(MK_PARAM_QKV_eps == 0 && MK_PARAM_GLU_eps == 0 && MK_PARAM_HEAD_eps == 0 && MK_PARAM_QKV_width == 1 &&
                  MK_PARAM_GLU_width == 1 && MK_PARAM_HEAD_width == 1,
              "eps and width come first");

}  // namespace mk
