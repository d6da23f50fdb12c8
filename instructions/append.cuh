// APPEND on the device, of the kernel for wide steps: k and v of all lines of a KV head, as bf16, into the blocks of their positions; append.c. Tiles of 16
// tokens and 16 dims, each by a warp, of which a lane has the eight elements that lie together; the first tile of tokens may have some from before the
// step, which stay. Behind the last token V is zero up to the next whole part of 32 tokens, so that what ATTEND multiplies is numbers. Waits: q, k and v
// of all line tiles. Signals: that the head's cache is up to date.
#pragma once
#include "instructions/tile/fragment.cuh"
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

// Sixteen tokens from `token` on of the dims from `from` on, whose rows are `cols` apart, the first one that of position `first`; zeros where there is
// none. By whole rows into the warp's room, as bf16.
__device__ inline void stage_tokens(uint8_t *room, const float *from, uint32_t cols, uint32_t token, uint32_t first,
                                    uint32_t end) {
  enum { LANES = APPEND_DIMS / 4, ROUNDS = APPEND_TOKENS * LANES / 32 };  // of a token
  uint32_t lane = tile::lane(), unit = lane % LANES;
  float4 values[ROUNDS];
#pragma unroll
  for (uint32_t i = 0; i < ROUNDS; i++) {
    uint32_t line = token + i * (32 / LANES) + lane / LANES - first;
    values[i] = line < end - first ? __ldcg(reinterpret_cast<const float4 *>(from + line * cols) + unit)
                                   : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
#pragma unroll
  for (uint32_t i = 0; i < ROUNDS; i++) {
    uint32_t at = append_place(i * (32 / LANES) + lane / LANES, unit / 2) + unit % 2 * 8;
    *reinterpret_cast<uint2 *>(room + at) = {tile::pack_bf16(values[i].x, values[i].y),
                                             tile::pack_bf16(values[i].z, values[i].w)};
  }
  __syncwarp();
}

// What of the step's tokens is put: of V also zeros behind them.
struct appended {
  uint32_t first, end, whole;
};

// The warp's room as tiles of K or V, side by side from `to` on.
__device__ inline void put_tiles(const uint8_t *room, uint8_t *to, bool is_v, uint32_t token, const appended &of) {
  uint32_t lane = tile::lane(), g = lane / 4, t = lane % 4, end = is_v ? of.whole : of.end, here = 0;
#pragma unroll
  for (uint32_t e = 0; e < 8;
       e++) {  // row g or g + 8 of the tile, and two columns from 2 t or 2 t + 8 on; tokens are rows of K, columns of V
    uint32_t position = token + (is_v ? 2 * t + e / 4 * 8 + e % 2 : g + e / 2 % 2 * 8);
    here |= position >= of.first && position < end ? 1u << e : 0;
  }
#pragma unroll
  for (uint32_t i = 0; i < APPEND_DIMS / 16; i++) {
    uint32_t words[4];
#pragma unroll
    for (uint32_t w = 0; w < 4; w++) {
      words[w] = *reinterpret_cast<const uint32_t *>(room + append_place(g + w % 2 * 8, i * 2 + w / 2) + t * 4);
    }
    if (is_v) {
#pragma unroll
      for (uint32_t w = 0; w < 4; w++) {
        words[w] = tile::transpose(words[w]);
      }
      uint32_t second = words[1];
      words[1] = words[2], words[2] = second;
    }
    put_elements(reinterpret_cast<uint32_t *>(to + i * 512) + lane * 4, words, here);
  }
  __syncwarp();
}

__device__ inline void consume_APPEND(wide_consumer &c, const mk_instruction_word &in) {
  enum { PART_TOKENS = 32 };
  const mk_operand &kv = in.parts[MK_PART_APPEND_kv];
  const mk_gpu_buffer &b = c.d.buffer(kv);
  const uint32_t *table = reinterpret_cast<const uint32_t *>(whole_buffer(in, MK_WHOLE_APPEND_table).address);
  uint32_t cols = c.d.buffer(in.parts[MK_PART_APPEND_k]).cols, parts = b.head_dim / APPEND_DIMS;
  uint32_t first = lines_of(c.d).first, end = first + lines_of(c.d).count, from = first / APPEND_TOKENS;
  const appended of = {first, end, (end + PART_TOKENS - 1) / PART_TOKENS * PART_TOKENS};
  uint8_t *room = shared_memory + MK_GPU_ACTIVATION_AT + c.d.warp * APPEND_BYTES;
  consumers_wait(c, in);
  // Item i is of K or of V, of some dims, of a tile of tokens.
  uint32_t items = (of.whole / APPEND_TOKENS - from) * parts * 2;
#pragma unroll 1
  for (uint32_t item = c.d.warp; item < items; item += MK_GPU_CONSUMER_WARPS) {
    bool is_v = item % 2 != 0;
    uint32_t part = item / 2 % parts, token = (from + item / 2 / parts) * APPEND_TOKENS;
    uint64_t block = __ldg(table + token / 64);
    stage_tokens(room,
                 plain_lines<float>(c.d, in.parts[is_v ? MK_PART_APPEND_v : MK_PART_APPEND_k]) + part * APPEND_DIMS,
                 cols, token, first, end);
    uint8_t *to = reinterpret_cast<uint8_t *>(b.address) + (block * b.cols + kv.col) * 256 * b.head_dim +
                  (is_v ? 128 * b.head_dim : 0) + (token / APPEND_TOKENS % 4 * parts + part) * (APPEND_DIMS / 16 * 512);
    put_tiles(room, to, is_v, token, of);
  }
  consumers_signal(c, in);
}

}  // namespace mk
