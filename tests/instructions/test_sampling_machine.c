/* SCORE, SIFT and DRAW on any number of SMs draw the token that the definition draws. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/boundary.h"
#include "tests/support/effort.h"
#include "tests/support/numbers.h"

enum { VOCAB = 300, LARGE = 128256 };

/* Roughly normal logits. */
static void fill(float *logits, uint32_t vocab, float scale, uint64_t seed) {
  for (uint32_t i = 0; i < vocab; i++) {
    float sum = 0;
    for (int j = 0; j < 6; j++) {
      sum += test_random_float(&seed);
    }
    logits[i] = sum * scale;
  }
}

static uint32_t defined(const test_boundary *b, const float *logits, uint32_t position, bool *failed) {
  uint32_t token;
  cr_assert_eq(mk_sampling_choose(test_boundary_memory(b, "sampling"), logits, test_boundary_memory(b, "logit_bias"),
                                  test_boundary_memory(b, "token_counts"), b->vocab, position, &token, failed),
               MK_OK);
  return token;
}

/* Draws at `count` positions from 3 on, with a prompt of two tokens; the machine feeds each token back. */
static void agree(test_boundary *b, const mk_sampling *sampling, const float *logits, uint32_t count) {
  uint32_t token = 1;
  test_boundary_sampling(b, sampling);
  (void)test_boundary_draw(b, logits, 0, 0, 2);
  for (uint32_t position = 1; position <= count; position++) {
    bool failed;
    uint32_t got = test_boundary_draw(b, logits, token, position, 2);
    uint32_t want = defined(b, logits, position + 1, &failed);
    cr_assert_eq(got, want, "%u SMs, position %u, T %g k %u p %g: token %u, not %u", b->sms, position,
                 sampling->temperature, sampling->top_k, sampling->top_p, got, want);
    cr_assert_eq(test_boundary_failed(b), failed);
    token = got;
  }
}

static const mk_logit_bias biases[] = {{3, 2.5f}, {17, -INFINITY}, {299, -4}};

/* Every filter alone and with the others. */
static mk_sampling combination(uint32_t i) {
  static const uint32_t ks[] = {0, 1, 2, 40, VOCAB - 1};
  static const double ps[] = {1, 0.9, 0.5, 0, 0.999}, ms[] = {0, 0.05, 1}, ts[] = {1, 0.3, 5, 0, 1e-30};
  mk_sampling s = MK_SAMPLING_OFF;
  s.seed = i;
  s.top_k = ks[i % 5];
  s.top_p = ps[i / 5 % 5];
  s.min_p = ms[i / 25 % 3];
  s.temperature = ts[i / 75 % 5];
  if (i / 375 % 2 == 1) {
    s.repetition = 1.3;
    s.presence = 0.5;
    s.frequency = 0.25;
    s.biases = biases;
    s.bias_count = sizeof biases / sizeof biases[0];
  }
  return s;
}

static void sweep(uint32_t sms, uint64_t order) {
  static float logits[VOCAB];
  test_boundary b;
  test_boundary_start(&b, VOCAB, sms);
  b.seed = order;
  for (uint32_t i = 0; i < 750; i += test_effort(7, 1)) { /* 7: every value of every filter all the same */
    mk_sampling sampling = combination(i);
    fill(logits, VOCAB, i % 3 == 0 ? 0.2f : 1.5f, i + 1);
    agree(&b, &sampling, logits, 3);
  }
  test_boundary_stop(&b);
}

Test(sampling_machine, one_sm) { sweep(1, 0); }
Test(sampling_machine, seven_sms) { sweep(7, 0); }
Test(sampling_machine, more_sms_than_row_tiles) { sweep(33, 0); }
Test(sampling_machine, any_order) { sweep(7, 99); }

/* Values that many tokens share, so that cuts fall among equals. */
Test(sampling_machine, ties) {
  static float logits[VOCAB];
  test_boundary b;
  test_boundary_start(&b, VOCAB, 5);
  for (uint32_t i = 0; i < 375; i += test_effort(7, 1)) {
    mk_sampling sampling = combination(i);
    uint64_t seed = i;
    for (uint32_t t = 0; t < VOCAB; t++) {
      logits[t] = i % 5 == 0 ? 2.5f : (float)test_random_below(&seed, 1 + i % 4) * (i % 2 == 0 ? -0.5f : 0.25f);
    }
    agree(&b, &sampling, logits, 3);
  }
  test_boundary_stop(&b);
}

