// APPEND of the kernels for wide steps into a cache of e4m3, on the device: K and V of a token and head become codes
// with a scale for each (kv_cache.cuh, append.c). A warp has every eighth line, several of them together.
#pragma once
#include "instructions/head_norms.cuh"
#include "instructions/kv_cache.cuh"
#include "vm/gpu/wide.cuh"

namespace mk {

// Where a line goes: the pair of its block and head, and the token within. nullptr: nowhere.
struct appended_place {
  uint8_t *pair;
  uint32_t token;
};

// Lines 0 to `count` of a step; find(line) gives the place of one.
template <typename finder>
__device__ inline void append_codes(const wide_consumer &c, const mk_instruction_word &in, uint32_t count,
                                    finder find) {
  enum { TOGETHER = 4 };
  const mk_operand &k = in.parts[MK_PART_APPEND_k], &v = in.parts[MK_PART_APPEND_v];
  const mk_gpu_buffer &kv = c.d.buffer(in.parts[MK_PART_APPEND_kv]);
  const float *from[2] = {plain_lines<float>(c.d, k), plain_lines<float>(c.d, v)};
  const uint32_t cols = c.d.buffer(k).cols, pair = tile::lane();
  const bool more = kv.head_dim > 64, normed = MK_GPU_FAMILIES && param(in, MK_PARAM_APPEND_eps) != 0;
#pragma unroll 1
  for (uint32_t first = c.d.warp; first < count; first += MK_GPU_CONSUMER_WARPS * TOGETHER) {
    appended_place to[TOGETHER];
    float2 values[TOGETHER][2][2];  // of K and V, the first 64 dims and the others
#pragma unroll
    for (uint32_t i = 0; i < TOGETHER; i++) {
      uint32_t line = first + i * MK_GPU_CONSUMER_WARPS;
      to[i] = line < count ? find(line) : appended_place{nullptr, 0};
#pragma unroll
      for (uint32_t which = 0; which < 2; which++) {
        const float *row = from[which] + static_cast<uint64_t>(min(line, count - 1)) * cols;
        const float *own = row + (normed ? pair / 8 * MK_SQUARED_TILE + pair % 8 * 2 : 2 * pair);
        values[i][which][0] = tile::load_l2<float2>(own);
        values[i][which][1] = more ? tile::load_l2<float2>(own + head_columns(c.d.buffer(k), 64)) : values[i][which][0];
        if (normed && which == 0) {
          float scale = head_scale(row, kv.head_dim, __uint_as_float(param(in, MK_PARAM_APPEND_eps)));
#pragma unroll
          for (uint32_t h = 0; h < 2; h++) {
            values[i][0][h].x = __fmul_rn(values[i][0][h].x, scale);
            values[i][0][h].y = __fmul_rn(values[i][0][h].y, scale);
          }
        }
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < TOGETHER; i++) {
      if (to[i].pair == nullptr) {  // of all lanes
        continue;
      }
#pragma unroll
      for (uint32_t which = 0; which < 2; which++) {
        const float2(&own)[2] = values[i][which];
        put_codes(kv, to[i].pair, which, to[i].token, 2 * pair, quantise_pair(own[0], own[1]));
        if (more) {
          put_codes(kv, to[i].pair, which, to[i].token, 64 + 2 * pair, quantise_pair(own[1], own[0]));
        }
      }
    }
  }
}

}  // namespace mk
