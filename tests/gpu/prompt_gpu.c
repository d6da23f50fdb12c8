/* Wide programs, of 128 to 1,024 rows for the prompt of one sequence: every instruction of random chunks beside its
 * plain C reference; the same bits however the prompt is cut, in every launch, and as those of a program of one row. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/shape.h"
#include "tools/lib/compare.h"

enum { MOST_STEPS = 64, MOST_TOKENS = 8192, LAUNCHES = 100 };

static uint32_t chunk_rows; /* of the programs under test */

typedef struct prompt_shape {
  shape of;
  uint32_t rows;
} prompt_shape;

static const prompt_shape shapes[] = {
    {{"64 dims a head", 512, 1024, 8, 2, 64, 2, 1500, NULL}, MK_MOST_ROWS},
    {{"128 dims a head, more units than SMs", 2560, 4608, 8, 4, 128, 1, 1300, NULL}, 256},
    {{"a last unit of two row tiles, six query heads a KV head", 800, 5376, 12, 2, 64, 2, 700, NULL}, 128},
    {{"parts along K, one KV head", 256, 9216, 8, 1, 128, 1, 1100, NULL}, 512},
    {{"halves of odd tiles", 3072, 4608, 8, 2, 128, 1, 600, NULL}, MK_MOST_ROWS},
    {{"spans beyond a tree of 4,096", 256, 512, 4, 2, 64, 1, 6000, NULL}, 256},
    {{"the same, 128 dims", 256, 512, 4, 4, 128, 1, 5200, NULL}, 512},
    {{"nothing in whole tiles but the heads", 203, 331, 3, 1, 128, 2, 600, NULL}, 256},
    {{"ragged chunks of K", 768, 5376, 12, 2, 64, 2, 300, NULL}, 128},
    {{"64 KV heads", 256, 512, 64, 64, 64, 1, 1100, NULL}, 512},
    {{"32 KV heads of 128 dims", 256, 512, 64, 32, 128, 1, 1400, NULL}, MK_MOST_ROWS},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static uint64_t random_state = 5;
static uint32_t below(uint32_t end) {
  random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint32_t)(random_state >> 33) % end;
}

static bool open_keeping(const shape *s, const char *on, uint32_t rows, bool keep, const char *name,
                         mk_engine **engine) {
  mk_config config = config_of(s);
  mk_engine_options options = {.device = on,
                               .synth = &config,
                               .synth_seed = 3,
                               .rows = rows,
                               .slots = rows > MK_MAX_ROWS ? 1 : 0,
                               .max_seq = s->max_seq,
                               .keep_values = keep,
                               .kv = kv,
                               .gpu_deadline_ms = deadline_ms};
  *engine = NULL;
  return expect_ok(mk_engine_open(NULL, &options, engine), name);
}

static bool open_rows(const shape *s, const char *on, uint32_t rows, const char *name, mk_engine **engine) {
  return open_keeping(s, on, rows, false, name, engine);
}

/* Blocks in their reverse order. */
static bool fill_table(mk_engine *engine, const char *name) {
  size_t index = (size_t)mk_program_find_buffer(mk_engine_program(engine), "block_table");
  uint32_t entries = mk_engine_program(engine)->buffers[index].cols, *blocks = calloc(entries, sizeof *blocks);
  for (uint32_t i = 0; blocks != NULL && i < entries; i++) {
    blocks[i] = entries - 1 - i;
  }
  bool good = blocks != NULL &&
              expect_ok(mk_gpu_write(mk_engine_gpu(engine), index, 0, blocks, entries * sizeof *blocks), name);
  free(blocks);
  return good;
}

/* The next `count` tokens, of which the last chooses or not. */
static void put_chunk(mk_step_row *rows, const uint32_t *tokens, uint32_t position, uint32_t count, bool chooses) {
  memset(rows, 0, chunk_rows * sizeof *rows);
  for (uint32_t i = 0; i < count; i++) {
    rows[i] = (mk_step_row){.position = position + i,
                            .token = tokens[position + i],
                            .flags = MK_ROW_ACTIVE | (chooses && i + 1 == count ? (uint32_t)MK_ROW_CHOOSES : 0)};
  }
}

