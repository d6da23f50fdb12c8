/* What data name and what is not there: the CPU machine reports it, touches nothing outside of its buffers, and runs
 * on. */
#include <criterion/criterion.h>
#include <string.h>

#include "instructions/reference.h"
#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"
#include "tests/support/text.h"

static const mk_cpu_options ways[] = {
    {0}, {.threads = 3}, {.seed = 3, .check_races = true}, {.seed = 4, .adversarial = true}};
enum { WAYS = sizeof ways / sizeof ways[0] };

static uint32_t *words_of(const mk_program *program, mk_cpu *cpu, const char *buffer) {
  int index = mk_program_find_buffer(program, buffer);
  cr_assert_geq(index, 0, "%s", buffer);
  return mk_cpu_memory(cpu, (size_t)index);
}

static void expect_fault(mk_status status, const char *words) {
  cr_assert_eq(status, MK_ERR_DEVICE, "status %d", status);
  cr_assert_not_null(strstr(mk_error_message(), words), "`%s` is not in: %s", words, mk_error_message());
}

typedef struct start {
  uint32_t token, position;
} start;

/* Every way ends in that fault within so many epochs; afterwards a good run gives what it gives on a new machine. */
static void expect_runs_on(const mk_program *program, start bad, uint32_t epochs, const char *words) {
  for (size_t way = 0; way < WAYS; way++) {
    mk_cpu *cpu = test_machine(program, &ways[way]), *fresh = test_machine(program, &ways[way]);
    expect_fault(test_sequence_steps(cpu, bad.token, bad.position, epochs), words);
    cr_assert_eq(test_sequence_steps(cpu, 1, 0, 3), MK_OK, "%s", mk_error_message());
    cr_assert_eq(test_sequence_steps(fresh, 1, 0, 3), MK_OK, "%s", mk_error_message());
    cr_assert_eq(memcmp(words_of(program, cpu, "logits"), words_of(program, fresh, "logits"), 32 * sizeof(float)), 0);
    mk_cpu_free(cpu);
    mk_cpu_free(fresh);
  }
}

static void two_sms(const test_edit *edits, start bad, uint32_t epochs, const char *words) {
  mk_program *program = test_assemble("two_sms.mks", edits);
  expect_runs_on(program, bad, epochs, words);
  mk_program_free(program);
}

#define STARTS(name, words, epochs, ...) \
  Test(cpu_faults, name) { two_sms(NULL, (start){__VA_ARGS__}, epochs, words); }
STARTS(first_token_outside_of_the_vocabulary, "the step is token 32; the program declares tokens 0 to 31", 1, 32, 0)
STARTS(first_token_that_is_none, "the step is token 4294967295", 1, UINT32_MAX, 0)
STARTS(first_position_beyond_the_last, "the step is at position 64; the program declares positions 0 to 63", 1, 1, 64)
STARTS(a_run_past_the_last_position, "the step is at position 64", 10, 1, 60)

/* All positions that there are have been computed and told. */
static bool count(void *user, uint32_t position, uint32_t token) {
  (void)position, (void)token;
  ++*(uint32_t *)user;
  return true;
}

Test(cpu_faults, steps_before_the_fault_are_told) {
  mk_program *program = test_assemble("two_sms.mks", NULL);
  for (size_t way = 0; way < WAYS; way++) {
    uint32_t steps = 0;
    mk_cpu *cpu = test_machine(program, &ways[way]);
    test_sequence sequence = {.token = 1, .position = 60};
    expect_fault(test_sequence_run(&sequence, cpu, 10, count, &steps), "position 64");
    cr_assert_eq(steps, 4, "%u", steps);
    mk_cpu_free(cpu);
  }
  mk_program_free(program);
}

Test(cpu_faults, without_arithmetic_a_run_past_the_last_position_is_one_too) {
  mk_program *program = test_assemble("two_sms.mks", NULL);
  mk_cpu *cpu;
  cr_assert_eq(mk_cpu_new(program, &(mk_cpu_options){.seed = 1, .accesses_only = true, .unchecked_plans = true}, &cpu),
               MK_OK);
  cr_assert_eq(test_sequence_steps(cpu, 1, 60, 4), MK_OK, "%s", mk_error_message());
  expect_fault(test_sequence_steps(cpu, 1, 64, 1), "position 64; the program declares positions 0 to 63");
  mk_cpu_free(cpu);
  mk_program_free(program);
}

