/* Sampling on the GPU: every token is the one that the definition draws from the logits that the GPU itself computed;
 * one launch for all tokens gives what a launch for each gives; repeats are the same bit for bit.
 *
 * Checked at vocabularies of 512 and 128,256: each filter, alone and with others; min-p from 1 (the highest score
 * alone) to 1e-30 (all), with and without penalties; ties (all tokens that are left have a score of -inf; noise lost at
 * a tiny temperature); a front that overflows, by biases that make each of 64 tokens of one SM a better draw the lower
 * its score; and SMs that have more tokens than a warp goes through at a time. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "models/synth.h"
#include "tests/gpu/gpu_test.h"
#include "tools/lib/compare.h"

enum { PROMPT = 7, CHECKED = 24, LAUNCHED = 256, LAUNCHES = 3, BANNED = 512, FRONTED = 64 };

#define OFF .top_p = 1, .repetition = 1
static const mk_logit_bias biases[] = {{7, 3}, {8, -INFINITY}, {100, -2}};
static mk_logit_bias banned[BANNED]; /* tokens 0 to 511: at that vocabulary, all */
static const char *shared;           /* GPUs that share the model; NULL: the GPU under test has it */
static uint32_t sms;                 /* of each of them; 0: as many as it has */
static bool wide;                    /* whether the shape's programs of more than MK_MAX_ROWS rows draw, too */
static const struct {
  const char *name;
  mk_sampling sampling;
} ways[] = {
    {"greedy", {OFF}},
    {"temperature", {OFF, .temperature = 1, .seed = 1}},
    {"min-p", {OFF, .temperature = 1, .min_p = 0.05, .seed = 2}},
    {"top-k 50", {OFF, .temperature = 1, .top_k = 50, .seed = 3}},
    {"top-k 1", {OFF, .temperature = 1, .top_k = 1, .seed = 3}},
    {"top-p 0.9", {.repetition = 1, .temperature = 1, .top_p = 0.9, .seed = 4}},
    {"top-k 50, top-p 0.9", {.repetition = 1, .temperature = 0.8, .top_k = 50, .top_p = 0.9, .seed = 5}},
    {"penalties", {.top_p = 1, .temperature = 1, .repetition = 1.2, .presence = 0.5, .frequency = 0.2, .seed = 6}},
    {"penalties at temperature 0", {.top_p = 1, .repetition = 1.3}},
    {"min-p 1", {OFF, .temperature = 1, .min_p = 1, .seed = 8}},
    {"min-p 0.9 at temperature 5", {OFF, .temperature = 5, .min_p = 0.9, .seed = 9}},
    {"min-p 1e-30", {OFF, .temperature = 2, .min_p = 1e-30, .seed = 10}},
    {"min-p and penalties",
     {.top_p = 1, .temperature = 1, .min_p = 0.2, .repetition = 1.3, .frequency = 1, .seed = 11}},
    {"min-p and biases", {OFF, .temperature = 1, .min_p = 0.1, .biases = biases, .bias_count = 3, .seed = 12}},
    {"temperature 1e-30", {OFF, .temperature = 1e-30, .seed = 13}},
    {"512 banned tokens", {OFF, .temperature = 1, .biases = banned, .bias_count = BANNED, .seed = 14}},
    {"512 banned tokens, min-p",
     {OFF, .temperature = 1, .min_p = 0.5, .biases = banned, .bias_count = BANNED, .seed = 15}},
    {"512 banned tokens, top-k",
     {OFF, .temperature = 1, .top_k = 5, .biases = banned, .bias_count = BANNED, .seed = 16}},
    {"everything",
     {.temperature = 1.1,
      .top_k = 100,
      .top_p = 0.95,
      .min_p = 0.01,
      .repetition = 1.1,
      .presence = 0.1,
      .frequency = 0.1,
      .biases = biases,
      .bias_count = 3,
      .seed = 7}}};
enum { WAYS = sizeof ways / sizeof ways[0] };

typedef struct drawn {
  const mk_config *config;
  const mk_sampling *sampling; /* NULL: only collect */
  uint32_t *counts;
  float *bias;
  uint32_t tokens[LAUNCHED];
  uint32_t count, wrong;
} drawn;

