/* See machine.h. Memory: what arena.c says, one allocation for the tables that the kernel reads, and pinned host memory for the token ring
 * and the stop word. */
#include "vm/gpu/machine.h"

#include <string.h>

#include "instructions/mla.h"
#include "vm/gpu/image.h"
#include "vm/gpu/machine_internal.h"

enum {
  DEFAULT_DEADLINE_MS = 1500,
  BLOCK_TOKENS = 64,
  MOST_FRONTS = MK_GPU_CONSUMER_WARPS * (32 / MK_GPU_FRONT_LANES),
};

typedef struct table_plan { /* offsets into the tables' allocation */
  uint64_t instructions, queues, buffers, totals, counters, control, bytes;
} table_plan;

mk_status mk_gpu_check(const mk_gpu *gpu, mk_cu_result result, const char *what) {
  return result == 0 ? MK_OK : mk_driver_check(gpu->driver, result, what);
}

mk_status mk_gpu_enter(const mk_gpu *gpu) {
  if (gpu->lost) {
    return mk_error(MK_ERR_DEVICE, "the kernel of an earlier run never ended; start the process again");
  }
  return mk_gpu_check(gpu, gpu->driver->context_set(gpu->context), "entering the GPU's context");
}

static mk_status require_image(void) {
  if (!mk_gpu_image_complete()) {
    return mk_error(MK_ERR_RUNTIME,
                    "this mkvm was built without a device image; build it where the CUDA toolkit (nvcc) is, "
                    "or use --device cpu");
  }
  return MK_OK;
}

bool mk_gpu_present(uint32_t device) {
  const mk_driver *driver;
  mk_cu_device found;
  return require_image() == MK_OK && mk_driver_open(&driver) == MK_OK &&
         mk_driver_device(driver, device, &found) == MK_OK;
}

/* A normed input is staged as two bf16 columns, 1 KiB a page each; the second begins at a multiple of four pages
 * (vm/gpu/consumer.cuh). */
static mk_status check_staging(const mk_instruction *in, uint32_t rows) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  uint32_t columns = in->opcode == MK_OP_QKV || in->opcode == MK_OP_GLU || in->opcode == MK_OP_HEAD ? 2 : 1;
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand *o = &in->operands[slot];
    if (rows == 1 && info->operands[slot].store == MK_OPERAND_STORE_TILES) { /* several rows are not staged at all */
      uint64_t pages = (o->cols * UINT64_C(512) + MK_GPU_PAGE_BYTES - 1) / MK_GPU_PAGE_BYTES;
      uint64_t bytes = ((columns == 2 ? (pages + 3) / 4 * 4 : 0) + pages) * 1024;
      if (bytes > (uint64_t)MK_GPU_ACTIVATION_BYTES) {
        return mk_error(MK_ERR_FILE,
                        "instruction %u (%s) stages %llu bytes of activation; this machine has room for %d", in->uid,
                        info->name, (unsigned long long)bytes, MK_GPU_ACTIVATION_BYTES);
      }
    }
  }
  if (rows > MK_MAX_ROWS) { /* nor are their parts fetched by as many warps */
    return MK_OK;
  }
  if (in->opcode == MK_OP_ATTENTION && in->params[MK_PARAM_ATTENTION_group] > 16) {
    return mk_error(MK_ERR_FILE, "instruction %u: %u query heads share a KV head; this machine attends with at most 16",
                    in->uid, in->params[MK_PARAM_ATTENTION_group]);
  }
  if (in->opcode == MK_OP_REDUCE_ADD && in->operands[MK_SLOT_REDUCE_ADD_parts].rows > MK_GPU_CONSUMER_WARPS) {
    return mk_error(MK_ERR_FILE, "instruction %u adds %u parts; this machine adds at most %d", in->uid,
                    in->operands[MK_SLOT_REDUCE_ADD_parts].rows, MK_GPU_CONSUMER_WARPS);
  }
  return MK_OK;
}

static bool is_sampling(uint32_t opcode) {
  return opcode == MK_OP_SCORE || opcode == MK_OP_SIFT || opcode == MK_OP_DRAW;
}

static bool samples(const mk_program *program) {
  for (size_t i = 0; i < program->instruction_count; i++) {
    if (is_sampling(program->instructions[i].opcode)) {
      return true;
    }
  }
  return false;
}

