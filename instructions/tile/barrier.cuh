// Shared-memory barriers (mbarrier) of the roles: full and empty sides of rings. PTX ISA, "mbarrier".
// Addresses are 32-bit shared-memory addresses. Waits are tries: who spins, and until when, is told in vm/gpu/wait.cuh.
#pragma once
#include <cstdint>

namespace mk::tile {

__device__ inline uint32_t shared_address(const void *pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Makes a barrier whose phases are complete after `arrivals` arrivals. fence_barriers() makes it visible to the async
// proxy.
__device__ inline void barrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}

__device__ inline void fence_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(barrier) : "memory");
}

// The same, for `count` arrivals.
__device__ inline void arrive(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

// The first `threads` threads of the block meet. These are whole warps, each of which has to come.
template <uint32_t threads>
__device__ inline void meet() {
  static_assert(threads > 0 && threads <= 1024 && threads % 32 == 0, "whole warps of one block meet");
  asm volatile("barrier.cta.sync 1, %0;" ::"n"(threads) : "memory");
}

// `threads` threads that name the same barrier, from 2 to 15, meet.
template <uint32_t threads>
__device__ inline void meet_at(uint32_t barrier) {
  static_assert(threads > 0 && threads <= 1024 && threads % 32 == 0, "whole warps of one block meet");
  asm volatile("barrier.cta.sync %0, %1;" ::"r"(barrier), "n"(threads) : "memory");
}

// An arrival that also announces `bytes` of bulk copies to come.
__device__ inline void arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// True when the phase of this parity is complete; may suspend the thread for a short time first.
__device__ inline bool try_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{\n .reg .pred p;\n mbarrier.try_wait.parity.shared.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}

// The same without waiting.
__device__ inline bool test_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile("{\n .reg .pred p;\n mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
               : "=r"(done)
               : "r"(barrier), "r"(parity)
               : "memory");
  return done != 0;
}

}  // namespace mk::tile
