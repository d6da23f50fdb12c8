// Who makes right operands of a warpgroup's products from blocks of the cache, page by page in the ring: the packers,
// two warps of the kernel for wide steps that have nothing else to do. In the cache K and V lie as weight tiles, which
// one row multiplies as left operands; of the same tiles they make panels (instructions/tile/wgmma.cuh), in the place
// where they are. Consumers wait for a packed page instead of a full one.
//
// The loader tells the packers which stages these are. They look at neither instructions nor the step's state, and
// whoever waits for them says so: their own waits are unwatched.
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

enum { BLOCK_TOKENS = 64, STRIPS = BLOCK_TOKENS / 16 };

// This packer's share of a block's K, strips of sixteen tokens: panels of tokens by dims.
template <uint32_t steps>
__device__ inline void pack_keys(uint8_t *from, uint32_t packer) {
#pragma unroll 1
  for (uint32_t strip = packer; strip < STRIPS; strip += PACKERS) {
    tile::strip_to_panels<steps>(from + strip * steps * 512);
  }
}
// The same of V, by 32 dims: panels of dims by tokens. tokens: how many the block has. Zero times what lies after
// them, which need not be a number, has to be zero. (APPEND of one sequence sees to that as far as a tile goes.)
template <uint32_t steps>
__device__ inline void pack_values(uint8_t *from, uint32_t packer, uint32_t tokens) {
#pragma unroll 1
  for (uint32_t square = packer; square < steps / 2; square += PACKERS) {
    if (MK_GPU_SLOTS && tokens < BLOCK_TOKENS && tokens % 16 != 0) {
      uint8_t *last = from + square * 1024 + tokens / 16 * (steps * 512);
      tile::clear_columns(last, tokens % 16);
      tile::clear_columns(last + 512, tokens % 16);
    }
    tile::square_to_panels<steps * 512>(from + square * 1024, tokens);
  }
}

// tokens: that are there from the page's first on.
__device__ inline void pack_page(uint8_t *page, uint32_t head_dim, uint32_t packer, bool is_odd, uint32_t tokens) {
  if (head_dim == 64) {
    pack_keys<4>(page, packer);
    pack_values<4>(page + MK_GPU_PAGE_BYTES / 2, packer, tokens);
  } else if (is_odd) {
    pack_values<8>(page, packer, tokens);
  } else {
    pack_keys<8>(page, packer);
  }
}

// How often the packer has been asked: in shared memory, since where something is recorded registers are short.
__device__ inline volatile uint32_t &taken_by(const device &d) {
  return wide_shared()->taken[tile::anew(d.warp) == MK_GPU_WARPS - 1];
}

__device__ __forceinline__ void run_packer(const device &d) {
  taken_by(d) = 0;
#pragma unroll 1
  while (wait_for_work(d, PACKING_FULL, taken_by(d) & 1)) {
    if (tile::lane() == 0) {
      taken_by(d) = taken_by(d) + 1;
    }
    __syncwarp();
    stage_cursor stage{tile::uniform(wide_shared()->wanted.stage)};
    uint32_t tokens = tile::uniform(wide_shared()->wanted.tokens);
    uint32_t head_dim = tile::uniform(wide_shared()->wanted.head_dim);
    if (tile::lane() == 0) {
      tile::arrive(d.barrier(PACKING_EMPTY));
    }
    if (tokens == 0) {
      return;
    }
    uint32_t page = 0;  // of the stage
#pragma unroll 1
    while (tokens != 0 || page != 0) {
      uint32_t slot = page_of(stage, page);
      // First waits until the page's last filling, of which the packers know nothing, has been emptied: else the phase
      // of that filling is taken for that of this one.
      if (!wait_for_work(d, PAGE_EMPTY + slot, stage.phase() ^ 1) ||
          !wait_for_work(d, PAGE_FULL + slot, stage.phase())) {
        return;
      }
      pack_page(d.page(slot), head_dim, d.warp == MK_GPU_WARPS - 1, page % 2 != 0, tokens);
      if (head_dim == 64 || page % 2 != 0) {
        tokens -= min(tokens, static_cast<uint32_t>(BLOCK_TOKENS));
      }
      tile::fence_shared_for_copies();
      __syncwarp();
      if (tile::lane() == 0) {
        tile::arrive(d.barrier(PACKED + slot));
      }
      page = (page + 1) % MK_GPU_STAGE_PAGES;
      if (page == 0) {
        stage.next_packed();
      }
    }
  }
}

}  // namespace mk
