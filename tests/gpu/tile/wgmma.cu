// instructions/tile/wgmma.cuh: products of a warpgroup from swizzled panels and from registers, and what a thread holds
// of the sums; with them the exchange of a quad's columns for rows.
#include "instructions/tile/copy.cuh"
#include "instructions/tile/wgmma.cuh"
#include "tests/gpu/tile/tile_test.cuh"

using namespace mk;

__device__ inline uint8_t *room() {
  __shared__ __align__(1024) uint8_t panels[5 * 8192];
  return panels;
}

// A matrix of `rows` x columns bf16 becomes panels of 64 columns, one after the other.
__device__ inline void swizzle(const uint16_t *from, uint32_t rows, uint32_t columns, uint8_t *to) {
  for (uint32_t i = threadIdx.x; i < rows * columns; i += blockDim.x) {
    uint32_t row = i / columns, column = i % columns, byte = column % 64 * 2;
    uint32_t at = column / 64 * rows * 128 + row * 128 + (byte ^ row % 8 * 16);
    *reinterpret_cast<uint16_t *>(to + at) = from[i];
  }
}

// This thread's sums to their places in a matrix of `columns` columns.
template <uint32_t count>
__device__ inline void put_sums(const float (&sums)[count], float *to, uint32_t columns) {
  uint32_t row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
  for (uint32_t i = 0; i < count; i++) {
    to[(row + i / 2 % 2 * 8) * columns + i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2] = sums[i];
  }
}

// in: a [64][64], b [64][64]; out [64][64] = 2 a b^T: the same product twice, the second time added.
extern "C" __global__ void __launch_bounds__(128) mk_tile_wgmma_transposed(const mk_tile_params params) {
  const uint16_t *in = reinterpret_cast<const uint16_t *>(params.in);
  uint8_t *panels = room();
  float sums[32];
  swizzle(in, 64, 64, panels);
  swizzle(in + 64 * 64, 64, 64, panels + 8192);
  tile::fence_shared_for_copies();
  __syncthreads();
  tile::panel left = tile::panel_of(tile::shared_address(panels), 0);
  tile::panel right = tile::panel_of(tile::shared_address(panels) + 8192, 0);
  tile::pin(sums);
  tile::products_begin();
  tile::multiply_transposed<false>(sums, left, right);
  tile::multiply_transposed<true>(sums, left, right);
#pragma unroll
  for (uint32_t i = 2; i < 8; i++) {
    tile::multiply_transposed<true>(sums, tile::panel_at(left, i / 2 * 32), tile::panel_at(right, i / 2 * 32));
  }
  tile::products_commit();
  tile::products_wait<0>();
  tile::pin(sums);
  put_sums(sums, reinterpret_cast<float *>(params.out), 64);
  test::finish(params, true);
}

// in: a [64][64], b [64][256]; out [64][256] = a b; count 0: a in registers, 1: in shared memory, 2: there from
// registers.
extern "C" __global__ void __launch_bounds__(128) mk_tile_wgmma_rows(const mk_tile_params params) {
  const uint16_t *in = reinterpret_cast<const uint16_t *>(params.in);
  uint8_t *panels = room();
  float sums[128];
  uint32_t registers[4][4], row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  if (params.count != 2) {
    swizzle(in, 64, 64, panels);
  }
  swizzle(in + 64 * 64, 64, 256, panels + 8192);
#pragma unroll
  for (uint32_t i = 0; i < 16; i++) {
    uint32_t column = i / 4 * 16 + i % 4 / 2 * 8 + threadIdx.x % 4 * 2;
    registers[i / 4][i % 4] = *reinterpret_cast<const uint32_t *>(in + (row + i % 2 * 8) * 64 + column);
  }
  if (params.count == 2) {
    uint32_t lane = threadIdx.x % 32, to = tile::shared_address(panels) + (threadIdx.x / 32 * 16 + lane % 16) * 128;
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
      tile::store_left(to + (k * 2 + lane / 16 ^ lane % 8) * 16, registers[k]);
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < 128; i++) {
    sums[i] = 0.0f;
  }
  tile::fence_shared_for_copies();
  __syncthreads();
  tile::panel left = tile::panel_of(tile::shared_address(panels), 0);
  tile::panel right = tile::panel_of(tile::shared_address(panels) + 8192, 8192);
  if (params.count == 0) {
    tile::pin(sums);
    tile::products_begin();
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
      tile::multiply_by_rows<true>(sums, registers[k], tile::panel_at(right, k * 2048));
    }
    tile::products_commit();
    tile::products_wait<0>();
    tile::pin(sums);
  } else {
    tile::pin(sums);
    tile::products_begin();
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
      tile::multiply_by_rows<true>(sums, tile::panel_at(left, k * 32), tile::panel_at(right, k * 2048));
    }
    tile::products_commit();
    tile::products_wait<0>();
    tile::pin(sums);
  }
  put_sums(sums, reinterpret_cast<float *>(params.out), 256);
  test::finish(params, true);
}

