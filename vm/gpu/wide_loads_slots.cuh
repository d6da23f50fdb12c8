// What the loader streams for HEAD and ATTEND of a step of several sequences: for HEAD a product after the other, eight
// row tiles each, by a line tile in which some line chooses; for ATTEND the blocks of each item of the work list.
#pragma once
#include "instructions/attend_slots.cuh"
#include "vm/gpu/wide_copies.cuh"

namespace mk {

// By one lane, one row tile after the other; the weights of the first chains are there already.
__device__ inline bool load_head_units(const wide_loader &l, streamed weights, const streamed &lines, uint32_t tiles,
                                       uint32_t chains) {
  wide_loader at = l;
#pragma unroll 1
  for (uint32_t first = 0; first < tiles; first += MK_WIDE_GPU_UNIT_TILES) {
    if (!load_chains(at, weights, lines, chains, first == 0 ? static_cast<uint32_t>(STAGES) : 0)) {
      return false;
    }
    weights.row += MK_WIDE_GPU_UNIT_TILES;
    pass_stages(at, chains);
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
  if (!all_agree(!tile::elect() || load_ahead(l, weights, chains))) {
    return false;
  }
  wait_inputs(l, in);
  if (!all_agree(!tile::elect() || load_head_units(l, weights, lines, weight.rows, chains))) {
    return false;
  }
  pass_stages(l, chains * units);
  return true;
}

// Blocks up to that of each item's last token.
__device__ inline bool load_cache(wide_loader &l, const mk_instruction_word &in) {
  const uint32_t *list = work_list(l.d, in);
  const mk_gpu_buffer &table = whole_buffer(in, MK_WHOLE_ATTEND_table);
  uint32_t share = param(in, MK_PARAM_ATTEND_share), shares = param(in, MK_PARAM_ATTEND_shares);
  uint32_t count = tile::uniform(__ldg(list));
#pragma unroll 1
  for (uint32_t number = share; number < count; number += shares) {
    const uint4 *from = reinterpret_cast<const uint4 *>(list + (number + 1) * MK_ATTEND_ITEM_WORDS);
    const uint4 item = __ldg(from);
    uint32_t slot = tile::uniform(item.z), tokens = tile::uniform(item.w + item.y);
    const uint32_t *blocks =
        reinterpret_cast<const uint32_t *>(table.address) + static_cast<uint64_t>(slot) * table.cols;
    if (!load_tokens(l, in, blocks, tokens, !has_few_queries(item, __ldg(from + 1)), number == share)) {
      return false;
    }
  }
  return true;
}

}  // namespace mk