static bool same_operand(const mk_instruction *a, uint32_t slot_a, const mk_instruction *b, uint32_t slot_b) {
  return memcmp(&a->operands[slot_a], &b->operands[slot_b], sizeof a->operands[0]) == 0;
}

/* What the sampling kernel does of one instruction within another: the storer does all of `score` within the `head` before it, which must
 * therefore have the same tiles, and nothing to wait for between the two; `sift` leaves its round in the activation area, where nothing
 * else may stage, to the one behind it; `draw` hands its choice to the `next` behind it. */
static mk_status check_sampling(const mk_instruction *in, const mk_instruction *behind) {
  uint32_t opcode = in->opcode, next = behind == NULL ? MK_OP_NONE : behind->opcode;
  bool searches = next == MK_OP_SIFT || next == MK_OP_DRAW;
  const char *needs = NULL;
  if (opcode == MK_OP_HEAD && (next != MK_OP_SCORE || behind->wait_count != 0 ||
                               !same_operand(in, MK_SLOT_HEAD_logits, behind, MK_SLOT_SCORE_logits))) {
    needs = "a score of its logits, without waits";
  } else if (next == MK_OP_SCORE && opcode != MK_OP_HEAD) {
    needs = "no score, which belongs behind a head";
  } else if (opcode == MK_OP_SIFT &&
             !(searches && behind->operands[MK_SLOT_SIFT_rounds].rows != 0 &&
               behind->operands[MK_SLOT_SIFT_rounds].buffer == in->operands[MK_SLOT_SIFT_round].buffer)) {
    needs = "a sift or draw that goes on with its round";
  } else if (opcode != MK_OP_SIFT && searches && behind->operands[MK_SLOT_SIFT_rounds].rows != 0) {
    needs = "no sift or draw that goes on with a round";
  } else if ((opcode == MK_OP_DRAW) != (next == MK_OP_NEXT) ||
             (opcode == MK_OP_DRAW && !same_operand(in, MK_SLOT_DRAW_choice, behind, MK_SLOT_NEXT_candidates))) {
    needs = opcode == MK_OP_DRAW ? "a next that takes its choice" : "no next, which belongs behind a draw";
  } else if (opcode == MK_OP_DRAW && in->operands[MK_SLOT_DRAW_fronts].rows > MOST_FRONTS) {
    return mk_error(MK_ERR_FILE, "instruction %u (draw) has the fronts of %u SMs; this machine takes %d", in->uid,
                    in->operands[MK_SLOT_DRAW_fronts].rows, MOST_FRONTS);
  }
  return needs == NULL
             ? MK_OK
             : mk_error(MK_ERR_FILE, "instruction %u (%s): a machine that samples needs behind it on its queue %s",
                        in->uid, mk_opcode_lookup(opcode)->name, needs);
}

/* A `sift` takes scores from the logits of its own SM, those of the `score` before it on the queue. */
static mk_status check_searched(const mk_instruction *score, const mk_instruction *in) {
  return in->opcode != MK_OP_SIFT ||
                 (score != NULL && same_operand(score, MK_SLOT_SCORE_scores, in, MK_SLOT_SIFT_scores))
             ? MK_OK
             : mk_error(MK_ERR_FILE,
                        "instruction %u (sift) looks at other tokens than the score before it on its queue, which this "
                        "machine does not",
                        in->uid);
}

/* The kernel's consumers may run further ahead of the storer than result_slots, but not past the token boundary: `next`, or the `draw`
 * before it, waits for what the storer of its own SM publishes behind the last row tile. So every queue with a `next` needs a `head` before
 * it. */
static mk_status check_boundary(const mk_program *program, const mk_queue *queue, bool sampling) {
  bool head = false;
  const mk_instruction *score = NULL;
  for (uint32_t i = 0; i < queue->count; i++) {
    const mk_instruction *in = &program->instructions[queue->first + i];
    head |= in->opcode == MK_OP_HEAD;
    if (in->opcode == MK_OP_NEXT && !head) {
      return mk_error(MK_ERR_FILE, "instruction %u (next) has no head before it on its queue, which this machine needs",
                      in->uid);
    }
    if (sampling) {
      score = in->opcode == MK_OP_SCORE ? in : score;
      MK_TRY(check_sampling(in, i + 1 < queue->count ? in + 1 : NULL));
      MK_TRY(check_searched(score, in));
    }
  }
  return MK_OK;
}

/* ATTENTION itself writes what COMBINE would of lines with one split in use: so all parts of one buffer become one value, which nobody else
 * writes or empties. `partner`: by buffer, 1 + the other one of such a pair; 0 for all. */
