/* Planted fault: the tear-down reads what the test has freed. */
#include <criterion/criterion.h>
#include <stdlib.h>

static char *volatile bytes;

static void tear_down(void) {
  volatile char first = *(volatile char *)bytes;
  (void)first;
}

Test(planted, use_after_free_in_fini, .fini = tear_down) {
  bytes = calloc(24, 1);
  free(bytes);
}
