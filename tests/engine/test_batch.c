/* The batch without a machine: who begins when, who gets which rows and blocks, and when a launch ends. (What comes of
 * it: test_rows.c and test_schedules.c.) */
#include "tests/engine/batch_rig.h"

Test(batch, first_come_first_served_and_a_row_for_everybody) {
  rig r;
  start(&r, (kinds){0});
  add_all(&r, (const size_t[]){3, 20, 9}, (const size_t[]){10, 10, 10}, 3);
  plan(&r);
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
  start(&r, (kinds){0});
  for (size_t i = 0; i < 12; i++) {
    add(&r, (mk_sequence){.prompt_count = 1, .n_predict = i == 3 ? 4 : 20});
  }
  r.stops[5] = 2;
  cr_assert_eq(launch(&r), 2); /* sequence 5 stops by itself */
  cr_assert_eq(r.launch.steps, 4, "sequence 3 has four tokens to go");
  cr_assert_eq(launch(&r), 2);
  cr_assert_eq(rows_of(&r, 0, 5), 1, "sequence 8 has slot 5");
  run_all(&r);
  cr_assert_eq(r.ended, 12);
  for (size_t i = 0; i < 12; i++) {
    cr_assert_eq(r.status[i], MK_OK);
    cr_assert_eq(r.reports[i].how, MK_ENDED_WHOLE);
    cr_assert_eq(r.tokens[i], i == 3 ? 4 : i == 5 ? 2 : 20, "sequence %zu has %zu tokens", i, r.tokens[i]);
  }
  cr_assert_eq(r.order[0], 5);
  cr_assert_eq(r.order[1], 3);
  stop(&r);
}

Test(batch, an_arrival_ends_the_launch_where_there_is_a_slot) {
  rig r;
  start(&r, (kinds){0});
  add_all(&r, (const size_t[]){1, 1}, (const size_t[]){40, 40}, 2);
  plan(&r);
  cr_assert(take(&r, 0, TOKEN));
  add(&r, (mk_sequence){.prompt_count = 5, .n_predict = 40});
  cr_assert_not(take(&r, 1, TOKEN), "it can begin");
  plan(&r);
  cr_assert_eq(rows_of(&r, 0, 2), 5, "in the next launch");
  cr_assert(mk_batch_cancel(r.batch, r.ids[0]));
  cr_assert_not(take(&r, 0, TOKEN), "one is gone");
  cr_assert_eq(r.reports[0].how, MK_ENDED_CANCELLED);
  cr_assert_eq(r.tokens[0], 2, "what its row chose after that is nobody's");
  cr_assert_not(mk_batch_cancel(r.batch, r.ids[0]), "once");
  while (r.count < 12) {
    add(&r, (mk_sequence){.prompt_count = 1, .n_predict = 30});
  }
  plan(&r);
  cr_assert(take(&r, 0, TOKEN), "those who wait find no slot");
  cr_assert(mk_batch_cancel(r.batch, r.ids[11]));
  cr_assert(take(&r, 1, TOKEN), "it had no part in the launch");
  stop(&r);
}

/* Nothing that has no room can be asked for. */
Test(batch, what_can_never_be_is_refused_at_once) {
  rig r;
  start(&r, (kinds){.blocks = 3});
  cr_assert_eq(mk_batch_context(r.batch), 192);
  cr_assert_eq(try_add(&r, (mk_sequence){.prompt_count = 0, .n_predict = 1}), MK_ERR_USAGE);
  cr_assert_eq(try_add(&r, (mk_sequence){.prompt_count = 193, .n_predict = 1}), MK_ERR_USAGE);
  cr_assert_str_eq(mk_error_message(), "the prompt has 193 tokens; the KV cache holds 192");
  cr_assert_eq(try_add(&r, (mk_sequence){.prompt_count = CONTEXT + 1, .n_predict = 1}), MK_ERR_USAGE);
  const uint32_t bad[] = {1, 99999};
  cr_assert_eq(try_add(&r, (mk_sequence){.prompt = bad, .prompt_count = 2, .n_predict = 1}), MK_ERR_USAGE);
  add(&r, (mk_sequence){.prompt_count = 190, .n_predict = 50});
  add(&r, (mk_sequence){.prompt_count = 192, .n_predict = 50});
  add(&r, (mk_sequence){.prompt_count = 5, .n_predict = 0});
  run_all(&r);
  cr_assert_eq(r.tokens[0], 2, "as far as the cache goes");
  cr_assert_eq(r.tokens[1] + r.tokens[2], 0);
  cr_assert_eq(r.ended, 3);
  stop(&r);
}