static const uint32_t prompt[PROMPT] = {1, 50, 60, 50, 7, 9, 200};

static bool take(void *user, uint32_t token, const float *logits) {
  drawn *d = user;
  if (d->sampling != NULL) {
    uint32_t words[MK_SAMPLING_WORDS], want;
    bool nan;
    mk_sampling_words(d->sampling, d->config->vocab, words);
    mk_status status =
        mk_sampling_choose(words, logits, d->bias, d->counts, d->config->vocab, PROMPT + d->count, &want, &nan);
    d->wrong += status != MK_OK || nan || want != token;
  }
  d->counts[token]++;
  d->tokens[d->count++] = token;
  return d->count < LAUNCHED;
}

static bool start(drawn *d, const mk_config *config, const mk_sampling *sampling) {
  *d = (drawn){.config = config, .sampling = sampling};
  d->counts = calloc(config->vocab, sizeof *d->counts);
  d->bias = calloc(config->vocab, sizeof *d->bias);
  if (d->counts == NULL || d->bias == NULL) {
    return false;
  }
  for (uint32_t i = 0; i < PROMPT; i++) {
    d->counts[prompt[i]] = MK_COUNT_PROMPT;
  }
  for (size_t i = 0; sampling != NULL && i < sampling->bias_count; i++) {
    d->bias[sampling->biases[i].token] = sampling->biases[i].bias;
  }
  return true;
}

static void end(drawn *d) {
  free(d->counts);
  free(d->bias);
}

/* Tokens of the engine, whose launches are one per token (`check`), or one for all, LAUNCHES times. */
static bool generate(mk_engine *engine, const mk_config *config, size_t way, bool check, uint32_t *out) {
  drawn d;
  uint32_t count = check ? CHECKED : LAUNCHED;
  bool good = expect_ok(mk_engine_set_sampling(engine, &ways[way].sampling), ways[way].name);
  for (uint32_t i = 0; good && i < (check ? 1 : LAUNCHES); i++) {
    good = start(&d, config, check ? &ways[way].sampling : NULL) &&
           expect_ok(mk_engine_generate(engine, prompt, PROMPT, count, take, &d), ways[way].name) &&
           expect(d.wrong == 0, ways[way].name, "a token is not the one that the definition draws") &&
           (i == 0 ||
            expect(memcmp(out, d.tokens, count * sizeof *out) == 0, ways[way].name, "a repeat gave other tokens"));
    memcpy(out, d.tokens, sizeof d.tokens);
    end(&d);
  }
  return good;
}

/* Way 0 is greedy and has a program of its own. */
static void test_ways(const mk_config *config, size_t first, size_t end) {
  static uint32_t checked[LAUNCHED], launched[LAUNCHED];
  mk_engine *engines[2] = {NULL, NULL};
  mk_engine_options options = {.device = shared != NULL ? shared : device,
                               .sms = sms,
                               .synth = config,
                               .synth_seed = 5,
                               .max_seq = PROMPT + LAUNCHED + 1,
                               .kv = kv,
                               .sampling = &ways[first].sampling};
  bool good = true;
  for (int check = 0; good && check < 2; check++) {
    options.want_logits = check != 0;
    good = expect_ok(mk_engine_open(NULL, &options, &engines[check]), ways[first].name);
  }
  for (size_t w = first; good && w < end; w++) {
    if (generate(engines[1], config, w, true, checked) && generate(engines[0], config, w, false, launched)) {
      expect(memcmp(checked, launched, CHECKED * sizeof *checked) == 0, ways[w].name,
             "one launch and a launch per token differ");
    }
  }
  mk_engine_close(engines[0]);
  mk_engine_close(engines[1]);
}

/* The first token's logits, and the token. */
typedef struct first_step {
  float *logits;
  uint32_t vocab, token;
} first_step;

static bool keep_first(void *user, uint32_t token, const float *logits) {
  first_step *first = user;
  memcpy(first->logits, logits, first->vocab * sizeof *logits);
  first->token = token;
  return false;
}

static const float *noise;
static int by_noise(const void *a, const void *b) {
  float x = noise[((const mk_logit_bias *)a)->token], y = noise[((const mk_logit_bias *)b)->token];
  return x < y ? -1 : x > y;
}

