// How the loader of the kernels for wide steps streams. The warp waits for counters together; one lane of it copies.
//
// Stages (wide.cuh) hold, of a product, a chain of 128 columns: the weights' in the pages of both warpgroups, and the
// lines' in two panels. The first chains' weights are there before the lines are waited for. Of ATTEND a stage is a
// whole number of blocks of the cache.
#pragma once
#include "instructions/linear_operands.cuh"
#include "vm/gpu/strips.cuh"
#include "vm/gpu/wide.cuh"

namespace mk {

struct wide_loader {
  device d;
  stage_cursor stage;
  uint32_t packings = 0;  // that packers were asked for, ever
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

// Page `page` of the stage becomes empty, and `bytes` are announced for it; by one lane. False: everybody is to leave.
// Consumers have fenced what they read of it.
__device__ __forceinline__ bool open_page(const wide_loader &l, const stage_cursor &stage, uint32_t page,
                                          uint32_t bytes) {
  uint32_t slot = page_of(stage, page);
  if (!tile::test_wait(l.d.barrier(PAGE_EMPTY + slot), stage.phase() ^ 1) &&
      !wait_phase<true>(l.d, PAGE_EMPTY + slot, stage.phase() ^ 1, MK_ACTIVITY_PAGE_EMPTY, slot)) {
    return false;
  }
  tile::arrive_expect(l.d.barrier(PAGE_FULL + slot), bytes);
  wide_shared()->fills[slot] = wide_shared()->fills[slot] + 1;
  return true;
}
__device__ inline uint32_t page_address(const wide_loader &l, const stage_cursor &stage, uint32_t page) {
  return tile::shared_address(l.d.page(page_of(stage, page)));
}
__device__ inline uint32_t page_barrier(const wide_loader &l, const stage_cursor &stage, uint32_t page) {
  return l.d.barrier(PAGE_FULL + page_of(stage, page));
}

// Copies by a tensor map: four row tiles of a weight, a chain of them, or a panel of a line tile, of half of it where
// no more lines are active. What the buffer does not have comes as zeros.
struct streamed {
  const mk_gpu_tensor_map *map;
  uint32_t row, col;                                         // row tile and step, or line and column
  bool halves;                                               // of the line tile: both
  bool groups;                                               // of a weight's row tiles: both warpgroups have some
  uint32_t bytes = MK_GPU_PAGE_BYTES, pieces = CHAIN_STEPS;  // of a weight: of four row tiles' chains, and of a chain

