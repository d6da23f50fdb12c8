/* Sampling with several rows per step, through whole models on the CPU machine: each sequence has the tokens that it
 * has in a program of one row, and those of the definition, by its own parameters and seed alone: in any slot and line,
 * with its prompt in any chunks, whoever is beside it, and in every interleaving. Plans are made here, at random. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "engine/engine.h"
#include "tests/support/effort.h"
#include "tests/support/model.h"
#include "tests/support/numbers.h"

enum { REQUESTS = 20, MOST_PROMPT = 30, MOST_TOKENS = 12, MOST_VOCAB = 520, CONTEXT = 64, LAUNCH = 6, NONE = REQUESTS };

static char directory[TEST_PATH];
static mk_config config;

static const mk_logit_bias biases[] = {{7, 6}, {8, -INFINITY}, {100, 5}};

/* What docs/SAMPLING.md has, alone and together; each request has one of them and a seed of its own. */
static const mk_sampling ways[] = {
    {.temperature = 1, .top_p = 1, .repetition = 1},
    {.top_p = 1, .repetition = 1}, /* greedy */
    {.temperature = 0.8, .top_k = 20, .top_p = 1, .repetition = 1},
    {.temperature = 1.3, .top_p = 0.9, .repetition = 1},
    {.temperature = 2, .top_p = 1, .min_p = 0.3, .repetition = 1},
    {.temperature = 5, .top_p = 1, .min_p = 1e-30, .repetition = 1},
    {.temperature = 1, .top_p = 1, .repetition = 1.4, .presence = -2, .frequency = 0.5},
    {.top_p = 1, .repetition = 1.5}, /* greedy, but for the penalty */
    {.temperature = 1, .top_p = 1, .repetition = 1, .biases = biases, .bias_count = 3},
    {.temperature = 1e-30, .top_p = 1, .repetition = 1},
    {.temperature = 1,
     .top_k = 50,
     .top_p = 0.8,
     .min_p = 0.02,
     .repetition = 1.2,
     .presence = 0.3,
     .frequency = 0.1,
     .biases = biases,
     .bias_count = 3},
};
enum { WAYS = sizeof ways / sizeof ways[0] };

typedef struct request {
  mk_sampling sampling;
  uint32_t prompt[MOST_PROMPT], prompt_count, count;
  uint32_t tokens[MOST_TOKENS];                  /* in a program of one row */
  uint32_t logits[MOST_TOKENS][MOST_VOCAB];      /* their bits */
  uint32_t words[MK_SAMPLING_WORDS], heard;      /* of this run: rows that are over */
  uint32_t counts[MOST_VOCAB], planned, differs; /* rows that are planned; tokens that are others */
  float bias[MOST_VOCAB];
} request;

typedef struct table { /* of requests */
  request requests[REQUESTS];
  uint64_t seed;
  mk_engine *engine;
  uint32_t rows, next;                  /* request that waits */
  uint32_t slots[MK_MOST_DRAWING_ROWS]; /* request, or NONE */
  mk_step_row plan[LAUNCH][MK_MOST_DRAWING_ROWS];
  uint32_t drawn_in_prompts;
} table;

static uint32_t draw(table *t, uint32_t below) { return test_random_below(&t->seed, below); }

static bool keep(void *user, uint32_t token, const float *logits) {
  request *r = user;
  memcpy(r->logits[r->count], logits, config.vocab * sizeof *logits);
  r->tokens[r->count++] = token;
  return true;
}