/* A sequence to its end in chunks, then another one from the beginning. */
static void test_instructions(const shape *s, uint32_t steps) {
  char name[96];
  mk_engine *machine = NULL, *oracle = NULL;
  mk_compare *compare = NULL;
  static uint32_t tokens[MOST_TOKENS];
  uint32_t position = 0;
  snprintf(name, sizeof name, "%s, %u rows", s->name, chunk_rows);
  for (uint32_t i = 0; i < s->max_seq; i++) {
    tokens[i] = below(1000);
  }
  if (open_keeping(s, device, chunk_rows, true, name, &machine) &&
      open_keeping(s, "cpu", chunk_rows, true, name, &oracle) &&
      expect_ok(mk_compare_engines(machine, oracle, &compare), name)) {
    bool good = fill_table(machine, name);
    for (uint32_t step = 0; good && step < steps; step++) {
      static mk_step_row plan[MK_MOST_ROWS];
      static uint32_t results[MK_MOST_ROWS];
      uint32_t left = s->max_seq - position;
      uint32_t count = step % 3 != 2 ? chunk_rows : 1 + below(chunk_rows);
      count = count < left ? count : left;
      put_chunk(plan, tokens, position, count, step % 4 != 0);
      good = expect_ok(mk_compare_step(compare, plan, results), name);
      position = count == left ? 0 : position + count;
    }
    print_worst(name, compare);
  }
  mk_compare_free(compare);
  mk_engine_close(oracle);
  mk_engine_close(machine);
}

typedef struct choice {
  uint32_t steps, token;
} choice;

static bool take_step(void *user, uint32_t step, const uint32_t *results) {
  choice *c = user;
  for (uint32_t i = 0; step + 1 == c->steps && i < chunk_rows; i++) {
    c->token = results[i] != MK_CANDIDATE_NONE ? results[i] : c->token;
  }
  return true;
}

/* A prompt in one launch, in chunks of `chunk` (0: random ones): the token that follows, and its logits. */
static bool run_prompt(mk_engine *engine, const uint32_t *tokens, uint32_t count, uint32_t chunk, uint32_t *token,
                       float *logits, const char *name) {
  const mk_program *program = mk_engine_program(engine);
  size_t buffer = (size_t)mk_program_find_buffer(program, "logits");
  uint32_t vocab = mk_engine_config(engine)->vocab, steps = 0, last = 0;
  mk_step_row *plan = calloc((size_t)MOST_STEPS * chunk_rows, sizeof *plan);
  for (uint32_t at = 0; plan != NULL && at < count && steps < MOST_STEPS; at += last, steps++) {
    last = chunk != 0 ? chunk : 20 + below(chunk_rows - 19);
    last = last < count - at ? last : count - at;
    put_chunk(plan + (size_t)steps * chunk_rows, tokens, at, last, at + last == count);
  }
  choice c = {.steps = steps, .token = UINT32_MAX};
  mk_gpu *gpu = mk_engine_gpu(engine);
  uint64_t bytes = program->buffers[buffer].bytes;
  float *all = malloc(bytes);
  bool good = plan != NULL && all != NULL && expect_ok(mk_gpu_run_plan(gpu, plan, steps, take_step, &c), name) &&
              expect_ok(mk_gpu_read(gpu, buffer, 0, all, bytes), name);
  if (good) {
    memcpy(logits, all + (size_t)(last - 1) * vocab, vocab * sizeof *logits);
    *token = c.token;
  }
  free(all);
  free(plan);
  return good;
}

static double relative(const float *got, const float *want, uint32_t count) {
  double difference = 0, size = 0;
  for (uint32_t i = 0; i < count; i++) {
    double off = (double)got[i] - (double)want[i];
    difference += off * off;
    size += (double)want[i] * (double)want[i];
  }
  return sqrt(difference / size);
}

typedef struct answer {
  uint32_t token;
} answer;

static bool take_token(void *user, uint32_t token, const float *logits) {
  (void)logits;
  ((answer *)user)->token = token;
  return true;
}

static void test_bits(const shape *s, bool quick) {
  const uint32_t lengths[] = {s->max_seq - 1, 1, 31, 64, 65, 200}, vocab = 1000;
  char name[96];
  mk_engine *engine, *one = NULL;
  static uint32_t tokens[MOST_TOKENS];
  uint32_t token = 0, again = 0, differing = 0;
  float *logits = calloc(3, vocab * sizeof *logits);
  double worst = 0;
  snprintf(name, sizeof name, "%s, prompts by %u rows", s->name, chunk_rows);
  if (logits == NULL || !open_rows(s, device, chunk_rows, name, &engine) || !fill_table(engine, name)) {
    free(logits);
    return;
  }
  bool good = open_rows(s, device, 1, name, &one);
  for (uint32_t i = 0; good && i < sizeof lengths / sizeof lengths[0]; i++) {
    uint32_t count = lengths[i];
    for (uint32_t t = 0; t < count; t++) {
      tokens[t] = below(vocab);
    }
    good = run_prompt(engine, tokens, count, chunk_rows, &token, logits, name);
    for (uint32_t launch = 0; good && launch < (i == 0 && !quick ? LAUNCHES : 3U); launch++) {
      good = run_prompt(engine, tokens, count, launch % 2 == 0 ? chunk_rows : 0, &again, logits + vocab, name);
      differing += good && (token != again || memcmp(logits, logits + vocab, vocab * sizeof *logits) != 0);
    }
    answer a = {.token = UINT32_MAX};
    size_t buffer = (size_t)mk_program_find_buffer(mk_engine_program(one), "logits");
    good =
        good && expect_ok(mk_engine_generate(one, tokens, count, 1, take_token, &a), name) &&
        expect_ok(mk_gpu_read(mk_engine_gpu(one), buffer, 0, logits + 2 * (size_t)vocab, vocab * sizeof *logits), name);
    double error = good ? relative(logits, logits + 2 * (size_t)vocab, vocab) : 0;
    worst = error <= worst ? worst : error;
  }
  printf("%s: %u launches differ in a bit; against one row %.1e\n", name, differing, worst);
  expect(good && differing == 0, name, "a prompt cut otherwise, or repeated, gave other bits");
  expect(good && worst == 0, name, "other logits than with one row");
  mk_engine_close(one);
  mk_engine_close(engine);
  free(logits);
}

