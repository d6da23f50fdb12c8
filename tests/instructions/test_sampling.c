/* The arithmetic of sampling: its functions against the C library, its noise, and what is drawn against probabilities
 * in double precision. Chi-square tests print their p-values; seeds are fixed, so a test that passes passes always. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/boundary.h"
#include "tests/support/effort.h"
#include "tests/support/numbers.h"
#include "vm/widest.h"

enum { SMALL = 300, LARGE = 128256 };

static uint32_t draws(void) { return test_repeats(4000, 100000); }

static const double least_p = 1e-4;

Test(sampling, logarithm_and_exponential) {
  double log_error = 0, exp_error = 0;
  for (uint32_t bits = 0x1e000000; bits < 0x44000000; bits += 331) {
    float x = mk_float_of(bits);
    double want = log((double)x), error = fabs((double)mk_exact_log(x) - want);
    log_error = fmax(log_error, want == 0 ? error : error / fabs(want));
  }
  for (double x = 0; x > -80; x -= 1e-4) {
    exp_error = fmax(exp_error, fabs((double)mk_exact_exp((float)x) / exp((double)(float)x) - 1));
  }
  fprintf(stderr, "relative error: log %.2g, exp %.2g\n", log_error, exp_error);
  cr_assert_lt(log_error, 2e-7);
  cr_assert_lt(exp_error, 3e-7);
  cr_assert(mk_exact_exp(0) == 1 && mk_exact_log(1) == 0);
}

/* The upper tail of the chi-square distribution: the regularised incomplete gamma function Q(n / 2, x / 2). */
static double chi_square_p(double x, double n) {
  double a = n / 2, y = x / 2, front = exp(a * log(y) - y - lgamma(a));
  if (y < a + 1) {
    double term = 1 / a, sum = term;
    for (double k = a + 1; term > sum * 1e-16; k++) {
      term *= y / k;
      sum += term;
    }
    return 1 - front * sum;
  }
  double b = y + 1 - a, c = 1e300, d = 1 / b, h = d; /* Lentz's continued fraction */
  for (double i = 1; i < 10000; i++) {
    double an = -i * (i - a), change;
    b += 2;
    d = 1 / (an * d + b);
    c = b + an / c;
    change = d * c;
    h *= change;
    if (fabs(change - 1) < 1e-15) {
      break;
    }
  }
  return front * h;
}

/* Bins in order are joined until ten are expected in each. */
static double test_counts(const char *what, const double *expected, const uint32_t *observed, size_t bins) {
  double square = 0, want = 0, got = 0, classes = 0, last = 0;
  for (size_t i = 0; i < bins; i++) {
    want += expected[i];
    got += observed[i];
    if (want >= 10) {
      last = (got - want) * (got - want) / want;
      square += last;
      classes++;
      want = got = 0;
    }
  }
  double p = chi_square_p(square, fmax(1, classes - 1));
  fprintf(stderr, "%-44s chi-square %10.1f in %7.0f classes, p = %.4f\n", what, square, classes, p);
  cr_assert(want < 10 && got <= want + 6 * sqrt(want) + 6, "%s: %g draws of what is left, %g expected", what, got,
            want);
  cr_assert(p > least_p, "%s: p = %g", what, p);
  return p;
}

Test(sampling, chi_square_knows_known_values) {
  cr_assert(fabs(chi_square_p(3.841459, 1) - 0.05) < 1e-6);
  cr_assert(fabs(chi_square_p(124.3421, 100) - 0.05) < 1e-5);
  cr_assert(fabs(chi_square_p(80, 100) - 0.9297) < 1e-4);
}

/* The noise as a uniform number, exp(-exp(-g)). */
static double uniform(uint64_t seed, uint32_t position, uint32_t token) {
  return exp(-exp(-(double)mk_draw_gumbel(mk_draw_key(seed, position), token)));
}

static uint32_t cell(double u, uint32_t n) {
  double at = floor(u * n);
  return at < 0 ? 0 : at >= n ? n - 1 : (uint32_t)at;
}

