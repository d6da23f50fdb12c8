/* Costs found again from the times that they give. */
#include <criterion/criterion.h>
#include <math.h>

#include "scheduler/mla_compile.h"
#include "scheduler/mla_fit.h"
#include "scheduler/mla_schedule.h"
#include "tests/support/numbers.h"

enum { SMS = 24, BATCHES = 6, MOST_SEQUENCES = 40, LISTS = 9, SHAPES = 2 };
static const double kLaunchUs = 4.5;

typedef struct timed {
  mk_program *programs[SHAPES];
  mk_mla_geometry geometry[SHAPES];
  uint32_t lengths[BATCHES][MOST_SEQUENCES];
  mk_mla_sample samples[SHAPES * BATCHES * LISTS];
  uint32_t *work[SHAPES * BATCHES * LISTS]; /* of the samples */
  size_t count;
  uint64_t *ready;
} timed;

static double simulated_us(const timed *t, const mk_mla_sample *s, const mk_mla_costs *costs) {
  return kLaunchUs + (double)mk_mla_simulate(s->geometry, costs, s->work, s->lengths, t->ready) * 1e-3;
}

/* Lists by costs of several kinds, with the times that `truth` gives. */
static void time_batch(timed *t, uint32_t shape, uint32_t b, const mk_mla_costs *truth) {
  const mk_mla_geometry *g = &t->geometry[shape];
  uint32_t sequences = b == 0 ? 1 : b * MOST_SEQUENCES / BATCHES;
  for (uint32_t i = 0; i < LISTS; i++) {
    const mk_mla_costs costs = {.item = 300 * (1 + i % 3 * 10),
                                .page = 500 * (1 + i / 3 * 3),
                                .out_row = 5,
                                .slot_row = 20,
                                .reduction = 900,
                                .unit = 9};
    mk_mla_scheduler *scheduler;
    uint32_t **work = &t->work[t->count];
    cr_assert_eq(mk_alloc((size_t)g->sms * g->list_words, sizeof **work, work), MK_OK);
    cr_assert_eq(mk_mla_scheduler_new(t->programs[shape], &costs, &scheduler), MK_OK);
    cr_assert_eq(mk_mla_schedule(scheduler, MK_MLA_MAKESPAN, t->lengths[b], sequences, *work, NULL), MK_OK);
    mk_mla_scheduler_free(scheduler);
    mk_mla_sample *s = &t->samples[t->count++];
    *s = (mk_mla_sample){.geometry = g, .work = *work, .lengths = t->lengths[b], .batch = shape * BATCHES + b};
    s->us = simulated_us(t, s, truth);
  }
}

static void start(timed *t, const mk_mla_costs *truth) {
  static const uint32_t heads[SHAPES] = {16, 64};
  uint64_t seed = 5;
  *t = (timed){0};
  for (uint32_t b = 0; b < BATCHES; b++) {
    for (uint32_t q = 0; q < MOST_SEQUENCES; q++) {
      t->lengths[b][q] = 64 + test_random_below(&seed, q == 0 ? 20000 : 3000);
    }
  }
  for (uint32_t i = 0; i < SHAPES; i++) {
    const mk_mla_shape shape = {.heads = heads[i],
                                .new_tokens = 1,
                                .max_sequences = MOST_SEQUENCES,
                                .max_pages = 400,
                                .pool_pages = 1,
                                .scale = 1};
    cr_assert_eq(mk_mla_compile(&shape, SMS, &t->programs[i]), MK_OK);
    cr_assert(mk_mla_geometry_of(t->programs[i], &t->geometry[i]));
    if (i == 0) { /* slots do not depend on the heads */
      cr_assert_eq(mk_alloc(t->geometry[i].slots, sizeof *t->ready, &t->ready), MK_OK);
    }
    cr_assert_eq(t->geometry[i].slots, t->geometry[0].slots);
    for (uint32_t b = 0; b < BATCHES; b++) {
      time_batch(t, i, b, truth);
    }
  }
}

static void stop(timed *t) {
  for (size_t i = 0; i < t->count; i++) {
    mk_free(t->work[i]);
  }
  for (uint32_t i = 0; i < SHAPES; i++) {
    mk_program_free(t->programs[i]);
  }
  mk_free(t->ready);
}

/* The largest relative difference of any list's simulated time. */
static double worst_error(const timed *t, const mk_mla_costs *costs) {
  double worst = 0;
  for (size_t i = 0; i < t->count; i++) {
    double error = fabs(simulated_us(t, &t->samples[i], costs) / t->samples[i].us - 1);
    worst = error <= worst ? worst : error;
  }
  return worst;
}

static void expect_found(const mk_mla_costs *truth, const mk_mla_costs *begin) {
  timed t;
  mk_mla_costs found = *begin;
  start(&t, truth);
  cr_assert_gt(worst_error(&t, begin), 0.2, "there is something to find");
  cr_assert_eq(mk_mla_fit(t.samples, t.count, kLaunchUs, &found), MK_OK);
  double error = worst_error(&t, &found);
  cr_assert_leq(error, 0.04, "item %u, page %u, rows %u and %u, reduction %u, unit %u: off by %g", found.item,
                found.page, found.out_row, found.slot_row, found.reduction, found.unit, error);
  stop(&t);
}

Test(mla_fit, costs_are_found_from_the_times_that_they_give) {
  static const mk_mla_costs truths[] = {{6000, 1700, 5, 60, 1400, 20}, {900, 2600, 40, 90, 5000, 12}},
                            begin = {1500, 4000, 10, 40, 1500, 10};
  for (size_t i = 0; i < sizeof truths / sizeof truths[0]; i++) {
    expect_found(&truths[i], &begin);
  }
}

Test(mla_fit, how_a_batch_compares_counts_more_than_how_long_it_takes) {
  static const mk_mla_costs truth = {6000, 1700, 5, 60, 1400, 20};
  timed t;
  mk_mla_costs found = {1500, 4000, 10, 40, 1500, 10};
  start(&t, &truth);
  for (size_t i = 0; i < t.count; i++) { /* every other batch is on a machine that is slower by half */
    t.samples[i].us *= t.samples[i].batch % 2 != 0 ? 1.5 : 1;
  }
  cr_assert_eq(mk_mla_fit(t.samples, t.count, kLaunchUs, &found), MK_OK);
  for (size_t i = 0, end; i < t.count; i = end) {
    size_t chosen = i, best = i;
    for (end = i; end < t.count && t.samples[end].batch == t.samples[i].batch; end++) {
      chosen = simulated_us(&t, &t.samples[end], &found) < simulated_us(&t, &t.samples[chosen], &found) ? end : chosen;
      best = t.samples[end].us < t.samples[best].us ? end : best;
    }
    cr_assert_leq(t.samples[chosen].us, 1.02 * t.samples[best].us, "batch %u", t.samples[i].batch);
  }
  stop(&t);
}

Test(mla_fit, without_samples_there_is_nothing_to_fit) {
  mk_mla_costs costs = mk_mla_default_costs;
  cr_assert_eq(mk_mla_fit(NULL, 0, 4, &costs), MK_ERR_USAGE);
  cr_assert_eq(costs.page, mk_mla_default_costs.page);
}
