/* Staging and publishing of operands, and dispatch. See reference.h. */
#include "instructions/reference.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "instructions/mla.h"

void mk_step_begin(mk_step_state *state, const mk_program *program, const mk_step_row *first) {
  uint32_t rows = mk_program_rows(program);
  state->step = 0;
  memset(state->choices, 0, mk_program_slots(program) * sizeof *state->choices);
  memset(state->results, 0, rows * sizeof *state->results);
  if (first == NULL) {
    memset(state->rows, 0, rows * sizeof *state->rows);
  } else {
    memcpy(state->rows, first, rows * sizeof *state->rows);
  }
}

/* The active lines that the instruction computes, counted from the first one of their tile. */
static void find_lines(mk_reference *machine) {
  const mk_step_state *state = machine->state;
  const uint32_t rows = mk_program_rows(machine->program),
                 tile = mk_instruction_lines(machine->program, machine->instruction);
  const uint32_t count = tile == MK_ALL_LINES ? rows : mk_line_tile(rows);
  machine->first_line = tile == MK_ALL_LINES ? 0 : tile * count;
  machine->lines = machine->state->lines;
  machine->line_count = 0;
  machine->active_tiles = 0;
  for (uint32_t line = 0; line < rows; line++) {
    machine->active_tiles |= (state->rows[line].flags & MK_ROW_ACTIVE) != 0 ? 1U << line / mk_line_tile(rows) : 0;
  }
  for (uint32_t line = 0; line < count; line++) {
    if ((state->rows[machine->first_line + line].flags & MK_ROW_ACTIVE) != 0) {
      machine->lines[machine->line_count++] = (mk_line){.row = state->rows[machine->first_line + line], .line = line};
    }
  }
}

mk_reference_result mk_reference_fault(mk_reference *machine, const char *format, ...) {
  char what[384];
  va_list arguments;
  if (machine->fault) {
    return MK_REFERENCE_FAULT;
  }
  va_start(arguments, format);
  vsnprintf(what, sizeof what, format, arguments);
  va_end(arguments);
  machine->fault = true;
  (void)mk_error(MK_ERR_DEVICE, "SM %u, instruction %u (%s): %s", machine->sm, machine->instruction->uid,
                 mk_opcode_lookup(machine->instruction->opcode)->name, what);
  return MK_REFERENCE_FAULT;
}

bool mk_check_token(mk_reference *machine, const char *whose, uint32_t token) {
  const mk_range *range = &machine->program->ranges.token;
  if (token < range->low || token > range->high) {
    (void)mk_reference_fault(machine, "%s is token %u; the program declares tokens %u to %u", whose, token, range->low,
                             range->high);
  }
  return !machine->fault;
}

bool mk_check_slot(mk_reference *machine, uint32_t line, uint32_t slot) {
  uint32_t slots = mk_program_slots(machine->program);
  if (slot >= slots) {
    (void)mk_reference_fault(machine, "row %u of the step is of slot %u; the program has %u", line, slot, slots);
  }
  return !machine->fault;
}

/* Checks tokens, positions and slots of the step, for the opcodes that use them. */
static bool check_lines(mk_reference *machine) {
  const mk_range *positions = &machine->program->ranges.position;
  for (uint32_t l = 0; l < machine->line_count; l++) {
    const mk_step_row *row = &machine->lines[l].row;
    if (row->position < positions->low || row->position > positions->high) {
      (void)mk_reference_fault(machine, "the step is at position %u; the program declares positions %u to %u",
                               row->position, positions->low, positions->high);
    }
    if (!mk_check_token(machine, "the step", row->token) ||
        !mk_check_slot(machine, machine->lines[l].line, row->slot)) {
      return false;
    }
  }
  return !machine->fault;
}

