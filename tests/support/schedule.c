/* See schedule.h: a schedule at work, and the judge. */
#include <stdarg.h>
#include <string.h>

#include "tests/support/numbers.h"
#include "tests/support/schedule_internal.h"

enum { MOST_BOUNDARIES = 100000, TICKS = 9 /* a step takes at most */ };

const char *const schedule_count_names[SCHEDULE_COUNTS] = {
    "schedules", "interleaved", "requests",       "whole",       "cancelled",       "late",  "NaN",
    "struck",    "refused",     "machine faults", "preemptions", "tokens compared", "asked", "cached",
    "launches",  "steps",       "of one row",     "of few",      "crossings",
};

const schedule_plant schedule_plants[] = {
    {"free-early", "a block is freed one step early", {.blocks = MK_BLOCKS_FREE_EARLY}},
    {"collide", "a hit on a collision of hashes", {.blocks = MK_BLOCKS_COLLIDE}},
    {"neighbour",
     "what a request is drawn by, its seed too, goes to the slot beside its own",
     {.swaps_sampling = true}},
    {"forgetful",
     "a machine by which a request goes on is not told of the tokens that it has had",
     {.forgets_counts = true}},
};
const size_t schedule_plant_count = sizeof schedule_plants / sizeof schedule_plants[0];

void schedule_add(schedule_counts *into, const schedule_counts *from) {
  for (size_t i = 0; i < SCHEDULE_COUNTS; i++) {
    into->n[i] += from->n[i];
  }
  into->most_overtaken = from->most_overtaken > into->most_overtaken ? from->most_overtaken : into->most_overtaken;
}

typedef enum state { TO_COME, IN, OUT } state;

typedef struct request { /* an ask at work */
  const schedule_text *text;
  state state;
  bool refused, cancelled; /* cancelled: its caller has said so */
  uint64_t id;
  uint32_t tokens, want; /* want: unless something ends it before */
  mk_batch_machine by;   /* of its last token: of one row, for few, or else the main one */
  double arrived, ended;
  double soon; /* the boundary after the one at which it came; 0: that has not been */
  bool fits;   /* at both there was room for all */
  mk_sequence_report report;
} request;

typedef struct run {
  schedule_world *world;
  schedule schedule;
  const schedule_options *options;
  mk_engine *engine;
  request requests[SCHEDULE_ASKS];
  uint32_t left;                    /* to come, or in */
  uint64_t random;                  /* how long steps take */
  double time, before;              /* of this boundary, and of the one before it */
  uint32_t boundaries, in_launches; /* all, and those that a step of a launch has come to */
  mk_batch_counters counted;        /* at the last boundary */
  uint32_t faults;                  /* of the schedule, that have been */
  /* These are of the call of mk_engine_step at hand: */
  uint32_t in_call;                 /* boundaries */
  bool broken;                      /* the block table names blocks that do not exist */
  uint32_t nan, struck;             /* ended so */
  char wrong[512];                  /* what the judge has found first */
  uint32_t prompt[SCHEDULE_PROMPT]; /* of the last arrival: the engine makes a copy */
  schedule_counts counts;
} run;

__attribute__((format(printf, 2, 3))) static void wrong(run *r, const char *format, ...) {
  if (r->wrong[0] == '\0') {
    int at =
        snprintf(r->wrong, sizeof r->wrong, "seed %llu, time %.0f: ", (unsigned long long)r->schedule.seed, r->time);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(r->wrong + at, sizeof r->wrong - (size_t)at, format, arguments);
    va_end(arguments);
  }
}

/* ---- What the engine tells ---- */

/* Tells by which machine a token came: the one that has made the step since the last boundary. */
static void note_machine(run *r, request *q) {
  mk_batch_counters counters;
  mk_engine_count(r->engine, &counters);
  const mk_batch_machine by = counters.one_row_steps != r->counted.one_row_steps ? MK_MACHINE_ONE_ROW
                              : counters.few_steps != r->counted.few_steps       ? MK_MACHINE_FEW
                                                                                 : MK_MACHINE_MAIN;
  r->counts.n[SCHEDULE_CROSSINGS] += q->tokens != 0 && by != q->by;
  q->by = by;
}

