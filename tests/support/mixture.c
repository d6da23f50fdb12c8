/* See mixture.h. */
#include "tests/support/mixture.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_STEPS = 64, BLOCK_TOKENS = 64 };

/* Around a tile, a block, a span of one row and one of several; and one far beyond all of them. */
const mixture_work mixture_whole = {
    .prompts = {1, 17, 63, 64, 65, 250, 255, 256, 257, 300, 500, 1000, 1020, 1024, 1025, 4800},
    .sequences = 16,
    .generated = 200};
const mixture_work mixture_quick = {
    .prompts = {1, 17, 58, 64, 250, 257, 1020, 4990}, .sequences = 8, .generated = 10, .quick = true};
const mixture_work mixture_short = {
    .prompts = {1, 17, 58, 64, 250, 257, 1020}, .sequences = 7, .generated = 10, .quick = true};

/* How the sequences are dealt out. A turn: so many steps of one machine with the same sequences. */
typedef struct mix {
  const char *name;
  uint32_t machines; /* 1 << BESIDE_...: these take turns */
  uint32_t together; /* sequences in a step, at most */
  uint32_t chunk;    /* rows of a sequence's prompt in a step, at most */
  uint32_t turn;     /* steps, at most */
  bool random;       /* machines, sequences, slots and lines; some lines are idle, and some rows do not choose */
  bool in_one_launch;
  bool in_quick; /* also in works that are quick */
} mix;

#define ON(machine) (1U << BESIDE_##machine)
#define SEVERAL (ON(2) | ON(4) | ON(8) | ON(16))
#define SHARED (ON(64) | ON(512)) /* wide steps */

/* The first two are the references. */
static const mix mixes[MIXTURE_MIXES] = {
    {"one row", ON(1), 1, 1, MOST_STEPS, false, false, true},
    {"two rows", ON(2), 2, 1, MOST_STEPS, false, false, true},
    {"4 rows", ON(4), 4, 1, MOST_STEPS, false, false, false},
    {"8 rows", ON(8), 8, 1, MOST_STEPS, false, false, false},
    {"16 rows", ON(16), 16, 1, MOST_STEPS, false, false, false},
    {"2 rows, alone, chunks of 2", ON(2), 1, 2, MOST_STEPS, false, false, false},
    {"16 rows, alone, chunks of 16", ON(16), 1, 16, MOST_STEPS, false, false, false},
    {"16 rows, chunks in company, idle lines", ON(16), 16, 16, 40, true, false, true},
    {"2 to 16 rows at random", SEVERAL, 16, 16, 9, true, false, false},
    {"2 to 16 rows at random, long launches", SEVERAL, 16, 16, 40, true, true, false},
    {"one row and 16 rows in turn", ON(1) | ON(16), 1, 1, 37, false, false, true},
    {"1 to 16 rows at random", ON(1) | SEVERAL, 16, 16, 9, true, false, true},
    {"prompts in wide steps, then one row", ON(PROMPT) | ON(1), 1, BESIDE_PROMPT_ROWS, MOST_STEPS, false, false, true},
    {"64 rows", ON(64), 16, 1, MOST_STEPS, false, false, false},
    {"64 rows, chunks in company, idle lines", ON(64), 16, 64, 40, true, false, true},
    {"512 rows at random, long launches", ON(512), 16, 512, 40, true, true, true},
    {"all machines at random", ON(PROMPT) | ON(1) | SEVERAL | SHARED, 16, 16, 9, true, false, true},
};
enum { ONE_ROW, TWO_ROWS, REFERENCES }; /* in that table */

typedef struct sequence {
  uint32_t prompt, count; /* tokens */
  uint32_t position;      /* of the next one to be computed in this mix */
  size_t first;           /* place of its token 0 among those of all */
  uint32_t block;         /* the same of its blocks */
} sequence;

