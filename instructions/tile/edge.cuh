// Words through which SMs hand over data: stamped words, counters, flags. PTX ISA, "Memory Consistency Model".
// A stamped word is 64 bits, data low, generation high; 64-bit accesses are single-copy atomic, element by element of a
// .v2.b64. Nothing here orders anything but its own word, unless its name says release or acquire.
#pragma once
#include <concepts>
#include <cstdint>

// Who else touches such words: the SMs of this GPU, or, in kernels for several GPUs, those of all of them.
#ifndef MK_TILE_SCOPE
#define MK_TILE_SCOPE "gpu"
#endif

namespace mk::tile {

struct stamped_pair {  // two neighbouring stamped words, 16-byte aligned
  uint64_t low, high;
};

__device__ inline uint64_t stamp(uint32_t data, uint32_t generation) {
  return static_cast<uint64_t>(generation) << 32 | data;
}
__device__ inline uint32_t stamp_data(uint64_t word) { return static_cast<uint32_t>(word); }
__device__ inline uint32_t stamp_generation(uint64_t word) { return static_cast<uint32_t>(word >> 32); }

__device__ inline uint64_t load_stamped(const uint64_t *from) {
  uint64_t word;
  asm volatile("ld.relaxed." MK_TILE_SCOPE ".global.b64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
  return word;
}

__device__ inline stamped_pair load_stamped_pair(const uint64_t *from) {
  stamped_pair pair;
  asm volatile("ld.relaxed." MK_TILE_SCOPE ".global.v2.b64 {%0, %1}, [%2];"
               : "=l"(pair.low), "=l"(pair.high)
               : "l"(from)
               : "memory");
  return pair;
}

// The same where `here` is true; elsewhere the pair stays as it is. The load has a predicate and no branch, so several
// of them go out together.
__device__ inline void load_stamped_pair_if(bool here, const uint64_t *from, stamped_pair &pair) {
  asm volatile("{\n .reg .pred here;\n setp.ne.u32 here, %3, 0;\n @here ld.relaxed." MK_TILE_SCOPE
               ".global.v2.b64 {%0, %1}, [%2];\n}"
               : "+l"(pair.low), "+l"(pair.high)
               : "l"(from), "r"(static_cast<uint32_t>(here))
               : "memory");
}

// The same of one word.
__device__ inline void load_stamped_if(bool here, const uint64_t *from, uint64_t &word) {
  asm volatile("{\n .reg .pred here;\n setp.ne.u32 here, %2, 0;\n @here ld.relaxed." MK_TILE_SCOPE
               ".global.b64 %0, [%1];\n}"
               : "+l"(word)
               : "l"(from), "r"(static_cast<uint32_t>(here))
               : "memory");
}

__device__ inline void store_stamped(uint64_t *to, uint32_t data, uint32_t generation) {
  asm volatile("st.relaxed." MK_TILE_SCOPE ".global.b64 [%0], %1;" ::"l"(to), "l"(stamp(data, generation)) : "memory");
}

// Three words of data with one stamp: 128 bits, single-copy atomic since .b128 is a scalar (a vector of four words is
// not). 16-byte aligned.
struct stamped_triple {
  uint32_t data[3], generation;
};

__device__ inline void store_stamped_triple(void *to, uint32_t first, uint32_t second, uint32_t third,
                                            uint32_t generation) {
  asm volatile("{\n .reg .b128 whole;\n mov.b128 whole, {%1, %2};\n st.relaxed." MK_TILE_SCOPE
               ".global.b128 [%0], whole;\n}" ::"l"(to),
               "l"(static_cast<uint64_t>(second) << 32 | first), "l"(stamp(third, generation))
               : "memory");
}

__device__ inline stamped_triple load_stamped_triple(const void *from) {
  uint64_t low, high;
  asm volatile("{\n .reg .b128 whole;\n ld.relaxed." MK_TILE_SCOPE
               ".global.b128 whole, [%2];\n mov.b128 {%0, %1}, whole;\n}"
               : "=l"(low), "=l"(high)
               : "l"(from)
               : "memory");
  return {{static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32), stamp_data(high)}, stamp_generation(high)};
}

// Stores two neighbouring words, 16-byte aligned, by one access; to readers each of them is a word of its own.
__device__ inline void store_stamped_pair(uint64_t *to, uint32_t low, uint32_t high, uint32_t generation) {
  asm volatile("st.relaxed." MK_TILE_SCOPE ".global.v2.b64 [%0], {%1, %2};" ::"l"(to), "l"(stamp(low, generation)),
               "l"(stamp(high, generation))
               : "memory");
}

// A stamped word carries bits: a float would be rounded to an integer on its way.
template <std::floating_point number>
__device__ inline void store_stamped(uint64_t *, number, uint32_t) {
  static_assert(sizeof(number) == 0, "a stamped word carries 32 bits: pass __float_as_uint(value)");
}

// The same towards the host.
__device__ inline void store_stamped_system(uint64_t *to, uint32_t data, uint32_t generation) {
  asm volatile("st.relaxed.sys.global.b64 [%0], %1;" ::"l"(to), "l"(stamp(data, generation)) : "memory");
}

__device__ inline uint32_t load_relaxed(const uint32_t *from) {
  uint32_t value;
  asm volatile("ld.relaxed." MK_TILE_SCOPE ".global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

__device__ inline float load_relaxed(const float *from) {
  return __uint_as_float(load_relaxed(reinterpret_cast<const uint32_t *>(from)));
}

__device__ inline uint64_t load_relaxed(const uint64_t *from) {
  uint64_t value;
  asm volatile("ld.relaxed." MK_TILE_SCOPE ".global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
}

__device__ inline void store_relaxed(uint64_t *to, uint64_t value) {
  asm volatile("st.relaxed." MK_TILE_SCOPE ".global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
}

__device__ inline uint32_t load_acquire(const uint32_t *from) {
  uint32_t value;
  asm volatile("ld.acquire." MK_TILE_SCOPE ".global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

__device__ inline uint32_t load_system(const uint32_t *from) {
  uint32_t value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

__device__ inline void store_system(uint32_t *to, uint32_t value) {
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

__device__ inline void add_relaxed(uint32_t *to, uint32_t amount) {
  asm volatile("red.relaxed." MK_TILE_SCOPE ".global.add.u32 [%0], %1;" ::"l"(to), "r"(amount) : "memory");
}

__device__ inline void or_relaxed(uint32_t *to, uint32_t bits) {
  asm volatile("red.relaxed." MK_TILE_SCOPE ".global.or.b32 [%0], %1;" ::"l"(to), "r"(bits) : "memory");
}

__device__ inline void add_release(uint32_t *to, uint32_t amount) {
  asm volatile("red.release." MK_TILE_SCOPE ".global.add.u32 [%0], %1;" ::"l"(to), "r"(amount) : "memory");
}

// Loads constant data, in this place: the compiler would fetch them ahead, and registers are short.
__device__ inline float load_bf16(const uint16_t *from) {
  uint32_t value;
  asm volatile("ld.global.nc.u16 %0, [%1];" : "=r"(value) : "l"(from));
  return __uint_as_float(value << 16);
}

// Called after a meeting of the threads that wrote: all that they wrote comes before what this thread stores from here
// on, for everybody who acquires that.
__device__ inline void fence_release() { asm volatile("fence.acq_rel." MK_TILE_SCOPE ";" ::: "memory"); }

// Called after relaxed loads that saw what others stored after such a fence: what those wrote before their fence is
// there.
__device__ inline void fence_acquire() { asm volatile("fence.acq_rel." MK_TILE_SCOPE ";" ::: "memory"); }

__device__ inline void store_relaxed(uint32_t *to, uint32_t value) {
  asm volatile("st.relaxed." MK_TILE_SCOPE ".global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

// Two and four neighbouring words, 8-byte and 16-byte aligned, by one access; each of them is a word of its own.
__device__ inline void store_relaxed_pair(uint32_t *to, uint32_t low, uint32_t high) {
  asm volatile("st.relaxed." MK_TILE_SCOPE ".global.v2.u32 [%0], {%1, %2};" ::"l"(to), "r"(low), "r"(high) : "memory");
}
__device__ inline void store_relaxed_quad(uint32_t *to, const uint4 &words) {
  asm volatile("st.relaxed." MK_TILE_SCOPE ".global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words.x),
               "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}
// Loads two words each where `here` is true; elsewhere they stay as they are. With a predicate, as above.
__device__ inline void load_relaxed_quad_if(bool here, const uint32_t *from, uint32_t (&first)[2],
                                            uint32_t (&second)[2]) {
  asm volatile("{\n .reg .pred here;\n setp.ne.u32 here, %5, 0;\n @here ld.relaxed." MK_TILE_SCOPE
               ".global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
               : "+r"(first[0]), "+r"(first[1]), "+r"(second[0]), "+r"(second[1])
               : "l"(from), "r"(static_cast<uint32_t>(here))
               : "memory");
}

__device__ inline void load_relaxed_quad_if(bool here, const uint32_t *from, uint4 &words) {
  asm volatile("{\n .reg .pred here;\n setp.ne.u32 here, %5, 0;\n @here ld.relaxed." MK_TILE_SCOPE
               ".global.v4.u32 {%0, %1, %2, %3}, [%4];\n}"
               : "+r"(words.x), "+r"(words.y), "+r"(words.z), "+r"(words.w)
               : "l"(from), "r"(static_cast<uint32_t>(here))
               : "memory");
}

__device__ inline uint64_t global_nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

// Ticks of this SM's clock, which no other SM's need agree with.
__device__ inline uint64_t clock_ticks() {
  uint64_t now;
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(now));
  return now;
}

// The lower half of them, by one short instruction.
__device__ inline uint32_t clock_low() {
  uint32_t now;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(now));
  return now;
}

}  // namespace mk::tile