/* Of tokens 0 to 63, which one SM has where it has that many, each is a better draw than all that score higher. */
static void test_overflow(const char *shape, const mk_config *config) {
  static mk_logit_bias steps[FRONTED];
  float g[FRONTED], *bias = calloc(config->vocab, sizeof *bias);
  first_step first = {.logits = calloc(config->vocab, sizeof *first.logits), .vocab = config->vocab};
  mk_sampling sampling = {OFF, .temperature = 1, .min_p = 0.999, .seed = 20};
  mk_engine_options options = {.device = shared != NULL ? shared : device,
                               .sms = sms,
                               .synth = config,
                               .synth_seed = 5,
                               .max_seq = PROMPT + 2,
                               .kv = kv,
                               .want_logits = true,
                               .sampling = &sampling};
  mk_engine *engine = NULL;
  bool good = bias != NULL && first.logits != NULL && expect_ok(mk_engine_open(NULL, &options, &engine), shape) &&
              expect_ok(mk_engine_generate(engine, prompt, PROMPT, 1, keep_first, &first), shape);
  for (uint32_t t = 0; t < FRONTED; t++) {
    g[t] = mk_draw_gumbel(mk_draw_key(sampling.seed, PROMPT), t);
    steps[t].token = t;
  }
  noise = g;
  qsort(steps, FRONTED, sizeof *steps, by_noise);
  for (uint32_t r = 0; good && r < FRONTED; r++) {
    bias[steps[r].token] = steps[r].bias = 500 + 2e-4f * (float)(FRONTED - r) - first.logits[steps[r].token];
  }
  sampling.biases = steps;
  sampling.bias_count = FRONTED;
  for (uint32_t m = 0; good && m < 20; m++) {
    uint32_t words[MK_SAMPLING_WORDS], want;
    bool nan;
    sampling.min_p = 1 - 6e-4 * m;
    mk_sampling_words(&sampling, config->vocab, words);
    good = expect_ok(mk_engine_set_sampling(engine, &sampling), shape) &&
           expect_ok(mk_engine_generate(engine, prompt, PROMPT, 1, keep_first, &first), shape) &&
           expect_ok(mk_sampling_choose(words, first.logits, bias, NULL, config->vocab, PROMPT, &want, &nan), shape) &&
           expect(first.token == want && want < FRONTED, shape, "a front that overflows gives another token");
  }
  mk_engine_close(engine);
  free(first.logits);
  free(bias);
}

/* ---- Several rows ---- */

enum { SIDE_BY_SIDE = 2 * (WAYS - 1), MOST_DRAWN = 24 };

typedef struct beside {
  const mk_config *config;
  uint32_t prompts[SIDE_BY_SIDE][PROMPT];
  mk_sequence sequences[SIDE_BY_SIDE];
  drawn of[SIDE_BY_SIDE];
  uint32_t tokens[SIDE_BY_SIDE][MOST_DRAWN], counts[SIDE_BY_SIDE]; /* as the first run had them */
  bool learns;
  uint32_t first; /* of those that run */
} beside;

static bool take_beside(void *user, size_t index, uint32_t token, const float *logits) {
  beside *b = user;
  size_t i = b->first + index;
  drawn *d = &b->of[i];
  uint32_t words[MK_SAMPLING_WORDS], want, at = d->count, length = (uint32_t)b->sequences[i].prompt_count;
  bool nan;
  if (logits != NULL) {
    mk_sampling_words(d->sampling, d->config->vocab, words);
    mk_status status =
        mk_sampling_choose(words, logits, d->bias, d->counts, d->config->vocab, length + at, &want, &nan);
    d->wrong += status != MK_OK || nan || want != token;
  }
  if (b->learns) {
    b->tokens[i][at] = token;
  } else {
    d->wrong += b->tokens[i][at] != token;
  }
  d->counts[token]++;
  d->tokens[d->count++] = token;
  return true;
}

static void end_beside(void *user, size_t index, mk_status status) {
  beside *b = user;
  b->of[b->first + index].wrong += status != MK_OK;
}

