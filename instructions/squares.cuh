// SQUARES on the device, of the kernels for wide steps: the squares of a unit's 128 columns of a sum of parts, which
// are a chain; squares.c. A warp takes a line at a time, of which each lane has four neighbouring elements, as with
// NORM. Waits: the parts. Signals: the counter of the squares.
#pragma once
#include "instructions/canon.cuh"
#include "instructions/linear_operands.cuh"
#include "vm/gpu/wide.cuh"

namespace mk {

// s of four neighbouring columns, of the warp's lines from number `first` on, up to the last one of `lines`; the lane's
// columns begin at `from`, of line 0 of the first part.
template <uint32_t count>
__device__ inline void sum_quads(const wide_consumer &c, const mk_operand &parts, const float *from, uint32_t first,
                                 uint32_t lines, const float (&bias)[4], float (&s)[count][4]) {
  const mk_gpu_buffer &b = c.d.buffer(parts);
#pragma unroll
  for (uint32_t i = 0; i < count * 4; i++) {
    s[i / 4][i % 4] = 0.0f;
  }
#pragma unroll 1
  for (uint32_t part = 0; part < parts.rows; part++, from += static_cast<uint64_t>(b.tile_rows) * b.cols) {
    float4 x[count];
#pragma unroll
    for (uint32_t i = 0; i < count; i++) {
      uint32_t line = min(first + i * MK_GPU_CONSUMER_WARPS, lines - 1);
      x[i] = tile::load_l2<float4>(from + static_cast<uint64_t>(line) * b.cols);
    }
#pragma unroll
    for (uint32_t i = 0; i < count; i++) {
      s[i][0] = __fadd_rn(s[i][0], x[i].x);
      s[i][1] = __fadd_rn(s[i][1], x[i].y);
      s[i][2] = __fadd_rn(s[i][2], x[i].z);
      s[i][3] = __fadd_rn(s[i][3], x[i].w);
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < count * 4; i++) {
    s[i / 4][i % 4] = __fadd_rn(s[i / 4][i % 4], bias[i % 4]);
  }
}

template <bool has_norms = MK_GPU_FAMILIES>
requires has_norms __device__ inline void consume_SQUARES(wide_consumer &c, const mk_instruction_word &in) {
  enum { BATCH = LINES / 2 / MK_GPU_CONSUMER_WARPS };  // lines of a warp, that are fetched together
  const mk_operand &parts = in.parts[MK_PART_SQUARES_parts], &squares = in.parts[MK_PART_SQUARES_squares];
  const mk_gpu_buffer &gain = whole_buffer(in, MK_WHOLE_SQUARES_gain);
  uint32_t lane = tile::lane(), lines = active_lines(c.d, squares.row), width = param(in, MK_PARAM_SQUARES_width);
  uint32_t column = parts.col * MK_TILE + lane * 4, own = column < width ? min(width - column, 4u) : 0;
  uint32_t readers = places_of(c.d, squares);
  float bias[4];
#pragma unroll
  for (uint32_t k = 0; k < 4; k++) {
    bias[k] = k < own ? element_of(gain, width + column + k) : 0.0f;
  }
  consumers_wait(c, in);
  // A lane without columns looks at those of the first one.
  const float *from = plain_lines<float>(c.d, parts) + (own != 0 ? lane * 4 : 0);
#pragma unroll 1
  for (uint32_t first = c.d.warp; first < lines; first += BATCH * MK_GPU_CONSUMER_WARPS) {
    float s[BATCH][4];
    sum_quads(c, parts, from, first, lines, bias, s);
#pragma unroll
    for (uint32_t i = 0; i < BATCH; i++) {
      uint32_t line = first + i * MK_GPU_CONSUMER_WARPS;
#pragma unroll
      for (uint32_t k = 0; k < 4; k++) {
        s[i][k] = k < own ? s[i][k] : 0.0f;
      }
      float sum = chain_squares(s[i]);
      if (lane == 0 && line < lines) {
        to_readers(readers, plain_lines<float>(c.d, squares) + static_cast<uint64_t>(line) * c.d.buffer(squares).cols,
                   [=](float *copy) { *copy = sum; });
      }
    }
  }
  __syncwarp();
  consumers_signal(c, in);
}

}  // namespace mk
