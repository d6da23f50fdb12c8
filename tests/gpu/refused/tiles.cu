// Wrong uses of the tile library. MK_CASE 0 compiles; every other one is refused with the words after its #elif.
#include "instructions/tile/barrier.cuh"
#include "instructions/tile/copy.cuh"
#include "instructions/tile/edge.cuh"
#include "instructions/tile/fragment.cuh"
#include "instructions/tile/warp.cuh"

using namespace mk::tile;

extern "C" __global__ void __launch_bounds__(128) mk_refused(uint64_t *words, float value) {
  const uint32_t page = 0, barrier = 4096;
#if MK_CASE == 0
  words[1] = static_cast<uint64_t>(sum_group<8>(value));
  bulk_load<4096>(page, words, barrier);
  meet<64>();
  store_stamped(words, __float_as_uint(value), 1);
#elif MK_CASE == 1   // a group is 1, 2, 4, 8, 16 or 32 lanes wide
  words[1] = static_cast<uint64_t>(sum_group<12>(value));
#elif MK_CASE == 2   // a group is 1, 2, 4, 8, 16 or 32 lanes wide
  words[1] = static_cast<uint64_t>(sum_group<64>(value));
#elif MK_CASE == 3   // a bulk copy is a multiple of 16 bytes, and not empty
  bulk_load<24>(page, words, barrier);
#elif MK_CASE == 4   // a bulk copy is a multiple of 16 bytes, and not empty
  bulk_load<0>(page, words, barrier);
#elif MK_CASE == 5   // a barrier counts fewer than 2^20 bytes at a time
  bulk_load<(1 << 20)>(page, words, barrier);
#elif MK_CASE == 6   // a stamped word carries 32 bits: pass __float_as_uint(value)
  store_stamped(words, value, 1);
#elif MK_CASE == 7   // registers come in multiples of 8, from 24 to 256
  give_registers<60>();
#elif MK_CASE == 8   // registers come in multiples of 8, from 24 to 256
  take_registers<264>();
#elif MK_CASE == 9   // whole warps of one block meet
  meet<48>();
#elif MK_CASE == 10  // memory holds plain data
  struct counted {
    uint32_t words;
    __device__ ~counted() { words = 0; }
  };
  view<counted>(words)->words = page;
#elif MK_CASE == 11  // a group is 1, 2, 4, 8, 16 or 32 lanes wide
  words[1] = static_cast<uint64_t>(sum_across<3>(value));
#elif MK_CASE == 12  // "mk::tile::vector_tile"
  sum_tile sums;
  vector_tile vectors{{page, page}};
  zero(sums);
  multiply_add(sums, vectors, vectors);
#endif
}
