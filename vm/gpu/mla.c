/* What MLA programs need of the GPU machine beside others: the shapes that their kernel is compiled for, and tensor
 * maps, by which it copies queries and pages of the cache. See machine.h and mla_shared.h. */
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
          "counters; use device cpu",
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
          "one length, at most %d, one after the other, and at most %d buffers",
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

/* Encodes a tensor map of `matrices` matrices of rows x 576, which is copied in boxes of `box_rows` rows, with zeros
 * after the last row, and `panels` panels of 64 columns, panel by panel. */
static mk_status encode(const mk_gpu *gpu, uint16_t buffer, uint64_t matrices, uint32_t rows, uint32_t box_rows,
                        uint32_t panels, uint64_t *to) {
  enum { PANEL = MK_MLA_GPU_PANEL_COLUMNS, ROW_BYTES = MK_MLA_WIDTH * 2 };
  _Alignas(64) uint64_t map[16];
  const uint64_t sizes[] = {PANEL, rows, MK_MLA_WIDTH / PANEL, matrices};
  const uint64_t strides[] = {ROW_BYTES, 2UL * PANEL, (uint64_t)rows * ROW_BYTES};
  const uint32_t box[] = {PANEL, box_rows, panels, 1}, steps[] = {1, 1, 1, 1};
  MK_TRY(mk_gpu_check(
      gpu,
      gpu->driver->tensor_map(map, MK_CU_TENSOR_BF16, 4, (void *)(uintptr_t)mk_gpu_address(gpu, buffer), sizes, strides,
                              box, steps, 0, MK_CU_TENSOR_SWIZZLE_128, MK_CU_TENSOR_PROMOTE_NONE, 0),
      gpu->program->buffers[buffer].name));
  memcpy(to, map, sizeof map);
  return MK_OK;
}

/* An MLA launch may begin while the one before it ends, on SMs that are done: its kernel waits for the end of that
 * launch where it has to. Cooperative launches cannot do this, but what they guarantee holds here, too: there is one
 * block per SM (check_occupancy), so as the blocks of the launch before leave, all blocks of this one find their place,
 * and none of the former waits for one of the latter. This is also so in pairs: they find their place together when all
 * fit at once (find_pairs). */
void mk_gpu_mla_launch_of(const mk_gpu *gpu, bool paired, mk_gpu_mla_launch *out) {
  out->attributes[0] = (mk_cu_launch_attribute){.id = MK_CU_LAUNCH_PROGRAMMATIC, .value.on = 1};
  out->attributes[1] = (mk_cu_launch_attribute){.id = MK_CU_LAUNCH_CLUSTER, .value.cluster = {2, 1, 1}};
  out->config = (mk_cu_launch_config){.grid = {(unsigned)gpu->program->queue_count, 1, 1},
                                      .block = {MK_MLA_GPU_THREADS, 1, 1},
                                      .shared = MK_MLA_GPU_SHARED_BYTES,
                                      .stream = gpu->stream,
                                      .attributes = out->attributes,
                                      .attribute_count = paired ? 2 : 1};
}

static mk_status find_pairs(mk_gpu *gpu, uint32_t blocks) {
  uint32_t queues = (uint32_t)gpu->program->queue_count;
  mk_gpu_mla_launch launch;
  int clusters = 0;
  if (blocks == 1 || queues % 2 != 0) {
    return MK_OK;
  }
  mk_gpu_mla_launch_of(gpu, true, &launch);
  MK_TRY(mk_gpu_check(gpu, gpu->driver->cluster_occupancy(&clusters, gpu->kernel, &launch.config),
                      "asking for the kernel's occupancy"));
  gpu->pairs_fit = clusters > 0 && (uint32_t)clusters >= queues / 2;
  return MK_OK;
}

/* Where most rows 2 i and 2 i + 1 of a list begin with the same pages (two blocks of a sequence), their SMs read these
 * at the same time. SMs that are close to each other then read memory once for both, and the power saved makes the
 * clock faster. With other lists, pairs only make blocks wait for two SMs to be free (docs/results/mla.md). The kernel
 * knows nothing of pairs, so this is for speed alone. */
void mk_gpu_look_at_list(mk_gpu *gpu, size_t buffer, uint64_t offset, const void *data, uint64_t bytes) {
  mk_mla_geometry g;
  if (!gpu->pairs_fit || !mk_mla_geometry_of(gpu->program, &g) || buffer != g.work || offset != 0 ||
      bytes != gpu->program->buffers[buffer].bytes) {
    return;
  }
  uint32_t busy = 0, sharing = 0;
  for (uint32_t sm = 0; sm < g.sms; sm += 2) {
    const uint32_t *row = (const uint32_t *)data + (size_t)sm * g.list_words;
    mk_mla_list one = mk_mla_list_of(row), other = mk_mla_list_of(row + g.list_words);
    if (one.items != 0 && other.items != 0) {
      busy++;
      sharing += one.item->block / g.blocks == other.item->block / g.blocks && one.item->first == other.item->first;
    }
  }
  gpu->paired = 2 * sharing > busy;
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
  MK_TRY(find_pairs(gpu, g.blocks));
  MK_TRY(encode(gpu, g.q, (uint64_t)g.sequences * g.blocks, g.rows, MK_MLA_MOST_ROWS,
                MK_MLA_WIDTH / MK_MLA_GPU_PANEL_COLUMNS, gpu->maps[0]));
  return encode(gpu, g.kv, g.pool_pages, MK_MLA_PAGE_TOKENS, MK_MLA_PAGE_TOKENS, 1, gpu->maps[1]);
}
