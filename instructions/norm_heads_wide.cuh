// NORM_HEADS of the kernels for wide steps, on the device: q and k, each normed over all of its heads, and v as it is;
// norm_heads.c. Tiles: values of 18 fp32, the last two of which are the squares of the others and a zero; out 16. A
// warp has four lines at a time, of all of the instruction's tiles, and looks at the squares of all tiles of a kind
// first, of which a lane has eights; then of the values a lane has pairs. Waits: the values. Signals: the counter of
// its value.
#pragma once
#include "instructions/canon.cuh"
#include "vm/gpu/wide.cuh"

namespace mk {

enum { HEADS_LINES = 4, HEADS_PAIRS = 4 };  // of a warp, and of a lane and line, that are fetched together

// 1 / rms of `count` tiles, of lines that have the first of them at `rows`: squares by eights, each lane eight of them,
// and these one after the other.
__device__ inline void heads_scales(const float *const (&rows)[HEADS_LINES], uint32_t count, float eps,
                                    float (&to)[HEADS_LINES]) {
  enum { EIGHT = 8 };
  float sums[HEADS_LINES] = {};
#pragma unroll 1
  for (uint32_t base = 0; base < count; base += 32 * EIGHT) {
    uint32_t tile = base + tile::lane() * EIGHT;
    float eights[HEADS_LINES];
#pragma unroll
    for (uint32_t i = 0; i < HEADS_LINES; i++) {
      float q[EIGHT];
#pragma unroll
      for (uint32_t k = 0; k < EIGHT; k++) {
        q[k] = tile + k < count ? tile::load_l2<float>(rows[i] + (tile + k) * MK_SQUARED_TILE + MK_TILE) : 0.0f;
      }
      eights[i] = sum_of_eight(q);
    }
#pragma unroll 4
    for (uint32_t lane = 0; lane < 32; lane++) {
#pragma unroll
      for (uint32_t i = 0; i < HEADS_LINES; i++) {
        sums[i] = __fadd_rn(sums[i], tile::from_lane(eights[i], lane));
      }
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < HEADS_LINES; i++) {
    to[i] = norm_scale(sums[i], reciprocal_of(static_cast<float>(count * MK_TILE)), eps);
  }
}

template <bool has_norms = MK_GPU_FAMILIES>
requires has_norms __device__ inline void consume_NORM_HEADS(wide_consumer &c, const mk_instruction_word &in) {
  const mk_operand &values = in.parts[MK_PART_NORM_HEADS_values], &out = in.parts[MK_PART_NORM_HEADS_out];
  const uint32_t queries = param(in, MK_PARAM_NORM_HEADS_query_tiles);
  const uint32_t keys_end = queries + param(in, MK_PARAM_NORM_HEADS_key_tiles);
  const float eps = __uint_as_float(param(in, MK_PARAM_NORM_HEADS_eps));
  const uint32_t lines = active_lines(c.d, out.row), pairs = out.cols * (MK_TILE / 2);
  const uint32_t cols = c.d.buffer(values).cols, to_cols = c.d.buffer(out).cols, readers = places_of(c.d, out);
  consumers_wait(c, in);
#pragma unroll 1
  for (uint32_t first = c.d.warp; first < lines; first += HEADS_LINES * MK_GPU_CONSUMER_WARPS) {
    const float *rows[HEADS_LINES], *keys[HEADS_LINES];
    float query_scales[HEADS_LINES] = {}, key_scales[HEADS_LINES] = {};
#pragma unroll
    for (uint32_t i = 0; i < HEADS_LINES; i++) {
      uint32_t line = min(first + i * MK_GPU_CONSUMER_WARPS, lines - 1);
      rows[i] = plain_lines<float>(c.d, values) + static_cast<uint64_t>(line) * cols;
      keys[i] = rows[i] + queries * MK_SQUARED_TILE;
    }
    if (out.col < queries) {
      heads_scales(rows, queries, eps, query_scales);
    }
    if (out.col < keys_end && out.col + out.cols > queries) {
      heads_scales(keys, keys_end - queries, eps, key_scales);
    }
#pragma unroll 1
    for (uint32_t base = tile::lane(); base < pairs; base += 32 * HEADS_PAIRS) {
      float2 x[HEADS_PAIRS][HEADS_LINES];
#pragma unroll
      for (uint32_t p = 0; p < HEADS_PAIRS; p++) {
        uint32_t pair = min(base + p * 32, pairs - 1);
        uint32_t at = (out.col + pair / (MK_TILE / 2)) * MK_SQUARED_TILE + pair % (MK_TILE / 2) * 2;
#pragma unroll
        for (uint32_t i = 0; i < HEADS_LINES; i++) {
          x[p][i] = tile::load_l2<float2>(rows[i] + at);
        }
      }
#pragma unroll
      for (uint32_t p = 0; p < HEADS_PAIRS; p++) {
        uint32_t pair = base + p * 32, tile = out.col + pair / (MK_TILE / 2);
#pragma unroll
        for (uint32_t i = 0; i < HEADS_LINES; i++) {
          uint32_t line = first + i * MK_GPU_CONSUMER_WARPS;
          float scale = tile < queries ? query_scales[i] : tile < keys_end ? key_scales[i] : 1.0f;
          float2 y = make_float2(__fmul_rn(x[p][i].x, scale), __fmul_rn(x[p][i].y, scale));
          if (pair < pairs && line < lines) {
            to_readers(readers, plain_lines<float>(c.d, out) + static_cast<uint64_t>(line) * to_cols + pair * 2,
                       [=](float *copy) { tile::store<float2>(copy, y); });
          }
        }
      }
    }
    __syncwarp();
  }
  consumers_signal(c, in);
}

}  // namespace mk
