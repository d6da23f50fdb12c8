// What the loader streams for HEAD and ATTEND of a step of several sequences: for HEAD a product after the other, eight
// row tiles each, by a line tile in which some line chooses; for ATTEND the blocks of each item of the work list.
#pragma once
#include "instructions/attend_slots.cuh"
#include "vm/gpu/wide_copies.cuh"

namespace mk {

enum { FEW_PAGES = GROUPS + 1 };  // of a chain of HEAD, where lines are few

// By one lane, eight row tiles after the other; the weights of the first chains are there already.
__device__ inline bool load_head_units(const wide_loader &l, streamed weights, const streamed &lines, uint32_t tiles,
                                       uint32_t chains, bool few) {
  wide_loader at = l;
#pragma unroll 1
  for (uint32_t first = 0; first < tiles; first += MK_WIDE_GPU_UNIT_TILES) {
    bool good = few ? load_few_chains(at, weights, lines, chains, FEW_PAGES, first == 0 ? few_ahead(FEW_PAGES) : 0)
                    : load_chains(at, weights, lines, chains, first == 0 ? static_cast<uint32_t>(STAGES) : 0);
    if (!good) {
      return false;
    }
    weights.row += MK_WIDE_GPU_UNIT_TILES;
    pass_stages(at, few ? few_stages(chains, FEW_PAGES) : chains);
  }
  return true;
}

__device__ inline bool load_head(wide_loader &l, const mk_instruction_word &in) {
  const mk_operand &weight = in.parts[MK_PART_HEAD_weight], &x = in.parts[MK_PART_HEAD_x];
  if (weight.rows == 0 || !tile_chooses(lines_of(l.d), x.row)) {
    return true;
  }
  const streamed weights = weights_of(l.d, weight), lines = lines_of_tile(l.d, x);
  uint32_t chains = (weight.cols + CHAIN_STEPS - 1) / CHAIN_STEPS;
  uint32_t units = (weight.rows + MK_WIDE_GPU_UNIT_TILES - 1) / MK_WIDE_GPU_UNIT_TILES;
  const bool few = few_lines(active_lines(l.d, x.row));
  if (!all_agree(!tile::elect() ||
                 (few ? load_few_ahead(l, weights, chains, FEW_PAGES) : load_ahead(l, weights, chains)))) {
    return false;
  }
  wait_inputs(l, in);
  if (!all_agree(!tile::elect() || load_head_units(l, weights, lines, weight.rows, chains, few))) {
    return false;
  }
  pass_stages(l, units * (few ? few_stages(chains, FEW_PAGES) : chains));
  return true;
}

__device__ inline const uint32_t *table_of(const mk_gpu_buffer &table, uint32_t slot) {
  return tile::global<const uint32_t>(table.address) + static_cast<uint64_t>(slot) * table.cols;
}

// The blocks of items that pass together, the first of each, then the second, and so on, in whole stages. A lane looks
// up its item's blocks, each before the one before is loaded.
__device__ inline bool load_together(wide_loader &l, const mk_instruction_word &in, const items_together &items,
                                     uint32_t count) {
  const mk_operand &kv = in.parts[MK_PART_ATTEND_kv];
  const uint32_t *table = table_of(whole_buffer(in, MK_WHOLE_ATTEND_table), items.slot);
  uint32_t pages = l.d.buffer(kv).head_dim / 64, page = 0;  // of a block; of the stage
  uint32_t blocks = tile::lane() < count ? (items.tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS : 0;
  uint32_t most = tile::uniform(blocks), next = blocks != 0 ? __ldg(table) : 0;
  auto pass = [&] {
    page = (page + 1) % MK_GPU_STAGE_PAGES;
    if (page == 0) {
      l.stage.next();
    }
  };
#pragma unroll 1
  for (uint32_t at = 0; at < most; at++) {
    uint32_t block = next, those = tile::lanes_where(at < blocks);
    next = at + 1 < blocks ? __ldg(table + at + 1) : 0;
#pragma unroll 1
    for (; those != 0; those &= those - 1) {
      uint32_t own = tile::from_lane(block, __ffs(those) - 1);
#pragma unroll 1
      for (uint32_t h = 0; h < pages; h++, pass()) {
        if (!all_agree(!tile::elect() || load_block_page(l, kv, l.stage, page, own, h))) {
          return false;
        }
      }
    }
  }
#pragma unroll 1
  for (; page != 0; pass()) {  // what is left of the stage has nothing
    if (!all_agree(!tile::elect() || open_page(l, l.stage, page, 0))) {
      return false;
    }
  }
  return true;
}

// Blocks up to that of each item's last token.
__device__ inline bool load_cache(wide_loader &l, const mk_instruction_word &in) {
  const uint32_t *list = work_list(l.d, in);
  uint32_t shares = param(in, MK_PARAM_ATTEND_shares), count = tile::uniform(__ldg(list));
  uint32_t head_dim = l.d.buffer(in.parts[MK_PART_ATTEND_kv]).head_dim;
  bool waits = true;
#pragma unroll 1
  for (uint32_t number = param(in, MK_PARAM_ATTEND_share); number < count;) {
    const items_together items = look_together(list, number, shares, head_dim);
    const uint32_t together = tile::uniform(items.count);
    if (together == 0) {
      const uint4 item = __ldg(item_words(list, number));
      const uint32_t *blocks = table_of(whole_buffer(in, MK_WHOLE_ATTEND_table), tile::uniform(item.z));
      if (!load_tokens(l, in, blocks, tile::uniform(item.w + item.y), waits)) {
        return false;
      }
      number += shares;
    } else {
      if (waits) {
        wait_inputs(l, in);
      }
      if (!load_together(l, in, items, together)) {
        return false;
      }
      number += together * shares;
    }
    waits = false;
  }
  return true;
}

}  // namespace mk
