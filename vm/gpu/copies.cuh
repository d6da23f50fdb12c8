// Words that several ranks (GPUs) have copies of, and where a kernel for several ranks stores them (docs/RANKS.md).
//
// An operand that writes such words carries a bit for each rank that reads them (mk_gpu_peers, vm/gpu/launch.h). A copy
// of another rank lies as far from that rank's own memory as from ours, so its address is ours plus a constant. What is
// read is always the own copy. In kernels for one rank, all of this is a plain store.
#pragma once
#include "vm/gpu/device.cuh"

namespace mk {

// The ranks that read what the operand writes, a bit for each.
__device__ inline uint32_t readers_of(const mk_operand &written) { return written.flags >> MK_GPU_READERS_SHIFT; }

// All ranks as readers; nothing in kernels for one rank, where nobody looks at it.
__device__ inline uint32_t all_readers(const device &d) { return MK_GPU_RANKS ? (1u << d.params.peers->ranks) - 1 : 0; }

// This rank alone; nothing in kernels for one rank.
__device__ inline uint32_t own_place(const device &d) { return MK_GPU_RANKS ? 1u << d.params.peers->rank : 0; }

// The readers of what may also lie on this rank alone: then no readers are told of, and its own place is the only one.
__device__ inline uint32_t places_of(const device &d, const mk_operand &written) {
  return MK_GPU_RANKS && readers_of(written) != 0 ? readers_of(written) : own_place(d);
}

// What to add to an address of this rank's copies to get that of another rank's, for all ranks.
__device__ inline uint64_t *away() {
  return tile::view<uint64_t>(const_cast<track_end *>(device::words()->tracks) + DISTANCES_AT);
}
static_assert(sizeof(shared_words::tracks) >= (DISTANCES_AT + DISTANCES) * sizeof(track_end) || !MK_GPU_RANKS,
              "they have room there");

template <typename word>
__device__ inline word *copy_of(word *own, uint32_t rank) {
  return tile::view<word>(tile::view<uint8_t>(own) + away()[rank]);
}

// Calls put(to) for each copy of a word of which this rank's is `own`.
template <typename word, typename store>
__device__ inline void to_readers(uint32_t readers, word *own, store put) {
  if constexpr (MK_GPU_RANKS) {
    for (; readers != 0; readers &= readers - 1) {
      put(copy_of(own, tile::lowest_bit(readers)));
    }
  } else {
    put(own);
  }
}

// The same kept for later; in kernels for one rank there is nothing to keep.
template <bool several>
struct kept_readers {
  __device__ void keep_readers(const mk_operand &) {}
  __device__ uint32_t readers() const { return 0; }
};
template <>
struct kept_readers<true> {
  uint32_t kept;
  __device__ void keep_readers(const mk_operand &written) { kept = readers_of(written); }
  __device__ uint32_t readers() const { return kept; }
};

// Four lanes store to the copy of one rank: the eight times four lanes of a warp reach all copies by one instruction.
// This is where the lane's copy of a row of words is; nullptr: the rank does not read it.
__device__ inline uint64_t *copy_of_lane(uint32_t lane, const mk_operand &written, uint64_t *own) {
  uint32_t rank = tile::group_of_lane<32 / MK_GPU_MOST_RANKS>(lane);
  return tile::has_lane(readers_of(written), rank) ? copy_of(own, rank) : nullptr;
}

// Called by all threads at the start of a launch, before a meeting of them.
__device__ inline void find_copies(const device &d) {
  if constexpr (MK_GPU_RANKS) {
    if (tile::thread() < MK_GPU_MOST_RANKS) {
      away()[tile::thread()] = d.params.peers->away[tile::thread()];
    }
  }
}

// Raises the abort flags of all other ranks: by one thread.
__device__ inline void abort_others(const mk_gpu_peers *peers) {
  for (uint32_t rank = 0; rank < peers->ranks; rank++) {
    if (rank != peers->rank) {
      tile::store_system(tile::global<uint32_t>(peers->aborts[rank]), 1);
    }
  }
}

}  // namespace mk
