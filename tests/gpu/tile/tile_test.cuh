// What the kernels of the tile tests share: waits that end, and the way out.
#pragma once
#include "instructions/tile/barrier.cuh"
#include "instructions/tile/edge.cuh"
#include "tests/gpu/tile/tile_test.h"

namespace mk::test {

// Tries until `done()` or a deadline; bounded in tries too, should the clock stand still.
template <typename condition>
__device__ inline bool wait_until(condition done) {
  const uint64_t deadline = 1000000000;
  const uint64_t start = tile::global_nanoseconds();
  for (uint32_t tries = 0; tries < 1u << 24; tries++) {
    if (done()) {
      return true;
    }
    if (tries % 64 == 63 && tile::global_nanoseconds() - start > deadline) {
      return false;
    }
  }
  return false;
}

__device__ inline bool wait_phase(uint32_t barrier, uint32_t parity) {
  return wait_until([=] { return tile::try_wait(barrier, parity); });
}

// The same by all lanes of a warp, which agree on the outcome, so that none is left alone at the next meeting of the
// warp.
__device__ inline bool warp_wait_phase(uint32_t barrier, uint32_t parity) {
  return __all_sync(0xffffffffu, wait_phase(barrier, parity)) != 0;
}

// All threads of the block call this last: one late thread makes the block late.
__device__ inline void finish(const mk_tile_params &params, bool good) {
  int all = __syncthreads_and(good);
  if (threadIdx.x == 0) {
    reinterpret_cast<uint32_t *>(params.status)[blockIdx.x] = all != 0 ? MK_TILE_DONE : MK_TILE_LATE;
  }
}

}  // namespace mk::test
