/* See support.h. */
#include "tests/fuzz/support.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "instructions/reference.h"
#include "vm/cpu/machine.h"

_Noreturn void fuzz_fail(const char *format, ...) {
  va_list args;
  va_start(args, format);
  fputs("finding: ", stderr);
  vfprintf(stderr, format, args);
  fputc('\n', stderr);
  va_end(args);
  abort();
}

void fuzz_expect_parsed(mk_status status) {
  fuzz_require(status == MK_OK || status == MK_ERR_FILE || status == MK_ERR_RUNTIME, "status %d: %s", (int)status,
               mk_error_message());
  fuzz_require(status == MK_OK || strlen(mk_error_message()) > 8, "no message but \"%s\"", mk_error_message());
}

bool fuzz_is_utf8(const char *text, size_t length) {
  json_t *string = json_stringn(text, length);
  json_decref(string);
  return string != NULL;
}

enum { EPOCHS = 3, MOST_SMS = 64, MOST_BYTES = 4 << 20, MOST_WORK = 1 << 22 };

/* Multiplications of one epoch, roughly; a program of few bytes can ask for many. */
static uint64_t work(const mk_program *program) {
  uint64_t sum = 0;
  for (size_t i = 0; i < program->instruction_count; i++) {
    const mk_instruction *in = &program->instructions[i];
    const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
    for (uint32_t slot = 0; slot < info->operand_count; slot++) {
      const mk_operand *operand = &in->operands[slot];
      const mk_buffer *buffer = &program->buffers[operand->buffer];
      uint64_t rows = (uint64_t)operand->rows * buffer->tile_rows, cols = (uint64_t)operand->cols * buffer->tile_cols;
      sum += (rows < buffer->rows ? rows : buffer->rows) * (cols < buffer->cols ? cols : buffer->cols);
    }
  }
  return sum;
}

/* What the host promises of its inputs: block tables that name no block twice. false: this program's ranges leave no
 * room for that. */
static bool fill_input(mk_cpu *cpu, const mk_program *program, const mk_instruction *in) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  const mk_operand *table = &in->operands[mk_opcode_reads(info, MK_CONTENT_TABLE)];
  const mk_buffer *buffer = &program->buffers[table->buffer];
  const mk_range range = program->ranges.block;
  uint32_t *words = mk_cpu_memory(cpu, table->buffer);
  for (uint32_t i = 0; i < buffer->bytes / sizeof *words; i++) {
    uint32_t value = range.high - range.low < i ? range.high : range.low + i;
    if (words[i] != 0 && words[i] != value) {
      return false; /* one buffer as both */
    }
    words[i] = value;
  }
  return program->ranges.position.high / program->buffers[in->operands[mk_opcode_cache(info)].buffer].block_tokens <=
         range.high - range.low;
}

/* Weights are numbers that neither vanish nor overflow. */
static bool fill(mk_cpu *cpu, const mk_program *program) {
  for (size_t b = 0; b < program->buffer_count; b++) {
    const mk_buffer *buffer = &program->buffers[b];
    uint16_t *halves = mk_cpu_memory(cpu, b);
    for (uint64_t i = 0; buffer->kind == MK_KIND_WEIGHT && i < buffer->bytes / 2; i++) {
      halves[i] = (uint16_t)(mk_float_param((float)((i * 40503u + b) % 1021) / 4096) >> 16);
    }
  }
  for (size_t i = 0; i < program->instruction_count; i++) {
    const mk_instruction *in = &program->instructions[i];
    if (mk_opcode_cache(mk_opcode_lookup(in->opcode)) >= 0 && !fill_input(cpu, program, in)) {
      return false;
    }
  }
  return true;
}

/* Slot 0 in chunks of two, the others by single tokens, now and then idle. A plan that the host refuses is none of the
 * program's. */
