// QKV on the device. out = rope(W norm(x), position) for the first rope_tiles row tiles, W norm(x) for the rest; qkv.c.
// Tiles: weight [16 n, 16 k] bf16 through the page ring; x staged as two bf16 columns; out 16 fp32 stamped words per row tile.
// Waits: x (consumers), the step state (storer: the position). Signals: the counter of its value, after the last tile.
#pragma once
#include "vm/gpu/consumer.cuh"
#include "vm/gpu/storer.cuh"

namespace mk {

__device__ inline linear_slots linear_QKV() { return {MK_SLOT_QKV_x, MK_SLOT_QKV_weight, MK_SLOT_QKV_gain, true}; }

__device__ inline void begin_QKV(const storer &s, const mk_instruction &in, row_store &r) {
  r.tiles = in.operands[MK_SLOT_QKV_weight].rows;
  r.row = stamped_row(s.d, in.operands[MK_SLOT_QKV_out]);
  r.eps = __uint_as_float(in.params[MK_PARAM_QKV_eps]);
  r.width = static_cast<float>(in.params[MK_PARAM_QKV_width]);
}

// Cosine and sine of the rows' angles; 1 and 0 where nothing is rotated.
__device__ inline void prepare_QKV(const storer &s, const mk_instruction &in, uint32_t i, row_store &r) {
  uint32_t tile = in.operands[MK_SLOT_QKV_weight].row + i, tiles_per_head = in.params[MK_PARAM_QKV_head_dim] / 16;
  r.a = 1.0f;
  r.b = 0.0f;
  if (tile < in.params[MK_PARAM_QKV_rope_tiles]) {
    const float *inv_freq = reinterpret_cast<const float *>(s.d.buffer(in.operands[MK_SLOT_QKV_inv_freq]).address);
    // The angle in fp32 as transformers computes it; reduced in fp64 so that the fast sine is exact enough.
    float angle = static_cast<float>(s.state.position) * inv_freq[tile % tiles_per_head * 8 + s.lane % 8];
    double turns = static_cast<double>(angle) * 0.15915494309189533577;
    float reduced = static_cast<float>((turns - rint(turns)) * 6.283185307179586476925);
    __sincosf(reduced, &r.b, &r.a);
  }
}

__device__ inline void finish_QKV(const storer &s, uint32_t i, float y, float squares, const row_store &r) {
  y = normed(r, y, squares);
  float partner = __shfl_xor_sync(0xffffffffu, y, 8);
  publish_float(s, r.row, i * 16, s.lane % 16 < 8 ? y * r.a - partner * r.b : y * r.a + partner * r.b);
}

}  // namespace mk