static bool on_token(void *user, size_t i, uint32_t token, const float *logits) {
  run *r = user;
  request *q = &r->requests[i];
  const schedule_text *text = q->text;
  note_machine(r, q);
  uint32_t n = q->tokens++;
  if (q->state != IN || n >= text->count) {
    wrong(r, "request %zu: token %u is told of; alone it has %u, and then %s", i, n, text->count,
          q->state == IN ? "it fails" : "it has ended");
    return false;
  }
  if (token != text->tokens[n] || schedule_world_bits(r->world, logits) != text->bits[n]) {
    wrong(r, "request %zu: token %u is %u; alone it is %u%s", i, n, token, text->tokens[n],
          token == text->tokens[n] ? ", of other logits" : "");
  }
  r->counts.n[SCHEDULE_TOKENS]++;
  return q->tokens != r->schedule.asks[i].stop;
}

static bool is_due(double deadline, double time) { return deadline != 0 && time >= deadline; }

static void judge_late(run *r, size_t i) {
  const schedule_ask *ask = &r->schedule.asks[i];
  const request *q = &r->requests[i];
  bool whole_time = is_due(ask->end_by, r->time), waiting = !q->report.begun && is_due(ask->begin_by, r->time);
  if (!whole_time && !waiting) {
    wrong(r, "request %zu has ended as late; it had time to wait until %.0f, and to end until %.0f", i, ask->begin_by,
          ask->end_by);
  }
  r->counts.n[SCHEDULE_LATE]++;
}

static void judge_failure(run *r, size_t i, mk_status status) {
  const request *q = &r->requests[i];
  if (status == q->text->status && q->tokens == q->text->count && q->report.begun) {
    r->nan++;
    r->counts.n[SCHEDULE_NAN]++;
  } else if (r->broken && status == MK_ERR_DEVICE && q->report.begun) {
    r->struck++;
    r->counts.n[SCHEDULE_STRUCK]++;
  } else {
    wrong(r, "request %zu fails after %u tokens: %s", i, q->tokens, mk_error_message());
  }
}

static void judge_report(run *r, size_t i) {
  const request *q = &r->requests[i];
  const mk_sequence_report *report = &q->report;
  const schedule_ask *ask = &r->schedule.asks[i];
  if (report->begun &&
      (report->begun_at < q->arrived || report->begun_at > r->time || is_due(ask->begin_by, report->begun_at))) {
    wrong(r, "request %zu came at %.0f, and began at %.0f; it had time to wait until %.0f", i, q->arrived,
          report->begun_at, ask->begin_by);
  }
  if (report->cached % MK_BLOCK_TOKENS != 0 || report->cached >= q->text->prompt_count ||
      (report->cached != 0 && (!report->begun || r->schedule.shape.prefix_tokens == 0))) {
    wrong(r, "request %zu: %u of %u tokens were known", i, report->cached, q->text->prompt_count);
  }
  if (!report->begun && (q->tokens != 0 || report->preemptions != 0)) {
    wrong(r, "request %zu has not begun, and has %u tokens and %u preemptions", i, q->tokens, report->preemptions);
  }
  if (q->fits && q->soon != 0 && report->begun && report->begun_at > q->soon) {
    wrong(r, "request %zu came at %.0f, and began at %.0f, though there was room at %.0f", i, q->arrived,
          report->begun_at, q->soon);
  }
  /* The boundary before this one had ended it. */
  if (q->arrived <= r->before &&
      (is_due(ask->end_by, r->before) || (!report->begun && is_due(ask->begin_by, r->before)))) {
    wrong(r, "request %zu has ended late; it had time to wait until %.0f, and to end until %.0f", i, ask->begin_by,
          ask->end_by);
  }
}