static mk_status check_combined(const mk_program *program, uint32_t *partner) {
  for (size_t i = 0; i < program->instruction_count; i++) {
    const mk_instruction *in = &program->instructions[i];
    if (in->opcode == MK_OP_COMBINE) {
      uint32_t from = in->operands[MK_SLOT_COMBINE_parts].buffer, to = in->operands[MK_SLOT_COMBINE_out].buffer;
      const mk_buffer *parts = &program->buffers[from], *out = &program->buffers[to];
      if (out->cols != parts->cols / parts->tile_cols * (parts->tile_cols - 2u) ||
          (partner[from] != 0 && partner[from] != to + 1) || (partner[to] != 0 && partner[to] != from + 1)) {
        return mk_error(MK_ERR_FILE,
                        "instruction %u (combine) makes columns of buffer %s from %s; with several rows per step this "
                        "machine makes "
                        "the whole of one buffer from the whole of another one; use --device cpu",
                        in->uid, out->name, parts->name);
      }
      partner[from] = to + 1;
      partner[to] = from + 1;
    }
  }
  for (size_t i = 0; i < program->instruction_count; i++) {
    const mk_instruction *in = &program->instructions[i];
    const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
    for (uint32_t slot = 0; slot < info->operand_count; slot++) {
      uint32_t buffer = in->operands[slot].buffer;
      bool combined = partner[buffer] != 0, writes = info->operands[slot].access != MK_ACCESS_READ;
      bool parts = in->opcode == MK_OP_ATTENTION && slot == MK_SLOT_ATTENTION_out;
      if (parts ? !combined : combined && writes && in->opcode != MK_OP_COMBINE) {
        return mk_error(
            MK_ERR_FILE,
            "instruction %u (%s) writes buffer %s, which %s; this machine runs no such program of several rows per "
            "step; use --device cpu",
            in->uid, info->name, program->buffers[buffer].name,
            parts ? "no combine reads" : "a combine writes or reads, too");
      }
    }
  }
  return MK_OK;
}

/* Of 2 to 16 rows: attention goes in pieces, and writes for COMBINE. */
static mk_status check_pieces(const mk_program *program) {
  uint32_t *partner;
  MK_TRY(mk_alloc(program->buffer_count, sizeof *partner, &partner));
  mk_status combined = check_combined(program, partner);
  mk_free(partner);
  MK_TRY(combined);
  for (size_t i = 0; i < program->buffer_count; i++) {
    const mk_buffer *b = &program->buffers[i];
    uint32_t pieces = b->span_tokens / MK_GPU_PIECE_TOKENS;
    if (b->store == MK_STORE_BLOCKS &&
        (pieces == 0 || b->span_tokens % MK_GPU_PIECE_TOKENS != 0 || (pieces & (pieces - 1)) != 0)) {
      return mk_error(MK_ERR_FILE,
                      "buffer %s has spans of %u tokens; with several rows per step this machine takes %d times a "
                      "power of two; use "
                      "--device cpu",
                      b->name, b->span_tokens, (int)MK_GPU_PIECE_TOKENS);
    }
  }
  return MK_OK;
}

static mk_status check_rows(const mk_program *program) {
  mk_plan_buffers buffers;
  for (size_t i = 0; i < program->buffer_count; i++) {
    const mk_buffer *b = &program->buffers[i];
    if (mk_gpu_in_fragments(program, b) && (b->cols % MK_TILE != 0 || b->rows != mk_program_rows(program))) {
      return mk_error(
          MK_ERR_FILE,
          "buffer %s has %u columns; with several rows per step this machine has values of whole tiles of %d "
          "alone; compile it with 1 row, or use --device cpu",
          b->name, b->cols, MK_TILE);
    }
  }
  if (mk_program_rows(program) <= MK_MAX_ROWS) {
    MK_TRY(check_pieces(program));
  }
  if (samples(program)) {
    return mk_error(MK_ERR_FILE, "the program has %u rows per step and samples; this machine samples one row",
                    mk_program_rows(program));
  }
  for (size_t i = 0; i < program->counter_count;
       i++) { /* two storers finish an instruction, and nobody asks for both */
    if (program->counters[i].kind == MK_COUNTER_RELEASE) {
      return mk_error(MK_ERR_FILE,
                      "the program has %u rows per step and release counters; this machine has none for those",
                      mk_program_rows(program));
    }
  }
  for (size_t q = 0; q < program->queue_count; q++) {
    MK_TRY(check_boundary(program, &program->queues[q], false));
  }
  return mk_plan_find(program, &buffers);
}

