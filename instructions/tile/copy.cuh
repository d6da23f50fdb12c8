// Bulk copies from global into shared memory, and the proxy fences around them. PTX ISA, "cp.async.bulk",
// "cp.async.bulk.tensor" and "Proxies".
#pragma once
#include <cstdint>

namespace mk::tile {

// Copies `bytes` (a multiple of 16; both addresses 16-byte aligned) and counts them on `barrier` when they have
// arrived.
__device__ inline void bulk_load(uint32_t shared_to, const void *from, uint32_t bytes, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(shared_to),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}

// The same of what is not read again for long: the L2 lets go of it first. The policy is made once, since ptxas takes
// six instructions for it each time. PTX ISA, "createpolicy".
__device__ inline uint64_t let_go_first() {
  uint64_t policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
__device__ inline void bulk_load(uint32_t shared_to, const void *from, uint32_t bytes, uint32_t barrier,
                                 uint64_t policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::
          "r"(shared_to),
      "l"(from), "r"(bytes), "r"(barrier), "l"(policy)
      : "memory");
}

// The same as bulk_load for a size that the compiler knows.
template <uint32_t bytes>
__device__ inline void bulk_load(uint32_t shared_to, const void *from, uint32_t barrier) {
  static_assert(bytes > 0 && bytes % 16 == 0, "a bulk copy is a multiple of 16 bytes, and not empty");
  static_assert(bytes < 1u << 20, "a barrier counts fewer than 2^20 bytes at a time");
  bulk_load(shared_to, from, bytes, barrier);
}

// Fetches `bytes` bytes (a multiple of 16; the address 16-byte aligned) into the L2.
__device__ inline void prefetch(const void *from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// Copies the box of a tensor map that begins with this panel of this matrix (from its first row on), and counts its
// bytes on `barrier` when it has arrived.
__device__ inline void tensor_load(uint32_t shared_to, const void *map, uint32_t panel, uint32_t matrix,
                                   uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %2, %3, %4}], "
      "[%5];" ::"r"(shared_to),
      "l"(map), "r"(0), "r"(panel), "r"(matrix), "r"(barrier)
      : "memory");
}

// The same of a map of two dimensions: the box that begins at this column and row. What lies beyond the matrix is zero.
__device__ inline void matrix_load(uint32_t shared_to, const void *map, uint32_t col, uint32_t row, uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::"r"(
          shared_to),
      "l"(map), "r"(col), "r"(row), "r"(barrier)
      : "memory");
}

// The same of a map of three dimensions.
__device__ inline void solid_load(uint32_t shared_to, const void *map, uint32_t x, uint32_t y, uint32_t z,
                                  uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4}], [%5];" ::
          "r"(shared_to),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(barrier)
      : "memory");
}

// Tells the hardware that the map will be used soon.
__device__ inline void prefetch_tensor_map(const void *map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

// Orders this thread's ordinary accesses to shared memory before later bulk copies into it: before a page is released.
__device__ inline void fence_shared_for_copies() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Orders this thread's ordinary stores to global memory before later bulk copies out of it: after a KV append.
__device__ inline void fence_global_for_copies() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

}  // namespace mk::tile
