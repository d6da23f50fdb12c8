/* Programs written by hand (tests/vm/data): what the verifier accepts runs here, however unlike a compiled one it is.
 * Step by step its values are compared with the CPU machine's, and launches give the same bits. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "instructions/mla.h"
#include "instructions/sampling.h"
#include "tests/gpu/gpu_test.h"
#include "vm/cpu/machine.h"
#include "vm/gpu/machine.h"
#include "vm/program/asm.h"
#include "vm/verify/verify.h"

#define VALUE_ERROR 1e-2 /* as GOLDEN_ERROR of whole models */

enum { LAUNCHES = 100, MOST_STEPS = 24, QUICK_LAUNCHES = 3, COMPARED_STEPS = 4, MOST_PLACES = 3 };

typedef struct hand {
  const char *name;
  mk_program *program;
  mk_gpu *gpu;
  mk_cpu *cpu;       /* with the same weights and inputs */
  uint8_t **weights; /* by buffer */
  uint32_t rows;
  uint32_t results[MK_PROMPT_ROWS];
  double worst;  /* relative error of a value */
  uint64_t hash; /* of what the host was told in a launch */
} hand;

static void mix(uint64_t *hash, const void *data, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes; i++) {
    *hash = (*hash ^ ((const uint8_t *)data)[i]) * 1099511628211u;
  }
}

static bool told_rows(void *user, uint32_t step, const uint32_t *results) {
  hand *h = user;
  memcpy(h->results, results, h->rows * sizeof *results);
  mix(&h->hash, &step, sizeof step);
  mix(&h->hash, results, h->rows * sizeof *results);
  return true;
}

static float next_weight(uint64_t *seed) {
  *seed = *seed * 6364136223846793005u + 1442695040888963407u;
  return (float)(int32_t)(*seed >> 32) * 0x1p-31f;
}

static mk_status fill_weights(hand *h) {
  uint64_t seed = 11;
  MK_TRY(mk_alloc(h->program->buffer_count, sizeof *h->weights, &h->weights));
  for (size_t b = 0; b < h->program->buffer_count; b++) {
    const mk_buffer *buffer = &h->program->buffers[b];
    bool half = buffer->dtype == MK_DTYPE_BF16;
    if (buffer->kind != MK_KIND_WEIGHT) {
      continue;
    }
    MK_TRY(mk_alloc_aligned(64, buffer->bytes, &h->weights[b]));
    for (uint64_t i = 0; i < buffer->bytes / (half ? 2 : 4); i++) {
      uint32_t bits =
          mk_float_param(0.25f * next_weight(&seed)); /* larger ones make attention a choice between tokens */
      if (half) {
        ((uint16_t *)(void *)h->weights[b])[i] = (uint16_t)(bits >> 16);
      } else {
        ((uint32_t *)(void *)h->weights[b])[i] = bits;
      }
    }
    memcpy(mk_cpu_memory(h->cpu, b), h->weights[b], buffer->bytes);
    MK_TRY(mk_gpu_write(h->gpu, b, 0, h->weights[b], buffer->bytes));
  }
  return MK_OK;
}

static mk_status put_input(const hand *h, size_t buffer, uint64_t offset, const void *data, uint64_t bytes) {
  memcpy((uint8_t *)mk_cpu_memory(h->cpu, buffer) + offset, data, bytes);
  return mk_gpu_write(h->gpu, buffer, offset, data, bytes);
}

/* Block tables name all blocks in turn, slot by slot; draws go by temperature 1 and top-k. */
static mk_status fill_inputs(const hand *h) {
  uint32_t words[MK_SAMPLING_WORDS] = {MK_SAMPLE_DRAWS | MK_SAMPLE_TOP_K, 7};
  words[MK_SAMPLING_TEMPERATURE] = words[MK_SAMPLING_INVERSE_TEMPERATURE] = mk_float_param(1.0f);
  words[MK_SAMPLING_REPETITION] = words[MK_SAMPLING_INVERSE_REPETITION] = mk_float_param(1.0f);
  words[MK_SAMPLING_TOP_K] = 8;
  for (size_t i = 0; i < h->program->instruction_count; i++) {
    const mk_instruction *in = &h->program->instructions[i];
    if (in->opcode == MK_OP_SCORE) {
      MK_TRY(put_input(h, in->operands[MK_SLOT_SCORE_sampling].buffer, 0, words, sizeof words));
    } else if (in->opcode == MK_OP_ATTENTION) {
      size_t table = in->operands[MK_SLOT_ATTENTION_table].buffer;
      for (uint32_t e = 0; e < h->program->buffers[table].rows * h->program->buffers[table].cols; e++) {
        MK_TRY(put_input(h, table, e * sizeof e, &e, sizeof e));
      }
    }
  }
  return MK_OK;
}