/* What the kernel is compiled for must be what the scheduler planned and the verifier proved. */
static mk_status check_program(const mk_program *program) {
  const mk_machine *machine = &program->machine;
  bool prompt = mk_program_rows(program) > MK_MAX_ROWS;
  uint32_t pages = prompt ? MK_PROMPT_GPU_RING_PAGES : MK_GPU_RING_PAGES;
  uint32_t warps = prompt ? MK_PROMPT_GPU_WARPS : MK_GPU_CONSUMER_WARPS;
  if (mk_program_listed(program)) {
    return mk_gpu_check_mla(program);
  }
  if (machine->ranks != 1 || machine->page_bytes != MK_GPU_PAGE_BYTES || machine->consumer_warps != warps ||
      machine->ring_pages > pages) {
    return mk_error(
        MK_ERR_FILE,
        "the program is for another machine: %u GPUs, pages of %u bytes, %u of them, %u consumer warps; this "
        "one has 1, %d, %u and %u; compile it again",
        machine->ranks, machine->page_bytes, machine->ring_pages, machine->consumer_warps, MK_GPU_PAGE_BYTES, pages,
        warps);
  }
  for (size_t i = 0; i < program->buffer_count; i++) {
    const mk_buffer *b = &program->buffers[i];
    if (b->store == MK_STORE_BLOCKS && b->block_tokens != BLOCK_TOKENS) {
      return mk_error(MK_ERR_FILE, "buffer %s has KV blocks of %u tokens; this machine attends over blocks of %d",
                      b->name, b->block_tokens, BLOCK_TOKENS);
    }
  }
  for (size_t i = 0; i < program->instruction_count; i++) {
    MK_TRY(check_staging(&program->instructions[i], mk_program_rows(program)));
  }
  if (mk_program_rows(program) > 1) {
    return check_rows(program);
  }
  bool sampling = samples(program);
  for (size_t q = 0; q < program->queue_count; q++) {
    MK_TRY(check_boundary(program, &program->queues[q], sampling));
  }
  return MK_OK;
}

mk_status mk_gpu_load(const mk_gpu *gpu, int part, const char *name, uint32_t shared, mk_cu_module_ref *module,
                      mk_cu_function_ref *function) {
  const mk_driver *cu = gpu->driver;
  MK_TRY(mk_gpu_check(gpu, cu->module_load(module, mk_gpu_image((mk_gpu_image_part)part)), "loading the device image"));
  mk_cu_result result = cu->module_function(function, *module, name);
  /* At once: a lazy load inside a launch would wait for the running kernel. */
  if (result == 0) {
    result = cu->function_load(*function);
  }
  if (result == 0) {
    result = cu->function_set(*function, MK_CU_FUNCTION_DYNAMIC_SHARED, (int)shared);
  }
  mk_status status = mk_gpu_check(gpu, result, name);
  if (status != MK_OK) {
    (void)cu->module_unload(*module);
    *module = NULL;
  }
  return status;
}

uint32_t mk_gpu_threads(const mk_gpu *gpu) {
  return gpu->mla ? MK_MLA_GPU_THREADS : gpu->rows > MK_MAX_ROWS ? MK_PROMPT_GPU_THREADS : MK_GPU_THREADS;
}

uint32_t mk_gpu_shared_bytes(const mk_gpu *gpu) {
  return gpu->mla                  ? MK_MLA_GPU_SHARED_BYTES
         : gpu->rows > MK_MAX_ROWS ? MK_PROMPT_GPU_SHARED_BYTES
                                   : MK_GPU_SHARED_BYTES;
}

static mk_status check_occupancy(const mk_gpu *gpu) {
  int blocks = 0;
  MK_TRY(mk_gpu_check(gpu,
                      gpu->driver->occupancy(&blocks, gpu->kernel, (int)mk_gpu_threads(gpu), mk_gpu_shared_bytes(gpu)),
                      "asking for the kernel's occupancy"));
  if ((uint64_t)blocks * (uint64_t)gpu->sms < gpu->program->queue_count) {
    return mk_error(MK_ERR_RUNTIME,
                    "the program has %zu queues, and %s runs %d blocks at a time (%d SMs); compile it for %d SMs",
                    gpu->program->queue_count, gpu->name, blocks * gpu->sms, gpu->sms, blocks * gpu->sms);
  }
  return MK_OK;
}

