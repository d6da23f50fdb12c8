// Rows of a warpgroup's sums, or of some of their columns (wgmma.cuh). A thread has two rows of its warp's sixteen,
// `row_in_tile` and that + 8. Four threads, a quad, share these rows: of every eight columns each thread has two. What
// there is one of for each row, all four keep, as [2].
#pragma once
#include "instructions/tile/group.cuh"

namespace mk::tile {

// The sums of 32 columns among those of 64.
template <uint32_t part>
__device__ inline float (&columns_32(float (&sums)[32]))[16] {
  static_assert(part < 2, "64 columns are twice 32");
  return reinterpret_cast<float(&)[16]>(sums[part * 16]);
}

// Makes a sum -infinity where the number of its column is above the number of its row: the first column has number
// `column`, the first row of the warp's sixteen `row`.
template <uint32_t count>
__device__ inline void hide_later(float (&sums)[count], uint32_t column, uint32_t row) {
  uint32_t limit = row + lane() / 4 + 1;
  column = column + lane() % 4 * 2;
#pragma unroll
  for (uint32_t i = 0; i < count; i++) {
    sums[i] = column + i / 4 * 8 + i % 2 < limit + i % 4 / 2 * 8 ? sums[i] : -INFINITY;
  }
}

// The same for one of the thread's two rows, with a limit of its own: the first number that is above.
template <uint32_t which, uint32_t count>
__device__ inline void hide_from(float (&sums)[count], uint32_t column, uint32_t limit) {
  column = column + lane() % 4 * 2;
#pragma unroll
  for (uint32_t i = 0; i < count; i++) {
    if (i % 4 / 2 == which) {
      sums[i] = column + i / 4 * 8 + i % 2 < limit ? sums[i] : -INFINITY;
    }
  }
}

// The largest of each row, and at least `least`.
template <uint32_t count>
__device__ inline void row_max(float (&to)[2], const float (&sums)[count], float least) {
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    to[h] = least;
#pragma unroll
    for (uint32_t i = 0; i < count / 2; i++) {
      to[h] = fmaxf(to[h], sums[i / 2 * 4 + 2 * h + i % 2]);
    }
    to[h] = largest_of_group<4>(to[h]);
  }
}

// 2^(sum - top of its row).
template <uint32_t count>
__device__ inline void exp2_below(float (&sums)[count], const float (&top)[2]) {
#pragma unroll
  for (uint32_t i = 0; i < count; i++) {
    sums[i] = exp2(sums[i] - top[i % 4 / 2]);
  }
}

// The same values as left operands of a product, bf16, rounded to nearest: 16 columns each.
template <uint32_t steps>
__device__ inline void to_left(uint32_t (&to)[steps][4], const float (&sums)[steps * 8]) {
#pragma unroll
  for (uint32_t w = 0; w < steps * 4; w++) {
    to[w / 4][w % 4] = pack_bf16(sums[w * 2], sums[w * 2 + 1]);
  }
}

// The sums of the rows of left operands: one chain from zero, step by step.
template <uint32_t steps>
__device__ inline void row_sum(float (&to)[2], const uint32_t (&left)[steps][4]) {
  constexpr vector_tile ones = {{0x3f803f80u, 0x3f803f80u}};
  sum_tile total;
  zero(total);
#pragma unroll
  for (uint32_t i = 0; i < steps; i++) {
    multiply_add(total, {{left[i][0], left[i][1], left[i][2], left[i][3]}}, ones);
  }
  to[0] = total.value[0], to[1] = total.value[2];
}

// Multiplies rows by their factors, unless these are 1 in all of the warp, as they mostly are.
template <uint32_t count>
__device__ inline void multiply_rows(float (&sums)[count], const float (&factors)[2]) {
  static_assert(count % 4 == 0, "of whole eights of columns a thread has four sums");
  if (uniform(factors[0] != 1.0f || factors[1] != 1.0f)) {
#pragma unroll
    for (uint32_t i = 0; i < count; i++) {
      sums[i] = __fmul_rn(sums[i], factors[i % 4 / 2]);
    }
  }
}

// to += rows times their factors, rounded once.
template <uint32_t count>
__device__ inline void add_rows(float (&to)[count], const float (&sums)[count], const float (&factors)[2]) {
  static_assert(count % 4 == 0, "of whole eights of columns a thread has four sums");
#pragma unroll
  for (uint32_t i = 0; i < count; i++) {
    to[i] = __fmaf_rn(factors[i % 4 / 2], sums[i], to[i]);
  }
}

