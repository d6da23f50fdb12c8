/* Programs of several rows per step: every instruction of random plans beside its plain C reference; a sequence alone
 * and in company; repeats. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/shape.h"
#include "tools/lib/bench.h"
#include "tools/lib/compare.h"

enum { LONGEST = 1100, MOST_TOKENS = 12, MOST_SEQUENCES = 20 };

static const shape shapes[] = {
    {"64 dims a head", 512, 1024, 8, 2, 64, 2, 2600, NULL},
    {"128 dims a head, two chunks of K", 2560, 4608, 8, 4, 128, 1, 600, NULL},
    {"ragged chunks, six query heads a KV head", 768, 5376, 12, 2, 64, 2, 300, NULL},
    {"parts along K, one KV head", 256, 9216, 8, 1, 128, 1, 2200, NULL},
    {"nothing in whole tiles but the heads", 203, 331, 3, 1, 128, 2, 600, NULL},
    {"a tile begun, parts along K", 520, 5377, 8, 1, 64, 2, 600, NULL},
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

/* Of wide steps that several sequences share, and rows of them. */
static const shape many_shapes[] = {
    {"64 dims a head, shared", 512, 1024, 8, 2, 64, 2, 600, NULL},
    {"128 dims a head, shared", 1024, 1536, 8, 2, 128, 2, 600, NULL},
    {"three query heads a KV head, shared", 768, 5376, 12, 4, 64, 2, 300, NULL},
    {"nothing in whole tiles but the heads, shared", 203, 331, 3, 1, 128, 2, 300, NULL},
    {"sixteen query heads, parts along K, shared", 256, 9216, 16, 1, 128, 1, 300, NULL},
    {"spans beyond a tree of 4,096, shared", 256, 512, 4, 2, 64, 1, 5200, NULL},
};
static const uint32_t many_rows[] = {64, 128, MK_MOST_SHARED_ROWS, 128, 256, 64};
enum { MANY_SHAPES = sizeof many_shapes / sizeof many_shapes[0] };

static uint64_t random_state = 1;
static uint32_t below(uint32_t end) {
  random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return end > 1 ? (uint32_t)(random_state >> 33) % end : 0;
}

static mk_engine_options options_of(const mk_config *config, const char *on, uint32_t rows, uint32_t max_seq) {
  return (mk_engine_options){.device = on,
                             .synth = config,
                             .synth_seed = 3,
                             .rows = rows,
                             .slots = rows > MK_MAX_ROWS ? rows : 0,
                             .keep_values = rows > MK_MAX_ROWS,
                             .max_seq = max_seq,
                             .kv = kv,
                             .gpu_deadline_ms = deadline_ms};
}

static bool open_rows(const mk_config *config, const char *on, uint32_t rows, uint32_t max_seq, bool logits,
                      const char *name, mk_engine **engine) {
  mk_engine_options options = options_of(config, on, rows, max_seq);
  options.want_logits = logits;
  *engine = NULL;
  return expect_ok(mk_engine_open(NULL, &options, engine), name);
}

static bool open_drawn(const mk_config *config, const char *on, uint32_t rows, uint32_t max_seq, bool draws,
                       const char *name, mk_engine **engine) {
  mk_engine_options options = options_of(config, on, rows, max_seq);
  options.sampling = draws ? way_that_draws() : NULL;
  *engine = NULL;
  return expect_ok(mk_engine_open(NULL, &options, engine), name);
}

/* A step in which some slots have some rows, in chunks that do not lie side by side. */
static void random_step(mk_step_row *rows, uint32_t count, uint32_t *positions, uint32_t max_seq, uint32_t vocab) {
  memset(rows, 0, count * sizeof *rows);
  uint32_t busiest = below(count), active = 0;
  for (uint32_t i = 0; i < count; i++) {
    uint32_t kind = below(8), slot = kind < 5 ? busiest : below(count);
    if (kind == 7 || positions[slot] >= max_seq) {
      continue;
    }
    rows[i] = (mk_step_row){.slot = slot,
                            .position = positions[slot]++,
                            .token = below(vocab),
                            .flags = MK_ROW_ACTIVE | (below(3) == 0 ? (uint32_t)MK_ROW_CHOOSES : 0)};
    active++;
  }
  if (active == 0) {
    uint32_t slot = 0;
    while (slot + 1 < count && positions[slot] >= max_seq) {
      slot++;
    }
    rows[0] = (mk_step_row){.slot = slot, .position = positions[slot]++, .token = 1, .flags = MK_ROW_ACTIVE};
  }
}

