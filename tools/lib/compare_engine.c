/* Comparing two engines: see compare.h. */
#include "tools/lib/compare.h"

#include <string.h>

static mk_status read_gpu(void *user, size_t buffer, void *data, uint64_t bytes) {
  return mk_gpu_read(mk_engine_gpu(user), buffer, 0, data, bytes);
}

static uint32_t generation_gpu(void *user) { return mk_gpu_generation(mk_engine_gpu(user)); }

/* What one operand names of a buffer, from one copy of it to another. */
static void copy_tiles(const mk_buffer *b, const mk_operand *o, const uint8_t *from, uint8_t *to) {
  const bool stamped = b->store == MK_STORE_STAMPED, halves = b->dtype == MK_DTYPE_BF16;
  const size_t size = stamped  ? 8
                      : halves ? 2
                               : 4,
               each = stamped && halves ? 2 : 1, width = (b->cols + each - 1) / each;
  const size_t first = (size_t)o->col * b->tile_cols / each, end = ((size_t)o->col + o->cols) * b->tile_cols / each;
  const size_t last_row = ((size_t)o->row + o->rows) * b->tile_rows;
  for (size_t row = (size_t)o->row * b->tile_rows; row < last_row && row < b->rows && first < width; row++) {
    const size_t at = (row * width + first) * size;
    memcpy(to + at, from + at, ((end < width ? end : width) - first) * size);
  }
}

/* Of several ranks no copy has everything, as a rank stores to those that read: each word is its writer's. */
static mk_status read_cpu(void *user, size_t buffer, void *data, uint64_t bytes) {
  const mk_program *program = mk_engine_program(user);
  const mk_buffer *b = &program->buffers[buffer];
  mk_cpu *cpu = mk_engine_cpu(user);
  memcpy(data, mk_cpu_memory(cpu, buffer), bytes);
  for (size_t q = program->machine.sms; q < program->queue_count && mk_buffer_is_pushed(program, b); q++) {
    const mk_queue *queue = &program->queues[q];
    for (uint32_t i = queue->first; i < queue->first + queue->count; i++) {
      const mk_instruction *in = &program->instructions[i];
      const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
      for (uint32_t slot = 0; slot < info->operand_count; slot++) {
        if (in->operands[slot].buffer == buffer && info->operands[slot].access != MK_ACCESS_READ) {
          copy_tiles(b, &in->operands[slot], mk_cpu_copy(cpu, mk_queue_rank(program, q), buffer), data);
        }
      }
    }
  }
  return MK_OK;
}

static uint32_t generation_cpu(void *user) { return mk_cpu_generation(mk_engine_cpu(user)); }

typedef struct rows_seen {
  uint32_t rows, *results;
} rows_seen;

static bool keep_results(void *user, uint32_t step, const uint32_t *results) {
  const rows_seen *seen = user;
  (void)step;
  memcpy(seen->results, results, seen->rows * sizeof *results);
  return true;
}

static mk_status make_step(void *user, const mk_step_row *rows, uint32_t *results) {
  rows_seen seen = {.rows = mk_program_rows(mk_engine_program(user)), .results = results};
  return mk_engine_run_plan(user, rows, 1, keep_results, &seen);
}

mk_status mk_compare_engines(mk_engine *machine, mk_engine *oracle, mk_compare **out) {
  const mk_program *program = mk_engine_program(machine);
  mk_compare_source gpu = {make_step, read_gpu, generation_gpu, machine};
  mk_compare_source cpu = {make_step, read_cpu, generation_cpu, machine};
  uint8_t **weights;
  *out = NULL;
  if (mk_engine_gpu(machine) != NULL && program->machine.ranks > 1) {
    return mk_error(MK_ERR_USAGE,
                    "%s: values of several GPUs are not compared; take one GPU, or the cpu with --ranks %u",
                    mk_engine_device(machine), program->machine.ranks);
  }
  MK_TRY(mk_alloc(program->buffer_count, sizeof *weights, &weights));
  for (size_t b = 0; b < program->buffer_count; b++) {
    weights[b] = mk_cpu_memory(mk_engine_cpu(oracle), b);
  }
  mk_status status = mk_compare_new(program, weights, mk_engine_gpu(machine) != NULL ? &gpu : &cpu, out);
  mk_free(weights);
  return status;
}

static mk_status generate(mk_compare *compare, const uint32_t *prompt, size_t prompt_count, size_t steps,
                          mk_compare_fn fn, void *user) {
  uint32_t token = 0;
  for (uint32_t position = 0; position < steps; position++) {
    mk_step_row row;
    size_t given = position < prompt_count ? prompt_count - position : 1;
    mk_plan_sequence(&row, 1, position, position < prompt_count ? &prompt[position] : &token, (uint32_t)given,
                     position < prompt_count ? (uint32_t)MK_ROW_PROMPT : 0);
    MK_TRY(mk_compare_step(compare, &row, &token));
    token = given > 1 ? prompt[position + 1] : token;
    if (fn != NULL && !fn(user, position, token, position + 1 >= prompt_count)) {
      break;
    }
  }
  return MK_OK;
}

mk_status mk_compare_generate(mk_engine *machine, mk_engine *oracle, const uint32_t *prompt, size_t prompt_count,
                              size_t n_predict, mk_compare_fn fn, void *user, mk_compare **out) {
  mk_compare *compare;
  if (out != NULL) {
    *out = NULL;
  }
  uint32_t most = mk_engine_max_seq(machine);
  if (prompt_count == 0 || prompt_count > most) {
    return mk_error(MK_ERR_USAGE, "the prompt has %zu tokens; the context holds 1 to %u", prompt_count, most);
  }
  size_t steps = prompt_count - 1 + n_predict;
  MK_TRY(mk_compare_engines(machine, oracle, &compare));
  mk_status status = generate(compare, prompt, prompt_count, steps < most ? steps : most, fn, user);
  if (out != NULL) {
    *out = compare;
  } else {
    mk_compare_free(compare);
  }
  return status;
}
