/* SCORE: what sampling does to the logits of one SM's tokens before they are compared with the others': penalties and bias.
 * logits, bias, counts, scores [n] (n may be 0), sampling [16], peak [2]: the highest score and the lowest index of it, NaN above
 * all. Counts stay with the SM: the token of each step is counted by the one that owns its row, in the prompt by a mark. */
#include <math.h>

#include "instructions/search.h"

mk_reference_result mk_reference_SCORE(mk_reference *machine, const mk_instruction *instruction) {
  mk_span logits = mk_operand_span(machine, instruction, MK_SLOT_SCORE_logits);
  mk_span counts = mk_operand_span(machine, instruction, MK_SLOT_SCORE_counts);
  mk_span scores = mk_operand_span(machine, instruction, MK_SLOT_SCORE_scores);
  mk_span peak = mk_operand_span(machine, instruction, MK_SLOT_SCORE_peak);
  mk_span bias = mk_operand_span(machine, instruction, MK_SLOT_SCORE_bias);
  mk_span sampling = mk_operand_span(machine, instruction, MK_SLOT_SCORE_sampling);
  const uint32_t *words = (const uint32_t *)(const void *)sampling.memory;
  const float *logit = (const float *)(const void *)logits.memory, *added = (const float *)(const void *)bias.memory;
  uint32_t *count = (uint32_t *)(void *)counts.memory;
  float *score = machine->scratch, best = -INFINITY;
  const mk_step_state *state = machine->state;
  uint32_t index = MK_CANDIDATE_NONE;
  bool inside = mk_inside_prompt(machine);
  if (state->token >= counts.col && state->token - counts.col < counts.cols) {
    count[state->token] =
        state->position < state->prompt_length ? count[state->token] | MK_COUNT_PROMPT : count[state->token] + 1;
  }
  for (uint32_t i = 0, token = scores.col; i < scores.cols; i++, token++) {
    score[i] = inside ? 0 : mk_sample_score(words, logit[token], count[token], added[token]);
    bool above = mk_is_nan(score[i]) ? !mk_is_nan(best) : score[i] > best;
    if (!inside && (index == MK_CANDIDATE_NONE || above)) {
      best = score[i];
      index = token;
    }
  }
  if (inside) {
    machine->rows_used[MK_SLOT_SCORE_logits] = 0;
  }
  uint32_t out[2] = {mk_bits_of(best), index};
  mk_publish_floats(machine, &scores, 0, 0, scores.cols, score);
  mk_publish_words(machine, &peak, 0, 0, 2, out);
  return MK_REFERENCE_DONE;
}
