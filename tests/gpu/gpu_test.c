/* See gpu_test.h. */
#include "tests/gpu/gpu_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

unsigned passed, failed;
const char *device = "cuda";
uint32_t deadline_ms;

uint32_t device_index(void) { return strlen(device) > 5 ? (uint32_t)strtoul(device + 5, NULL, 10) : 0; }

bool expect(bool good, const char *test, const char *what) {
  if (good) {
    passed++;
  } else {
    failed++;
    printf("FAILED %s: %s\n", test, what);
  }
  fflush(stdout);
  return good;
}

bool(expect_ok)(mk_status status, const char *test) {
  return expect(status == MK_OK, test, status == MK_OK ? "" : mk_error_message());
}
