// Tiles of a warpgroup: 64 rows of a weight by 128 lines, or by the first 64 of them. A weight comes as its tiles lie
// in memory (fragment.cuh), four row tiles of sixteen rows, one for each warp. Lines come as panels of 64 columns
// (wgmma.cuh). Of every line that each_line names, a lane has the sums of two rows: `row_in_tile` and that + 8 of its
// warp's row tile.
#pragma once
#include "instructions/tile/fragment.cuh"
#include "instructions/tile/wgmma.cuh"

namespace mk::tile {

struct group_sums {  // [64 rows][128 lines], fp32
  float value[64];
};

// What a chain has summed up, of all lines, or of a half or a quarter of them.
template <uint32_t lines>
struct chain_sums {
  static_assert(lines == 32 || lines == 64 || lines == 128, "a product of a warpgroup has so many");
  float value[lines / 2];
};

struct weight_chain {  // a warp's sixteen rows of 128 columns
  uint32_t step[8][4];
};

__device__ inline void zero(weight_chain &to) {
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) {
    to.step[i][0] = to.step[i][1] = to.step[i][2] = to.step[i][3] = 0;
  }
}
__device__ inline void zero(group_sums &to) {
#pragma unroll
  for (uint32_t i = 0; i < 64; i++) {
    to.value[i] = 0.0f;
  }
}

// Loads the row tile that begins at `from`.
__device__ inline void load(weight_chain &to, const uint8_t *from) {
  uint32_t at = (threadIdx.x % 32) * 16;
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) {
    uint4 raw = *reinterpret_cast<const uint4 *>(from + i * 512 + at);
    to.step[i][0] = raw.x, to.step[i][1] = raw.y, to.step[i][2] = raw.z, to.step[i][3] = raw.w;
  }
}

__device__ inline void set_step(weight_chain &to, uint32_t i, const weight_tile &from) {
#pragma unroll
  for (uint32_t w = 0; w < 4; w++) {
    to.step[i][w] = from.word[w];
  }
}

// Makes the steps [first, end) of the row tile at `from` zeros, for later loads of the same warp.
__device__ inline void clear_steps(uint8_t *from, uint32_t first, uint32_t end) {
#pragma unroll 1
  for (uint32_t i = first; i < end; i++) {
    *reinterpret_cast<uint4 *>(from + i * 512 + (threadIdx.x % 32) * 16) = make_uint4(0, 0, 0, 0);
  }
  __syncwarp();
}

// chain = weights times 128 columns of the lines, two panels: under way until finish_chain.
template <uint32_t lines>
__device__ inline void begin_chain(chain_sums<lines> &chain, const weight_chain &weights, panel first, panel second) {
  pin(chain.value);
  products_begin();
  multiply_transposed<false>(chain.value, weights.step[0], first);
#pragma unroll
  for (uint32_t i = 1; i < 8; i++) {
    multiply_transposed<true>(chain.value, weights.step[i], panel_at(i < 4 ? first : second, i % 4 * 32));
  }
  products_commit();
}

// The same step by step, where weights are made one after the other: begin_step for each of the eight in order, as soon
// as it is there, then products_commit.
template <uint32_t lines>
__device__ inline void begin_step(chain_sums<lines> &chain, weight_chain &weights, uint32_t i, const weight_tile &from,
                                  panel first, panel second) {
  if (i == 0) {
    pin(chain.value);
  }
  set_step(weights, i, from);
  pin(weights.step[i]);
  products_begin();
  if (i == 0) {
    multiply_transposed<false>(chain.value, weights.step[0], first);
  } else {
    multiply_transposed<true>(chain.value, weights.step[i], panel_at(i < 4 ? first : second, i % 4 * 32));
  }
}
// The compiler may use sums and weights from here on, not sooner. pending: chains that were begun later.
template <uint32_t pending = 0, uint32_t lines>
__device__ inline void finish_chain(chain_sums<lines> &chain, weight_chain &weights) {
  products_wait<pending>();
  pin(chain.value);
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) {
#pragma unroll
    for (uint32_t w = 0; w < 4; w++) {
      asm volatile("" : "+r"(weights.step[i][w]));
    }
  }
}

template <uint32_t lines>
__device__ inline void add(group_sums &to, const chain_sums<lines> &chain) {
#pragma unroll
  for (uint32_t i = 0; i < lines / 2; i++) {
    to.value[i] = __fadd_rn(to.value[i], chain.value[i]);
  }
}

__device__ inline uint32_t row_in_tile() { return threadIdx.x % 32 / 4; }

// Which lines the sums are of: the first ones are those of line `first`. From line `end` on they mean nothing.
struct line_range {
  uint32_t first, end;
};

// Sums that are finished together: what follows from a line's number is computed anew for each batch, since registers
// are short. Batches from line number `end` on are left out: their code is long, and comes from far away where it has
// not been run for a while (docs/results/wide.md).
enum { BATCH_SUMS = 16 };

// do_line(line, upper, lower): the sums of both of the lane's rows, which it may change. do_batch(first): after a
// batch, whose first line this is; of its lines a lane has had eight, in the order of line_of_batch.
enum { BATCH_LINES = BATCH_SUMS / 2 };
__device__ inline uint32_t line_of_batch(uint32_t number) { return number / 2 * 8 + threadIdx.x % 4 * 2 + number % 2; }
template <typename line_function, typename batch_function>
__device__ __forceinline__ void each_line(group_sums &sums, const line_range &lines, line_function do_line,
                                          batch_function do_batch) {
#pragma unroll
  for (uint32_t batch = 0; batch < 64; batch += BATCH_SUMS) {
    if (uniform(lines.first + batch * 2 >= lines.end)) {
      return;
    }
    uint32_t first = lines.first + anew(threadIdx.x) % 4 * 2;
#pragma unroll
    for (uint32_t i = batch; i < batch + BATCH_SUMS; i += 4) {
      do_line(i * 2 + first, sums.value[i], sums.value[i + 2]);
      do_line(i * 2 + first + 1, sums.value[i + 1], sums.value[i + 3]);
    }
    do_batch(lines.first + batch * 2);
    __syncwarp();  // no load goes out before this
  }
}
template <typename line_function>
__device__ __forceinline__ void each_line(group_sums &sums, const line_range &lines, line_function do_line) {
  each_line(sums, lines, do_line, [](uint32_t) {});
}

// Two neighbouring rows of one line as bf16, rounded to nearest. The lanes bring what neighbouring lines have in eight
// rows: `even` is of the first line of a pair, `odd` of the second one.
__device__ inline uint32_t rows_of_line(float even, float odd) { return transpose(pack_bf16(even, odd)); }

// put(line, rows, upper, lower): bf16 of rows `rows` and `rows` + 1 of the warp's row tile, and of those that lie eight
// further on.
template <typename put_function>
__device__ __forceinline__ void each_pair_of_rows(const group_sums &sums, const line_range &lines, put_function put) {
#pragma unroll
  for (uint32_t batch = 0; batch < 64; batch += BATCH_SUMS) {
    if (uniform(lines.first + batch * 2 >= lines.end)) {
      return;
    }
    uint32_t line = lines.first + anew(threadIdx.x) % 32 / 4, rows = anew(threadIdx.x) % 4 * 2;
#pragma unroll
    for (uint32_t i = batch; i < batch + BATCH_SUMS; i += 4) {
      put(i * 2 + line, rows, rows_of_line(sums.value[i], sums.value[i + 1]),
          rows_of_line(sums.value[i + 2], sums.value[i + 3]));
    }
    __syncwarp();  // no load goes out before this
  }
}

}  // namespace mk::tile
