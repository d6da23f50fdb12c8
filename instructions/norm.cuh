// NORM on the device, of the kernel for wide steps: h = bf16(x times gain) of a unit's 128 columns, or x where there is
// no gain, and the sum of squares of x over them, which is a chain's; norm.c. A warp takes a line at a time, of which
// each lane has four neighbouring elements. Waits: for nothing of other SMs; it comes after the instruction that wrote
// x on this SM. Signals: the counter of h.
#pragma once
#include "instructions/canon.cuh"
#include "vm/gpu/wide.cuh"

namespace mk {

// Loads the lane's elements of a token's row of the embedding, from column tile `tile` on.
__device__ inline uint2 token_pairs(const mk_gpu_buffer &b, uint32_t token, uint32_t tile) {
  uint32_t lane = tile::lane(), row = token % 16;
  const uint32_t *words = tile::global<const uint32_t>(b.address) +
                          (static_cast<uint64_t>(token / 16) * b.grid_cols + tile + tile::lane_row(lane)) * 128;
  uint32_t column = tile::lane_column(lane) * 2;
  return {__ldg(words + mk_step_offset(row, column) / 2), __ldg(words + mk_step_offset(row, column + 2) / 2)};
}

// The first `count` of four elements of bf16; the others become 0.
__device__ inline uint2 first_of_four(const uint2 &pairs, uint32_t count) {
  auto kept = [](uint32_t pair, uint32_t elements) { return elements >= 2 ? pair : pair & elements * 0xffff; };
  return {kept(pairs.x, count), kept(pairs.y, count - min(count, 2u))};
}

__device__ inline void consume_NORM(wide_consumer &c, const mk_instruction_word &in) {
  enum { BATCH = LINES / 2 / MK_GPU_CONSUMER_WARPS };  // lines of a warp, that are fetched together
  enum { ROLLED = MK_GPU_SLOTS ? 1 : BATCH };
  enum { ONES = 0x3f803f80 };  // for x as it is: two elements of bf16
  const mk_operand &x = in.parts[MK_PART_NORM_x], &out = in.parts[MK_PART_NORM_out],
                   &squares = in.parts[MK_PART_NORM_squares];
  const mk_gpu_buffer &b = c.d.buffer(x);
  uint32_t lane = tile::lane(), lines = active_lines(c.d, out.row);
  bool of_tokens = (x.flags & MK_OPERAND_TOKEN_ROW) != 0;
  consumers_wait(c, in);
  // How many of the unit's columns exist.
  uint32_t at = out.col * c.d.buffer(out).tile_cols + lane * 4, cols = c.d.buffer(out).cols;
  bool there = at < cols && lane * 4 < out.cols * c.d.buffer(out).tile_cols;
  uint2 gain = {0, 0};
  if (there) {
    if (!MK_GPU_FAMILIES || whole_buffer(in, MK_WHOLE_NORM_gain).cols != 0) {
      gain =
          tile::load_constant<uint2>(tile::global<const uint16_t>(whole_buffer(in, MK_WHOLE_NORM_gain).address) + at);
    } else {
      gain = {ONES, ONES};
    }
    if (MK_GPU_FAMILIES && param(in, MK_PARAM_NORM_gains) != 0) {
      gain = first_of_four(gain, param(in, MK_PARAM_NORM_gains) - min(param(in, MK_PARAM_NORM_gains), at));
    }
  }
  uint16_t *to = tile::global<uint16_t>(c.d.buffer(out).address) + static_cast<uint64_t>(out.row) * LINES * cols + at;
  const uint16_t *from = tile::global<const uint16_t>(b.address) + static_cast<uint64_t>(x.row) * LINES * b.cols +
                         x.col * b.tile_cols + lane * 4;
  uint32_t readers = places_of(c.d, out), readers_of_squares = places_of(c.d, squares);
#pragma unroll 1
  for (uint32_t first = 0; first < lines; first += BATCH * MK_GPU_CONSUMER_WARPS) {
    uint2 pairs[BATCH];
#pragma unroll
    for (uint32_t i = 0; i < BATCH; i++) {
      uint32_t line = min(first + i * MK_GPU_CONSUMER_WARPS + c.d.warp, lines - 1);
      pairs[i] = {0, 0};
      if (there) {
        pairs[i] = of_tokens ? token_pairs(b, lines_of(c.d).tokens[out.row * LINES + line], x.col)
                             : tile::load_l2<uint2>(from + static_cast<uint64_t>(line) * b.cols);
      }
    }
    // Of few lines by short code, which comes from far away: the next line's elements move to where those at hand are.
#pragma unroll ROLLED
    for (uint32_t i = 0; i < BATCH; i++) {
      uint32_t line = first + i * MK_GPU_CONSUMER_WARPS + c.d.warp;
      float sum = chain_squares(pairs[0]);
      if (there && line < lines) {
        uint2 normed = {tile::multiply_bf16(pairs[0].x, gain.x), tile::multiply_bf16(pairs[0].y, gain.y)};
        to_readers(readers, to + static_cast<uint64_t>(line) * cols,
                   [=](uint16_t *copy) { tile::store<uint2>(copy, normed); });
      }
      if (lane == 0 && line < lines) {
        to_readers(readers_of_squares,
                   plain_lines<float>(c.d, squares) + static_cast<uint64_t>(line) * c.d.buffer(squares).cols,
                   [=](float *copy) { *copy = sum; });
      }
#pragma unroll
      for (uint32_t next = 1; next < BATCH; next++) {
        pairs[next - 1] = pairs[next];
      }
    }
  }
  consumers_signal(c, in);
}

}  // namespace mk
