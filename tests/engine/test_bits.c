/* One model, one sequence, one set of bits: whatever the number of SMs, the placement, the interleaving and what ran
 * before. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/weights.h"
#include "models/checkpoint.h"
#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"
#include "tests/support/effort.h"
#include "tests/support/model.h"
#include "tests/support/numbers.h"
#include "tests/support/sequence.h"
#include "vm/cpu/machine.h"

enum { LONGEST = 600, MOST_VOCAB = 520 };

static char directory[TEST_PATH];
static mk_config config;

static void use_model(size_t which) {
  config = test_model_config(which);
  test_model_write(&config, directory);
}

typedef struct output { /* logits of every generated token */
  uint32_t tokens[64];
  float *logits;
  size_t count, limit;
} output;

static bool keep(void *user, uint32_t token, const float *logits) {
  output *out = user;
  cr_assert_lt(out->count, 64);
  cr_assert_lt(token, config.vocab);
  out->tokens[out->count] = token;
  memcpy(out->logits + out->count * config.vocab, logits, config.vocab * sizeof *logits);
  out->count++;
  return out->limit == 0 || out->count < out->limit;
}

static void start(output *out) {
  *out = (output){0};
  cr_assert_eq(mk_alloc((size_t)64 * MOST_VOCAB, sizeof *out->logits, &out->logits), MK_OK);
}

static void expect_same(const char *what, const output *got, const output *want) {
  cr_assert_eq(got->count, want->count, "%s: %zu tokens, not %zu", what, got->count, want->count);
  for (size_t i = 0; i < want->count; i++) {
    cr_assert_eq(got->tokens[i], want->tokens[i], "%s: token %zu is %u, not %u", what, i, got->tokens[i],
                 want->tokens[i]);
    for (size_t j = 0; j < config.vocab; j++) {
      float a = got->logits[i * config.vocab + j], b = want->logits[i * config.vocab + j];
      cr_assert(mk_float_param(a) == mk_float_param(b) && !isnan(a), "%s: logit %zu of step %zu is %a, not %a", what, j,
                i, (double)a, (double)b);
    }
  }
}

static void make_prompt(uint32_t *prompt, size_t count, uint64_t seed) {
  for (size_t i = 0; i < count; i++) {
    prompt[i] = test_random_below(&seed, config.vocab);
  }
}

static mk_engine *open_engine(const mk_engine_options *options) {
  mk_engine *engine;
  cr_assert_eq(mk_engine_open(directory, options, &engine), MK_OK, "%s", mk_error_message());
  return engine;
}

static void generate(mk_engine *engine, size_t prompt_count, uint64_t seed, size_t n_predict, output *out) {
  uint32_t prompt[LONGEST];
  make_prompt(prompt, prompt_count, seed);
  cr_assert_eq(mk_engine_generate(engine, prompt, prompt_count, n_predict, keep, out), MK_OK, "%s", mk_error_message());
}

static void run(mk_engine_options options, size_t prompt_count, uint64_t seed, size_t n_predict, output *out) {
  start(out);
  mk_engine *engine = open_engine(&options);
  generate(engine, prompt_count, seed, n_predict, out);
  mk_engine_close(engine);
}

static void expect_same_bits(mk_engine_options options, size_t prompt_count, size_t n_predict, const output *want) {
  output got;
  char what[128];
  snprintf(what, sizeof what, "sms %u, seed %llu%s%s", options.sms, (unsigned long long)options.interleave_seed,
           options.adversarial ? ", adversarial" : "", options.check_races ? ", races" : "");
  run(options, prompt_count, 1, n_predict, &got);
  expect_same(what, &got, want);
  mk_free(got.logits);
}

/* Prompts of more than 256 tokens, so that attention is split. */
static void sms_and_interleavings(size_t model, size_t prompt_count) {
  use_model(model);
  output want;
  run((mk_engine_options){.sms = 7, .max_seq = LONGEST}, prompt_count, 1, 12, &want);
  cr_assert_eq(want.count, 12);
  expect_same_bits((mk_engine_options){.sms = 1, .max_seq = LONGEST}, prompt_count, 12, &want);
  expect_same_bits((mk_engine_options){.sms = 132, .max_seq = LONGEST}, prompt_count, 12, &want);
  expect_same_bits((mk_engine_options){.sms = 133, .max_seq = LONGEST}, prompt_count, 12, &want);
  test_model_remove(directory);
  mk_free(want.logits);
}

