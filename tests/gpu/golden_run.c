/* See golden_run.h. */
#include "tests/gpu/golden_run.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/gpu/gpu_test.h"

const char *model;

const uint32_t *chosen(const golden *g) { return g->tokens + g->prompt_count; }

void new_output(output *o, uint32_t limit, uint32_t vocab) {
  *o = (output){.vocab = vocab, .limit = limit};
  o->tokens = calloc(limit, sizeof *o->tokens);
  o->logits = calloc((size_t)limit * vocab, sizeof *o->logits);
  if (o->tokens == NULL || o->logits == NULL) {
    fprintf(stderr, "out of memory\n");
    exit(1);
  }
}

void free_output(output *o) {
  free(o->tokens);
  free(o->logits);
}

static bool collect(void *user, uint32_t token, const float *logits) {
  output *o = user;
  if (o->count >= o->limit) {
    return false;
  }
  o->tokens[o->count] = token;
  o->has_logits = logits != NULL;
  if (logits != NULL) {
    memcpy(o->logits + (size_t)o->count * o->vocab, logits, o->vocab * sizeof *logits);
  }
  o->count++;
  return o->count != o->stop_after;
}

double relative_error(const float *got, const float *want, size_t count) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < count; i++) {
    difference += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
    size += (double)want[i] * (double)want[i];
  }
  return sqrt(difference / size);
}

double worst_error(const output *got, const float *want, uint32_t rows) {
  double worst = 0;
  for (uint32_t r = 0; r < rows; r++) {
    double error = relative_error(got->logits + (size_t)r * got->vocab, want + (size_t)r * got->vocab, got->vocab);
    if (!(error <= worst)) {
      worst = error; /* NaN too, which no later row takes away */
      if (isnan(worst)) {
        break;
      }
    }
  }
  return worst;
}

void expect_bf16_error(const golden *g, const output *got, uint32_t rows) {
  double error = relative_error(got->logits, g->logits, (size_t)rows * got->vocab);
  char text[200];
  snprintf(text, sizeof text, "the logits of %u steps together differ by %.3g; transformers in bf16 by %.3g%s", rows,
           error, g->bf16_error, isnan(g->bf16_error) ? ": " GOLDEN_BF16_FILE " does not have this golden" : "");
  expect(error <= g->bf16_error, g->name, text);
}

bool is_large(const golden *g) { return (uint64_t)g->config.hidden * g->config.layers > 16384; }

mk_status open_engine_rows(const golden *g, const char *on, bool want_logits, uint32_t rows, mk_engine **engine) {
  uint32_t most = g->prompt_count + g->steps;
  mk_engine_options options = {.device = on,
                               .want_logits = want_logits,
                               .synth = &g->config,
                               .synth_seed = g->seed,
                               .rows = rows,
                               .slots = rows > MK_MAX_ROWS ? 1 : 0,
                               .max_seq = most < g->config.max_position ? most : g->config.max_position,
                               .gpu_deadline_ms = deadline_ms};
  if (g->is_directory) {
    options.synth = NULL;
    return mk_engine_open(model, &options, engine);
  }
  return mk_engine_open(NULL, &options, engine);
}

mk_status open_engine(const golden *g, const char *on, bool want_logits, mk_engine **engine) {
  return open_engine_rows(g, on, want_logits, 1, engine);
}

mk_status generate(const golden *g, mk_engine *engine, output *out) {
  out->count = 0;
  return mk_engine_generate(engine, g->tokens, g->prompt_count, out->limit, collect, out);
}

bool tokens_agree(const golden *g, const output *got) {
  for (uint32_t i = 0; i < got->count; i++) {
    uint32_t want = chosen(g)[i], ours = got->tokens[i] % got->vocab;
    if (got->tokens[i] != want) {
      const float *row = g->logits + (size_t)i * got->vocab;
      double squares = 0;
      for (uint32_t v = 0; v < got->vocab; v++) {
        squares += (double)row[v] * (double)row[v];
      }
      printf("  %s: token %u is %u, transformers has %u, %g above it\n", g->name, i, got->tokens[i], want,
             (double)(row[want] - row[ours]));
      return (double)(row[want] - row[ours]) <= GOLDEN_MARGIN * sqrt(squares / got->vocab);
    }
  }
  return true;
}

uint32_t common_rows(const golden *g, const output *got) {
  uint32_t rows = 0;
  while (rows < got->count && got->tokens[rows] == chosen(g)[rows]) {
    rows++;
  }
  return rows < got->count ? rows + 1 : rows;
}
