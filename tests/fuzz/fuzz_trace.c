/* A trace file. The input is what its stream inflates to: header and stream are made around it and the checksum of the
 * program in it is set right; it is also tried as a whole file. What is accepted is written and read back the same, and
 * can be analysed and printed. */
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "tests/fuzz/support.h"
#include "tools/profiler/summary.h"
#include "vm/file.h"

/* Offsets in the file (docs/TRACE.md), and in the program (vm/program/program_file.c). */
enum { VERSION = 8, SIZE = 16, CONTENT = 24, CHECKSUM = 32, LEAD = 40 };
enum { PROGRAM_SIZE = 8, PROGRAM_CHECKSUM = 16, PROGRAM_LEAD = 24 };

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

static void analyse(const mk_trace *trace) {
  static FILE *nowhere;
  mk_summary *summary;
  if (nowhere == NULL) {
    nowhere = fopen("/dev/null", "we");
  }
  mk_status status = mk_summary_new(trace, MK_MEDIAN_STEP, 0, &summary);
  fuzz_require(nowhere != NULL && status == MK_OK, "%s", mk_error_message());
  mk_summary_print(summary, nowhere);
  mk_summary_print_path(summary, nowhere);
  json_t *json = mk_summary_json(summary);
  fuzz_require(json != NULL, "a trace that parses has no JSON");
  json_decref(json);
  mk_summary_free(summary);
}

static void parse(const uint8_t *data, size_t size) {
  mk_trace *trace;
  mk_status status = mk_trace_parse(data, size, &trace);
  fuzz_expect_parsed(status);
  fuzz_require((status == MK_OK) == (trace != NULL), "status %d", (int)status);
  if (status == MK_OK) {
    expect_same_again(trace);
    analyse(trace);
    mk_trace_free(trace);
  }
}

static void put_u64(uint8_t *at, uint64_t value) { memcpy(at, &value, sizeof value); }

static void seal_program(uint8_t *content, size_t length) {
  for (size_t at = 0; at + PROGRAM_LEAD <= length; at++) {
    if (memcmp(content + at, "MKPF", 4) == 0) {
      uint64_t size;
      memcpy(&size, content + at + PROGRAM_SIZE, sizeof size);
      if (size >= PROGRAM_LEAD && size <= length - at) {
        put_u64(content + at + PROGRAM_CHECKSUM, mk_fnv1a(content + at + PROGRAM_LEAD, (size_t)size - PROGRAM_LEAD));
      }
      return;
    }
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  parse(data, size);
  uLongf length = compressBound(size);
  uint8_t *content = malloc(size + 1), *file = calloc(1, LEAD + length);
  memcpy(content, data, size);
  seal_program(content, size);
  fuzz_require(compress2(file + LEAD, &length, content, size, 0) == Z_OK, "no memory");
  free(content);
  memcpy(file, "MKTRACE1", 8);
  file[VERSION] = 1;
  put_u64(file + SIZE, LEAD + length);
  put_u64(file + CONTENT, size);
  put_u64(file + CHECKSUM, mk_fnv1a(file + LEAD, length));
  parse(file, LEAD + length);
  free(file);
  return 0;
}
