// The storers of several rows per step: two warps, each for eight lines. A storer adds up the warps' sums of a row
// tile, finishes it for its lines, publishes and signals. Lane 4 g + t holds rows g and g + 8 of lines 2 t and 2 t + 1
// of its line tile, as the sums come.
#pragma once
#include "vm/gpu/rows_consumer.cuh"

namespace mk {

struct rows_storer {
  device d;
  uint32_t lane;
  uint32_t tile = (d.warp - MK_GPU_CONSUMER_WARPS) / 2;  // of lines
  results_cursor results;
};

// Values 0, 1 are of row g, 2, 3 of row g + 8; 0, 2 of line 2 t, 1, 3 of line 2 t + 1.
using line_sums = tile::sum_tile;

// How much a storer gets of an instruction. All else is looked up in the instruction each time, since registers are
// scarce.
struct lines_store {
  uint32_t rows;    // row tiles
  uint32_t chunks;  // K chunks of each row tile
};

__device__ inline bool is_active(const rows_storer &s, uint32_t line) { return (rows_of(s.d).active >> line & 1) != 0; }

// The line of the lane's sum number i.
__device__ inline uint32_t line_of(const rows_storer &s, uint32_t i) { return line_of(s.lane, s.tile, i); }

// A word in which this lane keeps something from one stage of its work on a tile or an instruction to the next.
__device__ inline volatile float &lane_word(const rows_storer &s, uint32_t i) {
  return rows_shared()->lane_words[s.tile][i][s.lane];
}

// The place of a column tile among the residuals that are kept, y.value[0 .. 3] of each lane, and the tag that the
// place has then.
__device__ inline float4 *residuals(const rows_storer &s, uint32_t column_tile) {
  return tile::view<float4>(shared_memory + ROWS_RESIDUALS_AT) + (column_tile % RESIDUAL_TILES * 2 + s.tile) * 32 +
         s.lane;
}
__device__ inline volatile uint32_t &residual_tag(const rows_storer &s, uint32_t column_tile) {
  return rows_shared()->residual_tags[s.tile][column_tile % RESIDUAL_TILES];
}
__device__ inline uint32_t tag_of(const mk_operand &operand, uint32_t column_tile) {
  return (operand.buffer + 1u) << 16 | column_tile;
}

// Adds the squares of half a chunk, which lie beside its results, for the storer's lines: eight chains as a tree. With
// those of the last half they become 1 / rms.
__device__ inline void take_squares(const rows_storer &s, const uint8_t *result, const mk_instruction_word &in,
                                    bool first, bool last) {
  const float *squares = tile::view<float>(result + ROWS_SQUARES_AT);
  uint32_t line = s.tile * 8 + tile::place_in_group<8>(s.lane), pair = tile::group_of_lane<8>(s.lane) * 2;
  float sum = squares[pair * MK_MAX_ROWS + line] + squares[(pair + 1) * MK_MAX_ROWS + line];
  sum = tile::sum_across<8>(sum);
  sum = first ? sum : rows_shared()->scales[line] + sum;
  __syncwarp();
  // Four lanes write the same value.
  rows_shared()->scales[line] = last ? with_factor(in, norm_scale(sum, reciprocal_of(static_cast<float>(param(in, 1))),
                                                                  __uint_as_float(param(in, 0))))
                                     : sum;
  __syncwarp();
}

// Takes the next result, half a chunk: y += its chains, one after the other.
__device__ inline void take_half(rows_storer &s, const mk_instruction_word &in, bool takes_squares, bool first,
                                 bool last, line_sums &y) {
  wait_phase(s.d, RESULT_FULL + s.results.slot(), s.results.phase(), MK_ACTIVITY_RESULT_FULL, s.results.slot());
  const uint8_t *result = rows_result(s.results.slot());
  const float4 *from = tile::view<float4>(result) + s.tile * 32 + s.lane;
#pragma unroll
  for (uint32_t w = 0; w < HALF_WARPS; w++) {
    float4 sum = from[w * LINE_TILES * 32];
    y.value[0] += sum.x, y.value[1] += sum.y, y.value[2] += sum.z, y.value[3] += sum.w;
  }
  if (takes_squares) {
    take_squares(s, result, in, first, last);
  }
  __syncwarp();
  if (s.lane == 0) {
    tile::arrive(s.d.barrier(RESULT_EMPTY + s.results.slot()));
  }
  s.results.next();
}

// Takes both halves of a row tile's next chunk.
__device__ inline void take_sums(rows_storer &s, const mk_instruction_word &in, bool takes_squares, uint32_t chunk,
                                 const lines_store &r, line_sums &y) {
#pragma unroll 1
  for (uint32_t half = 0; half < HALVES; half++) {
    take_half(s, in, takes_squares, chunk + half == 0, chunk + 1 == r.chunks && half + 1 == HALVES, y);
  }
}

// The sums of a row tile over the K chunks so far. They are stored such that weights do not push them out of the L2:
// when they were written to memory and read from there, a step took 2 % longer.
__device__ inline float4 *kept_sums(const rows_storer &s, uint32_t row) {
  return tile::view<float4>(s.d.params.scratch + static_cast<uint64_t>(blockIdx.x) * s.d.params.scratch_floats) +
         (row * LINE_TILES + s.tile) * 32 + s.lane;
}
__device__ inline void keep_sums(const rows_storer &s, uint32_t row, const line_sums &y) {
  tile::store_to_stay(kept_sums(s, row), make_float4(y.value[0], y.value[1], y.value[2], y.value[3]));
}
__device__ inline void get_sums(const rows_storer &s, uint32_t row, line_sums &y) {
  float4 sum = __ldcg(kept_sums(s, row));
  y.value[0] = sum.x, y.value[1] = sum.y, y.value[2] = sum.z, y.value[3] = sum.w;
}

// Publishes fp32 words of both rows of row tile `tile`, of which a tile has so many columns.
__device__ inline void publish_floats(const rows_storer &s, const mk_operand &out, uint32_t tile, uint32_t columns,
                                      const line_sums &y) {
  uint64_t *row = stamped_row(s.d, out) + tile * columns + tile::lane_row(s.lane);
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    uint32_t line = line_of(s, i);
    if (is_active(s, line) && publishes(s.d)) {
      uint64_t *to = row + line * s.d.buffer(out).row_words;
      if constexpr (MK_GPU_RANKS) {
        to_readers(readers_of(out), to, [&](uint64_t *copy) {
          tile::store_stamped(copy, __float_as_uint(y.value[i]), s.d.generation());
          tile::store_stamped(copy + 8, __float_as_uint(y.value[2 + i]), s.d.generation());
        });
      } else {
        tile::store_stamped(to, __float_as_uint(y.value[i]), s.d.generation());
        tile::store_stamped(to + 8, __float_as_uint(y.value[2 + i]), s.d.generation());
      }
    }
  }
}

// Called after the first sums of a HEAD: by then all consumers are done with all instructions before it. Orders all
// that the storers and the consumers have written before the candidates of both storers.
__device__ inline void release_step(const rows_storer &) {
  tile::meet_at<STORERS * 32>(2);
  tile::fence_release();
}

// The elements of neighbouring lanes g and g + 1 (g even) as bf16 pairs: the even lane gets those of its line 2 t, the
// odd one those of 2 t + 1. The lane's line of the two is paired_line().
__device__ inline uint32_t pair_rows(const rows_storer &s, float even_line, float odd_line) {
  bool odd = tile::group_of_two<4>(s.lane) != 0;
  float other = tile::exchange(odd ? even_line : odd_line, 4);
  return odd ? tile::pack_bf16(other, odd_line) : tile::pack_bf16(even_line, other);
}
__device__ inline uint32_t paired_line(const rows_storer &s) { return line_of(s, tile::group_of_two<4>(s.lane)); }

__device__ inline void scale_sums(const rows_storer &s, line_sums &y) {
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    float scale = rows_shared()->scales[line_of(s, i)];
    y.value[i] *= scale;
    y.value[2 + i] *= scale;
  }
}

}  // namespace mk
