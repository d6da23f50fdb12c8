// APPEND on the device, of the kernel for wide steps: k and v of all lines of a KV head, as bf16, into the blocks of their positions; append.c. Tiles of 16
// tokens and 16 dims, each by a warp, of which a lane has the eight elements that lie together; the first tile of tokens may have some from before the
// step, which stay. Behind the last token V is zero up to the next whole part of 32 tokens, so that what ATTEND multiplies is numbers. Waits: q, k and v
// of all line tiles. Signals: that the head's cache is up to date.
#pragma once
#include "vm/gpu/wide.cuh"

namespace mk {

// Puts a lane's elements of a tile in place; bit i of `here`: the i-th is of this step.
__device__ inline void put_elements(uint32_t *to, const uint32_t (&words)[4], uint32_t here) {
  if (here == 0xff) {
    *reinterpret_cast<uint4 *>(to) = make_uint4(words[0], words[1], words[2], words[3]);
    return;
  }
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) {
    if ((here >> i & 1) != 0) {
      reinterpret_cast<uint16_t *>(to)[i] = static_cast<uint16_t>(words[i / 2] >> i % 2 * 16);
    }
  }
}

enum { APPEND_TILE = 16, APPEND_BATCH = 8 };

// Tiles of K, or of V, of sixteen dims: all of the step's tokens. from: the lane's elements of the first of them, as rows of `cols`; to: where they go in
// a block whose number is 0, by bytes.
struct appended_dims {
  const float *from;
  uint8_t *to;
  const uint32_t *table;
  uint64_t block_bytes;
  uint32_t cols, tile_bytes;  // from tile to tile of tokens
  uint32_t first, end, whole;
};

// Element e of lane 4 g + t is of row g or g + 8 of the tile, and of two columns from 2 t or 2 t + 8 on. Tokens are rows of K, and columns of V.
template <bool is_v>
__device__ inline void append_dims(const appended_dims &a) {
  uint32_t lane = tile::lane(), g = lane / 4, t = lane % 4 * 2;
#pragma unroll 1
  for (uint32_t base = a.first / APPEND_TILE * APPEND_TILE; base < a.whole; base += APPEND_BATCH * APPEND_TILE) {
    float values[APPEND_BATCH][8];
#pragma unroll
    for (uint32_t i = 0; i < APPEND_BATCH; i++) {
#pragma unroll
      for (uint32_t e = 0; e < 8; e++) {
        uint32_t row = g + e / 2 % 2 * 8, col = t + e / 4 * 8 + e % 2;
        uint32_t line = base + i * APPEND_TILE + (is_v ? col : row) - a.first;
        values[i][e] =
            line < a.end - a.first ? tile::load_relaxed(a.from + line * a.cols + (is_v ? row : col)) : 0.0f;
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < APPEND_BATCH; i++) {
      uint32_t token = base + i * APPEND_TILE, words[4], here = 0;
#pragma unroll
      for (uint32_t e = 0; e < 8; e++) {
        uint32_t position = token + (is_v ? t + e / 4 * 8 + e % 2 : g + e / 2 % 2 * 8);
        here |= position >= a.first && position < (is_v ? a.whole : a.end) ? 1u << e : 0;
        if (e % 2 != 0) {
          words[e / 2] = tile::pack_bf16(values[i][e - 1], values[i][e]);
        }
      }
      if (token < a.whole) {
        uint64_t block = __ldg(a.table + token / 64);
        put_elements(reinterpret_cast<uint32_t *>(a.to + block * a.block_bytes + token / APPEND_TILE % 4 * a.tile_bytes),
                     words, here);
      }
    }
  }
}

__device__ inline void consume_APPEND(wide_consumer &c, const mk_instruction_word &in) {
  enum { PART_TOKENS = 32 };
  const mk_operand &kv = in.parts[MK_PART_APPEND_kv];
  const mk_gpu_buffer &b = c.d.buffer(kv);
  uint32_t steps = b.head_dim / APPEND_TILE, end = lines_of(c.d).first + lines_of(c.d).count;
  appended_dims a = {nullptr,
                     nullptr,
                     reinterpret_cast<const uint32_t *>(whole_buffer(in, MK_WHOLE_APPEND_table).address),
                     static_cast<uint64_t>(b.cols) * 256 * b.head_dim,
                     c.d.buffer(in.parts[MK_PART_APPEND_k]).cols,
                     steps * 512,
                     lines_of(c.d).first,
                     end,
                     (end + PART_TOKENS - 1) / PART_TOKENS * PART_TOKENS};
  consumers_wait(c, in);
#pragma unroll 1
  for (uint32_t part = c.d.warp; part < 2 * steps; part += MK_GPU_CONSUMER_WARPS) {
    uint32_t is_v = part / steps, dims = part % steps;
    a.from = plain_lines<float>(c.d, is_v != 0 ? in.parts[MK_PART_APPEND_v] : in.parts[MK_PART_APPEND_k]) +
             dims * APPEND_TILE;
    a.to = reinterpret_cast<uint8_t *>(b.address) + static_cast<uint64_t>(kv.col) * 256 * b.head_dim +
           is_v * 128 * b.head_dim + dims * 512 + tile::lane() * 16;
    if (is_v != 0) {
      append_dims<true>(a);
    } else {
      append_dims<false>(a);
    }
  }
  consumers_signal(c, in);
}

}  // namespace mk
