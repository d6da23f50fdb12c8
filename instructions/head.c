/* HEAD: logits = W norm(x), and this SM's candidate for the next token: {bits of the value, index}.
 * x, gain [width], weight [16 n, width] (n may be 0), logits [16 n], candidate [2]. NaN ranks above all numbers, so that it is
 * seen. While the prompt gives the next token, only an empty candidate (-inf, MK_CANDIDATE_NONE) is written. */
#include <math.h>

#include "instructions/reference.h"

static bool ranks_above(float a, float b) { return isnan(a) ? !isnan(b) : a > b; }

mk_reference_result mk_reference_HEAD(mk_reference *machine, const mk_instruction *instruction) {
  mk_span weight = mk_operand_span(machine, instruction, MK_SLOT_HEAD_weight);
  mk_span logits = mk_operand_span(machine, instruction, MK_SLOT_HEAD_logits);
  mk_span candidate = mk_operand_span(machine, instruction, MK_SLOT_HEAD_candidate);
  mk_span x_span = mk_operand_span(machine, instruction, MK_SLOT_HEAD_x);
  uint32_t padded = (x_span.cols + 15) / 16 * 16;
  float *x = machine->scratch, *expanded = x + padded, *y = expanded + MK_MATVEC_SCRATCH(padded), scale;
  if (!mk_stage_normed(machine, instruction, MK_SLOT_HEAD_x, MK_SLOT_HEAD_gain,
                       mk_param_float(instruction->params[MK_PARAM_HEAD_eps]), instruction->params[MK_PARAM_HEAD_width],
                       x, &scale)) {
    return MK_REFERENCE_WAIT;
  }
  float best = -INFINITY;
  uint32_t index = MK_CANDIDATE_NONE;
  if (machine->state->position + 1 >= machine->state->prompt_length && weight.rows != 0) {
    mk_matvec(&weight, x, expanded, y);
    for (uint32_t i = 0; i < logits.cols; i++) {
      y[i] *= scale;
      if (index == MK_CANDIDATE_NONE || ranks_above(y[i], best)) {
        best = y[i];
        index = logits.col + i;
      }
    }
    mk_publish_floats(machine, &logits, 0, 0, logits.cols, y);
  }
  uint32_t words[2] = {mk_float_param(best), index};
  mk_publish_words(machine, &candidate, 0, 0, 2, words);
  return MK_REFERENCE_DONE;
}