static mk_status run_rows(mk_cpu *cpu, const mk_program *program, uint32_t position) {
  uint32_t rows = mk_program_rows(program), next[MK_PROMPT_ROWS];
  mk_step_row plan[EPOCHS * MK_PROMPT_ROWS] = {{0}};
  mk_plan_buffers buffers;
  if (mk_plan_find(program, &buffers) != MK_OK) {
    return MK_OK;
  }
  const mk_range range = program->ranges.block;
  uint32_t *table = mk_cpu_memory(cpu, buffers.table);
  for (uint32_t i = 0; i < program->buffers[buffers.table].bytes / sizeof *table; i++) {
    table[i] = range.high - range.low < i ? range.high : range.low + i;
  }
  for (uint32_t slot = 0; slot < rows; slot++) {
    next[slot] = position;
  }
  for (uint32_t i = 0; i < EPOCHS * rows; i++) {
    uint32_t step = i / rows, line = i % rows, slot = line < 2 ? 0 : line;
    if ((line > 0 && (line + step) % 3 == 0) || next[slot] > program->ranges.position.high) {
      continue;
    }
    plan[i] = (mk_step_row){.slot = slot,
                            .position = next[slot]++,
                            .token = line == 0 && step > 0 ? MK_TOKEN_CHOSEN : program->ranges.token.low,
                            .flags = MK_ROW_ACTIVE | (line == 2 ? 0 : MK_ROW_CHOOSES)};
  }
  uint32_t steps = buffers.steps < EPOCHS ? buffers.steps : EPOCHS;
  mk_status status = mk_cpu_run_plan(cpu, plan, steps, NULL, NULL);
  return status == MK_ERR_USAGE ? MK_OK : status;
}

/* One step inside the prompt, the others after it. A program without instructions has no plan. */
static mk_status run_sequence(mk_cpu *cpu, const mk_program *program, uint32_t position) {
  mk_step_row plan[EPOCHS];
  mk_plan_buffers buffers;
  if (mk_plan_find(program, &buffers) != MK_OK) {
    return mk_cpu_run(cpu, 1);
  }
  uint32_t left = program->ranges.position.high - position, steps = left < EPOCHS ? left + 1 : EPOCHS;
  const uint32_t given[] = {program->ranges.token.low, program->ranges.token.high};
  steps = steps < buffers.steps ? steps : buffers.steps;
  mk_plan_sequence(plan, steps, position, given, 2, MK_ROW_PROMPT);
  return mk_cpu_run_plan(cpu, plan, steps, NULL, NULL);
}

static void run(const mk_program *program, const mk_cpu_options *options, uint32_t position) {
  mk_cpu *cpu;
  if (mk_cpu_new(program, options, &cpu) != MK_OK) {
    fuzz_fail("an accepted program does not fit: %s", mk_error_message());
  }
  if (mk_program_rows(program) > 1) {
    (void)fill(cpu, program);
    mk_status status = run_rows(cpu, program, position);
    fuzz_require(status == MK_OK, "an accepted program of %u rows failed (seed %llu%s, position %u): %s",
                 mk_program_rows(program), (unsigned long long)options->seed,
                 options->adversarial ? ", adversarial" : "", position, mk_error_message());
  } else if (fill(cpu, program)) {
    mk_status status = run_sequence(cpu, program, position);
    fuzz_require(status == MK_OK, "an accepted program failed (seed %llu%s, position %u): %s",
                 (unsigned long long)options->seed, options->adversarial ? ", adversarial" : "", position,
                 mk_error_message());
  }
  mk_cpu_free(cpu);
}

void fuzz_run_accepted(const mk_program *program) {
  if (program->queue_count > MOST_SMS || program->weight_bytes + program->work_bytes > MOST_BYTES ||
      program->machine.result_slots > 1024 || mk_reference_scratch(program) > MOST_BYTES / 4 ||
      work(program) > MOST_WORK) {
    return;
  }
  static const mk_cpu_options ways[] = {{.check_races = true, .seed = 1},
                                        {.check_races = true, .seed = 2, .adversarial = true},
                                        {.check_races = true, .seed = 3, .adversarial = true},
                                        {.seed = 0}};
  const mk_range *positions = &program->ranges.position;
  for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
    run(program, &ways[i], positions->low);
    run(program, &ways[i], positions->high - (positions->high > positions->low));
  }
}