/* Places from where several steps are possible: the first one, over the end of a span, the last one. */
static uint32_t places(const hand *h, uint32_t *at) {
  const mk_range *range = &h->program->ranges.position;
  uint32_t count = 0, last = range->high - range->low < MOST_STEPS ? range->low : range->high + 1 - MOST_STEPS;
  at[count++] = range->low;
  if (range->low < 250 && range->high >= 250 + MOST_STEPS) {
    at[count++] = 250;
  }
  at[count++] = last;
  return count;
}

/* Two slots, at different positions; the second one comes later. With one slot: the next tokens of its sequence. */
static void plan_step(const hand *h, uint32_t position, uint32_t step, bool given, mk_step_row *rows) {
  memset(rows, 0, h->rows * sizeof *rows);
  for (uint32_t line = 0; line < h->rows && line < 2; line++) {
    bool lone = mk_program_slots(h->program) == 1;
    uint32_t token = !given && step > line && !lone ? MK_TOKEN_CHOSEN : (step + 3 * line) % 16;
    bool active = line <= step || lone;
    rows[line] = (mk_step_row){.slot = lone ? 0 : line,
                               .position = position + (lone ? 2 * step + line : step - line),
                               .token = token,
                               .flags = active ? MK_ROW_ACTIVE | (lone && line == 0 ? 0 : MK_ROW_CHOOSES) : 0};
  }
}

static mk_status launch(hand *h, uint32_t position, uint32_t steps, uint64_t *out) {
  mk_step_row plan[MK_PROMPT_ROWS * MOST_STEPS];
  h->hash = 14695981039346656037u;
  MK_TRY(mk_gpu_clear(h->gpu));
  for (uint32_t s = 0; h->rows > 1 && s < steps; s++) {
    plan_step(h, position, s, false, plan + (size_t)s * h->rows);
  }
  if (h->rows == 1) {
    mk_plan_sequence(plan, steps, position, &h->program->ranges.token.low, 1, 0);
  }
  MK_TRY(mk_gpu_run_plan(h->gpu, plan, steps, told_rows, h));
  for (size_t b = 0; b < h->program->buffer_count; b++) { /* all that instructions have left */
    const mk_buffer *buffer = &h->program->buffers[b];
    uint8_t *data;
    if (buffer->kind != MK_KIND_ACTIVATION && buffer->kind != MK_KIND_OUTPUT) {
      continue;
    }
    MK_TRY(mk_alloc(buffer->bytes, 1, &data));
    mk_status status = mk_gpu_read(h->gpu, b, 0, data, buffer->bytes);
    mix(&h->hash, data, buffer->bytes);
    mk_free(data);
    MK_TRY(status);
  }
  *out = h->hash;
  return MK_OK;
}

static void repeat(hand *h, uint32_t position, bool quick) {
  const mk_range *range = &h->program->ranges.position;
  uint32_t steps = range->high - position + 1, differing = 0, launches = quick ? QUICK_LAUNCHES : LAUNCHES;
  uint64_t first = 0, again = 0;
  uint32_t most = quick ? COMPARED_STEPS : MOST_STEPS;
  steps = steps > most ? most : steps;
  steps = h->rows > MK_MAX_ROWS ? steps / 2 : steps;
  for (uint32_t i = 0; i < launches; i++) {
    if (launch(h, position, steps, i == 0 ? &first : &again) != MK_OK) {
      expect(false, h->name, mk_error_message());
      return;
    }
    differing += i != 0 && first != again;
  }
  printf("%s: from position %u, %u of %u launches of %u steps differ\n", h->name, position, differing, launches, steps);
  expect(differing == 0, h->name, "after a launch there were other bits");
}

/* Number i of a buffer's words as both machines hold them; false: it has none, or one that is no number of this
 * step. */
