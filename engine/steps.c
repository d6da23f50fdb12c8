/* An engine at work: launches of its batch, on whichever of its machines has its turn. See engine_internal.h. */
#include <stdio.h>
#include <string.h>

#include "engine/engine_internal.h"
#include "scheduler/compile.h"

typedef struct at_work { /* a launch */
  mk_engine *engine;
  const mk_launch *launch;
  const mk_engine_machine *machine;
  uint32_t rows; /* of its program */
  bool records;  /* some of it is to be recorded */
} at_work;

mk_status mk_engine_open_batch(mk_engine *engine, const mk_engine_options *options) {
  const uint64_t kept = options->prefix_tokens / MK_BLOCK_TOKENS;
  mk_batch_options batch = {
      .draws = mk_engine_main(engine)->counts >= 0,
      .most = options->most_sequences,
      .kept_blocks = kept < UINT32_MAX ? (uint32_t)kept : UINT32_MAX,
      .prompt_tokens = options->prompt_tokens,
      .decode_steps = options->decode_steps,
      .position_shift = options->tamper == NULL ? 0 : options->tamper->position_shift,
      .fault = options->tamper == NULL ? MK_BLOCKS_SOUND : options->tamper->blocks,
      .clock = options->clock,
      .clock_user = options->clock_user,
  };
  for (uint32_t i = 0; i < MK_MACHINES; i++) {
    batch.programs[i] = engine->machines[i].program;
  }
  return mk_batch_new(&batch, &engine->batch);
}

/* ---- A launch ---- */

/* Hears what comes from outside, at the boundary of a step. */
static void look_around(mk_engine *engine) {
  if (engine->poll != NULL) {
    engine->poll(engine->poll_user);
  }
  mk_batch_expire(engine->batch);
}

/* Takes the results of a step; false: the launch had better end. */
static bool take_step(mk_engine *engine, uint32_t step, const uint32_t *results, const mk_batch_extras *extras) {
  uint64_t before, done, total;
  if (mk_engine_cancelled(engine)) {
    return false;
  }
  look_around(engine);
  engine->recording.steps++;
  mk_batch_prompts(engine->batch, &before, &total);
  bool more = mk_batch_take(engine->batch, step, results, extras);
  mk_batch_prompts(engine->batch, &done, &total);
  if (done != before && engine->prompt_progress != NULL) {
    engine->prompt_progress(engine->progress_user, done, total);
  }
  return more && !mk_engine_cancelled(engine);
}

static bool on_step(void *user, uint32_t step, const uint32_t *results) {
  const at_work *w = user;
  mk_cpu *cpu = w->machine->cpu;
  const mk_batch_extras extras = {.logits = cpu == NULL ? NULL : mk_cpu_memory(cpu, (size_t)w->machine->logits)};
  return take_step(w->engine, step, results, &extras);
}

static bool has_choice(const mk_launch *launch, uint32_t step, uint32_t rows) {
  bool chooses = false;
  for (uint32_t row = 0; row < rows; row++) {
    chooses = chooses || (launch->plan[(size_t)step * rows + row].flags & MK_ROW_CHOOSES) != 0;
  }
  return chooses;
}

/* How many steps a launch has up to the first one in which a row chooses. */
static uint32_t steps_to_choice(const mk_launch *launch, uint32_t rows) {
  uint32_t steps = 1;
  while (steps < launch->steps && !has_choice(launch, steps - 1, rows)) {
    steps++;
  }
  return steps;
}

/* Reads the logits of a step's rows, from the first row that chooses to the last. */
static mk_status read_logits(at_work *w, uint32_t step) {
  mk_engine *engine = w->engine;
  uint32_t first = w->rows, end = 0;
  if (engine->logits_copy == NULL) {
    size_t most = (size_t)MK_MOST_ROWS * engine->config.vocab; /* of any machine; few of its pages are ever touched */
    MK_TRY(mk_alloc(most, sizeof *engine->logits_copy, &engine->logits_copy));
  }
  for (uint32_t line = 0; line < w->rows; line++) {
    if ((w->launch->plan[(size_t)step * w->rows + line].flags & MK_ROW_CHOOSES) != 0) {
      first = line < first ? line : first;
      end = line + 1;
    }
  }
  uint64_t at = (uint64_t)first * engine->config.vocab, bytes = sizeof *engine->logits_copy;
  return end == 0 ? MK_OK
                  : mk_gpu_read(w->machine->gpu, (size_t)w->machine->logits, at * bytes, engine->logits_copy + at,
                                (uint64_t)(end - first) * engine->config.vocab * bytes);
}

