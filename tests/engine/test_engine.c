/* The engine's limits and failures: full contexts, bad prompts, missing models, and memory that runs out at every
 * step. */
#include "engine/engine.h"

#include <criterion/criterion.h>
#include <string.h>

#include "tests/support/model.h"

static char directory[TEST_PATH];
static mk_config config;

static mk_engine *open_tiny(uint32_t max_seq) {
  config = test_model_config(TEST_MODEL_TINY);
  test_model_write(&config, directory);
  mk_engine *engine;
  mk_engine_options options = {.sms = 5, .max_seq = max_seq};
  cr_assert_eq(mk_engine_open(directory, &options, &engine), MK_OK, "%s", mk_error_message());
  return engine;
}

static void close_tiny(mk_engine *engine) {
  mk_engine_close(engine);
  test_model_remove(directory);
}

static bool count(void *user, uint32_t token, const float *logits) {
  cr_assert_lt(token, config.vocab);
  cr_assert_not_null(logits);
  ++*(size_t *)user;
  return true;
}

Test(engine, says_what_it_opened) {
  mk_engine *engine = open_tiny(0);
  cr_assert_eq(mk_engine_max_seq(engine), config.max_position);
  cr_assert_eq(mk_engine_config(engine)->hidden, config.hidden);
  cr_assert_eq(mk_engine_program(engine)->machine.sms, 5);
  close_tiny(engine);
}

Test(engine, prompt_and_tokens_never_exceed_the_context) {
  mk_engine *engine = open_tiny(40);
  uint32_t prompt[40] = {1, 2, 3};
  static const struct {
    size_t prompt, predict, want;
  } runs[] = {{3, 100, 37}, {3, 37, 37}, {3, 36, 36}, {39, 5, 1}, {40, 5, 0}, {1, 1, 1}, {5, 0, 0}, {1, SIZE_MAX, 39}};
  for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
    size_t tokens = 0;
    cr_assert_eq(mk_engine_generate(engine, prompt, runs[i].prompt, runs[i].predict, count, &tokens), MK_OK, "%s",
                 mk_error_message());
    cr_assert_eq(tokens, runs[i].want, "a prompt of %zu and %zu to predict gave %zu", runs[i].prompt, runs[i].predict,
                 tokens);
  }
  close_tiny(engine);
}

static void expect_refused(mk_engine *engine, const uint32_t *prompt, size_t prompt_count, const char *words) {
  size_t tokens = 0;
  cr_assert_eq(mk_engine_generate(engine, prompt, prompt_count, 5, count, &tokens), MK_ERR_USAGE);
  cr_assert_eq(tokens, 0);
  cr_assert_not_null(strstr(mk_error_message(), words), "`%s` is not in: %s", words, mk_error_message());
}

Test(engine, refuses_bad_prompts) {
  mk_engine *engine = open_tiny(40);
  uint32_t prompt[41] = {0};
  expect_refused(engine, prompt, 0, "0 tokens");
  expect_refused(engine, prompt, 41, "41 tokens");
  prompt[5] = config.vocab;
  expect_refused(engine, prompt, 6, "token 5 is 320");
  prompt[0] = UINT32_MAX;
  expect_refused(engine, prompt, 1, "token 0 is 4294967295");
  size_t tokens = 0;
  prompt[0] = config.vocab - 1;
  cr_assert_eq(mk_engine_generate(engine, prompt, 1, 2, count, &tokens), MK_OK);
  cr_assert_eq(tokens, 2);
  close_tiny(engine);
}

Test(engine, refuses_bad_options_and_directories) {
  close_tiny(open_tiny(64));
  mk_engine *engine = (mk_engine *)1;
  mk_engine_options options = {.sms = 5};
  cr_assert_eq(mk_engine_open(directory, &options, &engine), MK_ERR_FILE, "the directory is gone");
  cr_assert_null(engine);
  test_model_write(&config, directory);
  options.sms = 1025;
  cr_assert_eq(mk_engine_open(directory, &options, &engine), MK_ERR_USAGE);
  options.sms = 5;
  options.max_seq = config.max_position + 1;
  cr_assert_eq(mk_engine_open(directory, &options, &engine), MK_ERR_USAGE);
  cr_assert_null(engine);
  test_model_remove(directory);
}

static mk_status open_and_close(const char *path) {
  mk_engine *engine = (mk_engine *)1;
  mk_engine_options options = {.sms = 2, .max_seq = 300, .check_races = true};
  mk_status status = mk_engine_open(path, &options, &engine);
  cr_assert_eq(status == MK_OK, engine != NULL);
  mk_engine_close(engine);
  return status;
}

/* The n-th allocation of mk_engine_open fails, alone or with all that follow: an error, nothing leaks, and the next
 * open works. */
Test(engine, out_of_memory_unwinds) {
  config = test_model_config(TEST_MODEL_DEEP_K);
  test_model_write(&config, directory);
  mk_alloc_fail_at(0, false);
  cr_assert_eq(open_and_close(directory), MK_OK, "%s", mk_error_message());
  uint64_t calls = mk_alloc_calls();
  cr_assert_gt(calls, 50);
  uint64_t step = calls / 150 + 1;
  for (uint64_t n = 1; n <= calls; n += n < 20 || n + 20 > calls ? 1 : step) {
    for (uint32_t forever = 0; forever < 2; forever++) {
      mk_alloc_fail_at(n, forever != 0);
      mk_status status = open_and_close(directory);
      mk_alloc_fail_at(0, false);
      cr_assert_eq(status, MK_ERR_RUNTIME, "allocation %llu of %llu failed; status %d (%s)", (unsigned long long)n,
                   (unsigned long long)calls, status, mk_error_message());
      cr_assert_not_null(strstr(mk_error_message(), "memory"), "%s", mk_error_message());
    }
  }
  cr_assert_eq(open_and_close(directory), MK_OK, "%s", mk_error_message());
  test_model_remove(directory);
}

/* Memory that runs out while generating: an error, and the engine can still be closed. */
Test(engine, out_of_memory_while_generating) {
  config = test_model_config(TEST_MODEL_TINY);
  test_model_write(&config, directory);
  mk_engine_options options = {.sms = 3, .max_seq = 64, .interleave_seed = 1, .adversarial = true, .check_races = true};
  const uint32_t prompt[] = {1, 2};
  mk_status status = MK_ERR_RUNTIME;
  for (uint64_t n = 1; status != MK_OK; n = n * 3 / 2 + 1) {
    mk_engine *engine;
    size_t tokens = 0;
    cr_assert_eq(mk_engine_open(directory, &options, &engine), MK_OK, "%s", mk_error_message());
    mk_alloc_fail_at(n, true);
    status = mk_engine_generate(engine, prompt, 2, 3, count, &tokens);
    mk_alloc_fail_at(0, false);
    cr_assert(status == MK_OK || status == MK_ERR_RUNTIME);
    mk_engine_close(engine);
  }
  test_model_remove(directory);
}
