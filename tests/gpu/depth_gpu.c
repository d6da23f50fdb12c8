/* Long contexts without a prompt: hash values fill the KV cache, and launches after them must give the same bits,
 * however often they are made and wherever they begin, and those of steps of several rows. */
#include <stdio.h>
#include <string.h>

#include "engine/engine.h"
#include "models/synth.h"
#include "tests/gpu/gpu_test.h"
#include "tools/lib/bench.h"

enum { LAUNCHES = 100, STEPS = 16, STARTS = 4, ROWS = 2 };

typedef struct tokens {
  uint32_t first, at[STEPS + 1]; /* at[i]: token at position depth + i; first: of the launch */
} tokens;

static bool keep(void *user, uint32_t step, const uint32_t *results) {
  tokens *t = user;
  t->at[t->first + step + 1] = results[0];
  return true;
}

/* Runs steps [from, STEPS) after `depth` tokens; gives the logits of the last one. Of several rows the first works. */
static bool launch(mk_engine *engine, const char *name, uint32_t depth, uint32_t from, tokens *t, float *logits) {
  mk_gpu *gpu = mk_engine_gpu(engine);
  const mk_program *program = mk_engine_program(engine);
  const uint32_t rows = mk_program_rows(program);
  size_t buffer = (size_t)mk_program_find_buffer(program, "logits");
  mk_step_row sequence[STEPS], plan[STEPS * ROWS] = {0};
  t->first = from;
  mk_plan_sequence(sequence, STEPS - from, depth + from, &t->at[from], 1, 0);
  for (uint32_t i = 0; i < STEPS - from; i++) {
    plan[i * rows] = sequence[i];
  }
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

/* Block b of a slot is the one that lies there. */
static bool give_blocks(mk_engine *engine, const char *name) {
  const mk_program *program = mk_engine_program(engine);
  const size_t table = (size_t)mk_program_find_buffer(program, "block_table");
  const uint32_t entries = program->buffers[table].rows * program->buffers[table].cols;
  uint32_t *blocks = NULL;
  bool good = expect_ok(mk_alloc(entries, sizeof *blocks, &blocks), name);
  for (uint32_t i = 0; good && i < entries; i++) {
    blocks[i] = i;
  }
  good = good && expect_ok(mk_gpu_write(mk_engine_gpu(engine), table, 0, blocks, entries * sizeof *blocks), name);
  mk_free(blocks);
  return good;
}

/* Opens the shape with so many rows per step. */
static bool open_at(const mk_config *config, const char *name, uint32_t depth, uint32_t rows, mk_engine **engine) {
  const mk_engine_options options = {.device = device,
                                     .synth = config,
                                     .synth_seed = 1,
                                     .max_seq = depth + STEPS + 1,
                                     .rows = rows,
                                     .slots = rows,
                                     .kv = kv};
  return expect_ok(mk_engine_open(NULL, &options, engine), name) && expect_ok(mk_bench_fill_kv(*engine, 1), name) &&
         give_blocks(*engine, name);
}

/* The same launch by a program of several rows, whose first slot has the same blocks. */
static void compare_rows(const mk_config *config, const char *name, uint32_t depth, const float *first, float *again,
                         size_t bytes) {
  mk_engine *engine = NULL;
  tokens t = {.at = {7}};
  if (open_at(config, name, depth, ROWS, &engine) && launch(engine, name, depth, 0, &t, again)) {
    printf("%s: %s bits with %d rows per step\n", name, memcmp(first, again, bytes) == 0 ? "the same" : "other", ROWS);
    expect(memcmp(first, again, bytes) == 0, name, "several rows gave other bits of the last logits");
  }
  mk_engine_close(engine);
}

void test_depth(const char *shape, uint32_t depth) {
  char name[64];
  snprintf(name, sizeof name, "%s after %u tokens", shape, depth);
  mk_config config;
  mk_engine *engine = NULL;
  if (!expect_ok(mk_synth_shape(shape, &config), name)) {
    return;
  }
  float *logits = NULL;
  const size_t bytes = config.vocab * sizeof *logits;
  if (expect_ok(mk_alloc(2 * (size_t)config.vocab, sizeof *logits, &logits), name) &&
      open_at(&config, name, depth, 1, &engine)) {
    compare_launches(engine, name, depth, logits, logits + config.vocab, bytes);
    mk_engine_close(engine);
    engine = NULL;
    compare_rows(&config, name, depth, logits, logits + config.vocab, bytes);
  }
  mk_engine_close(engine);
  mk_free(logits);
}
