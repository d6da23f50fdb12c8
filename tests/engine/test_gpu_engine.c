/* The engine on a GPU, over one that is none (tests/support/fake_gpu.h): whichever machine computes a step, each
 * sequence gets the tokens that follow from its prompt. (Rankings: test_gpu_rankings.c.) */
#include "tests/engine/gpu_engine_rig.h"
#include "tools/lib/compare.h"

static void expect_engine(uint32_t rows, bool long_prompts, bool logits) {
  rig r = {0};
  start(&r, rows, long_prompts, logits);
  cr_assert_str_eq(mk_engine_device(r.engine), "cuda:0 (a GPU that is none)");
  expect_whole_batch(&r, MOST_SEQUENCES, 90, logits);
  const uint32_t *launches = r.kernel.launches;
  cr_assert_eq(launches[1] != 0, rows > 1);
  cr_assert_eq(launches[2] != 0, rows > 1 && long_prompts, "prompts of more than 32 tokens have their own kernel");
  expect_one_alone(&r, logits);
  cr_assert_neq(launches[0], 0, "one sequence alone goes on in steps of one row");
  stop(&r);
}

/* More than sixteen sequences share wide steps, fewer go by sixteen rows. */
static void expect_wide_engine(uint32_t rows, bool long_prompts, bool logits) {
  rig r = {0};
  mk_batch_counters counters;
  start(&r, rows, long_prompts, logits);
  cr_assert(mk_program_has_tiles(mk_engine_program(r.engine)));
  expect_whole_batch(&r, MOST_SEQUENCES, 90, logits);
  cr_assert_neq(r.kernel.launches[1], 0);
  cr_assert_eq(r.kernel.launches[2] != 0, long_prompts);
  mk_engine_count(r.engine, &counters);
  cr_assert(counters.few_steps != 0);
  const uint64_t others = counters.steps - counters.few_steps - counters.one_row_steps;
  cr_assert_eq(others != 0, long_prompts, "%llu steps", (unsigned long long)others);
  expect_whole_batch(&r, CROWD, 90, logits);
  cr_assert_neq(r.kernel.launches[2], 0);
  expect_one_alone(&r, logits);
  cr_assert_neq(r.kernel.launches[0], 0, "one sequence alone goes on in steps of one row");
  stop(&r);
}

/* Two GPUs that share the model: the same answers, with a launch on both for each of one. */
static void expect_two_ranks(uint32_t rows, bool logits) {
  rig r = {0};
  r.cuda = fake_gpu_start(&r.kernel);
  r.cuda->devices = 2;
  r.kernel.ranks = 2;
  const mk_engine_options options = {.want_logits = logits, .rows = rows, .ranks = 2, .long_prompts = true};
  cr_assert_eq(open_with(options, &r.b, &r.engine), MK_OK, "%s", mk_error_message());
  cr_assert_str_eq(mk_engine_device(r.engine), "cuda:0-1 (a GPU that is none)");
  expect_whole_batch(&r, rows > 1 ? MOST_SEQUENCES : 1, 70, logits);
  cr_assert_gt(r.kernel.at_work[0], 0);
  cr_assert_eq(r.kernel.at_work[0], r.kernel.at_work[1]);
  cr_assert_eq(r.kernel.launches[2], 0, "several GPUs have no machine for prompts");
  stop(&r);
}
Test(gpu_engine, two_ranks_of_one_row) { expect_two_ranks(1, false); }
Test(gpu_engine, two_ranks_of_several_rows) { expect_two_ranks(8, false); }
Test(gpu_engine, two_ranks_with_logits) { expect_two_ranks(4, true); }

/* Of eight row tiles, on each of two ranks. */
static void have_whole_units(mk_config *config) {
  config->head_dim = 128;
  config->intermediate = 1024;
}

/* Then there are wide steps: of several sequences, and of the first one's long prompt. With a program for few, and
 * without, but with one whose steps prompts may share. */
