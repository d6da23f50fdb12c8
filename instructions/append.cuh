// APPEND on the device, of the kernel for wide steps of one sequence: k and v of all lines of a KV head, as bf16, into
// the blocks of their positions; append.c. By tiles (append_tiles.cuh), the first of which may have tokens from before
// the step, which stay. After the last token V is zero up to the next whole part of 32 tokens, so that what ATTEND
// multiplies is numbers. Waits: q, k and v of all line tiles. Signals: that the head's cache is up to date.
#pragma once
#include "instructions/append_codes.cuh"
#include "instructions/append_tiles.cuh"

namespace mk {

__device__ inline void consume_APPEND(wide_consumer &c, const mk_instruction_word &in) {
  enum { PART_TOKENS = 32 };
  const mk_operand &kv = in.parts[MK_PART_APPEND_kv];
  const mk_gpu_buffer &b = c.d.buffer(kv);
  const uint32_t *table = tile::global<const uint32_t>(whole_buffer(in, MK_WHOLE_APPEND_table).address);
  uint32_t cols = c.d.buffer(in.parts[MK_PART_APPEND_k]).cols, parts = b.head_dim / APPEND_DIMS;
  uint32_t first = lines_of(c.d).first, end = first + lines_of(c.d).count, from = first / APPEND_TOKENS;
  const appended of = {first, end, (end + PART_TOKENS - 1) / PART_TOKENS * PART_TOKENS};
  uint8_t *room = shared_memory + MK_GPU_ACTIVATION_AT + c.d.warp * APPEND_BYTES;
  consumers_wait(c, in);
  if (keeps_codes(b)) {
    append_codes(c, in, end - first, [&](uint32_t line) {
      uint32_t position = first + line;
      return appended_place{code_pair(b, __ldg(table + position / 64), kv.col), position % 64};
    });
    consumers_signal(c, in);
    return;
  }
  // Item i is of K or of V, of some dims, of a tile of tokens.
  uint32_t items = (of.whole / APPEND_TOKENS - from) * parts * 2;
#pragma unroll 1
  for (uint32_t item = c.d.warp; item < items; item += MK_GPU_CONSUMER_WARPS) {
    bool is_v = item % 2 != 0;
    uint32_t part = item / 2 % parts, token = (from + item / 2 / parts) * APPEND_TOKENS;
    uint64_t block = __ldg(table + token / 64);
    stage_tokens(room, plain_lines<float>(c.d, in.parts[is_v ? MK_PART_APPEND_v : MK_PART_APPEND_k]),
                 part * APPEND_DIMS, cols, token, first, end, !is_v, norm_of_keys(in, b.head_dim));
    uint8_t *to = tile::global<uint8_t>(b.address) + (block * b.cols + kv.col) * 256 * b.head_dim +
                  (is_v ? 128 * b.head_dim : 0) + (token / APPEND_TOKENS % 4 * parts + part) * (APPEND_DIMS / 16 * 512);
    put_tiles(room, to, is_v, token, of);
  }
  consumers_signal(c, in);
}

}  // namespace mk
