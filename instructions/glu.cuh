// GLU on the device. g, u = W norm(x), rows 0-7 and 8-15 of each tile; out = bf16(g / (1 + exp(-g)) * u); glu.c.
// Tiles: weight [16 n, 16 k] bf16 through the page ring; x times gain as bf16; out 4 stamped words per row tile.
// Of other families with a bias for each row of the weight.
// Waits: x (consumers). Signals: the counter of its value.
#pragma once
#include "vm/gpu/consumer.cuh"
#include "vm/gpu/storer.cuh"

namespace mk {

__device__ inline void begin_GLU(const storer &s, const mk_instruction_word &in, row_store &r) {
  r.tiles = in.parts[MK_PART_GLU_weight].rows;
  r.row = published_row(s, in.parts[MK_PART_GLU_out]);
}

template <bool has_biases = MK_GPU_FAMILIES>
requires has_biases __device__ inline void prepare_GLU(const storer &s, const mk_instruction_word &in, uint32_t i,
                                                       row_store &r) {
  uint32_t row = even_row(s);
  r.bias = {glu_bias(in, i, row), glu_bias(in, i, row + 1)};
}

__device__ inline void finish_GLU(const storer &s, const mk_instruction_word &, uint32_t i, two_rows y, row_store &r) {
  y = normed(y, r);
  if constexpr (MK_GPU_FAMILIES) {
    y = {__fadd_rn(y.even, r.bias.even), __fadd_rn(y.odd, r.bias.odd)};
  }
  two_rows up = from_partner(y, 4);
  publish_bf16(s, r.row, i * 4, {gated(y.even, up.even), gated(y.odd, up.odd)}, 4);
}

}  // namespace mk