/* Requests, and what one row makes of each, alone. */
static table *new_table(uint64_t seed) {
  table *t;
  mk_engine *engine;
  cr_assert_eq(mk_alloc(1, sizeof *t, &t), MK_OK);
  t->seed = seed;
  mk_engine_options options = {.device = "cpu", .sms = 5, .max_seq = CONTEXT, .sampling = &ways[0]};
  cr_assert_eq(mk_engine_open(directory, &options, &engine), MK_OK, "%s", mk_error_message());
  for (uint32_t i = 0; i < REQUESTS; i++) {
    request *r = &t->requests[i];
    r->sampling = ways[i % WAYS];
    r->sampling.seed = i < 3 ? i : test_random(&t->seed);
    r->prompt_count = 1 + draw(t, i % 4 == 0 ? 3 : MOST_PROMPT);
    for (uint32_t k = 0; k < r->prompt_count; k++) {
      r->prompt[k] = draw(t, i % 3 == 0 ? 9 : config.vocab);
    }
    mk_sampling_words(&r->sampling, config.vocab, r->words);
    for (size_t k = 0; k < r->sampling.bias_count; k++) {
      r->bias[r->sampling.biases[k].token] = r->sampling.biases[k].bias;
    }
    cr_assert_eq(mk_engine_set_sampling(engine, &r->sampling), MK_OK, "%s", mk_error_message());
    cr_assert_eq(mk_engine_generate(engine, r->prompt, r->prompt_count, 1 + draw(t, MOST_TOKENS), keep, r), MK_OK, "%s",
                 mk_error_message());
  }
  mk_engine_close(engine);
  return t;
}

static uint32_t rows_of(const request *r) { return r->prompt_count + r->count - 1; }

static void begin(table *t, uint32_t slot) {
  if (t->slots[slot] != NONE && t->requests[t->slots[slot]].heard == rows_of(&t->requests[t->slots[slot]])) {
    t->slots[slot] = NONE;
  }
  if (t->slots[slot] == NONE && t->next < REQUESTS && draw(t, 4) != 0) {
    request *r = &t->requests[t->next];
    t->slots[slot] = t->next++;
    r->heard = r->planned = r->differs = 0;
    memset(r->counts, 0, sizeof r->counts);
    cr_assert_eq(mk_engine_set_slot_sampling(t->engine, slot, &r->sampling), MK_OK, "%s", mk_error_message());
  }
}

static mk_step_row next_row(table *t, uint32_t slot, bool first_of_launch) {
  request *r = &t->requests[t->slots[slot]];
  uint32_t at = r->planned++, behind = at - r->prompt_count;
  bool given = at < r->prompt_count;
  mk_step_row row = {.slot = slot, .position = at, .flags = MK_ROW_ACTIVE | (given ? (uint32_t)MK_ROW_PROMPT : 0)};
  row.token = given ? r->prompt[at] : first_of_launch ? r->tokens[behind] : MK_TOKEN_CHOSEN;
  bool chooses = at + 1 >= r->prompt_count || draw(t, 6) == 0; /* a prompt's row may draw: nobody goes on with that */
  row.flags |= chooses ? (uint32_t)MK_ROW_CHOOSES : 0;
  t->drawn_in_prompts += chooses && at + 1 < r->prompt_count;
  return row;
}

/* Some of the slots, in any lines: a chunk of a prompt, or the next token. */
static bool fill_step(table *t, uint32_t step, bool used[MK_MOST_DRAWING_ROWS]) {
  uint32_t lines[MK_MOST_DRAWING_ROWS], count = 0, order[MK_MOST_DRAWING_ROWS];
  for (uint32_t i = 0, first = draw(t, t->rows); i < t->rows; i++) {
    uint32_t slot = (first + i) % t->rows;
    const request *r = t->slots[slot] == NONE ? NULL : &t->requests[t->slots[slot]];
    if (r == NULL || r->planned == rows_of(r) || draw(t, 5) == 0) {
      continue;
    }
    uint32_t in_prompt = r->planned < r->prompt_count ? r->prompt_count - r->planned : 1;
    for (uint32_t k = 1 + draw(t, in_prompt); k != 0 && count < t->rows; k--) {
      lines[count++] = slot;
    }
  }
  test_shuffle(&t->seed, order, t->rows);
  for (uint32_t line = 0; line < t->rows; line++) {
    t->plan[step][line] = (mk_step_row){.slot = 99, .position = 1U << 30};
    if (order[line] < count) {
      uint32_t slot = lines[order[line]];
      t->plan[step][line] = next_row(t, slot, !used[slot]);
      used[slot] = true;
    }
  }
  return count != 0;
}

