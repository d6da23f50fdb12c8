/* Planted fault: the leak happens in the test's tear-down, the last moment at which it can. */
#include <criterion/criterion.h>
#include <stdlib.h>

static void *volatile only_pointer;

static void tear_down(void) {
  only_pointer = malloc(77);
  only_pointer = NULL;
}

TestSuite(planted, .fini = tear_down);

Test(planted, leak_in_fini) { cr_assert(only_pointer == NULL); }