/* Prompts of 1 to PROMPT tokens, answers of some length: rows come free, and others join. */
static void make_beside(beside *b, const mk_config *config) {
  b->config = config;
  for (uint32_t i = 0; i < SIDE_BY_SIDE; i++) {
    uint32_t length = 1 + (i * 5 + 3) % PROMPT;
    for (uint32_t t = 0; t < length; t++) {
      b->prompts[i][t] = (prompt[t] + 37 * i) % config->vocab;
    }
    b->sequences[i] = (mk_sequence){.prompt = b->prompts[i],
                                    .prompt_count = length,
                                    .n_predict = 3 + (i * 7) % (MOST_DRAWN - 3),
                                    .sampling = &ways[1 + i % (WAYS - 1)].sampling};
  }
}

/* Sequences [first, first + count) together; `learns`: what they draw is what others are compared with. */
static bool run_beside(mk_engine *engine, beside *b, uint32_t first, uint32_t count, bool learns, const char *name) {
  const mk_sequence_calls calls = {.token = take_beside, .ended = end_beside, .user = b};
  bool good = true;
  b->first = first;
  b->learns = learns;
  for (uint32_t i = first; good && i < first + count; i++) {
    good = start(&b->of[i], b->config, b->sequences[i].sampling);
    memset(b->of[i].counts, 0, b->config->vocab * sizeof(uint32_t));
    for (size_t t = 0; t < b->sequences[i].prompt_count; t++) {
      b->of[i].counts[b->prompts[i][t]] = MK_COUNT_PROMPT;
    }
  }
  good = good && expect_ok(mk_engine_generate_all(engine, b->sequences + first, count, &calls), name);
  for (uint32_t i = first; i < first + count; i++) {
    if (b->of[i].wrong != 0 || b->of[i].count != b->sequences[i].n_predict) {
      printf("%s: sequence %u (%s): %u of %u tokens are wrong\n", name, i, ways[1 + i % (WAYS - 1)].name,
             b->of[i].wrong, b->of[i].count);
      good = false;
    }
    end(&b->of[i]);
  }
  return expect(good, name,
                "a token is not the one that the definition draws, or another one than alone or in company");
}

static bool open_beside(const mk_config *config, uint32_t rows, bool logits, mk_engine **engine) {
  mk_engine_options options = {.device = shared != NULL ? shared : device,
                               .sms = sms,
                               .synth = config,
                               .synth_seed = 5,
                               .max_seq = PROMPT + MOST_DRAWN + 1,
                               .kv = kv,
                               .rows = rows,
                               .slots = rows > MK_MAX_ROWS ? rows : 0,
                               .want_logits = logits,
                               .gpu_deadline_ms = deadline_ms,
                               .sampling = &ways[1].sampling};
  return expect_ok(mk_engine_open(NULL, &options, engine), "rows that draw");
}

/* By the definition, from the GPU's own logits, a launch for each token; then the same in longer launches, with other
 * numbers of rows, and each alone. */
static void test_beside(const char *shape, const mk_config *config, bool whole) {
  static const uint32_t rows[] = {16, 2, 4, 8, 64, 128};
  static beside b;
  mk_engine *engine;
  char name[64];
  make_beside(&b, config);
  snprintf(name, sizeof name, "%s, 16 rows that draw", shape);
  if (open_beside(config, 16, true, &engine)) {
    run_beside(engine, &b, 0, SIDE_BY_SIDE, true, name);
    mk_engine_close(engine);
  }
  for (size_t r = 0; r < (whole ? sizeof rows / sizeof rows[0] : 1); r++) {
    if (rows[r] > MK_MAX_ROWS && !wide) {
      continue;
    }
    snprintf(name, sizeof name, "%s, %u rows that draw, long launches", shape, rows[r]);
    if (open_beside(config, rows[r], false, &engine)) {
      bool good = run_beside(engine, &b, 0, SIDE_BY_SIDE, false, name);
      for (uint32_t i = 0; good && rows[r] == 16 && i < SIDE_BY_SIDE; i++) {
        snprintf(name, sizeof name, "%s, alone", shape);
        good = run_beside(engine, &b, i, 1, false, name);
      }
      mk_engine_close(engine);
    }
  }
}

/* ---- Rankings ---- */

enum { RANKED = 5, RANKED_PROMPT = 11, RANKED_TOKENS = 6, MOST_RANKINGS = RANKED_PROMPT + RANKED_TOKENS };

