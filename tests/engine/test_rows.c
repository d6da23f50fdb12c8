/* Several rows per step: a sequence has the bits that it has alone and token by token, whoever is beside it, however
 * many rows there are, and in every interleaving; over a cache of bf16, and over one of fp8. */
#include "tests/engine/rows_rig.h"
#include "tests/support/effort.h"

/* With MK_PROMPT_ROWS, and in wide programs of one slot, one sequence after the other. */
static void every_number_of_rows(const work *want) {
  static const uint32_t rows[] = {4, 16, MK_PROMPT_ROWS, 2 * MK_LINE_TILE, 2, 8, 32, MK_MOST_SHARED_ROWS, 128};
  for (uint32_t i = 0; i < test_effort(4, sizeof rows / sizeof rows[0]); i++) {
    expect_bits((mk_engine_options){.sms = rows[i] == 4 ? 132 : 5, .rows = rows[i]}, want);
  }
  expect_bits((mk_engine_options){.sms = 9, .rows = MK_PROMPT_ROWS, .slots = 20}, want);
  for (uint32_t wide = MK_LINE_TILE; wide <= MK_MOST_ROWS; wide *= test_effort(4, 2)) {
    expect_bits((mk_engine_options){.sms = 7, .rows = wide, .slots = 1}, want);
  }
}

/* One sequence: chunks of a prompt that ends within a chunk, with a chunk, at the border of a span, and after it. */
static void chunks(size_t model, size_t prompt_count) {
  use_model(model);
  work *w = new_work();
  add(w, prompt_count, 6, 0);
  run((mk_engine_options){.sms = 7}, w);
  cr_assert_eq(w->outputs[0].count, 6);
  every_number_of_rows(w);
  free_work(w);
  test_model_remove(directory);
}

Test(rows, chunks_give_the_bits_of_single_tokens_tiny) { chunks(TEST_MODEL_TINY, 290); }
Test(rows, chunks_give_the_bits_of_single_tokens_odd) { chunks(TEST_MODEL_ODD, 523); }
Test(rows, chunks_give_the_bits_of_single_tokens_split_k) { chunks(TEST_MODEL_DEEP_K, 256); }
Test(rows, chunks_give_the_bits_of_single_tokens_uneven_split_k) { chunks(TEST_MODEL_WIDE, 255); }
Test(rows, short_prompts) {
  for (size_t count = 1; count < 19; count += count < 4 ? 1 : 7) {
    chunks(TEST_MODEL_ODD, count);
  }
}

Test(rows, chunks_give_the_bits_of_single_tokens_in_fp8) {
  cache_form = MK_DTYPE_E4M3;
  chunks(TEST_MODEL_TINY, 290);
  chunks(TEST_MODEL_ODD, 21);
}

/* Beyond the span of 2 to 16 rows: what it adds up in pieces are splits of one row, which COMBINE adds up in the same
 * order. */
Test(rows, long_contexts) {
  config = test_model_config(TEST_MODEL_TINY);
  config.max_position = 4096;
  test_model_write(&config, directory);
  work *w = new_work();
  add(w, 2045, MOST_TOKENS, 0);
  add(w, 1020, 8, 0);
  add(w, 70, 3, 0);
  run((mk_engine_options){.sms = 7, .max_seq = LONG_PROMPT}, w);
  cr_assert_eq(w->outputs[0].count, MOST_TOKENS);
  for (uint32_t rows = 4; rows <= MK_PROMPT_ROWS; rows *= 4) {
    expect_bits((mk_engine_options){.sms = 5, .max_seq = LONG_PROMPT, .rows = rows}, w);
  }
  expect_bits((mk_engine_options){.sms = 5, .max_seq = LONG_PROMPT, .rows = MK_MOST_ROWS, .slots = 1}, w);
  free_work(w);
  test_model_remove(directory);
}

static void company(size_t model) {
  use_model(model);
  work *w = ragged();
  run((mk_engine_options){.sms = 7}, w);
  every_number_of_rows(w);
  free_work(w);
  test_model_remove(directory);
}

