// Where the operands of a linear opcode are: x, the weight, and its gain where x is normed.
#pragma once
#include "vm/gpu/device.cuh"
#include "vm/gpu/opcodes.cuh"

namespace mk {

enum { LINEAR_X = 0, LINEAR_WEIGHT = 1 };  // PARTs
enum { LINEAR_GAIN = 0 };                  // a WHOLE

__host__ __device__ constexpr bool same_name(const char *a, const char *b) {
  while (*a != 0 && *a == *b) {
    a++, b++;
  }
  return *a == *b;
}

// x is the first PART, then comes the weight; the gain is the first WHOLE; of a norm's parameters eps comes first, then
// width.
__host__ __device__ constexpr bool linear_operands_are_in_order() {
  bool good = true;
#define MK_OPERAND(NAME, slot, field, access, role, when, extent, dtype, store) \
  good = good && (!opcodes.NAME.linear || !same_name(#field, "x") || MK_##extent##_##NAME##_##field == LINEAR_X);
#define MK_OPCODE(NAME, text, state, semantics)                                \
  if (opcodes.NAME.linear) {                                                   \
    good = good && opcodes.NAME.weight == LINEAR_WEIGHT;                       \
    good = good && (!opcodes.NAME.normed || opcodes.NAME.gain == LINEAR_GAIN); \
  }
#define MK_PARAM(NAME, index, field, type) \
  good = good && (!opcodes.NAME.normed ||  \
                  (same_name(#field, "eps") == (index == 0) && same_name(#field, "width") == (index == 1)));
#include "vm/program/opcodes.def"
  return good;
}
static_assert(linear_operands_are_in_order(), "x, gain, weight; eps, width");

// Whether the operands of every addition to the residual come in the same order: the residual that comes in, the one
// that leaves, the value.
__host__ __device__ constexpr bool residuals_are_in_order() {
  bool good = true;
#define MK_OPERAND(NAME, slot, field, access, role, when, extent, dtype, store)                                        \
  good =                                                                                                               \
      good && (!opcodes.NAME.adds ||                                                                                   \
               ((!same_name(#field, "residual_out") || MK_##extent##_##NAME##_##field == opcodes.NAME.residual + 1) && \
                (!same_name(#field, "out") || MK_##extent##_##NAME##_##field == opcodes.NAME.residual + 2)));
#include "vm/program/opcodes.def"
  return good;
}
static_assert(residuals_are_in_order(), "residual in, residual out, out");

// Whether x is normed; then the norm's parameters are the first two of the instruction.
__device__ inline bool has_norm(const mk_instruction_word &in) {
  bool normed = false
#define MK_OPCODE(NAME, text, state, semantics) || (opcodes.NAME.normed && in.opcode == opcodes.NAME.number)
#include "vm/program/opcodes.def"
      ;
  return normed && (!MK_GPU_FAMILIES || whole_buffer(in, LINEAR_GAIN).cols != 0);  // some do without
}

// Whether squares come with its sums: of x, or of the sums themselves.
__device__ inline bool has_squares(const mk_instruction_word &in) {
  return has_norm(in) || (MK_GPU_FAMILIES && in.opcode == only<&opcode_row::adds_norm>);
}
static_assert(MK_PARAM_NORM_ADD_eps == 0 && MK_PARAM_NORM_ADD_width == 1, "its norm's parameters, too");

// The scale of a norm, with the factor on logits where there is one.
__device__ inline float with_factor(const mk_instruction_word &in, float scale) {
  float factor = MK_GPU_FAMILIES && in.opcode == only<&opcode_row::logits>
                     ? __uint_as_float(param(in, MK_PARAM_HEAD_factor))
                     : 0.0f;
  return factor != 0.0f ? __fmul_rn(scale, factor) : scale;
}

// Element i of a vector of bf16; 0 beyond its last one, and where the instruction does without it.
__device__ inline float element_of(const mk_gpu_buffer &vector, uint32_t i) {
  return i < vector.cols ? tile::low_bf16(__ldg(tile::global<const uint16_t>(vector.address) + i)) : 0.0f;
}

// GLU's bias of row `row` of row tile i, which the gains go on with.
__device__ inline float glu_bias(const mk_instruction_word &in, uint32_t i, uint32_t row) {
  uint32_t at = (in.parts[MK_PART_GLU_weight].row + i) * 16 + row;
  return param(in, MK_PARAM_GLU_biased) == 0
             ? 0.0f
             : element_of(whole_buffer(in, MK_WHOLE_GLU_gain), param(in, MK_PARAM_GLU_width) + at);
}

}  // namespace mk