/* One number, and pairs of neighbours along each of the three axes. */
Test(sampling, noise_is_uniform_and_independent) {
  enum { CELLS = 40, N = 1000000 };
  static uint32_t counts[4][CELLS * CELLS];
  static double expected[CELLS * CELLS];
  static const char *const names[] = {"noise", "noise of neighbouring tokens", "noise of neighbouring positions",
                                      "noise of neighbouring seeds"};
  for (uint32_t i = 0; i < N; i++) {
    uint32_t seed = i / 10000, position = i / 100 % 100, token = i % 100;
    double u = uniform(seed, position, token);
    uint32_t row = cell(u, CELLS) * CELLS;
    counts[0][cell(u, CELLS * CELLS)]++;
    counts[1][row + cell(uniform(seed, position, token + 1), CELLS)]++;
    counts[2][row + cell(uniform(seed, position + 1, token), CELLS)]++;
    counts[3][row + cell(uniform(seed + 1, position, token), CELLS)]++;
  }
  for (uint32_t i = 0; i < CELLS * CELLS; i++) {
    expected[i] = (double)N / (CELLS * CELLS);
  }
  for (uint32_t i = 0; i < 4; i++) {
    (void)test_counts(names[i], expected, counts[i], CELLS * CELLS);
  }
}

/* The highest of many, which decides draws from flat distributions: log(n) less than it is a Gumbel variable, too. */
Test(sampling, extremes_of_the_noise) {
  enum { N = 4096, CELLS = 100 };
  const uint32_t rounds = test_repeats(2000, 10000);
  static uint32_t counts[CELLS];
  static double expected[CELLS];
  for (uint32_t r = 0; r < rounds; r++) {
    uint64_t key = mk_draw_key(77, r);
    float highest = -INFINITY;
    for (uint32_t i = 0; i < N; i++) {
      float g = mk_draw_gumbel(key, i);
      highest = g > highest ? g : highest;
    }
    counts[cell(exp(-exp(log(N) - (double)highest)), CELLS)]++;
  }
  for (uint32_t i = 0; i < CELLS; i++) {
    expected[i] = (double)rounds / CELLS;
  }
  (void)test_counts("highest of 4096", expected, counts, CELLS);
}

/* A way to sample, in words of a user. */
typedef struct method {
  const char *name;
  mk_sampling sampling;
} method;

static const mk_logit_bias biases[] = {{5, 1.5f}, {9, -INFINITY}, {70, -2}};

#define OFF .top_p = 1, .repetition = 1
static const method methods[] = {
    {"temperature", {OFF, .temperature = 0.8}},
    {"top-k", {OFF, .temperature = 1, .top_k = 40}},
    {"top-p", {.repetition = 1, .temperature = 1, .top_p = 0.9}},
    {"min-p", {OFF, .temperature = 1.2, .min_p = 0.05}},
    {"top-k and top-p", {.repetition = 1, .temperature = 1, .top_k = 50, .top_p = 0.8}},
    {"top-k and min-p", {OFF, .temperature = 1.5, .top_k = 50, .min_p = 0.1}},
    {"top-p and min-p", {.repetition = 1, .temperature = 0.8, .top_p = 0.95, .min_p = 0.02}},
    {"top-k, top-p and min-p", {.repetition = 1, .temperature = 1.1, .top_k = 100, .top_p = 0.9, .min_p = 0.01}},
    {"penalties", {.top_p = 1, .temperature = 1, .repetition = 1.4, .presence = 0.3, .frequency = 0.2}},
    {"logit bias", {OFF, .temperature = 1, .biases = biases, .bias_count = 3}},
    {"penalties, bias, top-k, top-p and min-p",
     {.temperature = 0.9,
      .top_k = 60,
      .top_p = 0.9,
      .min_p = 0.01,
      .repetition = 1.3,
      .presence = 0.2,
      .frequency = 0.1,
      .biases = biases,
      .bias_count = 3}},
};
enum { METHODS = sizeof methods / sizeof methods[0] };

