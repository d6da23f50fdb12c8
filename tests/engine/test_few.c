/* Few sequences go by a machine of fewer rows than the main one, and more by the main one: when, in which slots, how
 * far, and knowing what. (To which bits: test_lone.c; random schedules of an engine: test_schedules.c.) */
#include "tests/engine/batch_rig.h"
#include "tests/support/effort.h"
#include "tests/support/numbers.h"

static const mk_sampling drawn = {.temperature = 1, .top_p = 1, .frequency = 1, .repetition = 1};

static void add_many(rig *r, size_t count, size_t n_predict) {
  for (size_t i = 0; i < count; i++) {
    add(r, (mk_sequence){.prompt_count = 1, .n_predict = n_predict});
  }
}

/* The machine that the next launch, of one step, is made by. */
static mk_batch_machine step_by(rig *r) {
  plan(r);
  cr_assert_neq(r->launch.steps, 0);
  (void)take(r, 0, TOKEN);
  return r->launch.machine;
}

/* Sixteen have room, the seventeenth takes all of them along, and twelve come back. */
Test(few, as_many_as_have_room) {
  rig r;
  mk_batch_counters counters;
  start(&r, (kinds){.rows = 32, .few_rows = MK_MAX_ROWS});
  add_many(&r, 16, 100);
  cr_assert_eq(step_by(&r), MK_MACHINE_FEW);
  add_many(&r, 1, 100);
  cr_assert_eq(step_by(&r), MK_MACHINE_MAIN);
  for (size_t i = 17; i > 13; i--) {
    cr_assert(mk_batch_cancel(r.batch, r.ids[i - 1]));
    cr_assert_eq(step_by(&r), MK_MACHINE_MAIN, "%zu", i - 1);
  }
  cr_assert(mk_batch_cancel(r.batch, r.ids[0]));
  cr_assert_eq(step_by(&r), MK_MACHINE_FEW);
  add_many(&r, 4, 100);
  cr_assert_eq(step_by(&r), MK_MACHINE_FEW);
  mk_batch_count(r.batch, &counters);
  cr_assert(counters.steps == 8 && counters.few_steps == 3);
  stop(&r);
}

/* A prompt goes in the rows that are left, and who is alone then by one row, if there is such a machine. */
Test(few, prompts_and_who_is_alone) {
  rig r;
  start(&r, (kinds){.few_rows = 4, .one_row = true});
  add(&r, (mk_sequence){.prompt_count = 10, .n_predict = 30});
  cr_assert_eq(launch(&r), 3);
  expect_launch(&r, MK_MACHINE_FEW, 0);
  plan(&r);
  expect_launch(&r, MK_MACHINE_ONE_ROW, 10);
  cr_assert(take(&r, 0, TOKEN));
  add(&r, (mk_sequence){.prompt_count = 7, .n_predict = 3});
  cr_assert_not(take(&r, 1, TOKEN));
  cr_assert_eq(launch(&r), 5);
  expect_launch(&r, MK_MACHINE_FEW, 12);
  cr_assert(rows_of(&r, 0, 0) == 1 && rows_of(&r, 0, 1) == 3 && rows_of(&r, 2, 1) == 1);
  run_all(&r);
  cr_assert(r.tokens[0] == 30 && r.tokens[1] == 3);
  stop(&r);
}

/* The main machine and that for few have one turn together: a prompt that waits for its own does not wait for both. */
Test(few, beside_a_prompt_on_its_own_machine) {
  rig r;
  start(&r, (kinds){.few_rows = 4, .prompts = true, .prompt_tokens = 128});
  add_many(&r, 4, 200);
  cr_assert_eq(step_by(&r), MK_MACHINE_FEW);
  add(&r, (mk_sequence){.prompt_count = 400, .n_predict = 5});
  cr_assert_eq(launch(&r), 2, "chunks of 128");
  cr_assert_eq(r.launch.machine, MK_MACHINE_PROMPTS);
  plan(&r);
  cr_assert(r.launch.machine == MK_MACHINE_FEW && r.launch.steps == MK_DECODE_STEPS);
  cr_assert(take(&r, 0, TOKEN));
  add_many(&r, 1, 200);
  cr_assert_not(take(&r, 1, TOKEN));
  cr_assert_eq(launch(&r), 2);
  cr_assert_eq(r.launch.machine, MK_MACHINE_PROMPTS, "the main machine has no turn of its own");
  cr_assert_eq(launch(&r), MK_DECODE_STEPS);
  cr_assert_eq(r.launch.machine, MK_MACHINE_MAIN);
  run_all(&r);
  cr_assert_eq(r.ended, 6);
  stop(&r);
}

