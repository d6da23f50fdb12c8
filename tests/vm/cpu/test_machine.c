/* The CPU machine on programs of a few instructions: order by counters and stamps, epochs, deadlocks, runs after
 * runs. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/tiny.h"

static void token_loop(test_tiny *tiny) { test_tiny_loop(tiny, 2); }

typedef struct heard {
  uint32_t tokens[TINY_CONTEXT], first, count, stop_after;
} heard;

static bool hear(void *user, uint32_t position, uint32_t token) {
  heard *h = user;
  cr_assert_eq(position, h->first + h->count, "positions come one after the other");
  cr_assert_lt(token, TINY_VOCAB);
  h->tokens[h->count++] = token;
  return h->count != h->stop_after;
}

static const mk_cpu_options modes[] = {{0},
                                       {.threads = 2},
                                       {.threads = 64},
                                       {.seed = 1},
                                       {.seed = 2},
                                       {.seed = 3, .adversarial = true},
                                       {.seed = 4, .adversarial = true, .check_races = true},
                                       {.adversarial = true},
                                       {.check_races = true}};
enum { MODES = sizeof modes / sizeof modes[0] };

Test(cpu, tokens_are_the_same_in_every_mode) {
  test_tiny tiny;
  token_loop(&tiny);
  heard want = {0};
  for (size_t mode = 0; mode < MODES; mode++) {
    heard got = {0};
    mk_cpu *cpu = test_tiny_machine(&tiny, &modes[mode]);
    test_sequence sequence = test_tiny_sequence();
    cr_assert_eq(test_sequence_run(&sequence, cpu, 20, hear, &got), MK_OK, "%s", mk_error_message());
    cr_assert_eq(got.count, 20);
    cr_assert(got.tokens[0] == 2 && got.tokens[1] == 3, "the prompt is 1, 2, 3");
    want = mode == 0 ? got : want;
    cr_assert_eq(memcmp(got.tokens, want.tokens, sizeof want.tokens), 0);
    const uint32_t *ring = mk_cpu_memory(cpu, tiny.ring);
    cr_assert(ring[0] == MK_CANDIDATE_NONE && ring[1] == MK_CANDIDATE_NONE, "the prompt goes on");
    cr_assert_eq(memcmp(ring + 2, want.tokens + 2, 18 * sizeof *ring), 0);
    mk_cpu_free(cpu);
  }
  test_tiny_stop(&tiny);
}

/* Counters and generations go on from run to run: 20 epochs in one piece, or in pieces, or with a sequence in
 * between. */
Test(cpu, runs_follow_each_other) {
  test_tiny tiny;
  token_loop(&tiny);
  for (size_t mode = 0; mode < MODES; mode++) {
    heard whole = {0}, pieces = {0}, other = {.stop_after = 4};
    mk_cpu *cpu = test_tiny_machine(&tiny, &modes[mode]);
    test_sequence sequence = test_tiny_sequence();
    cr_assert_eq(test_sequence_run(&sequence, cpu, 20, hear, &whole), MK_OK);
    sequence = test_tiny_sequence();
    cr_assert_eq(test_sequence_run(&sequence, cpu, 20, hear, &other), MK_OK);
    cr_assert_eq(other.count, 4, "stopped after 4 of 20, heard %u", other.count);
    cr_assert_eq(memcmp(other.tokens, whole.tokens, 4 * sizeof *whole.tokens), 0);
    sequence = test_tiny_sequence();
    for (uint32_t length = 2; length <= 6; length++) { /* 2 + 3 + 4 + 5 + 6 = 20 */
      cr_assert_eq(test_sequence_run(&sequence, cpu, length, hear, &pieces), MK_OK, "%s", mk_error_message());
    }
    cr_assert_eq(pieces.count, 20);
    cr_assert_eq(memcmp(pieces.tokens, whole.tokens, sizeof whole.tokens), 0);
    cr_assert_eq(test_sequence_run(&sequence, cpu, 0, hear, &other), MK_OK);
    cr_assert_eq(other.count, 4, "a run of no epochs says nothing");
    mk_cpu_free(cpu);
  }
  test_tiny_stop(&tiny);
}