/* A row that chooses: the token of the definition and, after the prompt, that of one row, from the same logits. */
static void hear_choice(request *r, uint32_t at, const float *logits, uint32_t result) {
  uint32_t want;
  bool failed;
  cr_assert_eq(mk_sampling_choose(r->words, logits, r->bias, r->counts, config.vocab, at + 1, &want, &failed), MK_OK);
  r->differs += failed || result != want;
  if (at + 1 < r->prompt_count) {
    return;
  }
  uint32_t place = at + 1 - r->prompt_count;
  r->differs += result != r->tokens[place] || memcmp(logits, r->logits[place], config.vocab * sizeof *logits) != 0;
}

static void count_row(request *r, uint32_t at) {
  bool prompt = at < r->prompt_count;
  uint32_t *count = &r->counts[prompt ? r->prompt[at] : r->tokens[at - r->prompt_count]];
  *count = prompt ? *count | MK_COUNT_PROMPT : *count + 1;
}

static bool hear(void *user, uint32_t step, const uint32_t *results) {
  table *t = user;
  size_t index = (size_t)MK_OPERAND_BUFFER(mk_engine_program(t->engine), HEAD, logits);
  const float *logits = mk_cpu_memory(mk_engine_cpu(t->engine), index);
  for (uint32_t line = 0; line < t->rows; line++) {
    const mk_step_row *row = &t->plan[step][line];
    if ((row->flags & MK_ROW_ACTIVE) == 0) {
      cr_assert_eq(results[line], MK_CANDIDATE_NONE);
      continue;
    }
    request *r = &t->requests[t->slots[row->slot]];
    uint32_t at = r->heard++;
    count_row(r, at);
    if ((row->flags & MK_ROW_CHOOSES) != 0) {
      hear_choice(r, at, logits + (size_t)line * config.vocab, results[line]);
    }
  }
  return true;
}

/* A slot's blocks are its own, in an order that is not the identity. */
static void fill_table(table *t) {
  mk_plan_buffers buffers;
  cr_assert_eq(mk_plan_find(mk_engine_program(t->engine), &buffers), MK_OK);
  const mk_buffer *b = &mk_engine_program(t->engine)->buffers[buffers.table];
  test_shuffle(&t->seed, mk_cpu_memory(mk_engine_cpu(t->engine), buffers.table), b->rows * b->cols);
}

static void launch(table *t) {
  bool used[MK_MOST_DRAWING_ROWS] = {false};
  uint32_t steps = 0;
  for (uint32_t slot = 0; slot < t->rows; slot++) {
    begin(t, slot);
  }
  for (uint32_t tries = 0; tries < LAUNCH; tries++) {
    steps += fill_step(t, steps, used);
  }
  if (steps != 0) {
    static mk_step_row plan[LAUNCH * MK_MOST_DRAWING_ROWS];
    for (uint32_t i = 0; i < steps; i++) {
      memcpy(plan + (size_t)i * t->rows, t->plan[i], t->rows * sizeof *plan);
    }
    cr_assert_eq(mk_cpu_run_plan(mk_engine_cpu(t->engine), plan, steps, hear, t), MK_OK, "%s", mk_error_message());
  }
}

static bool all_over(const table *t) {
  for (uint32_t i = 0; i < REQUESTS; i++) {
    if (t->requests[i].heard != rows_of(&t->requests[i])) {
      return false;
    }
  }
  return true;
}

/* Whether the words, bias and counts of slots are those of their neighbours, as a fault that is planted has them. */
static void swap_neighbours(table *t, int buffer) {
  const mk_buffer *b = &mk_engine_program(t->engine)->buffers[buffer];
  uint8_t *memory = mk_cpu_memory(mk_engine_cpu(t->engine), (size_t)buffer), *kept;
  size_t line = b->bytes / b->rows;
  cr_assert_eq(mk_alloc(1, line, &kept), MK_OK);
  for (uint32_t slot = 0; slot + 1 < b->rows; slot += 2) {
    memcpy(kept, memory + slot * line, line);
    memcpy(memory + slot * line, memory + (slot + 1) * line, line);
    memcpy(memory + (slot + 1) * line, kept, line);
  }
  mk_free(kept);
}

/* Tokens that differ from those of one row, of all requests. planted: the buffer in which neighbours are swapped
 * between launches; NULL: none. */
