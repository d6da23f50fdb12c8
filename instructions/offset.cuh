// OFFSET on the device. residual_out = residual_in, times factor where it is not 0, + bias; offset.c.
// Tiles: 16 fp32 residual rows each, which are the SM's own. Waits: nothing; the step state, where residual_in is the
// embedding row. Signals: nothing. The storer does all of it.
#pragma once
#include "instructions/offset_element.cuh"
#include "vm/gpu/consumer.cuh"
#include "vm/gpu/storer.cuh"

namespace mk {

__device__ inline void consume_OFFSET(const consumer &, const mk_instruction_word &) {}

// Without sums there is nothing of the consumers' to take.
__device__ inline void store_OFFSET(storer &s, const mk_instruction_word &in, const instruction_cursor &,
                                    row_store &r) {
  const mk_operand &to = in.parts[MK_PART_OFFSET_residual_out];
  const mk_gpu_buffer &bias = whole_buffer(in, MK_WHOLE_OFFSET_bias);
  float2 *plain = tile::global<float2>(s.d.buffer(to).address);
#pragma unroll 1
  for (uint32_t tile = 0; tile < to.cols; tile++) {
    uint32_t element = (to.col + tile) * 16 + even_row(s);
    two_rows y = load_residual(s, in.parts[MK_PART_OFFSET_residual_in], tile);
    y = {offset_of(in, y.even, element_of(bias, element)), offset_of(in, y.odd, element_of(bias, element + 1))};
    if (s.lane < 8) {
      plain[element / 2] = make_float2(y.even, y.odd);
    }
  }
  r.tiles = 0;
}

}  // namespace mk
