/* SIFT: one round of the search for the end of top-k and top-p, on one SM.
 * candidates, peaks [SMs, 2], rounds [SMs, 256] (none in the first round), scores [n] (n may be 0), sampling [16], round [256]: the
 * fields of sampling.h. It is always written; others look at it only while the search is open. */
#include "instructions/search.h"

mk_reference_result mk_reference_SIFT(mk_reference *machine, const mk_instruction *instruction) {
  mk_span round = mk_operand_span(machine, instruction, MK_SLOT_SIFT_round);
  mk_span scores = mk_operand_span(machine, instruction, MK_SLOT_SIFT_scores);
  mk_search search;
  uint32_t words[MK_SIFT_WORDS] = {0};
  mk_search_init(&search, machine, instruction);
  if (!mk_inside_prompt(machine) && mk_sampling_cuts(search.words)) {
    if (!mk_search_highest(&search) || (search.state == MK_SIFT_OPEN && !mk_search_resume(&search)) ||
        (search.state == MK_SIFT_OPEN && !mk_search_tally(&search, scores.col, scores.cols, machine->scratch))) {
      return MK_REFERENCE_WAIT;
    }
  }
  for (uint32_t s = 0; search.state == MK_SIFT_OPEN && s < MK_SIFT_SEGMENTS; s++) {
    uint32_t *to = words + s * MK_SIFT_FIELDS;
    to[MK_SIFT_MASS_LOW] = (uint32_t)search.tally.mass[s];
    to[MK_SIFT_MASS_HIGH] = (uint32_t)(search.tally.mass[s] >> 32);
    to[MK_SIFT_BEST_LOW] = (uint32_t)search.tally.best[s];
    to[MK_SIFT_BEST_HIGH] = (uint32_t)(search.tally.best[s] >> 32);
    to[MK_SIFT_COUNT] = search.tally.count[s];
    to[MK_SIFT_PIVOT_LOW] = (uint32_t)search.pivots[s];
    to[MK_SIFT_PIVOT_HIGH] = (uint32_t)(search.pivots[s] >> 32);
  }
  if (search.state != MK_SIFT_OPEN) {
    words[MK_SIFT_BEST_LOW] = (uint32_t)search.winner;
    words[MK_SIFT_BEST_HIGH] = (uint32_t)(search.winner >> 32);
  }
  words[MK_SIFT_STATE] = search.state;
  mk_publish_words(machine, &round, 0, 0, MK_SIFT_WORDS, words);
  return MK_REFERENCE_DONE;
}