static float logits[LARGE];
static double scores[LARGE], probabilities[LARGE];
static uint32_t order[LARGE], counts[LARGE], observed[LARGE];

static void fill(uint32_t vocab, float scale, uint64_t seed) {
  for (uint32_t i = 0; i < vocab; i++) {
    float sum = 0;
    for (int j = 0; j < 6; j++) {
      sum += test_random_float(&seed);
    }
    logits[i] = sum * scale;
    counts[i] = i % 7 == 0 ? MK_COUNT_PROMPT : i % 5 == 0 ? i % 4 : 0;
  }
}

static int by_score(const void *a, const void *b) {
  uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
  return scores[x] != scores[y] ? (scores[x] > scores[y] ? -1 : 1) : x < y ? -1 : x > y;
}

/* Probabilities in double precision, as docs/SAMPLING.md defines them; returns how many tokens have one. */
static uint32_t reference(const mk_sampling *s, uint32_t vocab) {
  for (uint32_t i = 0; i < vocab; i++) {
    uint32_t generated = counts[i] & MK_COUNT_GENERATED;
    double y = (double)logits[i];
    y = counts[i] == 0 ? y : y > 0 ? y / s->repetition : y * s->repetition;
    scores[i] = y - (generated != 0 ? s->presence : 0) - s->frequency * generated;
    order[i] = i;
  }
  for (size_t i = 0; i < s->bias_count; i++) {
    scores[s->biases[i].token] += (double)s->biases[i].bias;
  }
  qsort(order, vocab, sizeof *order, by_score);
  uint32_t kept = s->top_k != 0 && s->top_k < vocab ? s->top_k : vocab;
  double highest = scores[order[0]], mass = 0, before = 0, total = 0;
  for (uint32_t i = 0; i < kept; i++) {
    mass += exp((scores[order[i]] - highest) / s->temperature);
  }
  for (uint32_t i = 0; i < kept; i++) {
    double weight = exp((scores[order[i]] - highest) / s->temperature);
    if ((s->top_p < 1 && before >= s->top_p * mass) || weight < s->min_p) {
      kept = i;
    }
    before += weight;
  }
  memset(probabilities, 0, sizeof probabilities);
  for (uint32_t i = 0; i < kept; i++) {
    total += exp((scores[order[i]] - highest) / s->temperature);
  }
  for (uint32_t i = 0; i < kept; i++) {
    probabilities[order[i]] = exp((scores[order[i]] - highest) / s->temperature) / total;
  }
  return kept;
}

static void judge(const method *m, uint32_t vocab) {
  char what[80];
  snprintf(what, sizeof what, "%u: %s", vocab, m->name);
  for (uint32_t i = 0; i < vocab; i++) {
    cr_assert(probabilities[i] != 0 || observed[i] == 0, "%s: token %u was drawn", what, i);
    probabilities[i] *= draws();
  }
  (void)test_counts(what, probabilities, observed, vocab);
}

/* Draws by a method on a machine of five SMs. */
static void draw_small(const method *m, uint64_t seed) {
  test_boundary b;
  mk_sampling s = m->sampling;
  s.seed = seed;
  fill(SMALL, 1.0f, seed);
  (void)reference(&s, SMALL);
  test_boundary_start(&b, SMALL, 5);
  for (uint32_t i = 0, count = draws(); i < count; i++) {
    uint32_t position = i % 200; /* of so many that the program has; then another seed */
    if (position == 0) {
      s.seed++;
      test_boundary_sampling(&b, &s);
    }
    memcpy(test_boundary_memory(&b, "token_counts"), counts, SMALL * sizeof *counts);
    observed[test_boundary_draw(&b, logits, 0, position, position + 1)]++;
  }
  test_boundary_stop(&b);
}

