// NORM_HEADS of several rows per step on the device: norm_heads.cuh, for every line; warp w has line w.
#pragma once
#include "instructions/norm_heads.cuh"
#include "vm/gpu/rows_consumer.cuh"

namespace mk {

__device__ inline void consume_NORM_HEADS(const rows_consumer &c, const mk_instruction_word &in) {
  const uint64_t *values = stamped_row(c.d, in.parts[MK_PART_NORM_HEADS_values]);
  uint64_t *out = stamped_row(c.d, in.parts[MK_PART_NORM_HEADS_out]);
  if ((rows_of(c.d).active >> c.warp & 1) != 0) {
    const mk_gpu_buffer *buffers = device::slot_of(in).buffers;
    norm_tiles(c.d, in, values + static_cast<uint64_t>(c.warp) * buffers[MK_PART_NORM_HEADS_values].row_words,
               out + static_cast<uint64_t>(c.warp) * buffers[MK_PART_NORM_HEADS_out].row_words, 0, NORM_HEADS_TILES);
  }
}
static_assert(MK_GPU_CONSUMER_WARPS == 16, "a warp for each line");

}  // namespace mk
