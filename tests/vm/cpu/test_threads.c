/* The CPU machine on several threads: the same memory, bit for bit, as on one, and whatever ends a run ends it for all
 * of them. This program is also built with ThreadSanitizer (the preset `threads`). */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "models/llama.h"
#include "scheduler/compile.h"
#include "tests/support/mla.h"
#include "tests/support/model.h"
#include "tests/support/numbers.h"
#include "tests/support/text.h"

static const uint32_t numbers[] = {1, 2, 3, 64};
enum { NUMBERS = sizeof numbers / sizeof numbers[0], STEPS = 6, CONTEXT = 300, REPEATS = 2, FAULT_REPEATS = 8 };

TestSuite(threads, .timeout = MK_HANG_SECONDS);

static mk_program *compile(size_t model, mk_compile_options options) {
  mk_config config = test_model_config(model);
  mk_graph *graph;
  mk_program *program;
  options.max_seq = CONTEXT;
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_compile(graph, &options, &program), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  return program;
}

/* Every slot reads its tokens, one a step, and then goes on by itself; MK_PROMPT_ROWS rows are a prompt of one slot. */
static void fill_plan(const mk_program *program, mk_step_row *plan) {
  uint32_t rows = mk_program_rows(program), slots = mk_program_slots(program), vocab = program->ranges.token.high + 1;
  for (uint32_t i = 0; i < STEPS * rows; i++) {
    uint32_t step = i / rows, row = i % rows;
    if (slots == 1) {
      bool is_idle = i >= CONTEXT;
      plan[i] = is_idle ? (mk_step_row){0}
                        : (mk_step_row){.position = i,
                                        .token = i * 7 % vocab,
                                        .flags = MK_ROW_ACTIVE | (i + 1 == CONTEXT ? MK_ROW_CHOOSES : 0u)};
    } else {
      bool chosen = step > 2 && row % 3 != 0;
      plan[i] = (mk_step_row){.slot = row,
                              .position = step,
                              .token = chosen ? MK_TOKEN_CHOSEN : (row * 31 + step * 7) % vocab,
                              .flags = MK_ROW_ACTIVE | (step > 1 ? MK_ROW_CHOOSES : 0u)};
    }
  }
}

static mk_status run_steps(const mk_program *program, mk_cpu *cpu) {
  static mk_step_row plan[STEPS * MK_PROMPT_ROWS];
  mk_plan_buffers buffers;
  if (mk_program_rows(program) == 1) {
    return test_sequence_steps(cpu, 1, 0, STEPS);
  }
  cr_assert_eq(mk_plan_find(program, &buffers), MK_OK);
  uint32_t *table = mk_cpu_memory(cpu, buffers.table);
  for (uint32_t i = 0; i < program->buffers[buffers.table].bytes / sizeof *table; i++) {
    table[i] = i;
  }
  fill_plan(program, plan);
  return mk_cpu_run_plan(
      cpu, plan, mk_program_slots(program) == 1 ? (CONTEXT + MK_PROMPT_ROWS - 1) / MK_PROMPT_ROWS : STEPS, NULL, NULL);
}

/* All that is in memory afterwards, stamps and counters included, of two runs in a row. */
static uint64_t hash_of_runs(const mk_program *program, uint32_t threads) {
  mk_cpu *cpu = test_machine(program, &(mk_cpu_options){.threads = threads});
  for (int run = 0; run < 2; run++) {
    cr_assert_eq(run_steps(program, cpu), MK_OK, "%u threads: %s", threads, mk_error_message());
  }
  uint64_t hash = test_memory_hash(cpu, program);
  for (size_t c = 0; c < program->counter_count; c++) {
    hash = (hash ^ mk_cpu_counter(cpu, c)) * 1099511628211u;
  }
  mk_cpu_free(cpu);
  return hash;
}

static void expect_same(size_t model, mk_compile_options options) {
  mk_program *program = compile(model, options);
  uint64_t want = hash_of_runs(program, 1);
  for (uint32_t i = 0; i < NUMBERS * REPEATS; i++) {
    uint32_t threads = numbers[i % NUMBERS];
    cr_assert_eq(hash_of_runs(program, threads), want, "%u threads: other memory", threads);
  }
  mk_program_free(program);
}

Test(threads, one_row) { expect_same(TEST_MODEL_TINY, (mk_compile_options){.sms = 8}); }
Test(threads, one_row_on_many_sms) { expect_same(TEST_MODEL_ODD, (mk_compile_options){.sms = 132}); }
Test(threads, split_k) { expect_same(TEST_MODEL_DEEP_K, (mk_compile_options){.sms = 12}); }
Test(threads, sampling) { expect_same(TEST_MODEL_WIDE, (mk_compile_options){.sms = 9, .sampling = true}); }
Test(threads, two_rows) { expect_same(TEST_MODEL_WIDE, (mk_compile_options){.sms = 8, .rows = 2}); }
Test(threads, sixteen_rows) { expect_same(TEST_MODEL_ODD, (mk_compile_options){.sms = 8, .rows = 16}); }
Test(threads, prompts) { expect_same(TEST_MODEL_TINY, (mk_compile_options){.sms = 8, .rows = MK_PROMPT_ROWS}); }

