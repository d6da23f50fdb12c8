// instructions/tile/barrier.cuh: phases and their parity, hand-over through a ring, meetings.
#include "tests/gpu/tile/tile_test.cuh"

using namespace mk;

// What one thread sees of a barrier: bits 0, 1: test_wait of parity 0, 1; bit 2: try_wait of `complete`, a phase that
// is over.
__device__ inline uint32_t look(uint32_t barrier, uint32_t complete) {
  return (tile::test_wait(barrier, 0) ? 1u : 0u) | (tile::test_wait(barrier, 1) ? 2u : 0u) |
         (tile::try_wait(barrier, complete & 1) ? 4u : 0u);
}

// One thread makes `count` phases of one barrier and looks before every arrival and after the last one: three arrivals
// one by one in even phases, two at once and one in odd ones (then the second look follows both). out
// [count][MK_BARRIER_ARRIVALS + 1]
extern "C" __global__ void __launch_bounds__(32) mk_tile_barrier_phases(const mk_tile_params params) {
  __shared__ uint64_t storage;
  uint32_t *out = reinterpret_cast<uint32_t *>(params.out);
  if (threadIdx.x == 0) {
    const uint32_t barrier = tile::shared_address(&storage);
    tile::barrier_init(barrier, MK_BARRIER_ARRIVALS);
    tile::fence_barriers();
    for (uint32_t phase = 0; phase < params.count; phase++) {
      for (uint32_t arrival = 0; arrival < MK_BARRIER_ARRIVALS; arrival++) {
        *out++ = look(barrier, phase + 1);
        if (phase % 2 == 0) {
          tile::arrive(barrier);
        } else if (arrival != 1) {
          tile::arrive(barrier, arrival == 0 ? 2 : 1);
        }
      }
      *out++ = look(barrier, phase);
    }
  }
  test::finish(params, true);
}

// Warp 0 hands `in` [MK_BARRIER_ROUNDS][32] to warp 1 through a ring, which writes it to out.
extern "C" __global__ void __launch_bounds__(64) mk_tile_barrier_ring(const mk_tile_params params) {
  __shared__ uint64_t full[MK_BARRIER_SLOTS], empty[MK_BARRIER_SLOTS];
  __shared__ uint32_t ring[MK_BARRIER_SLOTS][32];
  const uint32_t *in = reinterpret_cast<const uint32_t *>(params.in);
  uint32_t *out = reinterpret_cast<uint32_t *>(params.out);
  const uint32_t lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    for (uint32_t s = 0; s < MK_BARRIER_SLOTS; s++) {
      tile::barrier_init(tile::shared_address(&full[s]), 32);
      tile::barrier_init(tile::shared_address(&empty[s]), 1);
    }
    tile::fence_barriers();
  }
  __syncthreads();
  bool good = true;
  for (uint32_t round = 0; round < MK_BARRIER_ROUNDS && good; round++) {
    const uint32_t slot = round % MK_BARRIER_SLOTS, parity = round / MK_BARRIER_SLOTS & 1;
    if (threadIdx.x < 32) {
      good = test::warp_wait_phase(tile::shared_address(&empty[slot]), parity ^ 1);
      if (good) {
        ring[slot][lane] = in[round * 32 + lane];
        tile::arrive(tile::shared_address(&full[slot]));  // each lane for its own word
      }
    } else {
      good = test::warp_wait_phase(tile::shared_address(&full[slot]), parity);
      if (good) {
        out[round * 32 + lane] = ring[slot][lane ^ 1];  // another lane's word
      }
      __syncwarp();
      if (lane == 0 && good) {
        tile::arrive(tile::shared_address(&empty[slot]));
      }
    }
  }
  test::finish(params, good);
}

// Warps meet `count` times; after each meeting every warp reads what the others wrote before it. out [count][warps].
extern "C" __global__ void __launch_bounds__(MK_BARRIER_WARPS * 32)
    mk_tile_barrier_meeting(const mk_tile_params params) {
  __shared__ uint64_t storage;
  __shared__ uint32_t written[2][MK_BARRIER_WARPS];  // by parity: a warp may lag one meeting
  const uint32_t barrier = tile::shared_address(&storage), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (threadIdx.x == 0) {
    tile::barrier_init(barrier, MK_BARRIER_WARPS);
    tile::fence_barriers();
  }
  __syncthreads();
  bool good = true;
  for (uint32_t meeting = 0; meeting < params.count && good; meeting++) {
    if (lane == 0) {
      written[meeting & 1][warp] = (meeting + 1) << (8 * warp);
      tile::arrive(barrier);
    }
    good = test::warp_wait_phase(barrier, meeting & 1);
    uint32_t sum = 0;
    for (uint32_t w = 0; w < MK_BARRIER_WARPS; w++) {
      sum += written[meeting & 1][w];
    }
    if (lane == 31) {
      reinterpret_cast<uint32_t *>(params.out)[meeting * MK_BARRIER_WARPS + warp] = sum;
    }
    __syncwarp();
  }
  test::finish(params, good);
}

// The first MK_BARRIER_MEET threads of the block meet `count` times; each reads what a thread of the next warp wrote
// before. out [count][MK_BARRIER_MEET]. This wait has no deadline: every warp comes whatever happens.
extern "C" __global__ void __launch_bounds__(128) mk_tile_barrier_meet(const mk_tile_params params) {
  __shared__ uint32_t written[2][MK_BARRIER_MEET];
  for (uint32_t meeting = 0; meeting < params.count && threadIdx.x < MK_BARRIER_MEET; meeting++) {
    written[meeting & 1][threadIdx.x] = meeting << 16 | threadIdx.x;
    tile::meet<MK_BARRIER_MEET>();
    reinterpret_cast<uint32_t *>(params.out)[meeting * MK_BARRIER_MEET + threadIdx.x] =
        written[meeting & 1][(threadIdx.x + 32) % MK_BARRIER_MEET];
  }
  test::finish(params, true);
}

// Warps 0 and 1 meet at one barrier, `count` times, warps 2 and 3 at another one, twice as often; each thread reads
// what one of the other warp wrote before. out [2 count][128]: of the first two warps the first half of it.
extern "C" __global__ void __launch_bounds__(128) mk_tile_barrier_meet_at(const mk_tile_params params) {
  __shared__ uint32_t written[2][128];
  const uint32_t pair = threadIdx.x / 64, meetings = params.count * (pair + 1);
  for (uint32_t meeting = 0; meeting < meetings; meeting++) {
    written[meeting & 1][threadIdx.x] = meeting << 16 | threadIdx.x;
    tile::meet_at<64>(2 + pair);
    reinterpret_cast<uint32_t *>(params.out)[meeting * 128 + threadIdx.x] = written[meeting & 1][threadIdx.x ^ 32];
  }
  test::finish(params, true);
}
