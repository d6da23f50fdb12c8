/* The tables that the kernel reads of a program, as one rank has them: machine_internal.h, mk_gpu_tables. */
#include <string.h>

#include "vm/gpu/machine_internal.h"
#include "vm/program/strips.h"

mk_gpu_tables mk_gpu_plan_tables(const mk_gpu *gpu) {
  const mk_program *program = gpu->program;
  mk_gpu_tables plan = {0};
  plan.instructions = mk_gpu_place(&plan.bytes, program->instruction_count * sizeof(mk_instruction_word));
  plan.queues = mk_gpu_place(&plan.bytes, gpu->queues * sizeof(mk_gpu_queue));
  plan.buffers = mk_gpu_place(&plan.bytes, (program->buffer_count + gpu->more_buffers) * sizeof(mk_gpu_buffer));
  plan.totals = mk_gpu_place(&plan.bytes, (program->counter_count + 1) * sizeof(uint32_t));
  plan.counters = mk_gpu_place(&plan.bytes, program->counter_count * MK_GPU_COUNTER_STRIDE * sizeof(uint32_t));
  plan.control = mk_gpu_place(&plan.bytes, (uint64_t)MK_GPU_FLIGHTS * MK_GPU_CONTROL_STRIDE);
  plan.maps = mk_gpu_place(&plan.bytes, mk_gpu_map_count(gpu) * sizeof(mk_gpu_tensor_map));
  plan.peers = mk_gpu_place(&plan.bytes, gpu->ranks > 1 ? sizeof(mk_gpu_peers) : 0);
  plan.waiters = mk_gpu_place(&plan.bytes, gpu->ranks > 1 ? program->counter_count * sizeof(uint32_t) : 0);
  return plan;
}

static mk_gpu_buffer describe(const mk_gpu *gpu, size_t index) {
  const mk_buffer *b = &gpu->program->buffers[index];
  bool pairs = b->store == MK_STORE_STAMPED && b->dtype == MK_DTYPE_BF16;
  mk_gpu_buffer out = {.address = mk_gpu_address(gpu, index),
                       .rows = b->rows,
                       .cols = b->cols,
                       .tile_rows = b->tile_rows,
                       .tile_cols = b->tile_cols,
                       .grid_cols = mk_buffer_grid_cols(b),
                       .row_words = pairs ? (b->cols + 1) / 2 : b->cols,
                       .store = b->store,
                       .dtype = b->dtype,
                       .head_dim = b->head_dim,
                       .span_tokens = b->span_tokens};
  if (b->store == MK_STORE_BLOCKS) {
    out.blocks = b->blocks;
  }
  if (b->store == MK_STORE_TILES) {
    out.box_tiles = gpu->box_tiles == NULL ? 0 : gpu->box_tiles[index];
    const bool quantised = mk_dtype_is_quantised(b->dtype);
    out.strip_bytes =
        quantised ? mk_strip_bytes(b) : MK_STRIP_STEPS * MK_TILE_STEP_ELEMENTS * (uint32_t)sizeof(uint16_t);
    out.scale = quantised ? (mk_gpu_strip_scales){(uint8_t)mk_strip_ranges(b), b->scale, b->zeros, 0}
                          : (mk_gpu_strip_scales){0};
    out.scale.page_strips = (uint8_t)(MK_GPU_PAGE_BYTES / out.strip_bytes);
  }
  return out;
}

/* The buffers as the kernel sees them; of a dealt weight or cache each share is one. Tiles keep their numbers. */
static void describe_buffers(const mk_gpu *gpu, mk_gpu_buffer *to) {
  for (size_t b = 0; b < gpu->program->buffer_count; b++) {
    to[b] = describe(gpu, b);
  }
  for (size_t s = 0; s < gpu->share_count; s++) {
    const mk_gpu_share *share = &gpu->shares[s];
    const mk_buffer *b = &gpu->program->buffers[share->buffer];
    mk_gpu_buffer *out = &to[share->number];
    *out = describe(gpu, share->buffer);
    if (b->kind == MK_KIND_WEIGHT || b->kind == MK_KIND_KV) { /* all else lies as in the program */
      out->address = mk_gpu_share_base(share);
      out->cols = b->kind == MK_KIND_KV ? share->units : out->cols; /* heads from one block to the next */
    }
  }
}

/* What an instruction's word says besides on one rank of several: which share of a dealt buffer it has, and which ranks
 * read what it writes. Its own rank counts as one in any case, so that the host finds the words there. */
