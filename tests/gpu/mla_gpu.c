/* MLA decode on the GPU against the definition in double precision, at every corner; launches that must give the same
 * bits; a part that never comes. All that no sequence uses is NaN (tools/lib/mla.h). */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "instructions/reference.h"
#include "tests/gpu/gpu_test.h"
#include "tests/support/mla.h"
#include "tools/lib/mla_time.h"

enum { LAUNCHES = 100, MANY = 200, DEADLINE_MS = 500 };
static const double kWorst = 2.5e-3; /* of the output as a whole */

/* Room for sequences that grow by two pages. NULL: that failed, and is counted. */
static mk_mla_session *open_batch(const char *name, uint32_t heads, uint32_t new_tokens, const uint32_t *lengths,
                                  uint32_t sequences) {
  mk_mla_shape shape = test_mla_shape(heads, new_tokens, lengths, sequences);
  mk_mla_session *session = NULL;
  mk_gpu_options options = {.device = device_index(), .deadline_ms = deadline_ms != 0 ? deadline_ms : DEADLINE_MS};
  if (expect_ok(mk_mla_session_new_gpu(&shape, &options, &session), name) &&
      expect_ok(mk_mla_session_load(session, lengths, sequences, heads + new_tokens), name)) {
    return session;
  }
  mk_mla_session_free(session);
  return NULL;
}

static void expect_right(mk_mla_session *session, const char *name, uint32_t stride) {
  double whole = (double)INFINITY, worst = whole;
  if (expect_ok(mk_mla_session_run(session), name)) {
    mk_mla_session_errors(session, stride, &whole, &worst);
    if (!expect(whole <= kWorst, name, "the output is off")) {
      printf("  %u heads, %u new tokens, %u sequences (%u, ...): %.2e, worst row %.2e\n", session->shape.heads,
             session->shape.new_tokens, session->sequences, session->lengths[0], whole, worst);
    }
  }
}

static void expect_batch(const char *name, uint32_t heads, uint32_t new_tokens, const uint32_t *lengths,
                         uint32_t sequences, uint32_t stride) {
  mk_mla_session *session = open_batch(name, heads, new_tokens, lengths, sequences);
  for (int placement = MK_MLA_MAKESPAN; session != NULL && placement <= MK_MLA_NAIVE; placement++) {
    if (expect_ok(mk_mla_session_schedule(session, (mk_mla_placement)placement, NULL), name)) {
      expect_right(session, name, stride);
    }
  }
  mk_mla_session_free(session);
}

/* Queries that are 32 times as large: then maxima rise by more than what may be left, page after page, in some rows and
 * not in others. */
static void test_rising(void) {
  static const uint32_t lengths[] = {700, 70, 5000, 65, 1};
  const char *name = "mla: maxima that rise";
  mk_mla_session *session = open_batch(name, 16, 3, lengths, 5);
  if (session != NULL) {
    uint16_t q = session->geometry.q, *queries = session->inputs[q];
    uint64_t bytes = session->program->buffers[q].bytes;
    for (uint64_t i = 0; i < bytes / 2; i++) {
      queries[i] = mk_float_to_bf16(mk_bf16_to_float(queries[i]) * 32);
    }
    expect_ok(mk_gpu_write(session->gpu, q, 0, queries, bytes), name);
  }
  for (int placement = MK_MLA_MAKESPAN; session != NULL && placement <= MK_MLA_NAIVE; placement++) {
    if (expect_ok(mk_mla_session_schedule(session, (mk_mla_placement)placement, NULL), name)) {
      expect_right(session, name, 1);
    }
  }
  mk_mla_session_free(session);
}

static void test_corners(void) {
  static const uint32_t around[] = {1, 0, 2, 7, 8, 9, 63, 64, 65, 71, 72, 127, 128, 129, 500};
  static const uint32_t uneven[] = {464, 4511, 173, 169}, two[] = {300, 5}, one[] = {1}, none[] = {0, 0, 0};
  static const uint32_t longest[] = {3, 131072, 70, 1};
  for (uint32_t tokens = 1; tokens <= 8; tokens++) {
    expect_batch("mla: lengths around pages and new tokens", 8, tokens, around, sizeof around / sizeof around[0], 1);
    expect_batch("mla: one token", 16, tokens, one, 1, 1);
  }
  for (uint32_t heads = 8; heads <= 128; heads += 8) {
    expect_batch("mla: heads of every number", heads, 1 + heads / 8 % 8, two, 2, heads > 64 ? 7 : 3);
  }
  expect_batch("mla: no tokens at all", 8, 2, none, 3, 1);
  expect_batch("mla: an uneven batch", 16, 4, uneven, 4, 5);
  expect_batch("mla: one of 128k", 8, 1, longest, 4, 5);
  uint32_t many[MANY], state = 5;
  for (uint32_t q = 0; q < MANY; q++) {
    state = state * 1664525 + 1013904223;
    many[q] = q % 11 == 0 ? 0 : (state >> 8) % 400;
  }
  expect_batch("mla: two hundred sequences", 8, 2, many, MANY, 3);
  expect_batch("mla: two hundred sequences of 128 heads", 128, 1, many, MANY, 97);
}

