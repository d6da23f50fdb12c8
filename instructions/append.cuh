// APPEND on the device, of the kernel for wide steps: k and v of all lines of a KV head, as bf16, into the blocks of their positions; append.c. Tiles of 16
// tokens and 16 dims, each by a warp, of which a lane has the eight elements that lie together; the first tile of tokens may have some from before the
// step, which stay. Behind the last token V is zero up to the next whole part of 32 tokens, so that what ATTEND multiplies is numbers. Waits: q, k and v
// of all line tiles. Signals: that the head's cache is up to date.
#pragma once
#include "vm/gpu/wide.cuh"

namespace mk {

// k or v of the head, by position; what is before the step or behind it is zero.
struct new_tokens {
  const float *values;
  uint32_t cols, first, end;

  __device__ float at(uint32_t position, uint32_t dim) const {
    return position - first < end - first ? __ldcg(values + static_cast<uint64_t>(position - first) * cols + dim) : 0.0f;
  }
};

// Puts a lane's elements of a tile in place; `here`, of its words' halves, low first: which of them are of this step.
__device__ inline void put_elements(uint32_t *to, const uint32_t (&words)[4], const bool (&here)[8]) {
  bool all = true;
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) {
    all = all && here[i];
  }
  if (all) {
    *reinterpret_cast<uint4 *>(to) = make_uint4(words[0], words[1], words[2], words[3]);
    return;
  }
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) {
    if (here[i]) {
      reinterpret_cast<uint16_t *>(to)[i] = static_cast<uint16_t>(words[i / 2] >> i % 2 * 16);
    }
  }
}

__device__ inline void consume_APPEND(wide_consumer &c, const mk_instruction_word &in) {
  enum { TILE = 16, PART_TOKENS = 32, BATCH = 4 };
  const mk_operand &kv = in.parts[MK_PART_APPEND_kv];
  const mk_gpu_buffer &b = c.d.buffer(kv);
  const uint32_t *table = reinterpret_cast<const uint32_t *>(whole_buffer(in, MK_WHOLE_APPEND_table).address);
  uint32_t cols = c.d.buffer(in.parts[MK_PART_APPEND_k]).cols, steps = b.head_dim / TILE;
  uint32_t first = lines_of(c.d).first, end = first + lines_of(c.d).count;
  const new_tokens of[2] = {{plain_lines<float>(c.d, in.parts[MK_PART_APPEND_k]), cols, first, end},
                            {plain_lines<float>(c.d, in.parts[MK_PART_APPEND_v]), cols, first, end}};
  uint32_t lane = tile::lane(), g = lane / 4, t = lane % 4 * 2;
  // Of V, tiles up to a whole part; tile i is of K or V, then of dims, then of tokens.
  uint32_t from = first / TILE, tiles = ((end + PART_TOKENS - 1) / PART_TOKENS * (PART_TOKENS / TILE) - from) * steps * 2;
  consumers_wait(c, in);
#pragma unroll 1
  for (uint32_t base = c.d.warp * BATCH; base < tiles; base += MK_GPU_CONSUMER_WARPS * BATCH) {
    float values[BATCH][8];
#pragma unroll
    for (uint32_t i = 0; i < BATCH; i++) {
      uint32_t tile = base + i, is_v = tile % 2, dim = tile / 2 % steps * TILE, token = (from + tile / 2 / steps) * TILE;
#pragma unroll
      for (uint32_t e = 0; e < 8; e++) {  // row g or g + 8 of the tile, two columns from t or t + 8 on
        uint32_t row = g + e / 2 % 2 * 8, col = t + e / 4 * 8 + e % 2;
        values[i][e] = tile >= tiles ? 0.0f : of[is_v].at(token + (is_v != 0 ? col : row), dim + (is_v != 0 ? row : col));
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < BATCH; i++) {
      uint32_t tile = base + i, is_v = tile % 2, dims = tile / 2 % steps, token = (from + tile / 2 / steps) * TILE;
      if (tile >= tiles) {
        continue;
      }
      uint32_t words[4];
      bool here[8];
#pragma unroll
      for (uint32_t e = 0; e < 8; e++) {
        uint32_t position = token + (is_v != 0 ? t + e / 4 * 8 + e % 2 : g + e / 2 % 2 * 8);
        here[e] = position >= first && (is_v != 0 || position < end);
        if (e % 2 != 0) {
          words[e / 2] = tile::pack_bf16(values[i][e - 1], values[i][e]);
        }
      }
      uint64_t block = __ldg(table + token / 64);
      uint32_t *to = reinterpret_cast<uint32_t *>(b.address) + (block * b.cols + kv.col) * 64 * b.head_dim +
                     is_v * 32 * b.head_dim + (token / TILE % 4 * steps + dims) * 128 + lane * 4;
      put_elements(to, words, here);
    }
  }
  consumers_signal(c, in);
}

}  // namespace mk