static void tell_ranks(const mk_gpu *gpu, const mk_instruction *in, const uint64_t *readers,
                       mk_instruction_word *word) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand *o = &in->operands[slot];
    if (info->operands[slot].extent != MK_EXTENT_PART || o->rows == 0) {
      continue;
    }
    mk_operand *part = &word->parts[info->operands[slot].place];
    const mk_buffer *b = &gpu->program->buffers[o->buffer];
    if (info->operands[slot].access != MK_ACCESS_READ && mk_buffer_is_pushed(gpu->program, b)) {
      part->flags |= (uint16_t)((readers[slot] | 1u << gpu->rank) << MK_GPU_READERS_SHIFT);
    } else if (mk_gpu_is_dealt(gpu, o->buffer)) {
      part->buffer = (uint16_t)mk_gpu_share_of(gpu, o)->number;
    }
  }
}

/* waiters: of several ranks, which of them wait for each counter. */
static mk_status describe_instructions(const mk_gpu *gpu, mk_instruction_word *to, uint32_t *waiters) {
  const mk_program *program = gpu->program;
  mk_readers readers = {0};
  mk_status status = gpu->ranks > 1 ? mk_program_readers(program, &readers) : MK_OK;
  for (size_t c = 0; c < program->counter_count && gpu->ranks > 1 && status == MK_OK; c++) {
    const mk_counter *counter = &program->counters[c];
    waiters[c] = counter->rank == MK_RANK_EACH ? (uint32_t)readers.counters[c] : 1u << counter->rank;
  }
  for (size_t i = 0; i < program->instruction_count && status == MK_OK; i++) {
    status = mk_encode(program, &program->instructions[i], &to[i]);
  }
  for (uint32_t q = 0; q < gpu->queues && gpu->ranks > 1 && status == MK_OK; q++) {
    const mk_queue *queue = &program->queues[(size_t)gpu->rank * gpu->queues + q];
    for (size_t i = queue->first; i < (size_t)queue->first + queue->count; i++) {
      tell_ranks(gpu, &program->instructions[i], readers.operands + i * MK_MAX_OPERANDS, &to[i]);
    }
  }
  mk_readers_free(&readers);
  return status;
}

/* Tells ATTENTION how many parts a head has, and where to put what COMBINEs would make of these, where all COMBINEs of
 * them are fused. */
static void describe_parts(const mk_gpu *gpu, mk_gpu_buffer *buffers) {
  const mk_program *program = gpu->program;
  for (uint32_t fused = 2; fused-- != 0;) { /* those that are not have the last word */
    for (size_t i = 0; i < program->instruction_count; i++) {
      const mk_instruction *in = &program->instructions[i];
      if (mk_opcode_reads(mk_opcode_lookup(in->opcode), MK_CONTENT_PARTS) >= 0 && (in->flags & MK_FUSED) == fused) {
        mk_gpu_buffer *parts = &buffers[in->operands[MK_SLOT_COMBINE_parts].buffer],
                      *out = &buffers[in->operands[MK_SLOT_COMBINE_out].buffer];
        parts->spans = (uint16_t)in->params[MK_PARAM_COMBINE_spans];
        parts->combined_low = fused == 0 ? 0 : (uint32_t)out->address;
        parts->combined_high = fused == 0 ? 0 : (uint32_t)(out->address >> 32);
        out->head_dim = gpu->rows > 1 && fused != 0 ? (uint16_t)(parts->tile_cols - 2) : out->head_dim;
      }
    }
  }
}

mk_status mk_gpu_fill_tables(const mk_gpu *gpu, const mk_gpu_tables *plan, uint8_t *image) {
  const mk_program *program = gpu->program;
  MK_TRY(describe_instructions(gpu, (mk_instruction_word *)(void *)(image + plan->instructions),
                               (uint32_t *)(void *)(image + plan->waiters)));
  for (uint32_t q = 0; q < gpu->queues; q++) {
    const mk_queue *from = &program->queues[(size_t)gpu->rank * gpu->queues + q];
    mk_gpu_queue queue = {.first = from->first, .count = from->count};
    memcpy(image + plan->queues + q * sizeof queue, &queue, sizeof queue);
  }
  describe_buffers(gpu, (mk_gpu_buffer *)(void *)(image + plan->buffers));
  describe_parts(gpu, (mk_gpu_buffer *)(void *)(image + plan->buffers));
  MK_TRY(mk_gpu_encode_maps(gpu, image + plan->maps));
  for (size_t c = 0; c < program->counter_count; c++) {
    bool release = program->counters[c].kind == MK_COUNTER_RELEASE;
    uint32_t total = program->counters[c].total | (release ? (uint32_t)MK_GPU_COUNTER_RELEASE : 0);
    memcpy(image + plan->totals + c * sizeof total, &total, sizeof total);
  }
  return MK_OK;
}