typedef struct ranking_rig {
  uint32_t vocab;
  const uint32_t *prompt;
  mk_ranking now[RANKED], kept[RANKED][MOST_RANKINGS];
  uint32_t counts[RANKED], wrong;
} ranking_rig;

/* Of the host's, from the same logits: the same places, and the sum in another order. */
static void take_ranking(ranking_rig *r, size_t sequence, uint32_t token, const float *logits) {
  const mk_ranking *got = &r->now[sequence];
  r->kept[sequence][r->counts[sequence]++] = *got;
  if (logits == NULL) {
    return;
  }
  mk_ranking want = {.most = got->most};
  mk_rank_logits(logits, r->vocab, token, &want);
  bool same = want.rank == got->rank && want.count == got->count && fabs(want.logprob - got->logprob) < 1e-9;
  for (uint32_t i = 0; same && i < want.count; i++) {
    same = want.top[i].token == got->top[i].token && fabs(want.top[i].logprob - got->top[i].logprob) < 1e-9;
  }
  r->wrong += !same;
}

static bool ranked_token(void *user, size_t sequence, uint32_t token, const float *logits) {
  take_ranking(user, sequence, token, logits);
  return true;
}

static void ranked_prompt(void *user, size_t sequence, uint32_t position, const float *logits) {
  ranking_rig *r = user;
  take_ranking(r, sequence, r->prompt[position + 1], logits);
}

static void ranked_end(void *user, size_t sequence, mk_status status) {
  (void)user;
  (void)sequence;
  (void)expect_ok(status, "a sequence with rankings");
}

/* Generates with rankings; `logits`: with logits, too, to compare with. */
static bool rank_sequences(mk_engine *engine, const uint32_t *given, bool logits, ranking_rig *r) {
  static const uint32_t most[RANKED] = {20, 0, 1, 5, 20};
  static mk_sequence sequences[RANKED];
  *r = (ranking_rig){.vocab = mk_engine_config(engine)->vocab, .prompt = given};
  for (uint32_t i = 0; i < RANKED; i++) {
    r->now[i].most = most[i];
    sequences[i] = (mk_sequence){.prompt = given,
                                 .prompt_count = RANKED_PROMPT,
                                 .n_predict = RANKED_TOKENS,
                                 .sampling = &ways[1 + i].sampling,
                                 .logits = logits,
                                 .ranking = &r->now[i],
                                 .prompt_logits = i == 4};
  }
  const mk_sequence_calls calls = {.token = ranked_token, .prompt = ranked_prompt, .ended = ranked_end, .user = r};
  return expect_ok(mk_engine_generate_all(engine, sequences, RANKED, &calls), "rankings") && r->wrong == 0;
}

static void test_rankings(const char *shape, const mk_config *config) {
  static const uint32_t rows[] = {1, 16, 64};
  static ranking_rig with, without;
  uint32_t given[RANKED_PROMPT];
  for (uint32_t i = 0; i < RANKED_PROMPT; i++) {
    given[i] = (i * 41 + 3) % config->vocab;
  }
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    mk_engine *engine;
    char name[64];
    snprintf(name, sizeof name, "%s, %u rows: rankings", shape, rows[i]);
    if ((rows[i] <= MK_MAX_ROWS || wide) && open_beside(config, rows[i], false, &engine)) {
      expect(rank_sequences(engine, given, true, &with), name, "a ranking is not that of the logits");
      expect(rank_sequences(engine, given, false, &without) && memcmp(with.kept, without.kept, sizeof with.kept) == 0 &&
                 with.counts[4] == MOST_RANKINGS - 1,
             name, "rankings are others without logits");
      mk_engine_close(engine);
    }
  }
}

/* ---- Instruction by instruction ---- */

static void fill_banned(void) {
  for (uint32_t i = 0; i < BANNED; i++) {
    banned[i] = (mk_logit_bias){.token = i, .bias = -INFINITY};
  }
}

bool set_ways(mk_engine *engine, size_t first, const char *name) {
  bool good = true;
  fill_banned();
  for (uint32_t i = 0; good && i < mk_program_slots(mk_engine_program(engine)); i++) {
    good = expect_ok(mk_engine_set_slot_sampling(engine, i, &ways[(first + i) % WAYS].sampling), name);
  }
  return good;
}

