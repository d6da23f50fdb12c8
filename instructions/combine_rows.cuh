// COMBINE of several rows per step on the device: the splits in use of each line become the attention output of some query heads; combine.c.
// Consumers only: a thread has two output values of a line, and its splits in order; at the end all meet, and the flags are raised. Split j of a line in slot c is what unit (j + c) mod
// units has left. Waits: the parts in use, by their stamps. Signals: the counter of its value.
#pragma once
#include "instructions/combine.cuh"
#include "vm/gpu/rows.cuh"

namespace mk {

__device__ inline void consume_COMBINE_rows(consumer &c, const mk_instruction &in) {
  enum { BATCH = 4 };  // splits that a thread fetches together
  const mk_operand &parts = in.operands[MK_SLOT_COMBINE_parts], &out = in.operands[MK_SLOT_COMBINE_out];
  const mk_gpu_buffer &b = c.d.buffer(parts), &to = c.d.buffer(out);
  const volatile rows_state &state = rows_of(c.d);
  uint32_t rows = c.d.params.rows, stride = b.tile_cols, pair_bits = stride == 66 ? 5 : 6, heads = parts.cols;
  uint32_t active = state.active;
#pragma unroll 1
  for (uint32_t i = c.warp * 32 + c.lane; i < (rows * heads) << pair_bits; i += MK_GPU_CONSUMER_WARPS * 32) {
    uint32_t pair = i & ((1u << pair_bits) - 1), line = (i >> pair_bits) / heads, head = (i >> pair_bits) % heads;
    bool here = (active >> line & 1) != 0;  // the same for a warp
    if (!here) {
      continue;
    }
    uint32_t units = parts.rows, shift = state.rows[line].slot % units;
    uint32_t in_use = min(state.rows[line].position / in.params[MK_PARAM_COMBINE_span] + 1, units);
    const uint64_t *words = reinterpret_cast<const uint64_t *>(b.address) + static_cast<uint64_t>(line) * b.row_words +
                            (parts.col + head) * stride;
    merged_unit sum;
#pragma unroll 1
    for (uint32_t first = 0; first < in_use; first += BATCH) {
      auto at = [&](uint32_t j) {
        uint32_t unit = first + j / 2 + shift;
        unit -= unit >= units ? units : 0;
        return words + static_cast<uint64_t>(unit * rows) * b.row_words + (j % 2 == 0 ? 2 * pair : stride - 2);
      };
      auto has = [&](uint32_t j) { return first + j / 2 < in_use; };
      fold_splits<BATCH>(c, parts.buffer, at, has, sum);
    }
    float scale = __fdividef(1.0f, sum.total);
    uint32_t at = (out.col * to.tile_cols + (head << pair_bits) * 2) / 2 + pair;
    *value_view(to).word(line, at) = tile::pack_bf16(sum.low * scale, sum.high * scale);
  }
  consumers_meet(c);
  uint32_t flags = heads << (pair_bits - 3) << 2, first = out.col * to.tile_cols / 16 * STEP_FLAGS;  // four a step
  if (c.warp * 32 + c.lane < flags && publishes(c.d)) {
    tile::fence_release();
    tile::store_relaxed(value_view(to).flags(to, 0) + first + c.warp * 32 + c.lane, c.d.generation());
  }
}

}  // namespace mk
