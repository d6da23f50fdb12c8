/* MLA decode on the CPU machine against the definition in double precision, at every corner; and the same bits in every
 * interleaving. All that no sequence uses is NaN (tools/lib/mla.h). */
#include <criterion/criterion.h>
#include <string.h>

#include "instructions/reference.h"
#include "tests/support/effort.h"
#include "tests/support/mla.h"
#include "tests/support/numbers.h"
#include "vm/verify/verify.h"

static const double kWorst = 2.5e-3;

static mk_mla_session *open_loaded(uint32_t heads, uint32_t new_tokens, const uint32_t *lengths, uint32_t sequences,
                                   uint32_t sms, const mk_cpu_options *options) {
  mk_mla_shape shape = test_mla_shape(heads, new_tokens, lengths, sequences);
  mk_mla_session *session;
  cr_assert_eq(mk_mla_session_new(&shape, sms, options, &session), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_mla_session_load(session, lengths, sequences, sms), MK_OK, "%s", mk_error_message());
  return session;
}

static void expect_right(mk_mla_session *session, uint32_t stride) {
  cr_assert_eq(mk_mla_session_run(session), MK_OK, "%s", mk_error_message());
  double error = mk_mla_session_error(session, stride);
  cr_assert(error <= kWorst, "%u heads, %u tokens, %u sequences (%u, ...), %u SMs: error %g", session->shape.heads,
            session->shape.new_tokens, session->sequences, session->lengths[0], session->geometry.sms, error);
}

static void expect_batch(uint32_t heads, uint32_t new_tokens, const uint32_t *lengths, uint32_t sequences, uint32_t sms,
                         uint32_t stride) {
  mk_mla_session *session = open_loaded(heads, new_tokens, lengths, sequences, sms, &(mk_cpu_options){.seed = 0});
  for (int placement = MK_MLA_MAKESPAN; placement <= MK_MLA_NAIVE; placement++) {
    cr_assert_eq(mk_mla_session_schedule(session, (mk_mla_placement)placement, NULL), MK_OK, "%s", mk_error_message());
    expect_right(session, stride);
  }
  mk_mla_session_free(session);
}

TestSuite(mla, .timeout = MK_HANG_SECONDS);

Test(mla, lengths_around_pages_and_new_tokens) {
  static const uint32_t lengths[] = {1, 0, 2, 7, 8, 9, 63, 64, 65, 71, 72, 127, 128, 129, 500};
  for (uint32_t tokens = 1; tokens <= 8; tokens++) {
    expect_batch(8, tokens, lengths, sizeof lengths / sizeof lengths[0], tokens % 2 == 0 ? 7 : 40, 1);
  }
}

Test(mla, one_token) {
  for (uint32_t tokens = 1; tokens <= 8; tokens++) {
    expect_batch(16, tokens, (const uint32_t[]){1}, 1, 3, 1);
  }
}

Test(mla, nothing_at_all) {
  expect_batch(8, 2, (const uint32_t[]){0, 0, 0}, 3, 2, 1);
  expect_batch(8, 2, (const uint32_t[]){0}, 1, 132, 1);
}

Test(mla, heads_and_tokens_of_every_kind) {
  for (uint32_t heads = 8; heads <= 128; heads += test_effort(24, 8)) { /* to 128, by either */
    expect_batch(heads, 1 + heads / 8 % 8, (const uint32_t[]){300, 5}, 2, 9, heads > 64 ? 7 : 3);
  }
  expect_batch(128, 8, (const uint32_t[]){130, 0, 700}, 3, 132, 29);
}

Test(mla, sms_of_every_number) {
  static const uint32_t counts[] = {1, 2, 3, 7, 132, 264};
  for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
    expect_batch(16, 4, (const uint32_t[]){464, 4511, 173, 169}, 4, counts[i], 5);
  }
}

Test(mla, two_hundred_sequences) {
  uint32_t lengths[200];
  uint64_t seed = 5;
  for (uint32_t q = 0; q < 200; q++) {
    lengths[q] = q % 11 == 0 ? 0 : test_random_below(&seed, 400);
  }
  expect_batch(8, 2, lengths, 200, 132, 3);
  expect_batch(128, 1, lengths, 200, 132, 97);
}

Test(mla, one_of_128k) { expect_batch(8, 1, (const uint32_t[]){131072}, 1, 132, 3); }

Test(mla, one_of_128k_among_short_ones) { expect_batch(8, 1, (const uint32_t[]){3, 131001, 70, 1}, 4, 132, 5); }