/* Of steps of many rows fewer are a turn: else prompts would come so slowly that few generate at once. */
Test(few, a_turn_of_many) {
  rig r;
  start(&r, (kinds){.rows = 32, .few_rows = MK_MAX_ROWS, .prompts = true});
  add_many(&r, 17, 200);
  cr_assert_eq(step_by(&r), MK_MACHINE_MAIN);
  add(&r, (mk_sequence){.prompt_count = 400, .n_predict = 5});
  cr_assert_neq(launch(&r), 0);
  cr_assert_eq(r.launch.machine, MK_MACHINE_PROMPTS);
  add(&r, (mk_sequence){.prompt_count = 400, .n_predict = 5});
  cr_assert_eq(launch(&r), MK_DECODE_STEPS / 2);
  cr_assert_eq(r.launch.machine, MK_MACHINE_MAIN);
  stop(&r);
}

/* One that draws by the engine's parameters, which the main machine alone has been told of, keeps all of them there. */
Test(few, drawn_as_the_engine_says) {
  rig r;
  start(&r, (kinds){.few_rows = 4, .draws = true});
  add(&r, (mk_sequence){.prompt_count = 1, .n_predict = 20, .sampling = &drawn});
  cr_assert_eq(step_by(&r), MK_MACHINE_FEW);
  add(&r, (mk_sequence){.prompt_count = 1, .n_predict = 5});
  cr_assert_eq(step_by(&r), MK_MACHINE_MAIN);
  cr_assert(mk_batch_cancel(r.batch, r.ids[1]));
  cr_assert_eq(step_by(&r), MK_MACHINE_FEW);
  stop(&r);
}

/* Who stays has its slot again, whoever goes; who comes, from the main machine or from nowhere, has one that is free,
 * and the machine has to be told. */
Test(few, who_has_which_slot_and_is_known) {
  rig r;
  start(&r, (kinds){.rows = 8, .few_rows = 4, .draws = true});
  for (size_t i = 0; i < 5; i++) {
    add(&r, (mk_sequence){.prompt_count = 1 + i, .n_predict = 100, .sampling = &drawn});
  }
  cr_assert_eq(step_by(&r), MK_MACHINE_MAIN);
  cr_assert(mk_batch_cancel(r.batch, r.ids[0]));
  cr_assert(mk_batch_cancel(r.batch, r.ids[2]));
  static const uint32_t stay[] = {2, 4, 5}; /* tokens of prompts */
  for (uint32_t turn = 0; turn < 2; turn++) {
    cr_assert_eq(step_by(&r), MK_MACHINE_FEW);
    for (uint32_t slot = 0; slot < 3; slot++) {
      const mk_slot_view view = view_of(&r, slot);
      cr_assert(view.prompt_count == stay[slot] && view.fresh == (turn == 0) && view.crosses == (turn == 0));
    }
  }
  cr_assert(mk_batch_cancel(r.batch, r.ids[1]));
  add(&r, (mk_sequence){.prompt_count = 9, .n_predict = 100, .sampling = &drawn});
  plan(&r);
  cr_assert_eq(r.launch.machine, MK_MACHINE_FEW);
  cr_assert(view_of(&r, 0).prompt_count == 9 && view_of(&r, 0).fresh && !view_of(&r, 0).crosses);
  cr_assert(view_of(&r, 1).prompt_count == 4 && !view_of(&r, 1).fresh && view_of(&r, 1).went_on);
  stop(&r);
}

/* ---- Whatever comes and goes ---- */

enum { BLOCKS = 24, BLOCK = 64, FEW_SLOTS = 4, LONGEST_PROMPT = 150, MOST_ANSWER = 250 };

/* Machines that compute nothing, but remember what they would have: of every place in the KV cache what lies there, and
 * of every slot of theirs by what it is drawn, and how many of the tokens of its sequence it has counted. */
