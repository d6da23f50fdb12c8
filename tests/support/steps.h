/* Steps instead of seconds: how much a part of the project does, the same on every machine however slow or busy.
 *
 * The sources that cmake/tests.cmake names for a test program (mk_count_steps) are compiled with a call in every basic
 * block, and that call counts. One thread. */
#ifndef MK_TEST_STEPS_H
#define MK_TEST_STEPS_H

#include <stdint.h>

/* Basic blocks entered since the program began. */
uint64_t test_steps(void);
/* Four times the input (`whole` steps) in little more than four times the steps of the input (`quarter`); 16 times
 * would be quadratic. */
void test_expect_linear(const char *what, uint64_t quarter, uint64_t whole);

#endif
