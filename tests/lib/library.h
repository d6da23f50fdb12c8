/* What the tests of the public library share: the tiny model in a folder, an engine of it, and requests whose answers
 * are kept.
 *
 * An answer is the test's; the engine that it names, too. An answer is written by the thread that makes the engine
 * work. Failure fails the running test. */
#ifndef MK_TEST_LIBRARY_H
#define MK_TEST_LIBRARY_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

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

/* Both must have the same tokens and text. */
static inline void expect_same(const answer *a, const answer *b) {
  cr_assert_eq(a->count, b->count);
  cr_assert_arr_eq(a->tokens, b->tokens, a->count * sizeof a->tokens[0]);
  cr_assert_eq(a->length, b->length);
  cr_assert_arr_eq(a->text, b->text, a->length);
}

static const uint32_t prompt[] = {5, 7, 11, 13};
enum { LONG = 150 };

/* Made by the first call, before there are other threads. */
static inline const uint32_t *long_prompt(void) {
  static uint32_t tokens[LONG];
  for (uint32_t i = 0; i < LONG && tokens[LONG - 1] == 0; i++) {
    tokens[i] = (i * i + 3 * i + 1) % 250;
  }
  return tokens;
}

static inline void submit(answer *a, const uint32_t *tokens, size_t count, size_t max_tokens) {
  mkvm_request request = request_of(a, tokens, count, max_tokens);
  OK(mkvm_submit(a->engine, &request, NULL));
}

/* What this prompt comes to when nobody else is there, and nothing was before. */
static inline void alone(const mkvm_options *like, const uint32_t *tokens, size_t count, size_t max_tokens, answer *a) {
  mkvm_options options = *like;
  options.kv_tokens = 0;
  options.prefix_tokens = 0;
  *a = (answer){.engine = open_with(&options)};
  submit(a, tokens, count, max_tokens);
  OK(mkvm_run(a->engine));
  OK(mkvm_close(a->engine));
}

static inline mkvm_stats stats_of(mkvm_engine *engine) {
  mkvm_stats stats;
  OK(mkvm_get_stats(engine, &stats));
  return stats;
}

static inline void sleep_ms(long ms) {
  const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
  nanosleep(&time, NULL);
}

/* One that runs, and does something to others when it has got so many tokens. */
typedef struct actor {
  answer answer;
  size_t at;
  void (*act)(struct actor *actor);
  answer *other;
  uint64_t other_id;
  size_t other_count; /* when it acted */
} actor;

static inline int act_on_token(void *user, const mkvm_token *token) {
  actor *a = user;
  int result = on_token(&a->answer, token);
  if (a->answer.count == a->at) {
    a->act(a);
  }
  return result;
}

static inline void act_on_end(void *user, const mkvm_end *end) { on_end(&((actor *)user)->answer, end); }

static inline void submit_actor(actor *a, size_t max_tokens) {
  mkvm_request request = request_of(&a->answer, prompt, 4, max_tokens);
  request.on_token = act_on_token;
  request.on_end = act_on_end;
  request.user = a;
  OK(mkvm_submit(a->answer.engine, &request, NULL));
}

/* Submits a request of `prompt`, and runs until it has ended. */
static inline void generate(mkvm_engine *engine, const mkvm_sampling *sampling, answer *a) {
  *a = (answer){.engine = engine};
  mkvm_request request = request_of(a, prompt, 4, 20);
  request.sampling = sampling;
  OK(mkvm_submit(engine, &request, NULL));
  OK(mkvm_run(engine));
  cr_assert_eq(a->ends, 1);
}

#endif
