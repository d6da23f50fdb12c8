/* Sampling through whole programs on the CPU machine: the same tokens on any number of SMs and in any order, the
 * definition's, and log-probabilities that agree with the oracle's. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/engine.h"
#include "tests/support/golden_file.h"
#include "tests/support/model.h"
#include "tests/support/numbers.h"

enum { TOKENS = 24, PROMPT = 5 };

static char directory[TEST_PATH];
static mk_config config;

static void set_up(void) {
  config = test_model_config(TEST_MODEL_TINY);
  test_model_write(&config, directory);
}
static void tear_down(void) { test_model_remove(directory); }

TestSuite(engine_sampling, .init = set_up, .fini = tear_down);

typedef struct output {
  uint32_t tokens[TOKENS];
  size_t count;
  const mk_sampling *sampling; /* NULL: not checked against the definition */
  uint32_t counts[512];
} output;

static const uint32_t prompt[PROMPT] = {3, 70, 12, 12, 40};

/* The token is the one that the definition draws from the logits, given all that came before. */
static bool keep(void *user, uint32_t token, const float *logits) {
  output *out = user;
  if (out->sampling != NULL) {
    uint32_t words[MK_SAMPLING_WORDS], want;
    float bias[512] = {0};
    bool failed;
    for (size_t i = 0; i < out->sampling->bias_count; i++) {
      bias[out->sampling->biases[i].token] = out->sampling->biases[i].bias;
    }
    mk_sampling_words(out->sampling, config.vocab, words);
    cr_assert_eq(mk_sampling_choose(words, logits, bias, out->counts, config.vocab, (uint32_t)(PROMPT + out->count),
                                    &want, &failed),
                 MK_OK);
    cr_assert(!failed && token == want, "token %zu is %u, not %u", out->count, token, want);
  }
  out->counts[token]++;
  out->tokens[out->count++] = token;
  return true;
}

static mk_engine *open_engine(mk_engine_options options, const mk_sampling *sampling) {
  mk_engine *engine;
  options.device = "cpu";
  options.sampling = sampling;
  options.max_seq = 64;
  cr_assert_eq(mk_engine_open(directory, &options, &engine), MK_OK, "%s", mk_error_message());
  return engine;
}

static void generate(mk_engine *engine, const mk_sampling *sampling, output *out) {
  *out = (output){.sampling = sampling};
  for (uint32_t i = 0; i < PROMPT; i++) {
    out->counts[prompt[i]] = MK_COUNT_PROMPT;
  }
  cr_assert_eq(mk_engine_generate(engine, prompt, PROMPT, TOKENS, keep, out), MK_OK, "%s", mk_error_message());
  cr_assert_eq(out->count, TOKENS);
}

static void run(mk_engine_options options, const mk_sampling *sampling, output *out) {
  mk_engine *engine = open_engine(options, sampling);
  generate(engine, sampling, out);
  mk_engine_close(engine);
}

static const mk_logit_bias biases[] = {{7, 3}, {8, -INFINITY}, {100, 2}};

static const mk_sampling ways[] = {
    {.temperature = 1, .top_p = 1, .repetition = 1, .seed = 1},
    {.temperature = 0.8, .top_k = 20, .top_p = 1, .repetition = 1, .seed = 2},
    {.temperature = 1.3, .top_p = 0.9, .repetition = 1, .seed = 3},
    {.temperature = 1,
     .top_k = 50,
     .top_p = 0.8,
     .min_p = 0.02,
     .repetition = 1.2,
     .presence = 0.3,
     .frequency = 0.1,
     .biases = biases,
     .bias_count = 3,
     .seed = UINT64_MAX},
    {.top_p = 1, .repetition = 1.5, .seed = 9}, /* greedy, but for the penalty */
};
enum { WAYS = sizeof ways / sizeof ways[0] };

Test(engine_sampling, any_machine_draws_what_the_definition_draws) {
  for (size_t i = 0; i < WAYS; i++) {
    output first, other;
    run((mk_engine_options){.sms = 5}, &ways[i], &first);
    const mk_engine_options machines[] = {{.sms = 1},
                                          {.sms = 132},
                                          {.sms = 7, .interleave_seed = 3, .check_races = true},
                                          {.sms = 4, .interleave_seed = 4, .adversarial = true, .check_races = true}};
    for (size_t m = 0; m < sizeof machines / sizeof machines[0]; m++) {
      run(machines[m], &ways[i], &other);
      cr_assert_arr_eq(first.tokens, other.tokens, sizeof first.tokens, "way %zu, machine %zu", i, m);
    }
  }
}

Test(engine_sampling, seeds_and_parameters_belong_to_a_generation) {
  output first, second, third;
  mk_sampling sampling = ways[3];
  mk_engine *engine = open_engine((mk_engine_options){.sms = 5}, &sampling);
  generate(engine, &sampling, &first);
  generate(engine, &sampling, &second); /* counts begin anew */
  cr_assert_arr_eq(first.tokens, second.tokens, sizeof first.tokens);
  sampling.seed = 77;
  cr_assert_eq(mk_engine_set_sampling(engine, &sampling), MK_OK, "%s", mk_error_message());
  generate(engine, &sampling, &third);
  cr_assert_arr_neq(first.tokens, third.tokens, sizeof first.tokens);
  cr_assert_eq(mk_engine_set_sampling(engine, &ways[3]), MK_OK);
  generate(engine, &ways[3], &third);
  cr_assert_arr_eq(first.tokens, third.tokens, sizeof first.tokens);
  mk_engine_close(engine);
}

