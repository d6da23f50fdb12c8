/* HEAD: logits = W norm(x), and this SM's candidate for the next token: {bits of the value, index}.
 * x, gain [width], weight [16 n, width] (n may be 0), logits [16 n], candidate [2]. NaN ranks above all numbers, so
 * that it is seen. Where a row does not choose, only an empty candidate (-inf, MK_CANDIDATE_NONE) is written. */
#include <math.h>
#include <string.h>

#include "instructions/reference.h"

static bool ranks_above(float a, float b) { return isnan(a) ? !isnan(b) : a > b; }

/* Scales the logits in place, publishes them, and gives their candidate. */
static void finish(const mk_reference *machine, const mk_span *logits, uint32_t line, float scale, float *y,
                   uint32_t words[2]) {
  float best = -INFINITY;
  uint32_t index = MK_CANDIDATE_NONE;
  for (uint32_t i = 0; i < logits->cols; i++) {
    y[i] *= scale;
    if (index == MK_CANDIDATE_NONE || ranks_above(y[i], best)) {
      best = y[i];
      index = logits->col + i;
    }
  }
  mk_publish_floats(machine, logits, line, 0, logits->cols, y);
  words[0] = mk_float_param(best);
  words[1] = index;
}

mk_reference_result mk_reference_HEAD(mk_reference *machine, const mk_instruction *instruction) {
  mk_span weight = mk_operand_span(machine, instruction, MK_SLOT_HEAD_weight);
  mk_span logits = mk_operand_span(machine, instruction, MK_SLOT_HEAD_logits);
  mk_span candidate = mk_operand_span(machine, instruction, MK_SLOT_HEAD_candidate);
  mk_span x_span = mk_operand_span(machine, instruction, MK_SLOT_HEAD_x);
  uint32_t padded = (x_span.cols + 15) / 16 * 16, lines = machine->line_count, count = 0;
  float *x = machine->scratch, *expanded = x + (size_t)lines * padded,
        *y = expanded + (size_t)lines * MK_MATVEC_SCRATCH(padded), scales[MK_MOST_ROWS];
  if (!mk_stage_normed(machine, instruction, &MK_NORM_OF(HEAD), x, scales)) {
    return MK_REFERENCE_WAIT;
  }
  const float factor = mk_param_float(instruction->params[MK_PARAM_HEAD_factor]);
  for (uint32_t l = 0; factor != 0 && l < lines; l++) {
    scales[l] *= factor;
  }
  uint32_t chooses[MK_MOST_ROWS] = {0}; /* place among those that choose, from 1 */
  for (uint32_t l = 0; l < lines && weight.rows != 0; l++) {
    if ((machine->lines[l].row.flags & MK_ROW_CHOOSES) != 0) {
      memmove(x + (size_t)count * padded, x + (size_t)l * padded, padded * sizeof *x);
      chooses[l] = ++count;
    }
  }
  if (count != 0) {
    mk_matvec(&weight, count, x, expanded, y);
  }
  for (uint32_t l = 0; l < lines; l++) {
    uint32_t words[2] = {mk_float_param(-INFINITY), MK_CANDIDATE_NONE}, line = machine->lines[l].line;
    if (chooses[l] != 0) {
      finish(machine, &logits, line, scales[l], y + (size_t)(chooses[l] - 1) * weight.rows, words);
    }
    mk_publish_words(machine, &candidate, line, 0, 2, words);
  }
  return MK_REFERENCE_DONE;
}
