/* DRAW: the next token, {bits of a value, index} in the form of HEAD's candidate; the value is 0, or NaN where logits
 * are.
 * fronts [SMs, 98], rounds [SMs, 256] (may be none), scores [vocab], sampling [16], choice [2]. The token is the best
 * draw of all fronts that min-p leaves. With top-k or top-p the rounds have found the winner, or the search goes on
 * here over all scores. Every SM names the same token. With several rows per step each line has a search and a choice
 * of its own. */
#include <math.h>

#include "instructions/search.h"

/* Searches all scores to the end; false: wait. */
static bool search_all(mk_search *search, uint32_t vocab) {
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
  return true;
}

/* The choice of one line, an empty one where it does not choose; the fronts are waited for either way. false: wait. */
static bool draw(mk_reference *machine, const mk_instruction *instruction, const mk_line *line, uint32_t words[2]) {
  uint32_t vocab = mk_operand_span(machine, instruction, MK_SLOT_DRAW_scores).cols;
  mk_search search;
  mk_search_init(&search, machine, instruction, line);
  words[0] = mk_bits_of(-INFINITY);
  words[1] = MK_CANDIDATE_NONE;
  if (!mk_search_fronts(&search)) {
    return false;
  }
  if (mk_line_chooses(line)) {
    if ((mk_sampling_cuts(search.words) || search.overflows) && !search_all(&search, vocab)) {
      return false;
    }
    uint32_t winner = mk_rank_token(search.winner);
    words[0] = mk_bits_of(search.state == MK_SIFT_FAILED ? NAN : 0.0f);
    words[1] = winner < vocab ? winner : vocab - 1; /* an index below the vocabulary even of words that nobody filled */
  }
  return true;
}

mk_reference_result mk_reference_DRAW(mk_reference *machine, const mk_instruction *instruction) {
  mk_span choice = mk_operand_span(machine, instruction, MK_SLOT_DRAW_choice);
  uint32_t words[MK_MOST_DRAWING_ROWS][2];
  mk_search_begin(machine);
  for (uint32_t l = 0; l < machine->line_count; l++) {
    if (!draw(machine, instruction, &machine->lines[l], words[l])) {
      return MK_REFERENCE_WAIT;
    }
  }
  for (uint32_t l = 0; l < machine->line_count; l++) {
    mk_publish_words(machine, &choice, machine->lines[l].line, 0, 2, words[l]);
  }
  return MK_REFERENCE_DONE;
}