/* Four blocks: the third one waits for the space of its prompt, and for one block each that the others may need. */
Test(batch, who_finds_no_blocks_waits) {
  rig r;
  start(&r, (kinds){.blocks = 4});
  add_all(&r, (const size_t[]){64, 60, 128}, (const size_t[]){3, 6, 2}, 3);
  plan(&r);
  cr_assert_eq(rows_of(&r, 0, 2), 0);
  run_all(&r);
  for (size_t i = 0; i < 3; i++) {
    cr_assert_eq(r.status[i], MK_OK);
    cr_assert_eq(r.reports[i].preemptions, 0);
  }
  cr_assert_eq(r.order[2], 2);
  stop(&r);
}

/* Both grow into a block of which there is one: the launch goes as far as both get, then the younger one gives its own
 * back, and comes again with all its tokens. */
Test(batch, the_youngest_gives_way_and_comes_again) {
  rig r;
  mk_batch_counters counters;
  start(&r, (kinds){.blocks = 4});
  add_all(&r, (const size_t[]){60, 62, 1}, (const size_t[]){100, 90, 1}, 3);
  plan(&r);
  cr_assert_eq(rows_of(&r, 0, 2), 0, "there is no block to spare for it");
  run_all(&r);
  mk_batch_count(r.batch, &counters);
  cr_assert_eq(counters.preemptions, 1);
  cr_assert_eq(r.reports[1].preemptions, 1);
  cr_assert_eq(r.tokens[0], 100);
  cr_assert_eq(r.tokens[1], 90, "no token is told twice: %zu", r.tokens[1]);
  cr_assert_eq(counters.blocks_in_use, 0);
  stop(&r);
}

/* Its tokens are all known when it comes again: they are computed in chunks, and only the last one chooses. */
Test(batch, what_was_generated_is_computed_again_in_chunks) {
  rig r;
  mk_batch_counters counters = {0};
  start(&r, (kinds){.blocks = 3});
  add_all(&r, (const size_t[]){30, 40}, (const size_t[]){162, 40}, 2);
  while (counters.preemptions == 0) {
    cr_assert_neq(launch(&r), 0);
    mk_batch_count(r.batch, &counters);
  }
  uint32_t known = 40 + (uint32_t)r.tokens[1];
  cr_assert_gt(known, 64);
  while (r.ended == 0) {
    cr_assert_neq(launch(&r), 0);
  }
  plan(&r);
  cr_assert_eq(r.launch.plan[0].position, 0);
  for (uint32_t i = 0; i < known; i++) { /* eight rows a step, none of them idle */
    const mk_step_row *row = &r.launch.plan[i];
    cr_assert_eq(row->position, i);
    cr_assert_eq(row->token, i < 40 ? i : TOKEN);
    cr_assert_eq(row->flags, MK_ROW_ACTIVE | (i < 40 ? (uint32_t)MK_ROW_PROMPT : 0) |
                                 (i + 1 == known ? (uint32_t)MK_ROW_CHOOSES : 0));
  }
  for (uint32_t step = 0; step < r.launch.steps && take(&r, step, TOKEN); step++) {
  }
  run_all(&r);
  cr_assert_eq(r.tokens[1], 40);
  stop(&r);
}

/* ---- Order ---- */

Test(batch, lower_priorities_first_and_nobody_is_overtaken_for_ever) {
  rig r;
  start(&r, (kinds){0});
  for (size_t i = 0; i < ROWS; i++) { /* all slots are taken */
    add(&r, (mk_sequence){.prompt_count = 1, .n_predict = 1});
  }
  add(&r, (mk_sequence){.prompt_count = 1, .n_predict = 1, .priority = 5});
  const size_t patient = ROWS;
  while (r.count + 1 < MOST) { /* two that are more urgent arrive for each that ends */
    add(&r, (mk_sequence){.prompt_count = 1, .n_predict = 1, .priority = r.count % 3 == 0 ? -1 : 0});
    (void)(r.count % ROWS == 0 ? launch(&r) : 0);
  }
  run_all(&r);
  size_t place = 0, later = 0;
  while (r.order[place] != patient) {
    later += r.order[place++] > patient;
  }
  cr_assert_geq(later, MK_MOST_OVERTAKEN - ROWS, "%zu came after it and went before", later);
  cr_assert_leq(later, MK_MOST_OVERTAKEN + ROWS, "%zu came after it and went before", later);
  for (size_t i = ROWS + 1; i + 1 < r.ended; i++) { /* within what waited together, by priority */
    cr_assert(r.reports[r.order[i]].begun);
  }
  stop(&r);
}

