// instructions/tile/group.cuh: a warp's chain of a weight, with steps that do not count; chains of 64 rows by 128
// lines, by the first 64 of them, and by the 32 after the first 32; lines and pairs of rows of their sums.
#include "instructions/tile/group.cuh"

#include "instructions/tile/copy.cuh"
#include "tests/gpu/tile/tile_test.cuh"

using namespace mk;

enum { CHAIN_WORDS = MK_GROUP_STEPS * 32, PANEL_BYTES = MK_GROUP_LINES * 128 };  // of 16 and of one byte

// 16 KB to shared memory, by all threads of the block.
__device__ inline void stage(uint8_t *to, const uint4 *from) {
  for (uint32_t i = threadIdx.x; i < 4 * CHAIN_WORDS; i += 128) {
    reinterpret_cast<uint4 *>(to)[i] = from[i];
  }
}

// in [count][4 row tiles][MK_GROUP_STEPS][512 bytes]; out the same, through the warps' registers, with zeros from step
// `first` on.
extern "C" __global__ void __launch_bounds__(128) mk_tile_group_load(const mk_tile_params params) {
  __shared__ __align__(512) uint8_t chains[4 * CHAIN_WORDS * 16];
  const uint4 *in = reinterpret_cast<const uint4 *>(params.in);
  uint4 *out = reinterpret_cast<uint4 *>(params.out);
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (uint32_t i = 0; i < params.count; i++) {
    __syncthreads();
    stage(chains, in + i * 4 * CHAIN_WORDS);
    __syncthreads();
    uint8_t *own = chains + warp * CHAIN_WORDS * 16;
    tile::weight_chain weights;
    tile::clear_steps(own, params.first, MK_GROUP_STEPS);
    tile::load(weights, own);
#pragma unroll
    for (uint32_t s = 0; s < MK_GROUP_STEPS; s++) {
      out[(i * 4 + warp) * CHAIN_WORDS + s * 32 + lane] =
          make_uint4(weights.step[s][0], weights.step[s][1], weights.step[s][2], weights.step[s][3]);
    }
  }
  test::finish(params, true);
}

// out [128 lines][64 rows] = W times `lines_used` lines from `first_line` on, zeros elsewhere. in: `count` chains of W
// as above, then the lines [128][128 count]; of the last chain the steps from `first` on do not count. Every other
// chain goes out step by step.
template <uint32_t lines_used, uint32_t first_line = 0>
__device__ inline void multiply_chains(const mk_tile_params &params) {
  __shared__ __align__(1024) uint8_t room[4 * CHAIN_WORDS * 16 + 2 * PANEL_BYTES];
  const uint4 *weight = reinterpret_cast<const uint4 *>(params.in);
  const uint4 *lines = weight + params.count * 4 * CHAIN_WORDS;
  float *out = reinterpret_cast<float *>(params.out);
  uint8_t *panels = room + 4 * CHAIN_WORDS * 16, *own = room + threadIdx.x / 32 * CHAIN_WORDS * 16;
  tile::group_sums sums;
  tile::chain_sums<lines_used> chain;
  tile::weight_chain weights;
  tile::zero(sums);
  for (uint32_t c = 0; c < params.count; c++) {
    __syncthreads();
    stage(room, weight + c * 4 * CHAIN_WORDS);
    for (uint32_t i = threadIdx.x; i < MK_GROUP_LINES * 16; i += 128) {  // 16 bytes each: 8 to a line of a panel
      const uint32_t line = i / 16, unit = i % 8, panel = i / 8 % 2;
      *reinterpret_cast<uint4 *>(panels + panel * PANEL_BYTES + line * 128 + (unit ^ line % 8) * 16) =
          lines[(line * params.count + c) * 16 + panel * 8 + unit];
    }
    tile::fence_shared_for_copies();
    __syncthreads();
    if (c + 1 == params.count) {
      tile::clear_steps(own, params.first, MK_GROUP_STEPS);
    }
    tile::load(weights, own);
    const uint32_t address = tile::shared_address(panels) + first_line * 128;
    const tile::panel first = tile::panel_of(address, 16), second = tile::panel_of(address + PANEL_BYTES, 16);
    if (c % 2 == 0) {
      tile::begin_chain(chain, weights, first, second);
      tile::finish_chain(chain, weights);
    } else {
      tile::weight_chain made;
#pragma unroll
      for (uint32_t s = 0; s < MK_GROUP_STEPS; s++) {
        const uint32_t(&step)[4] = weights.step[s];
        tile::begin_step(chain, made, s, {{step[0], step[1], step[2], step[3]}}, first, second);
      }
      tile::products_commit();
      tile::finish_chain(chain, made);
    }
    tile::add(sums, chain);
  }
  const uint32_t row = threadIdx.x / 32 * 16 + tile::row_in_tile();
  auto put = [&](uint32_t line, float &upper, float &lower) {
    out[line * 64 + row] = upper;
    out[line * 64 + row + 8] = lower;
  };
  if (first_line != 0) {
    tile::group_sums none;
    tile::zero(none);
    tile::each_line(none, {0, 128}, put);
  }
  tile::each_line(sums, {first_line, first_line != 0 ? first_line + lines_used : 128}, put);
  test::finish(params, true);
}

extern "C" __global__ void __launch_bounds__(128) mk_tile_group_chains(const mk_tile_params params) {
  multiply_chains<MK_GROUP_LINES>(params);
}
extern "C" __global__ void __launch_bounds__(128) mk_tile_group_half_chains(const mk_tile_params params) {
  multiply_chains<MK_GROUP_LINES / 2>(params);
}
extern "C" __global__ void __launch_bounds__(128) mk_tile_group_quarter_chains(const mk_tile_params params) {
  multiply_chains<MK_GROUP_LINES / 4, MK_GROUP_LINES / 4>(params);
}

// in [count][128 lines][64 rows] fp32. out [count][128][64] bf16: each becomes a sum, is changed in place (its sign),
// and leaves in pairs; of those in the batches with the first `first` lines.
extern "C" __global__ void __launch_bounds__(128) mk_tile_group_pairs(const mk_tile_params params) {
  const uint32_t warp = threadIdx.x / 32, row = warp * 16 + tile::row_in_tile();
  for (uint32_t i = 0; i < params.count; i++) {
    const float *in = reinterpret_cast<const float *>(params.in) + i * MK_GROUP_LINES * 64;
    uint32_t *out = reinterpret_cast<uint32_t *>(params.out) + i * MK_GROUP_LINES * 32;
    tile::group_sums sums;
    tile::each_line(sums, {0, 128}, [&](uint32_t line, float &upper, float &lower) {
      upper = in[line * 64 + row];
      lower = in[line * 64 + row + 8];
    });
    tile::each_line(sums, {0, params.first}, [&](uint32_t, float &upper, float &lower) {
      upper = -upper;
      lower = -lower;
    });
    tile::each_pair_of_rows(sums, {0, params.first}, [&](uint32_t line, uint32_t rows, uint32_t upper, uint32_t lower) {
      out[line * 32 + (warp * 16 + rows) / 2] = upper;
      out[line * 32 + (warp * 16 + rows) / 2 + 4] = lower;
    });
  }
  test::finish(params, true);
}