/* The number that a draw's key stands for, but for its last bits. */
static double draw_value(uint64_t key) {
  uint64_t bits = (key >> 63) != 0 ? key & ~(UINT64_C(1) << 63) : ~key;
  double value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

enum { GROUP = 64, GROUPS = (LARGE + GROUP - 1) / GROUP };

/* The ranks that a way to sample keeps, for many draws: in groups, in which only what is cheap is done for every
 * rank. */
typedef struct kept_ranks {
  uint32_t words[MK_SAMPLING_WORDS];
  uint32_t count;
  float highest;
  float distances[LARGE], scores[LARGE];
  uint64_t steps[GROUPS * GROUP]; /* what goes into the noise of the token; those beyond the last rank do no harm */
  uint64_t limits[LARGE];         /* of its noise bits, in units of win_scale */
  uint64_t group_limits[GROUPS];
} kept_ranks;

static void keep_ranks(kept_ranks *k, const mk_sampling *s, uint32_t count, const float *bias) {
  mk_sampling_words(s, LARGE, k->words);
  k->count = count;
  k->highest = mk_sample_score(k->words, logits[order[0]], counts[order[0]], bias[order[0]]);
  for (uint32_t i = 0; i < count; i++) {
    uint32_t t = order[i];
    k->scores[i] = mk_sample_score(k->words, logits[t], counts[t], bias[t]);
    k->distances[i] = mk_sample_distance(k->words, k->scores[i], k->highest);
    k->steps[i] = (t + UINT64_C(1)) * MK_DRAW_STEP;
    k->limits[i] = (uint64_t)(exp((double)k->distances[i]) * 0x1p40) + 1;
    uint64_t *group = &k->group_limits[i / GROUP];
    *group = k->limits[i] > *group ? k->limits[i] : *group;
  }
}

static uint64_t try_rank(const kept_ranks *k, uint64_t key, uint32_t i, uint64_t best) {
  uint64_t draw = mk_sample_draw(k->words, key, k->scores[i], order[i]);
  return draw > best && !mk_sample_drops(k->words, k->distances[i]) ? draw : best;
}

/* What the noise bits of a rank with limit 1 must not exceed for it to win against `best`: the noise is at most -log(x)
 * of the uniform number x that the bits stand for. */
static double win_scale(const kept_ranks *k, uint64_t best) {
  double inverse = (double)mk_sampling_float(k->words, MK_SAMPLING_INVERSE_TEMPERATURE);
  return exp((double)k->highest * inverse - draw_value(best)) * 1.001 * 0x1p23;
}

static uint64_t most_bits(double scale, uint64_t limit) {
  return (uint64_t)fmin(scale * (double)limit, 0x1.fffffffffffffp62);
}

/* Nearly all of the time goes here. The sign bits are gathered without a branch, eight ranks at a time where the
 * machine can. */
MK_WIDEST static bool any_may_win(const uint64_t *steps, uint64_t key, uint64_t most) {
  uint64_t signs = 0;
  for (uint32_t i = 0; i < GROUP; i++) {
    signs |= (mk_draw_mix(key + steps[i]) >> 1) - most - 1;
  }
  return signs >> 63 != 0;
}

/* The winner of a draw, by the functions that the machines use; what cannot win is passed over, in groups. */
static uint64_t draw_of(const kept_ranks *k, uint64_t key) {
  uint64_t best = 0;
  uint32_t first = k->count < GROUP ? k->count : GROUP;
  for (uint32_t i = 0; i < first; i++) {
    best = try_rank(k, key, i, best);
  }
  double scale = win_scale(k, best);
  for (; first < k->count; first += GROUP) {
    uint32_t size = k->count - first < GROUP ? k->count - first : GROUP;
    if (!any_may_win(k->steps + first, key, most_bits(scale, k->group_limits[first / GROUP]))) {
      continue;
    }
    for (uint32_t i = first; i < first + size; i++) {
      if (mk_draw_mix(key + k->steps[i]) >> 1 <= most_bits(scale, k->limits[i])) {
        best = try_rank(k, key, i, best);
      }
    }
    scale = win_scale(k, best);
  }
  return best;
}

/* The draws of `s` over the `count` ranks that it keeps, of which a few are also drawn as the host does. */
static void draw_large(const mk_sampling *s, uint32_t count) {
  kept_ranks *k;
  float *bias = NULL;
  cr_assert_eq(mk_alloc(1, sizeof *k, &k), MK_OK);
  cr_assert_eq(mk_alloc(LARGE, sizeof *bias, &bias), MK_OK);
  for (size_t i = 0; i < s->bias_count; i++) {
    bias[s->biases[i].token] = s->biases[i].bias;
  }
  keep_ranks(k, s, count, bias);
  const uint32_t checked = test_effort(5, 20);
  for (uint32_t n = 0, all = draws(); n < all; n++) {
    uint32_t have = mk_rank_token(draw_of(k, mk_draw_key(s->seed, n))), token;
    bool failed;
    observed[have]++;
    if (n < checked) {
      cr_assert_eq(mk_sampling_choose(k->words, logits, bias, counts, LARGE, n, &token, &failed), MK_OK);
      cr_assert(!failed && token == have, "draw %u: %u, not %u", n, have, token);
    }
  }
  mk_free(bias);
  mk_free(k);
}

#define DISTRIBUTION(name, index)                                \
  Test(sampling, name##_of_300, .timeout = MK_HANG_SECONDS) {    \
    draw_small(&methods[index], 40 + (index));                   \
    judge(&methods[index], SMALL);                               \
  }                                                              \
  Test(sampling, name##_of_128256, .timeout = MK_HANG_SECONDS) { \
    mk_sampling s = methods[index].sampling;                     \
    s.seed = 70 + (index);                                       \
    fill(LARGE, 1.4f, s.seed);                                   \
    draw_large(&s, reference(&s, LARGE));                        \
    judge(&methods[index], LARGE);                               \
  }

DISTRIBUTION(temperature, 0)
DISTRIBUTION(top_k, 1)
DISTRIBUTION(top_p, 2)
DISTRIBUTION(min_p, 3)
DISTRIBUTION(top_k_top_p, 4)
DISTRIBUTION(top_k_min_p, 5)
DISTRIBUTION(top_p_min_p, 6)
DISTRIBUTION(top_k_top_p_min_p, 7)
DISTRIBUTION(penalties, 8)
DISTRIBUTION(logit_bias, 9)
DISTRIBUTION(everything, 10)

/* The edges, by the definition: who is never and who is always drawn. */
static uint32_t drawn(mk_sampling s, uint32_t vocab, uint32_t position) {
  uint32_t words[MK_SAMPLING_WORDS], token;
  bool failed;
  cr_assert_eq(mk_sampling_check(&s, vocab), MK_OK, "%s", mk_error_message());
  mk_sampling_words(&s, vocab, words);
  cr_assert_eq(mk_sampling_choose(words, logits, NULL, NULL, vocab, position, &token, &failed), MK_OK);
  cr_assert(!failed);
  return token;
}

Test(sampling, edges) {
  fill(SMALL, 0.3f, 5);
  logits[77] = logits[211] = 4;
  static const method always[] = {{"temperature 0", {OFF}},
                                  {"top-k 1", {OFF, .temperature = 2, .top_k = 1}},
                                  {"top-p 0", {.repetition = 1, .temperature = 2}},
                                  {"temperature 1e-30 and top-k 1", {OFF, .temperature = 1e-30, .top_k = 1}}};
  for (uint32_t i = 0; i < 200; i++) {
    for (size_t m = 0; m < sizeof always / sizeof always[0]; m++) {
      cr_assert_eq(drawn(always[m].sampling, SMALL, i), 77, "%s", always[m].name);
    }
  }
  /* Filters that keep everything draw what no filter draws; min-p 1 leaves the equals at the top, each alike; at a tiny
   * temperature their noise is lost, and the lowest index wins. */
  uint32_t seen[2] = {0};
  for (uint32_t i = 0; i < 400; i++) {
    mk_sampling plain = {OFF, .temperature = 1}, wide = {OFF, .temperature = 1, .top_k = SMALL},
                wider = {.top_p = 0.99999999999, .repetition = 1, .temperature = 1, .top_k = SMALL + 5, .min_p = 1e-30};
    uint32_t token = drawn(plain, SMALL, i);
    cr_assert_eq(drawn(wide, SMALL, i), token);
    cr_assert_eq(drawn(wider, SMALL, i), token);
    mk_sampling cold = {OFF, .temperature = 1e-30}, equals = {OFF, .temperature = 3, .min_p = 1};
    cr_assert_eq(drawn(cold, SMALL, i), 77);
    token = drawn(equals, SMALL, i);
    cr_assert(token == 77 || token == 211, "token %u", token);
    seen[token == 211]++;
  }
  cr_assert(seen[0] > 150 && seen[1] > 150, "%u and %u", seen[0], seen[1]);
}

Test(sampling, infinite_logits) {
  fill(SMALL, 1, 6);
  logits[77] = INFINITY;
  for (uint32_t i = 0; i < 200; i++) {
    cr_assert_eq(drawn((mk_sampling){OFF, .temperature = 1}, SMALL, i), 77);
  }
  logits[211] = INFINITY;
  cr_assert_eq(drawn((mk_sampling){OFF}, SMALL, 0), 77);
  for (uint32_t i = 0; i < 200; i++) {
    cr_assert_eq(drawn((mk_sampling){OFF, .temperature = 1}, SMALL, i), 77);
    cr_assert_eq(drawn((mk_sampling){OFF, .temperature = 1, .min_p = 0.5}, SMALL, i), 77);
  }
  for (uint32_t t = 0; t < SMALL; t++) {
    logits[t] = -INFINITY;
  }
  cr_assert_eq(drawn((mk_sampling){OFF, .temperature = 1}, SMALL, 0), 0);
}

/* The smallest temperatures that a float has: 1 / T is not one, and a score of 0 must not become NaN. */
Test(sampling, temperatures_next_to_zero) {
  fill(SMALL, 1, 11);
  logits[42] = 0;
  for (uint32_t t = 0; t < SMALL; t++) {
    logits[t] = t == 42 ? 0 : -fabsf(logits[t]) - 1e-30f;
  }
  for (uint32_t i = 0; i < 50; i++) {
    cr_assert_eq(drawn((mk_sampling){OFF, .temperature = 1e-40}, SMALL, i), 42);
    cr_assert_eq(drawn((mk_sampling){OFF, .temperature = 1e-40, .min_p = 0.1}, SMALL, i), 42);
  }
}

/* Keys order as scores do where the noise does not count, and none is 0 or that of a NaN. */
Test(sampling, draw_keys_are_ordered) {
  static const float values[] = {-INFINITY, -3e38f, -1, -1e-45f, 0, 1e-45f, 1, 1.0000001f, 3e38f, INFINITY};
  uint64_t last = 0;
  for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
    uint64_t key = mk_draw_rank(values[i], 1e30f, 0, 9);
    cr_assert(key > last, "%g", (double)values[i]);
    cr_assert_eq(mk_rank_token(key), 9);
    cr_assert_gt(mk_draw_rank(values[i], 1e30f, 0, 8), key, "the lower index first");
    cr_assert_lt(key >> 32, MK_DRAW_FAILED_HIGH);
    last = key;
  }
  cr_assert_gt(mk_draw_failed(0xfffff), last);
  cr_assert_gt(mk_draw_failed(3), mk_draw_failed(4));
}

