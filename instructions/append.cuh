// APPEND on the device, of the kernel for wide steps: k and v of all lines of a KV head, as bf16, into the blocks of their positions; append.c. Behind the
// last token V is zero up to the next whole part of 32 tokens, so that what ATTEND multiplies is numbers. Waits: q, k and v of all line tiles.
// Signals: that the head's cache is up to date.
#pragma once
#include "vm/gpu/wide.cuh"

namespace mk {

// Where K (which = 0) or V of a position begins with this dim, as elements from the start of the cache.
struct cache_view {
  const mk_gpu_buffer &b;
  const uint32_t *table;
  uint32_t head;

  __device__ uint16_t *place(uint32_t which, uint32_t position, uint32_t dim) const {
    uint64_t block = __ldg(table + position / 64);
    return reinterpret_cast<uint16_t *>(b.address) + (block * b.cols + head) * 128 * b.head_dim +
           mk_block_offset(64, b.head_dim, which, position % 64, dim);
  }
};

__device__ inline void consume_APPEND(wide_consumer &c, const mk_instruction_word &in) {
  enum { PART_TOKENS = 32, BATCH = 8 };
  const mk_operand &kv = in.parts[MK_PART_APPEND_kv];
  const cache_view cache{c.d.buffer(kv),
                         reinterpret_cast<const uint32_t *>(whole_buffer(in, MK_WHOLE_APPEND_table).address), kv.col};
  const float *k = plain_lines<float>(c.d, in.parts[MK_PART_APPEND_k]),
              *v = plain_lines<float>(c.d, in.parts[MK_PART_APPEND_v]);
  uint32_t cols = c.d.buffer(in.parts[MK_PART_APPEND_k]).cols, dims = cache.b.head_dim;
  uint32_t first = lines_of(c.d).first, count = lines_of(c.d).count;
  uint32_t whole = (first + count + PART_TOKENS - 1) / PART_TOKENS * PART_TOKENS - first;
  consumers_wait(c, in);
  // A warp takes tokens by eights: of K a lane has two dims of a token, a word; of V two tokens of a dim, also one where the first is even.
#pragma unroll 1
  for (uint32_t at = c.d.warp * BATCH; at < whole; at += MK_GPU_CONSUMER_WARPS * BATCH) {
#pragma unroll 1
    for (uint32_t dim = 2 * tile::lane(); dim < dims; dim += 64) {
      float2 pairs[BATCH];
#pragma unroll
      for (uint32_t i = 0; i < BATCH; i++) {
        pairs[i] = at + i < count ? __ldcg(reinterpret_cast<const float2 *>(k + static_cast<uint64_t>(at + i) * cols + dim))
                                  : make_float2(0.0f, 0.0f);
      }
#pragma unroll
      for (uint32_t i = 0; i < BATCH; i++) {
        if (at + i < count) {
          *reinterpret_cast<uint32_t *>(cache.place(0, first + at + i, dim)) = tile::pack_bf16(pairs[i].x, pairs[i].y);
        }
      }
    }
#pragma unroll 1
    for (uint32_t dim = tile::lane(); dim < dims; dim += 32) {
      float values[BATCH];
#pragma unroll
      for (uint32_t i = 0; i < BATCH; i++) {
        values[i] = at + i < count ? __ldcg(v + static_cast<uint64_t>(at + i) * cols + dim) : 0.0f;
      }
#pragma unroll
      for (uint32_t i = 0; i < BATCH; i += 2) {
        uint32_t words = tile::pack_bf16(values[i], values[i + 1]);
        if (at + i + 1 < whole && first % 2 == 0) {
          *reinterpret_cast<uint32_t *>(cache.place(1, first + at + i, dim)) = words;
        } else if (at + i < whole) {
          *cache.place(1, first + at + i, dim) = static_cast<uint16_t>(words);
          if (at + i + 1 < whole) {
            *cache.place(1, first + at + i + 1, dim) = static_cast<uint16_t>(words >> 16);
          }
        }
      }
    }
  }
  consumers_signal(c, in);
}

}  // namespace mk
