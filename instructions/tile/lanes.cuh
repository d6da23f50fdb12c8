// The lanes of a warp: their numbers and places, votes, values that go from lane to lane, and what 2 to 32 lanes reduce
// to one value. All 32 lanes take part in everything that votes, exchanges or reduces. Orders are fixed: the same bits
// every time. Some ops have one use: they are here because code outside the library counts no lanes. What each op costs
// is in docs/TILES.md.
#pragma once
#include <cstdint>

namespace mk::tile {

// The thread's number in the block.
__device__ inline uint32_t thread() { return threadIdx.x; }

// The same, read anew each time where there is no register to keep it in.
__device__ inline uint32_t thread_anew() {
  uint32_t thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}
// Which warp of the block a thread is of, and which lane of that warp.
__device__ inline uint32_t warp_of_thread(uint32_t thread) { return thread / 32; }
__device__ inline uint32_t lane_of_thread(uint32_t thread) { return thread % 32; }

// The thread's number in the warpgroup.
__device__ inline uint32_t thread_of_group() { return threadIdx.x % 128; }

#if defined MK_GPU_ROWS || defined MK_GPU_WIDE
__device__ inline uint32_t lane() { return thread_anew() % 32; }
#else
__device__ inline uint32_t lane() { return threadIdx.x % 32; }
#endif

// The warp's number in the block, in a way that tells the compiler that it is the same for all lanes.
__device__ inline uint32_t warp() { return __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); }

// Lanes are taken in groups of `width` neighbours: the lane's group, and its place in it. Both take the lane's number,
// since some roles keep it in a register, and others do not.
template <uint32_t width>
__device__ inline uint32_t group_of_lane(uint32_t lane) {
  return lane / width;
}
template <uint32_t width>
__device__ inline uint32_t place_in_group(uint32_t lane) {
  return lane % width;
}

// The same of a width that only the launch knows.
__device__ inline uint32_t place_in_group(uint32_t lane, uint32_t width) { return lane % width; }
// Of two groups that exchange something, which one the lane's is: 0 or 1.
template <uint32_t width>
__device__ inline uint32_t group_of_two(uint32_t lane) {
  return lane / width % 2;
}

// Where a lane is in an 8 x 8 tile of a product (PTX ISA, "Matrix fragments for mma.m16n8k16"): a quad of lanes has a
// row, and each of these lanes two neighbouring columns, of which this is the first.
__device__ inline uint32_t lane_row(uint32_t lane) { return lane / 4; }
__device__ inline uint32_t lane_of_quad(uint32_t lane) { return lane % 4; }
__device__ inline uint32_t lane_column(uint32_t lane) { return lane % 4 * 2; }

// Votes. lanes_where: bit l is lane l's answer.
__device__ inline bool all_lanes(bool here) { return __all_sync(0xffffffffu, here); }
__device__ inline bool any_lane(bool here) { return __any_sync(0xffffffffu, here); }
__device__ inline uint32_t lanes_where(bool here) { return __ballot_sync(0xffffffffu, here); }
// The lanes that have the same value as this one.
__device__ inline uint32_t lanes_sharing(uint32_t value) { return __match_any_sync(0xffffffffu, value); }
__device__ inline bool has_lane(uint32_t lanes, uint32_t lane) { return (lanes >> lane & 1) != 0; }
// The number of the lowest bit that is set.
__device__ inline uint32_t lowest_bit(uint32_t bits) { return __ffs(static_cast<int>(bits)) - 1; }
// The lanes with lower numbers.
__device__ inline uint32_t lanes_before(uint32_t lane) { return (1u << lane) - 1; }

// The value that lane `lane` has; each lane may ask another one. Once around: lane 32 is lane 0.
template <typename type>
__device__ inline type from_lane(type value, uint32_t lane) {
  return __shfl_sync(0xffffffffu, value, lane);
}
__device__ inline uint4 from_lane(const uint4 &value, uint32_t lane) {
  return make_uint4(from_lane(value.x, lane), from_lane(value.y, lane), from_lane(value.z, lane),
                    from_lane(value.w, lane));
}
// The value of the lane `count` before this one; where there is no such lane, the lane's own.
template <typename type>
__device__ inline type from_lane_before(type value, uint32_t count) {
  return __shfl_up_sync(0xffffffffu, value, count);
}
// The value of the lane whose number differs from this one's in the bits of `away`, which gets this one's.
template <typename type>
__device__ inline type exchange(type value, uint32_t away) {
  return __shfl_xor_sync(0xffffffffu, value, away);
}

