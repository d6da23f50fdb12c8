/* See schedule.h: what a seed stands for. Times are whole numbers of ticks, of which a step takes 1 to 9. */
#include "models/synth.h"
#include "tests/support/numbers.h"
#include "tests/support/schedule_internal.h"

enum {
  SLOW_ONE_IN = 32,
  FLOOD_ONE_IN = 12,
  SHORT = 16, /* tokens */
  TRIES = 12, /* to find a text of the kind that is wanted */
  CONTEXT_BLOCKS = SCHEDULE_CONTEXT / MK_BLOCK_TOKENS,
};

typedef struct draw {
  schedule_world *world;
  uint64_t random;
  schedule *out;
  bool flood; /* many short requests, of which the first give way to the others */
  bool slow;  /* on a machine that takes many times as long */
  bool tight; /* few blocks, and requests that soon need another one */
  bool draws; /* answers are drawn */
  bool priorities, deadlines, cancellations;
  uint32_t gap; /* between arrivals; in one of two schedules most come together */
  bool bursts;
} draw;

static uint32_t below(draw *d, uint32_t n) { return test_random_below(&d->random, n); }
static bool one_in(draw *d, uint32_t n) { return below(d, n) == 0; }

static uint32_t draw_rows(draw *d) {
  static const uint32_t
      few[] = {1, 1, 2, 2, 2, 4, 4, 4},
      many[] = {4, 4, 4, 8, 8, 8, 16, 16, 16},
      any[] = {MK_PROMPT_ROWS, 1, 1, 2, 2, 2, 4, 4, 4, 8, 8, 8, 16, 16, 16}; /* the first one never draws */
  return d->tight              ? many[below(d, sizeof many / sizeof many[0])]
         : d->flood || d->slow ? few[below(d, sizeof few / sizeof few[0])]
                               : any[d->draws + below(d, sizeof any / sizeof any[0] - d->draws)];
}

static void draw_shape(draw *d) {
  static const mk_sampling any = {.temperature = 1, .top_p = 1, .repetition = 1}; /* each request brings its own */
  mk_engine_options *shape = &d->out->shape;
  shape->sampling = d->draws ? &any : NULL;
  shape->rows = draw_rows(d);
  shape->sms = 1 + below(d, 4);
  bool one_slot = shape->rows == 1 || shape->rows == MK_PROMPT_ROWS; /* which has a whole context at least */
  shape->few_rows = one_slot || shape->rows == 2 || one_in(d, 3) ? 0 : one_in(d, 2) ? 2 : shape->rows / 2;
  shape->kv_blocks = d->tight       ? 3 + 2 * below(d, 3)
                     : one_in(d, 3) ? 0
                     : one_slot     ? CONTEXT_BLOCKS + below(d, 6)
                                    : 2 + below(d, 2 * shape->rows + 3);
  shape->prefix_tokens = one_in(d, 4) ? 0 : one_in(d, 3) ? MK_BLOCK_TOKENS * (1 + (uint64_t)below(d, 4)) : UINT32_MAX;
  if (d->slow) {
    shape->interleave_seed = d->out->seed + 1;
    shape->adversarial = one_in(d, 2);
    shape->check_races = !shape->adversarial || one_in(d, 2);
  }
}

/* Whether the text is of the kind that the schedule is for. */
static bool suits(const draw *d, const schedule_text *text) {
  uint32_t filled = text->prompt_count % MK_BLOCK_TOKENS;
  return d->tight              ? filled > MK_BLOCK_TOKENS / 2 && text->prompt_count < 2 * MK_BLOCK_TOKENS
         : d->flood || d->slow ? text->prompt_count <= SHORT
                               : true;
}

/* A text near one that was asked for before, so that there is something to hit, or any. */
static mk_status draw_text(draw *d, uint32_t index, schedule_ask *ask) {
  const schedule_text *text;
  uint32_t tries = 0;
  do {
    ask->text = index > 0 && one_in(d, 2)
                    ? d->out->asks[below(d, index)].text / SCHEDULE_FAMILY * SCHEDULE_FAMILY + below(d, SCHEDULE_FAMILY)
                    : below(d, SCHEDULE_TEXTS) + (d->draws ? (uint32_t)SCHEDULE_TEXTS : 0);
    MK_TRY(schedule_world_text(d->world, ask->text, &text));
  } while (!suits(d, text) && ++tries < TRIES);
  return MK_OK;
}

