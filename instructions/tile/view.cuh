// Views: memory as values of a type, and accesses of a whole vector by one instruction. Casts of addresses are here
// alone. A view costs nothing; an access is the one instruction that its name says.
#pragma once
#include <cstdint>
#include <type_traits>

namespace mk::tile {

// The global memory at an address of a buffer, or of anything else that the host names by a number.
template <typename type>
__device__ inline type *global(uint64_t address) {
  static_assert(std::is_trivially_copyable_v<std::remove_cv_t<type>>, "memory holds plain data");
  return reinterpret_cast<type *>(address);
}

// The memory at a place, as values of another type. The place is aligned as the type asks for; nobody checks that.
template <typename type>
__device__ inline type *view(void *place) {
  static_assert(std::is_trivially_copyable_v<std::remove_cv_t<type>>, "memory holds plain data");
  return reinterpret_cast<type *>(place);
}
template <typename type>
__device__ inline const type *view(const void *place) {
  static_assert(std::is_trivially_copyable_v<std::remove_cv_t<type>>, "memory holds plain data");
  return reinterpret_cast<const type *>(place);
}

// One access of `type`, which is as long as several of the elements that the place points to. load, store: memory of
// any kind; _l2: global memory, past the L1, as for what other SMs write or read; _constant: global memory that nobody
// writes in this launch.
template <typename type>
__device__ inline type load(const void *from) {
  return *reinterpret_cast<const type *>(from);
}
template <typename type>
__device__ inline type load_l2(const void *from) {
  return __ldcg(reinterpret_cast<const type *>(from));
}
template <typename type>
__device__ inline type load_constant(const void *from) {
  return __ldg(reinterpret_cast<const type *>(from));
}
template <typename type>
__device__ inline void store(void *to, const type &value) {
  *reinterpret_cast<type *>(to) = value;
}
template <typename type>
__device__ inline void store_l2(void *to, const type &value) {
  __stcg(reinterpret_cast<type *>(to), value);
}

}  // namespace mk::tile