Test(rows, sequences_have_their_bits_in_any_company_tiny) { company(TEST_MODEL_TINY); }
Test(rows, sequences_have_their_bits_in_any_company_odd) { company(TEST_MODEL_ODD); }
Test(rows, sequences_have_their_bits_in_any_company_in_fp8) {
  cache_form = MK_DTYPE_E4M3;
  company(TEST_MODEL_ODD);
}
Test(rows, sequences_have_their_bits_in_any_company_split_k) { company(TEST_MODEL_DEEP_K); }
Test(rows, sequences_have_their_bits_in_any_company_uneven_split_k) { company(TEST_MODEL_WIDE); }

/* With 16 KV heads there are eight splits: a unit has the first tokens of two of sixteen sequences. */
Test(rows, more_sequences_than_splits_in_fp8) {
  config = test_model_config(TEST_MODEL_TINY);
  config.heads = config.kv_heads = 16;
  test_model_write(&config, directory);
  cache_form = MK_DTYPE_E4M3;
  work *w = new_work();
  for (size_t i = 0; i < 16; i++) {
    add(w, 20 + i, 4, 0);
  }
  run((mk_engine_options){.sms = 7}, w);
  expect_bits((mk_engine_options){.sms = 5, .rows = 16}, w);
  free_work(w);
  test_model_remove(directory);
}

static void interleavings_of(size_t model, uint32_t rows, uint32_t slots, uint32_t sms) {
  use_model(model);
  work *w = new_work();
  add(w, 19, 4, 0);
  add(w, 3, 5, 2);
  add(w, 1, 3, 0);
  add(w, 33, 2, 0);
  add(w, 7, 4, 0);
  run((mk_engine_options){.sms = 3}, w);
  for (uint64_t seed = 1; seed <= test_effort(2, 6); seed++) {
    mk_engine_options options = {
        .sms = sms, .rows = rows, .slots = slots, .interleave_seed = seed, .check_races = true};
    expect_bits(options, w);
    options.interleave_seed = seed * 77;
    options.adversarial = true;
    expect_bits(options, w);
  }
  free_work(w);
  test_model_remove(directory);
}

static void interleavings(size_t model, uint32_t rows, uint32_t sms) { interleavings_of(model, rows, 0, sms); }

Test(rows, same_in_every_interleaving_tiny) { interleavings(TEST_MODEL_TINY, 4, 5); }
Test(rows, same_in_every_interleaving_odd) { interleavings(TEST_MODEL_ODD, 16, 7); }
Test(rows, same_in_every_interleaving_of_prompts) { interleavings(TEST_MODEL_ODD, MK_PROMPT_ROWS, 7); }
Test(rows, same_in_every_interleaving_of_many_rows) { interleavings(TEST_MODEL_TINY, 32, 5); }
Test(rows, same_in_every_interleaving_of_two_tiles_of_lines) { interleavings(TEST_MODEL_TINY, 2 * MK_LINE_TILE, 5); }
Test(rows, same_in_every_interleaving_of_few_slots) { interleavings_of(TEST_MODEL_ODD, 2 * MK_LINE_TILE, 2, 7); }
Test(rows, same_in_every_interleaving_of_a_wide_program) { interleavings_of(TEST_MODEL_ODD, 2 * MK_LINE_TILE, 1, 5); }
Test(rows, same_in_every_interleaving_in_fp8) {
  cache_form = MK_DTYPE_E4M3;
  interleavings(TEST_MODEL_TINY, 1, 5);
  interleavings(TEST_MODEL_TINY, 4, 5);
  interleavings(TEST_MODEL_ODD, MK_PROMPT_ROWS, 7);
  interleavings_of(TEST_MODEL_ODD, 2 * MK_LINE_TILE, 2, 7);
  interleavings_of(TEST_MODEL_ODD, 2 * MK_LINE_TILE, 1, 5);
}
Test(rows, same_in_every_interleaving_split_k) { interleavings(TEST_MODEL_DEEP_K, 2, 3); }
Test(rows, same_in_every_interleaving_of_many_sms) { interleavings(TEST_MODEL_WIDE, 8, 40); }

enum { SPREAD = 5, SPREAD_STEPS = 3 };

/* A prompt of five tokens in some lines, then a token in another one, and another one; the logits that the last one
 * chose by. */
