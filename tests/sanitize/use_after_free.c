/* Planted fault: a read of freed memory. */
#include <criterion/criterion.h>
#include <stdlib.h>

static char *volatile bytes;

Test(planted, use_after_free) {
  bytes = calloc(24, 1);
  free(bytes);
  volatile char first = *(volatile char *)bytes;
  (void)first;
}
