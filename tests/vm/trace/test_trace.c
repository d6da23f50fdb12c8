/* Trace files: what is saved is what is loaded, and every way a file can be malformed is an error that says where. */
#include "vm/trace/trace.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include "tests/support/tiny.h"
#include "vm/file.h"

enum { LEAD = 40, RECORDS = 6 };

static mk_trace *small_trace(void) {
  static const mk_trace_record records[RECORDS] = {
      {.time = 1000, .activity = MK_ACTIVITY_BOUNDARY, .epoch = 5},
      {.time = 1000, .uid = 101, .activity = MK_ACTIVITY_WORK, .epoch = 5},
      {.time = 1300, .uid = 101, .activity = MK_ACTIVITY_STAMP, .epoch = 5, .edge = 2},
      {.time = 70001, .uid = 101, .activity = MK_ACTIVITY_WORK, .epoch = 5},
      {.time = 70500, .uid = 109, .activity = MK_ACTIVITY_PAGE_FULL, .epoch = 6, .edge = 11},
      {.time = 71000, .uid = 0, .activity = MK_ACTIVITY_BOUNDARY, .epoch = 7},
  };
  test_tiny tiny;
  mk_trace *trace;
  test_tiny_loop(&tiny, 2);
  cr_assert_eq(mk_trace_new(tiny.program, 2, &trace), MK_OK, "%s", mk_error_message());
  test_tiny_stop(&tiny);
  snprintf(trace->facts.model, sizeof trace->facts.model, "a model <b>\u00e9</b>");
  snprintf(trace->facts.device, sizeof trace->facts.device, "cpu");
  snprintf(trace->facts.command, sizeof trace->facts.command, "mkvm run -p \"\xff\"");
  trace->first_position = 17;
  trace->first_step = 5;
  trace->steps = 2;
  trace->launch_steps = 8;
  trace->milliseconds = 0.56;
  trace->alignment_ns = 32;
  for (uint32_t role = 0; role < 3; role++) {
    mk_trace_track *track = mk_trace_track_of(trace, role % 2, role);
    track->count = RECORDS - role;
    track->dropped = role * 1000;
    cr_assert_eq(mk_alloc(track->count, sizeof *track->records, &track->records), MK_OK);
    memcpy(track->records, records, track->count * sizeof *records);
  }
  return trace;
}

static void expect_same(const mk_trace *a, const mk_trace *b) {
  cr_assert_eq(a->sms, b->sms);
  cr_expect_str_eq(a->facts.model, b->facts.model);
  cr_expect_str_eq(a->facts.device, b->facts.device);
  cr_expect_eq(a->first_position, b->first_position);
  cr_expect_eq(a->first_step, b->first_step);
  cr_expect_eq(a->steps, b->steps);
  cr_expect_eq(a->launch_steps, b->launch_steps);
  cr_expect(a->milliseconds == b->milliseconds && a->alignment_ns == b->alignment_ns);
  cr_expect_eq(a->program->instruction_count, b->program->instruction_count);
  for (uint32_t t = 0; t < a->sms * MK_TRACE_ROLES; t++) {
    cr_assert_eq(a->tracks[t].count, b->tracks[t].count);
    cr_expect_eq(a->tracks[t].dropped, b->tracks[t].dropped);
    cr_expect(a->tracks[t].count == 0 ||
              memcmp(a->tracks[t].records, b->tracks[t].records, a->tracks[t].count * sizeof(mk_trace_record)) == 0);
  }
}

/* The inflated content of a small trace, so that a test can spoil it. */
typedef struct content {
  uint8_t *bytes;
  size_t length;
} content;

static content content_of(const mk_trace *trace) {
  void *file;
  size_t size;
  uint64_t length;
  cr_assert_eq(mk_trace_serialize(trace, &file, &size), MK_OK, "%s", mk_error_message());
  memcpy(&length, (uint8_t *)file + 24, sizeof length);
  content c = {malloc(length), length};
  uLongf have = length;
  cr_assert_eq(uncompress(c.bytes, &have, (uint8_t *)file + LEAD, size - LEAD), Z_OK);
  cr_assert_eq(have, length);
  mk_free(file);
  return c;
}

