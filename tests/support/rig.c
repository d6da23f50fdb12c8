/* See rig.h. Weights are packed here by the table of program.h, not by mk_tile_offset, which is under test. */
#include "tests/support/rig.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/numbers.h"

void test_rig_start(test_rig *rig, mk_opcode opcode, uint64_t seed) {
  *rig = (test_rig){.generation = 7, .publish = 7, .seed = seed};
  mk_machine machine = mk_machine_latency(1);
  cr_assert_eq(mk_program_new(&machine, &rig->program), MK_OK);
  cr_assert_eq(mk_alloc(1, sizeof(mk_instruction), &rig->program->instructions), MK_OK);
  /* One instruction alone: its operands are the only bounds of what the tests ask for. */
  rig->program->ranges.position.high = rig->program->ranges.token.high = MK_CANDIDATE_NONE - 1;
  rig->program->ranges.block.high = MK_CANDIDATE_NONE - 1;
  rig->program->instruction_count = rig->program->instruction_capacity = 1;
  rig->program->queues[0].count = 1;
  rig->instruction = rig->program->instructions;
  rig->state.rows[0].flags = MK_ROW_ACTIVE;
  *rig->instruction = (mk_instruction){.opcode = (uint8_t)opcode, .version = MK_INSTRUCTION_VERSION, .uid = 1};
}

void test_rig_stop(test_rig *rig) {
  for (size_t b = 0; b < RIG_BUFFERS; b++) {
    mk_free(rig->memory[b]);
    mk_free(rig->values[b]);
  }
  mk_program_free(rig->program);
}

uint16_t test_rig_add(test_rig *rig, const mk_buffer *buffer) {
  mk_buffer added = *buffer;
  uint16_t index;
  snprintf(added.name, sizeof added.name, "b%zu", rig->program->buffer_count);
  added.scope = MK_SCOPE_GPU;
  added.proxy = MK_PROXY_GENERIC | MK_PROXY_ASYNC;
  cr_assert_lt(rig->program->buffer_count, RIG_BUFFERS);
  cr_assert_eq(mk_program_add_buffer(rig->program, &added, &index), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_alloc_aligned(64, rig->program->buffers[index].bytes, &rig->memory[index]), MK_OK);
  cr_assert_eq(mk_alloc((size_t)buffer->rows * buffer->cols, sizeof(double), &rig->values[index]), MK_OK);
  return index;
}

uint16_t test_rig_vector(test_rig *rig, mk_dtype dtype, mk_store store, uint32_t rows, uint32_t cols, uint32_t tile) {
  return test_rig_add(rig, &(mk_buffer){.kind = MK_KIND_ACTIVATION,
                                        .dtype = (uint8_t)dtype,
                                        .store = (uint8_t)store,
                                        .rows = rows,
                                        .cols = cols,
                                        .tile_rows = 1,
                                        .tile_cols = tile});
}

uint16_t test_rig_weight(test_rig *rig, uint32_t rows, uint32_t cols) {
  uint16_t index = test_rig_add(rig, &(mk_buffer){.kind = MK_KIND_WEIGHT,
                                                  .dtype = MK_DTYPE_BF16,
                                                  .store = MK_STORE_TILES,
                                                  .rows = rows,
                                                  .cols = cols,
                                                  .tile_rows = MK_TILE,
                                                  .tile_cols = MK_TILE});
  test_rig_fill(rig, index, 1);
  return index;
}

void test_rig_operand(test_rig *rig, uint32_t slot, uint16_t buffer, uint32_t row, uint32_t rows, uint32_t col,
                      uint32_t cols) {
  rig->instruction->operands[slot] = (mk_operand){
      .buffer = buffer, .row = (uint16_t)row, .rows = (uint16_t)rows, .col = (uint16_t)col, .cols = (uint16_t)cols};
}

void test_rig_whole(test_rig *rig, uint32_t slot, uint16_t buffer) {
  const mk_buffer *b = &rig->program->buffers[buffer];
  test_rig_operand(rig, slot, buffer, 0, mk_buffer_grid_rows(b), 0, mk_buffer_grid_cols(b));
}

void test_rig_token_row(test_rig *rig, uint32_t slot, uint16_t weight, uint32_t col, uint32_t cols) {
  test_rig_operand(rig, slot, weight, 0, mk_buffer_grid_rows(&rig->program->buffers[weight]), col, cols);
  rig->instruction->operands[slot].flags = MK_OPERAND_TOKEN_ROW;
}

static size_t row_words(const mk_buffer *b) { return b->dtype == MK_DTYPE_BF16 ? (b->cols + 1) / 2 : b->cols; }

uint64_t *test_rig_word(test_rig *rig, uint16_t buffer, uint32_t row, uint32_t col) {
  const mk_buffer *b = &rig->program->buffers[buffer];
  cr_assert_eq(b->store, MK_STORE_STAMPED);
  uint64_t *words = (uint64_t *)(void *)rig->memory[buffer];
  return words + row * row_words(b) + (b->dtype == MK_DTYPE_BF16 ? col / 2 : col);
}