const mk_sampling *way_that_draws(void) { return &ways[1].sampling; }

/* Every slot draws at each step; sequences begin at their first position. */
static bool compare_steps(mk_engine *machine, mk_engine *oracle, size_t first, const char *name) {
  enum { STEPS = 5 };
  const uint32_t rows = mk_program_rows(mk_engine_program(machine)), vocab = mk_engine_config(machine)->vocab;
  mk_compare *compare = NULL;
  bool good = set_ways(machine, first, name);
  good = good && expect_ok(mk_compare_engines(machine, oracle, &compare), name);
  for (uint32_t step = 0; good && step < STEPS; step++) {
    mk_step_row plan[MK_MOST_DRAWING_ROWS];
    uint32_t results[MK_MOST_DRAWING_ROWS];
    for (uint32_t i = 0; i < rows; i++) {
      plan[i] = (mk_step_row){.slot = i,
                              .position = step,
                              .token = (uint32_t)(mk_synth_mix(step * rows + i) % vocab),
                              .flags = MK_ROW_ACTIVE | MK_ROW_CHOOSES};
    }
    good = expect_ok(mk_compare_step(compare, plan, results), name);
  }
  mk_compare_free(compare);
  return good;
}

static void test_instructions(const char *shape, const mk_config *config) {
  static const uint32_t rows[] = {1, 16, 4, 64, 128};
  for (size_t r = 0; r < sizeof rows / sizeof rows[0] && (rows[r] <= MK_MAX_ROWS || wide); r++) {
    char name[64];
    mk_engine *machine = NULL, *oracle = NULL;
    mk_engine_options options = {.device = shared != NULL ? shared : device,
                                 .sms = sms,
                                 .synth = config,
                                 .synth_seed = 5,
                                 .max_seq = 16,
                                 .kv = kv,
                                 .rows = rows[r],
                                 .slots = rows[r] > MK_MAX_ROWS ? rows[r] : 0,
                                 .keep_values = rows[r] > MK_MAX_ROWS,
                                 .gpu_deadline_ms = deadline_ms,
                                 .sampling = &ways[1].sampling};
    snprintf(name, sizeof name, "%s, %u rows that draw, instruction by instruction", shape, rows[r]);
    bool good = expect_ok(mk_engine_open(NULL, &options, &machine), name);
    options.device = "cpu";
    options.sms = good ? (uint32_t)mk_engine_program(machine)->queue_count : 0;
    good = good && expect_ok(mk_engine_open(NULL, &options, &oracle), name) &&
           (rows[r] == 1 || write_table(mk_engine_gpu(machine), mk_engine_program(machine), name));
    for (size_t w = 0; good && w < WAYS; w += rows[r]) {
      good = compare_steps(machine, oracle, w, name);
    }
    mk_engine_close(oracle);
    mk_engine_close(machine);
  }
}

void test_draws_of(const char *shape, const mk_config *config) {
  fill_banned();
  test_ways(config, 0, 1);
  test_ways(config, 1, WAYS);
  test_overflow(shape, config);
  test_beside(shape, config, shared == NULL);
  test_rankings(shape, config);
  if (config->vocab < 1024 && shared == NULL) { /* references compute each step, too, of one rank */
    test_instructions(shape, config);
  }
}

static void test_shape(const char *shape) {
  mk_config config;
  if (expect_ok(mk_synth_shape(shape, &config), shape)) {
    wide = kv == MK_DTYPE_BF16;
    test_draws_of(shape, &config);
    wide = false;
  }
}

/* Each SM has 2,672 tokens then, more than the 2,048 that a line's warp goes through at a time with min-p. */
static void test_few_sms(const char *shape) {
  mk_config config;
  sms = 48;
  if (expect_ok(mk_synth_shape(shape, &config), shape)) {
    test_beside("48 SMs", &config, false);
  }
  sms = 0;
}

void test_sampling(bool quick) {
  test_shape("tiny");
  if (!quick) {
    test_shape("llama-3.2-1b");
    test_few_sms("llama-3.2-1b");
  }
}

void test_draws_of_ranks(const char *gpus, uint32_t each, const char *name, const mk_config *config) {
  shared = gpus;
  sms = each;
  test_draws_of(name, config);
  shared = NULL;
  sms = 0;
}