/* Min-p at its edges: with the highest score alone, with all, and with penalties that reorder the scores. */
Test(sampling_machine, min_p_at_its_edges) {
  static const double ms[] = {1, 0.9, 0.3, 1e-3, 1e-30};
  static float logits[VOCAB];
  test_boundary b;
  test_boundary_start(&b, VOCAB, 3);
  for (uint32_t i = 0; i < 200; i++) {
    mk_sampling s = combination(i % 2 * 375);
    s.min_p = ms[i % 5];
    s.temperature = i % 3 == 0 ? 0.5 : 20;
    s.seed = i;
    fill(logits, VOCAB, i % 7 == 0 ? 0 : 1, i + 1);
    agree(&b, &s, logits, 3);
    cr_assert_eq(b.scanned, 0, "a front of random tokens is short");
  }
  test_boundary_stop(&b);
}

static const float *noise;
static int by_noise(const void *a, const void *b) {
  float x = noise[*(const uint32_t *)a], y = noise[*(const uint32_t *)b];
  return x < y ? -1 : x > y;
}

/* The lower the score, the better the draw: no token is dominated, and a front is as long as there are tokens. Whoever
 * cannot publish that all makes everybody look at all scores. */
Test(sampling_machine, fronts_that_overflow) {
  static float logits[VOCAB], g[VOCAB];
  static uint32_t order[VOCAB];
  static const struct {
    uint32_t sms, fronted, scans;
  } cases[] = {{1, 32, 0}, {1, 33, 1}, {1, VOCAB, 1}, {4, VOCAB, 1}};
  for (size_t n = 0; n < sizeof cases / sizeof cases[0]; n++) {
    test_boundary b;
    mk_sampling s = MK_SAMPLING_OFF;
    test_boundary_start(&b, VOCAB, cases[n].sms);
    s.temperature = 1;
    for (uint32_t i = 0; i < 40; i++) {
      bool failed;
      s.seed = i;
      s.min_p = i % 4 == 0 ? 1e-9 : 1 - 5e-6 * i; /* within the scores */
      for (uint32_t t = 0; t < VOCAB; t++) {
        g[t] = mk_draw_gumbel(mk_draw_key(i, 10), t);
        order[t] = t;
      }
      noise = g;
      qsort(order, VOCAB, sizeof *order, by_noise);
      for (uint32_t r = 0; r < VOCAB; r++) { /* scores differ by less than noise */
        logits[order[r]] = r + cases[n].fronted < VOCAB ? -50 : 1e-6f * (float)(VOCAB - r);
      }
      test_boundary_sampling(&b, &s);
      uint32_t got = test_boundary_draw(&b, logits, 1, 9, 2), want = defined(&b, logits, 10, &failed);
      cr_assert_eq(got, want, "case %zu, seed %u: %u, not %u", n, i, got, want);
      cr_assert_eq(b.scanned, cases[n].scans * b.sms, "case %zu, seed %u: %u draws looked at all scores", n, i,
                   b.scanned);
    }
    test_boundary_stop(&b);
  }
}

Test(sampling_machine, infinite_logits) {
  static float logits[VOCAB];
  test_boundary b;
  test_boundary_start(&b, VOCAB, 5);
  for (uint32_t i = 0; i < 750; i += 7) {
    mk_sampling sampling = combination(i);
    fill(logits, VOCAB, 1, i);
    logits[123] = INFINITY;
    logits[7] = -INFINITY;
    agree(&b, &sampling, logits, 2);
    cr_assert_eq(b.states[0].results[0], 123);
    logits[250] = INFINITY;
    agree(&b, &sampling, logits, 2);
    for (uint32_t t = 0; t < VOCAB; t++) {
      logits[t] = t % 3 == 0 ? -INFINITY : logits[t];
    }
    agree(&b, &sampling, logits, 2);
    for (uint32_t t = 0; t < VOCAB; t++) {
      logits[t] = -INFINITY;
    }
    agree(&b, &sampling, logits, 2);
  }
  test_boundary_stop(&b);
}

