/* A sequence without company goes by the machine of one row, and comes back: when, how far, knowing what, and to which
 * bits; these also where it goes by the machine for few. (When it does: test_few.c. Random schedules:
 * test_schedules.c.) */
#include <math.h>

#include "engine/engine.h"
#include "instructions/reference.h"
#include "tests/engine/batch_rig.h"
#include "tests/support/numbers.h"

/* ---- The batch without a machine ---- */

static uint64_t one_row_steps(const rig *r) {
  mk_batch_counters counters;
  mk_batch_count(r->batch, &counters);
  return counters.one_row_steps;
}

Test(lone, goes_by_one_row_until_somebody_comes) {
  rig r;
  start(&r, (kinds){.one_row = true});
  add(&r, (mk_sequence){.prompt_count = 10, .n_predict = 150});
  cr_assert_eq(launch(&r), 2, "the prompt is computed eight rows a step, and no more");
  expect_launch(&r, MK_MACHINE_MAIN, 0);
  cr_assert_eq(launch(&r), MK_PLAN_STEPS, "as long as the other launches, so that it holds no more blocks");
  expect_launch(&r, MK_MACHINE_ONE_ROW, 10);
  plan(&r);
  expect_launch(&r, MK_MACHINE_ONE_ROW, 10 + MK_PLAN_STEPS);
  cr_assert(take(&r, 0, TOKEN));
  add(&r, (mk_sequence){.prompt_count = 3, .n_predict = 5});
  cr_assert_not(take(&r, 1, TOKEN), "company ends it at the next step");
  cr_assert_eq(one_row_steps(&r), MK_PLAN_STEPS + 2);
  cr_assert_eq(launch(&r), 5, "side by side");
  expect_launch(&r, MK_MACHINE_MAIN, 12 + MK_PLAN_STEPS);
  cr_assert(rows_of(&r, 0, 0) == 1 && rows_of(&r, 0, 1) == 3);
  cr_assert_neq(launch(&r), 0);
  expect_launch(&r, MK_MACHINE_ONE_ROW, 17 + MK_PLAN_STEPS);
  run_all(&r);
  cr_assert(r.tokens[0] == 150 && r.tokens[1] == 5);
  cr_assert_eq(one_row_steps(&r), 150 - 1 - 5);
  stop(&r);
}

/* A sequence whose company computes a prompt on a machine of its own is alone on the main one. */
Test(lone, beside_a_prompt_on_its_own_machine) {
  rig r;
  start(&r, (kinds){.prompts = true, .one_row = true, .prompt_tokens = 128});
  add(&r, (mk_sequence){.prompt_count = 1, .n_predict = 200});
  plan(&r);
  expect_launch(&r, MK_MACHINE_ONE_ROW, 0);
  cr_assert(take(&r, 0, TOKEN));
  add(&r, (mk_sequence){.prompt_count = 200, .n_predict = 5});
  cr_assert_not(take(&r, 1, TOKEN));
  cr_assert_eq(launch(&r), 2);
  expect_launch(&r, MK_MACHINE_PROMPTS, 0);
  cr_assert_eq(launch(&r), MK_DECODE_STEPS, "the prompt waits no longer than for the main machine");
  expect_launch(&r, MK_MACHINE_ONE_ROW, 2);
  cr_assert_eq(launch(&r), 2);
  expect_launch(&r, MK_MACHINE_PROMPTS, 128);
  cr_assert_eq(launch(&r), 4);
  expect_launch(&r, MK_MACHINE_MAIN, 2 + MK_DECODE_STEPS);
  run_all(&r);
  cr_assert_eq(r.ended, 2);
  stop(&r);
}

