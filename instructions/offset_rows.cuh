// OFFSET of several rows per step on the device: offset.cuh, for every line. The storers do all of it.
#pragma once
#include "instructions/linear_rows.cuh"
#include "instructions/offset.cuh"

namespace mk {

__device__ inline void store_OFFSET(const rows_storer &s, const mk_instruction_word &in) {
  const mk_operand &to = in.parts[MK_PART_OFFSET_residual_out];
  const mk_gpu_buffer &bias = whole_buffer(in, MK_WHOLE_OFFSET_bias);
#pragma unroll 1
  for (uint32_t tile = 0; tile < to.cols; tile++) {
    uint32_t column_tile = to.col + tile, element = column_tile * 16 + tile::lane_row(s.lane);
    float low = element_of(bias, element), high = element_of(bias, element + 8);
    prepare_residual(s, in.parts[MK_PART_OFFSET_residual_in], tile);
    float4 x = *residuals(s, column_tile);
    keep_residual(
        s, to, column_tile,
        {{offset_of(in, x.x, low), offset_of(in, x.y, low), offset_of(in, x.z, high), offset_of(in, x.w, high)}});
  }
}

}  // namespace mk