/* One of `count` slots, for `at` below twice that: after the last comes the first. */
static uint32_t wrapped(uint32_t at, uint32_t count) { return at < count ? at : at - count; }

/* As an engine plans them: a row each of some slots, which choose, and then chunks of others. */
static void orderly_step(mk_step_row *rows, uint32_t count, uint32_t *positions, uint32_t max_seq, uint32_t vocab) {
  uint32_t line = 0, first = below(count), slot;
  memset(rows, 0, count * sizeof *rows);
  for (uint32_t i = 0; i < count && line < count / 2; i++) {
    slot = wrapped(first + i, count);
    if (below(3) != 0 && positions[slot] < max_seq) {
      rows[line++] = (mk_step_row){
          .slot = slot, .position = positions[slot]++, .token = below(vocab), .flags = MK_ROW_ACTIVE | MK_ROW_CHOOSES};
    }
  }
  for (uint32_t chunk = 0; chunk < 3; chunk++) {
    slot = wrapped(first + count - 1 - chunk, count);
    for (uint32_t left = 1 + below(count - line + 1); left != 0 && line < count && positions[slot] < max_seq; left--) {
      rows[line++] = (mk_step_row){.slot = slot,
                                   .position = positions[slot]++,
                                   .token = below(vocab),
                                   .flags = MK_ROW_ACTIVE | (left == 1 ? (uint32_t)MK_ROW_CHOOSES : 0)};
    }
  }
  if (line == 0) {
    random_step(rows, count, positions, max_seq, vocab);
  }
}

/* `deep`: sequences begin anywhere in the context, after hash values. draws: each slot in a way of its own. */
static void test_plans(const shape *s, uint32_t rows, uint32_t steps, bool deep, bool draws) {
  char name[96];
  mk_config config = config_of(s);
  mk_engine *machine = NULL, *oracle = NULL;
  mk_compare *compare = NULL;
  mk_plan_buffers buffers;
  snprintf(name, sizeof name, "%s, %u rows%s%s", s->name, rows, deep ? ", deep" : "", draws ? ", drawn" : "");
  if (open_drawn(&config, device, rows, s->max_seq, draws, name, &machine) &&
      open_drawn(&config, "cpu", rows, s->max_seq, draws, name, &oracle) && (!draws || set_ways(machine, 0, name)) &&
      (!deep || expect_ok(mk_bench_fill_kv(machine, 5), name)) &&
      expect_ok(mk_compare_engines(machine, oracle, &compare), name) &&
      expect_ok(mk_plan_find(mk_engine_program(machine), &buffers), name)) {
    const mk_buffer *table = &mk_engine_program(machine)->buffers[buffers.table];
    static uint32_t positions[MK_MOST_SHARED_ROWS];
    uint32_t entries = rows * table->cols, *blocks = calloc(entries, sizeof *blocks);
    for (uint32_t i = 0; blocks != NULL && i < entries; i++) {
      blocks[i] = entries - 1 - i;
    }
    for (uint32_t i = 0; i < rows; i++) {
      positions[i] = deep ? below(s->max_seq - 1) : 0;
    }
    bool good = blocks != NULL && expect_ok(mk_gpu_write(mk_engine_gpu(machine), buffers.table, 0, blocks,
                                                         (uint64_t)entries * sizeof *blocks),
                                            name);
    for (uint32_t step = 0; good && step < steps; step++) {
      static mk_step_row plan[MK_MOST_SHARED_ROWS];
      static uint32_t results[MK_MOST_SHARED_ROWS];
      if (rows > MK_MAX_ROWS && step % 2 == 0) {
        orderly_step(plan, rows, positions, s->max_seq - 1, config.vocab);
      } else {
        random_step(plan, rows, positions, s->max_seq - 1, config.vocab);
      }
      good = expect_ok(mk_compare_step(compare, plan, results), name);
    }
    free(blocks);
    print_worst(name, compare);
  }
  mk_compare_free(compare);
  mk_engine_close(oracle);
  mk_engine_close(machine);
}