static void spread(const uint32_t lines[SPREAD + 2], bool watched, float *logits) {
  const uint32_t rows = 2 * MK_LINE_TILE, slot = 3, vocab = config.vocab;
  static mk_step_row plan[SPREAD_STEPS * 2 * MK_LINE_TILE];
  mk_engine *engine;
  const mk_engine_options options = {.sms = 5, .rows = rows, .adversarial = watched, .check_races = watched};
  cr_assert_eq(mk_engine_open(directory, &options, &engine), MK_OK, "%s", mk_error_message());
  const size_t buffer = (size_t)MK_OPERAND_BUFFER(mk_engine_program(engine), HEAD, logits);
  memset(plan, 0, sizeof plan);
  for (uint32_t i = 0; i < SPREAD + 2; i++) {
    const uint32_t step = i < SPREAD ? 0 : i - SPREAD + 1;
    plan[step * rows + lines[i]] = (mk_step_row){.slot = slot,
                                                 .position = i,
                                                 .token = i < SPREAD ? 17 * i + 1 : MK_TOKEN_CHOSEN,
                                                 .flags = MK_ROW_ACTIVE | (i < SPREAD ? (uint32_t)MK_ROW_PROMPT : 0) |
                                                          (i + 1 >= SPREAD ? (uint32_t)MK_ROW_CHOOSES : 0)};
  }
  cr_assert_eq(mk_cpu_run_plan(mk_engine_cpu(engine), plan, SPREAD_STEPS, NULL, NULL), MK_OK, "%s", mk_error_message());
  const float *all = mk_cpu_memory(mk_engine_cpu(engine), buffer);
  memcpy(logits, all + (size_t)lines[SPREAD + 1] * vocab, vocab * sizeof *logits);
  mk_engine_close(engine);
}

/* Lines of any tile, also where in a step no line of another one is active. */
Test(rows, a_tile_of_lines_may_be_idle) {
  static const uint32_t lines[][SPREAD + 2] = {{0, 1, 2, 3, 4, 0, 0},
                                               {130, 131, 140, 254, 255, 128, 255},
                                               {126, 127, 128, 129, 130, 3, 200},
                                               {5, 6, 7, 8, 9, 255, 127}};
  use_model(TEST_MODEL_TINY);
  float *want = calloc(config.vocab, sizeof *want), *got = calloc(config.vocab, sizeof *got);
  cr_assert(want != NULL && got != NULL);
  spread(lines[0], false, want);
  for (size_t i = 1; i < sizeof lines / sizeof lines[0]; i++) {
    spread(lines[i], true, got);
    cr_assert_eq(memcmp(got, want, config.vocab * sizeof *want), 0, "lines %u, ...", lines[i][0]);
  }
  free(want);
  free(got);
  test_model_remove(directory);
}

/* Several splits in use, of slots that begin at different units. */
static void splits_in_use(void) {
  use_model(TEST_MODEL_ODD);
  work *w = new_work();
  add(w, 530, 3, 0);
  add(w, 260, 4, 0);
  add(w, 250, 12, 0);
  run((mk_engine_options){.sms = 6}, w);
  expect_bits((mk_engine_options){.sms = 6, .rows = 16, .interleave_seed = 5, .check_races = true}, w);
  expect_bits((mk_engine_options){.sms = 6, .rows = 4, .interleave_seed = 6, .adversarial = true, .check_races = true},
              w);
  free_work(w);
  test_model_remove(directory);
}

Test(rows, same_in_an_interleaving_with_splits_in_use) { splits_in_use(); }
Test(rows, same_in_an_interleaving_with_splits_in_use_in_fp8) {
  cache_form = MK_DTYPE_E4M3;
  splits_in_use();
}

/* It is another form, and no other model: logits differ, and not by much. */
Test(rows, a_cache_in_fp8_is_near_one_in_bf16) {
  use_model(TEST_MODEL_ODD);
  work *exact = new_work();
  add(exact, 200, 1, 0);
  work *rounded = copy_of(exact);
  run((mk_engine_options){.sms = 7}, exact);
  cache_form = MK_DTYPE_E4M3;
  run((mk_engine_options){.sms = 7, .rows = 4}, rounded);
  double off = 0, size = 0;
  for (uint32_t i = 0; i < config.vocab; i++) {
    const double want = (double)exact->outputs[0].logits[i], have = (double)rounded->outputs[0].logits[i];
    off += (have - want) * (have - want);
    size += want * want;
  }
  cr_assert(off > 1e-8 * size && off < 1e-2 * size, "relative error %g", sqrt(off / size));
  free_work(exact);
  free_work(rounded);
  test_model_remove(directory);
}