Test(cpu_faults, given_token_outside_of_the_vocabulary) {
  mk_program *program = test_assemble("two_sms.mks", NULL);
  for (size_t way = 0; way < WAYS; way++) {
    mk_cpu *cpu = test_machine(program, &ways[way]);
    const uint32_t prompt[] = {1, 2, 77, 3, 4};
    test_sequence sequence = {.token = 1, .prompt = prompt, .prompt_length = 5};
    expect_fault(test_sequence_run(&sequence, cpu, 4, NULL, NULL), "the step is token 77");
    mk_cpu_free(cpu);
  }
  mk_program_free(program);
}

/* A declared token that the embedding does not have: what the verifier's B02 rejects. */
Test(cpu_faults, token_beyond_the_embedding) {
  two_sms((const test_edit[]){{"token=0..31", "token=0..99"}, {NULL, NULL}}, (start){.token = 40}, 1,
          "has rows 0 to 31 of buffer embedding");
}

Test(cpu_faults, ring_that_is_too_short) {
  two_sms((const test_edit[]){{"shape=1x65", "shape=1x3"}, {NULL, NULL}}, (start){.token = 1, .position = 7}, 5,
          "SM 0, instruction 3 (next): ring: place 3 of buffer token_ring, which has 3");
}

/* No head has a row, so nobody has a candidate; the prompt alone can go on. */
Test(cpu_faults, empty_heads_choose_nothing) {
  mk_program *program = test_assemble("attack/emptyheads.mks", NULL);
  for (size_t way = 0; way < WAYS; way++) {
    mk_cpu *cpu = test_machine(program, &ways[way]);
    expect_fault(test_sequence_steps(cpu, 1, 0, 3), "(next): the best candidate is token 2147483647");
    static const uint32_t prompt[10] = {1};
    test_sequence sequence = {.token = 1, .prompt = prompt, .prompt_length = 10};
    cr_assert_eq(test_sequence_run(&sequence, cpu, 9, NULL, NULL), MK_OK, "%s", mk_error_message());
    mk_cpu_free(cpu);
  }
  mk_program_free(program);
}

/* Words that are no candidate: the front of a score. */
Test(cpu_faults, a_front_is_no_candidate) {
  mk_program *program = test_assemble("attack/front_as_candidates.mks", NULL);
  for (size_t way = 0; way < WAYS; way++) {
    mk_cpu *cpu = test_machine(program, &ways[way]);
    expect_fault(test_sequence_steps(cpu, 1, 0, 3), "SM 0, instruction 5 (next): the best candidate is token");
    mk_cpu_free(cpu);
  }
  mk_program_free(program);
}

/* Sizes of tiles far beyond those of their buffers count for no more than there is. */
Test(cpu_faults, scratch_is_for_what_buffers_hold) {
  mk_program *program = test_assemble("attack/scratch_overflow.mks", NULL);
  cr_assert_lt(mk_reference_scratch(program), 1u << 20);
  mk_cpu *cpu = test_machine(program, &(mk_cpu_options){0});
  cr_assert_eq(test_sequence_steps(cpu, 1, 0, 3), MK_OK, "%s", mk_error_message());
  mk_cpu_free(cpu);
  mk_program_free(program);
}

static void expect_block(const test_edit *edits, uint32_t entry, uint32_t block, uint32_t position, const char *words) {
  mk_program *program = test_assemble("layer.mks", edits);
  for (size_t way = 0; way < WAYS; way++) {
    mk_cpu *cpu = test_machine(program, &ways[way]);
    if (entry != UINT32_MAX) {
      words_of(program, cpu, "table")[entry] = block;
    }
    expect_fault(test_sequence_steps(cpu, 1, position, 1), words);
    if (entry != UINT32_MAX) {
      words_of(program, cpu, "table")[entry] = entry;
    }
    cr_assert_eq(test_sequence_steps(cpu, 1, 100, 1), MK_OK, "%s", mk_error_message());
    mk_cpu_free(cpu);
  }
  mk_program_free(program);
}

