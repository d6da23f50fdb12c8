// NORM_ADD of several rows per step on the device: norm_add.cuh, for every line. A consumer warp has the same chains;
// of each it adds up the squares of all lines, and the sums of those of the SM's tiles that lie in it.
#pragma once
#include "instructions/linear_rows.cuh"

namespace mk {

enum { NORM_LINES = 4 };  // whose words are under way together

// Squares of a chain from column `first` on, of line 8 n + the lane's quad.
__device__ inline void square_lines(const rows_consumer &c, const mk_instruction_word &in, uint32_t first,
                                    float (&squares)[LINE_TILES]) {
  const mk_operand &parts = in.parts[MK_PART_NORM_ADD_parts];
  const mk_gpu_buffer &b = device::slot_of(in).buffers[MK_PART_NORM_ADD_parts];
  uint32_t active = rows_of(c.d).active, column = first + c.lane * 4;
  uint64_t part_words = static_cast<uint64_t>(c.d.params.rows) * b.row_words;
  squares[0] = squares[1] = 0.0f;
#pragma unroll 1
  for (uint32_t batch = 0; batch < MK_MAX_ROWS; batch += NORM_LINES) {
    if ((active >> batch & ((1u << NORM_LINES) - 1)) == 0) {
      continue;
    }
    float s[NORM_LINES][4] = {};
    const uint64_t *row = stamped_row(c.d, parts) + static_cast<uint64_t>(batch) * b.row_words + column;
#pragma unroll 1
    for (uint32_t part = 0; part < parts.rows; part++, row += part_words) {
      tile::stamped_pair pairs[NORM_LINES * 2];
      wait_stamped_pairs<NORM_LINES * 2>(
          c.d, parts.buffer, [&](uint32_t i) { return row + i / 2 * b.row_words + i % 2 * 2; },
          [&](uint32_t i) { return column < b.cols && (active >> (batch + i / 2) & 1) != 0; }, pairs);
#pragma unroll
      for (uint32_t i = 0; i < NORM_LINES * 2; i++) {
        s[i / 2][i % 2 * 2] += __uint_as_float(tile::stamp_data(pairs[i].low));
        s[i / 2][i % 2 * 2 + 1] += __uint_as_float(tile::stamp_data(pairs[i].high));
      }
    }
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
      float bias = norm_bias(in, column + k);
#pragma unroll
      for (uint32_t i = 0; i < NORM_LINES; i++) {
        s[i][k] = __fadd_rn(s[i][k], bias);
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < NORM_LINES; i++) {
      float of_line = chain_squares(s[i]);
      bool mine = (batch + i) % 8 == tile::lane_row(c.lane);
      squares[0] = mine && batch < 8 ? of_line : squares[0];
      squares[1] = mine && batch >= 8 ? of_line : squares[1];
    }
  }
}

// s of a tile of columns, from column `first` on.
__device__ inline void sum_tile_of_parts(const rows_consumer &c, const mk_instruction_word &in, uint32_t first,
                                         tile::sum_tile (&sums)[LINE_TILES]) {
  const mk_operand &parts = in.parts[MK_PART_NORM_ADD_parts];
  const mk_gpu_buffer &b = device::slot_of(in).buffers[MK_PART_NORM_ADD_parts];
  uint32_t active = rows_of(c.d).active, g = tile::lane_row(c.lane);
  uint64_t part_words = static_cast<uint64_t>(c.d.params.rows) * b.row_words;
  const uint64_t *row = stamped_row(c.d, parts) + first;
#pragma unroll 1
  for (uint32_t part = 0; part < parts.rows; part++, row += part_words) {
    uint32_t words[8];
    auto at = [&](uint32_t i) { return row + line_of(c.lane, i / 4, i) * b.row_words + g + i / 2 % 2 * 8; };
    auto has = [&](uint32_t i) { return (active >> line_of(c.lane, i / 4, i) & 1) != 0; };
    wait_line_words<8>(c.d, parts.buffer, at, has, words);
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
      sums[i / 4].value[i % 4] += __uint_as_float(words[i]);
    }
  }
  float low = norm_bias(in, first + g), high = norm_bias(in, first + g + 8);
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) {
    sums[i / 4].value[i % 4] = __fadd_rn(sums[i / 4].value[i % 4], i / 2 % 2 == 0 ? low : high);
  }
}

__device__ inline void consume_NORM_ADD(rows_consumer &c, const mk_instruction_word &in) {
  const mk_operand &to = in.parts[MK_PART_NORM_ADD_residual_out];
  uint32_t chunks = tile::uniform(norm_rounds(in));
#pragma unroll 1
  for (uint32_t chunk = 0; chunk < chunks; chunk++) {
    uint32_t chain = chunk * MK_GPU_CONSUMER_WARPS + c.warp;
    float squares[LINE_TILES];
    square_lines(c, in, chain * MK_CHAIN_COLS, squares);
#pragma unroll 1
    for (uint32_t tile = 0; tile < to.cols; tile++) {
      uint32_t first = (to.col + tile) * MK_TILE;
      tile::sum_tile sums[LINE_TILES];
      tile::zero(sums[0]);
      tile::zero(sums[1]);
      if (tile::uniform(first / MK_CHAIN_COLS == chain)) {
        sum_tile_of_parts(c, in, first, sums);
      }
      put_sums(c, sums, squares);
    }
  }
}

}  // namespace mk