/* The element of program.h's table: lane 4 g + t holds eight of them. */
static uint16_t *tile_element(const test_rig *rig, uint16_t buffer, uint32_t row, uint32_t col) {
  static const uint8_t rows[8] = {0, 0, 8, 8, 0, 0, 8, 8}, cols[8] = {0, 1, 0, 1, 8, 9, 8, 9};
  size_t step = (size_t)(row / 16) * ((rig->program->buffers[buffer].cols + 15) / 16) + col / 16;
  uint16_t *elements = (uint16_t *)(void *)rig->memory[buffer] + step * 256;
  for (uint32_t lane = 0; lane < 32; lane++) {
    for (uint32_t i = 0; i < 8; i++) {
      if (lane / 4 + rows[i] == row % 16 && lane % 4 * 2 + cols[i] == col % 16) {
        return &elements[lane * 8 + i];
      }
    }
  }
  cr_assert_fail("element %u, %u is in no lane", row, col);
  return NULL;
}

void test_rig_set(test_rig *rig, uint16_t buffer, uint32_t row, uint32_t col, float value) {
  const mk_buffer *b = &rig->program->buffers[buffer];
  uint16_t bits = mk_float_to_bf16(value);
  bool bf16 = b->dtype == MK_DTYPE_BF16;
  rig->values[buffer][(size_t)row * b->cols + col] = bf16 ? (double)mk_bf16_to_float(bits) : (double)value;
  if (b->store == MK_STORE_TILES) {
    *tile_element(rig, buffer, row, col) = bits;
  } else if (b->store == MK_STORE_STAMPED) {
    uint64_t *word = test_rig_word(rig, buffer, row, col);
    uint32_t data = mk_float_param(value), shift = col % 2 * 16;
    if (bf16) {
      data = ((uint32_t)*word & ~(0xffffU << shift)) | (uint32_t)bits << shift;
    }
    *word = (uint64_t)rig->generation << 32 | data;
  } else if (bf16) {
    ((uint16_t *)(void *)rig->memory[buffer])[(size_t)row * b->cols + col] = bits;
  } else {
    ((float *)(void *)rig->memory[buffer])[(size_t)row * b->cols + col] = value;
  }
}

void test_rig_fill(test_rig *rig, uint16_t buffer, float scale) {
  const mk_buffer *b = &rig->program->buffers[buffer];
  for (uint32_t row = 0; row < b->rows; row++) {
    for (uint32_t col = 0; col < b->cols; col++) {
      test_rig_set(rig, buffer, row, col, scale * test_random_float(&rig->seed));
    }
  }
}

double test_rig_value(const test_rig *rig, uint16_t buffer, uint32_t row, uint32_t col) {
  return rig->values[buffer][(size_t)row * rig->program->buffers[buffer].cols + col];
}

double test_rig_read(const test_rig *rig, uint16_t buffer, uint32_t row, uint32_t col) {
  const mk_buffer *b = &rig->program->buffers[buffer];
  if (b->store != MK_STORE_STAMPED) {
    cr_assert_eq(b->dtype, MK_DTYPE_F32);
    return (double)((const float *)(const void *)rig->memory[buffer])[(size_t)row * b->cols + col];
  }
  bool bf16 = b->dtype == MK_DTYPE_BF16;
  const uint64_t *words = (const uint64_t *)(const void *)rig->memory[buffer];
  uint64_t word = words[row * row_words(b) + (bf16 ? col / 2 : col)];
  cr_assert_eq(word >> 32, rig->publish, "buffer %u, row %u, col %u: stamp %u", buffer, row, col,
               (uint32_t)(word >> 32));
  uint32_t data = (uint32_t)word;
  if (bf16) {
    return (double)mk_bf16_to_float((uint16_t)(data >> (col % 2 * 16)));
  }
  return (double)mk_param_float(data);
}

static bool inside(const mk_operand *operand, const mk_buffer *b, uint32_t row, uint32_t col) {
  uint32_t tile_row = row / b->tile_rows, tile_col = col / b->tile_cols;
  return tile_row >= operand->row && tile_row < (uint32_t)operand->row + operand->rows && tile_col >= operand->col &&
         tile_col < (uint32_t)operand->col + operand->cols;
}

static bool may_write(const test_rig *rig, uint16_t buffer, uint32_t row, uint32_t col) {
  const mk_opcode_info *info = mk_opcode_lookup(rig->instruction->opcode);
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand *operand = &rig->instruction->operands[slot];
    if (info->operands[slot].access != MK_ACCESS_READ && operand->buffer == buffer &&
        inside(operand, &rig->program->buffers[buffer], row, col)) {
      return true;
    }
  }
  return false;
}

static uint8_t *snapshot(const test_rig *rig) {
  size_t bytes = 0, at = 0;
  uint8_t *copy;
  for (size_t b = 0; b < rig->program->buffer_count; b++) {
    bytes += rig->program->buffers[b].bytes;
  }
  cr_assert_eq(mk_alloc(bytes, 1, &copy), MK_OK);
  for (size_t b = 0; b < rig->program->buffer_count; b++) {
    memcpy(copy + at, rig->memory[b], rig->program->buffers[b].bytes);
    at += rig->program->buffers[b].bytes;
  }
  return copy;
}

