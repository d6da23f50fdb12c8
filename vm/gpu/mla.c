/* What MLA programs need of the GPU machine beside others: the shapes that their kernel is compiled for, and tensor maps, by which it copies
 * queries and pages of the cache. See machine.h and mla_shared.h. */
#include <string.h>

#include "instructions/mla.h"
#include "vm/gpu/machine_internal.h"

enum { CONSUMER_WARPS = 8, PAGE_BYTES = MK_MLA_PAGE_TOKENS * MK_MLA_WIDTH * 2, RING_PAGES = 2 };

mk_status mk_gpu_check_mla(const mk_program *program) {
  const mk_machine *machine = &program->machine;
  for (size_t i = 0; i < program->instruction_count; i++) {
    const mk_instruction *in = &program->instructions[i];
    if (!mk_instruction_listed(in) || in->wait_count != 0 || in->signal_count != 0) {
      return mk_error(
          MK_ERR_FILE,
          "instruction %u (%s): this machine runs programs with a work list when they have nothing else, and no "
          "counters; use --device cpu",
          in->uid, mk_opcode_lookup(in->opcode)->name);
    }
  }
  for (size_t q = 0; q < program->queue_count; q++) {
    const mk_queue *queue = &program->queues[q], *first = &program->queues[0];
    if (queue->count != first->count || queue->first != q * first->count ||
        queue->count > MK_MLA_GPU_MOST_INSTRUCTIONS || program->buffer_count > MK_MLA_GPU_MOST_BUFFERS) {
      return mk_error(
          MK_ERR_FILE,
          "queue %zu has %u instructions from %u on, and the program %zu buffers; this machine takes queues of "
          "one length, at most %d, one behind the other, and at most %d buffers",
          q, queue->count, queue->first, program->buffer_count, MK_MLA_GPU_MOST_INSTRUCTIONS, MK_MLA_GPU_MOST_BUFFERS);
    }
  }
  if (machine->ranks != 1 || machine->page_bytes != PAGE_BYTES || machine->consumer_warps != CONSUMER_WARPS ||
      machine->ring_pages > RING_PAGES) {
    return mk_error(MK_ERR_FILE,
                    "the program is for another machine: %u GPUs, pages of %u bytes, %u of them, %u consumer warps; "
                    "this one has 1, %d, %d and %d; compile it again",
                    machine->ranks, machine->page_bytes, machine->ring_pages, machine->consumer_warps, PAGE_BYTES,
                    RING_PAGES, CONSUMER_WARPS);
  }
  return MK_OK;
}

/* `matrices` matrices of rows x 576, copied in boxes of `box_rows` rows, zeros behind the last, and `panels` panels of 64 columns, panel by
 * panel. */
static mk_status encode(const mk_gpu *gpu, uint16_t buffer, uint64_t matrices, uint32_t rows, uint32_t box_rows,
                        uint32_t panels, uint64_t *to) {
  enum { PANEL = MK_MLA_GPU_PANEL_COLUMNS, ROW_BYTES = MK_MLA_WIDTH * 2 };
  _Alignas(64) uint64_t map[16];
  const uint64_t sizes[] = {PANEL, rows, MK_MLA_WIDTH / PANEL, matrices};
  const uint64_t strides[] = {ROW_BYTES, PANEL * 2, (uint64_t)rows * ROW_BYTES};
  const uint32_t box[] = {PANEL, box_rows, panels, 1}, steps[] = {1, 1, 1, 1};
  MK_TRY(mk_gpu_check(
      gpu,
      gpu->driver->tensor_map(map, MK_CU_TENSOR_BF16, 4, (void *)(uintptr_t)mk_gpu_address(gpu, buffer), sizes, strides,
                              box, steps, 0, MK_CU_TENSOR_SWIZZLE_128, MK_CU_TENSOR_PROMOTE_NONE, 0),
      gpu->program->buffers[buffer].name));
  memcpy(to, map, sizeof map);
  return MK_OK;
}

mk_status mk_gpu_open_mla(mk_gpu *gpu) {
  mk_mla_geometry g;
  if (!mk_mla_geometry_of(gpu->program, &g)) {
    return mk_error(MK_ERR_FILE, "the program has no mla_part");
  }
  gpu->inputs = (mk_gpu_mla_inputs){.work = mk_gpu_address(gpu, g.work),
                                    .sequences = mk_gpu_address(gpu, g.sequence_buffer),
                                    .list_words = g.list_words,
                                    .sequence_words = MK_MLA_SEQUENCE_HEAD + g.max_pages,
                                    .entries = g.capacity,
                                    .rows = g.rows,
                                    .blocks = g.blocks,
                                    .last_block = g.sequences * g.blocks - 1};
  MK_TRY(encode(gpu, g.q, (uint64_t)g.sequences * g.blocks, g.rows, MK_MLA_MOST_ROWS,
                MK_MLA_WIDTH / MK_MLA_GPU_PANEL_COLUMNS, gpu->maps[0]));
  return encode(gpu, g.kv, g.pool_pages, MK_MLA_PAGE_TOKENS, MK_MLA_PAGE_TOKENS, 1, gpu->maps[1]);
}
