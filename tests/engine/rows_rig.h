/* What the tests of several rows per step share: sequences of a model, their outputs in an engine, and that those are
 * the same bits in another one.
 *
 * The model is the test's, from use_model to test_model_remove, and so is a work, to free_work. Failure fails the
 * running test. */
#ifndef MK_TEST_ROWS_RIG_H
#define MK_TEST_ROWS_RIG_H

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/engine.h"
#include "tests/support/model.h"
#include "tests/support/numbers.h"

enum { LONGEST = 600, LONG_PROMPT = 2100, MOST_VOCAB = 520, MOST_SEQUENCES = 24, MOST_TOKENS = 24 };

static char directory[TEST_PATH];
static mk_config config;
static mk_dtype cache_form; /* of all engines of a test: BF16 where it says nothing */

typedef struct output { /* of one sequence */
  uint32_t tokens[MOST_TOKENS];
  float *logits; /* [MOST_TOKENS][vocab] */
  size_t count;
  size_t limit; /* its caller stops it there; 0: never */
  uint32_t ends;
  mk_status status;
  char message[256];
} output;

typedef struct work {
  uint32_t prompts[MOST_SEQUENCES][LONG_PROMPT];
  mk_sequence sequences[MOST_SEQUENCES];
  output outputs[MOST_SEQUENCES];
  size_t count;
} work;

static inline void use_model(size_t which) {
  config = test_model_config(which);
  test_model_write(&config, directory);
}

static inline void add(work *w, size_t prompt_count, size_t n_predict, size_t limit) {
  uint64_t seed = 17 + w->count;
  uint32_t *prompt = w->prompts[w->count];
  for (size_t i = 0; i < prompt_count; i++) {
    prompt[i] = test_random_below(&seed, config.vocab);
  }
  w->sequences[w->count] = (mk_sequence){.prompt = prompt, .prompt_count = prompt_count, .n_predict = n_predict};
  w->outputs[w->count++].limit = limit;
}

static inline void clear_outputs(work *w) {
  for (size_t i = 0; i < w->count; i++) {
    output *out = &w->outputs[i];
    *out = (output){.logits = out->logits, .limit = out->limit};
    if (out->logits == NULL) {
      cr_assert_eq(mk_alloc((size_t)MOST_TOKENS * MOST_VOCAB, sizeof *out->logits, &out->logits), MK_OK);
    }
  }
}

static inline bool on_token(void *user, size_t sequence, uint32_t token, const float *logits) {
  work *w = user;
  output *out = &w->outputs[sequence];
  cr_assert_lt(sequence, w->count);
  cr_assert_lt(out->count, MOST_TOKENS);
  cr_assert_eq(out->ends, 0, "a token after the end of sequence %zu", sequence);
  out->tokens[out->count] = token;
  memcpy(out->logits + out->count * config.vocab, logits, config.vocab * sizeof *logits);
  out->count++;
  return out->limit == 0 || out->count < out->limit;
}

static inline void on_end(void *user, size_t sequence, mk_status status) {
  output *out = &((work *)user)->outputs[sequence];
  out->ends++;
  out->status = status;
  snprintf(out->message, sizeof out->message, "%s", status == MK_OK ? "" : mk_error_message());
}

static inline mk_engine *open_engine(mk_engine_options options) {
  mk_engine *engine;
  options.max_seq = options.max_seq == 0 ? LONGEST : options.max_seq;
  options.device = "cpu";
  options.kv = cache_form;
  cr_assert_eq(mk_engine_open(directory, &options, &engine), MK_OK, "%s", mk_error_message());
  return engine;
}

static inline void run_on(mk_engine *engine, work *w) {
  mk_sequence_calls calls = {.token = on_token, .ended = on_end, .user = w};
  clear_outputs(w);
  cr_assert_eq(mk_engine_generate_all(engine, w->sequences, w->count, &calls), MK_OK, "%s", mk_error_message());
  for (size_t i = 0; i < w->count; i++) {
    cr_assert_eq(w->outputs[i].ends, 1, "sequence %zu ended %u times", i, w->outputs[i].ends);
  }
}

static inline void run(mk_engine_options options, work *w) {
  mk_engine *engine = open_engine(options);
  run_on(engine, w);
  mk_engine_close(engine);
}

static inline void expect_same(const char *what, const work *got, const work *want) {
  for (size_t s = 0; s < want->count; s++) {
    const output *a = &got->outputs[s], *b = &want->outputs[s];
    cr_assert_eq(a->status, b->status, "%s: sequence %zu: status %d: %s", what, s, a->status, a->message);
    cr_assert_eq(a->count, b->count, "%s: sequence %zu has %zu tokens, not %zu", what, s, a->count, b->count);
    for (size_t i = 0; i < b->count; i++) {
      cr_assert_eq(a->tokens[i], b->tokens[i], "%s: sequence %zu, token %zu is %u, not %u", what, s, i, a->tokens[i],
                   b->tokens[i]);
      for (size_t j = 0; j < config.vocab; j++) {
        float x = a->logits[i * config.vocab + j], y = b->logits[i * config.vocab + j];
        cr_assert(mk_float_param(x) == mk_float_param(y) && !isnan(x),
                  "%s: sequence %zu, token %zu: logit %zu is %a, not %a", what, s, i, j, (double)x, (double)y);
      }
    }
  }
}

/* The same work with other outputs. */
static inline work *copy_of(const work *w) {
  work *copy;
  cr_assert_eq(mk_alloc(1, sizeof *copy, &copy), MK_OK);
  *copy = *w;
  for (size_t i = 0; i < w->count; i++) {
    copy->sequences[i].prompt = copy->prompts[i];
    copy->outputs[i].logits = NULL;
  }
  return copy;
}

static inline work *new_work(void) {
  work *w;
  cr_assert_eq(mk_alloc(1, sizeof *w, &w), MK_OK);
  return w;
}

static inline void free_work(work *w) {
  for (size_t i = 0; i < w->count; i++) {
    mk_free(w->outputs[i].logits);
  }
  mk_free(w);
}

static inline void expect_bits(mk_engine_options options, const work *want) {
  char what[128];
  work *got = copy_of(want);
  snprintf(what, sizeof what, "%u rows, %u SMs, seed %llu%s", options.rows, options.sms,
           (unsigned long long)options.interleave_seed, options.adversarial ? ", adversarial" : "");
  run(options, got);
  expect_same(what, got, want);
  free_work(got);
}

/* Ragged lengths, different ends, and more sequences than slots; one has nothing to do, and some stop by themselves. */
static inline work *ragged(void) {
  static const size_t prompts[] = {37, 1, 270, 16, 63, 2, 130, 64, 5, 33, 17, 255, 1, 90, 48, 3, 65, 20};
  work *w = new_work();
  for (size_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++) {
    add(w, prompts[i], i == 5 ? 0 : 3 + i % 5 * 4, i % 3 == 1 ? 1 + i % 4 : 0);
  }
  return w;
}

#endif
