// GLU on the device. g, u = W norm(x), rows 0-7 and 8-15 of each tile; out = bf16(g / (1 + exp(-g)) * u); glu.c.
// Tiles: weight [16 n, 16 k] bf16 through the page ring; x staged as two bf16 columns; out 4 stamped words per row tile.
// Waits: x (consumers). Signals: the counter of its value.
#pragma once
#include "vm/gpu/consumer.cuh"
#include "vm/gpu/storer.cuh"

namespace mk {

__device__ inline bool consume_GLU(consumer &c, const mk_instruction &in) {
  return consume_normed(c, in, MK_SLOT_GLU_x, MK_SLOT_GLU_weight, MK_SLOT_GLU_gain);
}

__device__ inline bool store_GLU(storer &s, const mk_instruction &in) {
  uint64_t *row = stamped_row(s.d, in.operands[MK_SLOT_GLU_out]);
  float eps = __uint_as_float(in.params[MK_PARAM_GLU_eps]), width = static_cast<float>(in.params[MK_PARAM_GLU_width]);
  for (uint32_t i = 0; i < in.operands[MK_SLOT_GLU_weight].rows; i++) {
    float y, squares;
    if (!take_result(s, y, squares)) {
      return false;
    }
    y *= rsqrtf(squares / width + eps);
    float up = __shfl_xor_sync(0xffffffffu, y, 8);
    publish_bf16(s, row, i * 4, y / (1.0f + expf(-y)) * up, 8);
  }
  signal_from_warp(s.d, s.lane, in);
  return true;
}

}  // namespace mk
