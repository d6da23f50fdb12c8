// NORM_HEADS on the device. q and k, each normed over all of its heads, and v as it is; norm_heads.c. Tiles: values of
// 18 stamped fp32 words, the last two of which are the squares of the others and a zero; out 16. Consumers only: a warp
// has four tiles at a time, two values a lane, and looks at the squares of all tiles of the kind. Waits: the values
// (consumers). Signals: the counter of its value. No pages.
#pragma once
#include "vm/gpu/consumer.cuh"
#include "vm/gpu/storer.cuh"

namespace mk {

// 1 / rms of `count` tiles from `first` on, of a line that begins with `values`: squares by eights, each lane eight of
// them, and these one after the other.
__device__ inline float heads_scale(const device &d, const mk_instruction_word &in, const uint64_t *values,
                                    uint32_t first, uint32_t count) {
  enum { EIGHT = 8 };
  float sum = 0.0f;
#pragma unroll 1
  for (uint32_t base = 0; base < count; base += 32 * EIGHT) {
    uint32_t tile = base + tile::lane() * EIGHT;
    uint32_t words[EIGHT];
    wait_line_words<EIGHT>(
        d, in.parts[MK_PART_NORM_HEADS_values].buffer,
        [&](uint32_t i) { return values + (first + tile + i) * MK_SQUARED_TILE + MK_TILE; },
        [&](uint32_t i) { return tile + i < count; }, words);
    float q[EIGHT];
#pragma unroll
    for (uint32_t i = 0; i < EIGHT; i++) {
      q[i] = __uint_as_float(words[i]);
    }
    float eight = sum_of_eight(q);
#pragma unroll
    for (uint32_t lane = 0; lane < 32; lane++) {
      sum += tile::from_lane(eight, lane);
    }
  }
  return norm_scale(sum, reciprocal_of(static_cast<float>(count * MK_TILE)),
                    __uint_as_float(param(in, MK_PARAM_NORM_HEADS_eps)));
}

// Tiles of a line: four of the instruction's, from its number `start` on, then those `stride` further on. `out`: the
// line's words of the first of them.
__device__ inline void norm_tiles(const device &d, const mk_instruction_word &in, const uint64_t *values, uint64_t *out,
                                  uint32_t start, uint32_t stride) {
  const mk_operand &to = in.parts[MK_PART_NORM_HEADS_out];
  uint32_t queries = param(in, MK_PARAM_NORM_HEADS_query_tiles), keys = param(in, MK_PARAM_NORM_HEADS_key_tiles);
  uint32_t end = to.col + to.cols;
  float query_scale = 1.0f, key_scale = 1.0f;
  if (start >= to.cols) {
    return;
  }
  if (to.col < queries) {
    query_scale = heads_scale(d, in, values, 0, queries);
  }
  if (to.col < queries + keys && end > queries) {
    key_scale = heads_scale(d, in, values, queries, keys);
  }
#pragma unroll 1
  for (uint32_t base = start; base < to.cols; base += stride) {
    uint32_t i = base + tile::group_of_lane<8>(tile::lane()), tile = to.col + i,
             pair = tile::place_in_group<8>(tile::lane());
    bool here = i < to.cols;
    tile::stamped_pair words;
    wait_pair(d, values + tile * MK_SQUARED_TILE + pair * 2, here, in.parts[MK_PART_NORM_HEADS_values].buffer, words);
    float scale = tile < queries ? query_scale : tile < queries + keys ? key_scale : 1.0f;
    if constexpr (MK_GPU_RANKS) {
      if (here && publishes(d)) {
        to_readers(readers_of(to), out + i * MK_TILE + pair * 2, [&](uint64_t *copy) {
          tile::store_stamped_pair(
              copy, __float_as_uint(__fmul_rn(__uint_as_float(tile::stamp_data(words.low)), scale)),
              __float_as_uint(__fmul_rn(__uint_as_float(tile::stamp_data(words.high)), scale)), d.generation());
        });
      }
    } else if (here && publishes(d)) {
      tile::store_stamped_pair(
          out + i * MK_TILE + pair * 2, __float_as_uint(__fmul_rn(__uint_as_float(tile::stamp_data(words.low)), scale)),
          __float_as_uint(__fmul_rn(__uint_as_float(tile::stamp_data(words.high)), scale)), d.generation());
    }
  }
}

enum { NORM_HEADS_TILES = 4 };  // of a warp at a time

__device__ inline void consume_NORM_HEADS(const consumer &c, const mk_instruction_word &in) {
  const uint64_t *values = stamped_row(c.d, in.parts[MK_PART_NORM_HEADS_values]);
  uint64_t *out = stamped_row(c.d, in.parts[MK_PART_NORM_HEADS_out]);
  norm_tiles(c.d, in, values, out, c.warp * NORM_HEADS_TILES, MK_GPU_CONSUMER_WARPS * NORM_HEADS_TILES);
}

}  // namespace mk