Test(bits, same_on_any_number_of_sms_tiny) { sms_and_interleavings(TEST_MODEL_TINY, 300); }
Test(bits, same_on_any_number_of_sms_odd) { sms_and_interleavings(TEST_MODEL_ODD, 520); }
Test(bits, same_on_any_number_of_sms_split_k) { sms_and_interleavings(TEST_MODEL_DEEP_K, 270); }
Test(bits, same_on_any_number_of_sms_uneven_split_k) { sms_and_interleavings(TEST_MODEL_WIDE, 300); }

static void interleavings(size_t model, uint32_t sms) {
  use_model(model);
  output want;
  run((mk_engine_options){.sms = sms, .max_seq = LONGEST}, 20, 1, 6, &want);
  for (uint64_t seed = 1; seed <= test_effort(2, 8); seed++) {
    expect_same_bits((mk_engine_options){.sms = sms, .max_seq = LONGEST, .interleave_seed = seed, .check_races = true},
                     20, 6, &want);
    expect_same_bits(
        (mk_engine_options){
            .sms = sms, .max_seq = LONGEST, .interleave_seed = seed * 77, .adversarial = true, .check_races = true},
        20, 6, &want);
  }
  mk_free(want.logits);
  test_model_remove(directory);
}

Test(bits, same_in_every_interleaving_tiny) { interleavings(TEST_MODEL_TINY, 5); }
Test(bits, same_in_every_interleaving_odd) { interleavings(TEST_MODEL_ODD, 7); }
Test(bits, same_in_every_interleaving_split_k) { interleavings(TEST_MODEL_DEEP_K, 3); }
Test(bits, same_in_every_interleaving_of_many_sms) { interleavings(TEST_MODEL_WIDE, 40); }

Test(bits, same_in_an_interleaving_with_splits_in_use) {
  use_model(TEST_MODEL_ODD);
  output want;
  run((mk_engine_options){.sms = 6, .max_seq = LONGEST}, 530, 1, 4, &want);
  expect_same_bits((mk_engine_options){.sms = 6, .max_seq = LONGEST, .interleave_seed = 5, .check_races = true}, 530, 4,
                   &want);
  expect_same_bits((mk_engine_options){.sms = 6, .max_seq = LONGEST, .interleave_seed = 6, .adversarial = true}, 530, 4,
                   &want);
  mk_free(want.logits);
  test_model_remove(directory);
}

/* The engine has no choice of placement, so these go to the machine directly. */
typedef struct direct {
  mk_cpu *cpu;
  size_t logits;
  uint32_t prompt_count;
  output *out;
} direct;

static bool keep_direct(void *user, uint32_t position, uint32_t token) {
  direct *d = user;
  return position + 1 < d->prompt_count || keep(d->out, token, mk_cpu_memory(d->cpu, d->logits));
}

static void run_placed(mk_placement placement, uint32_t sms, output *out) {
  mk_graph *graph;
  mk_program *program;
  mk_checkpoint *checkpoint;
  mk_compile_options options = {.sms = sms, .max_seq = LONGEST, .placement = placement};
  direct d = {.prompt_count = 280, .out = out};
  start(out);
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
  cr_assert_eq(mk_compile(graph, &options, &program), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_cpu_new(program, &(mk_cpu_options){0}, &d.cpu), MK_OK);
  cr_assert_eq(mk_checkpoint_open(directory, &checkpoint), MK_OK);
  for (size_t w = 0; w < graph->weight_count; w++) {
    size_t buffer = (size_t)mk_program_find_buffer(program, graph->weights[w].name);
    cr_assert_eq(mk_weights_load(checkpoint, graph, &graph->weights[w], mk_cpu_memory(d.cpu, buffer)), MK_OK);
  }
  mk_checkpoint_close(checkpoint);
  uint32_t *table = mk_cpu_memory(d.cpu, (size_t)mk_program_find_buffer(program, "block_table"));
  uint64_t seed = 9;
  test_shuffle(&seed, table, program->ranges.block.high + 1);
  uint32_t prompt[LONGEST];
  make_prompt(prompt, d.prompt_count, 1);
  d.logits = (size_t)mk_program_find_buffer(program, "logits");
  test_sequence sequence = {.token = prompt[0], .prompt = prompt, .prompt_length = d.prompt_count};
  cr_assert_eq(test_sequence_run(&sequence, d.cpu, d.prompt_count + 7, keep_direct, &d), MK_OK, "%s",
               mk_error_message());
  mk_cpu_free(d.cpu);
  mk_program_free(program);
  mk_graph_free(graph);
}