/* A launch of the GPU that is a part of the batch's launch: its steps up to one in which rows choose, so that the
 * logits of the last step can be read. */
typedef struct flight {
  at_work *work;
  uint32_t first, steps;          /* first: that step of the batch's launch */
  uint32_t seen;                  /* how many steps have results */
  uint32_t results[MK_MOST_ROWS]; /* those of the last step */
  mk_gpu_rank_row rows[MK_MOST_SHARED_ROWS + 1];
  mk_ranking found[MK_MOST_SHARED_ROWS];
  mk_gpu_ranks ranks;
} flight;

static bool keep_results(void *user, uint32_t step, const uint32_t *results) {
  flight *f = user;
  f->seen = step + 1;
  memcpy(f->results, results, f->work->rows * sizeof *results);
  return !mk_engine_cancelled(f->work->engine);
}

/* Lists which rows of the flight's last step are to be ranked, and makes room for the rankings. */
static mk_status prepare_ranks(flight *f, uint32_t most) {
  const at_work *w = f->work;
  mk_engine *engine = w->engine;
  if (engine->rankings == NULL) {
    MK_TRY(mk_alloc(MK_MOST_ROWS, sizeof *engine->rankings, &engine->rankings));
  }
  f->ranks = (mk_gpu_ranks){.buffer = (size_t)w->machine->logits, .rows = f->rows, .most = most, .out = f->found};
  for (uint32_t line = 0; line < w->rows; line++) {
    mk_gpu_rank_row *row = &f->rows[f->ranks.count];
    row->line = line;
    f->ranks.count += mk_batch_ranked(engine->batch, f->first + f->steps - 1, line, &row->token);
  }
  return MK_OK;
}

static mk_status queue(at_work *w, flight *f, uint32_t first, uint32_t steps, const mk_step_row *plan,
                       const mk_batch_wants *wants) {
  f->work = w; /* not all of the flight, which is large: the GPU may be waiting */
  f->first = first;
  f->steps = steps;
  f->seen = 0;
  f->ranks = (mk_gpu_ranks){0};
  MK_TRY(wants->rankings ? prepare_ranks(f, wants->most) : MK_OK);
  return mk_gpu_enqueue(w->machine->gpu, plan, steps, wants->rankings ? &f->ranks : NULL);
}

/* The token that the slot's last row chose in the flight's last step; false: no row of it chose, or not a token. */
static bool find_choice(const flight *f, uint32_t slot, uint32_t *token) {
  const at_work *w = f->work;
  const mk_step_row *last = w->launch->plan + (size_t)(f->first + f->steps - 1) * w->rows;
  bool found = false;
  for (uint32_t line = 0; line < w->rows; line++) {
    const bool chose = (last[line].flags & (MK_ROW_ACTIVE | MK_ROW_CHOOSES)) == (MK_ROW_ACTIVE | MK_ROW_CHOOSES);
    if (chose && last[line].slot == slot) {
      *token = f->results[line];
      found = *token <= w->machine->program->ranges.token.high;
    }
  }
  return found;
}

/* Plans the step after the flight with all of its tokens given; false: there is no such step, or no row chooses in it,
 * or not all tokens that it goes on from are there. */
static bool plan_next(const flight *f, mk_step_row *rows) {
  const at_work *w = f->work;
  const uint32_t step = f->first + f->steps;
  if (f->seen != f->steps || step >= w->launch->steps || !has_choice(w->launch, step, w->rows)) {
    return false;
  }
  bool good = true;
  memcpy(rows, w->launch->plan + (size_t)step * w->rows, w->rows * sizeof *rows);
  for (uint32_t line = 0; line < w->rows && good; line++) {
    const bool chosen = (rows[line].flags & MK_ROW_ACTIVE) != 0 && rows[line].token == MK_TOKEN_CHOSEN;
    good = !chosen || find_choice(f, rows[line].slot, &rows[line].token);
  }
  return good;
}

/* Waits for the end of the flight and tells its results. *more: the batch's launch may go on. */
static mk_status finish(at_work *w, flight *f, const mk_batch_wants *wants, bool *more) {
  mk_engine *engine = w->engine;
  MK_TRY(mk_gpu_finish(w->machine->gpu));
  engine->busy.steps_ms += mk_gpu_time_ms(w->machine->gpu);
  engine->busy.ranks_ms += mk_gpu_rank_ms(w->machine->gpu);
  for (uint32_t i = 0; i < f->ranks.count; i++) {
    engine->rankings[f->rows[i].line] = f->found[i];
  }
  MK_TRY(wants->logits ? read_logits(w, f->first + f->steps - 1) : MK_OK);
  const mk_batch_extras extras = {.logits = wants->logits ? engine->logits_copy : NULL,
                                  .rankings = wants->rankings ? engine->rankings : NULL};
  *more = true;
  for (uint32_t step = f->first; step < f->first + f->steps && !mk_engine_cancelled(engine); step++) {
    *more = take_step(engine, step, f->results, &extras); /* none before the last one chooses */
  }
  *more = *more && !mk_engine_cancelled(engine);
  return MK_OK;
}