static bool number_at(const mk_buffer *b, const uint8_t *data, uint32_t stamp, uint64_t i, double *out) {
  bool half = b->dtype == MK_DTYPE_BF16;
  uint64_t word = 0;
  if (b->store != MK_STORE_STAMPED) {
    *out = (double)mk_param_float(((const uint32_t *)(const void *)data)[i]);
    return true;
  }
  memcpy(&word, data + (half ? i / 2 : i) * sizeof word, sizeof word);
  *out = (double)mk_param_float(half ? (uint32_t)word << (i % 2 == 0 ? 16 : 0) & 0xffff0000u : (uint32_t)word);
  return word >> 32 == stamp;
}

/* |got - want| / |want| over all numbers of a buffer that both machines have written in this step. */
static bool differs(hand *h, size_t buffer, uint8_t *got, double *error) {
  const mk_buffer *b = &h->program->buffers[buffer];
  const uint8_t *want = mk_cpu_memory(h->cpu, buffer);
  uint64_t count = b->bytes / (b->store != MK_STORE_STAMPED ? 4 : b->dtype == MK_DTYPE_BF16 ? 4 : 8);
  double off = 0, size = 0;
  for (uint64_t i = 0; i < count; i++) {
    double x = 0, y = 0;
    bool here = number_at(b, got, mk_gpu_generation(h->gpu), i, &x),
         there = number_at(b, want, mk_cpu_generation(h->cpu), i, &y);
    if (here && there) {
      off += (x - y) * (x - y);
      size += y * y;
    }
  }
  *error = size == 0 ? sqrt(off) : sqrt(off / size);
  return !(*error <= VALUE_ERROR);
}

static void compare_values(hand *h, uint32_t step) {
  for (size_t b = 0; b < h->program->buffer_count; b++) {
    const mk_buffer *buffer = &h->program->buffers[b];
    char text[160];
    uint8_t *got;
    double error = 0;
    bool kept = buffer->kind == MK_KIND_ACTIVATION || buffer->kind == MK_KIND_OUTPUT;
    if (!kept || buffer->dtype == MK_DTYPE_U32 || !expect_ok(mk_alloc(buffer->bytes, 1, &got), h->name)) {
      continue;
    }
    bool off = !expect_ok(mk_gpu_read(h->gpu, b, 0, got, buffer->bytes), h->name) || differs(h, b, got, &error);
    snprintf(text, sizeof text, "step %u: buffer %s is off by %g; %g is allowed", step, buffer->name, error,
             VALUE_ERROR);
    expect(!off, h->name, text);
    h->worst = error > h->worst ? error : h->worst;
    mk_free(got);
  }
}

static bool cpu_token(void *user, uint32_t step, const uint32_t *results) {
  (void)step;
  *(uint32_t *)user = results[0];
  return true;
}

/* Both machines go on from the same token in every step. */
static void compare(hand *h, uint32_t position) {
  uint32_t token = h->program->ranges.token.low, other = 0, high = h->program->ranges.position.high;
  bool ok = expect_ok(mk_gpu_clear(h->gpu), h->name);
  h->worst = 0;
  for (uint32_t s = 0; ok && s < COMPARED_STEPS && position + s <= high; s++) {
    mk_step_row rows[MK_PROMPT_ROWS];
    plan_step(h, position, s, true, rows);
    if (h->rows > 1) {
      ok = expect_ok(mk_gpu_run_plan(h->gpu, rows, 1, told_rows, h), h->name) &&
           expect_ok(mk_cpu_run_plan(h->cpu, rows, 1, NULL, NULL), h->name);
    } else {
      mk_plan_sequence(rows, 1, position + s, &token, 1, 0);
      ok = expect_ok(mk_gpu_run_plan(h->gpu, rows, 1, told_rows, h), h->name) &&
           expect_ok(mk_cpu_run_plan(h->cpu, rows, 1, cpu_token, &other), h->name);
      token = h->results[0];
      expect(!ok || token == other, h->name, "the machines come to different tokens");
    }
    if (ok) {
      compare_values(h, s);
    }
  }
  printf("%s: from position %u, values are off by %.1e at most\n", h->name, position, h->worst);
}

static void close_weights(hand *h) {
  for (size_t b = 0; h->weights != NULL && b < h->program->buffer_count; b++) {
    mk_free(h->weights[b]);
  }
  mk_free(h->weights);
  h->weights = NULL;
  mk_cpu_free(h->cpu);
  h->cpu = NULL;
}

