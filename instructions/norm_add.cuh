// NORM_ADD on the device. s = parts[0] + parts[1] + ... + bias over all columns; y = residual_in + norm(s);
// residual_out = y; out = bf16(y); norm_add.c.
//
// Every SM adds up all columns, since it needs the squares of all of them, and keeps those of its own tiles. A consumer
// warp has one chain of 128 columns in a round of sixteen, four columns a lane; with the first tile it hands over the
// chain's squares, with each tile the tile's sums, where they are of its chain. The storer finishes as it does a
// product. Waits: the parts (consumers). Signals: the counter of its value. No pages.
#pragma once
#include "instructions/norm_add_element.cuh"
#include "vm/gpu/consumer.cuh"
#include "vm/gpu/storer.cuh"

namespace mk {

enum { NORM_ROUNDS = MK_GPU_NORMED_PAGES / GROUPS };  // most of a sum
static_assert(GROUPS * MK_GPU_PAGE_BYTES / 512 * 16 == MK_GPU_CONSUMER_WARPS * MK_CHAIN_COLS, "a page of each group");

// The sums of the sixteen columns of a tile, of which the lanes from `lane` on have four each: row g and row g + 8 to
// lane 4 g.
__device__ inline void spread_tile(const float (&sums)[4], uint32_t first_lane, uint32_t lane, float &low,
                                   float &high) {
  uint32_t g = tile::lane_row(lane);
#pragma unroll
  for (uint32_t k = 0; k < 4; k++) {
    float here = tile::from_lane(sums[k], first_lane + g / 4);
    float there = tile::from_lane(sums[k], first_lane + 2 + g / 4);
    low = g % 4 == k ? here : low;
    high = g % 4 == k ? there : high;
  }
}

// s of this lane's columns, of all rounds.
__device__ inline void add_all_parts(const consumer &c, const mk_instruction_word &in, float (&s)[NORM_ROUNDS][4]) {
  const mk_operand &parts = in.parts[MK_PART_NORM_ADD_parts];
  const mk_gpu_buffer &b = c.d.buffer(parts);
  const uint64_t *row = stamped_row(c.d, parts);
  auto column = [&](uint32_t r) { return (r * MK_GPU_CONSUMER_WARPS + c.warp) * MK_CHAIN_COLS + c.lane * 4; };
#pragma unroll
  for (uint32_t i = 0; i < NORM_ROUNDS * 4; i++) {
    s[i / 4][i % 4] = 0.0f;
  }
#pragma unroll 1
  for (uint32_t part = 0; part < parts.rows; part++, row += b.row_words) {
    tile::stamped_pair pairs[NORM_ROUNDS * 2];
    wait_stamped_pairs<NORM_ROUNDS * 2>(
        c.d, parts.buffer, [&](uint32_t i) { return row + column(i / 2) + i % 2 * 2; },
        [&](uint32_t i) { return column(i / 2) < b.cols; }, pairs);
#pragma unroll
    for (uint32_t i = 0; i < NORM_ROUNDS * 2; i++) {
      s[i / 2][i % 2 * 2] += __uint_as_float(tile::stamp_data(pairs[i].low));
      s[i / 2][i % 2 * 2 + 1] += __uint_as_float(tile::stamp_data(pairs[i].high));
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < NORM_ROUNDS * 4; i++) {
    s[i / 4][i % 4] = __fadd_rn(s[i / 4][i % 4], norm_bias(in, column(i / 4) + i % 4));
  }
}

__device__ inline void consume_NORM_ADD(consumer &c, const mk_instruction_word &in) {
  const mk_operand &to = in.parts[MK_PART_NORM_ADD_residual_out];
  uint32_t rounds = norm_rounds(in);
  float s[NORM_ROUNDS][4];
  add_all_parts(c, in, s);
#pragma unroll 1
  for (uint32_t tile = 0; tile < to.cols; tile++) {
    uint32_t at = (to.col + tile) * MK_TILE;
#pragma unroll
    for (uint32_t r = 0; r < NORM_ROUNDS; r++) {
      if (r < rounds) {
        float low = 0.0f, high = 0.0f, squares = tile == 0 ? chain_squares(s[r]) : 0.0f;
        if (at / MK_CHAIN_COLS == r * MK_GPU_CONSUMER_WARPS + c.warp) {
          spread_tile(s[r], at % MK_CHAIN_COLS / 4, c.lane, low, high);
        }
        put_result(c, low, high, squares, c.warp);
      }
    }
  }
}

__device__ inline void prepare_NORM_ADD(const storer &s, const mk_instruction_word &in, uint32_t i, row_store &r) {
  uint32_t element = (in.parts[MK_PART_NORM_ADD_residual_out].col + i) * MK_TILE + even_row(s);
  r.a = load_residual(s, in.parts[MK_PART_NORM_ADD_residual_in], i);
  r.gain = {norm_gain(in, element), norm_gain(in, element + 1)};
}

__device__ inline void finish_NORM_ADD(const storer &s, const mk_instruction_word &, uint32_t i, two_rows y,
                                       row_store &r) {
  y = {__fmul_rn(__fmul_rn(y.even, r.scale), r.gain.even), __fmul_rn(__fmul_rn(y.odd, r.scale), r.gain.odd)};
  finish_residual(s, i, y, r);
}

}  // namespace mk
