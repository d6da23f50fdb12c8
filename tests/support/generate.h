/* Random programs: small shapes, random stages on random SMs, random edges of both kinds.
 *
 * Every program begins with the embedding row, goes through a few stages (gated, added to a residual, split along K,
 * attention over several splits), and ends in a token boundary. Stages come in one order, and every queue holds its
 * instructions in that order, so no wait is for something later. Plain residuals move between SMs after release
 * counters, and whoever touched one tells the SM that writes it first in the next epoch. After an attention a queue
 * streams weights. So programs are valid by construction.
 *
 * A bold program is not: it leaves out now and then what makes the others valid, has stages between the heads and the
 * `next`s, which nothing but counters puts in order, SMs without a head or a `next`, splits that products write, and
 * sides that are no whole tiles. The verifier has to say.
 *
 * The caller frees the program. Any thread. The same seed gives the same program. Failure: MK_ERR_RUNTIME for memory.
 */
#ifndef MK_TEST_GENERATE_H
#define MK_TEST_GENERATE_H

#include "vm/program/program.h"

typedef struct test_recipe {
  uint32_t rows; /* of a step: 1, 2, 4, 8, 16 or 64 */
  bool sampling; /* score, sift and draw at the token boundary; not with 64 rows */
  bool small;    /* two to four SMs, hidden sizes of 16 to 64; else one to four, and 64 or 128 */
  bool bold;
} test_recipe;

mk_status test_generate_recipe(uint64_t seed, const test_recipe *recipe, mk_program **out);
/* One row, greedy, valid. */
mk_status test_generate(uint64_t seed, mk_program **out);

#endif
