/* Planted fault: memory whose last pointer is lost. Nothing else is wrong with this program, so that it fails only
 * where leaks are looked for. */
#include <criterion/criterion.h>
#include <stdlib.h>

static void *volatile only_pointer;

Test(planted, leak) {
  only_pointer = malloc(77);
  cr_assert(only_pointer != NULL);
  only_pointer = NULL;
}