/* Several sequences with chunks in one launch, a hundred times over: the same results and the same bits of the last
 * logits. */
static void test_repeats(const shape *s, uint32_t rows) {
  enum { STEPS = 24, LAUNCHES = 100 };
  char name[96];
  mk_config config = config_of(s);
  mk_engine *engine;
  snprintf(name, sizeof name, "%s, %u rows repeated", s->name, rows);
  if (!open_rows(&config, device, rows, s->max_seq, false, name, &engine)) {
    return;
  }
  mk_gpu *gpu = mk_engine_gpu(engine);
  const mk_program *program = mk_engine_program(engine);
  size_t logits = (size_t)mk_program_find_buffer(program, "logits");
  uint64_t bytes = program->buffers[logits].bytes;
  uint32_t *positions = calloc(rows, sizeof *positions);
  mk_step_row *plan = calloc((size_t)STEPS * rows, sizeof *plan);
  uint8_t *first = calloc(2, bytes);
  bool good = plan != NULL && first != NULL && positions != NULL && write_table(gpu, program, name);
  for (uint32_t step = 0; good && step < STEPS; step++) {
    random_step(plan + (size_t)step * rows, rows, positions, s->max_seq - 1, config.vocab);
  }
  unsigned differing = 0;
  for (uint32_t i = 0; good && i < LAUNCHES; i++) {
    good = expect_ok(mk_gpu_run_plan(gpu, plan, STEPS, NULL, NULL), name) &&
           expect_ok(mk_gpu_read(gpu, logits, 0, i == 0 ? first : first + bytes, bytes), name);
    differing += good && i != 0 && memcmp(first, first + bytes, bytes) != 0;
  }
  printf("%s: %u of %d launches of %d steps differ in a bit\n", name, differing, LAUNCHES, STEPS);
  expect(good && differing == 0, name, "a repeated launch gave other bits");
  free(positions);
  free(plan);
  free(first);
  mk_engine_close(engine);
}

/* An instruction that keeps its results to itself: a message that names what stood still; then the machine works
 * again. */
static void test_late(const shape *s, uint32_t rows, mk_opcode opcode) {
  char name[96];
  mk_config config = config_of(s);
  mk_engine *engine;
  const bool draws = mk_opcode_writes(mk_opcode_lookup(opcode), MK_CONTENT_FRONT) >= 0 ||
                     mk_opcode_writes(mk_opcode_lookup(opcode), MK_CONTENT_ROUND) >= 0;
  snprintf(name, sizeof name, "%s, %s late", s->name, mk_opcode_lookup(opcode)->name);
  if (!open_drawn(&config, device, rows, s->max_seq, draws, name, &engine) ||
      (draws && !set_ways(engine, 0, name))) { /* some of them search */
    mk_engine_close(engine);
    return;
  }
  mk_gpu *gpu = mk_engine_gpu(engine);
  const mk_program *program = mk_engine_program(engine);
  static mk_step_row plan[MK_MOST_SHARED_ROWS];
  /* Later, a search is over; and of the units of attention the first one has tokens for certain, those of slot 0. */
  const bool first = mk_opcode_writes(mk_opcode_lookup(opcode), MK_CONTENT_ROUND) >= 0 ||
                     mk_opcode_writes(mk_opcode_lookup(opcode), MK_CONTENT_PARTS) >= 0;
  uint32_t uid = 0;
  for (size_t i = 0; i < program->instruction_count && (uid == 0 || !first); i++) {
    uid = program->instructions[i].opcode == opcode ? program->instructions[i].uid : uid;
  }
  for (uint32_t i = 0; i < rows; i++) {
    plan[i] = (mk_step_row){.slot = i, .token = i, .flags = MK_ROW_ACTIVE | MK_ROW_CHOOSES};
  }
  bool good = write_table(gpu, program, name);
  mk_gpu_skip_signal(gpu, uid);
  mk_status status = mk_gpu_run_plan(gpu, plan, 1, NULL, NULL);
  const char *text = status == MK_OK ? "no fault" : mk_error_message();
  printf("%s: %s\n", name, text);
  expect(good && status == MK_ERR_DEVICE && strstr(text, "instruction ") != NULL && strstr(text, "have ") != NULL, name,
         "the message does not name what stood still");
  mk_gpu_skip_signal(gpu, 0);
  if (write_table(gpu, program, name)) {
    expect_ok(mk_gpu_run_plan(gpu, plan, 1, NULL, NULL), name);
  }
  mk_engine_close(engine);
}

