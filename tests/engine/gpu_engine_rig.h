/* What the tests of the engine on a GPU that is none share (tests/support/fake_gpu.h): batches of sequences, whose
 * tokens follow from their prompts, and an engine that answers them. Failure fails the running test. */
#ifndef MK_GPU_ENGINE_RIG_H
#define MK_GPU_ENGINE_RIG_H

#include <criterion/criterion.h>
#include <string.h>

#include "engine/engine.h"
#include "models/synth.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/numbers.h"

FAKE_GPU_IMAGE

enum { CONTEXT = 192, MOST_TOKENS = 14, MOST_SEQUENCES = 11, CROWD = 24 };

typedef struct answer {
  uint32_t tokens[MOST_TOKENS], count;
  uint32_t most; /* then the sequence is to stop */
  bool has_logits;
  mk_status status;
} answer;

typedef struct batch {
  uint32_t prompts[CROWD][CONTEXT];
  mk_sequence sequences[CROWD];
  answer answers[CROWD];
  size_t count;
  volatile sig_atomic_t cancel;
  uint32_t cancel_after; /* tokens of all */
} batch;

static inline bool take_token(void *user, size_t sequence, uint32_t token, const float *logits) {
  batch *b = user;
  answer *a = &b->answers[sequence];
  cr_assert_lt(a->count, MOST_TOKENS);
  a->tokens[a->count++] = token;
  a->has_logits = logits != NULL;
  if (b->cancel_after != 0 && --b->cancel_after == 0) {
    b->cancel = 1;
  }
  return a->count < a->most;
}

static inline void take_end(void *user, size_t sequence, mk_status status) {
  ((batch *)user)->answers[sequence].status = status;
}

/* Prompts of 1 to `longest` tokens, the first one that long. */
static inline void make_batch(batch *b, size_t count, uint32_t longest) {
  uint64_t seed = 9;
  *b = (batch){.count = count};
  for (size_t i = 0; i < count; i++) {
    uint32_t length = i == 0 ? longest : 1 + test_random_below(&seed, i % 2 != 0 ? 8 : longest);
    for (uint32_t t = 0; t < length; t++) {
      b->prompts[i][t] = test_random_below(&seed, 500);
    }
    b->sequences[i] = (mk_sequence){
        .prompt = b->prompts[i], .prompt_count = length, .n_predict = 1 + test_random_below(&seed, MOST_TOKENS)};
    b->answers[i].most = i == 2 ? 2 : UINT32_MAX;
  }
}

static inline void expect_answers(const batch *b, bool logits) {
  for (size_t i = 0; i < b->count; i++) {
    const mk_sequence *s = &b->sequences[i];
    const answer *a = &b->answers[i];
    uint32_t token = s->prompt[s->prompt_count - 1], want = (uint32_t)s->n_predict;
    cr_assert_eq(a->status, MK_OK, "sequence %zu: %d", i, (int)a->status);
    cr_assert_eq(a->count, want < a->most ? want : a->most, "sequence %zu: %u tokens", i, a->count);
    cr_assert_eq(a->has_logits, logits);
    for (uint32_t t = 0; t < a->count; t++) {
      token = fake_gpu_choice(token, (uint32_t)s->prompt_count - 1 + t);
      cr_assert_eq(a->tokens[t], token, "sequence %zu, token %u: %u", i, t, a->tokens[t]);
    }
  }
}

/* change: of the model; NULL: none. */
static inline mk_status open_changed(mk_engine_options options, void (*change)(mk_config *config), batch *b,
                                     mk_engine **engine) {
  mk_config config;
  cr_assert_eq(mk_synth_shape("tiny", &config), MK_OK);
  if (change != NULL) {
    change(&config);
  }
  options.device = "cuda";
  options.synth = &config;
  options.sms = FAKE_CUDA_SMS;
  options.max_seq = CONTEXT;
  options.cancel = &b->cancel;
  return mk_engine_open(NULL, &options, engine);
}

static inline mk_status open_with(mk_engine_options options, batch *b, mk_engine **engine) {
  return open_changed(options, NULL, b, engine);
}

static inline mk_status open_engine(uint32_t rows, bool long_prompts, bool logits, batch *b, mk_engine **engine) {
  return open_with(
      (mk_engine_options){
          .want_logits = logits, .rows = rows, .slots = rows > MK_MAX_ROWS ? rows : 0, .long_prompts = long_prompts},
      b, engine);
}

static inline mk_status generate(mk_engine *engine, batch *b) {
  const mk_sequence_calls calls = {.token = take_token, .ended = take_end, .user = b};
  return mk_engine_generate_all(engine, b->sequences, b->count, &calls);
}

/* An engine of so many rows, and its batch. */
typedef struct rig {
  fake_gpu kernel;
  fake_cuda *cuda;
  mk_engine *engine;
  batch b;
} rig;

static inline void start(rig *r, uint32_t rows, bool long_prompts, bool logits) {
  r->cuda = fake_gpu_start(&r->kernel);
  cr_assert_eq(open_engine(rows, long_prompts, logits, &r->b, &r->engine), MK_OK, "%s", mk_error_message());
}

static inline void stop(rig *r) {
  mk_engine_close(r->engine);
  cr_assert_eq(r->cuda->live, 0);
}

static inline void expect_whole_batch(rig *r, size_t count, uint32_t longest, bool logits) {
  make_batch(&r->b, count, longest);
  cr_assert_eq(generate(r->engine, &r->b), MK_OK, "%s", mk_error_message());
  expect_answers(&r->b, logits);
}

static inline bool take_only_token(void *user, uint32_t token, const float *logits) {
  return take_token(user, 0, token, logits);
}

static inline void expect_one_alone(rig *r, bool logits) {
  make_batch(&r->b, 1, 70);
  mk_sequence *s = &r->b.sequences[0];
  s->n_predict = MOST_TOKENS;
  cr_assert_eq(mk_engine_generate(r->engine, s->prompt, s->prompt_count, s->n_predict, take_only_token, &r->b), MK_OK,
               "%s", mk_error_message());
  expect_answers(&r->b, logits);
}

#endif
