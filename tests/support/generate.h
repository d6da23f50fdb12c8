/* Random programs that are valid by construction: small shapes, random stages on random SMs, random edges of both kinds.
 *
 * Every program begins with the embedding row, goes through a few stages (gated, added to a residual, split along K, attention over
 * several splits), and ends in a token boundary. Stages come in one order, and every queue holds its instructions in that order,
 * so no wait is for something later. Plain residuals move between SMs behind release counters, and whoever touched one tells
 * the SM that writes it first in the next epoch. Some programs have SMs without step state, which take part in the last
 * stage, so that the token boundary depends on them.
 *
 * The caller frees the program. Any thread. The same seed gives the same program. Failure: MK_ERR_RUNTIME for memory. */
#ifndef MK_TEST_GENERATE_H
#define MK_TEST_GENERATE_H

#include "vm/program.h"

mk_status test_generate(uint64_t seed, mk_program **out);

#endif
