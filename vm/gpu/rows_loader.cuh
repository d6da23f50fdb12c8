// What the loader streams for an instruction of several rows per step. One lane copies; see loader.cuh. Everything
// comes four pages at a time.
//
// Weights come K chunk by K chunk, of each chunk four pages for every row tile of the instruction: so a warp multiplies
// the same columns of x in all row tiles, and keeps these in registers meanwhile. Where K ends within a chunk, its last
// pages come empty, so that a group of warps always has its pages in its own ring slots. Of a KV cache come, for each
// slot that has rows, the blocks that this unit's split has, up to the last row's position. A block that has no token
// from before this step comes empty, for the consumers to fill.
//
// How fast: while the consumers wait for pages, as fast as memory gives them. While the consumers still have two chunks
// to do, they wait for values, or soon will, and reading values has to wait for the SM's own copies: then two pages are
// under way at a time. Where the ring is full, the next weights are fetched into the L2. A page is one copy, since each
// copy takes time of the one lane.
#pragma once
#include "vm/gpu/loader.cuh"
#include "vm/gpu/rows.cuh"

namespace mk {

enum { LATE_TICKS = MK_GPU_ROWS_LATE_TICKS, SLOW_LESS = PAGES_UNDER_WAY - MK_GPU_ROWS_SLOW_PAGES };

// All lanes wait for the step state; false: the launch ends before this step, or all roles are to leave.
__device__ inline bool wait_rows(const loader &l) {
  if (l.d.epoch > 0 && !wait_phase(l.d, STATE_READY, (l.d.epoch - 1) % 2, MK_ACTIVITY_STEP_STATE, 0)) {
    return false;
  }
  return tile::uniform(rows_of(l.d).stop) == 0;
}

// Each copy is due COPY_TICKS after the copy before it was due, even if that one was issued late: otherwise the time
// that the loop itself takes would slow copies down. But no more than LATE_TICKS of a delay are made up for, so that
// there is no burst after a long wait.
__device__ __forceinline__ void pace_rows_copy(loader &l) {
  uint32_t since;
  do {
    since = tile::clock_low() - l.last_copy;
  } while (since < COPY_TICKS);
  l.last_copy += since < COPY_TICKS + LATE_TICKS ? COPY_TICKS + 0u : since - LATE_TICKS;
}

// Waits for a page's copy. Copies always arrive, so this needs no deadline.
__device__ __forceinline__ void wait_landed(const loader &l, const ring_cursor<MK_GPU_RING_PAGES> &page) {
  while (!tile::try_wait(l.d.barrier(PAGE_FULL + page.slot()), page.phase())) {
  }
}

// Loads the next four pages, into four ring slots side by side: page i gets bytes(i) from from(i). False: all roles are
// to leave. Whether the four are empty is tested together, since in short stages the time that the loader's one lane
// spends on a page decides how fast pages come.
template <typename addresses, typename sizes>
__device__ __forceinline__ bool load_pages(loader &l, addresses from, sizes bytes) {
  uint32_t slot = l.pages.slot(), parity = l.pages.phase() ^ 1;
  uint32_t empty = l.d.barrier(PAGE_EMPTY + slot), full = l.d.barrier(PAGE_FULL + slot);
  bool ready = true;
#pragma unroll
  for (uint32_t i = 0; i < CHUNK_PAGES; i++) {
    ready = tile::test_wait(empty + i * 8, parity) && ready;
  }
  if (!ready) {  // memory has time now, and the L2 room
#pragma unroll 1
    for (uint32_t i = 0; i < CHUNK_PAGES; i++) {
      uint32_t count = bytes(i);
      if (count != 0) {
        tile::prefetch(from(i), count);
      }
    }
#pragma unroll 1
    for (uint32_t i = 0; i < CHUNK_PAGES; i++) {
      if (!wait_phase<true>(l.d, PAGE_EMPTY + slot + i, parity, MK_ACTIVITY_PAGE_EMPTY, slot + i)) {
        return false;
      }
    }
  }
  tile::fence_shared_for_copies();                 // the consumers' reads came before, as the barriers say
  ring_cursor<MK_GPU_RING_PAGES> after = l.pages;  // the next chunk, whose pages now hold the last chunk but one
  after.advance(CHUNK_PAGES);
  uint32_t to = tile::shared_address(l.d.page(slot));
  bool copies = (l.d.params.left_out & MK_GPU_PART_COPIES) == 0;
#pragma unroll 1
  for (uint32_t i = 0; i < CHUNK_PAGES; i++, to += MK_GPU_PAGE_BYTES, full += 8) {
    bool slow = !tile::test_wait(l.d.barrier(PAGE_EMPTY + after.slot()), after.phase() ^ 1);
    wait_landed(l, l.landing);  // one after the other, whatever lands first: attention_rows.cuh counts on it
    if (slow) {
      ring_cursor<MK_GPU_RING_PAGES> later = l.landing;
      later.advance(SLOW_LESS);
      wait_landed(l, later);
    }
    l.landing.next();
    uint32_t count = copies ? bytes(i) : 0;
    const uint8_t *start = from(i);
    tile::arrive_expect(full, count);
    if (count != 0) {
      pace_rows_copy(l);
      tile::bulk_load(to, start, count, full);
    }
  }
  l.pages.advance(CHUNK_PAGES);
  l.issued += CHUNK_PAGES;
  return true;
}

__device__ __forceinline__ void load_weight_chunks(loader &l, const mk_instruction_word &in,
                                                   const mk_operand &operand) {
  const mk_gpu_buffer &b = l.d.buffer(operand);
  // A page has four strips, and a chunk four pages.
  const uint32_t page_bytes = MK_GPU_QUANTISED ? GROUP_WARPS * b.strip_bytes : MK_GPU_PAGE_BYTES;
  const uint32_t chunk_bytes = CHUNK_PAGES * page_bytes;
  uint32_t run_bytes = MK_GPU_QUANTISED ? strip_run_bytes(b, operand) : operand.cols * 512;
  uint64_t pitch = MK_GPU_QUANTISED ? strip_pitch(b) : static_cast<uint64_t>(b.grid_cols) * 512;
  const uint8_t *base = MK_GPU_QUANTISED
                            ? first_strip(b, operand)
                            : tile::global<const uint8_t>(b.address) + operand.row * pitch + operand.col * 512;
  uint32_t rows = in.opcode == only<&opcode_row::logits> && rows_of(l.d).chooses == 0 ? 0 : operand.rows;
#pragma unroll 1
  for (uint32_t chunk = 0; chunk < run_bytes; chunk += chunk_bytes) {
    const uint8_t *from = base + chunk;
    uint32_t left = run_bytes - chunk;
#pragma unroll 1
    for (uint32_t row = 0; row < rows; row++, from += pitch) {
      if (!load_pages(
              l, [=](uint32_t i) { return from + i * page_bytes; },
              [=](uint32_t i) {
                uint32_t before = i * page_bytes;
                return left > before ? min(left - before, page_bytes) : 0;
              })) {
        return;
      }
    }
  }
}

// A unit's work for one slot: its split's pieces, named by their first positions, whole chunks of pages each
// (piece_pages). Blocks after the last token come empty, so that warps find their tiles' pages in slots of the ring of
// their own.
struct piece_walk {
  uint32_t span, splits;
  uint32_t first, end;  // of the slot's rows in this step: the position of the first one, and the one after the last
};

// All lanes: looks up, from `piece` on, the blocks of as many pieces as there are lanes for, as far as they hold tokens
// from before the step. This is one access, and the loader's lane then finds the blocks in shared memory: a load of its
// own would hold up the fence before its next copies.
__device__ __forceinline__ void look_up_pieces(const mk_gpu_buffer &tables, uint32_t slot, const piece_walk &w,
                                               uint32_t piece) {
  uint32_t lane = tile::lane(), steps = tile::group_of_lane<PIECE_BLOCKS>(lane);
  bool there = true;
#pragma unroll 1
  for (uint32_t i = 0; i + 1 < LOOKED_UP_PIECES; i++) {
    if (i < steps) {
      uint32_t next = piece_after(piece, w.span, w.splits);
      there = there && next < w.end;
      piece = there ? next : piece;
    }
    if (!tile::any_lane(there && steps > i + 1)) {
      break;
    }
  }
  uint32_t block = piece / BLOCK_TOKENS + tile::place_in_group<PIECE_BLOCKS>(lane);
  bool old = there && block * BLOCK_TOKENS < w.first;
  const uint32_t *table = tile::global<const uint32_t>(tables.address) + slot * tables.cols + block;
  rows_shared()->blocks[lane] = old ? __ldg(table) : 0;
  __syncwarp();
}

// One lane: loads the pages of the pieces that have been looked up, from `piece` on. False: everybody is to leave.
__device__ __forceinline__ bool load_pieces(loader &l, const mk_gpu_buffer &b, uint32_t head, const piece_walk &w,
                                            uint32_t piece) {
  uint32_t run_bytes = BLOCK_TOKENS * b.head_dim * 4, page_bytes = MK_GPU_PAGE_BYTES;
  if (keeps_codes(b)) {
    run_bytes = 2 * code_half_bytes(b), page_bytes = code_page_bytes(b);
  }
  bool two = run_bytes > page_bytes;  // of a block
  const uint8_t *base = tile::global<const uint8_t>(b.address) + static_cast<uint64_t>(head) * run_bytes;
  uint64_t pitch = static_cast<uint64_t>(b.cols) * run_bytes;
  const volatile uint32_t *blocks = rows_shared()->blocks;
#pragma unroll 1
  for (uint32_t i = 0; i < LOOKED_UP_PIECES; i++, blocks += PIECE_BLOCKS) {
    uint32_t olds = piece < w.first ? (w.first - piece + BLOCK_TOKENS - 1) / BLOCK_TOKENS : 0;
#pragma unroll 1
    for (uint32_t page = 0; page < piece_pages(piece, w.end, two ? 2 : 1); page += CHUNK_PAGES) {
      if (!load_pages(
              l,
              [=](uint32_t j) {
                uint32_t at = page + j;
                return base + blocks[two ? at / 2 : at] * pitch + (two ? at % 2 * page_bytes : 0);
              },
              [=](uint32_t j) { return (two ? (page + j) / 2 : page + j) < olds ? page_bytes : 0; })) {
        return false;
      }
    }
    piece = piece_after(piece, w.span, w.splits);
    if (piece >= w.end) {
      break;
    }
  }
  return true;
}
// All lanes; one of them copies. Loads, one after the other, the slots that have tokens of the unit's splits.
__device__ __forceinline__ void load_unit(loader &l, const mk_instruction_word &in, const mk_operand &operand) {
  const mk_gpu_buffer *buffers = device::slot_of(in).buffers;
  const mk_gpu_buffer &b = buffers[MK_PART_ATTENTION_kv];
  const volatile rows_state &state = rows_of(l.d);
  piece_walk w = {tile::uniform(b.span_tokens), tile::uniform(param(in, MK_PARAM_ATTENTION_splits)), 0, 0};
  uint32_t unit = tile::uniform(static_cast<uint32_t>(operand.row));
  uint32_t of = tile::place_in_group<MK_MAX_ROWS>(tile::lane()), count = state.slot_count[of];
  bool works = count != 0 && mk_split_of(unit, of, w.splits) * w.span < state.slot_first[of] + count;
#pragma unroll 1
  for (uint32_t slots = tile::lanes_where(works) & 0xffffu; slots != 0; slots &= slots - 1) {
    uint32_t slot = __ffs(static_cast<int>(slots)) - 1, split = mk_split_of(unit, slot, w.splits);
    w.first = tile::uniform(state.slot_first[slot]);
    w.end = w.first + tile::uniform(state.slot_count[slot]);
    uint32_t piece = split * w.span;
#pragma unroll 1
    while (piece < w.end) {
      look_up_pieces(buffers[whole_at(MK_WHOLE_ATTENTION_table)], slot, w, piece);
      if (tile::elect()) {
        load_pieces(l, b, operand.col, w, piece);
      }
      __syncwarp();
#pragma unroll 1
      for (uint32_t i = 0; i < LOOKED_UP_PIECES && piece < w.end; i++) {
        piece = piece_after(piece, w.span, w.splits);
      }
    }
  }
}

// All lanes; one of them copies.
__device__ __forceinline__ void load_instruction(loader &l, const mk_instruction_word &in) {
  uint32_t opcode = tile::uniform(static_cast<uint32_t>(in.opcode));
  int slot = streamed_operand(opcode);
  if (slot < 0 || ((opcode == only<&opcode_row::appends> || opcode == only<&opcode_row::logits>)&&!wait_rows(l))) {
    return;
  }
  if (opcode == only<&opcode_row::appends>) {
    load_unit(l, in, in.parts[slot]);
  } else if (tile::elect()) {
    load_weight_chunks(l, in, in.parts[slot]);
  }
}

}  // namespace mk