/* Values reach another SM through a release counter alone: SM 1 adds what SM 0 has left in plain memory. */
static void plain_chain(test_tiny *tiny, mk_counter_kind kind) {
  test_tiny_start(tiny, 2);
  uint16_t q0 = test_tiny_floats(tiny, "q0", 16, 16), q1 = test_tiny_floats(tiny, "q1", 16, 16);
  uint16_t s0 = test_tiny_halves(tiny, "s0"), s1 = test_tiny_halves(tiny, "s1");
  uint16_t shared = test_tiny_plain(tiny, "shared"), sum = test_tiny_plain(tiny, "sum");
  uint16_t written = test_tiny_counter(tiny, "written", kind), read = test_tiny_counter(tiny, "read", kind);
  test_tiny_wait(test_tiny_qkv(tiny, 0, q0), read, 0);
  test_tiny_signal(tiny, test_tiny_reduce(tiny, 0, q0, MK_NONE_BUFFER, shared, s0), written);
  test_tiny_qkv(tiny, 1, q1);
  mk_instruction *in = test_tiny_reduce(tiny, 1, q1, shared, sum, s1);
  test_tiny_wait(in, written, 1);
  test_tiny_signal(tiny, in, read);
}

Test(cpu, counters_hold_back_what_waits_for_them) {
  static const mk_counter_kind kinds[] = {MK_COUNTER_RELEASE, MK_COUNTER_RELAXED};
  for (size_t k = 0; k < 2; k++) {
    test_tiny tiny;
    plain_chain(&tiny, kinds[k]);
    uint16_t q = (uint16_t)mk_program_find_buffer(tiny.program, "q0"),
             sum = (uint16_t)mk_program_find_buffer(tiny.program, "sum");
    for (uint64_t seed = 0; seed < 20; seed++) {
      mk_cpu *cpu = test_tiny_machine(&tiny, &(mk_cpu_options){.seed = seed});
      cr_assert_eq(test_sequence_steps(cpu, 1, 0, 5), MK_OK, "%s", mk_error_message());
      const uint64_t *words = mk_cpu_memory(cpu, q);
      const float *shared = mk_cpu_memory(cpu, (size_t)mk_program_find_buffer(tiny.program, "shared"));
      const float *total = mk_cpu_memory(cpu, sum);
      for (uint32_t i = 0; i < 16; i++) {
        cr_assert_eq(words[i] >> 32, 5, "the stamp of the fifth epoch is 5");
        cr_assert(shared[i] != 0 && total[i] == shared[i] + mk_param_float((uint32_t)words[i]));
      }
      mk_cpu_free(cpu);
    }
    test_tiny_stop(&tiny);
  }
}

/* A relaxed counter may be trusted for stamped words, never for plain ones: the adversarial machine says so. */
Test(cpu, relaxed_counters_order_no_plain_data) {
  test_tiny tiny;
  plain_chain(&tiny, MK_COUNTER_RELAXED);
  for (uint64_t seed = 0; seed < 20; seed++) {
    mk_cpu_options options = {.seed = seed, .adversarial = true, .check_races = true};
    cr_assert_eq(test_tiny_run(&tiny, &options, 3), MK_ERR_DEVICE);
    cr_assert_not_null(strstr(mk_error_message(), "unordered access"), "%s", mk_error_message());
    cr_assert_not_null(strstr(mk_error_message(), "buffer shared"), "%s", mk_error_message());
  }
  test_tiny_stop(&tiny);
}