/* Two of which each could be alone, and one that its caller wants in steps of one row: the machine is not shared. */
Test(lone, not_beside_who_has_the_machine) {
  rig r;
  start(&r, (kinds){.one_row = true});
  add(&r, (mk_sequence){.prompt_count = 1, .n_predict = 100, .alone = true});
  plan(&r);
  expect_launch(&r, MK_MACHINE_ONE_ROW, 0);
  add(&r, (mk_sequence){.prompt_count = 1, .n_predict = 100});
  cr_assert_not(take(&r, 0, TOKEN));
  cr_assert_eq(launch(&r), MK_DECODE_STEPS);
  expect_launch(&r, MK_MACHINE_MAIN, 0);
  cr_assert_eq(launch(&r), MK_DECODE_STEPS);
  expect_launch(&r, MK_MACHINE_ONE_ROW, 1);
  run_all(&r);
  cr_assert(r.tokens[0] == 100 && r.tokens[1] == 100);
  stop(&r);
}

/* What the machines have to be told of who draws. */
Test(lone, who_knows_what) {
  rig r;
  const mk_sampling drawn = {.temperature = 1, .top_p = 1, .frequency = 1, .repetition = 1};
  start(&r, (kinds){.one_row = true, .draws = true});
  add(&r, (mk_sequence){.prompt_count = 1, .n_predict = 400, .sampling = &drawn});
  plan(&r);
  expect_launch(&r, MK_MACHINE_ONE_ROW, 0);
  cr_assert(view_of(&r, 0).fresh && !view_of(&r, 0).crosses);
  for (uint32_t step = 0; step < r.launch.steps; step++) {
    cr_assert(take(&r, step, TOKEN));
  }
  plan(&r);
  cr_assert(!view_of(&r, 0).fresh && !view_of(&r, 0).went_on);
  cr_assert(take(&r, 0, TOKEN));
  add(&r, (mk_sequence){.prompt_count = 1, .n_predict = 3, .sampling = &drawn});
  cr_assert_not(take(&r, 1, TOKEN));
  plan(&r);
  expect_launch(&r, MK_MACHINE_MAIN, MK_PLAN_STEPS + 2);
  cr_assert(view_of(&r, 0).fresh && view_of(&r, 0).crosses && view_of(&r, 0).computed == MK_PLAN_STEPS + 2);
  cr_assert(view_of(&r, 1).fresh && !view_of(&r, 1).crosses);
  for (uint32_t step = 0; step < r.launch.steps; step++) {
    (void)take(&r, step, TOKEN);
  }
  plan(&r);
  expect_launch(&r, MK_MACHINE_ONE_ROW, MK_PLAN_STEPS + 5);
  cr_assert(view_of(&r, 0).fresh && view_of(&r, 0).crosses);
  stop(&r);
}

/* A sequence that draws by the engine's parameters stays on the main machine, which alone has been told of them. */
Test(lone, drawn_as_the_engine_says) {
  rig r;
  start(&r, (kinds){.one_row = true, .draws = true});
  add(&r, (mk_sequence){.prompt_count = 1, .n_predict = 20});
  cr_assert_eq(launch(&r), 20);
  expect_launch(&r, MK_MACHINE_MAIN, 0);
  stop(&r);
}

/* A machine that went on further than was told still did so when others have worked in between. */
Test(lone, what_nobody_was_told_of_is_not_forgotten) {
  rig r;
  const mk_sampling drawn = {.temperature = 1, .top_p = 1, .frequency = 1, .repetition = 1};
  start(&r, (kinds){.prompts = true, .draws = true});
  for (size_t i = 0; i < 2; i++) {
    add(&r, (mk_sequence){.prompt_count = 1, .n_predict = 100, .sampling = &drawn});
  }
  plan(&r);
  cr_assert(take(&r, 0, TOKEN));
  add(&r, (mk_sequence){.prompt_count = 300, .n_predict = 5, .sampling = &drawn});
  cr_assert_not(take(&r, 1, TOKEN));
  cr_assert_neq(launch(&r), 0);
  expect_launch(&r, MK_MACHINE_PROMPTS, 0);
  plan(&r);
  expect_launch(&r, MK_MACHINE_MAIN, 2);
  cr_assert(!view_of(&r, 0).fresh && view_of(&r, 0).went_on && view_of(&r, 1).went_on);
  stop(&r);
}

