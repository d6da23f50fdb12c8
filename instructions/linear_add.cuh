// LINEAR_ADD on the device. y = residual_in + W x; residual_out = y; out = bf16(y); linear_add.c.
// Tiles: weight [16 n, 16 k] bf16 through the page ring; x bf16; 16 fp32 residual rows and 8 stamped words per row tile.
// Waits: x (consumers). Signals: the counter of its value.
#pragma once
#include "vm/gpu/consumer.cuh"
#include "vm/gpu/storer.cuh"

namespace mk {

__device__ inline bool consume_LINEAR_ADD(consumer &c, const mk_instruction &in) {
  return consume_linear(c, in, MK_SLOT_LINEAR_ADD_x, MK_SLOT_LINEAR_ADD_weight);
}

__device__ inline bool store_LINEAR_ADD(storer &s, const mk_instruction &in) {
  return store_residual(s, in, MK_SLOT_LINEAR_ADD_residual_in, MK_SLOT_LINEAR_ADD_residual_out, MK_SLOT_LINEAR_ADD_out);
}

}  // namespace mk