Test(batch, deadlines_of_waiting_and_of_all) {
  rig r;
  start(&r, (kinds){0});
  for (size_t i = 0; i < ROWS; i++) {
    add(&r, (mk_sequence){.prompt_count = 1, .n_predict = 60, .begin_by = 1, .end_by = i == 2 ? 5 : 0});
  }
  add(&r, (mk_sequence){.prompt_count = 1, .n_predict = 60, .begin_by = 3});
  add(&r, (mk_sequence){.prompt_count = 1, .n_predict = 60});
  plan(&r);
  r.time = 2;
  mk_batch_expire(r.batch);
  cr_assert_eq(r.ended, 0, "they have begun");
  r.time = 3;
  mk_batch_expire(r.batch);
  cr_assert_eq(r.ended, 1);
  cr_assert_eq(r.order[0], ROWS);
  cr_assert_eq(r.reports[ROWS].how, MK_ENDED_LATE);
  cr_assert(take(&r, 0, TOKEN));
  r.time = 5;
  mk_batch_expire(r.batch);
  cr_assert_eq(r.order[1], 2);
  cr_assert_not(take(&r, 1, TOKEN));
  cr_assert_eq(r.tokens[2], 1);
  run_all(&r);
  cr_assert_eq(r.ended, ROWS + 2);
  stop(&r);
}

/* ---- Machines ---- */

/* Prompts of more than 32 tokens are computed by their own machine, which takes turns with those that generate. */
Test(batch, machines_take_turns) {
  rig r;
  start(&r, (kinds){.prompts = true});
  add_all(&r, (const size_t[]){31, 3}, (const size_t[]){500, 500}, 2);
  cr_assert_neq(launch(&r), 0);
  cr_assert_eq(r.launch.machine, MK_MACHINE_MAIN);
  r.stops[1] = r.tokens[1] + 1;
  cr_assert_eq(launch(&r), 1);
  static uint32_t other[CONTEXT];
  for (uint32_t i = 0; i < CONTEXT; i++) {
    other[i] = CONTEXT - 1 - i;
  }
  add(&r, (mk_sequence){.prompt = other, .prompt_count = 500, .n_predict = 3});
  add(&r, (mk_sequence){.prompt = other + 1, .prompt_count = 40, .n_predict = 3});
  const struct {
    mk_batch_machine machine;
    uint32_t steps;
  } want[] = {{MK_MACHINE_PROMPTS, 8}, {MK_MACHINE_MAIN, 2}, {MK_MACHINE_PROMPTS, 1}};
  for (size_t i = 0; i < sizeof want / sizeof want[0]; i++) {
    cr_assert_eq(launch(&r), want[i].steps, "launch %zu: %u steps", i, r.launch.steps);
    cr_assert_eq(r.launch.machine, want[i].machine, "launch %zu", i);
  }
  cr_assert_eq(r.tokens[2], 3);
  cr_assert_eq(r.tokens[3], 1);
  stop(&r);
}

/* Where their machine has several slots, prompts share its steps: each has what those before it leave. */
Test(batch, prompts_share_steps) {
  rig r;
  start(&r, (kinds){.prompts = true, .prompt_slots = 4});
  for (size_t i = 0; i < 6; i++) {
    static const size_t prompts[] = {40, 34, 50, 33, 33, 33};
    add(&r, (mk_sequence){.prompt_count = prompts[i], .n_predict = 100});
  }
  plan(&r);
  cr_assert_eq(r.launch.machine, MK_MACHINE_PROMPTS);
  cr_assert(rows_of(&r, 0, 0) == 40 && rows_of(&r, 0, 1) == 24 && rows_of(&r, 0, 2) == 0);
  cr_assert_eq(r.launch.steps, 1, "a prompt ends");
  (void)take(&r, 0, TOKEN);
  plan(&r); /* the first one generates */
  cr_assert_eq(r.launch.machine, MK_MACHINE_MAIN);
  while (r.launch.machine == MK_MACHINE_MAIN) {
    cr_assert_neq(launch(&r), 0);
  }
  cr_assert_eq(r.launch.machine, MK_MACHINE_PROMPTS);
  cr_assert(r.tokens[1] == 1 && r.tokens[2] == 1 && r.tokens[3] == 0);
  run_all(&r);
  cr_assert_eq(r.ended, 6);
  stop(&r);
}

