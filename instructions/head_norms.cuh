// Of other families, in wide steps: heads of q and k whose tiles have the sum of their squares beside their values,
// each to be divided by its rms; docs/NUMERICS.md has the order.
#pragma once
#include "instructions/attend_part.cuh"
#include "instructions/tile/rows.cuh"
#include "vm/gpu/wide.cuh"

namespace mk {

// Elements of a plain value that a head takes.
__device__ inline uint32_t head_columns(const mk_gpu_buffer &b, uint32_t head_dim) {
  return MK_GPU_FAMILIES ? head_dim / MK_TILE * b.tile_cols : head_dim;
}

// 1 / rms of a head from the squares of its tiles, tile i of lane i of each group of eight.
__device__ inline float head_scale(const float *head, uint32_t head_dim, float eps) {
  uint32_t tile = tile::place_in_group<8>(tile::lane());
  float squares = tile < head_dim / MK_TILE ? tile::load_l2<float>(head + tile * MK_SQUARED_TILE + MK_TILE) : 0.0f;
  return norm_scale(tile::sum_tree<8>(squares), reciprocal_of(static_cast<float>(head_dim)), eps);
}

// The same of the thread's two rows, which a quad has in common; nullptr: nobody asks.
__device__ inline void head_scales(float (&to)[2], const float *const (&rows)[2], uint32_t head_dim, float eps) {
  uint32_t tile = tile::lane_of_quad(tile::lane());
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    const bool there = rows[h] != nullptr;
    const float *squares = rows[h] + tile * MK_SQUARED_TILE + MK_TILE;
    float first = there ? tile::load_l2<float>(squares) : 0.0f;
    float second = there && head_dim > 64 ? tile::load_l2<float>(squares + 4 * MK_SQUARED_TILE) : 0.0f;
    float sum = __fadd_rn(tile::sum_tree<4>(first), tile::sum_tree<4>(second));
    to[h] = norm_scale(sum, reciprocal_of(static_cast<float>(head_dim)), eps);
  }
}

// q of the thread's two rows as a left operand, times the instruction's scale.
template <uint32_t steps>
__device__ inline void load_queries(uint32_t (&q)[steps][4], const mk_instruction_word &in,
                                    const float *const (&rows)[2]) {
  float scale = __fmul_rn(__uint_as_float(param(in, MK_PARAM_ATTEND_scale)), BASE_E_TO_2);
  if (MK_GPU_FAMILIES && param(in, MK_PARAM_ATTEND_eps) != 0) {
    float scales[2];
    head_scales(scales, rows, steps * 16, __uint_as_float(param(in, MK_PARAM_ATTEND_eps)));
    tile::load_left_tiles<MK_SQUARED_TILE>(q, rows, scales, scale);
  } else {
    tile::load_left(q, rows, scale);
  }
}

}  // namespace mk