/* After the last step of a launch lies the plan of an earlier one, with rows whose tokens were chosen then: nobody goes
 * by them. Here they are of a slot beyond those that there are, where the kernel has no tokens but floats. */
static void test_after_the_last_step(const shape *s) {
  enum { ROWS = 4, BEYOND = 2 * MK_MAX_ROWS };
  const char *name = "after the last step";
  mk_config config = config_of(s);
  mk_engine *engine;
  if (!open_rows(&config, device, ROWS, s->max_seq, false, name, &engine)) {
    return;
  }
  mk_gpu *gpu = mk_engine_gpu(engine);
  const mk_program *program = mk_engine_program(engine);
  mk_plan_buffers buffers;
  mk_step_row plan[2][ROWS];
  for (uint32_t i = 0; i < ROWS; i++) {
    plan[0][i] = (mk_step_row){.slot = i, .token = i, .flags = MK_ROW_ACTIVE | MK_ROW_CHOOSES};
    plan[1][i] = (mk_step_row){.slot = BEYOND, .position = 1, .token = MK_TOKEN_CHOSEN, .flags = MK_ROW_ACTIVE};
  }
  if (expect_ok(mk_plan_find(program, &buffers), name) && write_table(gpu, program, name) &&
      expect_ok(mk_gpu_write(gpu, buffers.plan, 0, plan, sizeof plan), name)) {
    expect_ok(mk_gpu_run_plan(gpu, plan[0], 1, NULL, NULL), name);
  }
  mk_engine_close(engine);
}

typedef struct answer {
  uint32_t count, tokens[MOST_TOKENS];
  float *logits; /* of the last token */
  mk_status status;
} answer;

typedef struct work {
  uint32_t vocab;
  size_t count;
  uint32_t *prompts[MOST_SEQUENCES];
  mk_sequence sequences[MOST_SEQUENCES];
  answer answers[MOST_SEQUENCES];
  bool logits;
} work;

static bool take_token(void *user, size_t sequence, uint32_t token, const float *logits) {
  work *w = user;
  answer *a = &w->answers[sequence];
  if (a->count < MOST_TOKENS) {
    a->tokens[a->count++] = token;
  }
  if (logits != NULL) {
    memcpy(a->logits, logits, w->vocab * sizeof *logits);
  }
  return true;
}

static void take_end(void *user, size_t sequence, mk_status status) {
  ((work *)user)->answers[sequence].status = status;
}

static void make_work(work *w, size_t count, uint32_t vocab, uint32_t longest) {
  *w = (work){.vocab = vocab, .count = count};
  for (size_t i = 0; i < count; i++) {
    uint32_t length = i == 0 ? longest : 1 + below(i % 3 == 0 ? longest : 40);
    w->prompts[i] = calloc(length, sizeof(uint32_t));
    w->answers[i].logits = calloc(vocab, sizeof(float));
    for (uint32_t t = 0; t < length; t++) {
      w->prompts[i][t] = below(vocab);
    }
    w->sequences[i] =
        (mk_sequence){.prompt = w->prompts[i], .prompt_count = length, .n_predict = 2 + below(MOST_TOKENS - 2)};
  }
}

static void clear_answers(work *w) {
  for (size_t i = 0; i < w->count; i++) {
    w->answers[i].count = 0;
    memset(w->answers[i].logits, 0, w->vocab * sizeof(float));
  }
}

static void free_work(work *w) {
  for (size_t i = 0; i < w->count; i++) {
    free(w->prompts[i]);
    free(w->answers[i].logits);
  }
}