static mk_status load_kernels(mk_gpu *gpu) {
  gpu->mla = mk_program_listed(gpu->program);
  if (gpu->mla) {
    return mk_gpu_load(gpu, MK_GPU_IMAGE_MLA, "mk_mla_kernel", MK_MLA_GPU_SHARED_BYTES, &gpu->module, &gpu->kernel);
  }
  if (gpu->rows > MK_MAX_ROWS) {
    return mk_gpu_load(gpu, MK_GPU_IMAGE_PROMPT, "mk_prompt_kernel", MK_PROMPT_GPU_SHARED_BYTES, &gpu->module,
                       &gpu->kernel);
  }
  int image = gpu->rows > 1 ? MK_GPU_IMAGE_ROWS : samples(gpu->program) ? MK_GPU_IMAGE_SAMPLING : MK_GPU_IMAGE_KERNEL;
  MK_TRY(mk_gpu_load(gpu, image, "mk_kernel", MK_GPU_SHARED_BYTES, &gpu->module, &gpu->kernel));
  return image != MK_GPU_IMAGE_KERNEL ? MK_OK
                                      : mk_gpu_load(gpu, MK_GPU_IMAGE_RECORDING, "mk_kernel", MK_GPU_SHARED_BYTES,
                                                    &gpu->recording_module, &gpu->recording);
}

static mk_status open_device(mk_gpu *gpu) {
  MK_TRY(require_image());
  MK_TRY(mk_driver_open(&gpu->driver));
  const mk_driver *cu = gpu->driver;
  MK_TRY(mk_driver_device(cu, gpu->options.device, &gpu->device));
  (void)cu->device_name(gpu->name, sizeof gpu->name, gpu->device);
  MK_TRY(mk_gpu_check(gpu, cu->device_attribute(&gpu->sms, MK_CU_ATTRIBUTE_SMS, gpu->device), "asking the GPU"));
  MK_TRY(mk_gpu_check(gpu, cu->context_retain(&gpu->context, gpu->device), "opening the GPU"));
  gpu->retained = true;
  MK_TRY(mk_gpu_enter(gpu));
  MK_TRY(load_kernels(gpu));
  MK_TRY(check_occupancy(gpu));
  MK_TRY(mk_gpu_check(gpu, cu->stream_new(&gpu->stream, MK_CU_STREAM_NON_BLOCKING), "making a stream"));
  MK_TRY(mk_gpu_check(gpu, cu->event_new(&gpu->start, 0), "making an event"));
  MK_TRY(mk_gpu_check(gpu, cu->event_new(&gpu->end, 0), "making an event"));
  return mk_gpu_check(gpu, cu->event_new(&gpu->done, 0), "making an event");
}

static table_plan plan_tables(const mk_program *program) {
  table_plan plan = {0};
  plan.instructions = mk_gpu_place(&plan.bytes, program->instruction_count * sizeof(mk_instruction));
  plan.queues = mk_gpu_place(&plan.bytes, program->queue_count * sizeof(mk_gpu_queue));
  plan.buffers = mk_gpu_place(&plan.bytes, program->buffer_count * sizeof(mk_gpu_buffer));
  plan.totals = mk_gpu_place(&plan.bytes, (program->counter_count + 1) * sizeof(uint32_t));
  plan.counters = mk_gpu_place(&plan.bytes, program->counter_count * MK_GPU_COUNTER_STRIDE * sizeof(uint32_t));
  plan.control = mk_gpu_place(&plan.bytes, sizeof(mk_gpu_control));
  return plan;
}