Test(bits, same_for_every_placement_and_block_table) {
  use_model(TEST_MODEL_WIDE);
  output want, got;
  run((mk_engine_options){.sms = 7, .max_seq = LONGEST}, 280, 1, 8, &want);
  run_placed(MK_PLACE_ROUND_ROBIN, 7, &got);
  expect_same("round robin", &got, &want);
  mk_free(got.logits);
  run_placed(MK_PLACE_BALANCED, 10, &got);
  expect_same("balanced", &got, &want);
  mk_free(got.logits);
  mk_free(want.logits);
  test_model_remove(directory);
}

static void again(mk_engine_options options) {
  output first, second, one_after_other;
  start(&one_after_other);
  run(options, 290, 1, 10, &first);
  run(options, 9, 2, 10, &second);
  mk_engine *engine = open_engine(&options);
  generate(engine, 290, 1, 10, &one_after_other);
  expect_same("first run", &one_after_other, &first);
  one_after_other.count = 0;
  generate(engine, 9, 2, 10, &one_after_other);
  expect_same("second run", &one_after_other, &second);
  one_after_other.count = 0;
  one_after_other.limit = 3; /* stopped by its caller */
  generate(engine, 290, 1, 10, &one_after_other);
  cr_assert_eq(one_after_other.count, 3);
  one_after_other.count = one_after_other.limit = 0;
  generate(engine, 9, 2, 10, &one_after_other);
  expect_same("run after one that was stopped", &one_after_other, &second);
  mk_engine_close(engine);
  mk_free(first.logits);
  mk_free(second.logits);
  mk_free(one_after_other.logits);
}

Test(bits, an_engine_may_generate_again) {
  use_model(TEST_MODEL_ODD);
  again((mk_engine_options){.sms = 7, .max_seq = LONGEST});
  again((mk_engine_options){.sms = 4, .max_seq = LONGEST, .interleave_seed = 3});
  again((mk_engine_options){
      .sms = 4, .max_seq = LONGEST, .interleave_seed = 4, .adversarial = true, .check_races = true});
  test_model_remove(directory);
}

/* A token whose embedding is not a number makes its sequence fail, and that one alone. */
static void after_not_a_number(mk_engine_options options) {
  output want, got;
  start(&got);
  uint32_t prompt[20];
  make_prompt(prompt, 20, 5);
  for (uint32_t i = 0; i < 20; i++) {
    prompt[i] = prompt[i] == 7 ? 8 : prompt[i];
  }
  start(&want);
  mk_engine *engine = open_engine(&options);
  cr_assert_eq(mk_engine_generate(engine, prompt, 20, 5, keep, &want), MK_OK, "%s", mk_error_message());
  prompt[11] = 7;
  cr_assert_eq(mk_engine_generate(engine, prompt, 20, 5, keep, &got), MK_ERR_DEVICE);
  cr_assert_eq(got.count, 0);
  cr_assert_not_null(strstr(mk_error_message(), "NaN"), "%s", mk_error_message());
  cr_assert_not_null(strstr(mk_error_message(), "position 19"), "%s", mk_error_message());
  prompt[11] = 8;
  got.count = 0;
  cr_assert_eq(mk_engine_generate(engine, prompt, 20, 5, keep, &got), MK_OK, "%s", mk_error_message());
  mk_engine_close(engine);
  output alone;
  start(&alone);
  engine = open_engine(&options);
  cr_assert_eq(mk_engine_generate(engine, prompt, 20, 5, keep, &alone), MK_OK);
  mk_engine_close(engine);
  expect_same("run after one that failed", &got, &alone);
  mk_free(want.logits);
  mk_free(got.logits);
  mk_free(alone.logits);
}