static void on_end(void *user, size_t i, mk_status status) {
  run *r = user;
  request *q = &r->requests[i];
  mk_how_ended how = q->report.how;
  if (q->state != IN) {
    wrong(r, "request %zu ends, and was not there", i);
    return;
  }
  q->state = OUT;
  q->ended = r->time;
  r->left--;
  judge_report(r, i);
  if ((status != MK_OK) != (how == MK_ENDED_FAILED) || (how == MK_ENDED_CANCELLED) != q->cancelled) {
    wrong(r, "request %zu ended with status %d as %d", i, status, how);
  } else if (how == MK_ENDED_FAILED) {
    judge_failure(r, i, status);
  } else if (how == MK_ENDED_LATE) {
    judge_late(r, i);
  } else if (how == MK_ENDED_WHOLE && q->tokens != q->want) {
    wrong(r, "request %zu has %u tokens, not %u", i, q->tokens, q->want);
  }
  r->counts.n[SCHEDULE_WHOLE] += how == MK_ENDED_WHOLE;
  r->counts.n[SCHEDULE_CANCELLED] += how == MK_ENDED_CANCELLED;
  r->counts.n[SCHEDULE_PREEMPTIONS] += q->report.preemptions;
  r->counts.n[SCHEDULE_ASKED] += q->report.begun ? q->text->prompt_count : 0;
  r->counts.n[SCHEDULE_CACHED] += q->report.cached;
}

/* ---- What comes from outside ---- */

/* Tokens that program and cache have room for. */
static uint32_t context_of(const run *r) {
  uint32_t blocks = r->schedule.shape.kv_blocks, most = SCHEDULE_CONTEXT;
  return blocks == 0 || blocks * MK_BLOCK_TOKENS > most ? most : blocks * (uint32_t)MK_BLOCK_TOKENS;
}

static uint32_t least(uint32_t a, uint32_t b) { return a < b ? a : b; }

static void arrive(run *r, size_t i) {
  const schedule_ask *ask = &r->schedule.asks[i];
  request *q = &r->requests[i];
  const mk_sequence_calls calls = {.token = on_token, .ended = on_end, .user = r};
  uint32_t count = q->text->prompt_count, context = context_of(r);
  bool refuse = ask->unknown_token || count > context;
  memcpy(r->prompt, q->text->prompt, count * sizeof *r->prompt);
  r->prompt[count - 1] = ask->unknown_token ? r->world->config.vocab : r->prompt[count - 1];
  const mk_sequence sequence = {.prompt = r->prompt,
                                .prompt_count = count,
                                .n_predict = ask->n_predict,
                                .sampling = schedule_draws(ask->text) ? &q->text->sampling : NULL,
                                .report = &q->report,
                                .priority = ask->priority,
                                .begin_by = ask->begin_by,
                                .end_by = ask->end_by};
  q->state = IN;
  q->arrived = r->time;
  q->want = refuse ? 0 : least(ask->n_predict, context - count);
  q->want = ask->stop == 0 ? q->want : least(q->want, ask->stop);
  mk_status status = mk_engine_submit(r->engine, &sequence, &calls, i, &q->id);
  if (status != (refuse ? MK_ERR_USAGE : MK_OK)) {
    wrong(r, "request %zu: status %d: %s", i, status,
          status == MK_OK ? "it can never be computed" : mk_error_message());
  }
  if (status != MK_OK) {
    q->refused = true;
    q->state = OUT;
    r->left--;
    r->counts.n[SCHEDULE_REFUSED]++;
  }
}

static void cancel(run *r, size_t i) {
  request *q = &r->requests[i];
  bool there = q->state == IN;
  q->cancelled = true;
  if (mk_engine_cancel(r->engine, q->id) != there || q->state != OUT) {
    wrong(r, "request %zu, which %s, was cancelled", i, there ? "ran" : "had ended");
  }
}

/* A machine looks up every block as it reads it, so its run ends with the next step. The engine writes the table before
 * each launch. */
static void break_tables(run *r) {
  schedule_break_tables(r->engine);
  r->broken = true;
  r->faults++;
}

/* Whether all that are there can run at the same time, and nobody waits for what another one computes. */
static bool all_fit(const run *r) {
  const mk_engine_options *shape = &r->schedule.shape;
  uint32_t there = 0;
  for (size_t i = 0; i < r->schedule.count; i++) {
    there += r->requests[i].state == IN;
  }
  return shape->kv_blocks == 0 && shape->prefix_tokens == 0 && there <= mk_program_slots(mk_engine_program(r->engine));
}

/* A request that finds room when it comes, and still at the next boundary, has begun by then: a launch ends when
 * somebody can join. */
static void note_room(run *r) {
  const bool room = all_fit(r);
  for (size_t i = 0; i < r->schedule.count; i++) {
    request *q = &r->requests[i];
    if (q->state == IN && q->soon == 0) {
      q->fits = room && (q->fits || q->arrived == r->time);
      q->soon = q->arrived == r->time ? 0 : r->time;
    }
  }
}