typedef struct prompt_logits {
  float *logits; /* [LONGEST][vocab] */
  uint32_t next; /* position */
  work *rest;
} prompt_logits;

static void on_prompt(void *user, size_t sequence, uint32_t position, const float *logits) {
  prompt_logits *p = user;
  (void)sequence;
  cr_assert_eq(position, p->next++);
  memcpy(p->logits + (size_t)position * config.vocab, logits, config.vocab * sizeof *logits);
}

static bool on_token_after(void *user, size_t sequence, uint32_t token, const float *logits) {
  return on_token(((prompt_logits *)user)->rest, sequence, token, logits);
}

static void on_end_after(void *user, size_t sequence, mk_status status) {
  on_end(((prompt_logits *)user)->rest, sequence, status);
}

/* Logits at each position of a prompt are those of a prompt that ends there; what comes after it is what comes without
 * them. */
Test(rows, logits_of_a_prompt) {
  static const uint32_t rows[] = {1, 4, 16};
  use_model(TEST_MODEL_ODD);
  work *want = new_work(), *whole = new_work();
  for (size_t length = 1; length <= 20; length++) {
    add(want, length, 1, 0);
    memcpy(want->prompts[length - 1], want->prompts[0], sizeof want->prompts[0][0]);
    for (size_t t = 0; t < length; t++) {
      want->prompts[length - 1][t] = (uint32_t)(t * 37 + 11) % config.vocab;
    }
  }
  run((mk_engine_options){.sms = 7}, want);
  add(whole, 20, 4, 0);
  memcpy(whole->prompts[0], want->prompts[19], sizeof want->prompts[0]);
  run((mk_engine_options){.sms = 7}, whole);
  for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
    mk_engine *engine = open_engine((mk_engine_options){.sms = 5, .rows = rows[r], .prefix_tokens = LONGEST});
    prompt_logits p = {.rest = copy_of(whole)};
    const mk_sequence_calls calls = {.token = on_token_after, .prompt = on_prompt, .ended = on_end_after, .user = &p};
    mk_sequence s = p.rest->sequences[0];
    cr_assert_eq(mk_alloc((size_t)LONGEST * config.vocab, sizeof *p.logits, &p.logits), MK_OK);
    s.prompt_logits = true;
    for (uint32_t round = 0; round < 2; round++) {
      p.next = 0;
      clear_outputs(p.rest);
      cr_assert_eq(mk_engine_generate_all(engine, &s, 1, &calls), MK_OK, "%s", mk_error_message());
      cr_assert_eq(p.next, 19);
      expect_same("after the prompt", p.rest, whole);
      for (size_t i = 0; i < 19; i++) {
        cr_assert_arr_eq(p.logits + i * config.vocab, want->outputs[i].logits, config.vocab * sizeof(float),
                         "%u rows, position %zu", rows[r], i);
      }
    }
    mk_free(p.logits);
    free_work(p.rest);
    mk_engine_close(engine);
  }
  free_work(want);
  free_work(whole);
  test_model_remove(directory);
}

/* A token whose embedding is not a number makes its sequence fail, and that one alone; bad prompts are refused alone,
 * too. */
Test(rows, what_is_wrong_with_one_is_not_the_others) {
  use_model(TEST_MODEL_ODD);
  test_model_poke(directory, "model.embed_tokens.weight", 7 * (uint64_t)config.hidden + 5, 0x7fc0);
  work *w = new_work();
  for (size_t i = 0; i < 5; i++) {
    add(w, 10 + i * 9, 5, 0);
    for (size_t t = 0; t < w->sequences[i].prompt_count; t++) {
      w->prompts[i][t] = w->prompts[i][t] == 7 ? 8 : w->prompts[i][t];
    }
  }
  w->prompts[1][4] = 7;
  w->prompts[2][3] = config.vocab;
  w->sequences[3].prompt_count = LONGEST + 1;
  work *got = copy_of(w);
  run((mk_engine_options){.sms = 5}, w);
  cr_assert_eq(w->outputs[1].status, MK_ERR_DEVICE);
  cr_assert_eq(w->outputs[2].status, MK_ERR_USAGE);
  cr_assert_eq(w->outputs[3].status, MK_ERR_USAGE);
  run((mk_engine_options){.sms = 5, .rows = 8}, got);
  expect_same("in company", got, w);
  for (size_t i = 1; i < 4; i++) {
    cr_assert_str_eq(got->outputs[i].message, w->outputs[i].message);
  }
  cr_assert_not_null(strstr(got->outputs[1].message, "position 18"), "%s", got->outputs[1].message);
  free_work(w);
  free_work(got);
  test_model_remove(directory);
}