/* A whole file of that content, with a header that fits it. */
static uint8_t *file_of(const uint8_t *bytes, size_t length, size_t *size) {
  uLongf packed = compressBound(length);
  uint8_t *file = calloc(1, LEAD + packed);
  cr_assert_eq(compress2(file + LEAD, &packed, bytes, length, 1), Z_OK);
  *size = LEAD + packed;
  uint64_t header[3] = {*size, length, mk_fnv1a(file + LEAD, packed)};
  memcpy(file, "MKTRACE1\1\0\0\0\0\0\0\0", 16);
  memcpy(file + 16, header, sizeof header);
  return file;
}

static mk_status parse_content(const uint8_t *bytes, size_t length) {
  mk_trace *trace;
  size_t size;
  uint8_t *file = file_of(bytes, length, &size);
  mk_status status = mk_trace_parse(file, size, &trace);
  free(file);
  cr_assert(status == MK_OK ? trace != NULL : trace == NULL);
  mk_trace_free(trace);
  return status;
}

Test(trace, round_trip) {
  mk_trace *trace = small_trace(), *again;
  char path[] = "/tmp/mk_trace_XXXXXX";
  close(mkstemp(path));
  cr_assert_eq(mk_trace_save(trace, path), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_trace_load(path, &again), MK_OK, "%s", mk_error_message());
  expect_same(trace, again);
  cr_expect_str_eq(again->facts.command, "mkvm run -p \"?\"", "bytes that are no text are replaced");
  mk_trace_free(again);
  unlink(path);
  mk_trace_free(trace);
}

Test(trace, header) {
  mk_trace *trace = small_trace(), *out;
  void *data;
  size_t size;
  cr_assert_eq(mk_trace_serialize(trace, &data, &size), MK_OK);
  mk_trace_free(trace);
  uint8_t *file = data;
  for (size_t at = 0; at < LEAD; at++) { /* every byte of it counts */
    file[at] ^= 0x40;
    cr_expect_eq(mk_trace_parse(file, size, &out), MK_ERR_FILE, "byte %zu", at);
    cr_expect_null(out);
    cr_expect_not_null(strstr(mk_error_message(), "header"), "byte %zu: %s", at, mk_error_message());
    file[at] ^= 0x40;
  }
  for (size_t length = 0; length < size; length++) {
    cr_expect_eq(mk_trace_parse(file, length, &out), MK_ERR_FILE, "%zu bytes", length);
  }
  uint64_t huge = UINT64_C(1) << 31;
  memcpy(file + 24, &huge, sizeof huge);
  cr_expect_eq(mk_trace_parse(file, size, &out), MK_ERR_FILE);
  cr_expect_not_null(strstr(mk_error_message(), "content"), "%s", mk_error_message());
  mk_free(data);
}

/* Cut anywhere, and every byte changed: an error or another trace, never a crash (AddressSanitizer looks on). */
Test(trace, content, .timeout = MK_HANG_SECONDS) {
  mk_trace *trace = small_trace();
  content c = content_of(trace);
  mk_trace_free(trace);
  cr_assert_eq(parse_content(c.bytes, c.length), MK_OK, "%s", mk_error_message());
  for (size_t length = 0; length < c.length; length++) {
    cr_expect_eq(parse_content(c.bytes, length), MK_ERR_FILE, "%zu bytes", length);
  }
  for (size_t at = 0; at < c.length; at++) {
    static const uint8_t changes[] = {1, 0x80, 0xff};
    for (size_t i = 0; i < sizeof changes; i++) {
      c.bytes[at] ^= changes[i];
      mk_status status = parse_content(c.bytes, c.length);
      cr_expect(status == MK_OK || status == MK_ERR_FILE, "byte %zu: %s", at, mk_error_message());
      c.bytes[at] ^= changes[i];
    }
  }
  uint8_t *longer = malloc(c.length + 1);
  memcpy(longer, c.bytes, c.length);
  longer[c.length] = 0;
  cr_expect_eq(parse_content(longer, c.length + 1), MK_ERR_FILE);
  cr_expect_not_null(strstr(mk_error_message(), "follow the last track"), "%s", mk_error_message());
  free(longer);
  free(c.bytes);
}

/* A trace with one field spoilt is refused with words about it. */
static void expect_refused(const mk_trace *trace, const char *words) {
  content c = content_of(trace);
  cr_expect_eq(parse_content(c.bytes, c.length), MK_ERR_FILE, "%s", words);
  cr_expect_not_null(strstr(mk_error_message(), words), "%s: %s", words, mk_error_message());
  free(c.bytes);
}