/* Called at the boundary of every step, and before a launch. */
static void on_boundary(void *user) {
  run *r = user;
  if (r->broken) {
    wrong(r, "the machine went on with blocks that do not exist");
  }
  r->boundaries++;
  r->in_launches += r->in_call++ != 0;
  mk_engine_count(r->engine, &r->counted);
  r->before = r->time;
  r->time += 1 + test_random_below(&r->random, TICKS);
  for (size_t i = 0; i < r->schedule.count; i++) {
    const schedule_ask *ask = &r->schedule.asks[i];
    request *q = &r->requests[i];
    if (q->state == TO_COME && is_due(ask->at, r->time)) {
      arrive(r, i);
    }
    if (q->state != TO_COME && !q->refused && !q->cancelled && is_due(ask->cancel_at, r->time)) {
      cancel(r, i);
    }
  }
  note_room(r);
  if (r->in_call > 1 && r->faults < r->schedule.fault_count && is_due(r->schedule.faults[r->faults], r->time)) {
    break_tables(r);
  }
}

static double time_of(void *user) { return ((const run *)user)->time; }

/* ---- From beginning to end ---- */

/* After a call of mk_engine_step. */
static void judge_step(run *r, mk_status status, size_t left) {
  mk_batch_counters counters;
  mk_engine_count(r->engine, &counters);
  if (status != MK_OK && (status != MK_ERR_DEVICE || !r->broken)) {
    wrong(r, "the engine fails: %s", mk_error_message());
  }
  if ((status == MK_OK && r->struck != 0) || (status != MK_OK && counters.running != 0)) {
    wrong(r, "the machine's fault ended %u, %u run on, and the engine's status is %d", r->struck, counters.running,
          status);
  }
  if (counters.waiting + counters.running != left || left > r->left) {
    wrong(r, "%u wait and %u run; %zu are left of %u", counters.waiting, counters.running, left, r->left);
  }
  if (!r->options->bits_alone && schedule_books(r->engine) != MK_OK) {
    wrong(r, "%s", mk_error_message());
  }
  if (r->broken && status != MK_OK) {
    schedule_spoil_cache(r->engine); /* a machine that is reset has lost it */
    r->counts.n[SCHEDULE_FAULTS]++;
  }
  r->broken = false;
}

/* Whether request i begins before the other one whenever both wait: nobody waits for what another one computes, and
 * the other one has not been overtaken too often. */
static bool goes_first(const run *r, size_t i, size_t other) {
  int32_t own = r->schedule.asks[i].priority, others = r->schedule.asks[other].priority;
  bool none_too_often = r->schedule.count + r->counts.n[SCHEDULE_PREEMPTIONS] <= MK_MOST_OVERTAKEN;
  return r->schedule.shape.prefix_tokens == 0 &&
         (r->requests[i].id < r->requests[other].id ? own <= others : own < others && none_too_often);
}

/* How many later ones began while it waited. */
static uint32_t judge_order(run *r, size_t i) {
  const request *q = &r->requests[i];
  double until = q->report.begun ? q->report.begun_at : q->ended;
  uint32_t times = 0;
  for (size_t other = 0; other < r->schedule.count && !q->refused; other++) {
    const request *o = &r->requests[other];
    if (!o->refused && o->report.begun && o->report.begun_at >= q->arrived && o->report.begun_at < until) {
      times += o->id > q->id;
      if (goes_first(r, i, other)) {
        wrong(r, "request %zu began before request %zu, whose turn it was", other, i);
      }
    }
  }
  return times;
}

/* Somebody who came before it and ran when it did: the youngest is preempted. */
static bool has_elder(const run *r, size_t i) {
  const request *q = &r->requests[i];
  bool found = false;
  for (size_t other = 0; other < r->schedule.count; other++) {
    const request *o = &r->requests[other];
    found = found || (!o->refused && o->id < q->id && o->report.begun && o->ended >= q->report.begun_at);
  }
  return found;
}

