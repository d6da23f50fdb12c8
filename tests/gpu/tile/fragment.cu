// instructions/tile/fragment.cuh: fragments of packed weights, and the mma on them.
#include "instructions/tile/fragment.cuh"

#include "instructions/tile/warp.cuh"
#include "tests/gpu/tile/tile_test.cuh"

using namespace mk;

// Brings the next MK_FRAGMENT_STEPS steps of 512 bytes from global to shared memory.
__device__ inline void stage(uint4 (&to)[MK_FRAGMENT_STEPS * 32], const uint4 *from) {
  __syncwarp();
  for (uint32_t s = 0; s < MK_FRAGMENT_STEPS; s++) {
    to[s * 32 + tile::lane()] = from[s * 32 + tile::lane()];
  }
  __syncwarp();
}

// in [count][MK_FRAGMENT_STEPS][512 bytes]; out the same, through fragments.
extern "C" __global__ void __launch_bounds__(32) mk_tile_fragment_load(const mk_tile_params params) {
  __shared__ __align__(512) uint4 steps[MK_FRAGMENT_STEPS * 32];
  uint4 *out = reinterpret_cast<uint4 *>(params.out);
  for (uint32_t i = 0; i < params.count; i++) {
    stage(steps, reinterpret_cast<const uint4 *>(params.in) + i * MK_FRAGMENT_STEPS * 32);
    for (uint32_t s = 0; s < MK_FRAGMENT_STEPS; s++) {
      tile::weight_tile weights;
      tile::load(weights, reinterpret_cast<const uint8_t *>(steps + s * 32));
      out[(i * MK_FRAGMENT_STEPS + s) * 32 + tile::lane()] =
          make_uint4(weights.word[0], weights.word[1], weights.word[2], weights.word[3]);
    }
  }
  test::finish(params, true);
}

// out [count row tiles][16][8] = W x X. in: X as fp32 [16 MK_FRAGMENT_STEPS][8], then W, `count` row tiles of
// MK_FRAGMENT_STEPS steps in the order of mk_tile_offset. Each row tile starts from zero sums; a zero weight tile after
// each step must change nothing.
extern "C" __global__ void __launch_bounds__(32) mk_tile_fragment_multiply(const mk_tile_params params) {
  __shared__ __align__(512) uint4 steps[MK_FRAGMENT_STEPS * 32];
  const float *x = reinterpret_cast<const float *>(params.in);
  const uint4 *w = reinterpret_cast<const uint4 *>(x + 16 * MK_FRAGMENT_STEPS * 8);
  float *out = reinterpret_cast<float *>(params.out);
  const uint32_t group = tile::lane() / 4, t = tile::lane() % 4;
  for (uint32_t row_tile = 0; row_tile < params.count; row_tile++) {
    stage(steps, w + row_tile * MK_FRAGMENT_STEPS * 32);
    tile::sum_tile sums;
    tile::zero(sums);
    for (uint32_t s = 0; s < MK_FRAGMENT_STEPS; s++) {
      auto at = [&](uint32_t k) { return x[(16 * s + k) * 8 + group]; };
      const tile::vector_tile vectors{
          {tile::pack_bf16(at(2 * t), at(2 * t + 1)), tile::pack_bf16(at(2 * t + 8), at(2 * t + 9))}};
      tile::weight_tile weights, nothing;
      tile::load(weights, reinterpret_cast<const uint8_t *>(steps + s * 32));
      tile::zero(nothing);
      tile::multiply_add(sums, weights, vectors);
      tile::multiply_add(sums, nothing, vectors);
    }
    for (uint32_t i = 0; i < 4; i++) {
      out[(row_tile * 16 + group + i / 2 * 8) * 8 + 2 * t + i % 2] = sums.value[i];
    }
  }
  test::finish(params, true);
}

// in [count][8][8] bf16; out the transposes.
extern "C" __global__ void __launch_bounds__(32) mk_tile_fragment_transpose(const mk_tile_params params) {
  for (uint32_t i = 0; i < params.count; i++) {
    const uint32_t *in = reinterpret_cast<const uint32_t *>(params.in) + i * 32;
    reinterpret_cast<uint32_t *>(params.out)[i * 32 + tile::lane()] = tile::transpose(in[tile::lane()]);
  }
  test::finish(params, true);
}