typedef struct memory {
  uint64_t cache[BLOCKS][BLOCK]; /* stands for all tokens of a sequence up to there */
  const mk_sampling *parameters[MK_MACHINES][ROWS];
  uint32_t counted[MK_MACHINES][ROWS], columns[MK_MACHINES]; /* columns: of the block table */
  mk_sampling samplings[MOST];                               /* of sequences */
  uint64_t random, preemptions;
  mk_batch_machine last; /* the main one or that for few; MK_MACHINES: which of the two it would be is not known */
  uint32_t launches[MK_MACHINES], crossings, shared; /* shared: steps of several prompts */
} memory;

static uint32_t below(memory *m, uint32_t end) { return test_random_below(&m->random, end); }

static uint64_t follow(uint64_t before, uint32_t token) {
  return (before ^ (token + 1)) * UINT64_C(0x9E3779B97F4A7C15) + 1;
}

/* Between 4 and 3 sequences it depends on which machine they come from. */
static void expect_machine(const rig *r, memory *m, uint32_t parts) {
  mk_batch_counters counters;
  const mk_batch_machine machine = r->launch.machine;
  mk_batch_count(r->batch, &counters);
  m->last = counters.preemptions != m->preemptions ? MK_MACHINES : m->last;
  m->preemptions = counters.preemptions;
  m->launches[machine]++;
  if (machine == MK_MACHINE_MAIN) {
    cr_assert_gt(parts, m->last == MK_MACHINE_FEW ? FEW_SLOTS : FEW_SLOTS - 1);
  } else {
    const uint32_t few = m->last == MK_MACHINE_MAIN ? FEW_SLOTS - 1 : FEW_SLOTS;
    cr_assert_leq(parts, machine == MK_MACHINE_FEW ? few : mk_program_slots(r->programs[machine]));
  }
  m->last = machine == MK_MACHINE_PROMPTS ? MK_MACHINES : machine == MK_MACHINE_ONE_ROW ? MK_MACHINE_FEW : machine;
}

/* As engine/slots.c does it. Gives how many sequences take part. */
static uint32_t tell_slots(const rig *r, memory *m) {
  mk_slot_view view;
  uint32_t parts = 0;
  const mk_batch_machine machine = r->launch.machine;
  for (uint32_t slot = 0; slot < mk_program_slots(r->programs[machine]); slot++) {
    if (mk_batch_slot(r->batch, slot, &view)) {
      m->parameters[machine][slot] = view.fresh ? view.sampling : m->parameters[machine][slot];
      m->counted[machine][slot] = view.fresh || view.went_on ? view.computed : m->counted[machine][slot];
      m->crossings += view.crosses;
      parts++;
      cr_assert_gt(rows_of(r, 0, slot), 0, "every sequence goes on");
    }
  }
  return parts;
}

/* A row finds in the cache what its sequence has there, is drawn as its sequence is, and has its token. */
static void compute_row(const rig *r, memory *m, const mk_step_row *row) {
  const mk_batch_machine machine = r->launch.machine;
  const mk_slot_view view = view_of(r, row->slot);
  const uint32_t *blocks = r->launch.table + row->slot * m->columns[machine], at = row->position;
  uint64_t want = 0;
  for (uint32_t i = 0; i < at; i++) {
    want = follow(want, view.tokens[i]);
  }
  cr_assert_lt(at, view.count);
  cr_assert(at == 0 || m->cache[blocks[(at - 1) / BLOCK]][(at - 1) % BLOCK] == want,
            "machine %d, slot %u: something else lies before position %u", (int)machine, row->slot, at);
  cr_assert(row->token == MK_TOKEN_CHOSEN || row->token == view.tokens[at]);
  m->cache[blocks[at / BLOCK]][at % BLOCK] = follow(want, view.tokens[at]);
  if (machine != MK_MACHINE_PROMPTS) { /* which is greedy */
    cr_assert_eq(m->parameters[machine][row->slot], view.sampling, "machine %d, slot %u", (int)machine, row->slot);
    cr_assert_eq(m->counted[machine][row->slot]++, at, "machine %d, slot %u", (int)machine, row->slot);
  }
}