static void expect_only_written(const test_rig *rig, const uint8_t *before, bool nothing) {
  /* NOLINTNEXTLINE(bugprone-too-small-loop-variable): a program has fewer buffers than a number of 16 bits names */
  for (uint16_t index = 0; index < rig->program->buffer_count; index++) {
    const mk_buffer *b = &rig->program->buffers[index];
    size_t unit = b->store == MK_STORE_STAMPED ? 8 : b->dtype == MK_DTYPE_BF16 ? 2 : 4;
    size_t width = b->store == MK_STORE_STAMPED ? row_words(b) : b->cols;
    bool changed = memcmp(before, rig->memory[index], b->bytes) != 0;
    for (size_t i = 0; changed && (nothing || b->store != MK_STORE_BLOCKS) && i < b->bytes / unit; i++) {
      if (memcmp(before + i * unit, rig->memory[index] + i * unit, unit) == 0) {
        continue;
      }
      uint32_t row = (uint32_t)(i / width), col = (uint32_t)(i % width);
      col *= b->store == MK_STORE_STAMPED && b->dtype == MK_DTYPE_BF16 ? 2 : 1;
      cr_assert(!nothing, "the instruction waits, yet it has written to buffer %u, word %zu", index, i);
      cr_assert(b->store != MK_STORE_TILES && may_write(rig, index, row, col),
                "row %u, col %u of buffer %u was written from outside its operand", row, col, index);
    }
    before += b->bytes;
  }
}

mk_reference_result test_rig_run(test_rig *rig) {
  uint8_t *before = snapshot(rig);
  float *scratch;
  size_t floats = mk_reference_scratch(rig->program);
  cr_assert_eq(mk_alloc_aligned(64, floats * sizeof *scratch, &scratch), MK_OK);
  for (size_t i = 0; i < floats; i++) {
    scratch[i] = NAN; /* what an earlier instruction left there must not matter */
  }
  mk_reference reference = {.program = rig->program,
                            .memory = rig->memory,
                            .state = &rig->state,
                            .generation = rig->generation,
                            .publish = rig->publish,
                            .scratch = scratch};
  mk_reference_result result = mk_reference_run(&reference, rig->instruction);
  memcpy(rig->rows_used, reference.rows_used, sizeof rig->rows_used);
  expect_only_written(rig, before, result == MK_REFERENCE_WAIT);
  mk_free(scratch);
  mk_free(before);
  return result;
}

void test_rig_expect_done(test_rig *rig) {
  cr_assert_eq(test_rig_run(rig), MK_REFERENCE_DONE, "the instruction waits");
}

void test_rig_expect_waits(test_rig *rig, uint32_t used) {
  const mk_opcode_info *info = mk_opcode_lookup(rig->instruction->opcode);
  mk_step_state state = rig->state;
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand *operand = &rig->instruction->operands[slot];
    const mk_buffer *b = &rig->program->buffers[operand->buffer];
    if (info->operands[slot].access != MK_ACCESS_READ || b->store != MK_STORE_STAMPED || operand->rows == 0) {
      continue;
    }
    uint32_t rows = slot == 0 && used < operand->rows ? used : operand->rows;
    uint32_t first = operand->col * b->tile_cols, end = (operand->col + operand->cols) * b->tile_cols;
    end = end < b->cols ? end : b->cols;
    const uint32_t picks[][2] = {
        {0, first},
        {rows - 1, end - 1},
        {rows - 1, first + test_random_below(&rig->seed, end - first)},
        {test_random_below(&rig->seed, rows), first + test_random_below(&rig->seed, end - first)}};
    for (size_t i = 0; i < sizeof picks / sizeof picks[0]; i++) {
      uint64_t *word = test_rig_word(rig, operand->buffer, operand->row + picks[i][0], picks[i][1]), good = *word;
      const uint32_t stale[] = {rig->generation - 1, rig->generation + 1, 0, UINT32_MAX};
      *word = (uint64_t)stale[i] << 32 | (uint32_t)good;
      cr_assert_eq(test_rig_run(rig), MK_REFERENCE_WAIT, "slot %u: stamp %u was taken for %u", slot, stale[i],
                   rig->generation);
      cr_assert_eq(memcmp(&state, &rig->state, offsetof(mk_step_state, lines)), 0,
                   "the step state changed while waiting");
      *word = good;
    }
  }
}

double test_rig_product(const test_rig *rig, uint16_t weight, uint32_t row, uint32_t first, uint32_t count,
                        const double *x, const double *gain) {
  double sum = 0;
  for (uint32_t k = 0; k < count; k++) {
    double h = gain == NULL ? x[k] : (double)mk_bf16_to_float(mk_float_to_bf16((float)(x[k] * gain[k])));
    sum += test_rig_value(rig, weight, row, first + k) * h;
  }
  return sum;
}

double test_rig_norm(const double *x, uint32_t width, double eps) {
  double sum = 0;
  for (uint32_t k = 0; k < width; k++) {
    sum += x[k] * x[k];
  }
  return 1 / sqrt(sum / width + eps);
}