/* The list stays while lengths grow: by what is asked for, 64, and beyond. */
Test(mla, lengths_that_grow_under_a_list) {
  static const uint32_t lengths[] = {0, 1, 63, 64, 65, 700, 1280}, steps[] = {1, 1, 62, 40};
  for (int placement = MK_MLA_MAKESPAN; placement <= MK_MLA_NAIVE; placement++) {
    mk_mla_session *session = open_loaded(16, 3, lengths, 7, 20, &(mk_cpu_options){.seed = 0});
    cr_assert_eq(mk_mla_session_schedule(session, (mk_mla_placement)placement, NULL), MK_OK, "%s", mk_error_message());
    expect_right(session, 1);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
      cr_assert_eq(mk_mla_session_grow(session, steps[i]), MK_OK, "%s", mk_error_message());
      expect_right(session, 1);
    }
    mk_mla_session_free(session);
  }
}

/* And for lengths that end before a part begins: all but the first see nothing, and some rows have no slot that
 * does. */
Test(mla, lengths_that_shrink_under_a_list) {
  mk_mla_session *session = open_loaded(16, 8, (const uint32_t[]){900, 1280, 400}, 3, 30, &(mk_cpu_options){.seed = 0});
  mk_mla_summary summary;
  cr_assert_eq(mk_mla_session_schedule(session, MK_MLA_MAKESPAN, &summary), MK_OK, "%s", mk_error_message());
  cr_assert_gt(summary.slots, 12);
  for (uint32_t length = 0; length <= 320; length = length * 2 + 5) {
    const uint32_t lengths[] = {length, 320 - length, 0};
    cr_assert_eq(mk_mla_session_load(session, lengths, 3, 2), MK_OK, "%s", mk_error_message());
    expect_right(session, 1);
  }
  mk_mla_session_free(session);
}

/* One machine, one batch after another: slots are written anew, and stamps of the batch before do not count. */
Test(mla, batches_in_a_row) {
  mk_mla_session *session =
      open_loaded(8, 2, (const uint32_t[]){1500, 700, 30}, 3, 10, &(mk_cpu_options){.seed = 9, .check_races = true});
  uint64_t seed = 6;
  for (uint32_t round = 0; round < 12; round++) {
    uint32_t lengths[3] = {test_random_below(&seed, 1500), test_random_below(&seed, 700), test_random_below(&seed, 30)};
    uint32_t count = 1 + test_random_below(&seed, 3);
    cr_assert_eq(mk_mla_session_load(session, lengths, count, round), MK_OK, "%s", mk_error_message());
    cr_assert_eq(mk_mla_session_schedule(session, (mk_mla_placement)(round % 3 == 0), NULL), MK_OK, "%s",
                 mk_error_message());
    expect_right(session, 1);
    cr_assert_eq(mk_cpu_generation(session->cpu), round + 1);
  }
  mk_mla_session_free(session);
}

static void *output(const mk_mla_session *session, size_t *bytes) {
  *bytes = session->program->buffers[session->geometry.out].bytes;
  return mk_cpu_memory(session->cpu, session->geometry.out);
}

Test(mla, every_interleaving_gives_the_same_bits) {
  static const uint32_t lengths[] = {900, 77, 0, 333, 64};
  mk_mla_session *greedy = open_loaded(16, 2, lengths, 5, 9, &(mk_cpu_options){.seed = 0});
  size_t bytes;
  cr_assert_eq(mk_mla_session_schedule(greedy, MK_MLA_MAKESPAN, NULL), MK_OK, "%s", mk_error_message());
  expect_right(greedy, 1);
  const void *want = output(greedy, &bytes);
  for (uint64_t seed = 1; seed <= test_effort(12, 60); seed++) {
    mk_cpu_options options = {.seed = seed, .adversarial = seed % 2 != 0, .check_races = seed % 5 != 0};
    mk_mla_session *session = open_loaded(16, 2, lengths, 5, 9, &options);
    cr_assert_eq(mk_mla_session_schedule(session, MK_MLA_MAKESPAN, NULL), MK_OK, "%s", mk_error_message());
    for (int run = 0; run < 2; run++) {
      cr_assert_eq(mk_mla_session_run(session), MK_OK, "seed %llu: %s", (unsigned long long)seed, mk_error_message());
      cr_assert_eq(memcmp(output(session, &bytes), want, bytes), 0, "seed %llu", (unsigned long long)seed);
    }
    mk_mla_session_free(session);
  }
  mk_mla_session_free(greedy);
}