/* ---- The engine, on the CPU machine ---- */

enum { ANSWER = 60, COMPANY_PROMPT = 5, LONG_CONTEXT = 2112, BLOCKS = 64, MOST_CROWDS = 3 };

/* Company comes when so many tokens have been heard, so many sequences of so many tokens. */
typedef struct crowd {
  uint32_t comes, count, stays;
} crowd;

typedef struct asked { /* the one who is heard, and its company */
  mk_config config;
  const mk_sampling *sampling;
  uint32_t prompt_count, rows, few_rows;
  crowd crowds[MOST_CROWDS]; /* in the order in which they come; count 0: none does */
} asked;

typedef struct heard { /* tokens, and a hash of the logits of each */
  const asked *asked;
  mk_engine *engine;
  uint32_t tokens[ANSWER], count, company;
  uint64_t bits[ANSWER];
  mk_batch_machine by[ANSWER]; /* the main one, that of one row, or that for few */
  mk_batch_counters before;    /* when the last token came */
  uint32_t came;               /* crowds */
} heard;

static bool hear(void *user, size_t sequence, uint32_t token, const float *logits) {
  heard *h = user;
  mk_batch_counters counters;
  uint64_t hash = 1;
  if (sequence != 0) {
    h->company++;
    return true;
  }
  mk_engine_count(h->engine, &counters);
  for (uint32_t i = 0; i < h->asked->config.vocab; i++) {
    hash = (hash ^ mk_float_param(logits[i])) * UINT64_C(0x9E3779B97F4A7C15);
    hash ^= hash >> 29;
  }
  h->by[h->count] = counters.one_row_steps != h->before.one_row_steps ? MK_MACHINE_ONE_ROW
                    : counters.few_steps != h->before.few_steps       ? MK_MACHINE_FEW
                                                                      : MK_MACHINE_MAIN;
  h->before = counters;
  h->tokens[h->count] = token;
  h->bits[h->count++] = hash;
  return true;
}

static void hear_end(void *user, size_t sequence, mk_status status) {
  (void)user;
  cr_assert_eq(status, MK_OK, "sequence %zu: %s", sequence, mk_error_message());
}

static void submit(heard *h, size_t sequence, uint32_t prompt_count, uint32_t n_predict) {
  const mk_sequence_calls calls = {.token = hear, .ended = hear_end, .user = h};
  uint32_t prompt[LONG_CONTEXT];
  uint64_t random = prompt_count;
  for (uint32_t i = 0; i < prompt_count; i++) {
    prompt[i] = test_random_below(&random, h->asked->config.vocab);
  }
  const mk_sequence s = {.prompt = prompt,
                         .prompt_count = prompt_count,
                         .n_predict = n_predict,
                         .sampling = h->asked->rows == 1 ? NULL : h->asked->sampling};
  cr_assert_eq(mk_engine_submit(h->engine, &s, &calls, sequence, NULL), MK_OK, "%s", mk_error_message());
}

static void on_boundary(void *user) {
  heard *h = user;
  for (const crowd *c; h->came < MOST_CROWDS; h->came++) {
    c = &h->asked->crowds[h->came];
    if (h->count < c->comes) {
      return;
    }
    for (uint32_t i = 0; i < c->count; i++) {
      submit(h, 1, COMPANY_PROMPT, c->stays);
    }
  }
}

static void take_model(asked *a) {
  cr_assert_eq(mk_synth_shape("tiny", &a->config), MK_OK);
  a->config.max_position = LONG_CONTEXT;
}