Test(gpu_engine, two_ranks_of_wide_steps) {
  for (uint32_t logits = 0; logits < 2; logits++) {
    rig r = {0};
    r.cuda = fake_gpu_start(&r.kernel);
    r.cuda->devices = 2;
    r.kernel.ranks = 2;
    const mk_engine_options options = {.want_logits = logits != 0,
                                       .rows = 64,
                                       .slots = 64,
                                       .ranks = 2,
                                       .long_prompts = true,
                                       .rows_or_fewer = true,
                                       .few_rows = logits != 0 ? 64 : 0,
                                       .prompt_slots = logits != 0 ? 4 : 0};
    cr_assert_eq(open_changed(options, have_whole_units, &r.b, &r.engine), MK_OK, "%s", mk_error_message());
    cr_assert_eq(mk_program_rows(mk_engine_program(r.engine)), 64);
    cr_assert_eq(mk_program_slots(mk_engine_program(r.engine)), 64);
    expect_whole_batch(&r, MOST_SEQUENCES, 70, logits != 0);
    cr_assert_eq(r.kernel.launches[1] != 0, options.few_rows == 0);
    expect_whole_batch(&r, CROWD, 70, logits != 0);
    cr_assert_neq(r.kernel.launches[2], 0);
    cr_assert_eq(r.kernel.at_work[0], r.kernel.at_work[1]);
    expect_one_alone(&r, logits != 0);
    cr_assert_neq(r.kernel.launches[0], 0, "one sequence alone goes on in steps of one row");
    stop(&r);
  }
}

/* With heads of 64 dims a unit of keys reaches into the other rank. */
Test(gpu_engine, two_ranks_without_wide_steps) {
  rig r = {0};
  r.cuda = fake_gpu_start(&r.kernel);
  r.cuda->devices = 2;
  r.kernel.ranks = 2;
  mk_engine_options options = {.rows = 64, .slots = 64, .ranks = 2, .rows_or_fewer = true};
  cr_assert_eq(open_with(options, &r.b, &r.engine), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_program_rows(mk_engine_program(r.engine)), MK_MAX_ROWS);
  stop(&r);
  options.rows_or_fewer = false;
  cr_assert_eq(open_with(options, &r.b, &r.engine), MK_ERR_USAGE);
  cr_assert_not_null(strstr(mk_error_message(), "has other tiles of"), "%s", mk_error_message());
  cr_assert_eq(r.cuda->live, 0);
}

/* No GPU of several has every value. */
Test(gpu_engine, two_ranks_are_not_compared) {
  rig r = {0};
  mk_compare *compare = NULL;
  r.cuda = fake_gpu_start(&r.kernel);
  r.cuda->devices = 2;
  r.kernel.ranks = 2;
  cr_assert_eq(open_with((mk_engine_options){.ranks = 2}, &r.b, &r.engine), MK_OK, "%s", mk_error_message());
  cr_expect_eq(mk_compare_engines(r.engine, r.engine, &compare), MK_ERR_USAGE);
  cr_expect_not_null(strstr(mk_error_message(), "take one GPU"), "%s", mk_error_message());
  cr_expect_null(compare);
  stop(&r);
}

Test(gpu_engine, sixty_four_rows) { expect_wide_engine(64, false, false); }
Test(gpu_engine, sixty_four_rows_and_long_prompts) { expect_wide_engine(64, true, false); }
Test(gpu_engine, one_hundred_and_twenty_eight_rows_with_logits) { expect_wide_engine(128, false, true); }

/* Where as many as there can be are asked for: no more than draw where requests may draw, and sixteen where the model
 * has no wide steps. */
Test(gpu_engine, as_many_rows_as_there_can_be) {
  rig r = {0};
  mk_sampling draw = MK_SAMPLING_OFF;
  mk_engine_options options = {.rows = 64, .slots = 64, .rows_or_fewer = true};
  r.cuda = fake_gpu_start(&r.kernel);
  cr_assert_eq(open_with(options, &r.b, &r.engine), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_program_rows(mk_engine_program(r.engine)), 64);
  stop(&r);
  draw.temperature = 1;
  options.sampling = &draw;
  for (uint32_t rows = 64; rows <= MK_MOST_SHARED_ROWS; rows *= 2) {
    const uint32_t fit = rows < MK_MOST_DRAWING_ROWS ? rows : (uint32_t)MK_MOST_DRAWING_ROWS;
    options.rows = options.slots = rows;
    cr_assert_eq(open_with(options, &r.b, &r.engine), MK_OK, "%s", mk_error_message());
    cr_expect_eq(mk_program_rows(mk_engine_program(r.engine)), fit);
    cr_expect_eq(mk_program_slots(mk_engine_program(r.engine)), fit);
    mk_engine_close(r.engine);
  }
  r.engine = NULL;
  stop(&r);
}

