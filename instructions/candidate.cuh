// The order of candidates for the next token, on the device: as head.c and next.c have it.
#pragma once
#include <cstdint>

namespace mk {

// NaN ranks above every number, equal values by the lower index.
__device__ inline bool candidate_above(float a, uint32_t a_index, float b, uint32_t b_index) {
  bool a_nan = isnan(a), b_nan = isnan(b);
  if (a_nan != b_nan) {
    return a_nan;
  }
  return a > b || ((a == b || a_nan) && a_index < b_index);
}

__device__ inline void best_of_lanes(float &best, uint32_t &index) {
#pragma unroll 1
  for (int offset = 16; offset > 0; offset /= 2) {
    float other = __shfl_xor_sync(0xffffffffu, best, offset);
    uint32_t other_index = __shfl_xor_sync(0xffffffffu, index, offset);
    if (candidate_above(other, other_index, best, index)) {
      best = other;
      index = other_index;
    }
  }
}

}  // namespace mk