Test(sampling, equal_logits_are_drawn_alike) {
  for (uint32_t i = 0; i < SMALL; i++) {
    logits[i] = -3.25f;
    probabilities[i] = 30000.0 / SMALL;
  }
  for (uint32_t i = 0; i < 30000; i++) {
    observed[drawn((mk_sampling){OFF, .temperature = 0.7, .seed = 9}, SMALL, i)]++;
  }
  (void)test_counts("all equal", probabilities, observed, SMALL);
  memset(observed, 0, sizeof observed);
  for (uint32_t i = 0; i < 2000; i++) {
    observed[drawn((mk_sampling){OFF, .temperature = 0.7, .top_k = 10}, SMALL, i)]++;
  }
  for (uint32_t i = 0; i < SMALL; i++) {
    cr_assert_eq(i < 10, observed[i] != 0, "token %u: equals are kept from the lowest index on", i);
  }
}

Test(sampling, refuses_what_makes_no_sense) {
  const struct {
    mk_sampling sampling;
    const char *words;
  } bad[] = {{{OFF, .temperature = -1}, "temperature is -1"},
             {{OFF, .temperature = NAN}, "temperature"},
             {{OFF, .temperature = 1001}, "1001"},
             {{.repetition = 1, .top_p = 1.5}, "top-p is 1.5"},
             {{OFF, .min_p = -0.1}, "min-p is -0.1"},
             {{.top_p = 1, .repetition = 0}, "repetition penalty is 0"},
             {{OFF, .presence = 1e9}, "presence"},
             {{OFF, .frequency = -INFINITY}, "frequency"},
             {{OFF, .biases = (mk_logit_bias[]){{SMALL, 1}}, .bias_count = 1}, "token 300"},
             {{OFF, .biases = (mk_logit_bias[]){{1, INFINITY}}, .bias_count = 1}, "logit bias is inf"},
             {{OFF, .biases = (mk_logit_bias[]){{1, 1}, {2, 1}, {1, 2}}, .bias_count = 3}, "token 1 has two"},
             {{OFF, .biases = biases, .bias_count = MK_MOST_BIASES + 1}, "1025"}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    cr_assert_eq(mk_sampling_check(&bad[i].sampling, SMALL), MK_ERR_USAGE, "%zu", i);
    cr_assert_not_null(strstr(mk_error_message(), bad[i].words), "`%s` is not in: %s", bad[i].words,
                       mk_error_message());
  }
}

