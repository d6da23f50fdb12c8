/* The race detector of the CPU machine: each kind of unordered access is found, and the same program with its order
 * restored runs clean in every interleaving. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/tiny.h"

enum { SEEDS = 60, EPOCHS = 6 };

/* In at least one interleaving the machine reports an access whose message holds both words; none ends in another
 * way. */
static void expect_race(const test_tiny *tiny, const char *access, const char *buffer, bool always) {
  uint32_t found = 0;
  char words[64];
  snprintf(words, sizeof words, "buffer %s:", buffer);
  for (uint64_t seed = 1; seed <= SEEDS; seed++) {
    mk_cpu_options options = {.seed = seed, .check_races = true, .adversarial = seed % 2 == 0};
    mk_status status = test_tiny_run(tiny, &options, EPOCHS);
    if (status != MK_OK) {
      const char *message = mk_error_message();
      cr_assert_eq(status, MK_ERR_DEVICE, "%s", message);
      found += strstr(message, access) != NULL && strstr(message, words) != NULL;
    }
    cr_assert(!always || status == MK_ERR_DEVICE, "seed %llu runs clean", (unsigned long long)seed);
  }
  cr_assert_gt(found, 0, "no interleaving reports `%s` of %s; the last message is: %s", access, buffer,
               mk_error_message());
}

static void expect_clean(const test_tiny *tiny) {
  for (uint64_t seed = 0; seed <= SEEDS; seed++) {
    mk_cpu_options options = {.seed = seed, .check_races = true, .adversarial = seed % 2 == 0};
    cr_assert_eq(test_tiny_run(tiny, &options, EPOCHS), MK_OK, "seed %llu: %s", (unsigned long long)seed,
                 mk_error_message());
  }
}

/* SM 0 writes the plain vector `shared`, SM 1 reads it. `written` tells the reader, `read` tells the writer of the next
 * epoch. */
typedef struct handover {
  bool reader_waits, writer_waits;
  mk_counter_kind written, read;
} handover;

static void plain_handover(test_tiny *tiny, handover how) {
  test_tiny_start(tiny, 2);
  uint16_t q0 = test_tiny_floats(tiny, "q0", 16, 16), q1 = test_tiny_floats(tiny, "q1", 16, 16);
  uint16_t s0 = test_tiny_halves(tiny, "s0"), s1 = test_tiny_halves(tiny, "s1");
  uint16_t shared = test_tiny_plain(tiny, "shared"), own = test_tiny_plain(tiny, "own");
  uint16_t written = test_tiny_counter(tiny, "written", how.written), read = test_tiny_counter(tiny, "read", how.read);
  mk_instruction *in = test_tiny_qkv(tiny, 0, q0);
  if (how.writer_waits) {
    test_tiny_wait(in, read, 0); /* all signals of the epochs before this one */
  }
  in = test_tiny_reduce(tiny, 0, q0, MK_NONE_BUFFER, shared, s0);
  test_tiny_signal(tiny, in, written);
  test_tiny_qkv(tiny, 1, q1);
  in = test_tiny_reduce(tiny, 1, q1, shared, own, s1);
  if (how.reader_waits) {
    test_tiny_wait(in, written, 1);
  }
  test_tiny_signal(tiny, in, read);
}

static void run_handover(handover how, const char *access, bool always) {
  test_tiny tiny;
  plain_handover(&tiny, how);
  if (access == NULL) {
    expect_clean(&tiny);
  } else {
    expect_race(&tiny, access, "shared", always);
  }
  test_tiny_stop(&tiny);
}

Test(race, release_counters_order_plain_data) {
  run_handover((handover){true, true, MK_COUNTER_RELEASE, MK_COUNTER_RELEASE}, NULL, false);
}

Test(race, read_after_write_without_a_wait) {
  run_handover((handover){false, true, MK_COUNTER_RELEASE, MK_COUNTER_RELEASE}, "reads what may not yet be visible",
               false);
}