/* The next step is queued as soon as the tokens that it goes on from are there, and computed while the host takes the
 * rankings of the one before; but not where logits themselves are wanted, which it would overwrite. When it turns out
 * that the launch had better end, that step is the last one, and sequences that have ended meanwhile have no part in
 * it. */
static mk_status run_with_logits(at_work *w, const mk_batch_wants *wants) {
  mk_gpu *gpu = w->machine->gpu;
  flight flights[2];
  mk_step_row plan[MK_MOST_ROWS];
  bool more = true;
  flight *f = &flights[0];
  MK_TRY(queue(w, f, 0, steps_to_choice(w->launch, w->rows), w->launch->plan, wants));
  for (;;) {
    MK_TRY(mk_gpu_follow(gpu, keep_results, f));
    flight *next = &flights[f == flights];
    const bool may = more && !wants->logits && !w->records && !mk_engine_cancelled(w->engine);
    const bool goes_on = may && plan_next(f, plan);
    MK_TRY(goes_on ? queue(w, next, f->first + f->steps, 1, plan, wants) : MK_OK);
    MK_TRY(finish(w, f, wants, &more));
    if (!goes_on) {
      return MK_OK;
    }
    f = next;
  }
}

/* ---- A launch, whole ---- */

/* The launch of the batch. */
static mk_status run_steps(at_work *w, void *user) {
  (void)user;
  mk_engine *engine = w->engine;
  const mk_launch *launch = w->launch;
  const mk_engine_machine *machine = w->machine;
  size_t table = (size_t)machine->table;
  MK_TRY(mk_engine_prepare_slots(engine, machine));
  MK_TRY(mk_engine_write(machine, table, 0, launch->table, machine->program->buffers[table].bytes));
  if (machine->gpu == NULL) {
    return mk_cpu_run_plan(machine->cpu, launch->plan, launch->steps, on_step, w);
  }
  mk_batch_wants wants = mk_batch_wants_of(engine->batch);
  wants.logits = wants.logits || engine->want_logits;
  if (wants.rankings && mk_gpu_rank_count(machine->gpu) > 1) { /* the host ranks, by logits from all of them */
    wants.rankings = false;
    wants.logits = true;
  }
  if (wants.logits || wants.rankings) {
    return run_with_logits(w, &wants);
  }
  MK_TRY(mk_gpu_run_plan(machine->gpu, launch->plan, launch->steps, on_step, w));
  engine->busy.steps_ms += mk_gpu_time_ms(machine->gpu);
  return MK_OK;
}

static mk_recorded_launch recorded_launch(const at_work *w) {
  const mk_launch *launch = w->launch;
  const uint32_t last = steps_to_choice(launch, w->rows) - 1;
  return (mk_recorded_launch){.program = w->machine->program,
                              .cpu = w->machine->cpu,
                              .gpu = w->machine->gpu,
                              .steps = launch->steps,
                              .chooses = has_choice(launch, last, w->rows) ? last : launch->steps};
}

/* Makes a launch by `steps`, and records it where that is asked for. */
static mk_status run_launch(mk_engine *engine, const mk_launch *launch, mk_status (*steps)(at_work *w, void *user),
                            void *user) {
  const mk_engine_machine *machine = &engine->machines[launch->machine];
  at_work w = {.engine = engine, .launch = launch, .machine = machine, .rows = mk_program_rows(machine->program)};
  const mk_recorded_launch recorded = recorded_launch(&w);
  MK_TRY(mk_recording_start(&engine->recording, &recorded, &w.records));
  return mk_recording_stop(&engine->recording, &recorded, w.records, steps(&w, user));
}

bool mk_engine_lost(const mk_engine *engine) {
  for (uint32_t i = 0; i < MK_MACHINES; i++) {
    if (engine->machines[i].gpu != NULL && mk_gpu_lost(engine->machines[i].gpu)) {
      return true;
    }
  }
  return false;
}

mk_status mk_engine_step(mk_engine *engine, size_t *left) {
  mk_launch launch;
  mk_status status = MK_OK;
  look_around(engine);
  mk_batch_plan(engine->batch, &launch);
  if (launch.steps != 0) {
    status = run_launch(engine, &launch, run_steps, NULL);
    if (status != MK_OK) {
      mk_batch_fail(engine->batch, status);
    }
  }
  *left = mk_batch_left(engine->batch);
  return status;
}

