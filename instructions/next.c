/* NEXT: the token boundary. Every SM merges the candidates of all SMs [sms, 2] in row order, takes the prompt's token
 * instead while the prompt lasts, and moves its own step state on. The SM with a `ring` operand hands the token to the host. */
#include <math.h>

#include "instructions/reference.h"

mk_reference_result mk_reference_NEXT(mk_reference *machine, const mk_instruction *instruction) {
  mk_span candidates = mk_operand_span(machine, instruction, MK_SLOT_NEXT_candidates);
  mk_span prompt = mk_operand_span(machine, instruction, MK_SLOT_NEXT_prompt);
  mk_span ring = mk_operand_span(machine, instruction, MK_SLOT_NEXT_ring);
  float *staged = machine->scratch;
  if (!mk_stage_stamped(machine, &candidates, candidates.rows, staged)) {
    return MK_REFERENCE_WAIT;
  }
  float best = -INFINITY;
  uint32_t token = MK_CANDIDATE_NONE;
  for (uint32_t i = 0; i < candidates.rows; i++) {
    float value = staged[2 * i];
    uint32_t index = mk_float_param(staged[2 * i + 1]) & MK_CANDIDATE_NONE;
    bool above = isnan(value) ? !isnan(best) : value > best;
    bool equal = isnan(value) ? isnan(best) : value == best;
    if (above || (equal && index < token)) {
      best = value;
      token = index;
    }
  }
  mk_step_state *state = machine->state;
  uint32_t position = state->position + 1;
  if (position < state->prompt_length) {
    token = ((const uint32_t *)(const void *)prompt.memory)[position];
  } else if (isnan(best)) {
    state->nan_logits = 1;
  }
  state->position = position;
  state->token = token;
  if (ring.cols != 0) {
    ((uint32_t *)(void *)ring.memory)[position] = token;
  }
  return MK_REFERENCE_DONE;
}