Test(sampling, log_probabilities) {
  mk_logprob top[20];
  double logprob, sum = 0, total = 0;
  fill(SMALL, 1, 8);
  logits[4] = logits[200] = 50;
  logits[9] = -INFINITY;
  for (uint32_t i = 0; i < SMALL; i++) {
    sum += exp((double)logits[i] - 50);
  }
  for (uint32_t i = 0; i < SMALL; i++) {
    mk_logprobs(logits, SMALL, i, 20, &logprob, top);
    double want = (double)logits[i] - 50 - log(sum);
    cr_assert(logprob == want || fabs(logprob - want) < 1e-12, "token %u: %g, not %g", i, logprob, want);
    total += exp(logprob);
  }
  cr_assert(fabs(total - 1) < 1e-12);
  cr_assert(top[0].token == 4 && top[1].token == 200 && top[0].logprob == top[1].logprob);
  for (uint32_t i = 2; i < 20; i++) {
    cr_assert(top[i].logprob <= top[i - 1].logprob && logits[top[i].token] < 50);
  }
  mk_ranking ranking = {.most = 20};
  mk_rank_logits(logits, SMALL, 200, &ranking);
  cr_assert(ranking.rank == 2 && ranking.count == 20 && ranking.logprob == top[1].logprob);
  cr_assert(ranking.top[0].token == 4 && ranking.top[19].logprob == top[19].logprob);
  mk_rank_logits(logits, 3, 1, &ranking);
  cr_assert_eq(ranking.count, 3);
  logits[7] = INFINITY;
  mk_logprobs(logits, SMALL, 7, 2, &logprob, top);
  cr_assert(logprob == 0 && top[0].token == 7 && top[0].logprob == 0 && isinf(top[1].logprob));
  mk_logprobs(logits, 3, 1, 5, &logprob, top);
  cr_assert(top[2].token != UINT32_MAX && top[3].token == UINT32_MAX && top[4].token == UINT32_MAX);
}