static mk_status allocate(mk_gpu *gpu, const table_plan *plan) {
  const mk_driver *cu = gpu->driver;
  const mk_program *program = gpu->program;
  MK_TRY(mk_gpu_allocate(gpu, plan->bytes));
  MK_TRY(mk_gpu_check(gpu, cu->memory_new(&gpu->tables, plan->bytes), "allocating the program"));
  MK_TRY(mk_gpu_check(gpu, cu->fill_async(gpu->tables, 0, plan->bytes, gpu->stream), "clearing memory"));
  gpu->ring_entries = (uint64_t)program->ranges.position.high + 3;
  if (gpu->rows > 1) {
    mk_plan_buffers buffers;
    MK_TRY(mk_plan_find(program, &buffers));
    gpu->plan = buffers.plan;
    gpu->ring_entries = (uint64_t)buffers.steps * gpu->rows;
  }
  void *pinned;
  MK_TRY(mk_gpu_check(gpu, cu->host_new(&pinned, MK_GPU_RING_AT + gpu->ring_entries * 8, MK_CU_HOST_MAPPED),
                      "allocating pinned memory"));
  gpu->pinned = pinned;
  memset(pinned, 0, MK_GPU_RING_AT + gpu->ring_entries * 8);
  gpu->ring = (volatile uint64_t *)(void *)((uint8_t *)pinned + MK_GPU_RING_AT);
  MK_TRY(mk_gpu_check(gpu, cu->host_address(&gpu->pinned_address, pinned, 0), "mapping pinned memory"));
  return mk_gpu_check(gpu, cu->stream_wait(gpu->stream), "clearing memory");
}

static mk_gpu_buffer describe(const mk_gpu *gpu, size_t index) {
  const mk_buffer *b = &gpu->program->buffers[index];
  bool pairs = b->store == MK_STORE_STAMPED && b->dtype == MK_DTYPE_BF16;
  return (mk_gpu_buffer){.address = mk_gpu_address(gpu, index),
                         .rows = b->rows,
                         .cols = b->cols,
                         .tile_rows = b->tile_rows,
                         .tile_cols = b->tile_cols,
                         .grid_cols = mk_buffer_grid_cols(b),
                         .row_words = pairs ? (b->cols + 1) / 2 : b->cols,
                         .store = b->store,
                         .dtype = b->dtype,
                         .head_dim = b->head_dim,
                         .block_tokens = b->block_tokens,
                         .span_tokens = b->span_tokens};
}

static void describe_all(const mk_gpu *gpu, const table_plan *plan, uint8_t *image) {
  const mk_program *program = gpu->program;
  memcpy(image + plan->instructions, program->instructions, program->instruction_count * sizeof(mk_instruction));
  for (size_t q = 0; q < program->queue_count; q++) {
    mk_gpu_queue queue = {.first = program->queues[q].first, .count = program->queues[q].count};
    memcpy(image + plan->queues + q * sizeof queue, &queue, sizeof queue);
  }
  for (size_t b = 0; b < program->buffer_count; b++) {
    mk_gpu_buffer buffer = describe(gpu, b);
    memcpy(image + plan->buffers + b * sizeof buffer, &buffer, sizeof buffer);
  }
  for (size_t i = 0; gpu->rows > 1 && gpu->rows <= MK_MAX_ROWS && i < program->instruction_count; i++) {
    const mk_instruction *in = &program->instructions[i];
    if (in->opcode == MK_OP_COMBINE) {
      mk_gpu_buffer *buffers = (mk_gpu_buffer *)(void *)(image + plan->buffers);
      mk_gpu_buffer *parts = &buffers[in->operands[MK_SLOT_COMBINE_parts].buffer],
                    *out = &buffers[in->operands[MK_SLOT_COMBINE_out].buffer];
      parts->block_tokens = (uint32_t)out->address;
      parts->span_tokens = (uint32_t)(out->address >> 32);
      out->head_dim = (uint16_t)(parts->tile_cols - 2);
    }
  }
  for (size_t c = 0; c < program->counter_count; c++) {
    bool release = program->counters[c].kind == MK_COUNTER_RELEASE;
    uint32_t total = program->counters[c].total | (release ? (uint32_t)MK_GPU_COUNTER_RELEASE : 0);
    memcpy(image + plan->totals + c * sizeof total, &total, sizeof total);
  }
}

static void *device_pointer(mk_cu_address address) { return (void *)(uintptr_t)address; }