Test(race, read_after_write_after_a_relaxed_counter) {
  run_handover((handover){true, true, MK_COUNTER_RELAXED, MK_COUNTER_RELEASE}, "reads what may not yet be visible",
               true);
}

Test(race, write_after_read_of_the_epoch_before_without_a_wait) {
  run_handover((handover){true, false, MK_COUNTER_RELEASE, MK_COUNTER_RELEASE}, "overwrites what may still be read",
               false);
}

Test(race, write_after_read_after_a_relaxed_counter) {
  run_handover((handover){true, true, MK_COUNTER_RELEASE, MK_COUNTER_RELAXED}, "overwrites what may still be read",
               true);
}

/* Both SMs write `shared`; in order: SM 0, SM 1, SM 0 of the next epoch. */
static void two_writers(mk_counter_kind first, mk_counter_kind second, bool clean) {
  test_tiny tiny;
  test_tiny_start(&tiny, 2);
  uint16_t q0 = test_tiny_floats(&tiny, "q0", 16, 16), q1 = test_tiny_floats(&tiny, "q1", 16, 16);
  uint16_t s0 = test_tiny_halves(&tiny, "s0"), s1 = test_tiny_halves(&tiny, "s1");
  uint16_t shared = test_tiny_plain(&tiny, "shared");
  uint16_t one = test_tiny_counter(&tiny, "one", first), two = test_tiny_counter(&tiny, "two", second);
  test_tiny_wait(test_tiny_qkv(&tiny, 0, q0), two, 0);
  test_tiny_signal(&tiny, test_tiny_reduce(&tiny, 0, q0, MK_NONE_BUFFER, shared, s0), one);
  test_tiny_qkv(&tiny, 1, q1);
  mk_instruction *in = test_tiny_reduce(&tiny, 1, q1, MK_NONE_BUFFER, shared, s1);
  test_tiny_wait(in, one, 1);
  test_tiny_signal(&tiny, in, two);
  if (clean) {
    expect_clean(&tiny);
  } else {
    expect_race(&tiny, "overwrites the unordered write", "shared", true);
  }
  test_tiny_stop(&tiny);
}

Test(race, write_after_write_in_order) { two_writers(MK_COUNTER_RELEASE, MK_COUNTER_RELEASE, true); }
Test(race, write_after_write_of_plain_data) { two_writers(MK_COUNTER_RELAXED, MK_COUNTER_RELEASE, false); }
Test(race, write_after_write_of_the_epoch_before) { two_writers(MK_COUNTER_RELEASE, MK_COUNTER_RELAXED, false); }

Test(race, write_after_write_of_stamped_words) {
  test_tiny tiny;
  test_tiny_start(&tiny, 2);
  uint16_t shared = test_tiny_floats(&tiny, "shared", 16, 16);
  test_tiny_qkv(&tiny, 0, shared);
  test_tiny_qkv(&tiny, 1, shared);
  expect_race(&tiny, "overwrites the unordered write", "shared", true);
  test_tiny_stop(&tiny);
}

/* SM 1 reads the stamped s0 of SM 0. Only the token boundary can tell SM 0 that it has: through SM 1's candidate. */
Test(race, stamped_words_are_reused_after_the_token_boundary) {
  test_tiny tiny;
  test_tiny_loop(&tiny, 2);
  expect_clean(&tiny);
  test_tiny_stop(&tiny);
}

Test(race, write_after_read_of_stamped_words) {
  test_tiny tiny;
  test_tiny_loop(&tiny, 1);
  expect_race(&tiny, "overwrites what may still be read", "s0", false);
  test_tiny_stop(&tiny);
}

/* A stamp says that its writer has run, which lets stamped words be reused; it publishes nothing, so plain data stay
 * unordered. */
