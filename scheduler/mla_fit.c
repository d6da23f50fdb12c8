/* See mla_fit.h. */
#include "scheduler/mla_fit.h"

#include <math.h>

static const double kOfWholeBatch = 0.1;

typedef struct fit {
  const mk_mla_sample *samples;
  size_t count;
  double launch_us;
  uint64_t *ready;
} fit;

/* What is made small: of all batches the variance of log(simulated / measured), and a part of its mean's square. */
static double badness(const fit *f, const mk_mla_costs *costs) {
  double total = 0;
  for (size_t i = 0, end; i < f->count; i = end) {
    double sum = 0, squares = 0;
    for (end = i; end < f->count && f->samples[end].batch == f->samples[i].batch; end++) {
      const mk_mla_sample *s = &f->samples[end];
      double ns = (double)mk_mla_simulate(s->geometry, costs, s->work, s->lengths, f->ready);
      double off = log((f->launch_us + ns * 1e-3) / s->us);
      sum += off;
      squares += off * off;
    }
    double n = (double)(end - i), mean = sum / n;
    total += squares / n - mean * mean + kOfWholeBatch * mean * mean;
  }
  return total;
}

static uint32_t scaled(uint32_t ns, double by) {
  double value = ns * by + 0.5;
  return value < 1 ? 1 : value > 1e9 ? 1000000000 : (uint32_t)value;
}

/* One constant after the other, by steps that become smaller. */
static double descend(const fit *f, mk_mla_costs *costs) {
  static const double steps[] = {2, 1.4, 1.15, 1.05};
  double least = badness(f, costs);
  for (size_t s = 0; s < sizeof steps / sizeof steps[0]; s++) {
    for (bool better = true; better;) {
      better = false;
      for (uint32_t i = 0; i < 12; i++) {
        mk_mla_costs next = *costs;
        uint32_t *const constants[] = {&next.item,     &next.page,      &next.out_row,
                                       &next.slot_row, &next.reduction, &next.unit};
        uint32_t *constant = constants[i / 2];
        *constant = scaled(*constant, i % 2 == 0 ? steps[s] : 1 / steps[s]);
        double now = badness(f, &next);
        if (now < least) {
          least = now;
          *costs = next;
          better = true;
        }
      }
    }
  }
  return least;
}

/* Which of the constants explains a hop is hard to tell, so there are several minima: the least one, from some hops. */
static void fit_from_hops(const fit *f, mk_mla_costs *costs) {
  static const uint32_t hops[] = {500, 2000, 6000};
  mk_mla_costs begin = *costs;
  double least = INFINITY;
  for (size_t i = 0; i < sizeof hops / sizeof hops[0]; i++) {
    mk_mla_costs found = begin;
    found.reduction = hops[i];
    double now = descend(f, &found);
    if (now < least) {
      least = now;
      *costs = found;
    }
  }
}

mk_status mk_mla_fit(const mk_mla_sample *samples, size_t count, double launch_us, mk_mla_costs *costs) {
  fit f = {.samples = samples, .count = count, .launch_us = launch_us};
  uint32_t slots = 0;
  if (count == 0) {
    return mk_error(MK_ERR_USAGE, "no lists have been timed");
  }
  for (size_t i = 0; i < count; i++) {
    slots = samples[i].geometry->slots > slots ? samples[i].geometry->slots : slots;
  }
  MK_TRY(mk_alloc((size_t)slots + 1, sizeof *f.ready, &f.ready));
  fit_from_hops(&f, costs);
  mk_free(f.ready);
  return MK_OK;
}