// Loads left operands: the warp's sixteen rows of a matrix in global memory, times `scale`, rounded to bf16. `from`:
// its first row; `cols`: values from one row to the next; `rows`: how many rows there are, those after them being zero.
template <uint32_t steps>
__device__ inline void load_left(uint32_t (&to)[steps][4], const float *from, uint32_t cols, uint32_t rows,
                                 float scale) {
  uint32_t row = lane() / 4;
  from += static_cast<uint64_t>(row) * cols + lane() % 4 * 2;
#pragma unroll
  for (uint32_t w = 0; w < steps * 4; w++) {
    float2 pair = make_float2(0.0f, 0.0f);
    if (row + w % 2 * 8 < rows) {
      pair = __ldcg(reinterpret_cast<const float2 *>(from + static_cast<uint64_t>(w % 2 * 8) * cols + w / 2 * 8));
    }
    to[w / 4][w % 4] = pack_bf16(__fmul_rn(pair.x, scale), __fmul_rn(pair.y, scale));
  }
}

// The same of rows that lie anywhere: those of the thread; nullptr: it is zero.
template <uint32_t steps>
__device__ inline void load_left(uint32_t (&to)[steps][4], const float *const (&rows)[2], float scale) {
#pragma unroll
  for (uint32_t w = 0; w < steps * 4; w++) {
    float2 pair = make_float2(0.0f, 0.0f);
    if (rows[w % 2] != nullptr) {
      pair = __ldcg(reinterpret_cast<const float2 *>(rows[w % 2] + lane() % 4 * 2 + w / 2 * 8));
    }
    to[w / 4][w % 4] = pack_bf16(__fmul_rn(pair.x, scale), __fmul_rn(pair.y, scale));
  }
}

// The same of rows whose tiles of sixteen columns lie `pitch` elements apart, each row times its factor first.
template <uint32_t pitch, uint32_t steps>
__device__ inline void load_left_tiles(uint32_t (&to)[steps][4], const float *const (&rows)[2],
                                       const float (&factors)[2], float scale) {
#pragma unroll
  for (uint32_t w = 0; w < steps * 4; w++) {
    float2 pair = make_float2(0.0f, 0.0f);
    if (rows[w % 2] != nullptr) {
      pair = __ldcg(reinterpret_cast<const float2 *>(rows[w % 2] + w / 4 * pitch + w / 2 % 2 * 8 + lane() % 4 * 2));
    }
    to[w / 4][w % 4] = pack_bf16(__fmul_rn(__fmul_rn(pair.x, factors[w % 2]), scale),
                                 __fmul_rn(__fmul_rn(pair.y, factors[w % 2]), scale));
  }
}

// Stores the first `rows` of the warp's sixteen rows of sums, times their factors, to a matrix in global memory, as
// bf16. squares: of rows_in_squares (wgmma.cuh), in whose order the sums' columns come, eight at a time.
template <uint32_t squares, uint32_t count>
__device__ inline void store_rows(uint16_t *to, uint32_t cols, uint32_t rows, const float (&sums)[count],
                                  const float (&factors)[2]) {
  uint32_t row = lane() / 4;
  to += static_cast<uint64_t>(row) * cols + lane() % 4 * 2;
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    if (row + h * 8 < rows) {
#pragma unroll
      for (uint32_t i = 0; i < count; i += 4) {
        *reinterpret_cast<uint32_t *>(to + static_cast<uint64_t>(h * 8) * cols + rows_in_squares<squares>(i / 4) * 8) =
            pack_bf16(__fmul_rn(sums[i + 2 * h], factors[h]), __fmul_rn(sums[i + 2 * h + 1], factors[h]));
      }
    }
  }
}

// The same of rows that go anywhere: those of the thread; nullptr: nowhere.
template <uint32_t squares, uint32_t count>
__device__ inline void store_rows(uint16_t *const (&rows)[2], const float (&sums)[count], const float (&factors)[2]) {
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    if (rows[h] != nullptr) {
      uint16_t *to = rows[h] + lane() % 4 * 2;
#pragma unroll
      for (uint32_t i = 0; i < count; i += 4) {
        *reinterpret_cast<uint32_t *>(to + rows_in_squares<squares>(i / 4) * 8) =
            pack_bf16(__fmul_rn(sums[i + 2 * h], factors[h]), __fmul_rn(sums[i + 2 * h + 1], factors[h]));
      }
    }
  }
}

}  // namespace mk::tile
