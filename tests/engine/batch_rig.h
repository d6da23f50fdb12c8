/* What the tests of the batch share: a batch without a machine, of a tiny model, in which every row that chooses
 * chooses as the test says.
 *
 * A rig is the test's, from start to stop. Failure fails the running test. */
#ifndef MK_TEST_BATCH_RIG_H
#define MK_TEST_BATCH_RIG_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "engine/batch.h"
#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"

enum { ROWS = 8, CONTEXT = 512, MOST = 120, TOKEN = 7 };

typedef struct kinds { /* of a rig */
  uint32_t blocks, kept;
  uint32_t kv_heads;       /* 0: those of the model */
  uint32_t rows, few_rows; /* of the main machine, 0: ROWS; of that for few sequences, 0: there is none */
  uint32_t longest;        /* tokens of a sequence; 0: CONTEXT */
  uint32_t prompt_tokens;  /* mk_batch_options */
  uint32_t prompt_slots;   /* of the machine for prompts; 0: one */
  bool prompts, one_row, draws;
  mk_blocks_fault fault;
} kinds;

static inline mk_program *compile(uint32_t rows, uint32_t slots, uint32_t blocks, const kinds *k) {
  mk_config config;
  mk_graph *graph;
  mk_program *program;
  mk_compile_options options = {.sms = 3,
                                .max_seq = k->longest != 0 ? k->longest : (uint32_t)CONTEXT,
                                .rows = rows,
                                .slots = slots,
                                .blocks = blocks};
  cr_assert_eq(mk_synth_shape("tiny", &config), MK_OK);
  config.heads = k->kv_heads != 0 ? k->kv_heads : config.heads;
  config.kv_heads = k->kv_heads != 0 ? k->kv_heads : config.kv_heads;
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
  cr_assert_eq(mk_compile(graph, &options, &program), MK_OK, "%s", mk_error_message());
  mk_graph_free(graph);
  return program;
}

typedef struct rig {
  mk_program *programs[MK_MACHINES];
  mk_batch *batch;
  mk_launch launch;
  uint32_t prompt[CONTEXT];
  double time;
  size_t count;                                         /* sequences so far */
  size_t tokens[MOST], stops[MOST], order[MOST], ended; /* stops: 0: never */
  mk_status status[MOST];
  mk_sequence_report reports[MOST];
  uint64_t ids[MOST];
} rig;

static inline bool on_token(void *user, size_t sequence, uint32_t token, const float *logits) {
  rig *r = user;
  (void)token;
  cr_assert_null(logits);
  return ++r->tokens[sequence] != r->stops[sequence];
}

static inline void on_end(void *user, size_t sequence, mk_status status) {
  rig *r = user;
  r->status[sequence] = status;
  r->order[r->ended++] = sequence;
}

static inline double time_of(void *user) { return ((rig *)user)->time; }

static inline void start(rig *r, kinds k) {
  *r = (rig){.programs = {[MK_MACHINE_MAIN] = compile(k.rows != 0 ? k.rows : (uint32_t)ROWS, 0, k.blocks, &k)}};
  uint32_t blocks = r->programs[0]->ranges.block.high + 1;
  r->programs[MK_MACHINE_PROMPTS] = k.prompts ? compile(MK_PROMPT_ROWS, k.prompt_slots, blocks, &k) : NULL;
  r->programs[MK_MACHINE_ONE_ROW] = k.one_row ? compile(1, 0, blocks, &k) : NULL;
  r->programs[MK_MACHINE_FEW] = k.few_rows != 0 ? compile(k.few_rows, 0, blocks, &k) : NULL;
  mk_batch_options options = {.kept_blocks = k.kept,
                              .prompt_tokens = k.prompt_tokens,
                              .draws = k.draws,
                              .fault = k.fault,
                              .clock = time_of,
                              .clock_user = r};
  for (uint32_t i = 0; i < MK_MACHINES; i++) {
    options.programs[i] = r->programs[i];
  }
  for (uint32_t i = 0; i < CONTEXT; i++) {
    r->prompt[i] = i;
  }
  cr_assert_eq(mk_batch_new(&options, &r->batch), MK_OK, "%s", mk_error_message());
}

static inline mk_status try_add(rig *r, mk_sequence s) {
  const mk_sequence_calls calls = {.token = on_token, .ended = on_end, .user = r};
  cr_assert_lt(r->count, MOST);
  s.prompt = s.prompt == NULL ? r->prompt : s.prompt;
  s.report = &r->reports[r->count];
  mk_status status = mk_batch_add(r->batch, &s, &calls, r->count, &r->ids[r->count]);
  r->count += status == MK_OK;
  return status;
}

static inline void add(rig *r, mk_sequence s) { cr_assert_eq(try_add(r, s), MK_OK, "%s", mk_error_message()); }

static inline void add_all(rig *r, const size_t *prompts, const size_t *predicts, size_t count) {
  for (size_t i = 0; i < count; i++) {
    add(r, (mk_sequence){.prompt_count = prompts[i], .n_predict = predicts[i]});
  }
}

static inline void stop(rig *r) {
  mk_batch_free(r->batch);
  for (uint32_t i = 0; i < MK_MACHINES; i++) {
    mk_program_free(r->programs[i]);
  }
}

static inline uint32_t rows_in(const rig *r) { return mk_program_rows(r->programs[r->launch.machine]); }

static inline void plan(rig *r) {
  mk_batch_plan(r->batch, &r->launch);
  if (r->launch.steps != 0) {
    cr_assert_eq(mk_plan_check(r->programs[r->launch.machine], r->launch.plan, r->launch.steps, r->launch.table), MK_OK,
                 "%s", mk_error_message());
  }
}

static inline void expect_launch(const rig *r, mk_batch_machine machine, uint32_t position) {
  cr_assert_neq(r->launch.steps, 0);
  cr_assert_eq(r->launch.machine, machine, "%d", (int)r->launch.machine);
  cr_assert_eq(r->launch.plan[0].position, position, "%u", r->launch.plan[0].position);
}

static inline mk_slot_view view_of(const rig *r, uint32_t slot) {
  mk_slot_view view;
  cr_assert(mk_batch_slot(r->batch, slot, &view));
  return view;
}

/* A step of the launch at hand: every row that chooses chooses `choice`. */
static inline bool take(rig *r, uint32_t step, uint32_t choice) {
  uint32_t results[MK_PROMPT_ROWS], rows = rows_in(r);
  for (uint32_t line = 0; line < rows; line++) {
    bool chooses = (r->launch.plan[step * rows + line].flags & MK_ROW_CHOOSES) != 0;
    results[line] = chooses ? choice : MK_CANDIDATE_NONE;
  }
  return mk_batch_take(r->batch, step, results, &(mk_batch_extras){0});
}

/* Plans a launch and runs it. Gives the steps that were run. */
static inline uint32_t launch(rig *r) {
  uint32_t step = 0;
  plan(r);
  for (bool more = true; more && step < r->launch.steps; step++) {
    more = take(r, step, TOKEN);
  }
  return step;
}

static inline void run_all(rig *r) {
  while (launch(r) != 0) {
  }
}

static inline uint32_t rows_of(const rig *r, uint32_t step, uint32_t slot) {
  uint32_t count = 0, rows = rows_in(r);
  for (uint32_t line = 0; line < rows; line++) {
    const mk_step_row *row = &r->launch.plan[step * rows + line];
    count += (row->flags & MK_ROW_ACTIVE) != 0 && row->slot == slot;
  }
  return count;
}

#endif