static uint32_t serve(table *t, mk_engine_options options, const char *planted) {
  uint32_t differs = 0;
  options.device = "cpu";
  options.max_seq = CONTEXT;
  options.sampling = &ways[0];
  cr_assert_eq(mk_engine_open(directory, &options, &t->engine), MK_OK, "%s", mk_error_message());
  t->rows = options.rows;
  t->next = 0;
  for (uint32_t i = 0; i < REQUESTS; i++) {
    t->requests[i].heard = 0;
  }
  for (uint32_t slot = 0; slot < MK_MOST_DRAWING_ROWS; slot++) {
    t->slots[slot] = NONE;
  }
  fill_table(t);
  int buffer = planted == NULL ? -1 : mk_program_find_buffer(mk_engine_program(t->engine), planted);
  for (uint32_t launches = 0; !all_over(t); launches++) {
    cr_assert_lt(launches, 2000);
    launch(t);
    if (buffer >= 0) {
      swap_neighbours(t, buffer);
    }
  }
  for (uint32_t i = 0; i < REQUESTS; i++) {
    differs += t->requests[i].differs;
  }
  mk_engine_close(t->engine);
  return differs;
}

static table *open_table(size_t model, uint64_t seed) {
  config = test_model_config(model);
  test_model_write(&config, directory);
  return new_table(seed);
}

static void close_table(table *t) {
  cr_expect_gt(t->drawn_in_prompts, 0);
  mk_free(t);
  test_model_remove(directory);
}

static void every_number_of_rows(size_t model) {
  static const uint32_t sms[] = {1, 5, 40};
  table *t = open_table(model, model + 1);
  for (uint32_t rows = 2; rows <= MK_MOST_DRAWING_ROWS; rows *= 2) {
    for (uint32_t i = 0; i < test_effort(1, 3); i++) {
      uint32_t differs = serve(t, (mk_engine_options){.rows = rows, .slots = rows, .sms = sms[(i + rows) % 3]}, NULL);
      cr_assert_eq(differs, 0, "%u rows: %u tokens or logits differ", rows, differs);
    }
  }
  close_table(t);
}

Test(engine_sampling_rows, sequences_draw_what_they_draw_alone_tiny) { every_number_of_rows(TEST_MODEL_TINY); }
Test(engine_sampling_rows, sequences_draw_what_they_draw_alone_odd) { every_number_of_rows(TEST_MODEL_ODD); }
Test(engine_sampling_rows, sequences_draw_what_they_draw_alone_wide) { every_number_of_rows(TEST_MODEL_WIDE); }

static void interleavings(size_t model, uint32_t rows, uint32_t sms) {
  table *t = open_table(model, model + 77);
  for (uint64_t seed = 1; seed <= test_effort(1, 4); seed++) {
    for (uint32_t adversarial = 0; adversarial < 2; adversarial++) {
      uint32_t differs = serve(t,
                               (mk_engine_options){.rows = rows,
                                                   .slots = rows,
                                                   .sms = sms,
                                                   .interleave_seed = seed,
                                                   .adversarial = adversarial != 0,
                                                   .check_races = true},
                               NULL);
      cr_assert_eq(differs, 0, "seed %u: %u tokens or logits differ", (uint32_t)seed, differs);
    }
  }
  close_table(t);
}

Test(engine_sampling_rows, same_in_every_interleaving_two) { interleavings(TEST_MODEL_TINY, 2, 3); }
Test(engine_sampling_rows, same_in_every_interleaving_four) { interleavings(TEST_MODEL_ODD, 4, 7); }
Test(engine_sampling_rows, same_in_every_interleaving_eight) { interleavings(TEST_MODEL_TINY, 8, 20); }
Test(engine_sampling_rows, same_in_every_interleaving_sixteen) { interleavings(TEST_MODEL_ODD, 16, 4); }

/* Wide programs of a tile of lines. */
Test(engine_sampling_rows, same_in_every_interleaving_sixty_four) { interleavings(TEST_MODEL_ODD, 64, 5); }
Test(engine_sampling_rows, same_in_every_interleaving_a_hundred_and_twenty_eight) {
  interleavings(TEST_MODEL_TINY, 128, 9);
}