Test(rows, a_full_context_ends_a_sequence) {
  use_model(TEST_MODEL_TINY);
  work *w = new_work();
  add(w, 39, 5, 0);
  add(w, 40, 5, 0);
  add(w, 30, SIZE_MAX, 0);
  add(w, 1, 0, 0);
  run((mk_engine_options){.sms = 5, .max_seq = 40}, w);
  cr_assert_eq(w->outputs[2].count, 10);
  work *got = copy_of(w);
  run((mk_engine_options){.sms = 5, .rows = 4, .max_seq = 40}, got);
  expect_same("full", got, w);
  free_work(w);
  free_work(got);
  test_model_remove(directory);
}

Test(rows, what_goes_with_one_row_only) {
  use_model(TEST_MODEL_TINY);
  mk_engine *engine;
  mk_engine_options options = {.sms = 5, .rows = 3};
  cr_assert_eq(mk_engine_open(directory, &options, &engine), MK_ERR_USAGE);
  options.rows = MK_PROMPT_ROWS;
  mk_sampling sampling = MK_SAMPLING_OFF;
  sampling.temperature = 1;
  options.sampling = &sampling;
  cr_assert_eq(mk_engine_open(directory, &options, &engine), MK_ERR_USAGE, "%s", mk_error_message());
  test_model_remove(directory);
}

/* The window is counted through all launches, whoever makes them, and what is recorded is of one. */
Test(rows, recorded) {
  static const struct {
    uint32_t rows, first, steps, want;
  } cases[] = {
      {4, 0, 3, 3}, {4, 7, 2, 2}, {16, MK_FIRST_GENERATED, 4, 4}, {1, 50, 4, 4}, {1, MK_FIRST_GENERATED, 2, 2}};
  use_model(TEST_MODEL_TINY);
  work *w = new_work();
  add(w, 30, 12, 0);
  add(w, 30, 12, 0);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    mk_engine *engine = open_engine((mk_engine_options){.sms = 3, .rows = cases[i].rows});
    mk_trace *trace;
    mk_engine_trace(engine, &(mk_trace_window){.first = cases[i].first, .steps = cases[i].steps});
    run_on(engine, w);
    cr_assert_eq(mk_engine_trace_take(engine, &trace), MK_OK, "%zu: %s", i, mk_error_message());
    cr_expect_eq(trace->steps, cases[i].want, "%zu: %u steps", i, trace->steps);
    mk_trace_free(trace);
    cr_expect_eq(mk_engine_trace_take(engine, &trace), MK_ERR_USAGE);
    mk_engine_close(engine);
  }
  free_work(w);
  test_model_remove(directory);
}

static mk_status generate_all(work *w) {
  mk_engine *engine;
  mk_sequence_calls calls = {.token = on_token, .ended = on_end, .user = w};
  mk_engine_options options = {.device = "cpu", .sms = 3, .rows = 4, .max_seq = 64, .check_races = true};
  MK_TRY(mk_engine_open(directory, &options, &engine));
  mk_status status = mk_engine_generate_all(engine, w->sequences, w->count, &calls);
  mk_engine_close(engine);
  return status;
}

Test(rows, out_of_memory_unwinds) {
  use_model(TEST_MODEL_TINY);
  work *w = new_work();
  add(w, 5, 2, 0);
  add(w, 1, 2, 0);
  clear_outputs(w);
  mk_alloc_fail_at(0, false);
  cr_assert_eq(generate_all(w), MK_OK, "%s", mk_error_message());
  uint64_t calls = mk_alloc_calls();
  for (uint64_t n = 1; n <= calls; n += n < 20 || n + 40 > calls ? 1 : calls / 60 + 1) {
    clear_outputs(w);
    mk_alloc_fail_at(n, true);
    mk_status status = generate_all(w);
    mk_alloc_fail_at(0, false);
    cr_assert_eq(status, MK_ERR_RUNTIME, "allocation %llu of %llu: status %d", (unsigned long long)n,
                 (unsigned long long)calls, status);
  }
  free_work(w);
  test_model_remove(directory);
}
