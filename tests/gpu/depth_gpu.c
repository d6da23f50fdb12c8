/* Long contexts without a prompt: hash values fill the KV cache, and launches after them must give the same bits,
 * however often they are made and wherever they begin. */
#include <stdio.h>
#include <string.h>

#include "engine/engine.h"
#include "models/synth.h"
#include "tests/gpu/gpu_test.h"
#include "tools/lib/bench.h"

enum { LAUNCHES = 100, STEPS = 16, STARTS = 4 };

typedef struct tokens {
  uint32_t first, at[STEPS + 1]; /* at[i]: token at position depth + i; first: of the launch */
} tokens;

static bool keep(void *user, uint32_t step, const uint32_t *results) {
  tokens *t = user;
  t->at[t->first + step + 1] = results[0];
  return true;
}

/* Runs steps [from, STEPS) after `depth` tokens; gives the logits of the last one. */
static bool launch(mk_engine *engine, const char *name, uint32_t depth, uint32_t from, tokens *t, float *logits) {
  mk_gpu *gpu = mk_engine_gpu(engine);
  const mk_program *program = mk_engine_program(engine);
  size_t buffer = (size_t)mk_program_find_buffer(program, "logits");
  mk_step_row plan[STEPS];
  t->first = from;
  mk_plan_sequence(plan, STEPS - from, depth + from, &t->at[from], 1, 0);
  return expect_ok(mk_gpu_run_plan(gpu, plan, STEPS - from, keep, t), name) &&
         expect_ok(mk_gpu_read(gpu, buffer, 0, logits, program->buffers[buffer].cols * sizeof *logits), name);
}

static void compare_launches(mk_engine *engine, const char *name, uint32_t depth, float *first, float *again,
                             size_t bytes) {
  tokens t = {.at = {7}}, other;
  unsigned differing = 0;
  bool ok = launch(engine, name, depth, 0, &t, first);
  for (unsigned i = 1; ok && i < LAUNCHES; i++) {
    other = (tokens){.at = {7}};
    ok = launch(engine, name, depth, 0, &other, again);
    differing += ok && (memcmp(first, again, bytes) != 0 || memcmp(t.at, other.at, sizeof t.at) != 0);
  }
  printf("%s: %u of %d launches of %d steps differ\n", name, differing, LAUNCHES, STEPS);
  expect(ok && differing == 0, name, "a launch gave other tokens, or other bits of the last logits");
  for (uint32_t from = 1; ok && from <= STARTS; from++) { /* the page ring stands elsewhere in the same step */
    other = t;
    ok = launch(engine, name, depth, from, &other, again);
    expect(ok && memcmp(first, again, bytes) == 0 && memcmp(t.at, other.at, sizeof t.at) == 0, name,
           "a launch that begins some steps later gave other bits");
  }
}

void test_depth(const char *shape, uint32_t depth) {
  char name[64];
  snprintf(name, sizeof name, "%s after %u tokens", shape, depth);
  mk_config config;
  mk_engine *engine = NULL;
  if (!expect_ok(mk_synth_shape(shape, &config), name)) {
    return;
  }
  mk_engine_options options = {
      .device = device, .synth = &config, .synth_seed = 1, .max_seq = depth + STEPS + 1, .kv = kv};
  if (expect_ok(mk_engine_open(NULL, &options, &engine), name) && expect_ok(mk_bench_fill_kv(engine, 1), name)) {
    float *logits = NULL;
    if (expect_ok(mk_alloc(2 * (size_t)config.vocab, sizeof *logits, &logits), name)) {
      compare_launches(engine, name, depth, logits, logits + config.vocab, config.vocab * sizeof *logits);
    }
    mk_free(logits);
  }
  mk_engine_close(engine);
}