static void expect_deadlock(const test_tiny *tiny, const char *const *words) {
  for (size_t mode = 0; mode < MODES; mode++) {
    cr_assert_eq(test_tiny_run(tiny, &modes[mode], 1), MK_ERR_DEVICE, "mode %zu runs", mode);
    for (const char *const *word = words; *word != NULL; word++) {
      cr_assert_not_null(strstr(mk_error_message(), *word), "mode %zu: `%s` is not in: %s", mode, *word,
                         mk_error_message());
    }
  }
}

Test(cpu, threshold_beyond_the_total_is_a_deadlock) {
  test_tiny tiny;
  plain_chain(&tiny, MK_COUNTER_RELEASE);
  tiny.program->instructions[3].waits[0].threshold = 2; /* one signal per epoch: satisfied by none of the first */
  expect_deadlock(
      &tiny, (const char *const[]){"deadlock", "SM 1", "epoch 0", "instruction 104", "reduce_add", "written", NULL});
  test_tiny_stop(&tiny);
}

/* The counter that is missing is named, be it the instruction's second. */
Test(cpu, deadlock_names_the_counter_that_is_missing) {
  test_tiny tiny;
  plain_chain(&tiny, MK_COUNTER_RELEASE);
  uint16_t never = test_tiny_counter(&tiny, "never", MK_COUNTER_RELEASE);
  test_tiny_wait(&tiny.program->instructions[3], never, 1);
  expect_deadlock(&tiny, (const char *const[]){"deadlock", "SM 1", "instruction 104", "never", NULL});
  test_tiny_stop(&tiny);
}

Test(cpu, stamp_that_nobody_writes_is_a_deadlock) {
  test_tiny tiny;
  test_tiny_start(&tiny, 2);
  uint16_t q0 = test_tiny_floats(&tiny, "q0", 16, 16), t1 = test_tiny_floats(&tiny, "t1", 16, 16);
  uint16_t nothing = test_tiny_halves(&tiny, "nothing");
  test_tiny_qkv(&tiny, 0, q0);
  test_tiny_part(&tiny, 1, nothing, t1);
  expect_deadlock(&tiny, (const char *const[]){"deadlock", "SM 1", "instruction 102", "linear_part", "stamped", NULL});
  test_tiny_stop(&tiny);
}

Test(cpu, cycle_through_two_queues_is_a_deadlock) {
  test_tiny tiny;
  test_tiny_start(&tiny, 2);
  uint16_t q0 = test_tiny_floats(&tiny, "q0", 16, 16), q1 = test_tiny_floats(&tiny, "q1", 16, 16);
  uint16_t one = test_tiny_counter(&tiny, "one", MK_COUNTER_RELAXED),
           two = test_tiny_counter(&tiny, "two", MK_COUNTER_RELAXED);
  mk_instruction *in = test_tiny_qkv(&tiny, 0, q0);
  test_tiny_wait(in, one, 1);
  test_tiny_signal(&tiny, in, two);
  in = test_tiny_qkv(&tiny, 1, q1);
  test_tiny_wait(in, two, 1);
  test_tiny_signal(&tiny, in, one);
  expect_deadlock(&tiny, (const char *const[]){"deadlock", "SM 0", "instruction 101", "one", NULL});
  test_tiny_stop(&tiny);
}

