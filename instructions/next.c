/* NEXT: the token boundary. Every SM merges the candidates of all SMs [sms, 2] in row order, takes the prompt's token
 * instead while the prompt lasts, and moves its own step state on. The SM with a `ring` operand hands the token to the host.
 * With several rows, candidates are [sms][rows][2], `prompt` is the plan [steps][rows] (vm/program/plan.h), and the ring [steps][rows]. */
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

/* Place `at` of a buffer that is indexed by position or step. */
static bool check_place(mk_reference *machine, const mk_span *span, const char *name, uint64_t at) {
  if (at >= span->buffer->cols) {
    (void)mk_reference_fault(machine, "%s: place %llu of buffer %s, which has %u", name, (unsigned long long)at,
                             span->buffer->name, span->buffer->cols);
  }
  return !machine->fault;
}

/* Several rows: each row that chooses does; the plan says what the rows of the next step are. */
static mk_reference_result next_rows(mk_reference *machine, const mk_span *candidates, const mk_span *plan,
                                     const mk_span *ring) {
  mk_step_state *state = machine->state;
  uint32_t rows = mk_program_rows(machine->program), units = candidates->rows / rows, lines = machine->line_count;
  float *staged = machine->scratch;
  for (uint32_t u = 0; u < units; u++) {
    if (!mk_stage_lines(machine, candidates, u, staged + (size_t)u * lines * 2, 2)) {
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
  if (ring->cols != 0) {
    if (!check_place(machine, ring, "ring", (uint64_t)state->step * rows + rows - 1)) {
      return MK_REFERENCE_FAULT;
    }
    memcpy((uint32_t *)(void *)ring->memory + (size_t)state->step * rows, state->results, rows * sizeof(uint32_t));
    mk_note_write(machine, ring, 0, state->step * rows, rows);
  }
  uint32_t step = ++state->step, steps = plan->cols / (rows * MK_ROW_WORDS);
  memset(state->rows, 0, sizeof state->rows); /* idle: behind the last step that a plan can hold */
  if (step < steps) {
    const mk_step_row *next = (const mk_step_row *)(const void *)plan->memory + (size_t)step * rows;
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

mk_reference_result mk_reference_NEXT(mk_reference *machine, const mk_instruction *instruction) {
  mk_span candidates = mk_operand_span(machine, instruction, MK_SLOT_NEXT_candidates);
  mk_span prompt = mk_operand_span(machine, instruction, MK_SLOT_NEXT_prompt);
  mk_span ring = mk_operand_span(machine, instruction, MK_SLOT_NEXT_ring);
  if (mk_program_rows(machine->program) > 1) {
    return next_rows(machine, &candidates, &prompt, &ring);
  }
  float *staged = machine->scratch;
  if (!mk_stage_stamped(machine, &candidates, candidates.rows, staged)) {
    return MK_REFERENCE_WAIT;
  }
  bool is_nan;
  uint32_t token = merge(staged, candidates.rows, 1, &is_nan);
  mk_step_state *state = machine->state;
  uint32_t position = state->position + 1;
  bool given = position < state->prompt_length;
  if ((given && !check_place(machine, &prompt, "prompt", position)) ||
      (ring.cols != 0 && !check_place(machine, &ring, "ring", position))) {
    return MK_REFERENCE_FAULT;
  }
  token = given ? ((const uint32_t *)(const void *)prompt.memory)[position] : token;
  if (!mk_check_token(machine, given ? "the prompt" : "the best candidate", token)) {
    return MK_REFERENCE_FAULT;
  }
  state->nan_logits |= !given && is_nan;
  state->position = position;
  state->token = token;
  if (ring.cols != 0) {
    ((uint32_t *)(void *)ring.memory)[position] = token;
    mk_note_write(machine, &ring, 0, position, 1);
  }
  return MK_REFERENCE_DONE;
}
