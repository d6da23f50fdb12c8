// What APPEND puts into the cache, on the device: rows of k or v as tiles of 16 tokens and 16 dims, as bf16, each by a
// warp, of which a lane has the eight elements that lie together. Elements of other tokens stay as they are.
#pragma once
#include "instructions/head_norms.cuh"
#include "instructions/tile/fragment.cuh"
#include "vm/gpu/wide.cuh"

namespace mk {

// Puts a lane's elements of a tile in place; bit i of `here`: the i-th is of this step.
__device__ inline void put_elements(uint32_t *to, const uint32_t (&words)[4], uint32_t here) {
  if (here == 0xff) {
    tile::store<uint4>(to, make_uint4(words[0], words[1], words[2], words[3]));
    return;
  }
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) {
    if ((here >> i & 1) != 0) {
      tile::view<uint16_t>(to)[i] = static_cast<uint16_t>(words[i / 2] >> i % 2 * 16);
    }
  }
}

enum {
  APPEND_TOKENS = 16,  // of a tile
  APPEND_DIMS = 64,    // that a warp takes of it at a time
  APPEND_BYTES = APPEND_TOKENS * APPEND_DIMS * 2,
};
static_assert(MK_GPU_CONSUMER_WARPS * APPEND_BYTES <= MK_GPU_ACTIVATION_BYTES, "a warp has room for them");

// Where 16 bytes of a token lie in the warp's room: those of different tokens in different banks.
__device__ inline uint32_t append_place(uint32_t token, uint32_t unit) {
  return token * (APPEND_DIMS * 2) + (unit ^ token % 8) * 16;
}

// Four neighbouring dims of a row, from `dim` on: plain, or (squares) with the squares of each tile beside it.
__device__ inline float4 load_dims(const float *row, uint32_t dim, bool squares) {
  if (MK_GPU_FAMILIES && squares) {
    const float *at = row + dim / MK_TILE * MK_SQUARED_TILE + dim % MK_TILE;
    float2 low = tile::load_l2<float2>(at), high = tile::load_l2<float2>(at + 2);
    return make_float4(low.x, low.y, high.x, high.y);
  }
  return tile::load_l2<float4>(row + dim);
}
__device__ inline void multiply_dims(float4 &values, float factor) {
  values.x = __fmul_rn(values.x, factor);
  values.y = __fmul_rn(values.y, factor);
  values.z = __fmul_rn(values.z, factor);
  values.w = __fmul_rn(values.w, factor);
}

// How heads of k come that are to be normed: an eps, 0 where they are not, and v then neither.
struct appended_norm {
  float eps;
  uint32_t head_dim;
};
__device__ inline appended_norm norm_of_keys(const mk_instruction_word &in, uint32_t head_dim) {
  return {MK_GPU_FAMILIES ? __uint_as_float(param(in, MK_PARAM_APPEND_eps)) : 0.0f, head_dim};
}

// Sixteen tokens from `token` on, of the dims from `dims` on of rows from `from` on, which are `cols` apart, the first
// one that of position `first`; zeros where there is none. By whole rows into the warp's room, as bf16. keys: these are
// heads of k, to be normed if any are.
__device__ inline void stage_tokens(uint8_t *room, const float *from, uint32_t dims, uint32_t cols, uint32_t token,
                                    uint32_t first, uint32_t end, bool keys, const appended_norm &norm) {
  enum { LANES = APPEND_DIMS / 4, ROUNDS = APPEND_TOKENS * LANES / 32 };  // of a token
  uint32_t lane = tile::lane(), unit = tile::place_in_group<LANES>(lane);
  float4 values[ROUNDS];
#pragma unroll
  for (uint32_t i = 0; i < ROUNDS; i++) {
    uint32_t line = token + i * (32 / LANES) + tile::group_of_lane<LANES>(lane) - first;
    values[i] = line < end - first ? load_dims(from + line * cols, dims + unit * 4, norm.eps != 0.0f)
                                   : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
  if (MK_GPU_FAMILIES && norm.eps != 0.0f && keys) {
#pragma unroll
    for (uint32_t i = 0; i < ROUNDS; i++) {
      uint32_t line = token + i * (32 / LANES) + tile::group_of_lane<LANES>(lane) - first;
      multiply_dims(values[i], head_scale(from + (line < end - first ? line : 0) * cols, norm.head_dim, norm.eps));
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < ROUNDS; i++) {
    uint32_t at = append_place(i * (32 / LANES) + tile::group_of_lane<LANES>(lane), unit / 2) + unit % 2 * 8;
    tile::store<uint2>(room + at,
                       uint2{tile::pack_bf16(values[i].x, values[i].y), tile::pack_bf16(values[i].z, values[i].w)});
  }
  __syncwarp();
}

// Which of the step's tokens are put into the cache; of V also zeros after them.
struct appended {
  uint32_t first, end, whole;
};

// The warp's room as tiles of K or V, side by side from `to` on.
__device__ inline void put_tiles(const uint8_t *room, uint8_t *to, bool is_v, uint32_t token, const appended &of) {
  uint32_t lane = tile::lane(), g = tile::lane_row(lane), t = tile::lane_of_quad(lane), end = is_v ? of.whole : of.end,
           here = 0;
  // Row g or g + 8 of the tile, and two columns from 2 t or 2 t + 8 on; tokens are rows of K, columns of V.
#pragma unroll
  for (uint32_t e = 0; e < 8; e++) {
    uint32_t position = token + (is_v ? 2 * t + e / 4 * 8 + e % 2 : g + e / 2 % 2 * 8);
    here |= position >= of.first && position < end ? 1u << e : 0;
  }
#pragma unroll
  for (uint32_t i = 0; i < APPEND_DIMS / 16; i++) {
    uint32_t words[4];
#pragma unroll
    for (uint32_t w = 0; w < 4; w++) {
      words[w] = tile::load<uint32_t>(room + append_place(g + w % 2 * 8, i * 2 + w / 2) + t * 4);
    }
    if (is_v) {
#pragma unroll
      for (uint32_t w = 0; w < 4; w++) {
        words[w] = tile::transpose(words[w]);
      }
      uint32_t second = words[1];
      words[1] = words[2], words[2] = second;
    }
    put_elements(tile::view<uint32_t>(to + i * 512) + lane * 4, words, here);
  }
  __syncwarp();
}

}  // namespace mk