/* Checks the rows of a table that tokens choose. */
static bool check_token_row(mk_reference *machine, const mk_span *span) {
  for (uint32_t l = 0; l < machine->line_count; l++) {
    uint32_t token = machine->lines[l].row.token;
    if (token < span->row || token - span->row >= span->rows) {
      (void)mk_reference_fault(machine, "the step is token %u; operand %s has rows %u to %u of buffer %s", token,
                               mk_opcode_lookup(machine->instruction->opcode)->operands[span->slot].name, span->row,
                               span->row + span->rows - 1, span->buffer->name);
      return false;
    }
  }
  return true;
}

/* Checks what the operands name before anything is read of them. Constants are read without a wait: they count as read
 * here. */
static bool check_operands(mk_reference *machine) {
  const mk_opcode_info *info = mk_opcode_lookup(machine->instruction->opcode);
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand_info *operand = &info->operands[slot];
    bool by_token = (operand->store == MK_OPERAND_STORE_INPUT || operand->store == MK_OPERAND_STORE_RESIDUAL) &&
                    machine->program->buffers[machine->instruction->operands[slot].buffer].store == MK_STORE_TILES;
    bool constant = operand->when == MK_WHEN_EARLY && operand->access == MK_ACCESS_READ && machine->written != NULL;
    if (!by_token && !constant) {
      continue;
    }
    mk_span span = mk_operand_span(machine, machine->instruction, slot);
    if (by_token && !check_token_row(machine, &span)) {
      return false;
    }
    for (uint32_t row = 0; constant && row < span.rows; row++) {
      mk_note_read(machine, &span, row, 0, span.cols);
    }
  }
  return !machine->fault;
}

static mk_reference_result compute(mk_reference *machine, const mk_instruction *instruction) {
  switch ((mk_opcode)instruction->opcode) {
#define MK_OPCODE(NAME, text, state, semantics) \
  case MK_OP_##NAME:                            \
    return mk_reference_##NAME(machine, instruction);
#include "vm/program/opcodes.def"
    case MK_OP_NONE:
    case MK_OP_COUNT:
      break;
  }
  return MK_REFERENCE_DONE;
}

mk_reference_result mk_reference_run(mk_reference *machine, const mk_instruction *instruction) {
  machine->instruction = instruction;
  machine->fault = false;
  find_lines(machine);
  bool uses_state =
      mk_program_rows(machine->program) > 1 || mk_opcode_lookup(instruction->opcode)->state != MK_STATE_NONE;
  if ((uses_state && !check_lines(machine)) || !check_operands(machine)) {
    return MK_REFERENCE_FAULT;
  }
  for (uint32_t slot = 0; slot < MK_MAX_OPERANDS; slot++) {
    machine->rows_used[slot] = instruction->operands[slot].rows;
  }
  if (machine->line_count == 0 && mk_program_rows(machine->program) > 1) { /* no line of its tile is active */
    memset(machine->parts_used, 0, sizeof machine->parts_used);
    return MK_REFERENCE_DONE;
  }
  mk_reference_result result = compute(machine, instruction);
  return machine->fault ? MK_REFERENCE_FAULT : result;
}

/* How many elements `count` tiles from tile `first` on have, as far as the buffer goes. */
static uint32_t extent(uint32_t first, uint32_t count, uint32_t tile, uint32_t size) {
  uint64_t begin = (uint64_t)first * tile, end = begin + (uint64_t)count * tile;
  end = end < size ? end : size;
  return end > begin ? (uint32_t)(end - begin) : 0;
}