Test(gpu_engine, one_row) { expect_engine(1, false, false); }
Test(gpu_engine, one_row_with_logits) { expect_engine(1, false, true); }
Test(gpu_engine, four_rows) { expect_engine(4, false, false); }
Test(gpu_engine, four_rows_with_logits) { expect_engine(4, false, true); }
Test(gpu_engine, sixteen_rows_and_long_prompts) { expect_engine(16, true, false); }
Test(gpu_engine, four_rows_long_prompts_and_logits) { expect_engine(4, true, true); }

/* The second sequence comes when the first has three tokens, and goes before it. */
static void bring_company(void *user) {
  rig *r = user;
  const mk_sequence_calls calls = {.token = take_token, .ended = take_end, .user = &r->b};
  if (r->b.count == 1 && r->b.answers[0].count == 3) {
    r->b.count = 2;
    cr_assert_eq(mk_engine_submit(r->engine, &r->b.sequences[1], &calls, 1, NULL), MK_OK, "%s", mk_error_message());
  }
}

/* A sequence without company goes by the machine of one row, and with company by that of several. */
static void expect_crossing(const mk_sampling *sampling, uint32_t longest) {
  rig r = {0};
  size_t left = 1;
  const mk_sequence_calls calls = {.token = take_token, .ended = take_end, .user = &r.b};
  const mk_engine_options options = {
      .rows = 4, .long_prompts = true, .sampling = sampling, .poll = bring_company, .poll_user = &r};
  r.cuda = fake_gpu_start(&r.kernel);
  cr_assert_eq(open_with(options, &r.b, &r.engine), MK_OK, "%s", mk_error_message());
  make_batch(&r.b, 2, longest);
  r.b.count = 1;
  r.b.sequences[0].n_predict = MOST_TOKENS;
  r.b.sequences[1].n_predict = 4;
  r.b.sequences[0].sampling = r.b.sequences[1].sampling = sampling;
  cr_assert_eq(mk_engine_submit(r.engine, &r.b.sequences[0], &calls, 0, NULL), MK_OK);
  while (left != 0) {
    cr_assert_eq(mk_engine_step(r.engine, &left), MK_OK, "%s", mk_error_message());
  }
  cr_assert_eq(r.b.count, 2);
  expect_answers(&r.b, false);
  mk_batch_counters counters;
  mk_engine_count(r.engine, &counters);
  cr_assert(r.kernel.launches[0] == 2 && r.kernel.launches[1] != 0, "%u and %u launches", r.kernel.launches[0],
            r.kernel.launches[1]);
  cr_assert_eq(r.kernel.launches[2] != 0, longest > MK_LONG_PROMPT);
  cr_assert(counters.one_row_steps >= 6 && counters.one_row_steps < MOST_TOKENS, "%llu steps by one row",
            (unsigned long long)counters.one_row_steps);
  stop(&r);
}

Test(gpu_engine, who_has_no_company_goes_by_one_row) {
  const mk_sampling drawn = {.temperature = 1,
                             .top_p = 1,
                             .repetition = 1.5,
                             .frequency = 1,
                             .biases = &(mk_logit_bias){3, 1},
                             .bias_count = 1};
  expect_crossing(NULL, 20);
  expect_crossing(NULL, 70);
  expect_crossing(&drawn, 20);
  expect_crossing(&drawn, 70);
}

/* A sequence that wants logits gets them, and so do those that share its steps. */
Test(gpu_engine, logits_for_those_who_want_them) {
  rig r = {0};
  start(&r, 4, true, false);
  make_batch(&r.b, 1, 70);
  r.b.sequences[0].logits = true;
  cr_assert_eq(generate(r.engine, &r.b), MK_OK, "%s", mk_error_message());
  expect_answers(&r.b, true);
  expect_whole_batch(&r, MOST_SEQUENCES, 90, false);
  stop(&r);
}

static void take_prompt(void *user, size_t sequence, uint32_t position, const float *logits) {
  cr_assert_eq(sequence, 0);
  cr_assert_not_null(logits);
  cr_assert_eq(position, (*(uint32_t *)((batch *)user)->prompts[1])++);
}

Test(gpu_engine, logits_of_a_long_prompt_come_from_the_main_machine) {
  rig r = {0};
  start(&r, 4, true, false);
  make_batch(&r.b, 1, 70);
  r.b.sequences[0].prompt_logits = true;
  const mk_sequence_calls calls = {.token = take_token, .prompt = take_prompt, .ended = take_end, .user = &r.b};
  cr_assert_eq(mk_engine_generate_all(r.engine, r.b.sequences, 1, &calls), MK_OK, "%s", mk_error_message());
  expect_answers(&r.b, true);
  cr_assert_eq(r.b.prompts[1][0], 69);
  cr_assert_eq(r.kernel.launches[2], 0);
  stop(&r);
}

