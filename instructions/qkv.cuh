// QKV on the device. out = rope(W norm(x), position) for the first rope_tiles row tiles, W norm(x) for the rest; qkv.c.
// Tiles: weight [16 n, 16 k] bf16 through the page ring; x times gain as bf16; out 16 fp32 stamped words per row tile.
// Waits: x (consumers), the step state (storer: the position). Signals: the counter of its value, after the last tile.
#pragma once
#include "vm/gpu/consumer.cuh"
#include "vm/gpu/storer.cuh"

namespace mk {

__device__ inline void begin_QKV(const storer &s, const mk_instruction_word &in, row_store &r) {
  r.tiles = in.parts[MK_PART_QKV_weight].rows;
  r.row = stamped_row(s.d, in.parts[MK_PART_QKV_out]);
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
    angle own = angle_of(state_of(s).position, inv_freq[tile % tiles_per_head * 8 + row]);
    two_rows other = from_partner({own.cosine, own.sine}, 8);
    r.a = odd ? two_rows{other.even, own.cosine} : two_rows{own.cosine, other.even};
    r.b = odd ? two_rows{other.odd, own.sine} : two_rows{own.sine, other.odd};
  }
}

__device__ inline void finish_QKV(const storer &s, const mk_instruction_word &, uint32_t i, two_rows y, row_store &r) {
  y = normed(y, r);
  two_rows partner = from_partner(y, 4);
  float sign = s.lane % 8 < 4 ? -1.0f : 1.0f;
  publish_floats(
      s, r.row, i * 16,
      {rotated(y.even, partner.even, r.a.even, sign * r.b.even), rotated(y.odd, partner.odd, r.a.odd, sign * r.b.odd)});
}

}  // namespace mk