/* The list stays while lengths grow, by what is asked for and beyond. */
static void test_growth(void) {
  static const uint32_t lengths[] = {0, 1, 63, 64, 65, 700, 1280}, steps[] = {1, 1, 62, 40};
  mk_mla_session *session = open_batch("mla: growth", 16, 3, lengths, 7);
  if (session != NULL && expect_ok(mk_mla_session_schedule(session, MK_MLA_MAKESPAN, NULL), "mla: growth")) {
    expect_right(session, "mla: growth", 1);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
      if (expect_ok(mk_mla_session_grow(session, steps[i]), "mla: growth")) {
        expect_right(session, "mla: growth", 1);
      }
    }
  }
  mk_mla_session_free(session);
}

static void test_same_bits(const char *name, uint32_t heads, uint32_t new_tokens, const uint32_t *lengths,
                           uint32_t sequences) {
  mk_mla_session *session = open_batch(name, heads, new_tokens, lengths, sequences);
  unsigned differing = 0;
  size_t bytes = 0;
  bool ok = session != NULL && expect_ok(mk_mla_session_schedule(session, MK_MLA_MAKESPAN, NULL), name) &&
            expect_ok(mk_mla_session_run(session), name);
  const uint16_t *output = ok ? mk_mla_session_output(session, &bytes) : NULL;
  void *first = ok ? malloc(bytes) : NULL;
  if (first != NULL) {
    memcpy(first, output, bytes);
    for (unsigned i = 1; ok && i < LAUNCHES; i++) {
      ok = expect_ok(mk_mla_session_run(session), name);
      differing += ok && memcmp(first, output, bytes) != 0;
    }
    printf("%s: %u of %d launches differ\n", name, differing, LAUNCHES);
    expect(ok && differing == 0, name, "a launch gave other bits");
  }
  free(first);
  mk_mla_session_free(session);
}

/* An SM whose parts never come: whoever reduces them (`opcode`) says so, and the next launch works. */
static void test_skipped_part(const char *name, const uint32_t *lengths, uint32_t sequences, const char *opcode) {
  mk_mla_session *session = open_batch(name, 16, 4, lengths, sequences);
  if (session != NULL && expect_ok(mk_mla_session_schedule(session, MK_MLA_MAKESPAN, NULL), name)) {
    uint32_t sm = 0; /* the first one with a slot */
    while (mk_mla_list_of(session->work + (size_t)sm * session->geometry.list_words).items == 0) {
      sm++;
    }
    expect_right(session, name, 7);
    mk_gpu_skip_signal(session->gpu, 2 * sm + 1);
    mk_status status = mk_mla_session_run(session);
    printf("%s: %s\n", name, status == MK_OK ? "no fault" : mk_error_message());
    expect(status == MK_ERR_DEVICE, name, "a part that never came was no device fault");
    expect(strstr(mk_error_message(), "consumer, instruction ") != NULL && strstr(mk_error_message(), opcode) != NULL &&
               strstr(mk_error_message(), "a stamped word of buffer parts: have generation ") != NULL &&
               strstr(mk_error_message(), "want 2") != NULL,
           name, "the message does not name role, instruction, edge, have and want");
    mk_gpu_skip_signal(session->gpu, 0);
    expect_right(session, name, 7);
  }
  mk_mla_session_free(session);
}

/* A call takes longer than a kernel with nothing to do, whatever it comes after, and the clock is one that a GPU can
 * have. */
static void test_times(void) {
  static const uint32_t lengths[] = {9000, 300};
  const char *name = "mla: times of a call";
  mk_mla_session *session = open_batch(name, 16, 4, lengths, 2);
  mk_mla_time empty, time;
  if (session != NULL && expect_ok(mk_mla_session_schedule(session, MK_MLA_MAKESPAN, NULL), name) &&
      expect_ok(mk_mla_session_run(session), name) &&
      expect_ok(mk_mla_session_time(session, MK_MLA_EMPTY, 1, &empty), name)) {
    expect(empty.us > 0.5 && empty.us < 100, name, "an empty kernel takes no time, or much");
    for (int timing = MK_MLA_WARM; timing <= MK_MLA_WRITTEN; timing++) {
      bool ok = expect_ok(mk_mla_session_time(session, (mk_mla_timing)timing, 1, &time), name);
      expect(ok && time.us > empty.us && time.us < 10000, name,
             "a call takes no longer than an empty kernel, or forever");
      expect(ok && time.mhz > 100 && time.mhz < 5000, name, "the SMs' clock is none");
    }
    expect_right(session, name, 7);
  }
  mk_mla_session_free(session);
}

void test_mla(bool quick) {
  static const uint32_t uneven[] = {4641, 45118, 1730, 1696}, blocks[] = {700, 700, 700}, two[] = {9000, 300};
  uint32_t even[32];
  for (size_t i = 0; i < sizeof even / sizeof even[0]; i++) {
    even[i] = 1024;
  }
  /* It keeps the GPU's context, which takes longer to make than most batches. */
  mk_mla_session *keeper = open_batch("mla: a session beside others", 8, 1, blocks, 1);
  if (!quick) {
    test_corners();
    test_rising();
    test_growth();
  }
  test_same_bits("mla: an uneven batch", 16, 4, uneven, 4);
  test_same_bits("mla: blocks that share pages", 128, 2, blocks, 3);
  test_skipped_part("mla: a part that never comes", two, 2, "(mla_reduce)");
  /* Of four parts each, folded at the end of an item: of an SM two warps wait, and the others are done by then. */
  test_skipped_part("mla: a part that is never folded", even, sizeof even / sizeof even[0], "(mla_part)");
  test_times();
  mk_mla_session_free(keeper);
}