/* The same when the very first step fails: no stamp of that step may pass for one of the next run. */
static void after_not_a_number_at_once(mk_engine_options options) {
  const uint32_t bad[] = {7}, good[] = {8};
  output got, alone;
  start(&got);
  start(&alone);
  mk_engine *engine = open_engine(&options);
  cr_assert_eq(mk_engine_generate(engine, bad, 1, 5, keep, &got), MK_ERR_DEVICE);
  cr_assert_eq(got.count, 0);
  cr_assert_eq(mk_engine_generate(engine, good, 1, 5, keep, &got), MK_OK, "after a failed run: %s", mk_error_message());
  mk_engine_close(engine);
  engine = open_engine(&options);
  cr_assert_eq(mk_engine_generate(engine, good, 1, 5, keep, &alone), MK_OK, "%s", mk_error_message());
  mk_engine_close(engine);
  expect_same("run after one that failed at once", &got, &alone);
  mk_free(got.logits);
  mk_free(alone.logits);
}

Test(bits, not_a_number_at_the_first_step_fails_one_sequence_alone) {
  use_model(TEST_MODEL_ODD);
  test_model_poke(directory, "model.embed_tokens.weight", 7 * (uint64_t)config.hidden + 5, 0x7fc0);
  after_not_a_number_at_once((mk_engine_options){.sms = 7, .max_seq = 64});
  for (uint64_t seed = 1; seed < 6; seed++) {
    after_not_a_number_at_once((mk_engine_options){.sms = 4, .max_seq = 64, .interleave_seed = seed});
    after_not_a_number_at_once(
        (mk_engine_options){.sms = 4, .max_seq = 64, .interleave_seed = seed, .adversarial = true});
  }
  test_model_remove(directory);
}

Test(bits, not_a_number_fails_one_sequence_alone) {
  use_model(TEST_MODEL_ODD);
  test_model_poke(directory, "model.embed_tokens.weight", 7 * (uint64_t)config.hidden + 5, 0x7fc0);
  after_not_a_number((mk_engine_options){.sms = 7, .max_seq = 64});
  after_not_a_number((mk_engine_options){.sms = 4, .max_seq = 64, .interleave_seed = 3, .check_races = true});
  after_not_a_number((mk_engine_options){.sms = 4, .max_seq = 64, .interleave_seed = 4, .adversarial = true});
  test_model_remove(directory);
}

/* A model of Gemma 3, whose programs are never wide: two layers with a window, and one without. */
static void use_gemma(void) {
  cr_assert_eq(mk_synth_shape("gemma-3-270m", &config), MK_OK);
  config.hidden = 104;
  config.embedding_multiplier = 10.1875;
  config.intermediate = 200;
  config.layers = 3;
  config.heads = 4;
  config.kv_heads = 2;
  config.vocab = 320;
  config.eos[0] = 319;
  config.bos = 318;
  config.max_position = 1024;
  config.window = 97;
  config.windowed[0] = 5;
  config.windowed[1] = config.windowed[2] = 0;
  test_model_write(&config, directory);
}

/* Prompts go in chunks of as many tokens as there are rows. */
Test(bits, same_with_any_number_of_rows_in_windows) {
  static const uint32_t rows[] = {2, 4, 8, 16};
  output want, got;
  use_gemma();
  run((mk_engine_options){.sms = 7, .max_seq = LONGEST}, 330, 1, 12, &want);
  for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
    run((mk_engine_options){.sms = 5, .max_seq = LONGEST, .rows = rows[i]}, 330, 1, 12, &got);
    expect_same("rows", &got, &want);
    mk_free(got.logits);
  }
  mk_free(want.logits);
  test_model_remove(directory);
}

Test(bits, same_in_every_interleaving_of_windows) {
  output want;
  use_gemma();
  run((mk_engine_options){.sms = 6, .max_seq = LONGEST}, 270, 1, 3, &want);
  expect_same_bits((mk_engine_options){.sms = 6, .max_seq = LONGEST, .interleave_seed = 5, .check_races = true}, 270, 3,
                   &want);
  expect_same_bits(
      (mk_engine_options){
          .sms = 4, .max_seq = LONGEST, .interleave_seed = 6, .adversarial = true, .check_races = true, .rows = 8},
      270, 3, &want);
  expect_same_bits((mk_engine_options){.sms = 2, .ranks = 2, .max_seq = LONGEST}, 270, 3, &want);
  mk_free(want.logits);
  test_model_remove(directory);
}