Test(batch, a_decoder_waits_for_a_chunk_at_most) {
  rig r;
  mk_batch_options options = {.prompt_tokens = 128, .decode_steps = 3};
  start(&r, (kinds){.prompts = true});
  mk_batch_free(r.batch);
  options.programs[MK_MACHINE_MAIN] = r.programs[MK_MACHINE_MAIN];
  options.programs[MK_MACHINE_PROMPTS] = r.programs[MK_MACHINE_PROMPTS];
  cr_assert_eq(mk_batch_new(&options, &r.batch), MK_OK);
  add(&r, (mk_sequence){.prompt_count = 1, .n_predict = 500});
  cr_assert_neq(launch(&r), 0);
  add(&r, (mk_sequence){.prompt_count = 500, .n_predict = 3});
  for (uint32_t i = 0; i < 4; i++) {
    cr_assert_eq(launch(&r), 2, "chunk %u", i);
    cr_assert_eq(r.launch.machine, MK_MACHINE_PROMPTS);
    cr_assert_eq(launch(&r), i == 3 ? 2 : 3, "after chunk %u", i);
    cr_assert_eq(r.launch.machine, MK_MACHINE_MAIN);
  }
  stop(&r);
}

/* The machine for prompts chooses greedily: whose first token is drawn needs a step of the main one for it, another one
 * does not. */
Test(batch, the_first_token_of_who_draws) {
  rig r;
  const mk_sampling drawn = {.temperature = 1, .top_p = 1, .repetition = 1}, off = MK_SAMPLING_OFF;
  start(&r, (kinds){.prompts = true, .draws = true});
  const mk_sampling *const samplings[] = {&drawn, NULL, &off}; /* NULL: by those of the program */
  for (size_t i = 0; i < 3; i++) {
    add(&r, (mk_sequence){.prompt_count = 100, .n_predict = 3, .sampling = samplings[i]});
    cr_assert_neq(launch(&r), 0);
    cr_assert_eq(r.launch.machine, MK_MACHINE_PROMPTS);
    cr_expect_eq(r.tokens[i], i < 2 ? 0 : 1, "sequence %zu", i);
    while (r.tokens[i] < 3) {
      cr_assert_neq(launch(&r), 0);
      cr_assert_eq(r.launch.machine, MK_MACHINE_MAIN);
      cr_expect_eq(r.launch.plan[0].position, i < 2 ? 99 : 100);
    }
  }
  stop(&r);
}

/* A sequence that is alone goes on in steps of one row; logits that are not numbers end it. */
Test(batch, who_is_alone_goes_on_in_steps_of_one_row) {
  rig r;
  start(&r, (kinds){.prompts = true, .one_row = true});
  add(&r, (mk_sequence){.prompt_count = 100, .n_predict = 200, .alone = true});
  add(&r, (mk_sequence){.prompt_count = 10, .n_predict = 2, .alone = true});
  cr_assert_eq(launch(&r), 2, "the prompt of the first");
  cr_assert_eq(launch(&r), MK_DECODE_STEPS, "it goes on, and does not keep the other one waiting");
  cr_assert_eq(r.launch.machine, MK_MACHINE_ONE_ROW);
  cr_assert_eq(r.launch.plan[0].position, 100);
  cr_assert_eq(r.launch.plan[0].token, TOKEN);
  cr_assert_eq(launch(&r), 2, "eight rows a step");
  cr_assert_eq(r.launch.machine, MK_MACHINE_MAIN);
  plan(&r);
  cr_assert_eq(r.launch.machine, MK_MACHINE_ONE_ROW);
  cr_assert_eq(r.launch.steps, 200 - 1 - MK_DECODE_STEPS);
  cr_assert_not(take(&r, 0, TOKEN | MK_RESULT_NAN));
  cr_assert_eq(r.status[0], MK_ERR_DEVICE);
  run_all(&r);
  cr_assert_eq(r.tokens[1], 2);
  stop(&r);
}

Test(batch, a_fault_ends_those_that_run) {
  rig r;
  start(&r, (kinds){.kept = 100});
  for (size_t i = 0; i < ROWS + 3; i++) {
    add(&r, (mk_sequence){.prompt_count = 100, .n_predict = 40});
  }
  cr_assert_neq(launch(&r), 0);
  plan(&r);
  size_t left = mk_batch_left(r.batch);
  mk_batch_counters before, after;
  mk_batch_count(r.batch, &before);
  mk_batch_fail(r.batch, mk_error(MK_ERR_DEVICE, "a fault"));
  mk_batch_count(r.batch, &after);
  cr_assert_eq(mk_batch_left(r.batch), left - before.running);
  cr_assert_eq(after.running + after.blocks_in_use + after.blocks_kept, 0);
  run_all(&r);
  cr_assert_eq(r.ended, ROWS + 3);
  stop(&r);
}

