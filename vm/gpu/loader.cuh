// The loader: streams weights and KV blocks into the page ring, in queue order, as far ahead as the ring reaches. It
// never waits for activations. One lane does it all.
//
// The ring is deep, so that weights are there when a stage begins. The copies under way are few, because whatever an SM
// reads has to wait for its own copies: with a full ring of them a look at another SM's value took 5 us. For the same
// reason weights are paced: copies in a burst, when a stage has made room, delay the values that the next stage waits
// for. KV blocks are not paced: while they stream, nobody waits for anything else (docs/results/decode.md).
#pragma once
#include "instructions/tile/copy.cuh"
#include "vm/gpu/opcodes.cuh"
#include "vm/gpu/strips.cuh"
#include "vm/gpu/wait.cuh"

namespace mk {

#if MK_GPU_ROWS
enum {
  PAGES_UNDER_WAY = MK_GPU_ROWS_PAGES_UNDER_WAY,
  COPY_TICKS = MK_GPU_ROWS_COPY_TICKS,
  LATE_TICKS = MK_GPU_ROWS_LATE_TICKS,
  SLOW_LESS = PAGES_UNDER_WAY - MK_GPU_ROWS_SLOW_PAGES,
};
#else
enum { PAGES_UNDER_WAY = MK_GPU_PAGES_UNDER_WAY, COPY_TICKS = MK_GPU_COPY_TICKS };
#endif

struct loader {
  device d;
  ring_cursor<MK_GPU_RING_PAGES> pages, landing;  // landing: the oldest page that may still be under way
  uint32_t issued = 0;                            // pages since the launch began
  uint32_t last_copy = 0;                         // when the last copy of weights was issued, in clock ticks
};

// `landing` begins PAGES_UNDER_WAY pages before the first page, in an imagined round of the ring in which all pages
// count as full: so the first copies wait for none.
__device__ inline loader make_loader(const device &d) {
  loader l{d};
  l.landing.at = (MK_GPU_RING_PAGES - PAGES_UNDER_WAY) | 0x80000000u;
  return l;
}

// Waits until COPY_TICKS have passed since the last copy of weights.
__device__ __forceinline__ void pace_copy(loader &l) {
  uint32_t now;
  do {
    now = tile::clock_low();
  } while (now - l.last_copy < COPY_TICKS);
  l.last_copy = now;
}

static_assert(MK_GPU_KV_PAGES_UNDER_WAY == MK_GPU_PAGES_UNDER_WAY - 1, "load_page waits for one page more");

// Fills the next page with `bytes` from global memory. False: all roles are to leave. First it waits until the
// consumers have emptied the page, then until an older page has arrived, so that no more pages are under way than
// should be: PAGES_UNDER_WAY of weights, one less of KV. Each phase is tested before it is waited for, so that a page
// that need not wait takes few branches. KV pages are whole, and each is one copy.
__device__ __forceinline__ bool load_page(loader &l, const uint8_t *from, uint32_t bytes, bool kv) {
  uint32_t slot = l.pages.slot(), full = l.d.barrier(PAGE_FULL + slot), parity = l.pages.phase() ^ 1;
  if (!tile::test_wait(l.d.barrier(PAGE_EMPTY + slot), parity)) {
    if (!wait_phase_alone(l.d, PAGE_EMPTY + slot, parity, MK_ACTIVITY_PAGE_EMPTY, slot)) {
      return false;
    }
  }
  ring_cursor<MK_GPU_RING_PAGES> landing = l.landing;
  l.landing.next();
  if (kv) {
    landing = l.landing;
  }
  if (!tile::test_wait(l.d.barrier(PAGE_FULL + landing.slot()), landing.phase())) {
    wait_phase_alone(l.d, PAGE_FULL + landing.slot(), landing.phase(), MK_ACTIVITY_PAGE_FULL, landing.slot());
  }
  tile::fence_shared_for_copies();  // the consumers' reads came before, as the barrier says
  bool copies = (l.d.params.left_out & MK_GPU_PART_COPIES) == 0;
  tile::arrive_expect(full, copies ? bytes : 0);
  uint32_t to = tile::shared_address(l.d.page(slot));
  if (kv) {
    if (copies) {
      tile::bulk_load(to, from, bytes, full);
    }
  } else {
#pragma unroll
    for (uint32_t at = 0; at < MK_GPU_PAGE_BYTES; at += MK_GPU_COPY_BYTES) {
      if (copies && at < bytes) {
        pace_copy(l);
        tile::bulk_load(to + at, from + at, min(bytes - at, static_cast<uint32_t>(MK_GPU_COPY_BYTES)), full);
      }
    }
  }
  l.pages.next();
  l.issued++;
  return true;
}

#if !MK_GPU_ROWS
// How many tokens there are up to the position, once that is known; 0 where the launch ends before this step.
__device__ inline uint32_t wait_tokens(loader &l) {
  if (l.d.epoch > 0 && !wait_phase_alone(l.d, STATE_READY, (l.d.epoch - 1) % 2, MK_ACTIVITY_STEP_STATE, 0)) {
    return 0;
  }
  const volatile step_state &state = l.d.words()->state[l.d.epoch % 2];
  return (state.token & MK_CANDIDATE_STOP) != 0 ? 0 : state.position + 1;
}

// Loads the blocks of one split that hold tokens up to the position, each found through the table. The newest token
// comes in stamped words, and the consumers put it into its page: so a block is loaded as it lies in memory even where
// it has no other token yet.
__device__ inline void load_blocks(loader &l, const mk_instruction_word &in, const mk_gpu_buffer &b) {
  const mk_operand &operand = in.parts[MK_PART_ATTENTION_kv];
  const uint32_t *table = tile::global<const uint32_t>(whole_buffer(in, MK_WHOLE_ATTENTION_table).address);
  uint32_t block_bytes = b.block_tokens * b.head_dim * 4, per_span = b.span_tokens / b.block_tokens, in_span = 0;
  uint32_t page_bytes = MK_GPU_PAGE_BYTES;
  if (keeps_codes(b)) {
    block_bytes = 2 * code_half_bytes(b), page_bytes = code_page_bytes(b);
  }
  uint32_t at = operand.row * per_span, skipped = (param(in, MK_PARAM_ATTENTION_splits) - 1) * per_span;
  uint32_t blocks = (wait_tokens(l) + b.block_tokens - 1) / b.block_tokens;
  if (at >= blocks) {
    return;
  }
  for (uint32_t block = __ldg(table + at); at < blocks && index_fits(l.d, MK_GPU_FAULT_BLOCK, block, b.blocks);) {
    const uint8_t *from =
        tile::global<const uint8_t>(b.address) + (static_cast<uint64_t>(block) * b.cols + operand.col) * block_bytes;
    at++;
    if (++in_span == per_span) {
      in_span = 0;
      at += skipped;
    }
    if (at < blocks) {
      block = __ldg(table + at);  // on its way while this block's pages wait for room
    }
    for (uint32_t done = 0; done < block_bytes; done += page_bytes) {
      if (!load_page(l, from + done, page_bytes, true)) {
        return;
      }
    }
  }
}

// Loads a weight in pages of whole strips (strips.cuh).
__device__ inline void load_strips(loader &l, const mk_operand &weight, const mk_gpu_buffer &b) {
  strip_pages pages = strip_pages_of(b, weight);
  bool one_run = pages.row_pages == 0;
  uint32_t page_bytes = pages.most * b.strip_bytes,
           runs = one_run ? min(weight.rows, static_cast<uint16_t>(1)) : weight.rows;
  uint32_t run_bytes = strip_run_bytes(b, weight) * (one_run ? weight.rows : 1);
  const uint8_t *from = first_strip(b, weight);
  for (uint32_t run = 0; run < runs; run++, from += strip_pitch(b)) {
    for (uint32_t at = 0; at < run_bytes; at += page_bytes) {
      if (!load_page(l, from + at, min(run_bytes - at, page_bytes), false)) {
        return;
      }
    }
  }
}

// Loads the row tiles of a weight, each a run of memory. Called by one lane. (One loop for weights and blocks is less
// code, and 2 % slower.)
__device__ inline void load_instruction(loader &l, const mk_instruction_word &in) {
  int slot = streamed_operand(in.opcode);
  if (slot < 0) {
    return;
  }
  const mk_operand &operand = in.parts[slot];
  const mk_gpu_buffer &b = l.d.buffer(operand);
  if (in.opcode == MK_OP_ATTENTION) {
    load_blocks(l, in, b);
    return;
  }
  if constexpr (MK_GPU_QUANTISED) {
    load_strips(l, operand, b);
    return;
  }
  uint32_t run_bytes = operand.cols * 512;
  const uint8_t *from =
      tile::global<const uint8_t>(b.address) + (static_cast<uint64_t>(operand.row) * b.grid_cols + operand.col) * 512;
  for (uint32_t run = 0; run < operand.rows; run++) {
    for (uint32_t at = 0; at < run_bytes; at += MK_GPU_PAGE_BYTES) {
      if (!load_page(l, from + at, min(run_bytes - at, static_cast<uint32_t>(MK_GPU_PAGE_BYTES)), false)) {
        return;
      }
    }
    from += static_cast<uint64_t>(b.grid_cols) * 512;
  }
}
#endif

// Waits for the last fill of every slot: no block may end while copies into its shared memory are under way. Copies
// always arrive, so this needs no deadline.
__device__ inline void drain_copies(const loader &l) {
  uint32_t fills = l.issued < MK_GPU_RING_PAGES ? l.issued : MK_GPU_RING_PAGES;
  for (uint32_t i = 1; i <= fills; i++) {
    uint32_t fill = l.issued - i;
    while (!tile::try_wait(l.d.barrier(PAGE_FULL + fill % MK_GPU_RING_PAGES), fill / MK_GPU_RING_PAGES % 2)) {
    }
  }
}

}  // namespace mk
