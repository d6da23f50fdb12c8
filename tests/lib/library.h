/* What the tests of the public library share: the tiny model in a folder, an engine of it, and requests whose answers are kept.
 *
 * An answer is the test's; the engine that it names, too. An answer is written by the thread that makes the engine work. Failure fails the
 * running test. */
#ifndef MK_TEST_LIBRARY_H
#define MK_TEST_LIBRARY_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "include/mkvm.h"
#include "tests/support/model.h"

static char directory[TEST_PATH];
static mk_config config;

static inline void make(void) {
  config = test_model_config(TEST_MODEL_TINY);
  test_model_write(&config, directory);
}

static inline void drop(void) { test_model_remove(directory); }

/* A test with the tiny model there. ThreadSanitizer's build calls no init and fini. */
#define TEST_WITH_MODEL(suite, name) \
  static void name(void);            \
  Test(suite, name) {                \
    make();                          \
    name();                          \
    drop();                          \
  }                                  \
  static void name(void)

#define OK(call) cr_assert_eq((call), MKVM_OK, "%s", mkvm_message())
#define REFUSED(call, status, words)                                             \
  do {                                                                           \
    cr_assert_eq((call), (status), "%s", mkvm_message());                        \
    cr_assert_not_null(strstr(mkvm_message(), (words)), "'%s'", mkvm_message()); \
  } while (0)

static inline mkvm_options tiny_options(uint32_t batch) {
  mkvm_options options;
  mkvm_options_init(&options);
  options.device = "cpu";
  options.max_context = 200;
  options.max_batch = batch;
  options.threads = 2;
  return options;
}

static inline mkvm_engine *open_with(const mkvm_options *options) {
  mkvm_engine *engine;
  OK(mkvm_open(directory, options, &engine));
  return engine;
}

static inline mkvm_engine *open_tiny(uint32_t batch) {
  const mkvm_options options = tiny_options(batch);
  return open_with(&options);
}

enum { MOST = 256 };

typedef struct answer { /* what callbacks were told */
  mkvm_engine *engine;
  uint32_t tokens[MOST];
  size_t count, length, calls, ends, stop_after; /* stop_after: tokens; 0: never */
  char text[4096], message[256];
  mkvm_end end;
  bool cancels; /* by mkvm_cancel instead of its result */
} answer;

static inline int on_token(void *user, const mkvm_token *token) {
  answer *a = user;
  cr_assert_eq(a->ends, 0);
  a->calls++;
  if (token->token != MKVM_NO_TOKEN) {
    cr_assert_lt(a->count, MOST);
    a->tokens[a->count++] = token->token;
  }
  cr_assert_lt(a->length + token->length, sizeof a->text);
  memcpy(a->text + a->length, token->text, token->length);
  a->length += token->length;
  if (a->stop_after == 0 || a->count < a->stop_after) {
    return 0;
  }
  if (a->cancels) {
    OK(mkvm_cancel(a->engine, token->request));
    return 0;
  }
  return 1;
}

static inline void on_end(void *user, const mkvm_end *end) {
  answer *a = user;
  a->ends++;
  a->end = *end;
  snprintf(a->message, sizeof a->message, "%s", end->message);
}

static inline mkvm_request request_of(answer *a, const uint32_t *prompt, size_t count, size_t tokens) {
  mkvm_request request;
  mkvm_request_init(&request);
  request.tokens = prompt;
  request.token_count = count;
  request.max_tokens = tokens;
  request.ignore_end = 1;
  request.on_token = on_token;
  request.on_end = on_end;
  request.user = a;
  return request;
}

/* The same tokens and text. */
static inline void expect_same(const answer *a, const answer *b) {
  cr_assert_eq(a->count, b->count);
  cr_assert_arr_eq(a->tokens, b->tokens, a->count * sizeof a->tokens[0]);
  cr_assert_eq(a->length, b->length);
  cr_assert_arr_eq(a->text, b->text, a->length);
}

#endif