/* A run that failed leaves nothing that a later one sees: neither stamps nor counters nor words held back. */
Test(cpu, runs_after_a_deadlock) {
  test_tiny tiny;
  token_loop(&tiny);
  uint16_t never = test_tiny_counter(&tiny, "never", MK_COUNTER_RELEASE);
  for (size_t mode = 0; mode < MODES; mode++) {
    heard want = {0}, got = {0};
    mk_cpu *cpu = test_tiny_machine(&tiny, &modes[mode]);
    test_sequence sequence = test_tiny_sequence();
    cr_assert_eq(test_sequence_run(&sequence, cpu, 9, hear, &want), MK_OK);
    mk_cpu_free(cpu);
    cpu = test_tiny_machine(&tiny, &modes[mode]);
    mk_instruction *head = &tiny.program->instructions[7];
    cr_assert_eq(head->opcode, MK_OP_HEAD);
    test_tiny_wait(head, never, 1);
    cr_assert_eq(test_sequence_steps(cpu, 30, 0, 9), MK_ERR_DEVICE); /* another sequence */
    head->wait_count = 0;
    sequence = test_tiny_sequence();
    cr_assert_eq(test_sequence_run(&sequence, cpu, 9, hear, &got), MK_OK, "mode %zu: %s", mode, mk_error_message());
    cr_assert_eq(memcmp(&got, &want, sizeof want), 0, "mode %zu: other tokens after a deadlock", mode);
    mk_cpu_free(cpu);
  }
  test_tiny_stop(&tiny);
}

Test(cpu, queues_may_be_empty_and_of_different_length) {
  test_tiny tiny;
  test_tiny_start(&tiny, 4);
  uint16_t a = test_tiny_floats(&tiny, "a", 16, 16), b = test_tiny_floats(&tiny, "b", 16, 16);
  test_tiny_qkv(&tiny, 1, a);
  test_tiny_qkv(&tiny, 3, b);
  tiny.program->queues[2].first = 1;
  for (size_t mode = 0; mode < MODES; mode++) {
    mk_cpu *cpu = test_tiny_machine(&tiny, &modes[mode]);
    cr_assert_eq(test_sequence_steps(cpu, 1, 0, 7), MK_OK, "%s", mk_error_message());
    cr_assert_neq(*(const uint64_t *)mk_cpu_memory(cpu, a), 0);
    cr_assert_neq(*(const uint64_t *)mk_cpu_memory(cpu, b), 0);
    mk_cpu_free(cpu);
  }
  test_tiny_stop(&tiny);
}

/* However late its words become visible, the last one that a thread has stored to a place stays there. */
Test(cpu, stores_of_one_thread_to_one_word_stay_in_order) {
  test_tiny tiny;
  test_tiny_start(&tiny, 1);
  uint16_t a = test_tiny_floats(&tiny, "a", 16, 16);
  test_tiny_qkv(&tiny, 0, a);
  test_tiny_qkv(&tiny, 0, test_tiny_floats(&tiny, "b", 16, 16));
  test_tiny_qkv(&tiny, 0, test_tiny_floats(&tiny, "c", 16, 16));
  for (uint64_t seed = 0; seed < 20; seed++) {
    mk_cpu *cpu = test_tiny_machine(&tiny, &(mk_cpu_options){.seed = seed, .adversarial = seed % 2 == 0});
    cr_assert_eq(test_sequence_steps(cpu, 1, 0, 7), MK_OK, "%s", mk_error_message());
    const uint64_t *words = mk_cpu_memory(cpu, a);
    for (uint32_t i = 0; i < 16; i++) {
      cr_assert_eq(words[i] >> 32, 7, "seed %llu: the stamp of epoch 7 is %u", (unsigned long long)seed,
                   (uint32_t)(words[i] >> 32));
    }
    mk_cpu_free(cpu);
  }
  test_tiny_stop(&tiny);
}

Test(cpu, out_of_memory_unwinds) {
  test_tiny tiny;
  token_loop(&tiny);
  mk_status status = MK_ERR_RUNTIME;
  for (uint64_t n = 1; status != MK_OK; n++) {
    mk_cpu *cpu = (mk_cpu *)1;
    mk_alloc_fail_at(n, n % 2 == 0);
    status = mk_cpu_new(tiny.program, &modes[4], &cpu);
    mk_alloc_fail_at(0, false);
    cr_assert(status == MK_OK || (status == MK_ERR_RUNTIME && cpu == NULL));
    cr_assert(status != MK_OK || n > 10);
    if (status == MK_OK) {
      mk_cpu_free(cpu);
    }
  }
  test_tiny_stop(&tiny);
}
