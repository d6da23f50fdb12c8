/* Golden files (README.md has the format) and the one comparison of an engine with them, shared by the tests here.
 *
 * The oracle is Hugging Face transformers in fp32; the engine rounds activations, keys and values to bf16. Two constants say
 * how far apart the two may be:
 *   GOLDEN_ERROR   every step: |logits - oracle| <= GOLDEN_ERROR |oracle|, both in L2 over the vocabulary.
 *   GOLDEN_MARGIN  the token must be the oracle's wherever the oracle's two largest logits differ by more than
 *                  GOLDEN_MARGIN times the root mean square of that row. Rounding errors spread over the whole row, so this is
 *                  five times the error that one logit typically has at GOLDEN_ERROR.
 * Where the token differs inside the margin, the run goes on from the oracle's token, so every step is compared.
 *
 * A golden owns its arrays (golden_free). One thread. golden_load and golden_directory fail the running test; golden_compare
 * gives back the engine's status, and judges in its result, so that tests of planted faults can expect a failure. */
#ifndef MK_TEST_GOLDEN_H
#define MK_TEST_GOLDEN_H

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/synth.h"
#include "tests/support/model.h"
#include "tools/lib/engine.h"

#define GOLDEN_ERROR 1e-2
#define GOLDEN_MARGIN 0.05
#define GOLDEN_FOLDER MK_SOURCE_DIR "/tests/oracle/goldens"
#define GOLDEN_DEMO MK_SOURCE_DIR "/models/demo"

enum { GOLDEN_NAME = 64 };

typedef struct golden {
  char name[GOLDEN_NAME];
  mk_config config; /* of a random model; its seed */
  uint64_t seed;
  bool is_directory; /* the weights are those of GOLDEN_DEMO */
  uint32_t prompt_count, steps;
  uint32_t *tokens; /* prompt, then the token chosen at each step */
  float *logits;    /* [steps][vocab] */
} golden;

static inline void golden_read(FILE *file, void *to, size_t bytes, const char *path) {
  cr_assert_eq(fread(to, 1, bytes, file), bytes, "%s ends early", path);
}

static inline uint32_t golden_largest(const float *row, uint32_t count) {
  uint32_t best = 0;
  for (uint32_t i = 1; i < count; i++) {
    best = row[i] > row[best] ? i : best;
  }
  return best;
}

/* The golden `name` of GOLDEN_FOLDER. */
static inline void golden_load(const char *name, golden *out) {
  struct {
    uint32_t hidden, intermediate, layers, heads, kv_heads, head_dim, vocab, max_position, tied, llama3, original,
        prompt_count, steps, is_directory;
  } shape;
  double numbers[5];
  char magic[8], label[33] = "", path[512];
  memset(out, 0, sizeof *out);
  snprintf(out->name, sizeof out->name, "%s", name);
  snprintf(path, sizeof path, "%s/%s.bin", GOLDEN_FOLDER, name);
  FILE *file = fopen(path, "rb");
  cr_assert_not_null(file, "%s cannot be opened", path);
  golden_read(file, magic, sizeof magic, path);
  cr_assert_eq(memcmp(magic, "MKGOLD01", sizeof magic), 0, "%s is not a golden file", path);
  golden_read(file, label, 32, path);
  cr_assert_str_eq(label, name, "%s holds the golden %s", path, label);
  golden_read(file, &out->seed, sizeof out->seed, path);
  golden_read(file, &shape, sizeof shape, path);
  golden_read(file, numbers, sizeof numbers, path);
  cr_assert(shape.vocab > 1 && shape.vocab <= MK_MAX_WIDTH && shape.prompt_count > 0 && shape.steps > 0 &&
                shape.prompt_count + shape.steps <= shape.max_position && shape.max_position <= MK_MAX_POSITION,
            "%s: vocab %u, prompt_count %u and steps %u do not fit together", path, shape.vocab, shape.prompt_count,
            shape.steps);
  out->config = (mk_config){.hidden = shape.hidden,
                            .intermediate = shape.intermediate,
                            .layers = shape.layers,
                            .heads = shape.heads,
                            .kv_heads = shape.kv_heads,
                            .head_dim = shape.head_dim,
                            .vocab = shape.vocab,
                            .max_position = shape.max_position,
                            .rms_eps = (float)numbers[0],
                            .rope_theta = numbers[1],
                            .tied = shape.tied != 0,
                            .rope_llama3 = shape.llama3 != 0,
                            .rope_factor = numbers[2],
                            .rope_low_freq_factor = numbers[3],
                            .rope_high_freq_factor = numbers[4],
                            .rope_original_max_position = shape.original,
                            .eos_count = 1,
                            .eos = {shape.vocab - 1}};
  out->is_directory = shape.is_directory != 0;
  out->prompt_count = shape.prompt_count;
  out->steps = shape.steps;
  size_t token_count = (size_t)shape.prompt_count + shape.steps, logit_count = (size_t)shape.steps * shape.vocab;
  out->tokens = malloc(token_count * sizeof *out->tokens);
  out->logits = malloc(logit_count * sizeof *out->logits);
  cr_assert(out->tokens != NULL && out->logits != NULL);
  golden_read(file, out->tokens, token_count * sizeof *out->tokens, path);
  golden_read(file, out->logits, logit_count * sizeof *out->logits, path);
  cr_assert_eq(fgetc(file), EOF, "%s has bytes past its end", path);
  fclose(file);
  for (uint32_t i = 0; i < shape.steps; i++) {
    cr_assert_eq(out->tokens[shape.prompt_count + i],
                 golden_largest(out->logits + (size_t)i * shape.vocab, shape.vocab),
                 "%s: token %u is not the arg-max of its logits", path, i);
  }
}

static inline void golden_free(golden *g) {
  free(g->tokens);
  free(g->logits);
}

/* The model directory of a golden: written for a random model, in place for the demo. golden_directory_remove takes it back. */
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
  result->worst = isnan(error) ? INFINITY : fmax(result->worst, error);
  if (!(error <= GOLDEN_ERROR)) {
    golden_blame(result, "relative error of the logits", error, GOLDEN_ERROR);
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

/* Runs the first `steps` steps of a golden and compares them. It ends early only where the token is wrong beyond the margin. */
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
  return MK_OK;
}

static inline void golden_print(const char *name, const char *what, const golden_result *result) {
  fprintf(stderr, "oracle: %-20s %-24s worst relative error %.2e, tokens equal %u/%u\n", name, what, result->worst,
          result->equal, result->compared);
}

#endif