static void expect_cancelled(uint32_t rows, bool ranks) {
  rig r = {0};
  uint32_t tokens = 0;
  mk_ranking ranking = {.most = 2};
  start(&r, rows, true, false);
  make_batch(&r.b, 6, 40);
  r.b.sequences[1].ranking = ranks ? &ranking : NULL;
  r.b.cancel_after = 3;
  cr_assert_eq(generate(r.engine, &r.b), MK_OK, "%s", mk_error_message());
  for (size_t i = 0; i < r.b.count; i++) {
    tokens += r.b.answers[i].count;
  }
  cr_assert_geq(tokens, 3);
  cr_assert_leq(tokens, 3 + rows, "%u rows: what comes after the step at hand is not told", rows);
  expect_whole_batch(&r, 6, 40, false);
  stop(&r);
}

Test(gpu_engine, a_cancelled_generation_ends_and_the_next_one_is_whole) {
  for (int ranks = 0; ranks < 2; ranks++) {
    expect_cancelled(1, ranks);
    expect_cancelled(8, ranks);
  }
}

Test(gpu_engine, a_fault_ends_the_generation_and_the_next_one_is_whole) {
  rig r = {0};
  start(&r, 4, true, false);
  make_batch(&r.b, 6, 40);
  r.kernel.fault_at = 2;
  cr_assert_eq(generate(r.engine, &r.b), MK_ERR_DEVICE);
  cr_assert_not_null(strstr(mk_error_message(), "the program stands still: SM 3"), "%s", mk_error_message());
  r.kernel.fault_at = UINT32_MAX;
  expect_whole_batch(&r, 6, 40, false);
  stop(&r);
}

/* Logits that are not numbers end their sequences alone. */
Test(gpu_engine, what_is_not_a_number_ends_its_sequence) {
  rig r = {0};
  uint32_t ended = 0, whole = 0;
  start(&r, 4, true, false);
  make_batch(&r.b, MOST_SEQUENCES, 6);
  r.kernel.nan_at = 4;
  cr_assert_eq(generate(r.engine, &r.b), MK_OK, "%s", mk_error_message());
  for (size_t i = 0; i < r.b.count; i++) {
    ended += r.b.answers[i].status == MK_ERR_DEVICE;
    whole += r.b.answers[i].status == MK_OK;
  }
  cr_assert(ended != 0 && whole != 0 && ended + whole == r.b.count, "%u ended, %u whole", ended, whole);
  stop(&r);
}

/* *calls: to the driver, all but those that end it. */
static mk_status use_engine(const fake_cuda *cuda, batch *b, uint32_t *calls) {
  mk_engine *engine;
  *calls = 0;
  MK_TRY(open_engine(4, true, true, b, &engine));
  mk_status status = generate(engine, b);
  *calls = cuda->calls;
  mk_engine_close(engine);
  return status;
}

/* Each call of the driver fails in turn, from the first machine's first to the last copy of logits. */
Test(gpu_engine, every_call_that_fails_is_an_error_and_leaves_nothing) {
  fake_gpu kernel;
  fake_cuda *cuda = fake_gpu_start(&kernel);
  batch b;
  uint32_t calls, before;
  make_batch(&b, 3, 40);
  cr_assert_eq(use_engine(cuda, &b, &calls), MK_OK, "%s", mk_error_message());
  cr_assert_gt(calls, 200);
  for (uint32_t n = 1; n <= calls; n++) {
    make_batch(&b, 3, 40);
    cuda->calls = 0;
    cuda->fail_at = n;
    mk_status status = use_engine(cuda, &b, &before);
    cr_assert_eq(cuda->live, 0, "call %u of %u: %u things are left", n, calls, cuda->live);
    bool told = status == MK_ERR_DEVICE || status == MK_ERR_RUNTIME;
    for (size_t i = 0; i < b.count; i++) {
      told = told || b.answers[i].status == MK_ERR_DEVICE || b.answers[i].status == MK_ERR_RUNTIME;
    }
    cr_assert(told, "call %u of %u failed, and nobody was told", n, calls);
  }
}
