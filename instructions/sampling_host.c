/* See sampling_host.h. */
#include "instructions/sampling_host.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

static mk_status expect(const char *name, double value, double low, double high) {
  return value >= low && value <= high
             ? MK_OK
             : mk_error(MK_ERR_USAGE, "%s is %g; it must be from %g to %g", name, value, low, high);
}

mk_status mk_sampling_check(const mk_sampling *s, uint32_t vocab) {
  MK_TRY(expect("temperature", s->temperature, 0, 1000));
  MK_TRY(expect("top-p", s->top_p, 0, 1));
  MK_TRY(expect("min-p", s->min_p, 0, 1));
  MK_TRY(expect("the repetition penalty", s->repetition, 0.01, 100));
  MK_TRY(expect("the presence penalty", s->presence, -100, 100));
  MK_TRY(expect("the frequency penalty", s->frequency, -100, 100));
  if (s->bias_count > MK_MOST_BIASES) {
    return mk_error(MK_ERR_USAGE, "%zu logit biases; at most %d are possible", s->bias_count, MK_MOST_BIASES);
  }
  for (size_t i = 0; i < s->bias_count; i++) {
    if (s->biases[i].token >= vocab) {
      return mk_error(MK_ERR_USAGE, "the logit bias of token %u: the vocabulary has %u", s->biases[i].token, vocab);
    }
    if (s->biases[i].bias != -INFINITY) {
      MK_TRY(expect("a logit bias", (double)s->biases[i].bias, -1000, 1000));
    }
    for (size_t j = 0; j < i; j++) {
      if (s->biases[j].token == s->biases[i].token) {
        return mk_error(MK_ERR_USAGE, "token %u has two logit biases; keep one of them", s->biases[i].token);
      }
    }
  }
  return MK_OK;
}

bool mk_sampling_penalizes(const mk_sampling *s) { return s->repetition != 1 || s->presence != 0 || s->frequency != 0; }

bool mk_sampling_is_greedy(const mk_sampling *s) {
  return (float)s->temperature == 0 && !mk_sampling_penalizes(s) && s->bias_count == 0;
}

void mk_sampling_words(const mk_sampling *s, uint32_t vocab, uint32_t words[MK_SAMPLING_WORDS]) {
  float temperature = (float)s->temperature, repetition = (float)s->repetition;
  float inverse = temperature > 0 ? fminf(1.0f / temperature, FLT_MAX) : 0.0f; /* finite: it may multiply 0 */
  double top_p = floor(s->top_p * 0x1p32);
  memset(words, 0, MK_SAMPLING_WORDS * sizeof *words);
  words[MK_SAMPLING_FLAGS] =
      (temperature > 0 ? MK_SAMPLE_DRAWS : 0u) | (s->top_k != 0 && s->top_k < vocab ? MK_SAMPLE_TOP_K : 0u) |
      (top_p < 0x1p32 ? MK_SAMPLE_TOP_P : 0u) | (s->min_p > 0 ? MK_SAMPLE_MIN_P : 0u) |
      (mk_sampling_penalizes(s) ? MK_SAMPLE_PENALTIES : 0u) | (s->bias_count != 0 ? MK_SAMPLE_BIAS : 0u);
  words[MK_SAMPLING_SEED_LOW] = (uint32_t)s->seed;
  words[MK_SAMPLING_SEED_HIGH] = (uint32_t)(s->seed >> 32);
  words[MK_SAMPLING_TEMPERATURE] = mk_bits_of(temperature);
  words[MK_SAMPLING_INVERSE_TEMPERATURE] = mk_bits_of(inverse);
  words[MK_SAMPLING_TOP_K] = s->top_k;
  words[MK_SAMPLING_TOP_P] = top_p < 0x1p32 ? (uint32_t)top_p : 0;
  words[MK_SAMPLING_LOG_MIN_P] = mk_bits_of(s->min_p > 0 ? (float)log(s->min_p) : 0.0f);
  words[MK_SAMPLING_REPETITION] = mk_bits_of(repetition);
  words[MK_SAMPLING_INVERSE_REPETITION] = mk_bits_of(1.0f / repetition);
  words[MK_SAMPLING_PRESENCE] = mk_bits_of((float)s->presence);
  words[MK_SAMPLING_FREQUENCY] = mk_bits_of((float)s->frequency);
}

static int by_rank(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return x > y ? -1 : x < y;
}