/* With one row the engine is opened with the parameters; otherwise the sequences bring them. */
static void answer(const asked *a, heard *h) {
  static const mk_sampling draws = {.temperature = 1, .top_p = 1, .repetition = 1};
  const mk_engine_options options = {.device = "cpu",
                                     .synth = &a->config,
                                     .synth_seed = 3,
                                     .sms = 4,
                                     .max_seq = LONG_CONTEXT,
                                     .rows = a->rows,
                                     .slots = a->rows,
                                     .few_rows = a->few_rows,
                                     .kv_blocks = BLOCKS,
                                     .poll = on_boundary,
                                     .poll_user = h,
                                     .sampling = a->sampling == NULL || a->rows == 1 ? a->sampling : &draws};
  size_t left = 1;
  uint32_t company = 0;
  *h = (heard){.asked = a};
  cr_assert_eq(mk_engine_open(NULL, &options, &h->engine), MK_OK, "%s", mk_error_message());
  submit(h, 0, a->prompt_count, ANSWER);
  while (left != 0) {
    cr_assert_eq(mk_engine_step(h->engine, &left), MK_OK, "%s", mk_error_message());
  }
  for (uint32_t i = 0; i < MOST_CROWDS; i++) {
    company += a->crowds[i].count * a->crowds[i].stays;
  }
  cr_assert(h->count == ANSWER && h->company == company, "%u and %u tokens", h->count, h->company);
  mk_engine_close(h->engine);
}

static uint32_t tokens_by(const heard *h, mk_batch_machine machine) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < ANSWER; i++) {
    count += h->by[i] == machine;
  }
  return count;
}

/* How many tokens have the same logits, from the first on. */
static uint32_t same(const heard *a, const heard *b) {
  uint32_t count = 0;
  while (count < ANSWER && a->tokens[count] == b->tokens[count] && a->bits[count] == b->bits[count]) {
    count++;
  }
  return count;
}

/* Alone in a program of one row, alone in one of four, and in company for a while: the same. */
static void expect_same(const mk_sampling *sampling) {
  asked a = {.sampling = sampling, .prompt_count = 10, .rows = 1};
  static heard one, alone, company;
  take_model(&a);
  answer(&a, &one);
  a.rows = 4;
  answer(&a, &alone);
  a.crowds[0] = (crowd){.comes = 20, .count = 1, .stays = 15};
  answer(&a, &company);
  cr_assert_eq(tokens_by(&one, MK_MACHINE_ONE_ROW), 0, "it has no machine beside it");
  cr_assert_eq(tokens_by(&alone, MK_MACHINE_ONE_ROW), ANSWER - 1, "all but the one that the prompt's last chunk gives");
  cr_assert_eq(tokens_by(&company, MK_MACHINE_ONE_ROW), ANSWER - 1 - (15 + 1),
               "two steps with the company's prompt, one for each token that follows");
  cr_assert_eq(same(&alone, &one), ANSWER);
  cr_assert_eq(same(&company, &one), ANSWER);
}

Test(lone, has_the_same_bits_in_company) { expect_same(NULL); }

static const mk_logit_bias biases[] = {{7, 6}, {8, -INFINITY}, {100, 5}};
static const mk_sampling ways[] = {
    {.top_p = 1, .repetition = 1}, /* greedy, where others may draw */
    {.temperature = 1, .top_p = 1, .repetition = 1, .seed = 5},
    {.temperature = 1, .top_k = 50, .top_p = 0.9, .min_p = 0.01, .repetition = 1, .seed = 6},
    {.temperature = 1, .top_p = 1, .repetition = 1.2, .presence = 0.3, .frequency = 0.4, .seed = 7},
    {.temperature = 1, .top_p = 1, .repetition = 1, .seed = 8, .biases = biases, .bias_count = 3},
    {.top_p = 1, .repetition = 1, .frequency = 0.7, .biases = biases, .bias_count = 3},
};
enum { WAYS = sizeof ways / sizeof ways[0] };

Test(lone, draws_the_same_in_company) {
  for (size_t i = 0; i < WAYS; i++) {
    expect_same(&ways[i]);
  }
}

/* From machine to machine: a crowd comes, of which two stay for a while, and later another one, whose sequences end one
 * after the other, as their prompts did. */