/* What the tests above are worth: they see parameters, bias or counts of a neighbour. */
Test(engine_sampling_rows, what_is_a_neighbours_shows) {
  static const char *const planted[] = {"sampling", "logit_bias", "token_counts"};
  table *t = open_table(TEST_MODEL_TINY, 5);
  for (size_t i = 0; i < sizeof planted / sizeof planted[0]; i++) {
    cr_expect_gt(serve(t, (mk_engine_options){.rows = 8, .sms = 3}, planted[i]), 0, "%s", planted[i]);
  }
  close_table(t);
}

enum { SLOT = 2 };

/* The sequence in slot 2 of four, from its row `first` on, a row in each launch: tokens that differ from those it has
 * alone. */
static uint32_t go_on(table *t, request *r, uint32_t first) {
  r->heard = r->planned = first;
  r->differs = 0;
  memset(r->counts, 0, sizeof r->counts);
  for (uint32_t at = 0; at < first; at++) {
    count_row(r, at);
  }
  for (uint32_t line = 0; r->planned < rows_of(r); line = (line + 1) % 4) {
    memset(t->plan, 0, sizeof t->plan);
    t->plan[0][line] = next_row(t, SLOT, true);
    cr_assert_eq(mk_cpu_run_plan(mk_engine_cpu(t->engine), t->plan[0], 1, hear, t), MK_OK, "%s", mk_error_message());
  }
  return r->differs;
}

/* What the cache has already is computed by no row: after a prefix, and after tokens that were generated before. */
Test(engine_sampling_rows, tokens_before_the_first_row_are_counted) {
  table *t = open_table(TEST_MODEL_TINY, 9);
  mk_engine_options options = {.device = "cpu", .sms = 3, .max_seq = CONTEXT, .rows = 4, .sampling = &ways[0]};
  cr_assert_eq(mk_engine_open(directory, &options, &t->engine), MK_OK, "%s", mk_error_message());
  t->rows = 4;
  fill_table(t);
  uint32_t uncounted = 0;
  for (uint32_t i = 0; i < REQUESTS; i++) {
    request *r = &t->requests[i];
    uint32_t before[MOST_PROMPT + MOST_TOKENS], firsts[] = {r->prompt_count / 2, r->prompt_count - 1, rows_of(r) - 1};
    memcpy(before, r->prompt, sizeof r->prompt);
    memcpy(before + r->prompt_count, r->tokens, sizeof r->tokens);
    t->slots[SLOT] = i;
    cr_assert_eq(mk_engine_set_slot_sampling(t->engine, SLOT, &r->sampling), MK_OK, "%s", mk_error_message());
    cr_assert_eq(go_on(t, r, 0), 0, "request %u", i);
    for (size_t k = 0; k < sizeof firsts / sizeof firsts[0]; k++) {
      uint32_t of_prompt = firsts[k] < r->prompt_count ? firsts[k] : r->prompt_count;
      cr_assert_eq(mk_engine_set_slot_sampling(t->engine, SLOT, &r->sampling), MK_OK, "%s", mk_error_message());
      uncounted += go_on(t, r, firsts[k]);
      cr_assert_eq(mk_engine_set_slot_sampling(t->engine, SLOT, &r->sampling), MK_OK, "%s", mk_error_message());
      cr_assert_eq(mk_engine_set_slot_counts(t->engine, SLOT, before, of_prompt, firsts[k]), MK_OK, "%s",
                   mk_error_message());
      cr_assert_eq(go_on(t, r, firsts[k]), 0, "request %u from row %u on", i, firsts[k]);
    }
  }
  cr_expect_gt(uncounted, 0, "it makes no difference whether these tokens are counted");
  mk_engine_close(t->engine);
  close_table(t);
}

/* ---- As the engine serves them: in slots that it gives, with blocks that are taken away, and beginnings that are
 * known ---- */

static bool take_token(void *user, size_t sequence, uint32_t token, const float *logits) {
  request *r = &((table *)user)->requests[sequence];
  cr_assert_lt(r->heard, r->count);
  r->differs += token != r->tokens[r->heard] || memcmp(logits, r->logits[r->heard], config.vocab * sizeof *logits) != 0;
  return ++r->heard < r->count;
}

static void take_end(void *user, size_t sequence, mk_status status) {
  (void)user;
  cr_assert_eq(status, MK_OK, "request %zu: %s", sequence, mk_error_message());
}

