/* The planner without a machine: who gets which rows and blocks, and when a launch ends. (What comes of it: tests/engine/test_rows.c.) */
#include "engine/batch.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "engine/blocks.h"
#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"

enum { ROWS = 8, CONTEXT = 512, MOST = 12 };

static mk_program *compile(uint32_t blocks) {
  mk_config config;
  mk_graph *graph;
  mk_program *program;
  mk_compile_options options = {.sms = 3, .max_seq = CONTEXT, .rows = ROWS, .blocks = blocks};
  cr_assert_eq(mk_synth_shape("tiny", &config), MK_OK);
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
  cr_assert_eq(mk_compile(graph, &options, &program), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  return program;
}

typedef struct rig {
  mk_program *program;
  mk_batch *batch;
  mk_launch launch;
  uint32_t prompt[CONTEXT];
  mk_sequence sequences[MOST];
  size_t tokens[MOST], stops[MOST], order[MOST], ended; /* stops: 0: never */
  mk_status status[MOST];
} rig;

static bool on_token(void *user, size_t sequence, uint32_t token, const float *logits) {
  rig *r = user;
  (void)token;
  cr_assert_null(logits);
  return ++r->tokens[sequence] != r->stops[sequence];
}

static void on_end(void *user, size_t sequence, mk_status status) {
  rig *r = user;
  r->status[sequence] = status;
  r->order[r->ended++] = sequence;
}

static void start(rig *r, uint32_t blocks, const size_t *prompts, const size_t *predicts, size_t count) {
  *r = (rig){.program = compile(blocks)};
  mk_sequence_calls calls = {.token = on_token, .ended = on_end, .user = r};
  for (uint32_t i = 0; i < CONTEXT; i++) {
    r->prompt[i] = i;
  }
  for (size_t i = 0; i < count; i++) {
    r->sequences[i] = (mk_sequence){.prompt = r->prompt, .prompt_count = prompts[i], .n_predict = predicts[i]};
  }
  cr_assert_eq(mk_batch_new(r->program, r->sequences, count, &calls, &r->batch), MK_OK, "%s", mk_error_message());
}

static void stop(rig *r) {
  mk_batch_free(r->batch);
  mk_program_free(r->program);
}

/* Plans a launch and runs it: every row that chooses chooses 7. Gives the steps that were run. */
static uint32_t launch(rig *r) {
  mk_batch_plan(r->batch, &r->launch);
  if (r->launch.steps == 0) {
    return 0;
  }
  cr_assert_eq(mk_plan_check(r->program, r->launch.plan, r->launch.steps, r->launch.table), MK_OK, "%s",
               mk_error_message());
  uint32_t step = 0;
  for (bool more = true; more && step < r->launch.steps; step++) {
    uint32_t results[ROWS];
    for (uint32_t line = 0; line < ROWS; line++) {
      bool chooses = (r->launch.plan[step * ROWS + line].flags & MK_ROW_CHOOSES) != 0;
      results[line] = chooses ? 7 : MK_CANDIDATE_NONE;
    }
    more = mk_batch_take(r->batch, step, results, NULL);
  }
  return step;
}

static uint32_t rows_of(const rig *r, uint32_t step, uint32_t slot) {
  uint32_t rows = 0;
  for (uint32_t line = 0; line < ROWS; line++) {
    const mk_step_row *row = &r->launch.plan[step * ROWS + line];
    rows += (row->flags & MK_ROW_ACTIVE) != 0 && row->slot == slot;
  }
  return rows;
}

Test(batch, first_come_first_served_and_a_row_for_everybody) {
  rig r;
  start(&r, 0, (const size_t[]){3, 20, 9}, (const size_t[]){10, 10, 10}, 3);
  mk_batch_plan(r.batch, &r.launch);
  const uint32_t want[][3] = {{3, 4, 1}, {1, 6, 1}, {1, 6, 1}, {1, 4, 3}, {1, 1, 3}, {1, 1, 1}};
  for (uint32_t step = 0; step < sizeof want / sizeof want[0]; step++) {
    for (uint32_t slot = 0; slot < 3; slot++) {
      cr_assert_eq(rows_of(&r, step, slot), want[step][slot], "step %u: slot %u has %u rows", step, slot,
                   rows_of(&r, step, slot));
    }
  }
  stop(&r);
}

Test(batch, a_launch_ends_with_a_sequence_and_the_next_takes_its_slot) {
  rig r;
  size_t prompts[MOST], predicts[MOST];
  for (size_t i = 0; i < MOST; i++) {
    prompts[i] = 1;
    predicts[i] = i == 3 ? 4 : 20;
  }
  start(&r, 0, prompts, predicts, MOST);
  r.stops[5] = 2;
  cr_assert_eq(launch(&r), 2); /* sequence 5 stops by itself */
  cr_assert_eq(r.launch.steps, 4, "sequence 3 has four tokens to go");
  cr_assert_eq(launch(&r), 2);
  cr_assert_eq(rows_of(&r, 0, 5), 1, "sequence 8 has slot 5");
  cr_assert_eq(r.launch.plan[5].position, 2);
  while (launch(&r) != 0) {
  }
  cr_assert_eq(r.ended, MOST);
  for (size_t i = 0; i < MOST; i++) {
    cr_assert_eq(r.status[i], MK_OK);
    cr_assert_eq(r.tokens[i], i == 3 ? 4 : i == 5 ? 2 : 20, "sequence %zu has %zu tokens", i, r.tokens[i]);
  }
  cr_assert_eq(r.order[0], 5);
  cr_assert_eq(r.order[1], 3);
  stop(&r);
}

/* Three blocks: the first two sequences have one each, the third waits for the space of its prompt, and the last can never have it. */
Test(batch, who_finds_no_blocks_waits_or_fails_alone) {
  rig r;
  start(&r, 3, (const size_t[]){64, 60, 128, 200}, (const size_t[]){3, 6, 2, 1}, 4);
  while (launch(&r) != 0) {
  }
  cr_assert_eq(r.ended, 4);
  cr_assert_eq(r.tokens[0], 3, "it grows into the last block");
  cr_assert_eq(r.status[0], MK_OK);
  cr_assert_eq(r.tokens[2], 2);
  cr_assert_eq(r.status[2], MK_OK);
  cr_assert_eq(r.status[3], MK_ERR_RUNTIME);
  cr_assert_eq(r.tokens[3], 0);
  stop(&r);
}

/* Both grow into a block of which there is one, the first one first: the launch goes as far as both get, then the other fails, with all
 * its tokens so far. */
Test(batch, who_outgrows_the_cache_fails_alone) {
  rig r;
  start(&r, 3, (const size_t[]){60, 62}, (const size_t[]){40, 20}, 2);
  while (launch(&r) != 0) {
  }
  cr_assert_eq(r.status[0], MK_OK);
  cr_assert_eq(r.tokens[0], 40);
  cr_assert_eq(r.status[1], MK_ERR_RUNTIME);
  cr_assert_eq(r.tokens[1], 3, "positions up to 63 were computed: %zu tokens", r.tokens[1]);
  stop(&r);
}

Test(batch, blocks_go_and_come_back) {
  mk_blocks b;
  cr_assert_eq(mk_blocks_init(&b, 2, 4, 64, 5), MK_OK);
  cr_assert_eq(mk_blocks_hold(&b, 0, 65), MK_OK);
  cr_assert_eq(mk_blocks_hold(&b, 1, 129), MK_OK);
  cr_assert_eq(b.left, 0);
  cr_assert_eq(mk_blocks_hold(&b, 0, 128), MK_OK, "it has two");
  cr_assert_eq(mk_blocks_hold(&b, 0, 129), MK_ERR_RUNTIME);
  cr_assert_not_null(strstr(mk_error_message(), "129 tokens need 3 blocks of 64, this sequence has 2, and 0 of 5"),
                     "%s", mk_error_message());
  uint32_t seen = 0;
  for (uint32_t i = 0; i < 5; i++) {
    seen |= 1u << b.table[i < 2 ? i : 4 + i - 2];
  }
  cr_assert_eq(seen, 31, "every block once");
  uint32_t first = b.table[0];
  mk_blocks_release(&b, 0);
  cr_assert_eq(b.left, 2);
  cr_assert_eq(mk_blocks_hold(&b, 1, 193), MK_OK);
  cr_assert_eq(b.table[7], first, "what came back goes first");
  mk_blocks_free(&b);
}

/* A machine of one row goes on with the last sequence behind its prompt: the launch ends there, and the sequence has blocks up to its limit. */
Test(batch, the_only_sequence_is_left_to_another_machine) {
  rig r;
  mk_single single;
  start(&r, 0, (const size_t[]){100}, (const size_t[]){200}, 1);
  mk_batch_leave_single(r.batch);
  cr_assert_not(mk_batch_single(r.batch, &single), "before anything is planned");
  mk_batch_plan(r.batch, &r.launch);
  cr_assert_not(mk_batch_single(r.batch, &single), "its prompt has not been computed");
  cr_assert_eq(launch(&r), 13, "100 tokens, eight a step");
  cr_assert_eq(r.tokens[0], 1);
  cr_assert(mk_batch_single(r.batch, &single));
  cr_assert_eq(single.token, 7);
  cr_assert_eq(single.position, 100);
  cr_assert_eq(single.left, 199);
  for (uint32_t i = 0; i < 5; i++) { /* 300 tokens in blocks of 64 */
    cr_assert_eq(single.table[i], r.launch.table[i]);
  }
  for (uint32_t i = 0; i < 198; i++) {
    cr_assert(mk_batch_take_single(r.batch, 9, NULL), "token %u", i);
  }
  cr_assert_eq(r.ended, 0);
  cr_assert_not(mk_batch_take_single(r.batch, 9, NULL), "its limit");
  cr_assert_eq(r.ended, 1);
  cr_assert_eq(r.tokens[0], 200);
  mk_batch_end_single(r.batch, MK_OK);
  cr_assert_eq(r.ended, 1, "it has ended before");
  stop(&r);
}

/* Where blocks are short, or others are there, it is not left. */
Test(batch, a_sequence_without_room_or_with_others_is_not_left) {
  rig r;
  mk_single single;
  start(&r, 2, (const size_t[]){100}, (const size_t[]){200}, 1);
  mk_batch_leave_single(r.batch);
  cr_assert_eq(launch(&r), 13);
  cr_assert_not(mk_batch_single(r.batch, &single), "two blocks hold 128 tokens");
  stop(&r);
  start(&r, 0, (const size_t[]){3, 3}, (const size_t[]){2, 90}, 2);
  mk_batch_leave_single(r.batch);
  cr_assert_eq(launch(&r), 2, "the first one ends");
  cr_assert(mk_batch_single(r.batch, &single), "the second one is the last");
  cr_assert_eq(single.left, 88);
  stop(&r);
}

/* Prompts longer than 30 are computed elsewhere, in order, before their sequences have a row here; one of them ends with its first token, and
 * its slot goes to the next. */
Test(batch, long_prompts_are_left_to_another_machine) {
  rig r;
  start(&r, 0, (const size_t[]){31, 30, 100, 40}, (const size_t[]){5, 5, 1, 2}, 4);
  static const size_t want[] = {0, 2, 3};
  mk_long_prompt prompt;
  for (size_t i = 0; i < 3; i++) {
    mk_batch_plan(r.batch, &r.launch);
    cr_assert(mk_batch_long_prompt(r.batch, 30, &prompt));
    cr_assert_eq(prompt.sequence, want[i], "number %zu is sequence %zu", i, prompt.sequence);
    mk_batch_take_prompt(r.batch, prompt.sequence, i == 2 ? 7 | MK_RESULT_NAN : 7, NULL);
  }
  mk_batch_plan(r.batch, &r.launch);
  cr_assert_not(mk_batch_long_prompt(r.batch, 30, &prompt));
  cr_assert_eq(r.ended, 2, "the one with one token to go, and the one whose logits are not numbers");
  cr_assert_eq(r.status[2], MK_OK);
  cr_assert_eq(r.status[3], MK_ERR_DEVICE);
  cr_assert_eq(r.tokens[0], 1);
  cr_assert_eq(r.launch.plan[0].position, 31, "the first sequence goes on behind its prompt");
  cr_assert_eq(r.launch.plan[0].token, 7);
  cr_assert_eq(rows_of(&r, 0, 0), 1);
  cr_assert_eq(rows_of(&r, 0, 1), 7);
  stop(&r);
}
