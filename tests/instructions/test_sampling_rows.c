/* SCORE, SIFT, DRAW and NEXT with several rows per step: each row draws the token that the definition draws by the
 * words, bias and counts of its slot, whichever line it has and whoever is beside it. Faults that take a neighbour's
 * show. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tests/support/boundary.h"
#include "tests/support/numbers.h"

enum { VOCAB = 300, MOST_POSITION = 250 };

typedef struct slot { /* the test's own account of a sequence */
  mk_sampling sampling;
  uint32_t words[MK_SAMPLING_WORDS];
  float bias[VOCAB];
  uint32_t counts[VOCAB];
  uint32_t position, prompt_length;
} slot;

typedef struct table {
  test_boundary b;
  uint64_t seed;
  slot slots[MK_MAX_ROWS];
  float logits[MK_MAX_ROWS * VOCAB];
  uint32_t drawn, failed, overflows, differences;
} table;

static const mk_logit_bias biases[] = {{3, 2.5f}, {17, -INFINITY}, {299, -4}};

/* Any way to sample: filters and temperatures alone and together, greedy ones, with penalties and bias and without. */
static mk_sampling any_sampling(uint64_t *seed) {
  static const uint32_t ks[] = {0, 0, 1, 2, 40, VOCAB - 1};
  static const double ps[] = {1, 1, 0.9, 0.5, 0, 0.999}, ms[] = {0, 0, 0.05, 1, 1e-30}, ts[] = {1, 0.3, 5, 0, 1e-30};
  mk_sampling s = MK_SAMPLING_OFF;
  s.seed = test_random(seed);
  s.top_k = ks[test_random_below(seed, 6)];
  s.top_p = ps[test_random_below(seed, 6)];
  s.min_p = ms[test_random_below(seed, 5)];
  s.temperature = ts[test_random_below(seed, 5)];
  if (test_random_below(seed, 2) == 0) {
    s.repetition = 1.3;
    s.presence = 0.5;
    s.frequency = 0.25;
  }
  if (test_random_below(seed, 2) == 0) {
    s.biases = biases;
    s.bias_count = sizeof biases / sizeof biases[0];
  }
  return s;
}

static void begin(table *t, uint32_t which, const mk_sampling *sampling) {
  slot *s = &t->slots[which];
  *s = (slot){.sampling = *sampling,
              .position = test_random_below(&t->seed, MOST_POSITION / 2),
              .prompt_length = test_random_below(&t->seed, MOST_POSITION)};
  mk_sampling_words(sampling, VOCAB, s->words);
  for (size_t i = 0; i < sampling->bias_count; i++) {
    s->bias[sampling->biases[i].token] = sampling->biases[i].bias;
  }
  test_boundary_slot_sampling(&t->b, which, sampling);
}

/* Roughly normal ones, ties, all equal, fronts that overflow (the lower the score, the better the draw), infinite ones,
 * NaN. */
static void fill(table *t, float *logits, const slot *s, uint32_t position) {
  uint32_t kind = test_random_below(&t->seed, 8), levels = 1 + test_random_below(&t->seed, 4);
  for (uint32_t i = 0; i < VOCAB; i++) {
    float sum = 0;
    for (int j = 0; j < 6; j++) {
      sum += test_random_float(&t->seed);
    }
    logits[i] = kind == 0   ? (float)test_random_below(&t->seed, levels) * 0.25f
                : kind == 1 ? -1e-6f * mk_draw_gumbel(mk_draw_key(s->sampling.seed, position + 1), i)
                            : sum * (kind % 2 == 0 ? 0.2f : 1.5f);
  }
  if (kind == 2) {
    logits[test_random_below(&t->seed, VOCAB)] = INFINITY;
    logits[test_random_below(&t->seed, VOCAB)] = -INFINITY;
  } else if (kind == 3 && test_random_below(&t->seed, 4) == 0) {
    logits[test_random_below(&t->seed, VOCAB)] = NAN;
  }
}

/* Which slot each line has, rows of one slot at neighbouring positions; some lines are idle, unless `all` is set. */
static uint32_t plan_step(table *t, bool all, mk_step_row *plan) {
  uint32_t rows = t->b.rows, active = 0;
  for (uint32_t line = 0; line < rows; line++) {
    uint32_t which = all ? (line + t->b.generation) % rows : test_random_below(&t->seed, rows);
    slot *s = &t->slots[which];
    plan[line] = (mk_step_row){.slot = 77, .position = 1U << 30, .token = 1U << 30}; /* of an idle row nothing counts */
    if (s->position >= MOST_POSITION || (!all && test_random_below(&t->seed, 3) == 0)) {
      continue;
    }
    plan[line] = (mk_step_row){.slot = which,
                               .position = s->position,
                               .token = test_random_below(&t->seed, test_random_below(&t->seed, 2) == 0 ? 8 : VOCAB),
                               .flags = MK_ROW_ACTIVE};
    plan[line].flags |= s->position < s->prompt_length ? (uint32_t)MK_ROW_PROMPT : 0;
    plan[line].flags |= all || test_random_below(&t->seed, 3) != 0 ? (uint32_t)MK_ROW_CHOOSES : 0;
    s->position++;
    active++;
  }
  return active;
}

