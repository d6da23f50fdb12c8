// What the loader streams for an instruction of the kernel for prompts. By one lane; see loader.cuh.
//
// Weights come chunk by chunk, a chunk being two pages of each row tile of the instruction: so a warp multiplies the same part of x in all
// row tiles, and keeps it in registers meanwhile. Of KV come the blocks of this split up to the last line's; a block without a token
// from before the step comes empty, for the consumers to fill.
#pragma once
#include "vm/gpu/prompt.cuh"

namespace mk {

// Waits for the step state; false: the launch ends before this step, or everybody is to leave.
__device__ inline bool wait_lines(loader &l) {
  if (l.d.epoch > 0 && !wait_phase_alone(l.d, STATE_READY, (l.d.epoch - 1) % 2, MK_ACTIVITY_STEP_STATE, 0)) {
    return false;
  }
  return lines_of(l.d).stop == 0;
}

__device__ __forceinline__ void load_weight_chunks(loader &l, const mk_instruction_word &in,
                                                   const mk_operand &operand) {
  const mk_gpu_buffer &b = l.d.buffer(operand);
  uint32_t run_bytes = operand.cols * 512;
  uint64_t pitch = static_cast<uint64_t>(b.grid_cols) * 512;
  const uint8_t *base = reinterpret_cast<const uint8_t *>(b.address) + operand.row * pitch + operand.col * 512;
  uint32_t rows = operand.rows;
  if (in.opcode == MK_OP_HEAD && (!wait_lines(l) || lines_of(l.d).chooses == 0)) {
    rows = 0;
  }
  for (uint32_t chunk = 0; chunk < run_bytes; chunk += CHUNK_PAGES * MK_GPU_PAGE_BYTES) {
    const uint8_t *from = base + chunk;
    for (uint32_t row = 0; row < rows; row++, from += pitch) {
      for (uint32_t at = 0; at < CHUNK_PAGES * MK_GPU_PAGE_BYTES; at += MK_GPU_PAGE_BYTES) {
        uint32_t left = chunk + at < run_bytes ? run_bytes - chunk - at : 0;
        if (!load_page(l, from + at, min(left, static_cast<uint32_t>(MK_GPU_PAGE_BYTES)), false)) {
          return;
        }
      }
    }
  }
}

__device__ __forceinline__ void load_split(loader &l, const mk_instruction_word &in) {
  const mk_operand &operand = in.parts[MK_PART_ATTENTION_kv];
  const mk_gpu_buffer *buffers = device::slot_of(in).buffers;
  const mk_gpu_buffer &b = buffers[MK_PART_ATTENTION_kv];
  const uint32_t *table = reinterpret_cast<const uint32_t *>(buffers[whole_at(MK_WHOLE_ATTENTION_table)].address);
  uint32_t run_bytes = b.block_tokens * b.head_dim * 4, spans = param(in, MK_PARAM_ATTENTION_splits) * b.span_tokens;
  uint32_t first = lines_of(l.d).first, end = first + lines_of(l.d).count;
#pragma unroll 1
  for (uint32_t span = operand.row * b.span_tokens; span < end; span += spans) {
#pragma unroll 1
    for (uint32_t at = span; at < min(end, span + b.span_tokens); at += b.block_tokens) {
      uint64_t block = __ldg(table + at / b.block_tokens);
      const uint8_t *from = reinterpret_cast<const uint8_t *>(b.address) + (block * b.cols + operand.col) * run_bytes;
#pragma unroll 1
      for (uint32_t i = 0; i < run_bytes; i += MK_GPU_PAGE_BYTES) {
        bool old = at < first;
        if (!load_page(l, old ? from + i : nullptr, old ? MK_GPU_PAGE_BYTES : 0, old)) {
          return;
        }
      }
    }
  }
}

__device__ inline void load_for_prompt(loader &l, const mk_instruction_word &in) {
  int slot = streamed_operand(in.opcode);
  if (slot < 0) {
    return;
  }
  if (in.opcode != MK_OP_ATTENTION) {
    load_weight_chunks(l, in, in.parts[slot]);
  } else if (wait_lines(l)) {
    load_split(l, in);
  }
}

}  // namespace mk