Test(threads, work_lists) {
  static const uint32_t lengths[] = {500, 3, 0, 1200, 64};
  uint64_t want = 0;
  for (uint32_t i = 0; i < NUMBERS; i++) {
    mk_mla_shape shape = test_mla_shape(16, 2, lengths, 5);
    mk_mla_session *session;
    cr_assert_eq(mk_mla_session_new(&shape, 9, &(mk_cpu_options){.threads = numbers[i]}, &session), MK_OK);
    cr_assert_eq(mk_mla_session_load(session, lengths, 5, 9), MK_OK);
    cr_assert_eq(mk_mla_session_schedule(session, MK_MLA_MAKESPAN, NULL), MK_OK, "%s", mk_error_message());
    cr_assert_eq(mk_mla_session_run(session), MK_OK, "%s", mk_error_message());
    uint64_t hash = test_memory_hash(session->cpu, session->program);
    want = i == 0 ? hash : want;
    cr_assert_eq(hash, want, "%u threads: other memory", numbers[i]);
    mk_mla_session_free(session);
  }
}

/* No SM is in a later epoch than the one that the host ends the run at, so that the next run finds everything as one
 * thread leaves it. */
static bool stop_at(void *user, uint32_t position, uint32_t token) {
  (void)token;
  return position != *(const uint32_t *)user;
}

Test(threads, a_host_that_stops) {
  mk_program *program = test_small_program(7, 64, 1);
  uint64_t want = 0;
  for (uint32_t i = 0; i < NUMBERS * FAULT_REPEATS; i++) {
    mk_cpu *cpu = test_machine(program, &(mk_cpu_options){.threads = numbers[i % NUMBERS]});
    for (uint32_t last = 0; last < 5; last++) {
      test_sequence sequence = {.token = 1};
      cr_assert_eq(test_sequence_run(&sequence, cpu, 50, stop_at, &last), MK_OK, "%s", mk_error_message());
    }
    cr_assert_eq(mk_cpu_generation(cpu), 1 + 2 + 3 + 4 + 5);
    uint64_t hash = test_memory_hash(cpu, program);
    want = i == 0 ? hash : want;
    cr_assert_eq(hash, want, "%u threads: other memory", numbers[i % NUMBERS]);
    mk_cpu_free(cpu);
  }
  mk_program_free(program);
}

/* Whichever thread finds it, the caller has the message, and the machine runs on. */
Test(threads, a_fault) {
  mk_program *program = test_assemble("two_sms.mks", NULL);
  for (uint32_t i = 0; i < NUMBERS * FAULT_REPEATS; i++) {
    mk_cpu *cpu = test_machine(program, &(mk_cpu_options){.threads = numbers[i % NUMBERS]});
    cr_assert_eq(test_sequence_steps(cpu, 1, 60, 10), MK_ERR_DEVICE);
    cr_assert_not_null(strstr(mk_error_message(), "position 64"), "%s", mk_error_message());
    cr_assert_eq(mk_cpu_generation(cpu), 0);
    mk_cpu_free(cpu);
  }
  mk_program_free(program);
}

Test(threads, a_deadlock) {
  mk_program *program = test_small_program(7, 64, 1);
  mk_instruction *last = &program->instructions[program->queues[3].first + program->queues[3].count - 2];
  cr_assert_gt(last->wait_count, 0);
  last->waits[0].threshold = 9999;
  for (uint32_t i = 0; i < NUMBERS * FAULT_REPEATS; i++) {
    mk_cpu *cpu = test_machine(program, &(mk_cpu_options){.threads = numbers[i % NUMBERS]});
    cr_assert_eq(test_sequence_steps(cpu, 1, 0, 3), MK_ERR_DEVICE);
    cr_assert_not_null(strstr(mk_error_message(), "deadlock: SM 0 waits for ever in epoch 0"), "%s",
                       mk_error_message());
    mk_cpu_free(cpu);
  }
  mk_program_free(program);
}

Test(threads, a_recorder) {
  mk_program *program = test_small_program(7, 64, 1);
  mk_cpu *cpu = test_machine(program, &(mk_cpu_options){.threads = 3});
  mk_trace *trace;
  cr_assert_eq(mk_cpu_trace_on(cpu, 1, 2, 4096), MK_OK);
  cr_assert_eq(test_sequence_steps(cpu, 1, 0, 4), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_cpu_trace_take(cpu, &trace), MK_OK, "%s", mk_error_message());
  for (size_t q = 0; q < program->queue_count; q++) {
    const mk_trace_track *track = &trace->tracks[q * MK_TRACE_ROLES + MK_ROLE_CONSUMER];
    uint32_t works = 0;
    for (uint32_t i = 0; i < track->count; i++) {
      works += track->records[i].activity == MK_ACTIVITY_WORK;
      cr_assert(i == 0 || track->records[i].time >= track->records[i - 1].time);
    }
    cr_assert_eq(works, 2 * program->queues[q].count, "SM %zu: %u records of work", q, works);
  }
  mk_trace_free(trace);
  mk_cpu_free(cpu);
  mk_program_free(program);
}

Test(threads, more_than_there_may_be) {
  mk_program *program = test_small_program(2, 64, 1);
  mk_cpu *cpu;
  cr_assert_eq(mk_cpu_new(program, &(mk_cpu_options){.threads = MK_CPU_MOST_THREADS + 1}, &cpu), MK_ERR_USAGE);
  cr_assert_not_null(strstr(mk_error_message(), "1025 threads"), "%s", mk_error_message());
  mk_program_free(program);
}