/* When all have ended. */
static void judge_end(run *r) {
  mk_batch_counters c;
  const uint64_t *n = r->counts.n;
  mk_engine_count(r->engine, &c);
  if (c.waiting + c.running + c.blocks_in_use != 0 || c.blocks_kept > c.blocks ||
      c.blocks_kept > r->schedule.shape.prefix_tokens / MK_BLOCK_TOKENS) {
    wrong(r, "at the end %u wait, %u run, and of %u blocks %u are in use and %u kept", c.waiting, c.running, c.blocks,
          c.blocks_in_use, c.blocks_kept);
  }
  if (c.preemptions != n[SCHEDULE_PREEMPTIONS] || c.expired != n[SCHEDULE_LATE] ||
      c.asked_tokens != n[SCHEDULE_ASKED] || c.cached_tokens != n[SCHEDULE_CACHED] || c.steps != r->in_launches) {
    wrong(r, "counters and reports differ: preemptions %llu, late %llu, asked %llu, cached %llu, steps %llu",
          (unsigned long long)c.preemptions, (unsigned long long)c.expired, (unsigned long long)c.asked_tokens,
          (unsigned long long)c.cached_tokens, (unsigned long long)c.steps);
  }
  for (size_t i = 0; i < r->schedule.count; i++) {
    uint32_t times = judge_order(r, i);
    r->counts.most_overtaken = times > r->counts.most_overtaken ? times : r->counts.most_overtaken;
    if (times > MK_MOST_OVERTAKEN) {
      wrong(r, "request %zu was overtaken by %u", i, times);
    }
    if (r->requests[i].report.preemptions != 0 && !has_elder(r, i)) {
      wrong(r, "request %zu was preempted, and nobody who came before it ran", i);
    }
  }
  r->counts.n[SCHEDULE_LAUNCHES] = c.launches;
  r->counts.n[SCHEDULE_STEPS] = c.steps;
  r->counts.n[SCHEDULE_ONE_ROW] = c.one_row_steps;
  r->counts.n[SCHEDULE_FEW] = c.few_steps;
}

/* The clock goes to the next arrival when nobody is there. */
static void pass_idle_time(run *r, size_t in) {
  for (size_t i = 0; i < r->schedule.count && in == 0; i++) {
    if (r->requests[i].state == TO_COME) {
      r->time = r->schedule.asks[i].at > r->time ? r->schedule.asks[i].at : r->time;
      return;
    }
  }
}

static void work(run *r) {
  size_t in = 0;
  while (r->left != 0 && r->wrong[0] == '\0') {
    pass_idle_time(r, in);
    r->in_call = r->nan = r->struck = 0;
    mk_status status = mk_engine_step(r->engine, &in);
    judge_step(r, status, in);
    if (r->boundaries > MOST_BOUNDARIES) {
      wrong(r, "%u have not ended after %u steps", r->left, r->boundaries);
    }
  }
  if (r->wrong[0] == '\0') {
    judge_end(r);
  }
}

static mk_status run_drawn(run *r) {
  mk_engine_options shape = r->schedule.shape;
  shape.poll = on_boundary;
  shape.clock = time_of;
  shape.poll_user = shape.clock_user = r;
  shape.tamper = r->options->plant == NULL ? NULL : &r->options->plant->tamper;
  for (size_t i = 0; i < r->schedule.count; i++) {
    MK_TRY(schedule_world_text(r->world, r->schedule.asks[i].text, &r->requests[i].text));
  }
  MK_TRY(schedule_world_open(r->world, shape, &r->engine));
  work(r);
  mk_engine_close(r->engine);
  return r->wrong[0] == '\0' ? MK_OK : mk_error(MK_ERR_DEVICE, "%s", r->wrong);
}

mk_status schedule_run(schedule_world *world, uint64_t seed, const schedule_options *options, schedule_counts *counts) {
  static const schedule_options none;
  run *r;
  MK_TRY(mk_alloc(1, sizeof *r, &r));
  *r = (run){.world = world, .options = options == NULL ? &none : options, .random = ~seed};
  mk_status status = schedule_draw(world, seed, &r->schedule);
  if (status == MK_OK) {
    r->left = r->schedule.count;
    r->counts.n[SCHEDULE_SCHEDULES] = 1;
    r->counts.n[SCHEDULE_INTERLEAVED] = r->schedule.shape.interleave_seed != 0;
    r->counts.n[SCHEDULE_REQUESTS] = r->schedule.count;
    status = run_drawn(r);
  }
  if (status == MK_OK) {
    schedule_add(counts, &r->counts);
  }
  mk_free(r);
  return status;
}
