// The order of candidates for the next token, on the device: as head.c and next.c have it.
#pragma once
#include "vm/gpu/wait.cuh"

namespace mk {

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

// Waits for up to `count` of the lane's candidates, number i at at(i) where has(i), and takes the best one. `stop`: one
// of them wishes that.
template <uint32_t count, typename address, typename presence>
__device__ inline void take_candidates(const device &d, uint32_t buffer, address at, presence has, float &best,
                                       uint32_t &index, uint32_t &stop) {
  tile::stamped_pair pairs[count];
  wait_stamped_pairs<count>(d, buffer, at, has, pairs);
#pragma unroll
  for (uint32_t i = 0; i < count; i++) {
    float value = __uint_as_float(tile::stamp_data(pairs[i].low));
    uint32_t word = tile::stamp_data(pairs[i].high);
    if (has(i)) {
      stop |= word & MK_CANDIDATE_STOP;
      if (candidate_above(value, word & MK_CANDIDATE_NONE, best, index)) {
        best = value;
        index = word & MK_CANDIDATE_NONE;
      }
    }
  }
}

__device__ inline void best_of_lanes(float &best, uint32_t &index) {
#pragma unroll 1
  for (int offset = 16; offset > 0; offset /= 2) {
    take_better_across(best, index, offset);
  }
}

}  // namespace mk