static mk_status upload_tables(mk_gpu *gpu, const table_plan *plan) {
  uint8_t *image;
  MK_TRY(mk_alloc(plan->bytes, 1, &image));
  describe_all(gpu, plan, image);
  mk_status status =
      mk_gpu_check(gpu, gpu->driver->upload(gpu->tables, image, plan->bytes), "copying the program to the GPU");
  mk_free(image);
  gpu->counters = gpu->tables + plan->counters;
  gpu->counter_bytes = gpu->program->counter_count * MK_GPU_COUNTER_STRIDE * sizeof(uint32_t);
  gpu->control = gpu->tables + plan->control;
  gpu->params = (mk_gpu_params){
      .instructions = device_pointer(gpu->tables + plan->instructions),
      .queues = device_pointer(gpu->tables + plan->queues),
      .buffers = device_pointer(gpu->tables + plan->buffers),
      .counters = device_pointer(gpu->counters),
      .counter_totals = device_pointer(gpu->tables + plan->totals),
      .token_ring = device_pointer(gpu->pinned_address + MK_GPU_RING_AT),
      .stop = device_pointer(gpu->pinned_address + offsetof(mk_gpu_pinned, stop)),
      .abort = device_pointer(gpu->control + offsetof(mk_gpu_control, abort)),
      .fault = device_pointer(gpu->control + offsetof(mk_gpu_control, fault)),
      .clocks = device_pointer(gpu->control + offsetof(mk_gpu_control, clocks)),
      .epochs_done = device_pointer(gpu->control + offsetof(mk_gpu_control, epochs_done)),
      .deadline = (uint32_t)((uint64_t)gpu->options.deadline_ms * 1000000 / 1024),
      .skip_signal_uid = gpu->options.skip_signal_uid,
      .plan = gpu->rows > 1 ? device_pointer(mk_gpu_address(gpu, gpu->plan)) : NULL,
      .rows = gpu->rows,
      .scratch_floats = gpu->params.scratch_floats,
      .scratch = device_pointer(gpu->scratch),
  };
  return status;
}

static mk_status open_machine(mk_gpu *gpu) {
  MK_TRY(check_program(gpu->program));
  MK_TRY(open_device(gpu));
  table_plan plan = plan_tables(gpu->program);
  MK_TRY(allocate(gpu, &plan));
  MK_TRY(upload_tables(gpu, &plan));
  return gpu->mla ? mk_gpu_open_mla(gpu) : MK_OK;
}

mk_status mk_gpu_new(const mk_program *program, const mk_gpu_options *options, mk_gpu **out) {
  return mk_gpu_new_beside(program, options, NULL, out);
}

mk_status mk_gpu_new_beside(const mk_program *program, const mk_gpu_options *options, const mk_gpu *lender,
                            mk_gpu **out) {
  mk_gpu *gpu;
  *out = NULL;
  MK_TRY(mk_alloc(1, sizeof *gpu, &gpu));
  gpu->program = program;
  gpu->rows = mk_program_rows(program);
  gpu->lender = lender;
  gpu->lent = lender != NULL;
  gpu->options = *options;
  if (gpu->options.deadline_ms == 0) {
    gpu->options.deadline_ms = DEFAULT_DEADLINE_MS;
  }
  mk_status status = open_machine(gpu);
  if (status != MK_OK) {
    mk_gpu_free(gpu);
    return status;
  }
  gpu->lender = NULL;
  *out = gpu;
  return MK_OK;
}

/* Every call may fail where the context is broken; there is nothing left to do about it then. */
static void release_device(mk_gpu *gpu) {
  const mk_driver *cu = gpu->driver;
  (void)cu->context_set(gpu->context);
  const mk_cu_event_ref events[] = {gpu->start, gpu->end, gpu->done};
  for (size_t i = 0; i < sizeof events / sizeof events[0]; i++) {
    if (events[i] != NULL) {
      (void)cu->event_free(events[i]);
    }
  }
  if (gpu->stream != NULL) {
    (void)cu->stream_free(gpu->stream);
  }
  const mk_cu_address memory[] = {
      gpu->lent ? 0 : gpu->weights, gpu->lent ? 0 : gpu->kv, gpu->work, gpu->tables, gpu->trace, gpu->flushed};
  for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) {
    if (memory[i] != 0) {
      (void)cu->memory_free(memory[i]);
    }
  }
  if (gpu->pinned != NULL) {
    (void)cu->host_free(gpu->pinned);
  }
  if (gpu->recording_module != NULL) {
    (void)cu->module_unload(gpu->recording_module);
  }
  if (gpu->flush_module != NULL) {
    (void)cu->module_unload(gpu->flush_module);
  }
  if (gpu->module != NULL) {
    (void)cu->module_unload(gpu->module);
  }
  (void)cu->context_release(gpu->device);
}

void mk_gpu_free(mk_gpu *gpu) {
  if (gpu == NULL) {
    return;
  }
  if (gpu->retained && !gpu->lost) {
    release_device(gpu);
  }
  mk_free(gpu->places);
  mk_free(gpu);
}