/* Prompts begin alike, and are long or short; there are many for a while, and then few. */
static void come_and_go(rig *r, memory *m) {
  const size_t most = r->count / 10 % 2 == 0 ? 2 : 2 * ROWS;
  for (uint32_t i = below(m, 3); i > 0 && r->count < MOST && mk_batch_left(r->batch) < most; i--) {
    mk_sampling *sampling = &m->samplings[r->count];
    *sampling = drawn;
    add(r, (mk_sequence){.prompt = r->prompt + 64 * below(m, 3),
                         .prompt_count = 1 + below(m, below(m, 2) == 0 ? (uint32_t)LONGEST_PROMPT : 12),
                         .n_predict = 1 + below(m, MOST_ANSWER),
                         .sampling = sampling});
  }
  if (r->count != 0 && below(m, 3) == 0) {
    (void)mk_batch_cancel(r->batch, r->ids[r->count - 1 - below(m, r->count < 8 ? (uint32_t)r->count : 8)]);
  }
}

static void run_launch(rig *r, memory *m) {
  const mk_batch_machine machine = r->launch.machine;
  const uint32_t rows = rows_in(r);
  bool more = true;
  uint32_t step = 0;
  for (; more && step < r->launch.steps; step++) {
    for (uint32_t line = 0; line < rows; line++) {
      const mk_step_row *row = &r->launch.plan[step * rows + line];
      mk_slot_view view; /* none: the sequence has ended, and the machine goes on */
      if ((row->flags & MK_ROW_ACTIVE) != 0 && mk_batch_slot(r->batch, row->slot, &view)) {
        compute_row(r, m, row);
      }
    }
    if (below(m, 16) == 0) {
      come_and_go(r, m);
    }
    more = take(r, step, below(m, CONTEXT));
  }
  for (uint32_t slot = 0; slot < mk_program_slots(r->programs[machine]) && step < r->launch.steps; slot++) {
    m->counted[machine][slot] += below(m, 3); /* it has gone on before it heard that it should not */
  }
}

static void open_memory(const rig *r, memory *m) {
  for (uint32_t i = 0; i < MK_MACHINES; i++) {
    mk_plan_buffers buffers;
    const mk_program *program = r->programs[i];
    if (program != NULL) {
      cr_assert_eq(mk_plan_find(program, &buffers), MK_OK);
      m->columns[i] = program->buffers[buffers.table].cols;
    }
  }
}

/* From a seed: adds to `total` how many launches there were, of each machine, and how many crossings. */
static void run_seed(uint64_t seed, memory *total) {
  rig r;
  memory *m;
  cr_assert_eq(mk_alloc(1, sizeof *m, &m), MK_OK);
  *m = (memory){.random = seed, .last = MK_MACHINE_FEW};
  start(&r, (kinds){.few_rows = FEW_SLOTS,
                    .blocks = BLOCKS - below(m, 16),
                    .kept = below(m, 8),
                    .prompts = below(m, 2) == 0,
                    .prompt_slots = below(m, 2) == 0 ? 3 : 0,
                    .one_row = below(m, 2) == 0,
                    .draws = true});
  open_memory(&r, m);
  while (r.count < MOST || mk_batch_left(r.batch) != 0) {
    come_and_go(&r, m);
    plan(&r);
    if (r.launch.steps != 0) {
      const uint32_t parts = tell_slots(&r, m);
      expect_machine(&r, m, parts);
      m->shared += r.launch.machine == MK_MACHINE_PROMPTS && parts > 1;
      run_launch(&r, m);
    }
  }
  cr_assert_eq(r.ended, MOST);
  for (uint32_t i = 0; i < MK_MACHINES; i++) {
    total->launches[i] += m->launches[i];
  }
  total->crossings += m->crossings;
  total->shared += m->shared;
  total->preemptions += m->preemptions;
  mk_free(m);
  stop(&r);
}

Test(few, every_row_is_right_whatever_comes_and_goes) {
  static memory total;
  const uint32_t seeds = test_repeats(30, 300);
  for (uint64_t seed = 1; seed <= seeds; seed++) {
    run_seed(seed, &total);
  }
  for (uint32_t i = 0; i < MK_MACHINES; i++) {
    cr_assert_gt(total.launches[i], 5 * seeds, "machine %u: %u launches", i, total.launches[i]);
  }
  cr_assert(total.crossings > 10 * seeds && total.preemptions != 0 && total.shared > seeds / 3,
            "%u crossings, %u preemptions, %u steps of several prompts", total.crossings, (uint32_t)total.preemptions,
            total.shared);
}