Test(race, write_after_read_after_a_stamp) {
  test_tiny tiny;
  test_tiny_start(&tiny, 2);
  uint16_t q0 = test_tiny_floats(&tiny, "q0", 16, 16), q1 = test_tiny_floats(&tiny, "q1", 16, 16);
  uint16_t t0 = test_tiny_floats(&tiny, "t0", 16, 16);
  uint16_t s0 = test_tiny_halves(&tiny, "s0"), s1 = test_tiny_halves(&tiny, "s1");
  uint16_t shared = test_tiny_plain(&tiny, "shared"), own = test_tiny_plain(&tiny, "own");
  uint16_t written = test_tiny_counter(&tiny, "written", MK_COUNTER_RELEASE);
  test_tiny_qkv(&tiny, 0, q0);
  test_tiny_signal(&tiny, test_tiny_reduce(&tiny, 0, q0, MK_NONE_BUFFER, shared, s0), written);
  test_tiny_part(&tiny, 0, s1, t0);
  test_tiny_qkv(&tiny, 1, q1);
  test_tiny_wait(test_tiny_reduce(&tiny, 1, q1, shared, own, s1), written, 1);
  expect_race(&tiny, "overwrites what may still be read", "shared", true);
  test_tiny_stop(&tiny);
}

/* A residual that stays on its SM needs no edge: the storer reads and writes it in queue order. */
Test(race, residual_of_one_sm_needs_no_edge) {
  test_tiny tiny;
  test_tiny_start(&tiny, 1);
  uint16_t q0 = test_tiny_floats(&tiny, "q0", 16, 16), residual = test_tiny_plain(&tiny, "residual");
  uint16_t s0 = test_tiny_halves(&tiny, "s0"), s1 = test_tiny_halves(&tiny, "s1");
  test_tiny_qkv(&tiny, 0, q0);
  test_tiny_reduce(&tiny, 0, q0, MK_NONE_BUFFER, residual, s0);
  test_tiny_reduce(&tiny, 0, q0, residual, residual, s1);
  test_tiny_boundary(&tiny, 0, s1, 1);
  expect_clean(&tiny);
  test_tiny_stop(&tiny);
}

static void append_and_load(test_tiny *tiny, uint32_t sm, uint16_t cache, bool boundary, uint32_t sms) {
  char name[16];
  snprintf(name, sizeof name, "qkv%u", sm);
  uint16_t qkv = test_tiny_floats(tiny, name, 48, 16);
  snprintf(name, sizeof name, "parts%u", sm);
  uint16_t parts = test_tiny_floats(tiny, name, 18, 18);
  snprintf(name, sizeof name, "attn%u", sm);
  uint16_t out = test_tiny_halves(tiny, name);
  test_tiny_qkv_heads(tiny, sm, qkv);
  test_tiny_attention(tiny, sm, qkv, cache, parts);
  test_tiny_combine(tiny, sm, parts, out);
  if (boundary) {
    test_tiny_boundary(tiny, sm, out, sms);
  }
}

/* The loader of the next epoch reads what the consumer appends: it waits for `next` on its SM. */
Test(race, cache_is_appended_and_loaded_in_order) {
  test_tiny tiny;
  test_tiny_start(&tiny, 1);
  append_and_load(&tiny, 0, test_tiny_cache(&tiny, "cache"), true, 1);
  expect_clean(&tiny);
  test_tiny_stop(&tiny);
}

Test(race, cache_is_loaded_while_it_is_appended_to) {
  test_tiny tiny;
  test_tiny_start(&tiny, 1);
  append_and_load(&tiny, 0, test_tiny_cache(&tiny, "cache"), false, 1);
  expect_race(&tiny, "may", "cache", true); /* the load or the append, whichever comes second */
  test_tiny_stop(&tiny);
}

Test(race, cache_rows_have_one_owner) {
  test_tiny tiny;
  test_tiny_start(&tiny, 2);
  uint16_t cache = test_tiny_cache(&tiny, "cache");
  append_and_load(&tiny, 0, cache, true, 2);
  append_and_load(&tiny, 1, cache, true, 2);
  expect_race(&tiny, "unordered", "cache", true);
  test_tiny_stop(&tiny);
}
