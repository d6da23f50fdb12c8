// Who makes right operands of a warpgroup's products from blocks of the cache, page by page in the ring: the packers, two warps of the kernel for wide
// steps that have nothing else to do. In the cache K and V lie as weight tiles, which one row multiplies as left operands; of the same tiles they make cores
// (instructions/tile/wgmma.cuh), in the place where they are. Consumers wait for a packed page instead of a full one.
//
// The loader tells the packers which stages these are. They look at neither instructions nor the step's state, and whoever waits for them says so:
// their own waits are unwatched.
#pragma once
#include "instructions/tile/wgmma.cuh"
#include "vm/gpu/wide.cuh"

namespace mk {

__device__ inline void init_packing(const device &d) {
  tile::barrier_init(d.barrier(PACKING_FULL), 1);
  tile::barrier_init(d.barrier(PACKING_EMPTY), PACKERS);
  for (uint32_t i = 0; i < MK_GPU_RING_PAGES; i++) {
    tile::barrier_init(d.barrier(PACKED + i), PACKERS);
  }
}

// This packer's half of a row of tiles: sixteen tokens, of K by all dims, of V all dims by tokens.
template <uint32_t steps>
__device__ inline void pack_rows(uint8_t *from, uint32_t packer, bool is_v) {
  enum { ROWS = 4, ROW_BYTES = steps * 512 };  // of 64 tokens
#pragma unroll 1
  for (uint32_t row = packer; row < ROWS; row += PACKERS) {
    if (is_v) {
      tile::tiles_to_cores<steps, 512, 256>(from + row * ROW_BYTES);
    } else {
      tile::tiles_to_cores<steps, 256, steps * 256>(from + row * ROW_BYTES);
    }
  }
}

__device__ inline void pack_page(uint8_t *page, uint32_t head_dim, uint32_t packer, bool is_odd) {
  if (head_dim == 64) {
    pack_rows<4>(page, packer, false);
    pack_rows<4>(page + MK_GPU_PAGE_BYTES / 2, packer, true);
  } else {
    pack_rows<8>(page, packer, is_odd);
  }
}

__device__ __forceinline__ void run_packer(const device &d) {
  uint32_t packer = d.warp == MK_GPU_WARPS - 1, taken = 0;
#pragma unroll 1
  for (;; taken++) {
    if (!wait_for_work(d, PACKING_FULL, taken & 1)) {
      return;
    }
    stage_cursor stage{tile::uniform(wide_shared()->wanted.stage)};
    stage_cursor packed{tile::uniform(wide_shared()->wanted.packed)};
    uint32_t stages = tile::uniform(wide_shared()->wanted.stages);
    uint32_t head_dim = tile::uniform(wide_shared()->wanted.head_dim);
    if (tile::lane() == 0) {
      tile::arrive(d.barrier(PACKING_EMPTY));
    }
    if (stages == 0) {
      return;
    }
#pragma unroll 1
    for (; stages != 0; stages--, stage.next(), packed.next()) {
#pragma unroll 1
      for (uint32_t page = 0; page < MK_GPU_STAGE_PAGES; page++) {
        uint32_t slot = page_of(stage, page);
        if (!wait_for_work(d, PAGE_FULL + slot, stage.phase())) {
          return;
        }
        pack_page(d.page(slot), head_dim, packer, page % 2 != 0);
        tile::fence_shared_for_copies();
        __syncwarp();
        if (tile::lane() == 0) {
          tile::arrive(d.barrier(PACKED + page_of(packed, page)));
        }
      }
    }
  }
}

}  // namespace mk
