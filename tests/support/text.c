/* See text.h. */
#include "tests/support/text.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/numbers.h"
#include "vm/program/asm.h"

const test_fault test_faults[TEST_FAULTS] = {
#define FAULT(rule, name, words, file, ...) {#rule, #name, words, file, {__VA_ARGS__}},
#include "tests/support/faults.def"
};

char *test_read_file(const char *path) {
  FILE *file = fopen(path, "rb");
  cr_assert_not_null(file, "%s cannot be opened", path);
  cr_assert_eq(fseek(file, 0, SEEK_END), 0);
  size_t length = (size_t)ftell(file);
  rewind(file);
  char *text = calloc(1, length + 1);
  cr_assert_eq(fread(text, 1, length, file), length);
  fclose(file);
  return text;
}

static char *replace(char *text, const test_edit *edit) {
  size_t from = strlen(edit->from), to = strlen(edit->to), count = 0;
  for (const char *at = text; (at = strstr(at, edit->from)) != NULL; at += from) {
    count++;
  }
  cr_assert_gt(count, 0, "`%s` is not in the program", edit->from);
  char *out = calloc(1, strlen(text) + count * to + 1), *end = out;
  const char *rest = text;
  for (const char *at; (at = strstr(rest, edit->from)) != NULL; rest = at + from) {
    memcpy(end, rest, (size_t)(at - rest));
    end += at - rest;
    memcpy(end, edit->to, to);
    end += to;
  }
  strcpy(end, rest);
  free(text);
  return out;
}

mk_program *test_assemble(const char *name, const test_edit *edits) {
  char path[256];
  snprintf(path, sizeof path, "%s/tests/vm/data/%s", MK_SOURCE_DIR, name);
  char *text = test_read_file(path);
  for (; edits != NULL && edits->from != NULL; edits++) {
    text = replace(text, edits);
  }
  mk_program *program;
  cr_assert_eq(mk_assemble(text, strlen(text), &program), MK_OK, "%s", mk_error_message());
  free(text);
  return program;
}

mk_cpu *test_machine(const mk_program *program, const mk_cpu_options *options) {
  uint64_t seed = 11;
  mk_cpu *cpu;
  mk_cpu_options unchecked = *options;
  unchecked.unchecked_plans = true;
  cr_assert_eq(mk_cpu_new(program, &unchecked, &cpu), MK_OK, "%s", mk_error_message());
  for (size_t b = 0; b < program->buffer_count; b++) {
    const mk_buffer *buffer = &program->buffers[b];
    uint16_t *halves = mk_cpu_memory(cpu, b);
    float *floats = mk_cpu_memory(cpu, b);
    bool half = buffer->dtype == MK_DTYPE_BF16;
    for (size_t i = 0; buffer->kind == MK_KIND_WEIGHT && i < buffer->bytes / (half ? 2 : 4); i++) {
      float number = test_random_float(&seed);
      if (half) {
        halves[i] = (uint16_t)(mk_float_param(number) >> 16);
      } else {
        floats[i] = number;
      }
    }
  }
  for (size_t i = 0; i < program->instruction_count; i++) {
    const int slot = mk_opcode_reads(mk_opcode_lookup(program->instructions[i].opcode), MK_CONTENT_TABLE);
    if (slot >= 0) {
      const mk_operand *table = &program->instructions[i].operands[slot];
      uint32_t *entries = mk_cpu_memory(cpu, table->buffer);
      for (uint32_t e = 0; e < program->buffers[table->buffer].cols; e++) {
        entries[e] = e;
      }
    }
  }
  return cpu;
}

mk_status test_run(const mk_program *program, const mk_cpu_options *options, uint32_t position, uint64_t *out) {
  mk_cpu *cpu = test_machine(program, options);
  test_sequence sequence = {.token = 1, .position = position};
  mk_status status = test_sequence_run(&sequence, cpu, 5, NULL, NULL);
  *out = 0;
  for (size_t b = 0; b < program->buffer_count; b++) {
    const uint32_t *words = mk_cpu_memory(cpu, b);
    for (size_t i = 0; program->buffers[b].kind == MK_KIND_OUTPUT && i < program->buffers[b].bytes / 4; i++) {
      *out = *out * 0x9e3779b97f4a7c15u + words[i] + 1;
    }
  }
  mk_cpu_free(cpu);
  return status;
}

uint64_t test_memory_hash(mk_cpu *cpu, const mk_program *program) {
  uint64_t hash = 14695981039346656037u; /* FNV-1a */
  for (size_t b = 0; b < program->buffer_count; b++) {
    const uint8_t *memory = mk_cpu_memory(cpu, b);
    for (uint64_t i = 0; program->buffers[b].kind != MK_KIND_WEIGHT && i < program->buffers[b].bytes; i++) {
      hash = (hash ^ memory[i]) * 1099511628211u;
    }
  }
  return hash;
}
