/* The counterpart of the planted faults: the heap, tear-downs of test and suite and a parameter are all used, and
 * nothing is wrong. If these failed too, the planted faults would fail for a reason other than their own. */
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <stdlib.h>

static void *volatile held_by_test;
static void *volatile held_by_suite;

static void set_up_suite(void) { held_by_suite = malloc(77); }
static void tear_down_suite(void) {
  cr_assert(held_by_suite != NULL, "the suite's tear-down must run once, after its set-up");
  free(held_by_suite);
  held_by_suite = NULL;
}
static void tear_down_test(void) {
  cr_assert(held_by_test != NULL, "the test's tear-down must run once, after the test");
  free(held_by_test);
  held_by_test = NULL;
}

TestSuite(planted, .init = set_up_suite, .fini = tear_down_suite);

Test(planted, clean, .fini = tear_down_test) {
  held_by_test = malloc(77);
  cr_assert(held_by_test != NULL);
}

ParameterizedTestParameters(planted, clean_parameter) {
  static int values[] = {3, 4, 5};
  return cr_make_param_array(int, values, 3);
}

ParameterizedTest(const int *value, planted, clean_parameter) {
  int *copy = malloc(sizeof *copy);
  cr_assert(copy != NULL);
  *copy = *value;
  cr_assert(*copy >= 3 && *copy <= 5);
  free(copy);
}
