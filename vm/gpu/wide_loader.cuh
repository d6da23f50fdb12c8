// What the loader of the kernel for wide steps streams: by a whole warp, of which one lane copies panels and blocks, and one each a row tile.
//
// Stages (wide.cuh) hold, of a product, a chain of 128 columns: the weights' in the pages of both warpgroups, and the lines' in two panels. The first chains'
// weights are there before the lines are waited for. Of HEAD, whose input is in shared memory, a stage is two chains of weights; of ATTEND, a
// whole number of blocks of the cache, those of the tokens up to the line tile's last one.
#pragma once
#include "instructions/linear_operands.cuh"
#include "vm/gpu/wide.cuh"

namespace mk {

struct wide_loader {
  device d;
  stage_cursor stage;
  uint32_t issued = 0;  // stages, ever
};

// Waits for the step state; false: the launch ends before this step, or everybody is to leave.
__device__ inline bool wait_lines(wide_loader &l) {
  if (l.d.epoch > 0 && !wait_phase(l.d, STATE_READY, (l.d.epoch - 1) % 2, MK_ACTIVITY_STEP_STATE, 0)) {
    return false;
  }
  return lines_of(l.d).stop == 0;
}

// What the instruction waits for is there, for copies, too.
__device__ inline void wait_inputs(const wide_loader &l, const mk_instruction_word &in) {
  if (has_flag(in, SLOT_WAITS_RELEASE)) {
    wait_counters(l.d, in);
  }
  tile::fence_global_for_copies();
}

// Page `page` of the stage becomes empty, and `bytes` are announced for it. False: everybody is to leave.
__device__ inline bool open_page(const wide_loader &l, const stage_cursor &stage, uint32_t page, uint32_t bytes) {
  uint32_t slot = page_of(stage, page);
  if (!wait_phase(l.d, PAGE_EMPTY + slot, stage.phase() ^ 1, MK_ACTIVITY_PAGE_EMPTY, slot)) {
    return false;
  }
  tile::fence_shared_for_copies();  // the consumers' reads came before, by the barrier
  if (tile::lane() == 0) {
    tile::arrive_expect(l.d.barrier(PAGE_FULL + slot), bytes);
  }
  __syncwarp();
  return true;
}
__device__ inline uint32_t page_address(const wide_loader &l, const stage_cursor &stage, uint32_t page) {
  return tile::shared_address(l.d.page(page_of(stage, page)));
}
__device__ inline uint32_t page_barrier(const wide_loader &l, const stage_cursor &stage, uint32_t page) {
  return l.d.barrier(PAGE_FULL + page_of(stage, page));
}

// Row tiles of a weight, and the columns of them that are streamed.
struct streamed_weight {
  const uint8_t *from;
  uint64_t pitch;  // from row tile to row tile
  uint32_t tiles, bytes;

  __device__ streamed_weight(const device &d, const mk_operand &operand)
      : pitch(static_cast<uint64_t>(d.buffer(operand).grid_cols) * 512),
        tiles(operand.rows),
        bytes(operand.cols * 512) {
    from = reinterpret_cast<const uint8_t *>(d.buffer(operand).address) + operand.row * pitch + operand.col * 512;
  }
  __device__ uint32_t chains() const { return (bytes + CHAIN_BYTES - 1) / CHAIN_BYTES; }
};

// Up to four row tiles from `first` on of a chain, a lane each.
__device__ inline bool load_weights(const wide_loader &l, const stage_cursor &stage, uint32_t page,
                                    const streamed_weight &w, uint32_t chain, uint32_t first) {
  uint32_t tiles = w.tiles > first ? min(w.tiles - first, static_cast<uint32_t>(GROUP_TILES)) : 0;
  uint32_t bytes = min(w.bytes - chain * CHAIN_BYTES, static_cast<uint32_t>(CHAIN_BYTES));
  if (!open_page(l, stage, page, tiles * bytes)) {
    return false;
  }
  uint32_t lane = tile::lane();
  if (lane < tiles) {
    tile::bulk_load(page_address(l, stage, page) + lane * CHAIN_BYTES,
                    w.from + (first + lane) * w.pitch + chain * CHAIN_BYTES, bytes, page_barrier(l, stage, page));
  }
  return true;
}

// Both panels of a chain.
__device__ inline bool load_lines(const wide_loader &l, const stage_cursor &stage, const mk_operand &x,
                                  uint32_t chain) {
  const mk_gpu_tensor_map *map = l.d.params.maps + x.buffer;
  uint32_t col = x.col * l.d.buffer(x).tile_cols + chain * (2 * MK_WIDE_GPU_PANEL_COLS);
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    if (!open_page(l, stage, LINES_AT + i, MK_GPU_PAGE_BYTES)) {
      return false;
    }
    if (tile::lane() == 0) {
      tile::matrix_load(page_address(l, stage, LINES_AT + i), map, col + i * MK_WIDE_GPU_PANEL_COLS, x.row * LINES,
                        page_barrier(l, stage, LINES_AT + i));
    }
  }
  return true;
}

__device__ inline bool load_weights_of_groups(const wide_loader &l, const stage_cursor &stage,
                                              const streamed_weight &w, uint32_t chain) {
  return load_weights(l, stage, 0, w, chain, 0) && load_weights(l, stage, 1, w, chain, GROUP_TILES);
}

