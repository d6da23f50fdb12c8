// What the 32 lanes of a warp do together, and conversions of pairs. Orders are fixed: the same bits every time.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "instructions/tile/barrier.cuh"
#include "instructions/tile/edge.cuh"
#include "instructions/tile/lanes.cuh"
#include "instructions/tile/view.cuh"

namespace mk::tile {

// True for one lane, the first; all 32 take part. Unlike a comparison with lane() it tells the compiler that what
// follows is done by one thread: without that it puts a loop over lanes around every bulk copy.
__device__ inline bool elect() {
  uint32_t elected;
  asm volatile("{\n .reg .pred one;\n elect.sync _|one, 0xffffffff;\n selp.u32 %0, 1, 0, one;\n}" : "=r"(elected));
  return elected != 0;
}

// 2^x by one instruction, relative error below 2^-22; 0 where the result would be subnormal. PTX ISA, "ex2".
__device__ inline float exp2(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
  return result;
}

// The logarithm to base 2 by one instruction: within 2^-22 where the argument is from 0.5 to 2, elsewhere within 2^-22
// of the logarithm's size. PTX ISA, "lg2".
__device__ inline float log2(float x) {
  float result;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(x));
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

// The next launch of the stream may take the place of blocks that have ended. PTX ISA, "griddepcontrol".
__device__ inline void start_next_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
// Waits until the launch before this one has ended, and what it wrote is seen.
__device__ inline void wait_for_launch_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

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

// Stores four words, 16-byte aligned, where `have` is not `want`: by a predicate, not by a branch. To shared memory,
// the second of them `have` and the third `want`; to global memory, the second the SM's clock as the store goes out.
// Each has one use, in a wait and in the recorder, where every instruction counts.
__device__ inline void store_shared_unless(uint32_t have, uint32_t want, const void *to, uint32_t first,
                                           uint32_t fourth) {
  asm volatile(
      "{\n .reg .pred late;\n setp.ne.u32 late, %2, %3;\n @late st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n}" ::"r"(
          shared_address(to)),
      "r"(first), "r"(have), "r"(want), "r"(fourth)
      : "memory");
}

template <uint32_t want>
__device__ inline void store_timed_unless(uint32_t have, void *to, uint32_t first, uint32_t third, uint32_t fourth) {
  asm volatile(
      "{\n .reg .pred has;\n setp.ne.u32 has, %0, %1;\n @has st.global.v4.u32 [%2], {%3, %4, %5, %6};\n}" ::"r"(have),
      "n"(want), "l"(__cvta_generic_to_global(to)), "r"(first), "r"(clock_low()), "r"(third), "r"(fourth));
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

// The compiler works out anew from here on what follows from this value, instead of keeping it in registers.
__device__ inline void forget(uint32_t &value) { asm volatile("" : "+r"(value)); }

// value -= limit and count += 1 where the limit is reached: three instructions, the last two by a predicate, where the
// compiler makes selections.
__device__ inline void wrap(uint32_t &value, uint32_t limit, uint32_t &count) {
  asm("{\n .reg .pred over;\n setp.ge.u32 over, %0, %2;\n @over sub.u32 %0, %0, %2;\n @over add.u32 %1, %1, 1;\n}"
      : "+r"(value), "+r"(count)
      : "r"(limit));
}
// The same with a phase of 0 or 1, which turns over.
__device__ inline void wrap_phase(uint32_t &value, uint32_t limit, uint32_t &phase) {
  asm("{\n .reg .pred over;\n setp.ge.u32 over, %0, %2;\n @over sub.u32 %0, %0, %2;\n @over xor.b32 %1, %1, 1;\n}"
      : "+r"(value), "+r"(phase)
      : "r"(limit));
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