static void run_accepted(hand *h, bool quick) {
  uint32_t at[MOST_PLACES];
  mk_gpu_options options = {.device = device_index(), .deadline_ms = deadline_ms};
  mk_status status = mk_gpu_new(h->program, &options, &h->gpu);
  if (status == MK_ERR_FILE || status == MK_ERR_USAGE) {
    printf("%s: accepted; not for this machine: %s\n", h->name, mk_error_message());
    return;
  }
  for (uint32_t i = places(h, at); expect_ok(status, h->name) && i-- != 0;) {
    status = mk_cpu_new(h->program, &(mk_cpu_options){0},
                        &h->cpu); /* its cache is empty, as the GPU's is once it is cleared */
    if (expect_ok(status, h->name) && expect_ok(fill_weights(h), h->name) && expect_ok(fill_inputs(h), h->name)) {
      compare(h, at[i]);
      repeat(h, at[i], quick);
    }
    close_weights(h);
  }
  mk_gpu_free(h->gpu);
}

void test_program(const char *path, bool quick) {
  const char *slash = strrchr(path, '/');
  hand h = {.name = slash == NULL ? path : slash + 1};
  if (!expect_ok(mk_assemble_file(path, &h.program), h.name)) {
    return;
  }
  h.rows = mk_program_rows(h.program);
  if (mk_verify(h.program, NULL) != MK_OK) {
    printf("%s: rejected, %.3s\n", h.name, mk_error_message());
  } else if (mk_program_listed(h.program)) {
    printf("%s: accepted; programs with a work list have tests of their own\n", h.name);
  } else {
    run_accepted(&h, quick);
  }
  mk_program_free(h.program);
}

/* Three steps. */
static mk_status run_given(hand *h, uint32_t position, const uint32_t *given, uint32_t count) {
  mk_step_row plan[3];
  mk_plan_sequence(plan, 3, position, given, count, 0);
  return mk_gpu_run_plan(h->gpu, plan, 3, told_rows, h);
}

/* The machine defends itself against what a host may write, or memory may come to hold: indices are looked at before
 * they are used. */
void test_indices(const char *path) {
  hand h = {.name = "indices"};
  mk_gpu_options options = {.device = device_index(), .deadline_ms = deadline_ms, .unchecked_plans = true};
  if (!expect_ok(mk_assemble_file(path, &h.program), h.name) ||
      !expect_ok(mk_gpu_new(h.program, &options, &h.gpu), h.name) ||
      !expect_ok(mk_cpu_new(h.program, &(mk_cpu_options){0}, &h.cpu), h.name)) {
    mk_gpu_free(h.gpu);
    mk_program_free(h.program);
    return;
  }
  h.rows = 1;
  bool ok = expect_ok(fill_weights(&h), h.name) && expect_ok(fill_inputs(&h), h.name);
  int table = mk_program_find_buffer(h.program, "table");
  const uint32_t beyond[] = {0, h.program->ranges.token.high + 1}, zeros[2] = {0}, far = 1u << 30, first = 0;
  if (ok && expect(table >= 0, h.name, "the program has no table")) {
    expect(run_given(&h, 0, beyond, 2) == MK_ERR_DEVICE &&
               strstr(mk_error_message(), "came to token 40 of a vocabulary of 40") != NULL,
           h.name, mk_error_message());
    ok = expect_ok(run_given(&h, 0, zeros, 2), h.name) &&
         expect_ok(mk_gpu_write(h.gpu, (size_t)table, 0, &far, 4), h.name);
    expect(ok && run_given(&h, 0, zeros, 1) == MK_ERR_DEVICE &&
               strstr(mk_error_message(), "found block 1073741824 in its table, of a cache of 8") != NULL,
           h.name, mk_error_message());
    expect(ok && run_given(&h, 70, zeros, 1) == MK_ERR_DEVICE, h.name,
           "a block out of range that is read went unnoticed");
    expect_ok(mk_gpu_write(h.gpu, (size_t)table, 0, &first, 4), h.name);
    expect_ok(run_given(&h, 0, zeros, 1), h.name);
  }
  close_weights(&h);
  mk_gpu_free(h.gpu);
  mk_program_free(h.program);
}
