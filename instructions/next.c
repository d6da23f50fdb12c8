/* NEXT: the token boundary. Every SM merges the candidates of all SMs [sms][rows][2] in order, for each row that
 * chooses, and takes the rows of the next step from the plan [steps][rows] (vm/program/plan.h), with what was chosen
 * where a token is left open. The SM with a `ring` operand [steps][rows] hands the choices to the host. */
#include <math.h>
#include <string.h>

#include "instructions/reference.h"

/* The best of the candidates of one line, `stride` pairs apart. */
static uint32_t merge(const float *pairs, uint32_t count, size_t stride, bool *is_nan) {
  float best = -INFINITY;
  uint32_t token = MK_CANDIDATE_NONE;
  for (uint32_t i = 0; i < count; i++) {
    float value = pairs[2 * stride * i];
    uint32_t index = mk_float_param(pairs[2 * stride * i + 1]) & MK_CANDIDATE_NONE;
    bool above = isnan(value) ? !isnan(best) : value > best;
    bool equal = isnan(value) ? isnan(best) : value == best;
    if (above || (equal && index < token)) {
      best = value;
      token = index;
    }
  }
  *is_nan = isnan(best);
  return token;
}

/* Checks place `at` of a buffer that is indexed by position or step. */
static bool check_place(mk_reference *machine, const mk_span *span, const char *name, uint64_t at) {
  if (at >= span->buffer->cols) {
    (void)mk_reference_fault(machine, "%s: place %llu of buffer %s, which has %u", name, (unsigned long long)at,
                             span->buffer->name, span->buffer->cols);
  }
  return !machine->fault;
}

mk_reference_result mk_reference_NEXT(mk_reference *machine, const mk_instruction *instruction) {
  mk_span candidates = mk_operand_span(machine, instruction, MK_SLOT_NEXT_candidates);
  mk_span plan = mk_operand_span(machine, instruction, MK_SLOT_NEXT_plan);
  mk_span ring = mk_operand_span(machine, instruction, MK_SLOT_NEXT_ring);
  mk_step_state *state = machine->state;
  uint32_t rows = mk_program_rows(machine->program), units = candidates.rows / rows, lines = machine->line_count;
  float *staged = machine->scratch;
  for (uint32_t u = 0; u < units; u++) {
    uint32_t tile = u * (rows / candidates.buffer->tile_rows);
    if (!mk_stage_lines(machine, &candidates, tile, staged + (size_t)u * lines * 2, 2)) {
      return MK_REFERENCE_WAIT;
    }
  }
  for (uint32_t line = 0; line < rows; line++) {
    state->results[line] = MK_CANDIDATE_NONE;
  }
  for (uint32_t l = 0; l < lines; l++) {
    const mk_line *line = &machine->lines[l];
    bool is_nan;
    if ((line->row.flags & MK_ROW_CHOOSES) != 0) {
      uint32_t token = merge(staged + (size_t)2 * l, units, lines, &is_nan);
      if (!mk_check_token(machine, "the best candidate", token)) {
        return MK_REFERENCE_FAULT;
      }
      state->choices[line->row.slot] = token;
      state->results[line->line] = token | (is_nan ? MK_RESULT_NAN : 0);
    }
  }
  if (ring.cols != 0) {
    if (!check_place(machine, &ring, "ring", (uint64_t)state->step * rows + rows - 1)) {
      return MK_REFERENCE_FAULT;
    }
    memcpy((uint32_t *)(void *)ring.memory + (size_t)state->step * rows, state->results, rows * sizeof(uint32_t));
    mk_note_write(machine, &ring, 0, state->step * rows, rows);
  }
  uint32_t step = ++state->step, steps = plan.cols / (rows * MK_ROW_WORDS);
  memset(state->rows, 0, sizeof state->rows); /* idle: the step after the last one that a plan can hold */
  if (step < steps) {
    const mk_step_row *next = (const mk_step_row *)(const void *)plan.memory + (size_t)step * rows;
    memcpy(state->rows, next, rows * sizeof *next);
  }
  for (uint32_t line = 0; line < rows; line++) {
    mk_step_row *row = &state->rows[line];
    bool chosen = (row->flags & MK_ROW_ACTIVE) != 0 && row->token == MK_TOKEN_CHOSEN;
    if (chosen && !mk_check_slot(machine, line, row->slot)) {
      return MK_REFERENCE_FAULT;
    }
    row->token = chosen ? state->choices[row->slot] : row->token;
  }
  return MK_REFERENCE_DONE;
}
