/* See run_program.h. */
#include "tools/mkvm/run_program.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "instructions/mla.h"
#include "tools/mkvm/command.h"
#include "vm/program/strips.h"
#include "vm/verify/verify.h"

enum { MAX_PRINTED = 16 };

/* A random number from -1 to 1 in steps of 2^-23. xorshift64*, Vigna 2016. */
static float random_number(uint64_t *state) {
  *state ^= *state >> 12;
  *state ^= *state << 25;
  *state ^= *state >> 27;
  return (float)((double)((*state * 0x2545f4914f6cdd1du) >> 40) / (1 << 23) - 1);
}

/* 2^-exponent as a scale. */
static uint32_t scale_bits(uint32_t scale, uint32_t exponent) {
  return scale == MK_SCALE_F16 ? (15 - exponent) << 10 : (127 - exponent) << (scale == MK_SCALE_F32 ? 23 : 7);
}

/* Codes at random, but for those that are no number; one scale, so that weights are about as large as others. */
static void fill_strips(const mk_buffer *b, uint64_t *random, uint8_t *memory) {
  const uint32_t bits = scale_bits(b->scale, b->dtype == MK_DTYPE_E4M3 ? 8 : b->dtype == MK_DTYPE_I8 ? 7 : 3);
  const uint32_t codes = mk_strip_codes(b), scales = mk_strip_scales(b), bytes = mk_strip_bytes(b);
  for (uint64_t first = 0; first < b->bytes; first += bytes) {
    uint8_t *strip = memory + first;
    for (uint32_t i = 0; i < codes; i++) {
      const uint8_t code = (uint8_t)(int)(random_number(random) * 128);
      strip[i] = b->dtype == MK_DTYPE_E4M3 && (code & 0x7f) == 0x7f ? 0 : code;
    }
    for (uint32_t i = 0; i < scales; i += mk_scale_bytes(b->scale)) {
      memcpy(strip + codes + i, &bits, mk_scale_bytes(b->scale)); /* little-endian, as strips are */
    }
    memset(strip + codes + scales, MK_PLAIN_ZERO, bytes - codes - scales);
  }
}

static void fill_weights(const mk_program *program, mk_cpu *cpu) {
  uint64_t random = 1;
  for (size_t b = 0; b < program->buffer_count; b++) {
    const mk_buffer *buffer = &program->buffers[b];
    if (buffer->kind != MK_KIND_WEIGHT) {
      continue;
    }
    if (mk_dtype_is_quantised(buffer->dtype)) {
      fill_strips(buffer, &random, mk_cpu_memory(cpu, b));
      continue;
    }
    bool halves = buffer->dtype == MK_DTYPE_BF16;
    uint16_t *bf16 = mk_cpu_memory(cpu, b);
    float *f32 = mk_cpu_memory(cpu, b);
    for (uint64_t i = 0; i < buffer->bytes / (halves ? sizeof *bf16 : sizeof *f32); i++) {
      float number = random_number(&random);
      if (halves) {
        bf16[i] = (uint16_t)(mk_float_param(number) >> 16);
      } else {
        f32[i] = number;
      }
    }
  }
}

static void print_outputs(const mk_program *program, mk_cpu *cpu) {
  for (size_t b = 0; b < program->buffer_count; b++) {
    const mk_buffer *buffer = &program->buffers[b];
    if (buffer->kind != MK_KIND_OUTPUT || buffer->store != MK_STORE_PLAIN || buffer->dtype == MK_DTYPE_BF16) {
      continue;
    }
    const uint32_t *words = mk_cpu_memory(cpu, b);
    uint64_t count = (uint64_t)buffer->rows * buffer->cols;
    printf("%s:", buffer->name);
    for (uint64_t i = 0; i < count && i < MAX_PRINTED; i++) {
      if (buffer->dtype == MK_DTYPE_F32) {
        printf(" %.4g", (double)mk_param_float(words[i]));
      } else {
        printf(" %u", words[i]);
      }
    }
    printf(count > MAX_PRINTED ? " ... (%" PRIu64 " in all)\n" : "\n", count);
  }
}

/* A sequence in each slot, side by side. */
typedef struct side_by_side {
  const mk_program *program;
  mk_recording *recording;
  const mk_step_row *plan; /* of the launch at hand */
  mk_status status;
  uint32_t rows, slots;
  uint32_t tokens[MK_MOST_ROWS]; /* those of the next step */
} side_by_side;

static bool keep_choices(void *user, uint32_t step, const uint32_t *results) {
  side_by_side *s = user;
  s->status = mk_plan_check_results(s->program, &s->plan[(size_t)step * s->rows], results);
  memcpy(s->tokens, results, s->rows * sizeof *results);
  return s->status == MK_OK;
}