static mk_status draw_ask(draw *d, uint32_t index, double at) {
  schedule_ask *ask = &d->out->asks[index];
  uint32_t most = d->flood || d->slow ? 3 : SCHEDULE_ANSWER;
  *ask = (schedule_ask){.at = at, .n_predict = d->tight ? most - below(d, 8) : below(d, most + 1)};
  MK_TRY(draw_text(d, index, ask));
  ask->stop = one_in(d, 8) ? 1 + below(d, SCHEDULE_ANSWER) : 0;
  ask->unknown_token = one_in(d, 40);
  ask->priority = d->flood ? -(int32_t)(index > 3) : d->priorities ? (int32_t)below(d, 3) - 1 : 0;
  ask->cancel_at = d->cancellations && one_in(d, 4) ? at + below(d, 300) : 0;
  ask->begin_by = d->deadlines && one_in(d, 3) ? at + below(d, 200) : 0;
  ask->end_by = d->deadlines && one_in(d, 3) ? at + below(d, 600) : 0;
  return MK_OK;
}

mk_status schedule_draw(schedule_world *world, uint64_t seed, schedule *out) {
  static const uint32_t gaps[] = {1, 20, 100, 400};
  schedule_world_enter(world, seed);
  *out = (schedule){.seed = seed};
  draw d = {.world = world, .random = mk_synth_mix(seed + 1), .out = out};
  d.slow = one_in(&d, SLOW_ONE_IN);
  d.flood = !d.slow && one_in(&d, FLOOD_ONE_IN);
  d.tight = !d.flood && !d.slow && one_in(&d, 3);
  d.draws = one_in(&d, 3);
  d.priorities = one_in(&d, 3);
  d.deadlines = one_in(&d, 3);
  d.cancellations = one_in(&d, 2);
  d.gap = gaps[d.flood ? 0 : below(&d, d.tight ? 2 : 4)];
  d.bursts = one_in(&d, 2);
  draw_shape(&d);
  out->count = d.flood ? SCHEDULE_ASKS - below(&d, 16) : 1 + below(&d, d.slow ? 5 : 24);
  double at = 1;
  for (uint32_t i = 0; i < out->count; i++) {
    at += d.bursts && !one_in(&d, 4) ? 0 : below(&d, d.gap);
    MK_TRY(draw_ask(&d, i, at));
  }
  out->fault_count = one_in(&d, 4) ? 1 + below(&d, SCHEDULE_MOST_FAULTS) : 0;
  for (uint32_t i = 0; i < out->fault_count; i++) {
    out->faults[i] = 1 + below(&d, (uint32_t)at + 200);
  }
  return MK_OK;
}

mk_status schedule_print(schedule_world *world, uint64_t seed, FILE *out) {
  schedule s;
  MK_TRY(schedule_draw(world, seed, &s));
  fprintf(out,
          "seed %llu%s, caches of %s: rows %u and %u, SMs %u, KV blocks %u, prefix tokens %llu, interleaving %llu%s%s; "
          "faults at",
          (unsigned long long)seed, s.shape.sampling != NULL ? ", drawn" : "", mk_dtype_name(schedule_world_kv(world)),
          s.shape.rows, s.shape.few_rows, s.shape.sms, s.shape.kv_blocks, (unsigned long long)s.shape.prefix_tokens,
          (unsigned long long)s.shape.interleave_seed, s.shape.adversarial ? ", adversarial" : "",
          s.shape.check_races ? ", with a look at races" : "");
  for (uint32_t i = 0; i < s.fault_count; i++) {
    fprintf(out, " %.0f", s.faults[i]);
  }
  fprintf(out, "\n%7s %7s %5s %7s %7s %5s %9s %9s %9s %9s\n", "request", "at", "text", "prompt", "predict", "stop",
          "priority", "begin by", "end by", "cancel at");
  for (uint32_t i = 0; i < s.count; i++) {
    const schedule_ask *a = &s.asks[i];
    const schedule_text *text;
    MK_TRY(schedule_world_text(world, a->text, &text));
    fprintf(out, "%7u %7.0f %5u %7u %7u %5u %9d %9.0f %9.0f %9.0f%s\n", i, a->at, a->text, text->prompt_count,
            a->n_predict, a->stop, a->priority, a->begin_by, a->end_by, a->cancel_at,
            a->unknown_token ? "  a token that is unknown" : "");
  }
  return MK_OK;
}
