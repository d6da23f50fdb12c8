// The order of candidates for the next token, on the device: as head.c and next.c have it.
#pragma once
#include "instructions/sampling.h"
#include "vm/gpu/wait.cuh"

namespace mk {

// Where several rows are drawn nobody reads a HEAD's candidates, and these kernels make none. The kernel that draws for
// one row makes them all the same.
constexpr bool MAKES_CANDIDATES = !(MK_GPU_SAMPLES && (MK_GPU_ROWS || MK_GPU_SLOTS));

// NaN ranks above every number, equal values by the lower index.
__device__ inline bool candidate_above(float a, uint32_t a_index, float b, uint32_t b_index) {
  bool a_nan = isnan(a), b_nan = isnan(b);
  if (a_nan != b_nan) {
    return a_nan;
  }
  return a > b || ((a == b || a_nan) && a_index < b_index);
}

// The better one of two candidates, in `best`.
__device__ inline void take_better(float &best, uint32_t &index, float value, uint32_t other) {
  if (candidate_above(value, other, best, index)) {
    best = value;
    index = other;
  }
}

// The better one of the lane's own candidate and of that of the lane `away` of it.
__device__ inline void take_better_across(float &best, uint32_t &index, uint32_t away) {
  float value = tile::exchange(best, away);
  uint32_t other = tile::exchange(index, away);
  take_better(best, index, value, other);
}

__device__ inline void best_of_lanes(float &best, uint32_t &index) {
#pragma unroll 1
  for (int offset = 16; offset > 0; offset /= 2) {
    take_better_across(best, index, offset);
  }
}

// The highest key of all lanes, given to all of them.
__device__ inline uint64_t highest_key(uint64_t key) {
  uint32_t high = tile::largest_of_lanes(static_cast<uint32_t>(key >> 32));
  uint32_t low = tile::largest_of_lanes(key >> 32 == high ? static_cast<uint32_t>(key) : 0);
  return static_cast<uint64_t>(high) << 32 | low;
}

// Of all SMs: the candidate that is above the others; whether its value is no number, and whether an SM wishes to stop.
struct merged_candidates {
  uint32_t index, stop;
  bool failed;
};

// Waits for `count` candidates, one of each SM, `stride` words apart from `first` on. It runs once a step, so what
// counts is how many instructions it has: candidates are ordered as keys, as candidate_above has it; those of 132 SMs
// are looked at together; and a lane beyond the last one takes that one once more, which changes nothing.
__device__ inline merged_candidates merge_candidates(const device &d, uint32_t buffer, const uint64_t *first,
                                                     uint32_t stride, uint32_t count) {
  enum { TOGETHER = 5 };  // of a lane
  uint64_t best = 0;
  uint32_t stop = 0;
#pragma unroll 1
  for (uint32_t base = 0; base < count; base += TOGETHER * 32) {
    tile::stamped_pair pairs[TOGETHER];
    wait_stamped_pairs<TOGETHER>(
        d, buffer, [&](uint32_t i) { return first + min(base + i * 32 + tile::lane(), count - 1) * stride; }, pairs);
#pragma unroll
    for (uint32_t i = 0; i < TOGETHER; i++) {
      float value = mk_plus(__uint_as_float(tile::stamp_data(pairs[i].low)), 0.0f);  // zeros are equal
      uint32_t word = tile::stamp_data(pairs[i].high), high = isnan(value) ? UINT32_MAX : mk_ordered(value);
      best = max(best, static_cast<uint64_t>(high) << 32 | (MK_CANDIDATE_NONE - (word & MK_CANDIDATE_NONE)));
      stop |= word;
    }
  }
  best = highest_key(best);
  return {MK_CANDIDATE_NONE - static_cast<uint32_t>(best), tile::or_lanes(stop) & MK_CANDIDATE_STOP,
          best >> 32 == UINT32_MAX};
}

}  // namespace mk
