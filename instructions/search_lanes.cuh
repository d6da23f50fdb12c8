// What SIFT and DRAW of one row and of several have in common on the device: one warp, with a lane for each segment,
// decides a round.
#pragma once
#include "instructions/front.cuh"

namespace mk {

__device__ inline uint64_t pair_value(const tile::stamped_pair &pair) {
  return static_cast<uint64_t>(tile::stamp_data(pair.high)) << 32 | tile::stamp_data(pair.low);
}

// How many entries a front has, by its word MK_FRONT_ABOUT.
__device__ inline uint32_t entries_of(uint32_t about) {
  return min(about >> MK_FRONT_COUNT_AT & MK_FRONT_COUNT_BITS, static_cast<uint32_t>(MK_FRONT_MOST));
}

// The sum of a value over the lanes before this one.
__device__ inline uint64_t sum_before(uint32_t lane, uint64_t value) {
  uint64_t sum = value;
#pragma unroll 1
  for (uint32_t step = 1; step < 32; step *= 2) {
    uint64_t other = tile::from_lane_before(sum, step);
    sum += lane >= step ? other : 0;
  }
  return sum - value;
}

// mk_tally of what each warp has looked at. One thread at a time adds to an entry, so nothing has to be atomic.
struct warp_tallies {
  uint64_t mass[MK_GPU_CONSUMER_WARPS][MK_SIFT_SEGMENTS], best[MK_GPU_CONSUMER_WARPS][MK_SIFT_SEGMENTS];
  uint32_t count[MK_GPU_CONSUMER_WARPS][MK_SIFT_SEGMENTS];
};

// What lane l knows of segment l, over some tokens: as mk_tally.
struct segment_sum {
  uint64_t mass = 0, best = 0;
  uint32_t count = 0;
};

// mk_sift_decide by one warp, with a lane for each segment. *best: a draw that is kept for sure, 0 where none is known.
// True when *best is now the winner, for certain; otherwise *best is the best draw known by now to be kept, and the
// pivots are set anew.
__device__ inline bool decide_by_lanes(uint32_t lane, const uint32_t *words, const segment_sum &sum, uint64_t *pivots,
                                       uint64_t *best) {
  bool top_p = (words[MK_SAMPLING_FLAGS] & MK_SAMPLE_TOP_P) != 0;
  uint32_t k = (words[MK_SAMPLING_FLAGS] & MK_SAMPLE_TOP_K) != 0 ? words[MK_SAMPLING_TOP_K] : 0xffffffffu;
  uint32_t count = sum.count;
  uint64_t mass = sum.mass, mass_before = sum_before(lane, mass);
  uint32_t count_before = static_cast<uint32_t>(sum_before(lane, count));
  // Finds where top-k ends, and what lies before it.
  uint32_t over = tile::lanes_where(count_before + count > k);
  uint32_t begin = over != 0 ? __ffs(over) - 1 : 32, at = min(begin, 31u);
  bool exact = over == 0 || tile::from_lane(count_before, at) == k;
  uint64_t mass_begin = tile::from_lane(mass_before, at), mass_end = tile::from_lane(mass, at);
  mass_end += mass_begin;
  mass_begin = over == 0 ? mass_end : mass_begin;
  mass_end = exact ? mass_begin : mass_end;
  uint32_t end = exact ? begin : begin + 1;
  uint64_t least = top_p ? mk_nucleus(words, mass_begin) : UINT64_MAX;
  uint64_t most = top_p ? mk_nucleus(words, mass_end) : UINT64_MAX;
  bool in = lane < end && mass_before < most, kept = in && lane < begin && mass_before + mass < least;
  uint32_t l = __popc(tile::lanes_where(in)), h = __popc(tile::lanes_where(kept));
  uint32_t open = tile::sum_lanes(in && !kept ? count : 0);
  uint64_t sure = max(*best, highest_key(kept ? sum.best : 0)), maybe = highest_key(in && !kept ? sum.best : 0);
  if (maybe <= sure || (open == 1 && exact)) {
    *best = max(maybe, sure);
    return true;
  }
  *best = sure;
  // The new pivots: points between the ends of what is open, and between those of the place where top-k ends, merged.
  uint64_t high = pivots[h], low = l < 32 ? pivots[l] : 0;
  uint64_t high_k = begin < 32 ? pivots[begin] : 0, low_k = end < 32 ? pivots[end] : 0;
  uint32_t of_k = !top_p ? 0 : exact ? 1 : MK_SIFT_SEGMENTS / 2 - 1, of_all = MK_SIFT_SEGMENTS - 1 - of_k;
  uint64_t point = mk_sift_point(high, low, min(lane, of_all - 1), of_all);
  uint64_t point_k = of_k != 0 ? mk_sift_point(high_k, low_k, min(lane, of_k - 1), of_k) : 0;
  uint32_t place = lane + 1, place_k = lane + 1;
  __syncwarp();  // all have read the pivots
#pragma unroll 1
  for (uint32_t i = 0; i < of_k; i++) {
    uint64_t other = tile::from_lane(point_k, i);
    uint32_t before = __popc(tile::lanes_where(lane < of_all && point >= other));
    place += other > point ? 1 : 0;
    place_k += lane == i ? before : 0;
  }
  if (lane < of_all) {
    pivots[place] = point;
  }
  if (lane < of_k) {
    pivots[place_k] = point_k;
  }
  return false;
}

}  // namespace mk