Test(cpu_faults, block_that_the_cache_does_not_have) {
  expect_block(NULL, 1, 8, 70, "entry (0, 1) of buffer table is block 8; buffer kv has 8");
  expect_block(NULL, 0, UINT32_MAX, 70,
               "SM 0, instruction 2 (attention): entry (0, 0) of buffer table is block 4294967295");
  expect_block(NULL, 5, 1u << 20, 400, "SM 1, instruction 12 (attention): entry (0, 5)");
}

Test(cpu_faults, block_that_the_program_does_not_declare) {
  expect_block((const test_edit[]){{"block=0..7", "block=0..3"}, {NULL, NULL}}, UINT32_MAX, 0, 300,
               "is block 4; buffer kv has 8, and the program declares blocks 0 to 3");
}

Test(cpu_faults, position_beyond_the_columns_of_the_table) {
  expect_block((const test_edit[]){{"buffer table    kind=input dtype=u32 store=plain shape=1x8",
                                    "buffer table    kind=input dtype=u32 store=plain shape=1x4"},
                                   {NULL, NULL}},
               UINT32_MAX, 0, 256, "position 256 of slot 0 needs entry (0, 4) of buffer table, which is 1 x 4");
}

/* Plans are checked before they run; here one changes under the machine's hands. */
enum { ROWS = 4, STEPS = 3 };

typedef struct changed_plan {
  mk_step_row
      *next; /* the rows of step 2, in the machine's memory: of step 1 some SM may know already when step 0 is told */
  mk_step_row row;
} changed_plan;

static bool change(void *user, uint32_t step, const uint32_t *results) {
  changed_plan *c = user;
  (void)results;
  if (step == 0) {
    c->next[1] = c->row;
  }
  return true;
}

static void expect_plan(mk_step_row row, const char *words) {
  mk_config config;
  mk_graph *graph;
  mk_program *program;
  mk_plan_buffers buffers;
  cr_assert_eq(mk_synth_shape("tiny", &config), MK_OK);
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
  cr_assert_eq(mk_compile(graph, &(mk_compile_options){.sms = 3, .max_seq = 128, .rows = ROWS}, &program), MK_OK, "%s",
               mk_error_message());
  cr_assert_eq(mk_plan_find(program, &buffers), MK_OK);
  mk_step_row plan[STEPS][ROWS] = {{{0}}};
  for (uint32_t step = 0; step < STEPS; step++) {
    plan[step][0] = (mk_step_row){.slot = 0, .position = step, .token = 5, .flags = MK_ROW_ACTIVE | MK_ROW_CHOOSES};
  }
  for (size_t way = 0; way < WAYS; way++) {
    mk_cpu *cpu;
    cr_assert_eq(mk_cpu_new(program, &ways[way], &cpu), MK_OK);
    uint32_t *table = mk_cpu_memory(cpu, buffers.table);
    for (uint32_t i = 0; i < program->buffers[buffers.table].bytes / sizeof *table; i++) {
      table[i] = i;
    }
    changed_plan changed = {.next = (mk_step_row *)mk_cpu_memory(cpu, buffers.plan) + 2 * ROWS, .row = row};
    expect_fault(mk_cpu_run_plan(cpu, plan[0], STEPS, change, &changed), words);
    cr_assert_eq(mk_cpu_run_plan(cpu, plan[0], STEPS, NULL, NULL), MK_OK, "%s", mk_error_message());
    mk_cpu_free(cpu);
  }
  mk_program_free(program);
  mk_graph_free(graph);
}

Test(cpu_faults, slot_outside_of_the_plan) {
  expect_plan((mk_step_row){.slot = 1u << 30, .position = 0, .token = MK_TOKEN_CHOSEN, .flags = MK_ROW_ACTIVE},
              "(next): row 1 of the step is of slot 1073741824; the program has 4");
  expect_plan((mk_step_row){.slot = 4, .position = 0, .token = 5, .flags = MK_ROW_ACTIVE},
              "row 1 of the step is of slot 4; the program has 4");
}

Test(cpu_faults, position_and_token_outside_of_the_plan) {
  expect_plan((mk_step_row){.slot = 1, .position = 128, .token = 5, .flags = MK_ROW_ACTIVE},
              "the step is at position 128; the program declares positions 0 to 127");
  expect_plan((mk_step_row){.slot = 1, .position = 0, .token = 70000, .flags = MK_ROW_ACTIVE},
              "the step is token 70000");
}
