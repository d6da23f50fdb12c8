// What the loader streams of an instruction of one row per step (loader.cuh says how): the row tiles of its weight, or
// the KV blocks of its split.
#pragma once
#include "vm/gpu/loader.cuh"
#include "vm/gpu/opcodes.cuh"

namespace mk {

enum { PACED_PAGES = 2 * MK_GPU_RING_PAGES };  // of strips, at the end of a run

// How many tokens there are up to the position, once that is known; 0 where the launch ends before this step.
__device__ inline uint32_t wait_tokens(loader &l) {
  if (l.d.epoch > 0 && !wait_phase<true>(l.d, STATE_READY, (l.d.epoch - 1) % 2, MK_ACTIVITY_STEP_STATE, 0)) {
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
  uint32_t block_bytes = BLOCK_TOKENS * b.head_dim * 4, per_span = b.span_tokens / BLOCK_TOKENS, in_span = 0;
  uint32_t page_bytes = MK_GPU_PAGE_BYTES;
  if (keeps_codes(b)) {
    block_bytes = 2 * code_half_bytes(b), page_bytes = code_page_bytes(b);
  }
  uint32_t at = operand.row * per_span, skipped = (param(in, MK_PARAM_ATTENTION_splits) - 1) * per_span;
  uint32_t blocks = (wait_tokens(l) + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
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

// Loads a weight in pages of whole strips (strips.cuh). Of a long run only the last pages are paced: the others come
// while nobody waits for values of the next stage.
__device__ inline void load_strips(loader &l, const mk_operand &weight, const mk_gpu_buffer &b) {
  strip_pages pages = strip_pages_of(b, weight);
  bool one_run = pages.row_pages == 0;
  uint32_t page_bytes = pages.most * b.strip_bytes,
           runs = one_run ? min(weight.rows, static_cast<uint16_t>(1)) : weight.rows;
  uint32_t run_bytes = strip_run_bytes(b, weight) * (one_run ? weight.rows : 1);
  const uint8_t *from = first_strip(b, weight);
  for (uint32_t run = 0; run < runs; run++, from += strip_pitch(b)) {
    uint32_t strips = one_run ? pages.strips * weight.rows : pages.strips;  // that are left of it
    for (uint32_t at = 0; at < run_bytes; at += page_bytes, strips -= pages.most) {
      uint32_t idle = MK_GPU_CONSUMER_WARPS - min(strips, pages.most);
      bool paced = strips <= pages.most * PACED_PAGES;
      if (!load_page(l, from + at, min(run_bytes - at, page_bytes), false, idle, paced)) {
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
  if (in.opcode == only<&opcode_row::appends>) {
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

}  // namespace mk
