/* The memory of a program on the GPU: an arena for weights, one for the KV cache, and one for everything else. A
 * machine beside another one has only the third of its own. See machine_internal.h. */
#include <string.h>

#include "vm/gpu/machine_internal.h"

enum {
  STEP_WORDS = 128, /* words of a step, sixteen elements of sixteen rows: vm/gpu/rows.cuh */
  STEP_LINES = 16,
  VALUE_HALVES = 2, /* halves of a value of 2 to 16 rows, taken in turn by the generation's parity */
  ALIGNMENT = 256,
  ARENA_TAIL = 32, /* a kernel may read so far past the last buffer: the gains of a whole tile, of which one is there */
};

uint64_t mk_gpu_place(uint64_t *end, uint64_t bytes) {
  uint64_t at = (*end + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  *end = at + bytes;
  return at;
}

/* Values of several rows lie in the order of fragments, in whole steps of sixteen elements (vm/gpu/rows.cuh). */
bool mk_gpu_in_fragments(const mk_program *program, const mk_buffer *b) {
  return mk_program_rows(program) > 1 && b->store == MK_STORE_STAMPED && b->dtype == MK_DTYPE_BF16;
}

uint64_t mk_gpu_bytes(const mk_gpu *gpu, size_t buffer) {
  const mk_buffer *b = &gpu->program->buffers[buffer];
  const uint64_t words = (uint64_t)b->cols / MK_TILE * VALUE_HALVES * STEP_WORDS;
  return mk_gpu_in_fragments(gpu->program, b) ? words * sizeof(uint32_t) : b->bytes;
}

/* Whether the program's kernel reads values of few lines by pairs of steps: all values have whole pairs, and
 * instructions that read them begin and end there. */
static uint32_t has_pairs_of_steps(const mk_program *program) {
  bool all = MK_GPU_KNOWS_FEW_LINES(mk_gpu_is_quantised(program), mk_gpu_samples(program), mk_gpu_is_of_family(program),
                                    program->machine.ranks > 1);
  for (size_t i = 0; i < program->instruction_count; i++) {
    const mk_instruction *in = &program->instructions[i];
    const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
    for (uint32_t slot = 0; slot < info->operand_count; slot++) {
      const mk_operand *o = &in->operands[slot];
      const mk_buffer *b = &program->buffers[o->buffer];
      if (info->operands[slot].access == MK_ACCESS_READ && o->cols != 0 && mk_gpu_in_fragments(program, b)) {
        all = all && b->cols % (2 * MK_TILE) == 0 && o->col * b->tile_cols % (2 * MK_TILE) == 0 &&
              o->cols * b->tile_cols % (2 * MK_TILE) == 0;
      }
    }
  }
  return all;
}

void mk_memory_of(const mk_program *program, mk_memory_plan *plan) {
  plan->weights = program->weight_bytes;
  plan->kv = 0;
  for (size_t b = 0; b < program->buffer_count; b++) {
    plan->kv += program->buffers[b].kind == MK_KIND_KV ? program->buffers[b].bytes : 0;
  }
  plan->activations = program->work_bytes - plan->kv;
}

/* How many floats of sums that wait a block needs room for: those of row tiles between chunks of K, those of attention
 * between pieces. */
static uint32_t scratch_floats(const mk_program *program) {
  if (mk_program_rows(program) > MK_MAX_ROWS) {
    return MK_WIDE_GPU_SCRATCH_FLOATS;
  }
  bool one = mk_program_rows(program) == 1;
  uint64_t most = 0;
  for (size_t i = 0; i < program->instruction_count; i++) {
    const mk_instruction *in = &program->instructions[i];
    const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
    for (uint32_t slot = 0; slot < info->operand_count; slot++) {
      const mk_operand *o = &in->operands[slot];
      if (!one && info->operands[slot].store == MK_OPERAND_STORE_TILES && o->cols > MK_GPU_CHUNK_STEPS &&
          (o->flags & MK_OPERAND_TOKEN_ROW) == 0) {
        uint64_t floats = (uint64_t)o->rows * MK_TILE * MK_MAX_ROWS;
        most = floats > most ? floats : most;
      }
    }
    if (info->sums == MK_SUMS_NORMED && !one) { /* its columns come by chunks, too */
      uint64_t floats = (uint64_t)in->operands[MK_SLOT_NORM_ADD_residual_out].cols * MK_TILE * MK_MAX_ROWS;
      most = floats > most ? floats : most;
    }
    if (mk_opcode_reads(info, MK_CONTENT_TABLE) >= 0 && one) {
      uint64_t head_dim = program->buffers[in->operands[MK_SLOT_ATTENTION_kv].buffer].head_dim;
      uint64_t floats = in->params[MK_PARAM_ATTENTION_group] * head_dim / 2 * MK_GPU_KEPT_UNIT_FLOATS;
      most = floats > most ? floats : most;
    } else if (mk_opcode_reads(info, MK_CONTENT_TABLE) >= 0) {
      uint64_t columns = mk_program_rows(program);
      for (uint32_t heads = 1; heads < in->params[MK_PARAM_ATTENTION_group]; heads *= 2) {
        columns *= 2;
      }
      uint64_t floats = (columns + 7) / 8 * MK_GPU_KEPT_SET_FLOATS;
      most = floats > most ? floats : most;
    }
  }
  return (uint32_t)most;
}

/* Places the shares of a buffer of one rank of several; its other tiles have no place. */
static void place_shares(mk_gpu *gpu, size_t buffer, uint64_t *end) {
  for (size_t s = gpu->share_of[buffer]; s < gpu->share_of[buffer + 1]; s++) {
    gpu->shares[s].at = mk_gpu_place(end, gpu->shares[s].count * gpu->shares[s].step);
  }
}

/* Places all buffers in their arenas, as offsets; `weights`, `kv` and `work` become the sizes of these arenas. Gives
 * the offset of the scratch memory, which comes last. */
static uint64_t place_buffers(mk_gpu *gpu, uint64_t *weights, uint64_t *kv, uint64_t *work) {
  const mk_program *program = gpu->program;
  *kv = *work = 0;
  *weights = gpu->ranks > 1 ? 0 : program->weight_bytes;
  for (size_t b = 0; b < program->buffer_count; b++) {
    uint32_t kind = program->buffers[b].kind;
    if (mk_gpu_is_dealt(gpu, b) && (kind == MK_KIND_WEIGHT || kind == MK_KIND_KV)) {
      place_shares(gpu, b, kind == MK_KIND_WEIGHT ? weights : kv);
      continue;
    }
    gpu->places[b] = kind == MK_KIND_WEIGHT && gpu->ranks > 1 ? mk_gpu_place(weights, program->buffers[b].bytes)
                     : kind == MK_KIND_WEIGHT                 ? program->buffers[b].offset
                     : kind == MK_KIND_KV                     ? mk_gpu_place(kv, program->buffers[b].bytes)
                                                              : mk_gpu_place(work, mk_gpu_bytes(gpu, b));
  }
  gpu->params.scratch_floats = scratch_floats(program);
  gpu->params.pairs_of_steps = has_pairs_of_steps(program);
  return mk_gpu_place(work, gpu->params.scratch_floats * sizeof(float) * gpu->queues + 1);
}

/* Offsets become addresses. */
static void add_arenas(mk_gpu *gpu) {
  for (size_t b = 0; b < gpu->program->buffer_count; b++) {
    uint32_t kind = gpu->program->buffers[b].kind;
    const mk_cu_address arena = kind == MK_KIND_WEIGHT ? gpu->weights : kind == MK_KIND_KV ? gpu->kv : gpu->work;
    gpu->places[b] += arena;
    for (size_t s = mk_gpu_is_dealt(gpu, b) ? gpu->share_of[b] : gpu->share_count;
         s < gpu->share_count && gpu->shares[s].buffer == b; s++) {
      mk_gpu_share *share = &gpu->shares[s];
      share->at = kind == MK_KIND_WEIGHT || kind == MK_KIND_KV ? share->at + arena : gpu->places[b] + share->first;
    }
  }
}

static mk_status borrow(mk_gpu *gpu) {
  for (size_t i = 0; i < gpu->program->buffer_count; i++) {
    const mk_buffer *b = &gpu->program->buffers[i];
    if (b->kind != MK_KIND_WEIGHT && b->kind != MK_KIND_KV) {
      continue;
    }
    int lent = mk_program_find_shared(gpu->lender->program, b);
    if (lent < 0) {
      return mk_error(MK_ERR_USAGE, "the machine beside has no buffer %s of this shape to lend", b->name);
    }
    gpu->places[i] = mk_gpu_address(gpu->lender, (size_t)lent);
    MK_TRY(mk_gpu_is_dealt(gpu, i) ? mk_gpu_borrow_shares(gpu, i, (size_t)lent) : MK_OK);
  }
  return MK_OK;
}

static mk_status check_room(const mk_gpu *gpu, uint64_t weights, uint64_t kv, uint64_t work, uint64_t tables) {
  const uint64_t rest = kv + work;
  size_t available = 0, total = 0;
  MK_TRY(mk_gpu_check(gpu, gpu->driver->memory_info(&available, &total), "asking for free memory"));
  if (gpu->options.memory != NULL) {
    mk_memory_plan memory = {.program = tables, .available = available, .total = total};
    mk_memory_of(gpu->program, &memory);
    memory.weights = gpu->ranks > 1 ? weights : memory.weights; /* of this rank */
    memory.kv = gpu->ranks > 1 ? kv : memory.kv;
    gpu->options.memory(gpu->options.user, &memory);
  }
  if (weights + rest + tables > available) {
    return mk_error(
        MK_ERR_RUNTIME,
        "the model needs %.2f GB on the GPU (%.2f GB weights, %.2f GB KV cache and activations), and %s has "
        "%.2f GB free of %.2f; ask for a shorter context, or use another GPU",
        (double)(weights + rest + tables) / 1e9, (double)weights / 1e9, (double)rest / 1e9, gpu->name,
        (double)available / 1e9, (double)total / 1e9);
  }
  return MK_OK;
}

static mk_status clear(const mk_gpu *gpu, mk_cu_address arena, uint64_t bytes) {
  return mk_gpu_check(gpu, gpu->driver->fill_async(arena, 0, bytes, gpu->stream), "clearing memory");
}

static mk_status new_arena(const mk_gpu *gpu, mk_cu_address *arena, uint64_t bytes, const char *what) {
  MK_TRY(mk_gpu_check(gpu, gpu->driver->memory_new(arena, bytes), what));
  return clear(gpu, *arena, bytes);
}

/* In a group counters and control come after it. */
static mk_status new_work(mk_gpu *gpu, uint64_t bytes) {
  if (gpu->group == NULL) {
    return new_arena(gpu, &gpu->work, bytes, "allocating the working memory");
  }
  const uint64_t counters = mk_gpu_place(&bytes, gpu->counter_bytes);
  const uint64_t control = mk_gpu_place(&bytes, (uint64_t)MK_GPU_FLIGHTS * MK_GPU_CONTROL_STRIDE);
  MK_TRY(mk_window_allocate(gpu, bytes, &gpu->work));
  gpu->counters = gpu->work + counters;
  gpu->control = gpu->work + control;
  return clear(gpu, gpu->work, bytes);
}

static mk_status clear_shares(const mk_gpu *gpu, size_t buffer) {
  for (size_t s = gpu->share_of[buffer]; s < gpu->share_of[buffer + 1]; s++) {
    const mk_gpu_share *share = &gpu->shares[s];
    MK_TRY(mk_gpu_check(gpu, gpu->driver->fill_async(share->at, 0, share->count * share->step, gpu->stream),
                        gpu->program->buffers[buffer].name));
  }
  return MK_OK;
}

mk_status mk_gpu_clear_buffer(const mk_gpu *gpu, size_t buffer) {
  const mk_buffer *b = &gpu->program->buffers[buffer];
  bool empties = gpu->rows <= MK_MAX_ROWS && mk_gpu_in_fragments(gpu->program, b);
  if (mk_gpu_is_dealt(gpu, buffer) && b->kind == MK_KIND_KV) {
    return clear_shares(gpu, buffer);
  }
  return mk_gpu_check(gpu,
                      gpu->driver->fill_async(mk_gpu_address(gpu, buffer), empties ? MK_GPU_EMPTY_BYTE : 0,
                                              mk_gpu_bytes(gpu, buffer), gpu->stream),
                      b->name);
}

mk_status mk_gpu_allocate(mk_gpu *gpu, uint64_t tables) {
  const mk_program *program = gpu->program;
  uint64_t kv, work, weights;
  MK_TRY(mk_alloc(program->buffer_count, sizeof *gpu->places, &gpu->places));
  uint64_t scratch = place_buffers(gpu, &weights, &kv, &work);
  weights = gpu->lent ? 0 : weights + ARENA_TAIL;
  MK_TRY(check_room(gpu, weights, gpu->lent ? 0 : kv, work, tables));
  if (!gpu->lent) {
    MK_TRY(new_arena(gpu, &gpu->weights, weights, "allocating the weights"));
    MK_TRY(new_arena(gpu, &gpu->kv, kv + 1, "allocating the KV cache"));
  }
  MK_TRY(new_work(gpu, work));
  add_arenas(gpu);
  for (size_t b = 0; b < program->buffer_count; b++) {
    if (mk_gpu_in_fragments(program, &program->buffers[b])) {
      MK_TRY(mk_gpu_clear_buffer(gpu, b));
    }
  }
  gpu->scratch = gpu->work + scratch;
  MK_TRY(mk_gpu_map_count(gpu) == 0 ? MK_OK : mk_gpu_find_box_tiles(gpu));
  return gpu->lent ? borrow(gpu) : MK_OK;
}

mk_cu_address mk_gpu_address(const mk_gpu *gpu, size_t buffer) { return gpu->places[buffer]; }

/* As has_few_lines of vm/gpu/rows.cuh says it, of the last step that ran. */
static bool had_few_lines(const mk_gpu *gpu) {
  const mk_step_row *rows = gpu->plan + (size_t)(gpu->steps == 0 ? 0 : gpu->steps - 1) * gpu->rows;
  bool few = gpu->params.pairs_of_steps != 0;
  for (uint32_t line = STEP_LINES / 2; line < gpu->rows; line++) {
    few = few && (rows[line].flags & MK_ROW_ACTIVE) == 0;
  }
  return few;
}

mk_status mk_gpu_read_lines(mk_gpu *gpu, size_t buffer, uint64_t *to) {
  const mk_buffer *b = &gpu->program->buffers[buffer];
  uint32_t words = b->cols / 2, *from;
  const bool few = had_few_lines(gpu);
  MK_TRY(mk_alloc(mk_gpu_bytes(gpu, buffer), 1, &from));
  size_t half_words = (size_t)b->cols / MK_TILE * STEP_WORDS;
  const uint32_t *at = from + gpu->first_epoch % VALUE_HALVES * half_words;
  mk_status status = mk_gpu_copy_out(gpu, from, mk_gpu_address(gpu, buffer), mk_gpu_bytes(gpu, buffer), b->name);
  for (uint32_t line = 0; line < gpu->rows && status == MK_OK; line++) {
    for (uint32_t w = 0; w < words; w++) {
      uint32_t step = w / 8, half = w / 4 % 2, tile = line / 8;
      if (few) { /* the next step's words lie where else those of the later eight lines do */
        tile = step % 2;
        step /= 2;
      }
      uint32_t data = at[(size_t)step * STEP_WORDS +
                         (line / STEP_LINES * STEP_WORDS + (line % 8 * 4 + w % 4) * 4 + tile % 2 * 2 + half)];
      uint32_t written = data == MK_GPU_EMPTY_BYTE * 0x1010101u ? 0 : gpu->first_epoch;
      to[(size_t)line * words + w] = (uint64_t)written << 32 | data;
    }
  }
  mk_free(from);
  return status;
}
