/* See gpu_test.h. */
#include "tests/gpu/gpu_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/compile.h"
#include "vm/gpu/extra.h"

unsigned passed, failed;
const char *device = "cuda";
uint32_t deadline_ms;
mk_dtype kv = MK_DTYPE_BF16;

uint32_t device_index(void) { return strlen(device) > 5 ? (uint32_t)strtoul(device + 5, NULL, 10) : 0; }

void place_ranks(uint32_t ranks, char *name, size_t size, uint32_t *sms) {
  uint32_t gpus = 0;
  int version;
  gpus = mk_gpu_count(&gpus, &version) == MK_OK && gpus > device_index() ? gpus - device_index() : 1;
  size_t n = (size_t)snprintf(name, size, "cuda:%u", device_index());
  for (uint32_t r = 1; r < ranks; r++) {
    n += (size_t)snprintf(name + n, size - n, ",%u", device_index() + r % gpus);
  }
  *sms = MK_DEFAULT_SMS / ((ranks + gpus - 1) / gpus);
}

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

bool write_table(mk_gpu *gpu, const mk_program *program, const char *test) {
  size_t table = (size_t)mk_program_find_buffer(program, "block_table");
  uint32_t entries = program->buffers[table].rows * program->buffers[table].cols;
  uint32_t *blocks = calloc(entries, sizeof *blocks);
  for (uint32_t i = 0; blocks != NULL && i < entries; i++) {
    blocks[i] = entries - 1 - i;
  }
  bool good =
      blocks != NULL && expect_ok(mk_gpu_write(gpu, table, 0, blocks, (uint64_t)entries * sizeof *blocks), test);
  free(blocks);
  return good;
}
