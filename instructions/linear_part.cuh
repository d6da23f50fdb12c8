// LINEAR_PART on the device. out = W x over a part of K; linear_part.c.
// Tiles: weight [16 n, 16 k] bf16 through the page ring; x bf16; out 16 fp32 stamped words per row tile.
// Waits: x (consumers). Signals: the counter of the parts.
#pragma once
#include "vm/gpu/consumer.cuh"
#include "vm/gpu/storer.cuh"

namespace mk {

__device__ inline void begin_LINEAR_PART(const storer &s, const mk_instruction_word &in, row_store &r) {
  r.tiles = in.parts[MK_PART_LINEAR_PART_weight].rows;
  r.row = stamped_row(s.d, in.parts[MK_PART_LINEAR_PART_out]);
  r.keep_readers(in.parts[MK_PART_LINEAR_PART_out]);
}

__device__ inline void finish_LINEAR_PART(const storer &s, const mk_instruction_word &, uint32_t i, const two_rows &y,
                                          const row_store &r) {
  publish_floats(s, r, i * 16, y);
}

}  // namespace mk
