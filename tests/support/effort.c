/* See effort.h. */
#include "tests/support/effort.h"

#include <stdlib.h>
#include <string.h>

#ifdef __SANITIZE_ADDRESS__
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

bool test_is_quick(void) {
  const char *wish = getenv("MK_TEST_QUICK");
  return wish != NULL && strcmp(wish, "") != 0 && strcmp(wish, "0") != 0;
}

uint32_t test_effort(uint32_t quick, uint32_t full) { return test_is_quick() ? quick : full; }

uint32_t test_repeats(uint32_t quick, uint32_t full) { return SANITIZED ? quick : test_effort(quick, full); }
