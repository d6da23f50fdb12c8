// Who makes right operands of a warpgroup's products from blocks of the cache, page by page in the ring: the packers,
// two warps of the kernel for wide steps that have nothing else to do. In the cache K and V lie as weight tiles, which
// one row multiplies as left operands; of the same tiles they make panels (instructions/tile/wgmma.cuh), in the place
// where they are. Consumers wait for a packed page instead of a full one.
//
// A cache of e4m3 comes in pages of codes (instructions/kv_cache.cuh), each followed by one into which nothing is
// copied: there its panels go. Consumers give both back.
//
// The loader tells the packers which stages these are. They look at neither instructions nor the step's state, and
// whoever waits for them says so: their own waits are unwatched.
#pragma once
#include "instructions/kv_cache.cuh"
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

enum { STRIPS = BLOCK_TOKENS / 16 };

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

// The same out of codes, K's or V's of a block, after which their scales lie.
template <uint32_t steps>
__device__ inline void codes_to_keys(const uint8_t *codes, uint8_t *panels, uint32_t packer) {
  const uint8_t *scales = codes + BLOCK_TOKENS * steps * 16;
#pragma unroll 1
  for (uint32_t strip = packer; strip < STRIPS; strip += PACKERS) {
    const uint32_t lane = tile::lane_of_thread(tile::thread_anew());  // registers are short
    uint32_t pair = tile::load<uint32_t>(scales + strip * 32 + tile::lane_row(lane) * 4);
    const tile::row_scales by = {tile::low_bf16(pair), tile::high_bf16(pair)};
    uint32_t to = tile::place_in_panels(tile::shared_address(panels + strip * steps * 512), steps * 256);
#pragma unroll
    for (uint32_t i = 0; i < steps; i += 2) {
      uint4 four = tile::load<uint4>(codes + (strip * steps + i) * 256 + lane * 16);
      tile::weight_tile keys;
      tile::expand_e4m3(keys, four.x, four.y, by);
      tile::put_in_strip(to, i, keys);
      tile::expand_e4m3(keys, four.z, four.w, by);
      tile::put_in_strip(to, i + 1, keys);
    }
  }
}
template <uint32_t steps>
__device__ inline void codes_to_values(const uint8_t *codes, uint8_t *panels, uint32_t packer, uint32_t tokens) {
  const uint8_t *scales = codes + BLOCK_TOKENS * steps * 16;
#pragma unroll 1
  for (uint32_t square = packer; square < steps / 2; square += PACKERS) {
    const uint32_t lane = tile::lane_of_thread(tile::thread_anew());
    uint32_t to = tile::place_in_panels(tile::shared_address(panels + square * 1024), steps * 512);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {  // sixteen dims of 32 tokens
      uint32_t part = i / 2, dims = i % 2;
      uint4 four = tile::load<uint4>(codes + part * (steps * 512) + (square * 2 + dims) * 512 + lane * 16);
      const tile::weight_tile both = {{four.x, four.y, four.z, four.w}};
#pragma unroll
      for (uint32_t later = 0; later < 2; later++) {
        uint32_t before = part * 32 + later * 16;
        tile::weight_tile values;
        expand_values(values, both, later != 0, scales + part * 64, lane);
        if (tokens < before + 16) {
          mask_tokens(values, tile::lane_column(lane), tokens > before ? tokens - before : 0);
        }
        tile::put_in_square<steps * 512>(to, before / 16 * 2 + dims, values);
      }
    }
  }
}
__device__ inline void codes_to_panels(const uint8_t *codes, uint8_t *panels, uint32_t head_dim, uint32_t packer,
                                       bool is_odd, uint32_t tokens) {
  if (head_dim == 64) {
    codes_to_keys<4>(codes, panels, packer);
    codes_to_values<4>(codes + values_at(true, 1), panels + values_at(false, 1), packer, tokens);
  } else if (is_odd) {
    codes_to_values<8>(codes, panels, packer, tokens);
  } else {
    codes_to_keys<8>(codes, panels, packer);
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
    uint32_t form = tile::uniform(wide_shared()->wanted.form);
    if (tile::lane() == 0) {
      tile::arrive(d.barrier(PACKING_EMPTY));
    }
    if (tokens == 0) {
      return;
    }
    enum : uint32_t { PAGE = 0x1000000 };  // its number in the stage is kept above the form: one word less
#pragma unroll 1
    while (tokens != 0 || form >= PAGE) {
      uint32_t slot = page_of(stage, form / PAGE);
      // First waits until the page's last filling, of which the packers know nothing, has been emptied: else the phase
      // of that filling is taken for that of this one.
      if (!wait_for_work(d, PAGE_EMPTY + slot, stage.phase() ^ 1) ||
          !wait_for_work(d, PAGE_FULL + slot, stage.phase())) {
        return;
      }
      const bool codes = MK_GPU_QUANTISED && (form & PACKS_CODES) != 0;
      const uint32_t head_dim = form % PACKS_CODES, page = form / PAGE;
      form += PAGE;
      if (codes && page % 2 == 0) {
        continue;
      }
      const bool packer = tile::anew(d.warp) == MK_GPU_WARPS - 1, is_odd = (codes ? page / 2 : page) % 2 != 0;
      if (codes) {
        codes_to_panels(d.page(slot - 1), d.page(slot), head_dim, packer, is_odd, tokens);
      } else {
        pack_page(d.page(slot), head_dim, packer, is_odd, tokens);
      }
      if (head_dim == 64 || is_odd) {
        tokens -= min(tokens, static_cast<uint32_t>(BLOCK_TOKENS));
      }
      tile::fence_shared_for_copies();
      __syncwarp();
      if (tile::lane() == 0) {
        tile::arrive(d.barrier(PACKED + slot));
        if (codes) {
          tile::arrive(d.barrier(PACKED + slot - 1));
        }
      }
      if (form / PAGE == MK_GPU_STAGE_PAGES) {
        form %= PAGE;
        stage.next_packed();
      }
    }
  }
}

}  // namespace mk
