// The read probe: every SM streams its share of a large buffer into shared memory by 1-D bulk copies,
// MK_BANDWIDTH_SLOTS in flight, and looks at nothing. Chunk i of block b is number b + i * blocks. One thread per
// block; its slots refill as they arrive.
#include "instructions/tile/barrier.cuh"
#include "instructions/tile/copy.cuh"
#include "instructions/tile/lanes.cuh"
#include "instructions/tile/view.cuh"
#include "vm/gpu/bandwidth.h"

extern "C" __global__ void __launch_bounds__(32, 1)
    mk_read_bandwidth(const __grid_constant__ mk_bandwidth_params params) {
  using namespace mk::tile;
  extern __shared__ __align__(1024) uint8_t slots[];
  __shared__ __align__(8) uint64_t full[MK_BANDWIDTH_SLOTS];
  if (thread() != 0) {
    return;
  }
  for (uint32_t s = 0; s < MK_BANDWIDTH_SLOTS; s++) {
    barrier_init(shared_address(&full[s]), 1);
  }
  fence_barriers();
  const uint8_t *from = global<const uint8_t>(params.address);
  uint64_t mine = params.chunks > blockIdx.x ? (params.chunks - blockIdx.x - 1) / gridDim.x + 1 : 0;
  // Past the last chunk nothing is issued any more; what is in flight is waited for.
  for (uint64_t i = 0; i < mine + MK_BANDWIDTH_SLOTS; i++) {
    uint32_t slot = static_cast<uint32_t>(i % MK_BANDWIDTH_SLOTS);
    uint32_t barrier = shared_address(&full[slot]);
    if (i >= MK_BANDWIDTH_SLOTS && i - MK_BANDWIDTH_SLOTS < mine) {
      uint32_t parity = static_cast<uint32_t>(i / MK_BANDWIDTH_SLOTS - 1) % 2;
      while (!try_wait(barrier, parity)) {
      }
    }
    if (i < mine) {
      arrive_expect(barrier, MK_BANDWIDTH_CHUNK);
      bulk_load(shared_address(slots) + slot * MK_BANDWIDTH_CHUNK,
                from + (blockIdx.x + i * gridDim.x) * MK_BANDWIDTH_CHUNK, MK_BANDWIDTH_CHUNK, barrier);
    }
  }
}