Test(trace, records) {
  mk_trace *trace = small_trace();
  mk_trace_record *record = &mk_trace_track_of(trace, 0, 0)->records[2], saved = *record;
  record->time = 0;
  expect_refused(trace, "time of a record");
  *record = saved;
  record->uid = 4711;
  expect_refused(trace, "names instruction 4711");
  *record = saved;
  record->activity = MK_ACTIVITY_COUNT;
  expect_refused(trace, "the activity of record 2");
  *record = saved;
  record->edge = (uint16_t)trace->program->buffer_count;
  expect_refused(trace, "the edge of record 2");
  record->activity = MK_ACTIVITY_COUNTER;
  record->edge = (uint16_t)trace->program->counter_count;
  expect_refused(trace, "the edge of record 2");
  record->activity = MK_ACTIVITY_WORK;
  record->edge = 1;
  expect_refused(trace, "the edge of record 2");
  *record = saved;
  trace->steps = 4;
  expect_refused(trace, "the launch has 8");
  trace->steps = 2;
  trace->milliseconds = -1;
  expect_refused(trace, "milliseconds");
  mk_trace_free(trace);
}

Test(trace, names_and_counts) {
  mk_trace *trace = small_trace();
  content c = content_of(trace);
  c.bytes[0] = 100; /* a model of 100 bytes where 95 fit */
  cr_expect_eq(parse_content(c.bytes, c.length), MK_ERR_FILE);
  cr_expect_not_null(strstr(mk_error_message(), "model"), "%s", mk_error_message());
  c.bytes[0] = (uint8_t)strlen(trace->facts.model);
  c.bytes[3] = 0xff;
  cr_expect_eq(parse_content(c.bytes, c.length), MK_ERR_FILE);
  cr_expect_not_null(strstr(mk_error_message(), "UTF-8"), "%s", mk_error_message());
  c.bytes[3] = 'x';
  size_t qkv = 0;
  while (qkv + 4 < c.length && memcmp(c.bytes + qkv, "\3qkv", 4) != 0) {
    qkv++;
  }
  c.bytes[qkv + 1] = 'k';
  cr_expect_eq(parse_content(c.bytes, c.length), MK_ERR_FILE);
  cr_expect_not_null(strstr(mk_error_message(), "\"kkv\""), "%s", mk_error_message());
  free(c.bytes);
  mk_trace_free(trace);
}

Test(trace, not_a_file) {
  mk_trace *trace, *small = small_trace();
  char fifo[] = "/tmp/mk_trace_XXXXXX";
  close(mkstemp(fifo));
  unlink(fifo);
  cr_assert_eq(mkfifo(fifo, 0600), 0);
  cr_expect_eq(mk_trace_load(fifo, &trace), MK_ERR_FILE);
  cr_expect_eq(mk_trace_save(small, fifo), MK_ERR_RUNTIME);
  unlink(fifo);
  cr_expect_eq(mk_trace_load("/tmp", &trace), MK_ERR_FILE);
  cr_expect_eq(mk_trace_load("/nowhere/at/all", &trace), MK_ERR_FILE);
  cr_expect_eq(mk_trace_save(small, "/nowhere/at/all"), MK_ERR_RUNTIME);
  cr_expect_null(trace);
  mk_trace_free(small);
}

Test(trace, out_of_memory) {
  mk_trace *trace = small_trace(), *again;
  void *data;
  size_t size;
  for (uint64_t n = 1;; n++) {
    mk_alloc_fail_at(n, false);
    mk_status status = mk_trace_serialize(trace, &data, &size);
    mk_alloc_fail_at(0, false);
    cr_assert(status == MK_OK || (status == MK_ERR_RUNTIME && data == NULL));
    if (status == MK_OK) {
      break;
    }
  }
  for (uint64_t n = 1;; n++) {
    mk_alloc_fail_at(n, false);
    mk_status status = mk_trace_parse(data, size, &again);
    mk_alloc_fail_at(0, false);
    cr_assert(status == MK_OK || (status == MK_ERR_RUNTIME && again == NULL));
    if (status == MK_OK) {
      break;
    }
  }
  expect_same(trace, again);
  mk_trace_free(again);
  mk_free(data);
  mk_trace_free(trace);
}