/* Sequences of `w` from `first` on; answers go where they belong. */
static bool run_work(mk_engine *engine, work *w, size_t first, size_t count, const char *name) {
  work part = *w;
  mk_sequence_calls calls = {.token = take_token, .ended = take_end, .user = &part};
  for (size_t i = 0; i < count; i++) {
    part.answers[i] = w->answers[first + i];
  }
  bool good = expect_ok(mk_engine_generate_all(engine, w->sequences + first, count, &calls), name);
  for (size_t i = 0; i < count; i++) {
    w->answers[first + i] = part.answers[i];
    good = good && expect_ok(part.answers[i].status, name);
  }
  return good;
}

/* The first sequences that differ in a token or in a bit of the last logits. */
static size_t differing(const work *a, const work *b) {
  size_t n = 0;
  for (size_t i = 0; i < a->count; i++) {
    n += a->answers[i].count != b->answers[i].count ||
         memcmp(a->answers[i].tokens, b->answers[i].tokens, a->answers[i].count * sizeof(uint32_t)) != 0 ||
         memcmp(a->answers[i].logits, b->answers[i].logits, a->vocab * sizeof(float)) != 0;
  }
  return n;
}

static double worst_difference(const work *a, const work *b) {
  double worst = 0;
  for (size_t i = 0; i < a->count; i++) {
    double difference = 0, size = 0;
    if (a->answers[i].count != b->answers[i].count ||
        memcmp(a->answers[i].tokens, b->answers[i].tokens, a->answers[i].count * sizeof(uint32_t)) != 0) {
      continue; /* other texts */
    }
    for (uint32_t v = 0; v < a->vocab; v++) {
      double off = (double)a->answers[i].logits[v] - (double)b->answers[i].logits[v];
      difference += off * off;
      size += (double)b->answers[i].logits[v] * (double)b->answers[i].logits[v];
    }
    double error = sqrt(difference / size);
    worst = error <= worst ? worst : error;
  }
  return worst;
}

static void copy_work(work *to, const work *from) {
  *to = *from;
  for (size_t i = 0; i < from->count; i++) {
    to->answers[i].logits = calloc(from->vocab, sizeof(float));
  }
}

static void free_copy(work *w) {
  for (size_t i = 0; i < w->count; i++) {
    free(w->answers[i].logits);
  }
}

/* Computes all sequences together, each alone, all with other numbers of rows, and all with one row. */
static void test_company(const shape *s, uint32_t repeats) {
  static const uint32_t others[] = {2, 4, 8};
  char name[96];
  mk_config config = config_of(s);
  mk_engine *engine;
  work together, again;
  uint32_t longest = s->max_seq - MOST_TOKENS - 1;
  make_work(&together, 18, config.vocab, longest < 420 ? longest : 420);
  copy_work(&again, &together);
  snprintf(name, sizeof name, "%s, in company", s->name);
  if (open_rows(&config, device, 16, s->max_seq, true, name, &engine)) {
    bool good = run_work(engine, &together, 0, together.count, name);
    for (size_t i = 0; good && i < again.count; i++) {
      good = run_work(engine, &again, i, 1, name);
    }
    expect(good && differing(&again, &together) == 0, name, "a sequence alone has other bits");
    for (uint32_t i = 0; good && i < repeats; i++) {
      clear_answers(&again);
      good = run_work(engine, &again, 0, again.count, name);
      expect(good && differing(&again, &together) == 0, name, "a repeated run gave other bits");
    }
    mk_engine_close(engine);
  }
  for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
    snprintf(name, sizeof name, "%s, %u rows", s->name, others[i]);
    clear_answers(&again);
    if (open_rows(&config, device, others[i], s->max_seq, true, name, &engine)) {
      bool good = run_work(engine, &again, 0, again.count, name);
      expect(good && differing(&again, &together) == 0, name, "a sequence has other bits than with 16 rows");
      mk_engine_close(engine);
    }
  }
  snprintf(name, sizeof name, "%s, one row", s->name);
  clear_answers(&again);
  if (open_rows(&config, device, 1, s->max_seq, true, name, &engine)) {
    bool good = run_work(engine, &again, 0, again.count, name);
    printf("%s: %zu of %zu sequences differ from 16 rows in a bit, the logits by %.1e\n", name,
           differing(&again, &together), again.count, worst_difference(&again, &together));
    expect(good && differing(&again, &together) == 0, name, "other logits than with 16 rows");
    mk_engine_close(engine);
  }
  free_copy(&again);
  free_work(&together);
}