/* Sequences side by side, whose long prompts are computed before they join: as alone. */
enum { JOINED = 6, JOINED_TOKENS = 5, JOINED_VOCAB = 1000 };

typedef struct joined {
  uint32_t tokens[JOINED][JOINED_TOKENS];
  float logits[JOINED][JOINED_VOCAB]; /* of the last token */
  uint32_t counts[JOINED];
  mk_status status;
} joined;

static bool take_joined(void *user, size_t sequence, uint32_t token, const float *logits) {
  joined *j = user;
  if (j->counts[sequence] < JOINED_TOKENS) {
    j->tokens[sequence][j->counts[sequence]++] = token;
  }
  memcpy(j->logits[sequence], logits, sizeof j->logits[sequence]);
  return true;
}

static void end_joined(void *user, size_t sequence, mk_status status) {
  joined *j = user;
  (void)sequence;
  j->status = status == MK_OK ? j->status : status;
}

static void test_joined(const shape *s) {
  static const uint32_t lengths[JOINED] = {40, 7, 33, 130, 64, 200};
  static uint32_t prompts[JOINED][200];
  static joined together, alone;
  char name[96];
  mk_sequence sequences[JOINED];
  mk_config config = config_of(s);
  mk_engine_options options = {.device = device,
                               .synth = &config,
                               .synth_seed = 3,
                               .rows = 4,
                               .long_prompts = true,
                               .want_logits = true,
                               .max_seq = s->max_seq,
                               .gpu_deadline_ms = deadline_ms};
  mk_engine *engine;
  snprintf(name, sizeof name, "%s, long prompts in company", s->name);
  if (!expect_ok(mk_engine_open(NULL, &options, &engine), name)) {
    return;
  }
  memset(&together, 0, sizeof together);
  memset(&alone, 0, sizeof alone);
  for (uint32_t i = 0; i < JOINED; i++) {
    for (uint32_t t = 0; t < lengths[i]; t++) {
      prompts[i][t] = below(JOINED_VOCAB);
    }
    sequences[i] = (mk_sequence){.prompt = prompts[i], .prompt_count = lengths[i], .n_predict = JOINED_TOKENS};
  }
  mk_sequence_calls calls = {.token = take_joined, .ended = end_joined, .user = &together};
  bool good = expect_ok(mk_engine_generate_all(engine, sequences, JOINED, &calls), name);
  for (uint32_t i = 0; good && i < JOINED; i++) {
    static joined one;
    memset(&one, 0, sizeof one);
    calls.user = &one;
    good = expect_ok(mk_engine_generate_all(engine, &sequences[i], 1, &calls), name);
    memcpy(alone.tokens[i], one.tokens[0], sizeof alone.tokens[i]);
    memcpy(alone.logits[i], one.logits[0], sizeof alone.logits[i]);
    alone.counts[i] = one.counts[0];
    alone.status = one.status == MK_OK ? alone.status : one.status;
  }
  expect(good && together.counts[0] == JOINED_TOKENS && memcmp(&alone, &together, sizeof alone) == 0, name,
         "a sequence with a long prompt has other bits in company");
  mk_engine_close(engine);
}

void test_prompts_of(const shape *s, uint32_t rows, bool quick) {
  chunk_rows = rows;
  test_instructions(s, quick ? 4 : 8);
  test_bits(s, quick);
}

void test_prompts(bool quick) {
  test_joined(&shapes[0].of);
  test_joined(&shapes[1].of);
  for (size_t i = 0; i < (quick ? 4 : (size_t)SHAPES); i++) {
    test_prompts_of(&shapes[i].of, shapes[i].rows, quick);
  }
}
