/* How much a test does: the whole of it, or as little as still holds every kind of case.
 *
 * Whole is the rule. MK_TEST_QUICK=1 in the environment asks for little: fewer seeds, mutants, draws and lengths, and
 * no kind of them less. tools/test --quick sets it, and so does tools/test for what runs under AddressSanitizer. Any
 * thread may call. */
#ifndef MK_TEST_EFFORT_H
#define MK_TEST_EFFORT_H

#include <stdbool.h>
#include <stdint.h>

bool test_is_quick(void);
/* How many cases: `quick` of them, or all, `full`. */
uint32_t test_effort(uint32_t quick, uint32_t full);
/* How often, or how long, where more of it is of use to statistics and to nothing else: AddressSanitizer, under which
 * all is ten times as slow and which learns nothing from the same steps again, gets `quick`, too. */
uint32_t test_repeats(uint32_t quick, uint32_t full);

#endif
