// LINEAR_ADD on the device. y = residual_in + W x; residual_out = y; out = bf16(y); linear_add.c.
// Tiles: weight [16 n, 16 k] bf16 through the page ring; x bf16; 16 fp32 residual rows and 8 stamped words per row
// tile.
// Waits: x (consumers). Signals: the counter of its value.
#pragma once
#include "vm/gpu/consumer.cuh"
#include "vm/gpu/storer.cuh"

namespace mk {

__device__ inline void begin_LINEAR_ADD(const storer &s, const mk_instruction_word &in, row_store &r) {
  begin_residual(s, in, MK_PART_LINEAR_ADD_residual_out, MK_PART_LINEAR_ADD_out, r);
}

__device__ inline void prepare_LINEAR_ADD(const storer &s, const mk_instruction_word &in, uint32_t i, row_store &r) {
  r.a = load_residual(s, in.parts[MK_PART_LINEAR_ADD_residual_in], i);
}

}  // namespace mk
