// Where the operands of a linear opcode are: x, its gain where it is normed, the weight.
#pragma once
#include "vm/gpu/device.cuh"
#include "vm/gpu/opcodes.cuh"

namespace mk {

enum { LINEAR_X = 0, LINEAR_GAIN = 1 };

__host__ __device__ constexpr bool same_name(const char *a, const char *b) {
  while (*a != 0 && *a == *b) {
    a++, b++;
  }
  return *a == *b;
}

// x is the first operand, its gain comes next, then comes the weight; of a norm's parameters eps comes first, then width.
__host__ __device__ constexpr bool linear_operands_are_in_order() {
  bool good = true;
#define MK_OPERAND(NAME, slot, field, access, role, when, dtype, store) \
  good = good && (!is_linear(MK_OP_##NAME) || same_name(#field, "x") == (slot == LINEAR_X));
#define MK_OPCODE(NAME, text, state, semantics)                             \
  if (is_linear(MK_OP_##NAME)) {                                            \
    bool normed = slots_of(MK_OP_##NAME).gain >= 0;                         \
    good = good && (!normed || slots_of(MK_OP_##NAME).gain == LINEAR_GAIN); \
    good = good && slots_of(MK_OP_##NAME).weight == (normed ? 2 : 1);       \
  }
#define MK_PARAM(NAME, index, field, type)           \
  good = good && (slots_of(MK_OP_##NAME).gain < 0 || \
                  (same_name(#field, "eps") == (index == 0) && same_name(#field, "width") == (index == 1)));
#include "vm/program/opcodes.def"
  return good;
}
static_assert(linear_operands_are_in_order(), "x, gain, weight; eps, width");

// Whether x is normed; then the norm's parameters are the first two of the instruction.
__device__ inline bool has_norm(const mk_instruction &in) {
  return false
#define MK_OPCODE(NAME, text, state, semantics) || (slots_of(MK_OP_##NAME).gain >= 0 && in.opcode == MK_OP_##NAME)
#include "vm/program/opcodes.def"
      ;
}

}  // namespace mk
