// QKV on the device. out = rope(W norm(x), position) for the first rope_tiles row tiles, W norm(x) for the rest; qkv.c.
// Tiles: weight [16 n, 16 k] bf16 through the page ring; x staged as two bf16 columns; out 16 fp32 stamped words per row tile.
// Waits: x (consumers), the step state (storer: the position). Signals: the counter of its value, after the last tile.
#pragma once
#include "vm/gpu/consumer.cuh"
#include "vm/gpu/storer.cuh"

namespace mk {

__device__ inline void begin_QKV(const storer &s, const mk_instruction_word &in, row_store &r) {
  r.tiles = in.parts[MK_PART_QKV_weight].rows;
  r.row = stamped_row(s.d, in.parts[MK_PART_QKV_out]);
  begin_norm(__uint_as_float(param(in, MK_PARAM_QKV_eps)), static_cast<float>(param(in, MK_PARAM_QKV_width)), r);
}

// Cosine and sine of the rows' angles; 1 and 0 where nothing is rotated.
__device__ inline void prepare_QKV(const storer &s, const mk_instruction_word &in, uint32_t i, row_store &r) {
  uint32_t tile = in.parts[MK_PART_QKV_weight].row + i, tiles_per_head = param(in, MK_PARAM_QKV_head_dim) / 16;
  r.a = {1.0f, 1.0f};
  r.b = {0.0f, 0.0f};
  if (tile < param(in, MK_PARAM_QKV_rope_tiles)) {
    const float *inv_freq = reinterpret_cast<const float *>(whole_buffer(in, MK_WHOLE_QKV_inv_freq).address);
    bool odd =
        s.lane / 8 % 2 != 0;  // each lane takes one of its two rows, and the other one's from a lane that has the same
    uint32_t row = 2 * (s.lane % 4) + (odd ? 1 : 0);
    // The angle in fp32 as transformers computes it; reduced in fp64 so that the fast sine is exact enough.
    float angle = static_cast<float>(state_of(s).position) * inv_freq[tile % tiles_per_head * 8 + row];
    double turns = static_cast<double>(angle) * 0.15915494309189533577;
    float reduced = static_cast<float>((turns - rint(turns)) * 6.283185307179586476925), sine, cosine;
    __sincosf(reduced, &sine, &cosine);
    two_rows other = from_partner({cosine, sine}, 8);
    r.a = odd ? two_rows{other.even, cosine} : two_rows{cosine, other.even};
    r.b = odd ? two_rows{other.odd, sine} : two_rows{sine, other.odd};
  }
}

__device__ inline void finish_QKV(const storer &s, const mk_instruction_word &, uint32_t i, two_rows y, float squares,
                                  row_store &r) {
  y = normed(i, y, squares, r);
  two_rows partner = from_partner(y, 4);
  float sign = s.lane % 8 < 4 ? -1.0f : 1.0f;
  publish_floats(
      s, r.row, i * 16,
      {y.even * r.a.even + sign * (partner.even * r.b.even), y.odd * r.a.odd + sign * (partner.odd * r.b.odd)});
}

}  // namespace mk
