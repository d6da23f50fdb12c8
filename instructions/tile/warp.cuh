// What the 32 lanes of a warp do together, and conversions of pairs. Orders are fixed: the same bits every time.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace mk::tile {

// True for one lane, the first; all 32 take part. Unlike a comparison with lane() it tells the compiler that what
// follows is done by one thread: without that it puts a loop over lanes around every bulk copy.
__device__ inline bool elect() {
  uint32_t elected;
  asm volatile("{\n .reg .pred one;\n elect.sync _|one, 0xffffffff;\n selp.u32 %0, 1, 0, one;\n}" : "=r"(elected));
  return elected != 0;
}

// The thread's number in the block, read anew each time where there is no register to keep it in.
__device__ inline uint32_t thread_anew() {
  uint32_t thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  return thread;
}

#if defined MK_GPU_ROWS || defined MK_GPU_WIDE
__device__ inline uint32_t lane() { return thread_anew() % 32; }
#else
__device__ inline uint32_t lane() { return threadIdx.x % 32; }
#endif

// The warp's number in the block, in a way that tells the compiler that it is the same for all lanes.
__device__ inline uint32_t warp() { return __shfl_sync(0xffffffffu, threadIdx.x / 32, 0); }

// A value that is the same in all lanes, in a way that the compiler believes, even if it was read from memory: then
// loops, branches and addresses that depend on it are computed once for the warp. Where a loop or a branch depends on
// something that the compiler takes for a lane's own, and shuffles and votes come inside it or after it, the compiler
// guards each of them against a warp that has come apart, in all of the role.
__device__ inline uint32_t uniform(uint32_t value) { return __reduce_max_sync(0xffffffffu, value); }
__device__ inline bool uniform(bool value) { return __any_sync(0xffffffffu, value); }

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

// The largest value instead of the sum.
template <int width>
__device__ inline float largest_of_group(float value) {
  static_assert(width >= 1 && width <= 32 && (width & (width - 1)) == 0, "a group is 1, 2, 4, 8, 16 or 32 lanes wide");
  for (int offset = width / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  return value;
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

// The next launch of the stream may take the place of blocks that have ended. PTX ISA, "griddepcontrol".
__device__ inline void start_next_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
// Waits until the launch before this one has ended, and what it wrote is seen.
__device__ inline void wait_for_launch_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

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

// Stores to global memory what is written again and again: the L2 lets go of other data first. PTX ISA, "createpolicy".
__device__ inline void store_to_stay(float4 *to, const float4 &value) {
  asm volatile(
      "{\n .reg .b64 stays;\n createpolicy.fractional.L2::evict_last.b64 stays, 1.0;\n"
      " st.global.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, stays;\n}" ::"l"(to),
      "f"(value.x), "f"(value.y), "f"(value.z), "f"(value.w)
      : "memory");
}

__device__ inline void store_to_stay(float *to, float value) {
  asm volatile(
      "{\n .reg .b64 stays;\n createpolicy.fractional.L2::evict_last.b64 stays, 1.0;\n"
      " st.global.L2::cache_hint.f32 [%0], %1, stays;\n}" ::"l"(to),
      "f"(value)
      : "memory");
}

// Adds to a word of shared memory that other lanes add to at the same time. Nothing comes back.
__device__ inline void add_shared_if(bool here, uint32_t &to, uint32_t amount) {
  asm volatile("{\n .reg .pred here;\n setp.ne.u32 here, %2, 0;\n @here red.shared.add.u32 [%0], %1;\n}" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(&to))),
               "r"(amount), "r"(static_cast<uint32_t>(here))
               : "memory");
}

// The same value; but what follows from it is computed here, where the compiler would compute it once per launch and
// keep it in registers.
__device__ inline uint32_t anew(uint32_t value) {
  asm volatile("" : "+r"(value));
  return value;
}

// Two bf16 in a word, element 0 low.
__device__ inline uint32_t pack_bf16(float low, float high) {
  __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<uint32_t *>(&pair);
}
// The products of the pairs, each rounded once.
__device__ inline uint32_t multiply_bf16(uint32_t a, uint32_t b) {
  __nv_bfloat162 product = __hmul2(*reinterpret_cast<__nv_bfloat162 *>(&a), *reinterpret_cast<__nv_bfloat162 *>(&b));
  return *reinterpret_cast<uint32_t *>(&product);
}
__device__ inline float low_bf16(uint32_t word) { return __uint_as_float(word << 16); }
__device__ inline float high_bf16(uint32_t word) { return __uint_as_float(word & 0xffff0000u); }

// Two fp16 in a word, element 0 low.
__device__ inline uint32_t pack_half(float low, float high) {
  __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<uint32_t *>(&pair);
}
__device__ inline float2 unpack_half(uint32_t word) { return __half22float2(*reinterpret_cast<__half2 *>(&word)); }

}  // namespace mk::tile