void test_late_of(const shape *s, uint32_t rows, const mk_opcode *late) {
  for (; *late != MK_OP_NONE; late++) {
    test_late(s, rows, *late);
  }
}

void test_rows_of(const shape *s, const mk_opcode *late, bool quick) {
  test_plans(s, 2, quick ? 4 : 12, false, false);
  test_plans(s, MK_MAX_ROWS, quick ? 8 : 24, false, false);
  test_repeats(s, MK_MAX_ROWS);
  test_late_of(s, MK_MAX_ROWS, late);
  test_company(s, 1);
}

void test_rows(bool quick) {
  for (size_t i = 0; i < SHAPES; i++) {
    test_plans(&shapes[i], 2 + 2 * (uint32_t)(i % 2), quick ? 6 : 20, false, false);
    test_plans(&shapes[i], MK_MAX_ROWS, quick ? 12 : 40, false, false);
    test_plans(&shapes[i], MK_MAX_ROWS, quick ? 4 : 12, true, false);
    test_repeats(&shapes[i], MK_MAX_ROWS);
  }
  test_after_the_last_step(&shapes[0]);
  test_late(&shapes[0], MK_MAX_ROWS, MK_OP_GLU);
  if (!quick) {
    test_late(&shapes[1], MK_MAX_ROWS, MK_OP_QKV);
    test_late(&shapes[2], MK_MAX_ROWS, MK_OP_ATTENTION);
  }
  for (size_t i = 0; i < (quick ? 2 : (size_t)SHAPES); i++) {
    test_company(&shapes[i], 2);
  }
}

/* As long prompts and what comes of them go: in company of up to 64, and with sixteen rows alone. */
static void test_many_in_company(const shape *s) {
  char name[96];
  mk_config config = config_of(s);
  mk_engine *engine;
  work together, again;
  make_work(&together, MOST_SEQUENCES, config.vocab,
            s->max_seq - MOST_TOKENS - 1 < 420 ? s->max_seq - MOST_TOKENS - 1 : 420);
  copy_work(&again, &together);
  snprintf(name, sizeof name, "%s, in company of 64 rows", s->name);
  bool good = open_rows(&config, device, 64, s->max_seq, true, name, &engine) &&
              run_work(engine, &together, 0, together.count, name);
  mk_engine_close(engine);
  good = open_rows(&config, device, MK_MAX_ROWS, s->max_seq, true, name, &engine) && good &&
         run_work(engine, &again, 0, again.count, name);
  expect(good && differing(&again, &together) == 0, name, "a sequence has other bits than with 16 rows");
  mk_engine_close(engine);
  free_copy(&again);
  free_work(&together);
}

void test_many_of(const shape *s, uint32_t rows, bool quick) {
  test_plans(s, rows, quick ? 4 : 10, false, false);
  test_plans(s, rows, quick ? 4 : 10, true, false);
  if (rows <= MK_MOST_DRAWING_ROWS) {
    test_plans(s, rows, quick ? 4 : 10, rows > 64, true);
  }
  test_repeats(s, rows);
}

void test_many(bool quick) {
  for (size_t i = 0; i < (quick ? 4 : (size_t)MANY_SHAPES); i++) {
    test_many_of(&many_shapes[i], many_rows[i], quick);
  }
  test_late(&many_shapes[0], 64, MK_OP_GLU);
  test_late(&many_shapes[0], 64, MK_OP_APPEND);
  test_late(&many_shapes[1], 128, MK_OP_HEAD);
  test_late(&many_shapes[1], 128, MK_OP_SCORE);
  test_late(&many_shapes[0], 64, MK_OP_SIFT);
  for (size_t i = 0; i < (quick ? 1 : 3); i++) {
    test_many_in_company(&many_shapes[i]);
  }
}