typedef struct run {
  beside *machines;
  const mixture_demands *demands;
  uint32_t vocab, count, columns, block_count; /* columns: of the block table */
  sequence sequences[MIXTURE_SEQUENCES];
  uint32_t *tokens, *blocks; /* of all sequences, one after the other */
  float *logits[REFERENCES]; /* [tokens of all][vocab] */
  mixture_result *results;   /* of the mix at hand, by reference */
  const mix *mix;
  uint64_t random;
  /* The turn at hand. */
  uint32_t turns, machine, slots, steps;
  uint32_t owner[BESIDE_MOST_ROWS]; /* sequence of each slot; `count`: none */
  mk_step_row plan[MOST_STEPS * BESIDE_MOST_ROWS];
  uint32_t *table; /* [BESIDE_MOST_ROWS][columns] */
} run;

static uint32_t below(run *r, uint32_t end) {
  r->random = r->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
  return (uint32_t)(r->random >> 33) % end;
}

static uint32_t smaller(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* ---- comparing */

/* Tokens of context up to which this mix has to give the bits of a reference. */
static uint32_t limit(const run *r, uint32_t reference) {
  uint32_t most = (r->mix->machines & SEVERAL) != 0 ? r->demands->several : MIXTURE_ALWAYS;
  if (reference == ONE_ROW && (r->mix->machines & SEVERAL) != 0) {
    most = smaller(most, r->demands->one_row);
  }
  return (r->mix->machines & (ON(PROMPT) | SHARED)) != 0 ? smaller(most, r->demands->prompts) : most;
}

/* With what a mix is compared: with two rows where they alone may differ. */
static bool is_compared(const mix *m, uint32_t reference) {
  return m != &mixes[ONE_ROW] && m != &mixes[reference] && (reference == ONE_ROW || (m->machines & ~SEVERAL) == 0);
}

static void add_difference(mixture_result *to, const float *got, const float *want, uint32_t vocab, double *size) {
  double off = 0, norm = 0;
  for (uint32_t i = 0; i < vocab; i++) {
    double difference = (double)got[i] - (double)want[i];
    off += difference * difference;
    norm += (double)want[i] * (double)want[i];
  }
  double error = sqrt(off / norm);
  to->worst = error <= to->worst || isnan(to->worst) ? to->worst : error;
  to->error += off; /* until the mix is done */
  *size += norm;
}

typedef struct comparison {
  run *r;
  double sizes[REFERENCES];
  mk_status status;
} comparison;

static void compare(comparison *c, uint32_t reference, uint32_t index, uint32_t position, const float *got) {
  run *r = c->r;
  mixture_result *result = &r->results[reference];
  const float *want = r->logits[reference] + (r->sequences[index].first + position) * r->vocab;
  bool differs = memcmp(got, want, r->vocab * sizeof *got) != 0, due = position < limit(r, reference);
  if (differs && result->differing == 0) {
    result->sequence = index;
    result->position = position;
    result->rows = beside_rows(r->machine);
  }
  result->same_up_to = differs ? smaller(result->same_up_to, position) : result->same_up_to;
  result->compared++;
  result->differing += differs;
  result->demanded += due;
  result->wrong += due && differs;
  add_difference(result, got, want, r->vocab, &c->sizes[reference]);
}

/* A test that compares nothing with nothing would pass, too. */
static mk_status check_reference(const run *r, uint32_t index, uint32_t position, const float *logits) {
  double norm = 0;
  for (uint32_t i = 0; i < r->vocab; i++) {
    norm += (double)logits[i] * (double)logits[i];
  }
  return norm > 0 && isfinite(norm) ? MK_OK
                                    : mk_error(MK_ERR_DEVICE, "%s, sequence %u, position %u: the logits are %s",
                                               r->mix->name, index, position, norm == 0 ? "all zero" : "not numbers");
}

static void take(void *user, uint32_t step, const float *logits) {
  comparison *c = user;
  run *r = c->r;
  uint32_t rows = beside_rows(r->machine);
  for (uint32_t line = 0; line < rows; line++) {
    const mk_step_row *row = &r->plan[(size_t)step * rows + line];
    if ((row->flags & MK_ROW_CHOOSES) == 0) {
      continue;
    }
    uint32_t index = r->owner[row->slot];
    const float *got = logits + (size_t)line * r->vocab;
    for (uint32_t reference = 0; reference < REFERENCES; reference++) {
      if (r->mix == &mixes[reference]) {
        c->status = c->status == MK_OK ? check_reference(r, index, row->position, got) : c->status;
        memcpy(r->logits[reference] + (r->sequences[index].first + row->position) * r->vocab, got,
               r->vocab * sizeof *got);
      } else if (is_compared(r->mix, reference)) {
        compare(c, reference, index, row->position, got);
      }
    }
  }
}

/* ---- planning */

static bool is_left(const sequence *s) { return s->position < s->count; }
static uint32_t prompt_left(const sequence *s) { return s->position < s->prompt ? s->prompt - s->position : 0; }

static void put(run *r, uint32_t step, uint32_t line, uint32_t slot, bool chooses) {
  sequence *s = &r->sequences[r->owner[slot]];
  uint32_t prompt = s->position < s->prompt ? (uint32_t)MK_ROW_PROMPT : 0;
  r->plan[(size_t)step * beside_rows(r->machine) + line] =
      (mk_step_row){.slot = slot,
                    .position = s->position,
                    .token = r->tokens[s->first + s->position],
                    .flags = MK_ROW_ACTIVE | prompt | (chooses ? (uint32_t)MK_ROW_CHOOSES : 0)};
  s->position++;
}

/* Lists the sequences that have something left to do, in order or at random; gives how many. */
static uint32_t choose(run *r, uint32_t *chosen) {
  uint32_t waiting[MIXTURE_SEQUENCES], count = 0, most = smaller(r->mix->together, r->slots);
  for (uint32_t i = 0; i < r->count; i++) {
    if (is_left(&r->sequences[i])) {
      waiting[count++] = i;
    }
  }
  most = smaller(most, count);
  most = r->mix->random && most != 0 ? 1 + below(r, most) : most;
  for (uint32_t i = 0; i < most; i++) {
    uint32_t at = r->mix->random ? below(r, count) : i;
    chosen[i] = waiting[at];
    waiting[at] = r->mix->random ? waiting[--count] : waiting[at];
  }
  return most;
}

/* The next of the mix's machines, in turn or at random; the one for prompts only where `first` has a prompt. */
static uint32_t next_machine(run *r, const sequence *first) {
  uint32_t list[BESIDE_MACHINES], count = 0;
  for (uint32_t i = 0; i < BESIDE_PROMPT; i++) {
    if ((r->mix->machines & (1U << i)) != 0) {
      list[count++] = i;
    }
  }
  if ((r->mix->machines & ON(PROMPT)) != 0 && prompt_left(first) != 0 && (!r->mix->random || below(r, 4) == 0)) {
    return BESIDE_PROMPT;
  }
  return list[r->mix->random ? below(r, count) : r->turns % count];
}

/* Gives the sequences slots, and their blocks with them. */
static void seat(run *r, const uint32_t *chosen, uint32_t count) {
  uint32_t shift = r->mix->random ? below(r, r->slots) : 0;
  memset(r->table, 0, (size_t)r->slots * r->columns * sizeof *r->table);
  for (uint32_t i = 0; i < BESIDE_MOST_ROWS; i++) {
    r->owner[i] = r->count;
  }
  for (uint32_t i = 0; i < count; i++) {
    const sequence *s = &r->sequences[chosen[i]];
    uint32_t slot = (i + shift) % r->slots;
    r->owner[slot] = chosen[i];
    memcpy(r->table + (size_t)slot * r->columns, r->blocks + s->block,
           (s->count + BLOCK_TOKENS - 1) / BLOCK_TOKENS * sizeof *r->table);
  }
}

/* Of one sequence the first lines, of which the last one chooses. */
static void plan_prompt(run *r, uint32_t step) {
  uint32_t left = prompt_left(&r->sequences[r->owner[0]]), rows = BESIDE_PROMPT_ROWS;
  rows = smaller(r->mix->random ? 1 + below(r, rows) : rows, left);
  for (uint32_t line = 0; line < rows; line++) {
    put(r, step, line, 0, line + 1 == rows);
  }
}

static bool slot_is_left(const run *r, uint32_t slot) {
  return r->owner[slot] != r->count && is_left(&r->sequences[r->owner[slot]]);
}

/* The lines of a step one after the other, a chunk for each slot. */
static void plan_in_order(run *r, uint32_t step) {
  uint32_t rows = beside_rows(r->machine), line = 0, running = 0;
  for (uint32_t slot = 0; slot < r->slots; slot++) {
    running += slot_is_left(r, slot);
  }
  uint32_t spare = rows - running;
  for (uint32_t slot = 0; slot < r->slots; slot++) {
    if (!slot_is_left(r, slot)) {
      continue;
    }
    uint32_t prompt = prompt_left(&r->sequences[r->owner[slot]]);
    uint32_t more = smaller(smaller(prompt != 0 ? prompt - 1 : 0, r->mix->chunk - 1), spare);
    spare -= more;
    for (uint32_t n = 0; n < 1 + more; n++) {
      put(r, step, line++, slot, true);
    }
  }
}

/* Most lines are of one slot, some of others, in any order, and some are idle. */
static void plan_at_random(run *r, uint32_t step) {
  uint32_t rows = beside_rows(r->machine), busiest = below(r, r->slots), only = below(r, rows);
  bool any = false;
  for (uint32_t line = 0; line < rows; line++) {
    uint32_t kind = below(r, 8), slot = kind < 4 ? busiest : below(r, r->slots);
    if (kind != 7 && slot_is_left(r, slot)) {
      put(r, step, line, slot, below(r, 4) != 0);
      any = true;
    }
  }
  for (uint32_t slot = 0; slot < r->slots && !any; slot++) {
    if (slot_is_left(r, slot)) {
      put(r, step, only, slot, true);
      any = true;
    }
  }
}

/* Steps until the turn is over or nobody has anything left to do. */
static void plan_turn(run *r) {
  uint32_t most = r->mix->random ? 1 + below(r, r->mix->turn) : r->mix->turn, left = 1;
  memset(r->plan, 0, sizeof r->plan);
  for (r->steps = 0; r->steps < most && left != 0; r->steps++) {
    if (r->machine == BESIDE_PROMPT) {
      plan_prompt(r, r->steps);
    } else if (r->mix->random) {
      plan_at_random(r, r->steps);
    } else {
      plan_in_order(r, r->steps);
    }
    left = r->machine == BESIDE_PROMPT ? prompt_left(&r->sequences[r->owner[0]]) : 0;
    for (uint32_t slot = 0; slot < r->slots && r->machine != BESIDE_PROMPT; slot++) {
      left += slot_is_left(r, slot);
    }
  }
}

/* ---- running */

static mk_status run_turns(run *r, comparison *c) {
  uint32_t chosen[MIXTURE_SEQUENCES], count;
  for (r->turns = 0, r->slots = BESIDE_MOST_ROWS; (count = choose(r, chosen)) != 0;
       r->turns++, r->slots = BESIDE_MOST_ROWS) {
    r->machine = next_machine(r, &r->sequences[chosen[0]]);
    r->slots = r->machine == BESIDE_PROMPT ? 1 : beside_rows(r->machine);
    seat(r, chosen, smaller(count, r->slots));
    plan_turn(r);
    MK_TRY(beside_run(r->machines, r->machine, r->plan, r->steps, r->table, r->mix->in_one_launch, take, c));
    MK_TRY(c->status);
  }
  return MK_OK;
}

/* Another random order for each mix, so that no cache has what it ought to have before it is written: block i goes to
 * a place up to i, and what was there to i. */
static void shuffle_blocks(run *r) {
  for (uint32_t i = 0; i < r->block_count; i++) {
    uint32_t at = below(r, i + 1);
    r->blocks[i] = r->blocks[at];
    r->blocks[at] = i;
  }
}

static mk_status run_mix(run *r, const mix *m, mixture_result *results, uint32_t *count) {
  mixture_result here[REFERENCES];
  comparison c = {.r = r};
  r->mix = m;
  r->results = here;
  for (uint32_t i = 0; i < r->count; i++) {
    r->sequences[i].position = 0;
  }
  shuffle_blocks(r);
  for (uint32_t i = 0; i < REFERENCES; i++) {
    here[i] = (mixture_result){.mix = m->name, .reference = mixes[i].name, .same_up_to = MIXTURE_ALWAYS};
  }
  MK_TRY(run_turns(r, &c));
  for (uint32_t i = 0; i < REFERENCES; i++) {
    if (is_compared(m, i)) {
      here[i].error = sqrt(here[i].error / c.sizes[i]);
      results[(*count)++] = here[i];
    }
  }
  return MK_OK;
}

void mixture_needs(const mixture_work *work, uint32_t *max_seq, uint32_t *blocks) {
  *max_seq = *blocks = 0;
  for (uint32_t i = 0; i < work->sequences; i++) {
    uint32_t tokens = work->prompts[i] + work->generated;
    *max_seq = tokens > *max_seq ? tokens : *max_seq;
    *blocks += (tokens + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
  }
}

static mk_status start(run *r, const mixture_work *work) {
  const mk_program *program = beside_program(r->machines, BESIDE_1);
  uint32_t max_seq, block = 0;
  size_t tokens = 0;
  mixture_needs(work, &max_seq, &r->block_count);
  r->vocab = program->ranges.token.high + 1;
  r->columns = (max_seq + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
  r->count = work->sequences;
  for (uint32_t i = 0; i < work->sequences; i++) {
    uint32_t count = work->prompts[i] + work->generated;
    r->sequences[i] = (sequence){.prompt = work->prompts[i], .count = count, .first = tokens, .block = block};
    tokens += count;
    block += (count + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
  }
  MK_TRY(mk_alloc(tokens, sizeof *r->tokens, &r->tokens));
  MK_TRY(mk_alloc(r->block_count, sizeof *r->blocks, &r->blocks));
  MK_TRY(mk_alloc((size_t)BESIDE_MOST_ROWS * r->columns, sizeof *r->table, &r->table));
  for (uint32_t i = 0; i < REFERENCES; i++) {
    MK_TRY(mk_alloc(tokens * r->vocab, sizeof *r->logits[i], &r->logits[i]));
  }
  for (size_t i = 0; i < tokens; i++) {
    r->tokens[i] = below(r, r->vocab);
  }
  return MK_OK;
}

mk_status mixture_run(beside *machines, const mixture_work *work, const mixture_demands *demands,
                      mixture_result *results, uint32_t *count) {
  run *r;
  *count = 0;
  MK_TRY(mk_alloc(1, sizeof *r, &r));
  *r = (run){.machines = machines, .demands = demands, .random = 11};
  mk_status status = start(r, work);
  for (uint32_t i = 0; i < MIXTURE_MIXES && status == MK_OK; i++) {
    status = work->quick && !mixes[i].in_quick ? MK_OK : run_mix(r, &mixes[i], results, count);
  }
  for (uint32_t i = 0; i < REFERENCES; i++) {
    mk_free(r->logits[i]);
  }
  mk_free(r->tokens);
  mk_free(r->blocks);
  mk_free(r->table);
  mk_free(r);
  return status;
}

void mixture_describe(const mixture_result *result, char *line, size_t bytes) {
  char where[128] = "no difference";
  if (result->differing != 0) {
    snprintf(where, sizeof where,
             "%u differ, %u of them wrongly; the same up to %u tokens; first: sequence %u, position %u, %u rows",
             result->differing, result->wrong, result->same_up_to, result->sequence, result->position, result->rows);
  }
  snprintf(line, bytes, "%-40s as %-8s %6u compared, %6u demanded; worst %.1e, all %.1e; %s", result->mix,
           result->reference, result->compared, result->demanded, result->worst, result->error, where);
}
