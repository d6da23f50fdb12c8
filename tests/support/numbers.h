/* Random numbers and comparisons for tests.
 *
 * The generator is a value (a 64-bit seed) that the caller owns; the same seed gives the same numbers everywhere. The
 * comparisons fail the running test, also when a number is NaN. Any thread may call. */
#ifndef MK_TEST_NUMBERS_H
#define MK_TEST_NUMBERS_H

#include <stddef.h>
#include <stdint.h>

uint64_t test_random(uint64_t *seed);
uint32_t test_random_below(uint64_t *seed, uint32_t n);
/* Uniform in [-1, 1). */
float test_random_float(uint64_t *seed);
/* table becomes a permutation of 0..n-1. */
void test_shuffle(uint64_t *seed, uint32_t *table, uint32_t n);

/* |got - want| in L2 against |want| in L2, over count numbers; NaN when any number is. */
double test_relative_error(const double *got, const double *want, size_t count);
void test_expect_close(const char *what, const double *got, const double *want, size_t count, double limit);
/* Every got[i] is a bf16 number at most half a unit in the last place, plus `slack` times the largest |want|, from
 * want[i]. */
void test_expect_bf16(const char *what, const double *got, const double *want, size_t count, double slack);

#endif
