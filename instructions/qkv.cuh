// QKV on the device. out = rope(W norm(x), position) for the first rope_tiles row tiles, W norm(x) for the rest; qkv.c.
// Tiles: weight [16 n, 16 k] bf16 through the page ring; x staged as two bf16 columns; out 16 fp32 stamped words per row tile.
// Waits: x (consumers), the step state (storer: the position). Signals: the counter of its value, after the last tile.
#pragma once
#include "vm/gpu/consumer.cuh"
#include "vm/gpu/storer.cuh"

namespace mk {

__device__ inline bool consume_QKV(consumer &c, const mk_instruction &in) {
  return consume_normed(c, in, MK_SLOT_QKV_x, MK_SLOT_QKV_weight, MK_SLOT_QKV_gain);
}

__device__ inline bool store_QKV(storer &s, const mk_instruction &in) {
  const mk_operand &weight = in.operands[MK_SLOT_QKV_weight];
  const float *inv_freq = reinterpret_cast<const float *>(s.d.buffer(in.operands[MK_SLOT_QKV_inv_freq]).address);
  uint64_t *row = stamped_row(s.d, in.operands[MK_SLOT_QKV_out]);
  float eps = __uint_as_float(in.params[MK_PARAM_QKV_eps]);
  uint32_t width = in.params[MK_PARAM_QKV_width], tiles_per_head = in.params[MK_PARAM_QKV_head_dim] / 16;
  for (uint32_t i = 0; i < weight.rows; i++) {
    uint32_t tile = weight.row + i;
    bool rotated = tile < in.params[MK_PARAM_QKV_rope_tiles];
    float cosine = 1.0f, sine = 0.0f;
    if (rotated) {
      // The angle in fp32 as transformers computes it; reduced in fp64 so that the fast sine is exact enough.
      float angle = static_cast<float>(s.state.position) * inv_freq[tile % tiles_per_head * 8 + s.lane % 8];
      double turns = static_cast<double>(angle) * 0.15915494309189533577;
      float reduced = static_cast<float>((turns - rint(turns)) * 6.283185307179586476925);
      __sincosf(reduced, &sine, &cosine);
    }
    float y, squares;
    if (!take_result(s, y, squares)) {
      return false;
    }
    y *= rsqrtf(squares / static_cast<float>(width) + eps);
    float partner = __shfl_xor_sync(0xffffffffu, y, 8);
    if (rotated) {
      y = s.lane % 16 < 8 ? y * cosine - partner * sine : y * cosine + partner * sine;
    }
    publish_float(s, row, i * 16, y);
  }
  signal_from_warp(s.d, s.lane, in);
  return true;
}

}  // namespace mk