/* Whether some SM had more tokens for the row than a front holds. */
static bool overflows(const table *t, uint32_t line) {
  const uint64_t *fronts = test_boundary_memory(&t->b, "fronts");
  bool any = false;
  for (uint32_t sm = 0; sm < t->b.sms; sm++) {
    const uint64_t *front = fronts + (size_t)(sm * t->b.rows + line) * MK_FRONT_WORDS;
    any |= ((uint32_t)front[MK_FRONT_ABOUT] & MK_FRONT_OVERFLOW) != 0;
  }
  return any;
}

/* Lines of active rows are written in every step, those of idle rows are not. */
static void expect_lines(const table *t, const mk_step_row *plan) {
  static const char *const names[] = {"scores", "fronts", "rounds.0", "rounds.1", "rounds.2", "choices"};
  for (size_t n = 0; n < sizeof names / sizeof names[0]; n++) {
    const mk_buffer *b = &t->b.program->buffers[mk_program_find_buffer(t->b.program, names[n])];
    const uint64_t *words = test_boundary_memory(&t->b, names[n]);
    for (uint32_t tile = 0; tile < mk_buffer_grid_rows(b); tile++) {
      for (uint32_t i = 0; i < t->b.rows * b->cols; i++) {
        bool active = (plan[i / b->cols].flags & MK_ROW_ACTIVE) != 0;
        cr_assert_eq(words[(size_t)tile * t->b.rows * b->cols + i] >> 32 == t->b.generation, active, "%s, tile %u",
                     names[n], tile);
      }
    }
  }
}

/* What the definition makes of the step, against what the machine did. */
static void compare(table *t, const mk_step_row *plan) {
  for (uint32_t line = 0; line < t->b.rows; line++) {
    const mk_step_row *row = &plan[line];
    uint32_t got = t->b.states[0].results[line], want = MK_CANDIDATE_NONE;
    if ((row->flags & MK_ROW_ACTIVE) != 0) {
      slot *s = &t->slots[row->slot];
      uint32_t *count = &s->counts[row->token];
      bool failed;
      *count = (row->flags & MK_ROW_PROMPT) != 0 ? *count | MK_COUNT_PROMPT : *count + 1;
      if ((row->flags & MK_ROW_CHOOSES) != 0) {
        cr_assert_eq(mk_sampling_choose(s->words, t->logits + (size_t)line * VOCAB, s->bias, s->counts, VOCAB,
                                        row->position + 1, &want, &failed),
                     MK_OK);
        want |= failed ? MK_RESULT_NAN : 0;
        t->failed += failed;
        t->overflows += overflows(t, line);
        t->drawn++;
      }
    }
    t->differences += got != want;
  }
  for (uint32_t i = 0; i < t->b.rows; i++) {
    t->differences += memcmp(test_boundary_line(&t->b, "token_counts", i), t->slots[i].counts, VOCAB * 4) != 0;
  }
}

static void steps(table *t, uint32_t count, bool all) {
  for (uint32_t i = 0; i < count; i++) {
    mk_step_row plan[MK_MAX_ROWS];
    for (uint32_t s = 0; s < t->b.rows; s++) {
      if (t->slots[s].position >= MOST_POSITION || test_random_below(&t->seed, 16) == 0) {
        mk_sampling sampling = any_sampling(&t->seed);
        begin(t, s, &sampling);
      }
    }
    if (plan_step(t, all, plan) == 0) {
      continue;
    }
    for (uint32_t line = 0; line < t->b.rows; line++) {
      float *logits = t->logits + (size_t)line * VOCAB;
      bool chooses = (plan[line].flags & MK_ROW_CHOOSES) != 0;
      for (uint32_t k = 0; k < VOCAB && !chooses; k++) {
        logits[k] = NAN; /* which nobody may look at */
      }
      if (chooses) {
        fill(t, logits, &t->slots[plan[line].slot], plan[line].position);
      }
    }
    test_boundary_step(&t->b, plan, t->logits);
    expect_lines(t, plan);
    compare(t, plan);
  }
}

static void start(table *t, uint32_t rows, uint32_t sms, uint64_t order) {
  *t = (table){.seed = 1000 * rows + sms};
  test_boundary_start_rows(&t->b, VOCAB, sms, rows);
  t->b.seed = order;
  for (uint32_t i = 0; i < rows; i++) {
    mk_sampling sampling = any_sampling(&t->seed);
    begin(t, i, &sampling);
  }
}