size_t mk_reference_scratch(const mk_program *program) {
  size_t most = 0, lines = mk_program_rows(program);
  for (size_t i = 0; i < program->instruction_count; i++) {
    const mk_instruction *instruction = &program->instructions[i];
    bool listed = mk_instruction_listed(instruction);      /* takes its operands piece by piece */
    size_t need = listed ? (size_t)MK_MLA_SCRATCH : lines; /* scales */
    for (uint32_t slot = 0; !listed && slot < MK_MAX_OPERANDS; slot++) {
      const mk_operand *operand = &instruction->operands[slot];
      const mk_buffer *buffer = &program->buffers[operand->buffer];
      if (buffer->store == MK_STORE_TILES && (operand->flags & MK_OPERAND_TOKEN_ROW) == 0) {
        need += lines * ((size_t)operand->rows * MK_TILE + (size_t)operand->cols * MK_TILE * 4 + 32); /* y, x */
      } else if (buffer->store == MK_STORE_BLOCKS) {
        const mk_operand *heads = &instruction->operands[0]; /* q, or k */
        uint32_t cols = heads->cols * program->buffers[heads->buffer].tile_cols;
        need += mk_attention_scratch(buffer, cols / buffer->head_dim);
      } else {
        bool by_token = (operand->flags & MK_OPERAND_TOKEN_ROW) != 0;
        size_t rows = by_token ? lines : extent(operand->row, operand->rows, buffer->tile_rows, buffer->rows);
        need += rows * extent(operand->col, operand->cols, buffer->tile_cols, buffer->cols) * 2 + 16;
      }
    }
    most = need > most ? need : most;
  }
  return most;
}

uint16_t mk_float_to_half(float value) {
  uint32_t bits = mk_float_param(value), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
  if (size > 0x7f800000u) {
    return (uint16_t)(sign | 0x7e00u);
  }
  if (size >= 0x477ff000u) { /* rounds to 2^16 or more */
    return (uint16_t)(sign | 0x7c00u);
  }
  if (size < 0x38800000u) { /* subnormal: adding 2^-1 rounds to multiples of 2^-24 */
    return (uint16_t)(sign | (mk_float_param(mk_param_float(size) + 0.5f) - 0x3f000000u));
  }
  return (uint16_t)(sign | (size - 0x38000000u + 0xfffu + (size >> 13 & 1)) >> 13);
}

float mk_half_to_float(uint16_t bits) {
  uint32_t sign = (uint32_t)(bits & 0x8000u) << 16, size = bits & 0x7fffu;
  if (size >= 0x7c00u) {
    return mk_param_float(sign | 0x7f800000u | (size & 0x3ffu) << 13);
  }
  float value = mk_param_float(size << 13) * 0x1p112f;
  return sign != 0 ? -value : value;
}