Test(sampling_machine, not_a_number_fails) {
  static float logits[VOCAB];
  test_boundary b;
  test_boundary_start(&b, VOCAB, 5);
  for (uint32_t i = 0; i < 750; i += 11) {
    mk_sampling sampling = combination(i);
    fill(logits, VOCAB, 1, i);
    logits[220] = NAN;
    logits[100] = -NAN;
    test_boundary_sampling(&b, &sampling);
    uint32_t token = test_boundary_draw(&b, logits, 5, 9, 4);
    cr_assert(test_boundary_failed(&b), "combination %u", i);
    cr_assert_eq(token, 100);
  }
  test_boundary_stop(&b);
}

Test(sampling_machine, inside_the_prompt_nothing_is_drawn) {
  static float logits[VOCAB];
  test_boundary b;
  mk_sampling sampling = combination(375 + 3);
  test_boundary_start(&b, VOCAB, 3);
  uint32_t *counts = test_boundary_memory(&b, "token_counts");
  for (uint32_t t = 0; t < VOCAB; t++) {
    logits[t] = NAN;
  }
  test_boundary_sampling(&b, &sampling);
  cr_assert_eq(test_boundary_draw(&b, logits, 9, 0, 3), MK_CANDIDATE_NONE);
  cr_assert_eq(test_boundary_draw(&b, logits, 40, 1, 3), MK_CANDIDATE_NONE);
  cr_assert(!test_boundary_failed(&b));
  fill(logits, VOCAB, 1, 3);
  uint32_t first = test_boundary_draw(&b, logits, 40, 2, 3);
  (void)test_boundary_draw(&b, logits, first, 3, 3);
  (void)test_boundary_draw(&b, logits, first, 4, 3);
  for (uint32_t t = 0; t < VOCAB; t++) {
    uint32_t want = (t == 9 || t == 40 ? MK_COUNT_PROMPT : 0) + (t == first ? 2 : 0);
    cr_assert_eq(counts[t], want, "token %u: 0x%x, not 0x%x", t, counts[t], want);
  }
  test_boundary_stop(&b);
}

/* A full vocabulary on a full machine; how often the rounds do not suffice. */
Test(sampling_machine, large_vocabulary, .timeout = MK_HANG_SECONDS) {
  static float logits[LARGE];
  static const struct {
    double temperature;
    uint32_t k;
    double p, m;
    float scale;
  } cases[] = {{1, 0, 1, 0, 2},      {1, 50, 1, 0, 2},           {1, 0, 0.9, 0, 2},
               {1, 0, 1, 0.1, 2},    {0.7, 50, 0.9, 0.05, 2},    {1, 50, 1, 0, 0.5f},
               {1, 0, 0.9, 0, 0.5f}, {1, 100000, 0.99, 0, 0.5f}, {2, 128255, 1, 0, 1}};
  test_boundary b;
  test_boundary_start(&b, LARGE, 132);
  uint32_t scanned = 0, rounds = 0, draws = 0, each = test_effort(1, 4);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    mk_sampling s = MK_SAMPLING_OFF;
    s.temperature = cases[i].temperature;
    s.top_k = cases[i].k;
    s.top_p = cases[i].p;
    s.min_p = cases[i].m;
    s.seed = i;
    for (uint32_t j = 0; j < each; j++) {
      fill(logits, LARGE, cases[i].scale, 10 * i + j);
      agree(&b, &s, logits, 2);
      scanned += b.scanned / b.sms;
      rounds += b.rounds / b.sms;
      draws++;
    }
  }
  fprintf(stderr, "large vocabulary: of %u last draws %u looked at all scores; %.2f rounds each\n", draws, scanned,
          (double)rounds / draws);
  test_boundary_stop(&b);
}

/* A case that only the search over all scores decides; every SM does that search. */
Test(sampling_machine, equal_logits_of_a_large_vocabulary, .timeout = MK_HANG_SECONDS) {
  static float logits[LARGE];
  test_boundary b;
  test_boundary_start(&b, LARGE, test_effort(6, 132));
  for (uint32_t t = 0; t < LARGE; t++) {
    logits[t] = 1;
  }
  mk_sampling s = MK_SAMPLING_OFF;
  s.temperature = 1;
  s.top_k = 77777;
  agree(&b, &s, logits, 1);
  s.top_p = 0.123;
  agree(&b, &s, logits, 1);
  s.top_k = 0;
  agree(&b, &s, logits, 1);
  test_boundary_stop(&b);
}