static mk_status run_launch(mk_cpu *cpu, side_by_side *s, uint32_t position, uint32_t steps) {
  const mk_recorded_launch launch = {.program = s->program, .cpu = cpu, .steps = steps};
  mk_step_row *plan;
  bool records;
  MK_TRY(mk_recording_start(s->recording, &launch, &records));
  MK_TRY(mk_alloc((size_t)steps * s->rows, sizeof *plan, &plan));
  for (uint32_t i = 0; i < steps * s->slots; i++) {
    uint32_t slot = i % s->slots, step = i / s->slots;
    plan[(size_t)step * s->rows + slot] = (mk_step_row){.slot = slot,
                                                        .position = position + step,
                                                        .token = step == 0 ? s->tokens[slot] : MK_TOKEN_CHOSEN,
                                                        .flags = MK_ROW_ACTIVE | MK_ROW_CHOOSES};
  }
  s->plan = plan;
  mk_status status = mk_cpu_run_plan(cpu, plan, steps, keep_choices, s);
  s->recording->steps += steps;
  status = mk_recording_stop(s->recording, &launch, records, status);
  mk_free(plan);
  return status != MK_OK ? status : s->status;
}

static mk_status run_rows(const mk_program *program, mk_cpu *cpu, uint64_t *steps, mk_recording *recording) {
  const mk_step_ranges *ranges = &program->ranges;
  mk_plan_buffers buffers;
  side_by_side s = {
      .program = program, .recording = recording, .rows = mk_program_rows(program), .slots = mk_program_slots(program)};
  MK_TRY(mk_plan_find(program, &buffers));
  uint32_t end = ranges->position.high + 1;
  if (buffers.table != MK_NO_PLAN_BUFFER) {
    uint32_t each = (ranges->block.high - ranges->block.low + 1) / s.slots;
    uint32_t *table = mk_cpu_memory(cpu, buffers.table), columns = program->buffers[buffers.table].cols,
             tokens = program->buffers[buffers.kv].block_tokens;
    end = (uint64_t)each * tokens < end ? each * tokens : end;
    for (uint32_t i = 0; i < s.slots * columns; i++) {
      table[i] = ranges->block.low + i / columns * each + i % columns;
    }
  }
  for (uint32_t slot = 0; slot < s.slots; slot++) {
    s.tokens[slot] = ranges->token.low;
  }
  uint64_t room = end > ranges->position.low ? end - ranges->position.low : 0, left = *steps < room ? *steps : room;
  *steps = left;
  for (uint32_t position = ranges->position.low; left != 0;) {
    uint32_t launch = left < buffers.steps ? (uint32_t)left : buffers.steps;
    MK_TRY(run_launch(cpu, &s, position, launch));
    position += launch;
    left -= launch;
  }
  return MK_OK;
}

/* All steps are one launch. */
static mk_status run_listed(const mk_program *program, mk_cpu *cpu, uint64_t steps, mk_recording *recording) {
  const uint32_t recorded = steps < UINT32_MAX ? (uint32_t)steps : UINT32_MAX;
  const mk_recorded_launch launch = {.program = program, .cpu = cpu, .steps = recorded};
  bool records;
  MK_TRY(mk_recording_start(recording, &launch, &records));
  mk_status status = mk_cpu_run(cpu, steps);
  recording->steps += steps;
  return mk_recording_stop(recording, &launch, records, status);
}

static mk_status run(const mk_program *program, uint64_t steps, const mk_cpu_options *options,
                     const mk_trace_option *trace) {
  const mk_step_ranges *ranges = &program->ranges;
  mk_recording recording = {.window = trace->path == NULL ? (mk_trace_window){0} : mk_trace_option_window(trace)};
  mk_cpu *cpu;
  MK_TRY(mk_verify(program, NULL));
  MK_TRY(mk_cpu_new(program, options, &cpu));
  fill_weights(program, cpu);
  mk_status status = mk_program_listed(program) ? run_listed(program, cpu, steps, &recording)
                                                : run_rows(program, cpu, &steps, &recording);
  if (status == MK_OK) {
    printf("%" PRIu64 " steps from position %u\n", steps, ranges->position.low);
    print_outputs(program, cpu);
    status = mk_print_done();
  }
  status = status == MK_OK ? mk_trace_option_end_recording(trace, &recording, program) : status;
  mk_recording_reset(&recording, NULL);
  mk_cpu_free(cpu);
  return status;
}

mk_status mk_run_program(const char *path, uint64_t steps, const mk_cpu_options *options,
                         const mk_trace_option *trace) {
  mk_program *program;
  MK_TRY(mk_program_load(path, &program));
  mk_status status = run(program, steps, options, trace);
  mk_program_free(program);
  return status == MK_OK ? MK_OK : mk_error_prefix(status, "%s", path);
}