__device__ inline bool load_product(wide_loader &l, const mk_instruction_word &in) {
  const mk_operand &x = in.parts[LINEAR_X];
  if (active_lines(l.d, x.row) == 0) {
    return true;
  }
  streamed_weight w(l.d, in.parts[LINEAR_WEIGHT]);
  uint32_t chains = w.chains();
  stage_cursor ahead = l.stage;
#pragma unroll 1
  for (uint32_t chain = 0; chain < min(chains, static_cast<uint32_t>(STAGES)); chain++, ahead.next()) {
    if (!load_weights_of_groups(l, ahead, w, chain)) {
      return false;
    }
  }
  wait_inputs(l, in);
#pragma unroll 1
  for (uint32_t chain = 0; chain < chains; chain++, l.stage.next(), l.issued++) {
    if ((chain >= STAGES && !load_weights_of_groups(l, l.stage, w, chain)) || !load_lines(l, l.stage, x, chain)) {
      return false;
    }
  }
  return true;
}

// Eight row tiles at a time, a chain after the other.
__device__ inline bool load_head(wide_loader &l, const mk_instruction_word &in) {
  uint32_t line_tile = in.parts[MK_PART_HEAD_x].row, last = lines_of(l.d).count - 1;
  if (lines_of(l.d).chooses == 0 || last / LINES != line_tile) {
    return true;
  }
  streamed_weight w(l.d, in.parts[MK_PART_HEAD_weight]);
  uint32_t chains = w.chains();
#pragma unroll 1
  for (uint32_t first = 0; first < in.parts[MK_PART_HEAD_weight].rows; first += MK_WIDE_GPU_UNIT_TILES) {
#pragma unroll 1
    for (uint32_t chain = 0; chain < chains; chain += 2, l.stage.next(), l.issued++) {
#pragma unroll 1
      for (uint32_t page = 0; page < MK_GPU_STAGE_PAGES; page++) {
        uint32_t at = chain + page / GROUPS;
        if (at < chains ? !load_weights(l, l.stage, page, w, at, first + page % GROUPS * GROUP_TILES)
                        : !open_page(l, l.stage, page, 0)) {
          return false;
        }
      }
    }
  }
  return true;
}

// Blocks up to that of the line tile's last token.
__device__ inline bool load_cache(wide_loader &l, const mk_instruction_word &in) {
  const mk_operand &operand = in.parts[MK_PART_ATTEND_kv];
  const mk_gpu_buffer &b = l.d.buffer(operand);
  const uint32_t *table = reinterpret_cast<const uint32_t *>(whole_buffer(in, MK_WHOLE_ATTEND_table).address);
  uint32_t line_tile = in.parts[MK_PART_ATTEND_q].row, lines = active_lines(l.d, line_tile);
  if (lines == 0) {
    return true;
  }
  uint32_t blocks = (lines_of(l.d).first + line_tile * LINES + lines + b.block_tokens - 1) / b.block_tokens;
  uint32_t run_bytes = b.block_tokens * b.head_dim * 4, pages = run_bytes / MK_GPU_PAGE_BYTES;
  wait_inputs(l, in);
#pragma unroll 1
  for (uint32_t at = 0; at < blocks * pages; at += MK_GPU_STAGE_PAGES, l.stage.next(), l.issued++) {
#pragma unroll 1
    for (uint32_t page = 0; page < MK_GPU_STAGE_PAGES; page++) {
      bool there = at + page < blocks * pages;
      if (!open_page(l, l.stage, page, there ? MK_GPU_PAGE_BYTES : 0)) {
        return false;
      }
      if (there && tile::lane() == 0) {
        uint64_t block = __ldg(table + (at + page) / pages);
        tile::bulk_load<MK_GPU_PAGE_BYTES>(page_address(l, l.stage, page),
                                           reinterpret_cast<const uint8_t *>(b.address) +
                                               (block * b.cols + operand.col) * run_bytes +
                                               (at + page) % pages * MK_GPU_PAGE_BYTES,
                                           page_barrier(l, l.stage, page));
      }
    }
  }
  return true;
}

// False: everybody is to leave.
__device__ inline bool load_for_wide(wide_loader &l, const mk_instruction_word &in) {
  if (in.opcode == MK_OP_NEXT) {
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
  return in.opcode == MK_OP_HEAD ? load_head(l, in) : in.opcode == MK_OP_ATTEND ? load_cache(l, in) : load_product(l, in);
}

// No block may end while copies into its shared memory are under way: waits for the last fill of every page.
__device__ inline void drain_copies(const wide_loader &l) {
  uint32_t fills = min(l.issued, static_cast<uint32_t>(STAGES));
#pragma unroll 1
  for (uint32_t i = 1; i <= fills; i++) {
    uint32_t fill = l.issued - i;
#pragma unroll 1
    for (uint32_t page = 0; page < MK_GPU_STAGE_PAGES; page++) {
      while (!tile::try_wait(l.d.barrier(PAGE_FULL + fill % STAGES * MK_GPU_STAGE_PAGES + page), fill / STAGES % 2)) {
      }
    }
  }
}

}  // namespace mk
