/* See steps.h. */
#include "tests/support/steps.h"

#include <criterion/criterion.h>
#include <stdio.h>

static uint64_t steps;

/* What -fsanitize-coverage=trace-pc calls. */
void __sanitizer_cov_trace_pc(void); /* NOLINT(bugprone-reserved-identifier): the compiler has named it */
void __sanitizer_cov_trace_pc(void) { steps++; }

uint64_t test_steps(void) { return steps; }

void test_expect_linear(const char *what, uint64_t quarter, uint64_t whole) {
  fprintf(stderr, "%s: %llu steps for a quarter, %llu for all\n", what, (unsigned long long)quarter,
          (unsigned long long)whole);
  cr_expect_gt(quarter, 1000, "%s: nothing is counted", what);
  cr_expect_leq(whole, 5 * quarter, "%s: %llu steps for a quarter, %llu for all", what, (unsigned long long)quarter,
                (unsigned long long)whole);
}
