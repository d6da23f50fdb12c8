/* SIFT and DRAW, in C: the search for the token where top-k and top-p end. docs/SAMPLING.md tells how it goes.
 *
 * A mk_search is of one line: it reads that line of what SMs have published, and the words of the slot whose row it is.
 * It belongs to one instruction of one thread. Functions that stage stamped words give false when one is not there yet;
 * nothing has been written then. */
#ifndef MK_SEARCH_H
#define MK_SEARCH_H

#include "instructions/reference.h"
#include "instructions/sampling.h"

/* Both opcodes have these operands in these slots. */
enum {
  MK_SEARCH_FRONTS = MK_SLOT_SIFT_fronts,
  MK_SEARCH_ROUNDS = MK_SLOT_SIFT_rounds,
  MK_SEARCH_SCORES = MK_SLOT_SIFT_scores,
  MK_SEARCH_SAMPLING = MK_SLOT_SIFT_sampling,
  MK_SEARCH_OUT = MK_SLOT_SIFT_round, /* its row tile is this SM's in `rounds`, too */
};

typedef struct mk_search {
  mk_reference *machine;
  const mk_instruction *instruction;
  const mk_line *line;
  const uint32_t *words; /* of its slot */
  uint64_t key;          /* of the noise */
  float highest;         /* score of the first rank */
  bool overflows;        /* a front is not whole, and the winner therefore not in it */
  mk_sift_state state;
  uint64_t winner; /* the key of the draw; FAILED: mk_draw_failed */
  uint64_t pivots[MK_SIFT_SEGMENTS];
  mk_tally tally;
} mk_search;

static inline bool mk_line_chooses(const mk_line *line) { return (line->row.flags & MK_ROW_CHOOSES) != 0; }

/* The words of the line's slot in the `sampling` operand, which is operand `operand` of the instruction. */
const uint32_t *mk_sampling_of(const mk_reference *machine, const mk_instruction *instruction, uint32_t operand,
                               const mk_line *line);

/* Once per instruction: nothing is read of the stamped operands unless the functions below do. */
void mk_search_begin(mk_reference *machine);
/* Once per line. */
void mk_search_init(mk_search *search, mk_reference *machine, const mk_instruction *instruction, const mk_line *line);
/* Sets `highest`, the state to OPEN or FAILED, and `winner` to the best draw of the fronts that min-p leaves, if
 * any. */
bool mk_search_fronts(mk_search *search);
/* Takes in the round before: afterwards the search is FOUND, FAILED, OPEN with pivots for the next tally, or SUMMED
 * with pivots and this SM's part of the sums, of a round that tallies nothing. */
bool mk_search_resume(mk_search *search);
/* The tally of tokens [first, first + count) of `scores`. Only all of the operand counts as a read of it
 * (rows_used). */
bool mk_search_tally(mk_search *search, uint32_t first, uint32_t count, float *scratch);

#endif
