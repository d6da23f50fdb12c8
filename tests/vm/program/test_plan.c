/* Plans that a machine must not take: each thing that the verifier leaves to the host, broken alone. */
#include "vm/program/plan.h"

#include <criterion/criterion.h>
#include <string.h>

#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"
#include "vm/cpu/machine.h"

enum { ROWS = 4, STEPS = 3, CONTEXT = 192, BLOCKS = 7 };

static mk_program *program;
static mk_step_row plan[MK_PLAN_STEPS + 1][ROWS];
static uint32_t table[ROWS * 3];

static mk_program *compile(uint32_t rows) {
  mk_config config;
  mk_graph *graph;
  mk_program *made;
  mk_compile_options options = {.sms = 3, .max_seq = CONTEXT, .rows = rows, .blocks = rows > 1 ? BLOCKS : 0};
  cr_assert_eq(mk_synth_shape("tiny", &config), MK_OK);
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
  cr_assert_eq(mk_compile(graph, &options, &made), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  return made;
}

static mk_step_row row(uint32_t slot, uint32_t position, uint32_t token, bool chooses) {
  return (mk_step_row){
      .slot = slot, .position = position, .token = token, .flags = MK_ROW_ACTIVE | (chooses ? MK_ROW_CHOOSES : 0)};
}

/* Slot 2 with a prompt of four tokens, slot 0 in the middle of a text, one row idle at first and later full of
 * nonsense. */
static void start(void) {
  program = compile(ROWS);
  memset(plan, 0, sizeof plan);
  const mk_step_row steps[STEPS][ROWS] = {
      {row(2, 0, 5, false), row(0, 70, 6, true), row(2, 1, 7, false), {0}},
      {row(2, 2, 8, false), row(2, 3, 9, true), row(0, 71, MK_TOKEN_CHOSEN, true), {99, 99, 99, 0}},
      {row(0, 72, MK_TOKEN_CHOSEN, true), row(2, 4, MK_TOKEN_CHOSEN, true), {0}, {0}}};
  memcpy(plan, steps, sizeof steps);
  const uint32_t entries[ROWS * 3] = {3, 5, 99, 99, 99, 99, 0, 3, 3, 3, 3, 3}; /* the slot's first ones are looked at */
  memcpy(table, entries, sizeof table);
}

static void stop(void) { mk_program_free(program); }

TestSuite(plan, .init = start, .fini = stop);

static void expect(uint32_t steps, const char *words) {
  mk_status status = mk_plan_check(program, plan[0], steps, table);
  cr_assert_eq(status, words == NULL ? MK_OK : MK_ERR_USAGE, "status %d: %s", status, mk_error_message());
  if (words != NULL) {
    cr_assert_not_null(strstr(mk_error_message(), words), "`%s` is not in: %s", words, mk_error_message());
  }
}

Test(plan, a_good_one) { expect(STEPS, NULL); }
Test(plan, no_steps) { expect(0, "0 steps"); }
Test(plan, more_steps_than_the_buffer_has) { expect(MK_PLAN_STEPS + 1, "has 1 to 64"); }
Test(plan, a_step_without_an_active_row) {
  memset(plan[1], 0, sizeof plan[1]);
  expect(2, "step 1 has no active row");
}

#define REFUSED(name, words, change) \
  Test(plan, name) {                 \
    change;                          \
    expect(STEPS, words);            \
  }
REFUSED(slot_that_is_not_there, "step 0, row 1: slot is 4", plan[0][1].slot = 4)
REFUSED(position_beyond_the_context, "position is 192; positions are 0 to 191", plan[0][1].position = 192)
REFUSED(a_gap_within_a_step, "step 0, row 2: slot 2 goes on at position 2; its last row makes that 1",
        plan[0][2].position = 2)
REFUSED(falling_positions, "goes on at position 0", (plan[0][0].position = 1, plan[0][2].position = 0))
REFUSED(a_position_again, "step 1, row 2: slot 0 goes on at position 70", plan[1][2].position = 70)
REFUSED(token_beyond_the_vocabulary, "token is 4096", plan[0][0].token = 4096)
REFUSED(a_choice_that_nobody_made, "step 1, row 0: takes a choice that slot 2 has not made",
        plan[1][0].token = MK_TOKEN_CHOSEN)
REFUSED(a_choice_of_the_step_itself, "step 1, row 1: takes a choice",
        (plan[1][0].flags |= MK_ROW_CHOOSES, plan[1][1].token = MK_TOKEN_CHOSEN))
REFUSED(a_block_twice, "slot 2, entry 0 is block 5, which slot 0 has already", table[6] = 5)
REFUSED(a_block_twice_in_one_slot, "slot 0, entry 1 is block 3, which slot 0 has", table[1] = 3)
REFUSED(a_block_that_is_not_there, "slot 0, entry 1 is block 7", table[1] = BLOCKS)

/* Slot 2 goes on at position 64: its first block is read, as slot 0's is. */
static void share_a_beginning(void) {
  for (uint32_t i = 0; i < STEPS * ROWS; i++) {
    mk_step_row *r = &plan[i / ROWS][i % ROWS];
    r->position += r->slot == 2 && (r->flags & MK_ROW_ACTIVE) != 0 ? 64 : 0;
  }
  table[6] = 3;
  table[7] = 0;
}
Test(plan, a_block_that_two_slots_read) {
  share_a_beginning();
  expect(STEPS, NULL);
}
REFUSED(a_block_that_one_reads_and_another_fills, "slot 2, entry 0 is block 5, which slot 0 has",
        (share_a_beginning(), table[6] = 5))
REFUSED(a_block_that_one_fills_and_another_reads, "slot 2, entry 1 is block 3, which slot 0 has",
        (share_a_beginning(), table[6] = 1, table[7] = 3))
REFUSED(a_block_that_a_slot_reads_and_fills, "slot 2, entry 1 is block 3, which slot 2 has",
        (share_a_beginning(), table[7] = 3))
REFUSED(a_block_that_a_slot_reads_twice, "slot 2, entry 1 is block 0, which slot 2 has", {
  share_a_beginning();
  for (uint32_t i = 0; i < STEPS * ROWS; i++) {
    plan[i / ROWS][i % ROWS].position += plan[i / ROWS][i % ROWS].slot == 2 ? 64 : 0;
  }
  table[6] = table[7] = 0;
  table[8] = 1;
})

/* The host would fill and check one of them. */
Test(plan, is_for_programs_of_one_block_table) {
  uint16_t other;
  mk_buffer table_buffer = program->buffers[mk_program_find_buffer(program, "block_table")];
  memcpy(table_buffer.name, "other_table", 12);
  cr_assert_eq(mk_program_add_buffer(program, &table_buffer, &other), MK_OK, "%s", mk_error_message());
  for (size_t i = program->instruction_count; i-- != 0;) {
    if (program->instructions[i].opcode == MK_OP_ATTENTION) {
      program->instructions[i].operands[MK_SLOT_ATTENTION_table].buffer = other;
      break;
    }
  }
  expect(STEPS, "several plans, block tables or sizes of blocks");
}

/* A program of one row takes the plan of a sequence, of as many steps as its context has. */
Test(plan, of_one_row) {
  mk_program *single = compile(1);
  static mk_step_row steps[CONTEXT + 1];
  static const uint32_t prompt[] = {5, 6, 7}, blocks[] = {2, 0, 1}, twice[] = {2, 2, 1};
  mk_plan_sequence(steps, CONTEXT, 0, prompt, 3, MK_ROW_PROMPT);
  for (uint32_t i = 0; i < CONTEXT; i++) {
    cr_assert(steps[i].position == i && steps[i].slot == 0);
    cr_assert_eq(steps[i].token, i < 3 ? prompt[i] : MK_TOKEN_CHOSEN);
    cr_assert_eq(steps[i].flags, MK_ROW_ACTIVE | (i < 3 ? MK_ROW_PROMPT : 0u) | (i < 2 ? 0u : MK_ROW_CHOOSES));
  }
  cr_assert_eq(mk_plan_check(single, steps, CONTEXT, blocks), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_plan_check(single, steps, CONTEXT, twice), MK_ERR_USAGE);
  cr_assert_eq(mk_plan_check(single, steps, CONTEXT, NULL), MK_OK, "nobody looks at blocks");
  cr_assert_eq(mk_plan_check(single, steps, CONTEXT + 1, blocks), MK_ERR_USAGE);
  steps[2].flags = MK_ROW_ACTIVE;
  cr_assert_eq(mk_plan_check(single, steps, CONTEXT, blocks), MK_ERR_USAGE, "nothing has been chosen");
  mk_plan_sequence(steps, 2, CONTEXT - 1, prompt, 1, 0);
  cr_assert_eq(mk_plan_check(single, steps, 2, blocks), MK_ERR_USAGE, "beyond the last position");
  mk_cpu *cpu;
  cr_assert_eq(mk_cpu_new(single, &(mk_cpu_options){0}, &cpu), MK_OK);
  cr_assert_eq(mk_cpu_run_plan(cpu, steps, 2, NULL, NULL), MK_ERR_USAGE);
  cr_assert_eq(mk_cpu_run(cpu, 1), MK_ERR_USAGE);
  mk_cpu_free(cpu);
  mk_program_free(single);
}

Test(plan, the_machine_looks_at_it) {
  mk_cpu *cpu;
  cr_assert_eq(mk_cpu_new(program, &(mk_cpu_options){0}, &cpu), MK_OK);
  cr_assert_eq(mk_cpu_run(cpu, 1), MK_ERR_USAGE);
  plan[0][1].position = 192;
  cr_assert_eq(mk_cpu_run_plan(cpu, plan[0], 1, NULL, NULL), MK_ERR_USAGE);
  mk_cpu_free(cpu);
  cr_assert_eq(mk_cpu_new(program, &(mk_cpu_options){.accesses_only = true}, &cpu), MK_ERR_USAGE);
  cr_assert_null(cpu);
}

/* Of a program for prompts, too: the active rows come first, and only the last of them chooses. */
static void expect_prompt(const mk_step_row *rows, const char *words) {
  const uint32_t blocks[] = {2, 0, 1};
  mk_program *prompt = compile(MK_PROMPT_ROWS);
  mk_status status = mk_plan_check(prompt, rows, 1, blocks);
  cr_assert_eq(status, words == NULL ? MK_OK : MK_ERR_USAGE, "status %d: %s", status, mk_error_message());
  if (words != NULL) {
    cr_assert_not_null(strstr(mk_error_message(), words), "`%s` is not in: %s", words, mk_error_message());
  }
  mk_program_free(prompt);
}

Test(plan, of_a_prompt) {
  mk_step_row rows[MK_PROMPT_ROWS] = {row(0, 3, 5, false), row(0, 4, 6, false), row(0, 5, 7, true)};
  expect_prompt(rows, NULL);
  rows[1].flags |= MK_ROW_CHOOSES;
  expect_prompt(rows, "step 0, row 1 chooses; of 64 rows only the last active one does");
  rows[1] = (mk_step_row){0};
  rows[2].position = 4;
  expect_prompt(rows, "step 0, row 2 is active and row 1 is not");
  rows[1] = row(1, 4, 6, false);
  expect_prompt(rows, "slot is 1; the program has 1");
}
