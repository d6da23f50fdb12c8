/* DRAW: this SM's choice for the next token, {bits of the value, index} as HEAD's candidate is.
 * candidates, peaks [SMs, 2], rounds [SMs, 256] (may be none), scores [vocab], sampling [16], choice [2]. Tokens
 * 16 first to 16 (first + count) are this SM's. With top-k or top-p the rounds have found the winner, or the search goes on here over
 * all scores, and every SM names the same one. Else each names the best of its own. */
#include <math.h>

#include "instructions/search.h"

/* The best of tokens [first, first + count) by the draw, or by rank where nothing is drawn; 0: none. */
static void best_of(const mk_search *search, const float *scores, uint32_t first, uint32_t count, float *value,
                    uint32_t *token) {
  uint64_t best = 0;
  for (uint32_t i = 0; i < count; i++) {
    if (mk_is_nan(scores[i])) {
      *value = scores[i];
      *token = first + i;
      return;
    }
    uint64_t key = mk_rank_key(scores[i], first + i);
    if ((search->words[MK_SAMPLING_FLAGS] & MK_SAMPLE_DRAWS) != 0) {
      float distance = mk_sample_distance(search->words, scores[i], search->highest);
      key = mk_sample_draw(search->words, search->key, distance, first + i);
    }
    best = key > best ? key : best;
  }
  if (best != 0) {
    *value = mk_rank_value(best);
    *token = mk_rank_token(best);
  }
}

/* The winner of the search; false: wait. */
static bool search_all(mk_search *search, uint32_t vocab, float *value, uint32_t *token) {
  if (search->state == MK_SIFT_OPEN && !mk_search_resume(search)) {
    return false;
  }
  for (uint32_t pass = 0; search->state == MK_SIFT_OPEN && pass < MK_SIFT_MOST_PASSES; pass++) {
    if (!mk_search_tally(search, 0, vocab, search->machine->scratch)) {
      return false;
    }
    if (mk_sift_decide(search->words, &search->tally, search->pivots, &search->winner)) {
      search->state = MK_SIFT_FOUND;
    }
  }
  *value = search->state == MK_SIFT_FAILED ? NAN : mk_rank_value(search->winner);
  uint32_t winner = mk_rank_token(search->winner);
  *token = winner < vocab ? winner : vocab - 1; /* of tallies that nobody filled, whose value is NaN */
  return true;
}

static bool choose(mk_search *search, float *value, uint32_t *token) {
  mk_span scores = mk_operand_span(search->machine, search->instruction, MK_SLOT_DRAW_scores);
  uint32_t first = search->instruction->params[MK_PARAM_DRAW_first] * MK_TILE;
  uint32_t count = search->instruction->params[MK_PARAM_DRAW_count] * MK_TILE, vocab = scores.cols;
  bool draws = (search->words[MK_SAMPLING_FLAGS] & MK_SAMPLE_DRAWS) != 0;
  if (draws && !mk_search_highest(search)) {
    return false;
  }
  if (mk_sampling_cuts(search->words)) {
    return search_all(search, vocab, value, token);
  }
  scores.col = first;
  scores.cols = count < vocab - first ? count : vocab - first;
  if (count == 0) {
    return true;
  }
  if (!mk_stage_stamped(search->machine, &scores, 1, search->machine->scratch)) {
    return false;
  }
  best_of(search, search->machine->scratch, first, scores.cols, value, token);
  return true;
}

mk_reference_result mk_reference_DRAW(mk_reference *machine, const mk_instruction *instruction) {
  mk_span choice = mk_operand_span(machine, instruction, MK_SLOT_DRAW_choice);
  float value = -INFINITY;
  uint32_t token = MK_CANDIDATE_NONE;
  mk_search search;
  mk_search_init(&search, machine, instruction);
  if (!mk_inside_prompt(machine) && !choose(&search, &value, &token)) {
    return MK_REFERENCE_WAIT;
  }
  uint32_t words[2] = {mk_bits_of(value), token};
  mk_publish_words(machine, &choice, 0, 0, 2, words);
  return MK_REFERENCE_DONE;
}
