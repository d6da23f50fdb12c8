// What the 32 lanes of a warp do together, and conversions of pairs. Orders are fixed: the same bits every time.
#pragma once
#include <cuda_bf16.h>

#include <cstdint>

namespace mk::tile {

// True for one lane, the first; all 32 take part. Unlike a comparison with lane() it tells the compiler that what follows is done by one
// thread: without that it puts a loop over lanes around every bulk copy.
__device__ inline bool elect() {
  uint32_t elected;
  asm volatile("{\n .reg .pred one;\n elect.sync _|one, 0xffffffff;\n selp.u32 %0, 1, 0, one;\n}" : "=r"(elected));
  return elected != 0;
}

__device__ inline uint32_t lane() { return threadIdx.x % 32; }

// Of the block, in a way that tells the compiler that it is the same for all lanes.
__device__ inline uint32_t warp() { return __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); }

__device__ inline float sum_lanes(float value) {
  for (int offset = 16; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  return value;
}

// Sum over groups of `width` neighbouring lanes (a power of two); every lane of a group gets it.
template <int width>
__device__ inline float sum_group(float value) {
  static_assert(width >= 1 && width <= 32 && (width & (width - 1)) == 0, "a group is 1, 2, 4, 8, 16 or 32 lanes wide");
  for (int offset = width / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, offset);
  }
  return value;
}

// 2^x by one instruction, relative error below 2^-22; 0 where the result would be subnormal. PTX ISA, "ex2".
__device__ inline float exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// Registers per thread of the calling warpgroup from here on (PTX ISA, "setmaxnreg"): some give, then others take.
template <int count>
__device__ inline void give_registers() {
  static_assert(count >= 24 && count <= 256 && count % 8 == 0, "registers come in multiples of 8, from 24 to 256");
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
__device__ inline void take_registers() {
  static_assert(count >= 24 && count <= 256 && count % 8 == 0, "registers come in multiples of 8, from 24 to 256");
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}

// Sixteen bytes of shared memory that this thread alone touches, by one instruction.
template <typename type>
__device__ inline type load_whole(const type &from) {
  static_assert(sizeof(type) == 16 && alignof(type) == 16, "sixteen bytes, aligned");
  uint4 raw = *reinterpret_cast<const uint4 *>(&from);
  return *reinterpret_cast<type *>(&raw);
}
template <typename type>
__device__ inline void store_whole(type &to, const type &value) {
  static_assert(sizeof(type) == 16 && alignof(type) == 16, "sixteen bytes, aligned");
  *reinterpret_cast<uint4 *>(&to) = *reinterpret_cast<const uint4 *>(&value);
}

// The same value, but what follows from it is computed here: the compiler would compute it once per launch and keep it in registers.
__device__ inline uint32_t anew(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

// Two bf16 in a word, element 0 low.
__device__ inline uint32_t pack_bf16(float low, float high) {
  __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<uint32_t *>(&pair);
}
__device__ inline float low_bf16(uint32_t word) { return __uint_as_float(word << 16); }
__device__ inline float high_bf16(uint32_t word) { return __uint_as_float(word & 0xffff0000u); }

}  // namespace mk::tile
