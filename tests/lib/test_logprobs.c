/* The public library's log-probabilities: of tokens that are generated, and of prompts. */
#include <math.h>

#include "tests/lib/library.h"

TestSuite(logprobs, .timeout = MK_HANG_SECONDS);

#define WITH_MODEL(name) TEST_WITH_MODEL(logprobs, name)

enum { TOKENS = 24, TOP = 20 };

typedef struct heard { /* of a request */
  mkvm_token tokens[TOKENS];
  mkvm_logprob tops[TOKENS][TOP];
  size_t count, of_prompt; /* the first ones are the prompt's */
  mkvm_end end;
} heard;

static void keep(heard *h, const mkvm_token *token) {
  cr_assert_lt(h->count, TOKENS);
  h->tokens[h->count] = *token;
  if (token->top_count != 0) {
    memcpy(h->tops[h->count], token->top, token->top_count * sizeof *token->top);
  }
  h->count++;
}

static int hear_token(void *user, const mkvm_token *token) {
  if (token->token != MKVM_NO_TOKEN) {
    keep(user, token);
  }
  return 0;
}

static void hear_prompt(void *user, const mkvm_token *token) {
  heard *h = user;
  cr_assert_eq(h->count, h->of_prompt, "the prompt comes before the answer");
  cr_assert_eq(token->length, 0);
  keep(h, token);
  h->of_prompt++;
}

static void hear_end(void *user, const mkvm_end *end) { ((heard *)user)->end = *end; }

static mkvm_request ask(heard *h, const uint32_t *ids, size_t count, size_t tokens) {
  mkvm_request request;
  mkvm_request_init(&request);
  *h = (heard){.count = 0};
  request.tokens = ids;
  request.token_count = count;
  request.max_tokens = tokens;
  request.ignore_end = 1;
  request.logprobs = 1;
  request.top_logprobs = TOP;
  request.on_token = hear_token;
  request.on_end = hear_end;
  request.user = h;
  return request;
}

static void run(mkvm_engine *engine, const mkvm_request *request) {
  OK(mkvm_submit(engine, request, NULL));
  OK(mkvm_run(engine));
}

/* What one says of a token that it was given, another of one that it chose. */
static void expect_same_place(const heard *a, size_t at, const heard *b, size_t place) {
  cr_assert_eq(a->tokens[at].top_count, TOP);
  cr_assert_arr_eq(a->tops[at], b->tops[place], sizeof a->tops[at]);
  for (size_t i = 0; i < TOP; i++) {
    cr_assert(i == 0 || a->tops[at][i].logprob <= a->tops[at][i - 1].logprob);
    if (a->tops[at][i].token == a->tokens[at].token) {
      cr_assert(a->tokens[at].rank == i + 1 && a->tokens[at].logprob == a->tops[at][i].logprob);
    }
  }
  cr_assert(a->tokens[at].rank >= 1 &&
            (a->tokens[at].rank <= TOP || a->tokens[at].logprob <= a->tops[at][TOP - 1].logprob));
}

/* The log-probabilities of each token of a prompt are those that an answer to the tokens before it is drawn from. */
WITH_MODEL(of_prompts_and_answers) {
  static const uint32_t ids[] = {5, 7, 11, 13, 2, 99, 7, 5, 3};
  enum { COUNT = sizeof ids / sizeof ids[0] };
  heard one, whole;
  for (uint32_t batch = 1; batch <= 4; batch += 3) {
    mkvm_engine *engine = open_tiny(batch);
    mkvm_request request = ask(&whole, ids, COUNT, 4);
    request.on_prompt = hear_prompt;
    for (size_t round = 0; round < 2; round++) { /* nothing of it is taken from what is known */
      whole.count = whole.of_prompt = 0;
      run(engine, &request);
      cr_assert(whole.of_prompt == COUNT - 1 && whole.count == COUNT - 1 + 4 && whole.end.cached_tokens == 0);
    }
    for (size_t i = 0; i + 1 < COUNT; i++) {
      cr_assert_eq(whole.tokens[i].token, ids[i + 1]);
      mkvm_request before = ask(&one, ids, i + 1, 1);
      run(engine, &before);
      expect_same_place(&whole, i, &one, 0);
      cr_assert(one.tokens[0].rank == 1 && one.tokens[0].logprob == one.tops[0][0].logprob, "greedy");
    }
    mkvm_request plain = ask(&one, ids, COUNT, 4);
    run(engine, &plain);
    for (size_t i = 0; i < 4; i++) {
      cr_assert_eq(one.tokens[i].token, whole.tokens[COUNT - 1 + i].token);
      expect_same_place(&one, i, &whole, COUNT - 1 + i);
    }
    OK(mkvm_close(engine));
  }
}

/* Probabilities are the model's, whatever the tokens are drawn by, and add up to no more than 1. */
WITH_MODEL(before_penalties_and_temperature) {
  mkvm_engine *engine = open_tiny(2);
  heard cold, hot;
  mkvm_sampling sampling;
  mkvm_request request = ask(&cold, prompt, 4, 1);
  run(engine, &request);
  mkvm_sampling_init(&sampling);
  sampling.temperature = 3;
  sampling.repetition_penalty = 1.5;
  sampling.seed = 4;
  request = ask(&hot, prompt, 4, 1);
  request.sampling = &sampling;
  run(engine, &request);
  cr_assert_arr_eq(cold.tops[0], hot.tops[0], sizeof cold.tops[0]);
  double sum = 0;
  for (size_t i = 0; i < TOP; i++) {
    sum += exp(cold.tops[0][i].logprob);
  }
  cr_assert(sum > 0 && sum <= 1 + 1e-9, "%g", sum);
  OK(mkvm_close(engine));
}

WITH_MODEL(who_does_not_ask_gets_none) {
  mkvm_engine *engine = open_tiny(2);
  heard h;
  mkvm_request request = ask(&h, prompt, 4, 2);
  request.logprobs = 0;
  run(engine, &request);
  cr_assert(h.tokens[1].rank == 0 && h.tokens[1].top == NULL && h.tokens[1].top_count == 0);
  request.logprobs = 1;
  request.top_logprobs = 0;
  h.count = 0;
  run(engine, &request);
  cr_assert(h.tokens[1].rank == 1 && h.tokens[1].top_count == 0 && h.tokens[1].logprob < 0);
  request.top_logprobs = 21;
  REFUSED(mkvm_submit(engine, &request, NULL), MKVM_ERR_USAGE, "top_logprobs is 21; at most 20");
  OK(mkvm_close(engine));
}