/* How many of `count` ranked keys are kept. */
static uint32_t kept_of(const uint32_t *words, const uint64_t *keys, uint32_t count) {
  float highest = mk_rank_value(keys[0]);
  uint32_t kept = (words[MK_SAMPLING_FLAGS] & MK_SAMPLE_TOP_K) != 0 ? words[MK_SAMPLING_TOP_K] : count;
  kept = kept < count ? kept : count;
  if ((words[MK_SAMPLING_FLAGS] & MK_SAMPLE_TOP_P) == 0) {
    return kept;
  }
  uint64_t mass = 0, before = 0;
  for (uint32_t i = 0; i < kept; i++) {
    mass += mk_sample_weight(mk_sample_distance(words, mk_rank_value(keys[i]), highest));
  }
  for (uint32_t i = 0; i < kept; i++) {
    if (before >= mk_nucleus(words, mass)) {
      return i;
    }
    before += mk_sample_weight(mk_sample_distance(words, mk_rank_value(keys[i]), highest));
  }
  return kept;
}

mk_status mk_sampling_choose(const uint32_t words[MK_SAMPLING_WORDS], const float *logits, const float *bias,
                             const uint32_t *counts, uint32_t vocab, uint32_t position, uint32_t *token, bool *failed) {
  uint64_t *keys;
  MK_TRY(mk_alloc(vocab, sizeof *keys, &keys));
  *failed = false;
  for (uint32_t i = 0; i < vocab && !*failed; i++) {
    float score = mk_sample_score(words, logits[i], counts == NULL ? 0 : counts[i], bias == NULL ? 0 : bias[i]);
    keys[i] = mk_rank_key(score, i);
    *token = i;
    *failed = mk_is_nan(score);
  }
  if (!*failed) {
    qsort(keys, vocab, sizeof *keys, by_rank);
    float highest = mk_rank_value(keys[0]);
    uint64_t best = 0, key = mk_draw_key(mk_sampling_seed(words), position);
    uint32_t kept = kept_of(words, keys, vocab);
    for (uint32_t i = 0; i < kept; i++) {
      float score = mk_rank_value(keys[i]);
      uint64_t draw = mk_sample_draw(words, key, score, mk_rank_token(keys[i]));
      best = draw > best && !mk_sample_drops(words, mk_sample_distance(words, score, highest)) ? draw : best;
    }
    *token = mk_rank_token((words[MK_SAMPLING_FLAGS] & MK_SAMPLE_DRAWS) != 0 ? best : keys[0]);
  }
  mk_free(keys);
  return MK_OK;
}

void mk_logprobs(const float *logits, uint32_t vocab, uint32_t token, uint32_t count, double *logprob,
                 mk_logprob *top) {
  double highest = -INFINITY, sum = 0;
  uint32_t held = 0;
  for (uint32_t i = 0; i < vocab; i++) {
    highest = (double)logits[i] > highest ? (double)logits[i] : highest;
  }
  for (uint32_t i = 0; i < vocab; i++) {
    sum += (double)logits[i] == highest ? 1 : exp((double)logits[i] - highest);
  }
  double total = highest + log(sum);
  *logprob = (double)logits[token] == highest ? -log(sum) : (double)logits[token] - total;
  for (uint32_t i = 0; i < vocab; i++) { /* ranked by insertion: few get far */
    uint32_t at = held;
    double value = (double)logits[i] == highest ? -log(sum) : (double)logits[i] - total;
    while (at > 0 && value > top[at - 1].logprob) {
      at--;
    }
    if (at < count) {
      held += held < count;
      memmove(&top[at + 1], &top[at], (held - 1 - at) * sizeof *top);
      top[at] = (mk_logprob){.token = i, .logprob = value};
    }
  }
  for (; held < count; held++) {
    top[held] = (mk_logprob){.token = UINT32_MAX, .logprob = -INFINITY};
  }
}

uint32_t mk_logit_rank(const float *logits, uint32_t vocab, uint32_t token) {
  uint32_t rank = 1;
  for (uint32_t i = 0; i < vocab; i++) {
    rank += logits[i] > logits[token] || (logits[i] == logits[token] && i < token);
  }
  return rank;
}

void mk_rank_logits(const float *logits, uint32_t vocab, uint32_t token, mk_ranking *ranking) {
  ranking->count = ranking->most < vocab ? ranking->most : vocab;
  mk_logprobs(logits, vocab, token, ranking->count, &ranking->logprob, ranking->top);
  ranking->rank = mk_logit_rank(logits, vocab, token);
}