static void sweep(uint32_t rows, uint32_t sms, uint64_t order) {
  static table t;
  start(&t, rows, sms, order);
  steps(&t, 400, false);
  steps(&t, 100, true);
  cr_assert_eq(t.differences, 0, "%u rows, %u SMs: %u rows or counts differ", rows, sms, t.differences);
  cr_assert_gt(t.drawn, 50 * rows / 2);
  cr_assert_gt(t.failed, 0);
  cr_assert(t.overflows != 0 || sms > 7, "no front overflows");
  test_boundary_stop(&t.b);
}

Test(sampling_rows, one_row) { sweep(1, 3, 0); }
Test(sampling_rows, two_rows) { sweep(2, 1, 0); }
Test(sampling_rows, four_rows) { sweep(4, 7, 0); }
Test(sampling_rows, eight_rows) { sweep(8, 33, 0); }
Test(sampling_rows, sixteen_rows) { sweep(16, 5, 0); }
Test(sampling_rows, in_any_order) {
  sweep(4, 7, 99);
  sweep(16, 3, 5);
}

/* Each operand by which a line finds what is its own, taken from the next line. */
Test(sampling_rows, what_is_a_neighbours_shows) {
  static const test_boundary_fault faults[] = {
      {MK_OP_SCORE, MK_SLOT_SCORE_logits}, {MK_OP_SCORE, MK_SLOT_SCORE_sampling}, {MK_OP_SCORE, MK_SLOT_SCORE_bias},
      {MK_OP_SCORE, MK_SLOT_SCORE_counts}, {MK_OP_SCORE, MK_SLOT_SCORE_scores},   {MK_OP_SCORE, MK_SLOT_SCORE_front},
      {MK_OP_SIFT, MK_SLOT_SIFT_fronts},   {MK_OP_SIFT, MK_SLOT_SIFT_rounds},     {MK_OP_SIFT, MK_SLOT_SIFT_scores},
      {MK_OP_SIFT, MK_SLOT_SIFT_sampling}, {MK_OP_SIFT, MK_SLOT_SIFT_round},      {MK_OP_DRAW, MK_SLOT_DRAW_fronts},
      {MK_OP_DRAW, MK_SLOT_DRAW_rounds},   {MK_OP_DRAW, MK_SLOT_DRAW_scores},     {MK_OP_DRAW, MK_SLOT_DRAW_sampling},
      {MK_OP_DRAW, MK_SLOT_DRAW_choice},   {MK_OP_NEXT, MK_SLOT_NEXT_candidates}};
  static table t;
  for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++) {
    start(&t, 4, 3, 0);
    t.b.fault = faults[i];
    steps(&t, 60, true);
    cr_expect_gt(t.differences, 0, "%s, operand %u: no row differs", mk_opcode_lookup(faults[i].opcode)->name,
                 faults[i].operand);
    test_boundary_stop(&t.b);
  }
}

/* A sequence beside others, in any slot and line, has what it has in a program of one row: the same scores, not the
 * same token alone. */
Test(sampling_rows, a_row_has_the_bits_of_one_row) {
  enum { ROWS = 8, SMS = 3 };
  static table t;
  static test_boundary one[ROWS];
  start(&t, ROWS, SMS, 0);
  for (uint32_t s = 0; s < ROWS; s++) {
    test_boundary_start(&one[s], VOCAB, SMS);
    test_boundary_sampling(&one[s], &t.slots[s].sampling);
  }
  for (uint32_t i = 0; i < 100; i++) {
    mk_step_row plan[ROWS];
    if (plan_step(&t, false, plan) == 0) {
      continue;
    }
    for (uint32_t line = 0; line < ROWS; line++) {
      fill(&t, t.logits + (size_t)line * VOCAB, &t.slots[0], i);
    }
    test_boundary_step(&t.b, plan, t.logits);
    for (uint32_t line = 0; line < ROWS; line++) {
      if ((plan[line].flags & MK_ROW_ACTIVE) == 0) {
        continue;
      }
      test_boundary *alone = &one[plan[line].slot];
      mk_step_row row = plan[line];
      row.slot = 0;
      test_boundary_step(alone, &row, t.logits + (size_t)line * VOCAB);
      cr_assert_eq(alone->states[0].results[0], t.b.states[0].results[line], "step %u, line %u", i, line);
      const uint64_t *scores = test_boundary_memory(alone, "scores");
      const uint64_t *beside = (const uint64_t *)test_boundary_memory(&t.b, "scores") + (size_t)line * VOCAB;
      for (uint32_t k = 0; k < VOCAB; k++) {
        cr_assert_eq((uint32_t)scores[k], (uint32_t)beside[k], "step %u, line %u: score %u", i, line, k);
      }
    }
  }
  for (uint32_t s = 0; s < ROWS; s++) {
    test_boundary_stop(&one[s]);
  }
  test_boundary_stop(&t.b);
}