uint16_t mk_float_to_bf16(float value) {
  uint32_t bits = mk_float_param(value);
  if (isnan(value)) {
    return (uint16_t)(bits >> 16 | 0x40);
  }
  return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

mk_span mk_operand_span(const mk_reference *machine, const mk_instruction *instruction, uint32_t slot) {
  const mk_operand *operand = &instruction->operands[slot];
  const mk_buffer *buffer = &machine->program->buffers[operand->buffer];
  mk_span span = {.buffer = buffer,
                  .memory = machine->memory[operand->buffer],
                  .row = operand->row * buffer->tile_rows,
                  .col = operand->col * buffer->tile_cols,
                  .slot = slot};
  span.rows = extent(operand->row, operand->rows, buffer->tile_rows, buffer->rows);
  span.cols = extent(operand->col, operand->cols, buffer->tile_cols, buffer->cols);
  return span;
}

void mk_note_read(mk_reference *machine, const mk_span *span, uint32_t row, uint32_t first, uint32_t count) {
  if (machine->written == NULL) {
    return;
  }
  mk_written_place place = {span->buffer, span->row + row, span->col + first, count, machine->rank};
  mk_written_gap gap;
  if (mk_written_check(machine->written, place, machine->generation, &gap)) {
    return;
  }
  char when[80] = "nobody has ever written";
  if (gap.written != 0) {
    snprintf(when, sizeof when, "was written in generation %u, not in this one, %u", gap.written, machine->generation);
  }
  (void)mk_reference_fault(machine, "operand %s reads element (%u, %u) of buffer %s, which %s",
                           mk_opcode_lookup(machine->instruction->opcode)->operands[span->slot].name, place.row,
                           gap.col, span->buffer->name, when);
}

void mk_note_write(const mk_reference *machine, const mk_span *span, uint32_t row, uint32_t first, uint32_t count) {
  if (machine->written != NULL) {
    mk_written_note(machine->written,
                    (mk_written_place){span->buffer, span->row + row, span->col + first, count, machine->rank},
                    machine->generation);
  }
}

/* For a PLAIN buffer: another writer's elements are there when the instruction's waits are over. */
static void load_row(mk_reference *machine, const mk_span *span, uint32_t row, float *to) {
  const size_t at = (size_t)(span->row + row) * span->buffer->cols + span->col;
  mk_note_read(machine, span, row, 0, span->cols);
  if (span->buffer->dtype != MK_DTYPE_BF16) {
    memcpy(to, (const float *)(const void *)span->memory + at, span->cols * sizeof *to);
    return;
  }
  for (uint32_t i = 0; i < span->cols; i++) {
    to[i] = mk_bf16_to_float(((const uint16_t *)(const void *)span->memory)[at + i]);
  }
}

/* How many words one row of a STAMPED buffer has. */
static size_t stamped_row_words(const mk_buffer *buffer) {
  return buffer->dtype == MK_DTYPE_BF16 ? (buffer->cols + 1u) / 2 : buffer->cols;
}

static bool stage_row(mk_reference *machine, const mk_span *span, uint32_t row, float *to) {
  if (span->buffer->store == MK_STORE_PLAIN) {
    load_row(machine, span, row, to);
    return true;
  }
  bool pairs = span->buffer->dtype == MK_DTYPE_BF16;
  const uint64_t *words =
      (const uint64_t *)(const void *)span->memory + (span->row + row) * stamped_row_words(span->buffer);
  uint32_t count = pairs ? span->cols / 2 : span->cols, late = 0;
  words += pairs ? span->col / 2 : span->col;
  for (uint32_t i = 0; i < count; i++) {
    uint64_t word = mk_word_load(&words[i]);
    uint32_t data = (uint32_t)word;
    late |= (uint32_t)(word >> 32) ^ machine->generation;
    if (pairs) {
      to[(size_t)2 * i] = mk_param_float(data << 16);
      to[2 * i + 1] = mk_param_float(data & 0xffff0000u);
    } else {
      to[i] = mk_param_float(data);
    }
  }
  if (late == 0) {
    mk_note_read(machine, span, row, 0, span->cols);
  }
  return late == 0;
}

bool mk_stage_rows(mk_reference *machine, const mk_span *span, uint32_t rows, float *out) {
  for (uint32_t r = 0; r < rows; r++) {
    if (!stage_row(machine, span, r, out + (size_t)r * span->cols)) {
      return false;
    }
  }
  return true;
}

bool mk_stage_line(mk_reference *machine, const mk_span *span, uint32_t line, float *out) {
  uint32_t lines = span->buffer->tile_rows; /* of a vector: all lie in a tile */
  for (uint32_t tile = 0; tile < span->rows / lines; tile++) {
    if (!stage_row(machine, span, tile * lines + line, out + (size_t)tile * span->cols)) {
      return false;
    }
  }
  return true;
}

bool mk_stage_lines(mk_reference *machine, const mk_span *span, uint32_t tile, float *out, size_t stride) {
  for (uint32_t i = 0; i < machine->line_count; i++) {
    if (!stage_row(machine, span, tile * span->buffer->tile_rows + machine->lines[i].line, out + i * stride)) {
      return false;
    }
  }
  return true;
}

bool mk_stage_vector(mk_reference *machine, const mk_instruction *instruction, uint32_t slot, float *out,
                     size_t stride) {
  mk_span span = mk_operand_span(machine, instruction, slot);
  if (span.buffer->store != MK_STORE_TILES) {
    return mk_stage_lines(machine, &span, 0, out, stride);
  }
  const uint16_t *tiles = (const uint16_t *)(const void *)span.memory;
  const uint32_t grid_cols = mk_buffer_grid_cols(span.buffer);
  for (uint32_t l = 0; l < machine->line_count; l++, out += stride) {
    for (uint32_t i = 0; i < span.cols; i++) {
      out[i] = mk_bf16_to_float(tiles[mk_tile_offset(grid_cols, machine->lines[l].row.token, span.col + i)]);
    }
  }
  return true;
}

bool mk_stage_sums(mk_reference *machine, const mk_span *parts, uint32_t count, float *sums) {
  const size_t part = (size_t)machine->line_count * parts->cols;
  for (uint32_t p = 0; p < count; p++) {
    if (!mk_stage_lines(machine, parts, p, sums + p * part, parts->cols)) {
      return false;
    }
  }
  for (size_t i = 0; i < (count - 1) * part; i++) {
    sums[i % part] += sums[part + i];
  }
  return true;
}

/* Words of a row of one copy of the buffer. */
static void put_words(const mk_reference *machine, const mk_span *span, uint32_t row, uint32_t first, uint32_t count,
                      const uint32_t *values) {
  mk_note_write(machine, span, row, first, count);
  if (span->buffer->store == MK_STORE_STAMPED) {
    uint64_t *words = (uint64_t *)(void *)span->memory + (span->row + row) * stamped_row_words(span->buffer);
    for (uint32_t i = 0; i < count; i++) {
      mk_word_store(&words[span->col + first + i], machine->publish, values[i]);
    }
    return;
  }
  uint32_t *words = (uint32_t *)(void *)span->memory + (size_t)(span->row + row) * span->buffer->cols;
  memcpy(words + span->col + first, values, count * sizeof *values);
}

static void put_halves(const mk_reference *machine, const mk_span *span, uint32_t row, uint32_t first, uint32_t count,
                       const float *values) {
  if (span->buffer->store == MK_STORE_PLAIN) {
    uint16_t *to = (uint16_t *)(void *)span->memory + (size_t)(span->row + row) * span->buffer->cols + span->col;
    mk_note_write(machine, span, row, first, count);
    for (uint32_t i = 0; i < count; i++) {
      to[first + i] = mk_float_to_bf16(values[i]);
    }
    return;
  }
  uint64_t *words = (uint64_t *)(void *)span->memory + (span->row + row) * stamped_row_words(span->buffer);
  words += (span->col + first) / 2;
  mk_note_write(machine, span, row, first, count / 2 * 2); /* an odd last one would have no word */
  for (uint32_t i = 0; i + 1 < count; i += 2) {
    uint32_t data = mk_float_to_bf16(values[i]) | (uint32_t)mk_float_to_bf16(values[i + 1]) << 16;
    mk_word_store(&words[i / 2], machine->publish, data);
  }
}

/* The ranks whose copies this write goes to, beside the machine's own. */
static uint64_t others(const mk_reference *machine, const mk_span *span) {
  const mk_copies *copies = machine->copies;
  if (copies == NULL || (copies->plain_later && span->buffer->store == MK_STORE_PLAIN)) {
    return 0;
  }
  return copies->readers[span->slot] & ~(UINT64_C(1) << machine->rank);
}

/* The same span on another rank, for which `as` stands there. */
static mk_span span_on(const mk_reference *machine, const mk_span *span, uint32_t rank, mk_reference *as) {
  mk_span on = *span;
  *as = *machine;
  as->rank = rank;
  on.memory = machine->copies
                  ->memory[rank * machine->program->buffer_count + (size_t)(span->buffer - machine->program->buffers)];
  return on;
}

void mk_publish_words(const mk_reference *machine, const mk_span *span, uint32_t row, uint32_t first, uint32_t count,
                      const uint32_t *values) {
  put_words(machine, span, row, first, count, values);
  for (uint64_t ranks = others(machine, span); ranks != 0; ranks &= ranks - 1) {
    mk_reference as;
    const mk_span on = span_on(machine, span, (uint32_t)__builtin_ctzll(ranks), &as);
    put_words(&as, &on, row, first, count, values);
  }
}

void mk_publish_floats(const mk_reference *machine, const mk_span *span, uint32_t row, uint32_t first, uint32_t count,
                       const float *values) {
  if (span->buffer->dtype != MK_DTYPE_BF16) {
    const uint32_t *bits = (const uint32_t *)(const void *)values;
    mk_publish_words(machine, span, row, first, count, bits);
    return;
  }
  put_halves(machine, span, row, first, count, values);
  for (uint64_t ranks = others(machine, span); ranks != 0; ranks &= ranks - 1) {
    mk_reference as;
    const mk_span on = span_on(machine, span, (uint32_t)__builtin_ctzll(ranks), &as);
    put_halves(&as, &on, row, first, count, values);
  }
}

/* The sum of the squares of a chain of x, of which `cols` columns are left; those beyond the last count as zero. The
 * order is that of a GPU's warp, whose lane t of four holds pairs t and t + 4 of a step. */
float mk_chain_squares(const float *x, uint32_t cols) {
  enum { PAIRS = MK_TILE / 2, STEPS = MK_CHAIN_COLS / MK_TILE };
  float squares[MK_CHAIN_COLS] = {0}, e[STEPS][PAIRS], f[PAIRS / 2];
  for (uint32_t i = 0; i < MK_CHAIN_COLS && i < cols; i++) {
    squares[i] = x[i] * x[i];
  }
  for (size_t i = 0; i < (size_t)STEPS * PAIRS; i++) {
    e[i / PAIRS][i % PAIRS] = squares[2 * i] + squares[2 * i + 1];
  }
  for (uint32_t half = 1; half < STEPS; half *= 2) { /* ((e0 + e1) + (e2 + e3)) + ((e4 + e5) + (e6 + e7)) */
    for (uint32_t i = 0; i < STEPS; i += 2 * half) {
      for (uint32_t k = 0; k < PAIRS; k++) {
        e[i][k] += e[i + half][k];
      }
    }
  }
  for (uint32_t t = 0; t < PAIRS / 2; t++) {
    f[t] = e[0][t] + e[0][t + PAIRS / 2];
  }
  return (f[0] + f[2]) + (f[1] + f[3]);
}

/* By eights as a tree, and the eights one after the other. */
float mk_sum_chain_squares(const float *chains, uint32_t count) {
  enum { CHAINS = 8 };
  float sum = 0;
  for (uint32_t first = 0; first < count; first += CHAINS) {
    float q[CHAINS] = {0};
    for (uint32_t i = 0; i < CHAINS && first + i < count; i++) {
      q[i] = chains[first + i];
    }
    sum += ((q[0] + q[1]) + (q[2] + q[3])) + ((q[4] + q[5]) + (q[6] + q[7]));
  }
  return sum;
}

float mk_sum_squares(const float *x, uint32_t cols) {
  enum { CHAINS = 8 };
  float sum = 0, q[CHAINS];
  for (uint32_t at = 0; at < cols;) {
    uint32_t count = 0;
    for (; count < CHAINS && at < cols; count++, at += MK_CHAIN_COLS) {
      q[count] = mk_chain_squares(x + at, cols - at);
    }
    sum += mk_sum_chain_squares(q, count);
  }
  return sum;
}

float mk_sum_tile_squares(const float *tiles, uint32_t count) {
  enum { EIGHT = 8 };
  float sum = 0, squares[EIGHT];
  for (uint32_t first = 0; first < count; first += EIGHT) {
    uint32_t here = 0;
    for (; here < EIGHT && first + here < count; here++) {
      squares[here] = tiles[(size_t)(first + here) * MK_SQUARED_TILE + MK_TILE];
    }
    sum += mk_sum_chain_squares(squares, here);
  }
  return sum;
}

void mk_scale_by_gain(float *x, uint32_t cols, uint32_t padded, const uint16_t *gain, uint32_t gains, float plus) {
  for (uint32_t i = 0; i < padded; i++) {
    x[i] = i < cols && i < gains ? mk_bf16_to_float(mk_float_to_bf16(x[i] * (plus + mk_bf16_to_float(gain[i])))) : 0;
  }
}

static float scale_of(float sum, float eps, uint32_t width) { return 1.0f / sqrtf(sum * (1.0f / (float)width) + eps); }

bool mk_stage_normed(mk_reference *machine, const mk_instruction *instruction, const mk_norm *norm, float *out,
                     float *scales) {
  mk_span x = mk_operand_span(machine, instruction, norm->x);
  mk_span gain = mk_operand_span(machine, instruction, norm->gain);
  mk_span squares = mk_operand_span(machine, instruction, norm->squares);
  const uint32_t padded = (x.cols + 15) / 16 * 16, width = instruction->params[norm->width];
  const float eps = mk_param_float(instruction->params[norm->eps]);
  float *chains = out + (size_t)machine->line_count * padded; /* scratch that is not in use yet */
  if (!mk_stage_vector(machine, instruction, norm->x, out, padded) ||
      (squares.rows != 0 && !mk_stage_lines(machine, &squares, 0, chains, squares.cols))) {
    return false;
  }
  for (uint32_t l = 0; l < machine->line_count; l++, chains += squares.cols) {
    float *line = out + (size_t)l * padded;
    scales[l] = 1;
    if (squares.rows != 0) {
      scales[l] = scale_of(mk_sum_chain_squares(chains, squares.cols), eps, width);
    } else if (gain.rows != 0) { /* which may go on with biases */
      scales[l] = scale_of(mk_sum_squares(line, x.cols), eps, width);
      mk_scale_by_gain(line, x.cols, padded, (const uint16_t *)(const void *)gain.memory + gain.col,
                       width < gain.cols ? width : gain.cols, mk_param_float(instruction->params[norm->plus]));
    }
    if (gain.rows == 0 || squares.rows != 0) { /* x is to be multiplied as it is */
      memset(line + x.cols, 0, (padded - x.cols) * sizeof *line);
    }
  }
  return true;
}

float *mk_normed_product(mk_reference *machine, const mk_instruction *instruction, const mk_norm *norm,
                         const mk_span *weight, float *scales) {
  uint32_t padded = (weight->cols + 15) / 16 * 16, lines = machine->line_count;
  float *x = machine->scratch, *expanded = x + (size_t)lines * padded,
        *y = expanded + (size_t)lines * MK_MATVEC_SCRATCH(padded);
  if (!mk_stage_normed(machine, instruction, norm, x, scales)) {
    return NULL;
  }
  mk_matvec(weight, lines, x, expanded, y);
  return y;
}

void mk_residual_epilogue(mk_reference *machine, const mk_instruction *instruction, uint32_t residual_in,
                          uint32_t residual_out, uint32_t out, float *y, size_t stride, float *scratch) {
  mk_span to = mk_operand_span(machine, instruction, residual_out);
  mk_span broadcast = mk_operand_span(machine, instruction, out);
  /* An embedding row ends before the padding does. */
  memset(scratch, 0, (size_t)machine->line_count * to.cols * sizeof *scratch);
  (void)mk_stage_vector(machine, instruction, residual_in, scratch, to.cols);
  for (uint32_t l = 0; l < machine->line_count; l++, y += stride, scratch += to.cols) {
    for (uint32_t i = 0; i < to.cols; i++) {
      y[i] = scratch[i] + y[i];
    }
    mk_publish_floats(machine, &to, machine->lines[l].line, 0, to.cols, y);
    mk_publish_floats(machine, &broadcast, machine->lines[l].line, 0, broadcast.cols, y);
  }
}
