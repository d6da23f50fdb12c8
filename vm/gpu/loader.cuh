// The loader: streams weights and KV blocks into the page ring, in queue order, as far ahead as the ring reaches. It never waits for
// activations. One lane does it all: what limits it is the number of instructions per page, and a warp that has to agree on every
// wait takes more of them.
//
// The ring is deep, so that weights are there when a stage begins; the copies under way are few, because whatever an SM reads waits
// behind its own copies: with a full ring of them a look at another SM's value took 5 us (docs/results/decode.md).
#pragma once
#include "instructions/tile/copy.cuh"
#include "vm/gpu/wait.cuh"

namespace mk {

struct loader {
  device d;
  uint32_t lane;
  ring_cursor<MK_GPU_RING_PAGES> pages, landing;  // landing: the oldest page that may still be under way
  uint32_t issued = 0;                            // pages, ever
};

// False: everybody is to leave. Fills the next page with `bytes` from global memory.
__device__ inline bool load_page(loader &l, const uint8_t *from, uint32_t bytes) {
  uint32_t slot = l.pages.slot(), full = l.d.barrier(PAGE_FULL + slot);
  if (!wait_phase_alone(l.d, PAGE_EMPTY + slot, l.pages.phase() ^ 1, MK_ACTIVITY_PAGE_EMPTY, slot)) {
    return false;
  }
  if (l.issued >= MK_GPU_PAGES_UNDER_WAY) {
    wait_phase_alone(l.d, PAGE_FULL + l.landing.slot(), l.landing.phase(), MK_ACTIVITY_PAGE_FULL, l.landing.slot());
    l.landing.next();
  }
  tile::fence_shared_for_copies();  // the consumers' reads came before, by the barrier
  bool copies = (l.d.params.left_out & MK_GPU_PART_COPIES) == 0;
  tile::arrive_expect(full, copies ? bytes : 0);
  uint32_t to = tile::shared_address(l.d.page(slot));
#pragma unroll
  for (uint32_t at = 0; at < MK_GPU_PAGE_BYTES; at += MK_GPU_COPY_BYTES) {
    if (copies && at < bytes) {
      tile::bulk_load(to + at, from + at, min(bytes - at, static_cast<uint32_t>(MK_GPU_COPY_BYTES)), full);
    }
  }
  l.pages.next();
  l.issued++;
  return true;
}

__device__ inline void load_weight(loader &l, const mk_operand &weight) {
  const mk_gpu_buffer &b = l.d.buffer(weight);
  for (uint32_t row = 0; row < weight.rows; row++) {
    const uint8_t *from = reinterpret_cast<const uint8_t *>(b.address) +
                          (static_cast<uint64_t>(weight.row + row) * b.grid_cols + weight.col) * 512;
    for (uint32_t step = 0; step < weight.cols; step += MK_GPU_PAGE_BYTES / 512) {
      uint32_t bytes = min((weight.cols - step) * 512u, static_cast<uint32_t>(MK_GPU_PAGE_BYTES));
      if (!load_page(l, from + step * 512, bytes)) {
        return;
      }
    }
  }
}

// The blocks of one split that hold tokens before the position (the newest token comes in stamped words).
__device__ inline void load_blocks(loader &l, const mk_instruction &in) {
  if (l.d.epoch > 0 && !wait_phase_alone(l.d, STATE_READY, (l.d.epoch - 1) % 2, MK_ACTIVITY_STEP_STATE, 0)) {
    return;
  }
  const volatile step_state &state = l.d.words()->state[l.d.epoch % 2];
  if ((state.token & MK_CANDIDATE_STOP) != 0) {
    return;
  }
  uint32_t position = state.position;
  const mk_operand &kv = in.operands[MK_SLOT_ATTENTION_kv];
  const mk_gpu_buffer &b = l.d.buffer(kv);
  const uint32_t *table = reinterpret_cast<const uint32_t *>(l.d.buffer(in.operands[MK_SLOT_ATTENTION_table]).address);
  uint32_t half = b.block_tokens * b.head_dim * 2;  // bytes of K or V of one block
  for (uint32_t span = kv.row; span * b.span_tokens < position; span += in.params[MK_PARAM_ATTENTION_splits]) {
    uint32_t end = min((span + 1) * b.span_tokens, position);
    for (uint32_t first = span * b.span_tokens; first < end; first += b.block_tokens) {
      uint64_t block = __ldg(table + first / b.block_tokens);
      const uint8_t *from = reinterpret_cast<const uint8_t *>(b.address) + (block * b.cols + kv.col) * 2 * half;
      for (uint32_t at = 0; at < 2 * half; at += MK_GPU_PAGE_BYTES) {
        if (!load_page(l, from + at, min(2 * half - at, static_cast<uint32_t>(MK_GPU_PAGE_BYTES)))) {
          return;
        }
      }
    }
  }
}

// By one lane.
__device__ inline void load_instruction(loader &l, const mk_instruction &in) {
  uint32_t weight;
  switch (in.opcode) {
    case MK_OP_QKV:
      weight = MK_SLOT_QKV_weight;
      break;
    case MK_OP_LINEAR_ADD:
      weight = MK_SLOT_LINEAR_ADD_weight;
      break;
    case MK_OP_LINEAR_PART:
      weight = MK_SLOT_LINEAR_PART_weight;
      break;
    case MK_OP_GLU:
      weight = MK_SLOT_GLU_weight;
      break;
    case MK_OP_HEAD:
      weight = MK_SLOT_HEAD_weight;
      break;
    case MK_OP_ATTENTION:
      load_blocks(l, in);
      return;
    default:
      return;
  }
  load_weight(l, in.operands[weight]);
}

// No block may end while copies into its shared memory are under way: waits for the last fill of every slot. Copies always
// arrive, so this needs no deadline.
__device__ inline void drain_copies(const loader &l) {
  uint32_t fills = l.issued < MK_GPU_RING_PAGES ? l.issued : MK_GPU_RING_PAGES;
  for (uint32_t i = 1; i <= fills; i++) {
    uint32_t fill = l.issued - i;
    while (!tile::try_wait(l.d.barrier(PAGE_FULL + fill % MK_GPU_RING_PAGES), fill / MK_GPU_RING_PAGES % 2)) {
    }
  }
}

}  // namespace mk
