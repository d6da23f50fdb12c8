/* SIFT: one round of the search for the end of top-k and top-p, on one SM.
 * fronts [SMs, 98], rounds [SMs, 256] (none in the first round), scores [n] (n may be 0), sampling [16], round [256]:
 * the fields of sampling.h. The round is always written; others look at it only while the search is open. With several
 * rows per step each line has a search of its own, and rounds come in pairs, of which the second one adds up
 * (sampling.h). */
#include "instructions/search.h"

static void put_pair(uint32_t *words, uint32_t field, uint32_t segment, uint64_t value) {
  words[mk_sift_word(field, segment)] = (uint32_t)value;
  words[mk_sift_word(field, segment) + 1] = (uint32_t)(value >> 32);
}

/* Computes the round of one line; false: wait. */
static bool sift(mk_reference *machine, const mk_instruction *instruction, const mk_line *line,
                 uint32_t words[MK_SIFT_WORDS]) {
  mk_span scores = mk_operand_span(machine, instruction, MK_SLOT_SIFT_scores);
  mk_search search;
  memset(words, 0, MK_SIFT_WORDS * sizeof *words);
  mk_search_init(&search, machine, instruction, line);
  if (mk_line_chooses(line) && mk_sampling_cuts(search.words)) {
    if (!mk_search_fronts(&search) || (search.state == MK_SIFT_OPEN && !mk_search_resume(&search)) ||
        (search.state == MK_SIFT_OPEN && !mk_search_tally(&search, scores.col, scores.cols, machine->scratch))) {
      return false;
    }
  }
  bool goes_on = search.state == MK_SIFT_OPEN || search.state == MK_SIFT_SUMMED;
  for (uint32_t s = 0; goes_on && s < MK_SIFT_SEGMENTS; s++) {
    put_pair(words, MK_SIFT_MASS, s, search.tally.mass[s]);
    put_pair(words, MK_SIFT_BEST, s, search.tally.best[s]);
    words[mk_sift_word(MK_SIFT_COUNT, s)] = search.tally.count[s];
    put_pair(words, MK_SIFT_PIVOT, s, search.pivots[s]);
  }
  if (search.state == MK_SIFT_FOUND) {
    put_pair(words, MK_SIFT_BEST, 0, search.winner);
  }
  words[MK_SIFT_STATE_WORD] = search.state;
  return true;
}

mk_reference_result mk_reference_SIFT(mk_reference *machine, const mk_instruction *instruction) {
  mk_span round = mk_operand_span(machine, instruction, MK_SLOT_SIFT_round);
  uint32_t words[MK_MOST_DRAWING_ROWS][MK_SIFT_WORDS];
  mk_search_begin(machine);
  for (uint32_t l = 0; l < machine->line_count; l++) {
    if (!sift(machine, instruction, &machine->lines[l], words[l])) {
      return MK_REFERENCE_WAIT;
    }
  }
  for (uint32_t l = 0; l < machine->line_count; l++) {
    mk_publish_words(machine, &round, machine->lines[l].line, 0, MK_SIFT_WORDS, words[l]);
  }
  return MK_REFERENCE_DONE;
}