static mk_status check_range(const mk_gpu *gpu, size_t buffer, uint64_t offset, uint64_t bytes) {
  if (buffer >= gpu->program->buffer_count) {
    return mk_error(MK_ERR_USAGE, "there is no buffer %zu; the program has %zu", buffer, gpu->program->buffer_count);
  }
  const mk_buffer *b = &gpu->program->buffers[buffer];
  if (offset > b->bytes || bytes > b->bytes - offset) {
    return mk_error(MK_ERR_USAGE, "buffer %s has %llu bytes; %llu from %llu on are not all inside", b->name,
                    (unsigned long long)b->bytes, (unsigned long long)bytes, (unsigned long long)offset);
  }
  return mk_gpu_enter(gpu);
}

mk_status mk_gpu_write(mk_gpu *gpu, size_t buffer, uint64_t offset, const void *data, uint64_t bytes) {
  MK_TRY(check_range(gpu, buffer, offset, bytes));
  if (bytes == 0) {
    return MK_OK;
  }
  return mk_gpu_check(gpu, gpu->driver->upload(mk_gpu_address(gpu, buffer) + offset, data, bytes),
                      gpu->program->buffers[buffer].name);
}

mk_status mk_gpu_read(mk_gpu *gpu, size_t buffer, uint64_t offset, void *data, uint64_t bytes) {
  MK_TRY(check_range(gpu, buffer, offset, bytes));
  if (bytes == 0) {
    return MK_OK;
  }
  const mk_buffer *b = &gpu->program->buffers[buffer];
  if (mk_gpu_in_fragments(gpu->program, b)) {
    return offset == 0 && bytes == b->bytes
               ? mk_gpu_read_lines(gpu, buffer, data)
               : mk_error(MK_ERR_USAGE, "buffer %s is read whole: its rows do not lie one behind the other", b->name);
  }
  return mk_gpu_check(gpu, gpu->driver->download(data, mk_gpu_address(gpu, buffer) + offset, bytes),
                      gpu->program->buffers[buffer].name);
}

mk_status mk_gpu_clear(mk_gpu *gpu) {
  const mk_driver *cu = gpu->driver;
  MK_TRY(mk_gpu_enter(gpu));
  for (size_t b = 0; b < gpu->program->buffer_count; b++) {
    const mk_buffer *buffer = &gpu->program->buffers[b];
    bool others = gpu->lent && buffer->kind == MK_KIND_KV;
    if (buffer->kind != MK_KIND_WEIGHT && buffer->kind != MK_KIND_INPUT && buffer->bytes != 0 && !others) {
      MK_TRY(mk_gpu_clear_buffer(gpu, b));
    }
  }
  if (gpu->counter_bytes != 0) {
    MK_TRY(mk_gpu_check(gpu, cu->fill_async(gpu->counters, 0, gpu->counter_bytes, gpu->stream), "clearing counters"));
  }
  MK_TRY(mk_gpu_check(gpu, cu->stream_wait(gpu->stream), "clearing memory"));
  for (uint64_t i = 0; i < gpu->ring_entries; i++) {
    gpu->ring[i] = 0;
  }
  gpu->first_epoch = 0;
  return MK_OK;
}

void mk_gpu_skip_signal(mk_gpu *gpu, uint32_t uid) { gpu->params.skip_signal_uid = uid; }

void mk_gpu_delay(mk_gpu *gpu, uint32_t uid, uint32_t nanoseconds) {
  gpu->params.delay_uid = uid;
  gpu->params.delay_ns = nanoseconds;
}

void mk_gpu_leave_out(mk_gpu *gpu, uint32_t parts) { gpu->params.left_out = parts; }
double mk_gpu_time_ms(const mk_gpu *gpu) { return (double)gpu->time_ms; }
uint32_t mk_gpu_steps(const mk_gpu *gpu) { return gpu->steps; }
double mk_gpu_clock_mhz(const mk_gpu *gpu) {
  const mk_gpu_clocks *c = &gpu->pinned->control.clocks;
  if (c->nanoseconds[1] <= c->nanoseconds[0]) {
    return 0;
  }
  return (double)(c->ticks[1] - c->ticks[0]) * 1e3 / (double)(c->nanoseconds[1] - c->nanoseconds[0]);
}
uint32_t mk_gpu_generation(const mk_gpu *gpu) { return gpu->first_epoch; }
uint64_t mk_gpu_launches(const mk_gpu *gpu) { return gpu->launches; }
const char *mk_gpu_name(const mk_gpu *gpu) { return gpu->name; }
