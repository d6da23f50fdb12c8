// What the loader streams for HEAD and ATTEND of a step of one sequence: weights alone, as the one line that chooses
// lies in shared memory, a stage being two chains of them; and blocks up to the line tile's last token.
#pragma once
#include "vm/gpu/wide_copies.cuh"

namespace mk {

// By one lane: eight row tiles at a time, a chain after the other.
__device__ inline bool load_head_tiles(const wide_loader &l, const streamed &weights, uint32_t tiles, uint32_t chains) {
  stage_cursor stage = l.stage;
#pragma unroll 1
  for (uint32_t first = 0; first < tiles; first += MK_WIDE_GPU_UNIT_TILES) {
#pragma unroll 1
    for (uint32_t chain = 0; chain < chains; chain += 2, stage.next()) {
#pragma unroll 1
      for (uint32_t page = 0; page < MK_GPU_STAGE_PAGES; page++) {
        uint32_t at = chain + page / GROUPS;
        if (at < chains ? !weights.load_weights(l, stage, page, at, first + page % GROUPS * GROUP_TILES)
                        : !open_page(l, stage, page, 0)) {
          return false;
        }
      }
    }
  }
  return true;
}

__device__ inline bool load_head(wide_loader &l, const mk_instruction_word &in) {
  const mk_operand &weight = in.parts[MK_PART_HEAD_weight];
  uint32_t line_tile = in.parts[MK_PART_HEAD_x].row, last = lines_of(l.d).count - 1;
  if (lines_of(l.d).chooses == 0 || last / LINES != line_tile) {
    return true;
  }
  uint32_t chains = (weight.cols + CHAIN_STEPS - 1) / CHAIN_STEPS;
  if (!all_agree(!tile::elect() || load_head_tiles(l, weights_of(l.d, weight), weight.rows, chains))) {
    return false;
  }
  pass_stages(l, (weight.rows + MK_WIDE_GPU_UNIT_TILES - 1) / MK_WIDE_GPU_UNIT_TILES * ((chains + 1) / 2));
  return true;
}

// Blocks up to that of the line tile's last token.
__device__ inline bool load_cache(wide_loader &l, const mk_instruction_word &in) {
  uint32_t line_tile = in.parts[MK_PART_ATTEND_q].row, lines = active_lines(l.d, line_tile);
  return lines == 0 || load_tokens(l, in, tile::global<const uint32_t>(whole_buffer(in, MK_WHOLE_ATTEND_table).address),
                                   lines_of(l.d).first + line_tile * LINES + lines, true);
}

}  // namespace mk
