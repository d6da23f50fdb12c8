// A product by the tile library alone, outside the interpreter (docs/TILES.md): out [lines][rows] bf16 is x
// [lines][cols] times the transpose of W [rows][cols], packed row tiles (instructions/tile/fragment.cuh). Multiples of
// 128 all three. A block makes tiles of 128 rows by 128 lines. One warp copies, chain by chain of 128 columns, through
// a ring of three stages; two warpgroups multiply 64 rows each by all lines, and add a chain to those before when it
// has ended.
#include "instructions/tile/copy.cuh"
#include "instructions/tile/group.cuh"
#include "instructions/tile/view.cuh"
#include "tests/gpu/tile/gemm.h"
#include "tests/gpu/tile/tile_test.cuh"

using namespace mk;

enum { PAGE = 16384, STAGES = MK_GEMM_SHARED_BYTES / (4 * PAGE), COPIER = 8 };

extern "C" __global__ void __launch_bounds__(MK_GEMM_THREADS) mk_tile_gemm(const __grid_constant__ mk_gemm_params p) {
  extern __shared__ __align__(1024) uint8_t pages[];
  __shared__ uint64_t full[STAGES], empty[STAGES];
  const uint32_t warp = threadIdx.x / 32, chains = p.cols / 128, tiles = p.lines / 128;
  if (threadIdx.x < STAGES) {
    tile::barrier_init(tile::shared_address(full + threadIdx.x), 1);
    tile::barrier_init(tile::shared_address(empty + threadIdx.x), COPIER);
    tile::fence_barriers();
  }
  __syncthreads();
  bool good = true;
  uint32_t stage = 0, phase = 0;
  auto next = [&] {
    stage = (stage + 1) % STAGES;
    phase ^= stage == 0;
  };
  if (warp < COPIER) {
    tile::take_registers<224>();
    for (uint32_t at = blockIdx.x; at < p.rows / 128 * tiles; at += gridDim.x) {
      tile::group_sums sums;
      tile::zero(sums);
      for (uint32_t chain = 0; chain < chains && good; chain++, next()) {
        const uint8_t *page = pages + stage * 4 * PAGE;
        tile::weight_chain weights;
        tile::chain_sums<128> sum;
        good = test::warp_wait_phase(tile::shared_address(full + stage), phase);
        tile::load(weights, page + warp * (PAGE / 4));
        const uint32_t x = tile::shared_address(page + 2 * PAGE);
        tile::begin_chain(sum, weights, tile::panel_of(x, 16), tile::panel_of(x + PAGE, 16));
        tile::finish_chain(sum, weights);
        tile::add(sums, sum);
        tile::fence_shared_for_copies();
        __syncwarp();
        if (tile::elect()) {
          tile::arrive(tile::shared_address(empty + stage));
        }
      }
      uint16_t *out = tile::global<uint16_t>(p.out) + static_cast<uint64_t>(at % tiles * 128) * p.rows +
                      at / tiles * 128 + warp * 16;
      tile::each_pair_of_rows(sums, {0, 128}, [&](uint32_t line, uint32_t rows, uint32_t upper, uint32_t lower) {
        tile::store<uint32_t>(out + line * p.rows + rows, upper);
        tile::store<uint32_t>(out + line * p.rows + rows + 8, lower);
      });
    }
  } else {
    tile::give_registers<56>();
    for (uint32_t at = blockIdx.x; at < p.rows / 128 * tiles && warp == COPIER; at += gridDim.x) {
      for (uint32_t chain = 0; chain < chains && good; chain++, next()) {
        good = test::warp_wait_phase(tile::shared_address(empty + stage), phase ^ 1);
        if (good && tile::elect()) {
          const uint32_t to = tile::shared_address(pages + stage * 4 * PAGE), on = tile::shared_address(full + stage);
          tile::arrive_expect(on, 4 * PAGE);
          for (uint32_t i = 0; i < 2; i++) {
            tile::solid_load(to + i * PAGE, &p.weight, 0, chain * 8, at / tiles * 8 + i * 4, on);
            tile::matrix_load(to + (2 + i) * PAGE, &p.x, chain * 128 + i * 64, at % tiles * 128, on);
          }
        }
      }
    }
  }
  test::finish({.status = p.status}, good);
}