/* A sampling program whose parameters are greedy, and a greedy program. */
Test(engine_sampling, temperature_zero_is_greedy) {
  output greedy, sampled;
  mk_sampling off = MK_SAMPLING_OFF, cold = ways[1];
  cold.temperature = 0;
  run((mk_engine_options){.sms = 5}, NULL, &greedy);
  run((mk_engine_options){.sms = 5}, &off, &sampled);
  cr_assert_arr_eq(greedy.tokens, sampled.tokens, sizeof greedy.tokens);
  mk_engine *engine = open_engine((mk_engine_options){.sms = 5}, &ways[0]);
  cr_assert_eq(mk_engine_set_sampling(engine, &cold), MK_OK);
  generate(engine, &cold, &sampled);
  cr_assert_arr_eq(greedy.tokens, sampled.tokens, sizeof greedy.tokens);
  mk_engine_close(engine);
}

Test(engine_sampling, refusals) {
  mk_engine *engine;
  mk_sampling bad = ways[0];
  bad.top_p = 2;
  cr_assert_eq(mk_engine_open(directory, &(mk_engine_options){.device = "cpu", .sampling = &bad}, &engine),
               MK_ERR_USAGE);
  engine = open_engine((mk_engine_options){.sms = 2}, NULL);
  cr_assert_eq(mk_engine_set_sampling(engine, &ways[0]), MK_ERR_USAGE);
  cr_assert_not_null(strstr(mk_error_message(), "greedy program"), "%s", mk_error_message());
  cr_assert_eq(mk_engine_set_sampling(engine, &MK_SAMPLING_OFF), MK_OK);
  mk_engine_close(engine);
}

/* Logits that are not numbers end a sampled sequence as they end a greedy one. */
Test(engine_sampling, not_a_number) {
  output out = {0};
  test_model_poke(directory, "model.norm.weight", 5, 0x7fc0);
  for (size_t i = 0; i < WAYS; i++) {
    mk_engine *engine = open_engine((mk_engine_options){.sms = 5}, &ways[i]);
    cr_assert_eq(mk_engine_generate(engine, prompt, PROMPT, TOKENS, keep, &out), MK_ERR_DEVICE);
    cr_assert_not_null(strstr(mk_error_message(), "NaN"), "%s", mk_error_message());
    mk_engine_close(engine);
  }
}

static mk_status open_and_draw(void) {
  mk_engine *engine;
  output out = {0};
  MK_TRY(mk_engine_open(directory, &(mk_engine_options){.device = "cpu", .sms = 2, .max_seq = 64, .sampling = &ways[3]},
                        &engine));
  mk_status status = mk_engine_generate(engine, prompt, PROMPT, 2, keep, &out);
  mk_engine_close(engine);
  return status;
}

Test(engine_sampling, memory_may_run_out, .timeout = MK_HANG_SECONDS) {
  for (uint64_t n = 1;; n++) {
    mk_alloc_fail_at(n, false);
    mk_status status = open_and_draw();
    mk_alloc_fail_at(0, false);
    if (status == MK_OK) {
      break;
    }
    cr_assert_eq(status, MK_ERR_RUNTIME, "allocation %llu: %s", (unsigned long long)n, mk_error_message());
  }
}

typedef struct oracle {
  const golden_file *golden;
  size_t step;
  double worst, chosen; /* relative L2 error of a step's log-probabilities; error of a chosen token's */
} oracle;

static double oracle_logprob(const float *logits, uint32_t vocab, uint32_t token) {
  double highest = -INFINITY, sum = 0;
  for (uint32_t i = 0; i < vocab; i++) {
    highest = fmax(highest, (double)logits[i]);
  }
  for (uint32_t i = 0; i < vocab; i++) {
    sum += exp((double)logits[i] - highest);
  }
  return (double)logits[token] - highest - log(sum);
}

static bool compare(void *user, uint32_t token, const float *logits) {
  oracle *o = user;
  const golden_file *g = o->golden;
  const float *row = g->logits + o->step * g->config.vocab;
  mk_logprob top[20];
  double logprob, got[20], want[20];
  mk_logprobs(logits, g->config.vocab, token, 20, &logprob, top);
  for (uint32_t i = 0; i < 20; i++) {
    got[i] = top[i].logprob;
    want[i] = oracle_logprob(row, g->config.vocab, top[i].token);
  }
  double error = test_relative_error(got, want, 20);
  cr_assert(!isnan(error));
  o->worst = fmax(o->worst, error);
  o->chosen = fmax(o->chosen, fabs(logprob - oracle_logprob(row, g->config.vocab, token)));
  o->step++;
  return token == g->tokens[g->prompt_count + o->step - 1];
}

/* The demo model against transformers in fp32: of the chosen token and of the twenty most probable ones. */
Test(engine_sampling, log_probabilities_agree_with_the_oracle) {
  golden_file golden;
  const char *why;
  cr_assert(golden_file_read(MK_SOURCE_DIR "/tests/oracle/goldens/demo.bin", &golden, &why), "%s", why);
  mk_engine *engine;
  cr_assert_eq(mk_engine_open(MK_SOURCE_DIR "/models/demo", &(mk_engine_options){.device = "cpu"}, &engine), MK_OK,
               "%s", mk_error_message());
  oracle o = {.golden = &golden};
  cr_assert_eq(mk_engine_generate(engine, golden.tokens, golden.prompt_count, golden.steps, compare, &o), MK_OK);
  fprintf(stderr, "log-probabilities of %zu steps: relative error %.2g, of the chosen tokens %.2g off\n", o.step,
          o.worst, o.chosen);
  cr_assert_gt(o.step, 16);
  cr_assert_lt(o.worst, 1.2e-2); /* q, p and x times gain are bf16 */
  cr_assert_lt(o.chosen, 3e-2);
  mk_engine_close(engine);
  golden_file_free(&golden);
}
