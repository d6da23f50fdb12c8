// instructions/tile/copy.cuh: bulk copies of any size and place through a ring, and the proxy fences on both sides.
#include "instructions/tile/copy.cuh"

#include "tests/gpu/tile/tile_test.cuh"

using namespace mk;

// in: mk_tile_copy [count], then data that `from` counts from. out [count][MK_COPY_SLOT_BYTES]: the slot after each
// copy. Consumers fill a slot with a pattern by ordinary stores before they release it, so both fences and the ring's
// reuse matter.
extern "C" __global__ void __launch_bounds__(32 + MK_COPY_CONSUMERS) mk_tile_copy_ring(const mk_tile_params params) {
  __shared__ __align__(128) uint32_t ring[MK_COPY_SLOTS][MK_COPY_SLOT_BYTES / 4];
  __shared__ uint64_t full[MK_COPY_SLOTS], empty[MK_COPY_SLOTS];
  const mk_tile_copy *copies = reinterpret_cast<const mk_tile_copy *>(params.in);
  const uint8_t *data = reinterpret_cast<const uint8_t *>(copies + params.count);
  uint32_t *out = reinterpret_cast<uint32_t *>(params.out);
  if (threadIdx.x == 0) {
    for (uint32_t s = 0; s < MK_COPY_SLOTS; s++) {
      tile::barrier_init(tile::shared_address(&full[s]), 1);
      tile::barrier_init(tile::shared_address(&empty[s]), MK_COPY_CONSUMERS);
    }
    tile::fence_barriers();
  }
  __syncthreads();
  const uint32_t words = MK_COPY_SLOT_BYTES / 4;
  auto fill = [&](uint32_t copy) {  // for that copy
    for (uint32_t i = threadIdx.x - 32; i < words; i += MK_COPY_CONSUMERS) {
      ring[copy % MK_COPY_SLOTS][i] = mk_tile_pattern(copy, i);
    }
    tile::fence_shared_for_copies();
    tile::arrive(tile::shared_address(&empty[copy % MK_COPY_SLOTS]));
  };
  bool good = true;
  if (threadIdx.x == 0) {
    for (uint32_t c = 0; c < params.count && good; c++) {
      const uint32_t slot = c % MK_COPY_SLOTS, parity = c / MK_COPY_SLOTS & 1;
      const uint32_t barrier = tile::shared_address(&full[slot]);
      const mk_tile_copy copy = copies[c];
      good = test::wait_phase(tile::shared_address(&empty[slot]), parity);
      if (good) {
        const uint32_t piece = copy.bytes / copy.pieces, to = tile::shared_address(ring[slot]) + copy.to;
        tile::arrive_expect(barrier, copy.bytes);
        for (uint32_t p = 0; p < copy.pieces; p++) {
          if (p % 2 == 0) {
            tile::bulk_load(to + p * piece, data + copy.from + p * piece, piece, barrier);
          } else {
            tile::bulk_load(to + p * piece, data + copy.from + p * piece, piece, barrier, tile::let_go_first());
          }
        }
      }
    }
  } else if (threadIdx.x >= 32) {
    for (uint32_t c = 0; c < MK_COPY_SLOTS && c < params.count; c++) {
      fill(c);
    }
    for (uint32_t c = 0; c < params.count && good; c++) {
      const uint32_t slot = c % MK_COPY_SLOTS, parity = c / MK_COPY_SLOTS & 1;
      good = test::wait_phase(tile::shared_address(&full[slot]), parity);
      for (uint32_t i = threadIdx.x - 32; i < words && good; i += MK_COPY_CONSUMERS) {
        out[c * words + i] = ring[slot][i];
      }
      if (good && c + MK_COPY_SLOTS < params.count) {
        fill(c + MK_COPY_SLOTS);
      }
    }
  }
  test::finish(params, good);
}

// A size that the compiler knows: `count` copies of MK_COPY_FIXED_BYTES, one after the other, into one place. in, out
// [count][bytes]
extern "C" __global__ void __launch_bounds__(32) mk_tile_copy_fixed(const mk_tile_params params) {
  __shared__ __align__(128) uint32_t to[MK_COPY_FIXED_BYTES / 4];
  __shared__ uint64_t storage;
  const uint32_t barrier = tile::shared_address(&storage), words = MK_COPY_FIXED_BYTES / 4;
  const uint8_t *in = reinterpret_cast<const uint8_t *>(params.in);
  uint32_t *out = reinterpret_cast<uint32_t *>(params.out);
  if (threadIdx.x == 0) {
    tile::barrier_init(barrier, 1);
    tile::fence_barriers();
  }
  __syncwarp();
  bool good = true;
  for (uint32_t c = 0; c < params.count && good; c++) {
    if (threadIdx.x == 0) {
      tile::arrive_expect(barrier, MK_COPY_FIXED_BYTES);
      tile::bulk_load<MK_COPY_FIXED_BYTES>(tile::shared_address(to), in + c * MK_COPY_FIXED_BYTES, barrier);
    }
    good = test::warp_wait_phase(barrier, c & 1);
    for (uint32_t i = threadIdx.x; i < words && good; i += 32) {
      out[c * words + i] = to[i];
    }
    tile::fence_shared_for_copies();
    __syncwarp();
  }
  test::finish(params, good);
}

// What this warp has just stored to global memory is copied back by the async proxy, `count` times over the same 512
// bytes of `work`. in, out [count][128] words
extern "C" __global__ void __launch_bounds__(32) mk_tile_copy_stored(const mk_tile_params params) {
  __shared__ __align__(128) uint32_t to[128];
  __shared__ uint64_t storage;
  const uint32_t barrier = tile::shared_address(&storage), lane = threadIdx.x;
  const uint4 *in = reinterpret_cast<const uint4 *>(params.in);
  uint4 *work = reinterpret_cast<uint4 *>(params.work), *out = reinterpret_cast<uint4 *>(params.out);
  if (lane == 0) {
    tile::barrier_init(barrier, 1);
    tile::fence_barriers();
  }
  __syncwarp();
  bool good = true;
  for (uint32_t round = 0; round < params.count && good; round++) {
    work[lane] = in[round * 32 + lane];
    tile::fence_global_for_copies();
    __syncwarp();
    if (lane == 0) {
      tile::arrive_expect(barrier, sizeof to);
      tile::bulk_load(tile::shared_address(to), work, sizeof to, barrier);
    }
    good = test::warp_wait_phase(barrier, round & 1);
    if (good) {
      out[round * 32 + lane] = reinterpret_cast<const uint4 *>(to)[lane];
    }
    tile::fence_shared_for_copies();
    __syncwarp();
  }
  test::finish(params, good);
}