static uint32_t served(table *t, mk_engine_options options, mk_batch_counters *counters) {
  const mk_sequence_calls calls = {.token = take_token, .ended = take_end, .user = t};
  mk_sequence sequences[2 * REQUESTS];
  mk_engine *engine;
  uint32_t differ = 0;
  options.device = "cpu";
  options.max_seq = CONTEXT;
  options.sampling = &ways[0];
  cr_assert_eq(mk_engine_open(directory, &options, &engine), MK_OK, "%s", mk_error_message());
  for (uint32_t i = 0; i < REQUESTS; i++) {
    request *r = &t->requests[i];
    r->heard = r->differs = 0;
    sequences[i] = (mk_sequence){.prompt = r->prompt,
                                 .prompt_count = r->prompt_count,
                                 .n_predict = MOST_TOKENS,
                                 .sampling = &r->sampling,
                                 .priority = (int32_t)(i % 3)};
  }
  cr_assert_eq(mk_engine_generate_all(engine, sequences, REQUESTS, &calls), MK_OK, "%s", mk_error_message());
  mk_engine_count(engine, counters);
  mk_engine_close(engine);
  for (uint32_t i = 0; i < REQUESTS; i++) {
    differ += t->requests[i].differs;
  }
  return differ;
}

Test(engine_sampling_rows, served_in_company) {
  mk_batch_counters counters;
  table *t = open_table(TEST_MODEL_ODD, 41);
  cr_assert_eq(served(t, (mk_engine_options){.sms = 5, .rows = 4}, &counters), 0);
  cr_assert_eq(served(t, (mk_engine_options){.sms = 3, .rows = 16, .prefix_tokens = 1000}, &counters), 0);
  cr_assert_eq(served(t, (mk_engine_options){.sms = 3, .rows = 1, .prefix_tokens = 1000}, &counters), 0);
  cr_assert_eq(
      served(t, (mk_engine_options){.sms = 3, .rows = 8, .interleave_seed = 5, .check_races = true}, &counters), 0);
  const mk_tamper swaps = {.swaps_sampling = true};
  cr_assert_gt(served(t, (mk_engine_options){.sms = 5, .rows = 4, .tamper = &swaps}, &counters), 0);
  mk_free(t);
  test_model_remove(directory);
}

Test(engine_sampling_rows, refusals) {
  static const uint32_t prompt[] = {1, 2};
  config = test_model_config(TEST_MODEL_TINY);
  test_model_write(&config, directory);
  mk_engine *engine;
  mk_engine_options options = {.device = "cpu", .sms = 3, .max_seq = CONTEXT, .rows = 4, .sampling = &ways[0]};
  cr_assert_eq(mk_engine_open(directory, &options, &engine), MK_OK, "%s", mk_error_message());
  mk_sampling bad = ways[0];
  bad.min_p = 2;
  cr_expect_eq(mk_engine_set_slot_sampling(engine, 3, &bad), MK_ERR_USAGE);
  cr_expect_eq(mk_engine_set_slot_sampling(engine, 4, &ways[0]), MK_ERR_USAGE);
  cr_expect_not_null(strstr(mk_error_message(), "slot 4: the engine has 4"), "%s", mk_error_message());
  cr_expect_eq(mk_engine_set_slot_sampling(engine, 3, &ways[1]), MK_OK, "%s", mk_error_message());
  cr_expect_eq(mk_engine_set_slot_counts(engine, 4, prompt, 2, 2), MK_ERR_USAGE);
  cr_expect_eq(mk_engine_set_slot_counts(engine, 3, &config.vocab, 0, 1), MK_ERR_USAGE);
  cr_expect_not_null(strstr(mk_error_message(), "token 0 is 320"), "%s", mk_error_message());
  mk_engine_close(engine);
  options.sampling = NULL;
  cr_assert_eq(mk_engine_open(directory, &options, &engine), MK_OK, "%s", mk_error_message());
  cr_expect_eq(mk_engine_set_slot_sampling(engine, 0, &ways[0]), MK_ERR_USAGE);
  cr_expect_eq(mk_engine_set_slot_sampling(engine, 0, &ways[1]), MK_OK, "greedy all the same");
  mk_engine_close(engine);
  test_model_remove(directory);
}