static void expect_same_on_all_machines(const mk_sampling *sampling, uint32_t rows, uint32_t few_rows) {
  static const mk_batch_machine path[] = {MK_MACHINE_FEW,     MK_MACHINE_ONE_ROW, MK_MACHINE_MAIN, MK_MACHINE_FEW,
                                          MK_MACHINE_ONE_ROW, MK_MACHINE_MAIN,    MK_MACHINE_FEW,  MK_MACHINE_ONE_ROW};
  enum { PATH = sizeof path / sizeof path[0] };
  asked a = {.sampling = sampling, .prompt_count = 10, .rows = 1};
  static heard one, all;
  take_model(&a);
  answer(&a, &one);
  a.rows = rows;
  a.few_rows = few_rows;
  a.crowds[0] = (crowd){.comes = 5, .count = few_rows, .stays = 6};
  a.crowds[1] = (crowd){.comes = 5, .count = 2, .stays = 20};
  a.crowds[2] = (crowd){.comes = 45, .count = few_rows, .stays = 4};
  answer(&a, &all);
  uint32_t at = 0;
  for (uint32_t i = 0; i < ANSWER; i++) {
    at += all.by[i] != path[at];
    cr_assert(at < PATH && all.by[i] == path[at], "token %u comes by machine %d", i, (int)all.by[i]);
  }
  cr_assert_eq(at + 1, PATH);
  cr_assert_eq(same(&all, &one), ANSWER);
}

Test(lone, has_the_same_bits_on_all_machines) {
  expect_same_on_all_machines(NULL, 8, 4);
  expect_same_on_all_machines(NULL, 64, 16);
}

Test(lone, draws_the_same_on_all_machines) {
  for (size_t i = 0; i < WAYS; i++) {
    expect_same_on_all_machines(&ways[i], 8, 4);
  }
}

/* In wide steps, too. */
Test(lone, draws_the_same_on_all_machines_wide) {
  for (size_t i = WAYS - 3; i < WAYS; i++) {
    expect_same_on_all_machines(&ways[i], 64, 16);
  }
}

/* With 64 KV heads a split of one row has a second span from 512 tokens on. */
Test(lone, has_the_same_bits_where_splits_of_one_row_have_several_spans) {
  asked a = {.prompt_count = 490, .rows = 1};
  static heard one, alone, company;
  take_model(&a);
  a.config.heads = a.config.kv_heads = 64;
  a.config.layers = 1;
  answer(&a, &one);
  a.rows = 16;
  answer(&a, &alone);
  a.crowds[0] = (crowd){.count = 1, .stays = ANSWER + 100};
  answer(&a, &company);
  cr_assert_eq(tokens_by(&company, MK_MACHINE_ONE_ROW), 0);
  cr_assert_eq(tokens_by(&alone, MK_MACHINE_ONE_ROW), ANSWER - 1, "all but the one that the prompt's last chunk gives");
  cr_assert_eq(same(&alone, &company), ANSWER);
  cr_assert_eq(same(&one, &company), ANSWER);
}

/* With 64 KV heads the first split of few rows has a second span from 2,048 tokens on; a wide step has no splits. The
 * company stays from the first chunk of the prompt to the end. */
Test(lone, has_the_same_bits_where_splits_of_few_rows_have_several_spans) {
  enum { MANY = 64 };
  asked a = {.prompt_count = 2040, .rows = MK_MAX_ROWS, .crowds = {{.count = 1, .stays = ANSWER + 200}}};
  static heard few, many, both;
  take_model(&a);
  a.config.heads = a.config.kv_heads = 64;
  a.config.layers = 1;
  answer(&a, &few);
  a.rows = a.few_rows = MANY; /* there is no machine for few */
  answer(&a, &many);
  a.few_rows = MK_MAX_ROWS;
  answer(&a, &both);
  cr_assert_eq(tokens_by(&many, MK_MACHINE_MAIN), ANSWER);
  cr_assert_eq(tokens_by(&both, MK_MACHINE_FEW), ANSWER);
  cr_assert_eq(same(&both, &many), ANSWER);
  cr_assert_eq(same(&few, &many), ANSWER);
}