/* ---- A launch of the caller's ---- */

typedef struct listener { /* who made the plan */
  mk_recording *recording;
  mk_step_fn fn; /* NULL: nobody is told */
  void *user;
} listener;

static bool on_own_step(void *user, uint32_t step, const uint32_t *results) {
  const listener *l = user;
  l->recording->steps++;
  return l->fn == NULL || l->fn(l->user, step, results);
}

static mk_status run_own_steps(at_work *w, void *user) {
  const mk_launch *launch = w->launch;
  return w->machine->gpu != NULL ? mk_gpu_run_plan(w->machine->gpu, launch->plan, launch->steps, on_own_step, user)
                                 : mk_cpu_run_plan(w->machine->cpu, launch->plan, launch->steps, on_own_step, user);
}

mk_status mk_engine_run_plan(mk_engine *engine, const mk_step_row *plan, uint32_t steps, mk_step_fn fn, void *user) {
  const mk_launch launch = {.machine = MK_MACHINE_MAIN, .plan = plan, .steps = steps};
  listener l = {.recording = &engine->recording, .fn = fn, .user = user};
  return steps == 0 ? MK_OK : run_launch(engine, &launch, run_own_steps, &l);
}

/* ---- Sequences ---- */

mk_status mk_engine_submit(mk_engine *engine, const mk_sequence *sequence, const mk_sequence_calls *calls, size_t tag,
                           uint64_t *id) {
  return mk_batch_add(engine->batch, sequence, calls, tag, id);
}

bool mk_engine_cancel(mk_engine *engine, uint64_t id) { return mk_batch_cancel(engine->batch, id); }

void mk_engine_count(const mk_engine *engine, mk_batch_counters *out) { mk_batch_count(engine->batch, out); }

mk_engine_busy mk_engine_busy_of(const mk_engine *engine) { return engine->busy; }

/* Makes launches until all sequences have ended, or the machine fails. With a program of one slot a failure ends its
 * sequence, and the next one begins. */
static mk_status run_all(mk_engine *engine) {
  const bool one_slot = mk_program_slots(mk_engine_main(engine)->program) == 1;
  mk_status status = MK_OK;
  size_t left = mk_batch_left(engine->batch);
  while (left != 0 && !mk_engine_cancelled(engine) && (status == MK_OK || one_slot)) {
    size_t before = left;
    status = mk_engine_step(engine, &left);
    if (status != MK_OK && left == before) {
      break; /* nobody was there to be told */
    }
  }
  mk_batch_drop(engine->batch);
  return one_slot && left == 0 ? MK_OK : status;
}

mk_status mk_engine_generate_all(mk_engine *engine, const mk_sequence *sequences, size_t count,
                                 const mk_sequence_calls *calls) {
  for (size_t i = 0; i < count; i++) {
    mk_sequence s = sequences[i];
    s.alone = s.alone || mk_program_slots(mk_engine_main(engine)->program) == 1; /* whoever comes, it has no company */
    mk_status status = mk_engine_submit(engine, &s, calls, i, NULL);
    if (status == MK_ERR_USAGE) {
      calls->ended(calls->user, i, status);
    } else if (status != MK_OK) {
      mk_batch_drop(engine->batch);
      return status;
    }
  }
  return run_all(engine);
}

typedef struct alone { /* the only sequence */
  mk_token_fn fn;
  void *user;
  mk_status status;
  char message[512];
} alone;

static bool alone_token(void *user, size_t sequence, uint32_t token, const float *logits) {
  alone *a = user;
  (void)sequence;
  return a->fn(a->user, token, logits);
}

static void alone_ended(void *user, size_t sequence, mk_status status) {
  alone *a = user;
  (void)sequence;
  a->status = status;
  snprintf(a->message, sizeof a->message, "%s", mk_error_message());
}

mk_status mk_engine_generate(mk_engine *engine, const uint32_t *prompt, size_t prompt_count, size_t n_predict,
                             mk_token_fn fn, void *user) {
  alone a = {.fn = fn, .user = user};
  const mk_sequence sequence = {.prompt = prompt, .prompt_count = prompt_count, .n_predict = n_predict, .alone = true};
  const mk_sequence_calls calls = {.token = alone_token, .ended = alone_ended, .user = &a};
  MK_TRY(mk_engine_submit(engine, &sequence, &calls, 0, NULL));
  MK_TRY(run_all(engine));
  return a.status == MK_OK ? MK_OK : mk_error(a.status, "%s", a.message);
}
