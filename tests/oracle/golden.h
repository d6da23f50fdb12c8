/* Golden files (README.md has the format) and the one comparison of an engine with them, shared by the tests here.
 *
 * Where the token differs inside the margin (golden_file.h), the run goes on from the oracle's token, so every step is
 * compared.
 *
 * A golden owns its arrays (golden_free). One thread. golden_load and golden_directory fail the running test;
 * golden_compare gives back the engine's status, and judges in its result, so that tests of planted faults can expect a
 * failure. */
#ifndef MK_TEST_GOLDEN_H
#define MK_TEST_GOLDEN_H

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "models/synth.h"
#include "tests/support/golden_file.h"
#include "tests/support/model.h"

#define GOLDEN_FOLDER MK_SOURCE_DIR "/tests/oracle/goldens"
#define GOLDEN_DEMO MK_SOURCE_DIR "/models/demo"

typedef golden_file golden;

static inline uint32_t golden_largest(const float *row, uint32_t count) {
  uint32_t best = 0;
  for (uint32_t i = 1; i < count; i++) {
    best = row[i] > row[best] ? i : best;
  }
  return best;
}

/* The golden `name` of GOLDEN_FOLDER. */
static inline void golden_load(const char *name, golden *out) {
  char path[512];
  const char *why;
  snprintf(path, sizeof path, "%s/%.64s.bin", GOLDEN_FOLDER, name);
  cr_assert(golden_file_read(path, out, &why), "%s: %s", path, why);
  const char *last = strrchr(name, '/');
  cr_assert_str_eq(out->name, last == NULL ? name : last + 1, "%s holds the golden %s", path, out->name);
  for (uint32_t i = 0; i < out->steps; i++) {
    const float *row = out->logits + (size_t)i * out->config.vocab;
    const uint32_t token = out->tokens[out->prompt_count + i], largest = golden_largest(row, out->config.vocab);
    cr_assert(token == largest || (out->widened != NULL && row[token] >= row[largest]), /* a tie in fp16 */
              "%s: token %u is not the arg-max of its logits", path, i);
  }
}

static inline void golden_free(golden *g) { golden_file_free(g); }

/* The model directory of a golden: written for a random model, in place for the demo. golden_directory_remove takes it
 * back. */
static inline void golden_directory(const golden *g, char directory[TEST_PATH]) {
  if (g->is_directory) {
    snprintf(directory, TEST_PATH, "%s", GOLDEN_DEMO);
    return;
  }
  const char *base = getenv("TMPDIR");
  snprintf(directory, TEST_PATH, "%s/mkvm_oracle_XXXXXX", base != NULL && base[0] != '\0' ? base : "/tmp");
  cr_assert_not_null(mkdtemp(directory), "%s cannot be made", directory);
  mk_synth_options options = {.seed = g->seed};
  cr_assert_eq(mk_synth_write(directory, &g->config, &options), MK_OK, "%s", mk_error_message());
  if (g->config_text != NULL) { /* a family's, as transformers writes it */
    char path[TEST_PATH + 16];
    snprintf(path, sizeof path, "%s/config.json", directory);
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file, "%s", path);
    cr_assert_eq(fwrite(g->config_text, 1, g->config_length, file), g->config_length, "%s", path);
    cr_assert_eq(fclose(file), 0, "%s", path);
  }
}

static inline void golden_directory_remove(const golden *g, const char *directory) {
  if (!g->is_directory) {
    test_model_remove(directory);
  }
}

typedef struct golden_result {
  bool passed;
  char why[256];            /* the first thing that is wrong */
  double worst;             /* largest relative error of a step; infinite once one was not a number */
  double difference, norm;  /* of all steps compared, squared */
  uint32_t compared, equal; /* steps compared, and those with the oracle's token */
  uint32_t wrong_logits;    /* steps above GOLDEN_ERROR */
} golden_result;

typedef struct golden_run {
  const golden *golden;
  golden_result *result;
  uint32_t steps;
  bool stop;
} golden_run;

static inline void golden_blame(golden_result *result, const char *what, double value, double limit) {
  if (result->passed) {
    snprintf(result->why, sizeof result->why, "step %u: %s %.3g, at most %.3g is allowed", result->compared, what,
             value, limit);
  }
  result->passed = false;
}

/* One step: false when the run must go on from the oracle's token, or cannot go on. */
static inline bool golden_step(void *user, uint32_t token, const float *logits) {
  golden_run *run = user;
  const golden *g = run->golden;
  golden_result *result = run->result;
  uint32_t vocab = g->config.vocab, expected = g->tokens[g->prompt_count + result->compared];
  const float *row = g->logits + (size_t)result->compared * vocab;
  double difference = 0, norm = 0, second = -INFINITY;
  for (uint32_t i = 0; i < vocab; i++) {
    double d = (double)logits[i] - (double)row[i];
    difference += d * d;
    norm += (double)row[i] * (double)row[i];
    second = i != expected && (double)row[i] > second ? (double)row[i] : second;
  }
  double error = sqrt(difference / norm);
  result->difference += difference;
  result->norm += norm;
  result->worst = isnan(error) ? INFINITY : fmax(result->worst, error);
  if (!(error <= g->step_error)) {
    golden_blame(result, "relative error of the logits", error, g->step_error);
    result->wrong_logits++;
  }
  if (token != golden_largest(logits, vocab)) {
    golden_blame(result, "the token is not the arg-max of the engine's own logits:", token, NAN);
    run->stop = true;
  }
  if (token != expected) {
    double margin = ((double)row[expected] - second) / sqrt(norm / vocab);
    if (!(margin <= GOLDEN_MARGIN)) {
      golden_blame(result, "another token than the oracle's, whose margin over rms is", margin, GOLDEN_MARGIN);
      run->stop = true;
    }
  }
  result->equal += token == expected;
  result->compared++;
  run->stop |= result->compared == run->steps;
  return !run->stop && token == expected;
}

/* The error of all steps that have been compared, together. */
static inline double golden_error(const golden_result *result) { return sqrt(result->difference / result->norm); }

/* What holds of all steps together. */
static inline void golden_judge(const golden *g, golden_result *result) {
  double error = golden_error(result);
  if (!(error <= g->bf16_error)) {
    golden_blame(result,
                 isnan(g->bf16_error) ? GOLDEN_BF16_FILE
                     " does not have this golden (make_goldens.py --bf16-errors): error"
                                      : "transformers in bf16 are nearer; error of all steps",
                 error, g->bf16_error);
  }
}

/* Runs the first `steps` steps of a golden and compares them. It ends early only where the token is wrong beyond the
 * margin. */
static inline mk_status golden_compare(const golden *g, mk_engine *engine, uint32_t steps, golden_result *result) {
  *result = (golden_result){.passed = true};
  golden_run run = {.golden = g, .result = result, .steps = steps < g->steps ? steps : g->steps};
  while (!run.stop) {
    uint32_t before = result->compared;
    MK_TRY(
        mk_engine_generate(engine, g->tokens, (size_t)g->prompt_count + before, run.steps - before, golden_step, &run));
    if (result->compared == before) {
      golden_blame(result, "no token came; steps left:", run.steps - before, 0);
      return MK_OK;
    }
  }
  golden_judge(g, result);
  return MK_OK;
}

static inline void golden_print(const char *name, const char *what, const golden_result *result) {
  fprintf(stderr, "oracle: %-20s %-24s worst relative error %.2e, of all %.2e, tokens equal %u/%u\n", name, what,
          result->worst, golden_error(result), result->equal, result->compared);
}

#endif