// A value that is the same in all lanes, in a way that the compiler believes, even if it was read from memory: then
// loops, branches and addresses that depend on it are computed once for the warp. Where a loop or a branch depends on
// something that the compiler takes for a lane's own, and shuffles and votes come inside it or after it, the compiler
// guards each of them against a warp that has come apart, in all of the role.
__device__ inline uint32_t uniform(uint32_t value) { return __reduce_max_sync(0xffffffffu, value); }
__device__ inline bool uniform(bool value) { return __any_sync(0xffffffffu, value); }

// Integers of all lanes, by one instruction.
__device__ inline uint32_t largest_of_lanes(uint32_t value) { return __reduce_max_sync(0xffffffffu, value); }
__device__ inline uint32_t smallest_of_lanes(uint32_t value) { return __reduce_min_sync(0xffffffffu, value); }
__device__ inline uint32_t sum_lanes(uint32_t value) { return __reduce_add_sync(0xffffffffu, value); }
__device__ inline uint32_t or_lanes(uint32_t value) { return __reduce_or_sync(0xffffffffu, value); }

// Sum over groups of `width` neighbouring lanes (a power of two); every lane of a group gets it. Lanes that are far
// apart are added first.
template <int width>
__device__ inline float sum_group(float value) {
  static_assert(width >= 1 && width <= 32 && (width & (width - 1)) == 0, "a group is 1, 2, 4, 8, 16 or 32 lanes wide");
  for (int offset = width / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  return value;
}

__device__ inline float sum_lanes(float value) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  return value;
}

// The same as a tree, neighbours first; and the largest value.
template <uint32_t width>
__device__ inline float sum_tree(float value) {
  static_assert(width >= 1 && width <= 32 && (width & (width - 1)) == 0, "a group is 1, 2, 4, 8, 16 or 32 lanes wide");
#pragma unroll
  for (uint32_t away = 1; away < width; away *= 2) {
    value += exchange(value, away);
  }
  return value;
}

template <uint32_t width>
__device__ inline float largest_tree(float value) {
  static_assert(width >= 1 && width <= 32 && (width & (width - 1)) == 0, "a group is 1, 2, 4, 8, 16 or 32 lanes wide");
#pragma unroll
  for (uint32_t away = 1; away < width; away *= 2) {
    value = fmaxf(value, exchange(value, away));
  }
  return value;
}

// Sum over the lanes that have the same place in groups of `width` lanes; every one of them gets it. Neighbouring
// groups are added first. Of quads that is the sum of a column of an 8 x 8 tile.
template <uint32_t width>
__device__ inline float sum_across(float value) {
  static_assert(width >= 1 && width <= 32 && (width & (width - 1)) == 0, "a group is 1, 2, 4, 8, 16 or 32 lanes wide");
#pragma unroll
  for (uint32_t away = width; away < 32; away *= 2) {
    value += exchange(value, away);
  }
  return value;
}
template <uint32_t width>
__device__ inline float largest_across(float value) {
  static_assert(width >= 1 && width <= 32 && (width & (width - 1)) == 0, "a group is 1, 2, 4, 8, 16 or 32 lanes wide");
#pragma unroll
  for (uint32_t away = width; away < 32; away *= 2) {
    value = fmaxf(value, exchange(value, away));
  }
  return value;
}

// The largest value of a group instead of the sum.
template <int width>
__device__ inline float largest_of_group(float value) {
  static_assert(width >= 1 && width <= 32 && (width & (width - 1)) == 0, "a group is 1, 2, 4, 8, 16 or 32 lanes wide");
  for (int offset = width / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  return value;
}

// Each four lanes 4 g to 4 g + 3 hold a 4 x 4 matrix, of which lane t has column t. Gives lane t its row t.
__device__ inline uint4 transpose_quad(uint32_t lane, uint4 column) {
  uint32_t t = lane % 4;
  bool odd = t % 2 != 0, upper = t / 2 != 0;
  uint32_t x = __shfl_xor_sync(0xffffffffu, odd ? column.x : column.y, 1);
  uint32_t z = __shfl_xor_sync(0xffffffffu, odd ? column.z : column.w, 1);
  uint4 half = odd ? make_uint4(x, column.y, z, column.w) : make_uint4(column.x, x, column.z, z);
  x = __shfl_xor_sync(0xffffffffu, upper ? half.x : half.z, 2);
  z = __shfl_xor_sync(0xffffffffu, upper ? half.y : half.w, 2);
  return upper ? make_uint4(x, z, half.z, half.w) : make_uint4(half.x, half.y, x, z);
}

}  // namespace mk::tile