/* Full contexts for all rows: whoever finds a row begins. Blocks to spare are for those who have not all of theirs. */
Test(batch, who_has_all_its_blocks_holds_nobody_up) {
  rig r;
  mk_batch_counters counters;
  start(&r, (kinds){0});
  for (size_t i = 0; i < ROWS; i++) {
    add(&r, (mk_sequence){.prompt_count = i == 0 ? 440 : CONTEXT - 5, .n_predict = CONTEXT});
  }
  plan(&r);
  mk_batch_count(r.batch, &counters);
  cr_assert_eq(counters.running, ROWS, "%u run", counters.running);
  run_all(&r);
  mk_batch_count(r.batch, &counters);
  cr_assert_eq(counters.preemptions, 0);
  stop(&r);
}

/* ---- The prefix cache ---- */

Test(batch, a_prompt_that_is_known_is_not_computed_again) {
  rig r;
  mk_batch_counters counters;
  start(&r, (kinds){.kept = 100});
  add(&r, (mk_sequence){.prompt_count = 200, .n_predict = 60});
  run_all(&r);
  add(&r, (mk_sequence){.prompt_count = 200, .n_predict = 2});
  plan(&r);
  cr_assert_eq(r.launch.plan[0].position, 192);
  run_all(&r);
  cr_assert_eq(r.reports[0].cached, 0);
  cr_assert_eq(r.reports[1].cached, 192);
  mk_batch_count(r.batch, &counters);
  cr_assert_eq(counters.cached_tokens, 192);
  cr_assert_eq(counters.asked_tokens, 400);
  stop(&r);
}

/* Several choices of one request: the first computes the prompt, the others wait for it, and somebody else does not. */
Test(batch, those_who_begin_alike_compute_it_once) {
  rig r;
  static const uint32_t other[] = {9, 8, 7};
  start(&r, (kinds){.kept = 100});
  for (size_t i = 0; i < 3; i++) {
    add(&r, (mk_sequence){.prompt_count = 130, .n_predict = 5});
  }
  add(&r, (mk_sequence){.prompt = other, .prompt_count = 3, .n_predict = 50});
  plan(&r);
  cr_assert_eq(rows_of(&r, 0, 0) + rows_of(&r, 0, 1), ROWS);
  cr_assert_eq(rows_of(&r, 0, 2), 0);
  run_all(&r);
  cr_assert_eq(r.reports[0].cached, 0);
  cr_assert_eq(r.reports[1].cached, 128);
  cr_assert_eq(r.reports[2].cached, 128);
  cr_assert_eq(r.reports[3].cached, 0);
  stop(&r);
}

/* Whether a row of that step is at that position in another slot than 0. */
static bool has_row(const rig *r, uint32_t step, uint32_t position) {
  uint32_t rows = rows_in(r);
  for (uint32_t line = 0; line < rows; line++) {
    const mk_step_row *row = &r->launch.plan[step * rows + line];
    if ((row->flags & MK_ROW_ACTIVE) != 0 && row->slot != 0 && row->position == position) {
      return true;
    }
  }
  return false;
}

/* Sequences that need no blocks overtake one that waits for blocks which another one computes, but not for ever. */
Test(batch, who_waits_for_blocks_does_not_wait_for_ever) {
  rig r;
  size_t overtaken = 0;
  bool began = false;
  start(&r, (kinds){.kept = 100});
  add(&r, (mk_sequence){.prompt_count = 500, .n_predict = 1});
  plan(&r);
  cr_assert(take(&r, 0, TOKEN));
  add(&r, (mk_sequence){.prompt_count = 500, .n_predict = 1});
  for (; !began && r.ended < 60; overtaken += began ? 0 : ROWS - 2) {
    static const uint32_t one[] = {3};
    for (uint32_t i = 0; i < ROWS - 2; i++) {
      add(&r, (mk_sequence){.prompt = one, .prompt_count = 1, .n_predict = 1});
    }
    plan(&r);
    began = has_row(&r, 0, 1);
    (void)take(&r, 0, TOKEN);
  }
  cr_assert(began, "after %zu others it still waits", r.ended);
  cr_assert_geq(overtaken, MK_MOST_OVERTAKEN);
  cr_assert_leq(overtaken, MK_MOST_OVERTAKEN + ROWS);
  cr_assert_eq(r.tokens[0], 0, "the first one still computes its prompt");
  run_all(&r);
  stop(&r);
}
