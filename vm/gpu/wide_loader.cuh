// The loader of the kernels for wide steps: wide_copies.cuh says what it streams and how, and the files beside it what
// for HEAD and ATTEND.
#pragma once
#include "vm/gpu/wide_copies.cuh"
#if MK_GPU_SLOTS
#include "vm/gpu/wide_loads_slots.cuh"
#else
#include "vm/gpu/wide_loads.cuh"
#endif

namespace mk {

// False: everybody is to leave.
__device__ inline bool load_for_wide(wide_loader &l, const mk_instruction_word &in) {
  if (in.opcode == only<&opcode_row::moves_on>) {
    if (tile::lane() == 0) {
      tile::arrive(l.d.barrier(LOADER_DONE));
    }
    return true;
  }
  if (streamed_operand(in.opcode) < 0) {
    return true;
  }
  if (!wait_lines(l)) {
    return false;
  }
  return in.opcode == only<&opcode_row::logits>    ? load_head(l, in)
         : in.opcode == only<&opcode_row::attends> ? load_cache(l, in)
                                                   : load_product(l, in);
}

// No block may end while copies into its shared memory are under way: waits for the last fill of every page.
__device__ inline void drain_copies() {
#pragma unroll 1
  for (uint32_t page = 0; page < MK_GPU_RING_PAGES; page++) {
    uint32_t fills = wide_shared()->fills[page];
    while (fills != 0 && !tile::try_wait(device::barrier(PAGE_FULL + page), (fills - 1) % 2)) {
    }
  }
}

}  // namespace mk
