// LINEAR_PART on the device. out = W x over a part of K; linear_part.c.
// Tiles: weight [16 n, 16 k] bf16 through the page ring; x bf16; out 16 fp32 stamped words per row tile.
// Waits: x (consumers). Signals: the counter of the parts.
#pragma once
#include "vm/gpu/consumer.cuh"
#include "vm/gpu/storer.cuh"

namespace mk {

__device__ inline bool consume_LINEAR_PART(consumer &c, const mk_instruction &in) {
  return consume_linear(c, in, MK_SLOT_LINEAR_PART_x, MK_SLOT_LINEAR_PART_weight);
}

__device__ inline bool store_LINEAR_PART(storer &s, const mk_instruction &in) {
  uint64_t *row = stamped_row(s.d, in.operands[MK_SLOT_LINEAR_PART_out]);
  for (uint32_t i = 0; i < in.operands[MK_SLOT_LINEAR_PART_weight].rows; i++) {
    float y, squares;
    if (!take_result(s, y, squares)) {
      return false;
    }
    publish_float(s, row, i * 16, y);
  }
  signal_from_warp(s.d, s.lane, in);
  return true;
}

}  // namespace mk