/* A block that is not cut has the same bits on any number of SMs, in any company. */
Test(mla, whole_blocks_are_alike_everywhere) {
  static const uint32_t lengths[] = {130, 200, 77}, counts[] = {1, 2, 3};
  uint16_t first[2 * 8 * MK_MLA_LATENT];
  for (size_t i = 0; i < 3; i++) {
    mk_mla_session *session = open_loaded(8, 2, lengths, counts[i], counts[i], &(mk_cpu_options){.seed = 0});
    mk_mla_summary summary;
    size_t bytes;
    cr_assert_eq(mk_mla_session_load(session, lengths, counts[i], 1), MK_OK);
    cr_assert_eq(mk_mla_session_schedule(session, MK_MLA_NAIVE, &summary), MK_OK);
    cr_assert_eq(summary.slots, 0);
    cr_assert_eq(mk_mla_session_run(session), MK_OK, "%s", mk_error_message());
    if (i == 0) {
      memcpy(first, output(session, &bytes), sizeof first);
    }
    cr_assert_eq(memcmp(output(session, &bytes), first, sizeof first), 0, "with %u sequences", counts[i]);
    mk_mla_session_free(session);
  }
}

Test(mla, a_run_is_one_epoch) {
  mk_mla_session *session = open_loaded(8, 1, (const uint32_t[]){5}, 1, 2, &(mk_cpu_options){.seed = 0});
  cr_assert_eq(mk_cpu_run(session->cpu, 2), MK_ERR_USAGE);
  cr_assert_not_null(strstr(mk_error_message(), "one epoch"), "%s", mk_error_message());
  mk_cpu *cpu;
  cr_assert_eq(mk_cpu_new(session->program, &(mk_cpu_options){.accesses_only = true}, &cpu), MK_ERR_USAGE);
  mk_mla_session_free(session);
}

Test(mla, recorded) {
  mk_mla_session *session = open_loaded(8, 1, (const uint32_t[]){900, 5}, 2, 4, &(mk_cpu_options){.seed = 3});
  mk_trace *trace;
  cr_assert_eq(mk_mla_session_schedule(session, MK_MLA_MAKESPAN, NULL), MK_OK);
  cr_assert_eq(mk_cpu_trace_on(session->cpu, 0, 1, 1000), MK_OK, "%s", mk_error_message());
  expect_right(session, 1);
  cr_assert_eq(mk_cpu_trace_take(session->cpu, &trace), MK_OK, "%s", mk_error_message());
  mk_trace_free(trace);
  mk_mla_session_free(session);
}

/* The machine waits for stamps word by word: of every word that a reduction reads, and of no other. */
Test(mla, reductions_wait_for_what_they_read) {
  mk_mla_session *session = open_loaded(8, 1, (const uint32_t[]){600}, 1, 2, &(mk_cpu_options){.seed = 0});
  const mk_mla_geometry *g = &session->geometry;
  const uint32_t row = g->list_words;
  uint32_t *work = session->work;
  const uint32_t list[] = {2, 1, 0, 0, 0, 0, 4, 3, 0, 4, MK_MLA_REST, 4, 0, 3, 2, 5 | 6u << 16};
  const uint32_t other[] = {0, 2, 0, 0, 0, 3, 2, 0 | 5u << 16, 0, 3, 2, 11 | 21u << 16};
  memcpy(work, list, sizeof list);
  memcpy(work + row, other, sizeof other);
  expect_right(session, 1);
  mk_step_state state = {0};
  mk_reference reference = {.program = session->program, .state = &state, .generation = 1, .publish = 1};
  uint8_t *memory[8];
  float *scratch;
  cr_assert_eq(mk_alloc(mk_reference_scratch(session->program), sizeof *scratch, &scratch), MK_OK);
  for (size_t b = 0; b < session->program->buffer_count; b++) {
    memory[b] = mk_cpu_memory(session->cpu, b);
  }
  reference.memory = memory;
  reference.scratch = scratch;
  uint64_t *parts = mk_cpu_memory(session->cpu, g->parts);
  size_t slot_words = session->program->buffers[g->parts].cols;
  for (uint32_t slot = 0; slot < g->slots; slot++) {
    for (uint32_t word = 0; word < slot_words; word++) {
      uint32_t unit = word / MK_MLA_UNIT_WORDS;
      bool reads = (slot == 3 || slot == 4) && unit >= 5 && unit <= 10;
      uint64_t *at = &parts[slot * slot_words + word], was = *at;
      *at = was & UINT32_MAX;
      mk_reference_result result = mk_reference_run(&reference, &session->program->instructions[1]);
      cr_assert_eq(result == MK_REFERENCE_WAIT, reads, "slot %u word %u", slot, word);
      *at = was;
    }
  }
  mk_free(scratch);
  mk_mla_session_free(session);
}
