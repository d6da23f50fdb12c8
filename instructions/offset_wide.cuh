// OFFSET of the kernels for wide steps, on the device: residual_out = residual_in, times factor where it is not 0, +
// bias; offset.c. A warp takes a line at a time, of which each lane has four neighbouring elements of the unit's 128.
// Waits: for nothing of other SMs; residual_in is what this SM has left, or the row of the line's token. Signals:
// nothing. The addition that comes next may have other warps at these elements, so all warps meet at the end.
#pragma once
#include "instructions/norm.cuh"
#include "instructions/offset_element.cuh"

namespace mk {

template <bool has_offsets = MK_GPU_FAMILIES>
requires has_offsets __device__ inline void consume_OFFSET(wide_consumer &c, const mk_instruction_word &in) {
  enum { BATCH = LINES / 2 / MK_GPU_CONSUMER_WARPS };  // lines of a warp, that are fetched together
  const mk_operand &from = in.parts[MK_PART_OFFSET_residual_in], &to = in.parts[MK_PART_OFFSET_residual_out];
  const mk_gpu_buffer &b = c.d.buffer(from), &bias = whole_buffer(in, MK_WHOLE_OFFSET_bias);
  uint32_t lane = tile::lane(), lines = active_lines(c.d, to.row), column = to.col * MK_TILE + lane * 4;
  bool of_tokens = (from.flags & MK_OPERAND_TOKEN_ROW) != 0, there = lane * 4 < to.cols * MK_TILE;
  float added[4];
#pragma unroll
  for (uint32_t k = 0; k < 4; k++) {
    added[k] = element_of(bias, column + k);
  }
  consumers_wait(c, in);
#pragma unroll 1
  for (uint32_t first = 0; there && first < lines; first += BATCH * MK_GPU_CONSUMER_WARPS) {
    float4 x[BATCH];
#pragma unroll
    for (uint32_t i = 0; i < BATCH; i++) {
      uint32_t line = min(first + i * MK_GPU_CONSUMER_WARPS + c.d.warp, lines - 1);
      if (of_tokens) {
        uint2 pairs = token_pairs(b, lines_of(c.d).tokens[to.row * LINES + line], from.col);
        x[i] = make_float4(tile::low_bf16(pairs.x), tile::high_bf16(pairs.x), tile::low_bf16(pairs.y),
                           tile::high_bf16(pairs.y));
      } else {
        x[i] = tile::load_l2<float4>(plain_lines<float>(c.d, from) + static_cast<uint64_t>(line) * b.cols + lane * 4);
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < BATCH; i++) {
      uint32_t line = first + i * MK_GPU_CONSUMER_WARPS + c.d.warp;
      if (line < lines) {
        float4 y = make_float4(offset_of(in, x[i].x, added[0]), offset_of(in, x[i].y, added[1]),
                               offset_of(in, x[i].z, added[2]), offset_of(in, x[i].w, added[3]));
        to_readers(own_place(c.d), plain_lines<float>(c.d, to) + static_cast<uint64_t>(line) * c.d.buffer(to).cols,
                   [=](float *own) { tile::store<float4>(own + lane * 4, y); });
      }
    }
  }
  __syncwarp();
  consumers_meet();
}

}  // namespace mk
