/* A trace file. The input is what its stream inflates to: header and stream are made around it, and it is also tried as a whole
 * file. What is accepted is written and read back the same. */
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "tests/fuzz/support.h"
#include "vm/trace.h"

/* Offsets in the file (docs/TRACE.md). */
enum { VERSION = 8, SIZE = 16, CONTENT = 24, CHECKSUM = 32, LEAD = 40 };

static void expect_same_again(const mk_trace *trace) {
  void *first, *second;
  size_t first_length, second_length;
  mk_trace *back;
  fuzz_require(mk_trace_serialize(trace, &first, &first_length) == MK_OK, "%s", mk_error_message());
  fuzz_require(mk_trace_parse(first, first_length, &back) == MK_OK, "its own file is refused: %s", mk_error_message());
  fuzz_require(mk_trace_serialize(back, &second, &second_length) == MK_OK, "%s", mk_error_message());
  fuzz_require(first_length == second_length && memcmp(first, second, first_length) == 0, "the files differ");
  mk_trace_free(back);
  mk_free(first);
  mk_free(second);
}

static void parse(const uint8_t *data, size_t size) {
  mk_trace *trace;
  mk_status status = mk_trace_parse(data, size, &trace);
  fuzz_expect_parsed(status);
  fuzz_require((status == MK_OK) == (trace != NULL), "status %d", (int)status);
  if (status == MK_OK) {
    expect_same_again(trace);
    mk_trace_free(trace);
  }
}

static void put_u64(uint8_t *at, uint64_t value) { memcpy(at, &value, sizeof value); }

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  parse(data, size);
  uLongf length = compressBound(size);
  uint8_t *file = calloc(1, LEAD + length);
  fuzz_require(compress2(file + LEAD, &length, data, size, 0) == Z_OK, "no memory");
  uint64_t hash = UINT64_C(0xcbf29ce484222325);
  for (size_t i = 0; i < length; i++) {
    hash = (hash ^ file[LEAD + i]) * UINT64_C(0x100000001b3);
  }
  memcpy(file, "MKTRACE1", 8);
  file[VERSION] = 1;
  put_u64(file + SIZE, LEAD + length);
  put_u64(file + CONTENT, size);
  put_u64(file + CHECKSUM, hash);
  parse(file, LEAD + length);
  free(file);
  return 0;
}
