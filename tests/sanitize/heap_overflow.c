/* Planted fault: a write one byte past an allocation. */
#include <criterion/criterion.h>
#include <stdlib.h>

static char *volatile bytes;
static volatile size_t end = 24;

Test(planted, heap_overflow) {
  bytes = malloc(24);
  cr_assert(bytes != NULL);
  volatile char *first = bytes;
  first[end] = 1;
  free(bytes);
}