  __device__ bool load_weights(const wide_loader &l, const stage_cursor &stage, uint32_t page, uint32_t chain,
                               uint32_t first) const {
    if (!open_page(l, stage, page, bytes)) {
      return false;
    }
    tile::solid_load(page_address(l, stage, page), map, 0, col + chain * pieces, row + first,
                     page_barrier(l, stage, page));
    return true;
  }
  __device__ bool load_panel(const wide_loader &l, const stage_cursor &stage, uint32_t page, uint32_t panel) const {
    constexpr uint32_t half = MK_GPU_PAGE_BYTES / 2;
    if (!open_page(l, stage, page, halves ? 2 * half : half)) {
      return false;
    }
    uint32_t to = page_address(l, stage, page), at = col + panel * MK_WIDE_GPU_PANEL_COLS;
    tile::matrix_load(to, map, at, row, page_barrier(l, stage, page));
    if (halves) {
      tile::matrix_load(to + half, map, at, row + LINES / 2, page_barrier(l, stage, page));
    }
    return true;
  }
  // Both panels of a chain, of the first half of the lines, in one page.
  __device__ bool load_few_lines(const wide_loader &l, const stage_cursor &stage, uint32_t page, uint32_t chain) const {
    constexpr uint32_t half = MK_GPU_PAGE_BYTES / 2;
    if (!open_page(l, stage, page, 2 * half)) {
      return false;
    }
    uint32_t to = page_address(l, stage, page), at = col + chain * (2 * MK_WIDE_GPU_PANEL_COLS);
    tile::matrix_load(to, map, at, row, page_barrier(l, stage, page));
    tile::matrix_load(to + half, map, at + MK_WIDE_GPU_PANEL_COLS, row, page_barrier(l, stage, page));
    return true;
  }
  __device__ bool load_weights_of_groups(const wide_loader &l, const stage_cursor &stage, uint32_t chain) const {
    return load_weights(l, stage, 0, chain, 0) &&
           (groups ? load_weights(l, stage, 1, chain, GROUP_TILES) : open_page(l, stage, 1, 0));
  }
};

// The tensor map of a buffer.
__device__ inline const mk_gpu_tensor_map *map_of(const device &d, uint32_t buffer) {
  if constexpr (MK_GPU_RANKS) {
    return tile::global<const mk_gpu_tensor_map>(d.params.peers->maps) + buffer;
  }
  return d.params.maps + buffer;
}

__device__ inline streamed weights_of(const device &d, const mk_operand &operand) {
  streamed weights = {map_of(d, operand.buffer), operand.row, operand.col, false,
                      !MK_GPU_SLOTS || operand.rows > GROUP_TILES};
  if constexpr (MK_GPU_SLOTS) {
    weights.bytes = d.buffer(operand).box_tiles * CHAIN_BYTES;
  }
  if constexpr (MK_GPU_QUANTISED) {
    const mk_gpu_buffer &b = d.buffer(operand);
    weights.bytes = (MK_GPU_SLOTS ? b.box_tiles : GROUP_TILES) * b.strip_bytes;
    weights.pieces = mk_wide_gpu_pieces(b.dtype);
    weights.col = operand.col * weights.pieces / CHAIN_STEPS;  // codes begin with whole strips
  }
  return weights;
}

// The lines of a tile that are active.
__device__ inline streamed lines_of_tile(const device &d, const mk_operand &x) {
  return {map_of(d, x.buffer), static_cast<uint32_t>(x.row) * LINES, x.col * d.buffer(x).tile_cols,
          active_lines(d, x.row) > LINES / 2, false};
}

// By one lane: the first chains' weights, as far as there are stages.
__device__ inline bool load_ahead(const wide_loader &l, const streamed &weights, uint32_t chains) {
  stage_cursor ahead = l.stage;
#pragma unroll 1
  for (uint32_t chain = 0; chain < min(chains, static_cast<uint32_t>(STAGES)); chain++, ahead.next()) {
    if (!weights.load_weights_of_groups(l, ahead, chain)) {
      return false;
    }
  }
  return true;
}

// By one lane: all that is left; the weights of the first `ahead` chains are there already.
__device__ inline bool load_chains(const wide_loader &l, const streamed &weights, const streamed &lines,
                                   uint32_t chains, uint32_t ahead) {
  stage_cursor stage = l.stage;
#pragma unroll 1
  for (uint32_t chain = 0; chain < chains; chain++, stage.next()) {
    if ((chain >= ahead && !weights.load_weights_of_groups(l, stage, chain)) ||
        !lines.load_panel(l, stage, LINES_AT, 2 * chain) || !lines.load_panel(l, stage, LINES_AT + 1, 2 * chain + 1)) {
      return false;
    }
  }
  return true;
}

__device__ inline void pass_stages(wide_loader &l, uint32_t count) {
  for (uint32_t i = 0; i < count % (2 * STAGES); i++) {  // twice round, and all is as it was
    l.stage.next();
  }
}

// Of few lines (wide.cuh): a chain has so many pages, the last one of lines. By one lane: the weights of the first
// chains, as far as there are pages, up to `chains` of them.
__device__ inline uint32_t few_ahead(uint32_t pages) { return MK_GPU_RING_PAGES / pages; }
__device__ inline bool load_few_ahead(const wide_loader &l, const streamed &weights, uint32_t chains, uint32_t pages) {
  page_cursor place{l.stage};
#pragma unroll 1
  for (uint32_t chain = 0; chain < min(chains, few_ahead(pages)); chain++, place.next()) {
#pragma unroll 1
    for (uint32_t group = 0; group + 1 < pages; group++, place.next()) {
      if (!weights.load_weights(l, place.stage, place.page, chain, group * GROUP_TILES)) {
        return false;
      }
    }
  }
  return true;
}
// By one lane: all that is left, in whole stages; the weights of the first `ahead` chains are there already.
__device__ inline bool load_few_chains(const wide_loader &l, const streamed &weights, const streamed &lines,
                                       uint32_t chains, uint32_t pages, uint32_t ahead) {
  page_cursor place{l.stage};
#pragma unroll 1
  for (uint32_t chain = 0; chain < chains; chain++, place.next()) {
#pragma unroll 1
    for (uint32_t group = 0; group + 1 < pages; group++, place.next()) {
      if (chain >= ahead && !weights.load_weights(l, place.stage, place.page, chain, group * GROUP_TILES)) {
        return false;
      }
    }
    if (!lines.load_few_lines(l, place.stage, place.page, chain)) {
      return false;
    }
  }
#pragma unroll 1
  for (; place.page != 0; place.next()) {
    if (!open_page(l, place.stage, place.page, 0)) {
      return false;
    }
  }
  return true;
}
__device__ inline uint32_t few_stages(uint32_t chains, uint32_t pages) {
  return (chains * pages + MK_GPU_STAGE_PAGES - 1) / MK_GPU_STAGE_PAGES;
}

// What one lane says, to all.
__device__ inline bool all_agree(bool good) { return tile::all_lanes(good); }

__device__ inline bool load_few_product(wide_loader &l, const mk_instruction_word &in, const streamed &weights,
                                        const streamed &lines, uint32_t chains) {
  uint32_t pages = shares_rows(in, in.parts[LINEAR_WEIGHT].rows) ? 2 : 3;
  if (!all_agree(!tile::elect() || load_few_ahead(l, weights, chains, pages))) {
    return false;
  }
  wait_inputs(l, in);
  if (!all_agree(!tile::elect() || load_few_chains(l, weights, lines, chains, pages, few_ahead(pages)))) {
    return false;
  }
  pass_stages(l, few_stages(chains, pages));
  return true;
}

__device__ inline bool load_product(wide_loader &l, const mk_instruction_word &in) {
  const mk_operand &x = in.parts[LINEAR_X];
  if (active_lines(l.d, x.row) == 0) {
    return true;
  }
  const streamed weights = weights_of(l.d, in.parts[LINEAR_WEIGHT]), lines = lines_of_tile(l.d, x);
  uint32_t chains = (in.parts[LINEAR_WEIGHT].cols + CHAIN_STEPS - 1) / CHAIN_STEPS;
  if (few_lines(active_lines(l.d, x.row))) {
    return load_few_product(l, in, weights, lines, chains);
  }
  if (!all_agree(!tile::elect() || load_ahead(l, weights, chains))) {
    return false;
  }
  wait_inputs(l, in);
  if (!all_agree(!tile::elect() || load_chains(l, weights, lines, chains, STAGES))) {
    return false;
  }
  pass_stages(l, chains);
  return true;
}

// By one lane: page `page` of the stage is filled with page `number` of a block of the cache. False: everybody is to
// leave.
__device__ inline bool load_block_page(const wide_loader &l, const mk_operand &kv, const stage_cursor &stage,
                                       uint32_t page, uint64_t block, uint32_t number) {
  const mk_gpu_buffer &b = l.d.buffer(kv);
  if (keeps_codes(b)) {
    uint32_t bytes = code_page_bytes(b);
    if (!open_page(l, stage, page, bytes)) {
      return false;
    }
    tile::bulk_load(page_address(l, stage, page), code_pair(b, block, kv.col) + number * bytes, bytes,
                    page_barrier(l, stage, page));
    return true;
  }
  uint32_t run_bytes = BLOCK_TOKENS * b.head_dim * 4;
  if (!open_page(l, stage, page, MK_GPU_PAGE_BYTES)) {
    return false;
  }
  tile::bulk_load<MK_GPU_PAGE_BYTES>(
      page_address(l, stage, page),
      tile::global<const uint8_t>(b.address) + (block * b.cols + kv.col) * run_bytes + number * MK_GPU_PAGE_BYTES,
      page_barrier(l, stage, page));
  return true;
}

// Pages of the ring that go with each page of a block that is packed: codes have a second one, for their panels.
__device__ inline uint32_t packed_pages(const mk_gpu_buffer &kv) { return keeps_codes(kv) ? 2 : 1; }

// By one lane: the blocks that the table names, as so many pages of the ring, in whole stages.
__device__ inline bool load_blocks(const wide_loader &l, const mk_instruction_word &in, const uint32_t *table,
                                   uint32_t pages) {
  stage_cursor stage = l.stage;
  uint32_t block_pages = l.d.buffer(in.parts[MK_PART_ATTEND_kv]).head_dim / 64;
  uint32_t each = packed_pages(l.d.buffer(in.parts[MK_PART_ATTEND_kv]));
#pragma unroll 1
  for (uint32_t at = 0; at < pages; at += MK_GPU_STAGE_PAGES, stage.next_packed()) {
#pragma unroll 1
    for (uint32_t page = 0; page < MK_GPU_STAGE_PAGES; page++) {
      const uint32_t number = (at + page) / each;
      if (at + page < pages && (at + page) % each == 0
              ? !load_block_page(l, in.parts[MK_PART_ATTEND_kv], stage, page, __ldg(table + number / block_pages),
                                 number % block_pages)
              : !open_page(l, stage, page, 0)) {
        return false;
      }
    }
  }
  return true;
}

// Asks the packers for so many tokens, from the next stage on. False: everybody is to leave.
__device__ inline bool want_packed(wide_loader &l, uint32_t tokens, uint32_t form) {
  if (!wait_for_work(l.d, PACKING_EMPTY, (l.packings & 1) ^ 1)) {
    return false;
  }
  if (tile::lane() == 0) {
    volatile packing &wanted = wide_shared()->wanted;
    wanted.stage = l.stage.at;
    wanted.tokens = tokens;
    wanted.form = form;
    tile::arrive(l.d.barrier(PACKING_FULL));
  }
  __syncwarp();
  l.packings++;
  return true;
}
__device__ inline void end_packing(wide_loader &l) { (void)want_packed(l, 0, 0); }

// By one lane: a stage of which nothing is copied, for the consumers to keep sums in.
__device__ inline bool open_room(const wide_loader &l) {
#pragma unroll 1
  for (uint32_t page = 0; page < MK_GPU_STAGE_PAGES; page++) {
    if (!open_page(l, l.stage, page, 0)) {
      return false;
    }
  }
  return true;
}

// ATTEND's blocks up to that of the last of so many tokens of a sequence, by its row of the block table. waits: for
// what the instruction does. False: everybody is to leave.
__device__ inline bool load_tokens(wide_loader &l, const mk_instruction_word &in, const uint32_t *table,
                                   uint32_t tokens, bool waits) {
  const mk_gpu_buffer &b = l.d.buffer(in.parts[MK_PART_ATTEND_kv]);
  uint32_t blocks = (tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
  uint32_t pages = blocks * BLOCK_TOKENS * b.head_dim * 4 / MK_GPU_PAGE_BYTES * packed_pages(b);
  if (tokens > ATTENDED_ALONE) {
    if (!all_agree(!tile::elect() || open_room(l))) {
      return false;
    }
    l.stage.keep();
  }
  if (!want_packed(l, tokens, b.head_dim | (keeps_codes(b) ? PACKS_CODES : 0u))) {
    return false;
  }
  if (waits) {
    wait_inputs(l, in);
  }
  if (!all_agree(!tile::elect() || load_blocks(l, in, table, pages))) {
    return false;
  }
#pragma unroll 1
  for (uint32_t at = 0; at < pages; at += MK_GPU_STAGE_PAGES) {
    l.stage.next_packed();
  }
  l.stage.forget();
  return true;
}

}  // namespace mk