// out [64][rows] = a b^T for a [64][columns] and b [rows][columns], which comes as tiles and becomes panels where it
// is: strips of sixteen rows, or, of 64 columns, squares of 32 rows. count: columns of b from there on are zero (of
// squares).
template <uint32_t rows, uint32_t columns, bool squares>
__device__ inline void multiply_tiles(const mk_tile_params &params) {
  enum { K_TILES = columns / 16, STRIP = K_TILES * 512, STRIDE = rows / 16 * 512 };
  const uint16_t *in = reinterpret_cast<const uint16_t *>(params.in);
  uint8_t *tiles = room();
  float sums[rows / 2];
  uint32_t left[K_TILES][4], row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
  const uint32_t *words = reinterpret_cast<const uint32_t *>(in + 64 * columns);
  for (uint32_t i = threadIdx.x; i < rows * columns / 2; i += blockDim.x) {
    reinterpret_cast<uint32_t *>(tiles)[i] = words[i];
  }
  __syncthreads();
  for (uint32_t i = threadIdx.x / 32; i < (squares ? rows / 32 : rows / 16); i += 4) {
    if constexpr (squares) {
      tile::square_to_panels<STRIDE>(tiles + i * 1024, params.count);
    } else {
      tile::strip_to_panels<K_TILES>(tiles + i * STRIP);
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < K_TILES * 4; i++) {
    uint32_t column = i / 4 * 16 + i % 4 / 2 * 8 + threadIdx.x % 4 * 2;
    left[i / 4][i % 4] = *reinterpret_cast<const uint32_t *>(in + (row + i % 2 * 8) * columns + column);
  }
  tile::fence_shared_for_copies();
  __syncthreads();
  constexpr uint32_t ROWS_APART = tile::rows_apart(squares ? 1024 : STRIP / 2);
  tile::panel right = tile::panel_of(tile::shared_address(tiles), 16);
  tile::pin(sums);
  tile::products_begin();
  tile::multiply_transposed<false, ROWS_APART>(sums, left[0], right);
#pragma unroll
  for (uint32_t k = 1; k < K_TILES; k++) {
    tile::multiply_transposed<true, ROWS_APART>(sums, left[k], tile::panel_at(right, k / 4 * 1024 + k % 4 * 32));
  }
  tile::products_commit();
  tile::products_wait<0>();
  tile::pin(sums);
  put_sums(sums, reinterpret_cast<float *>(params.out), rows);
  test::finish(params, true);
}

extern "C" __global__ void __launch_bounds__(128) mk_tile_wgmma_strips_64(const mk_tile_params params) {
  multiply_tiles<64, 64, false>(params);
}
extern "C" __global__ void __launch_bounds__(128) mk_tile_wgmma_strips_128(const mk_tile_params params) {
  multiply_tiles<64, 128, false>(params);
}
extern "C" __global__ void __launch_bounds__(128) mk_tile_wgmma_squares_64(const mk_tile_params params) {
  multiply_tiles<64, 64, true>(params);
}
extern "C" __global__ void __launch_bounds__(128) mk_tile_wgmma_squares_128(const mk_tile_params params) {
  multiply_tiles<128, 64, true>(params);
}

// in [32][4]: lane by lane, a column of its quad's matrix; out: a row.
extern "C" __global__ void __launch_bounds__(32) mk_tile_transpose_quad(const mk_tile_params params) {
  uint4 column = reinterpret_cast<const uint4 *>(params.in)[threadIdx.x];
  reinterpret_cast<uint4 *>(params.out)[threadIdx.x] = tile::transpose_quad(threadIdx.x, column);
  test::finish(params, true);
}
