/* The order of what touches the residual of a random program, which is plain: who writes it tells its readers on other
 * SMs, and these tell when they are done. See generate.h. */
#include "tests/support/generate_internal.h"

void test_order_residual(generator *g, residual *r, mk_instruction *in, const chunk *c) {
  bool foreign = false;
  uint32_t threshold = 0, total = 0;
  bool one_queue = true;
  for (uint32_t i = 0; i < r->count; i++) {
    const chunk *w = &r->chunks[i];
    bool meets = w->first < c->first + c->count && c->first < w->first + w->count;
    total += r->amounts[i];
    threshold = meets ? total : threshold;
    foreign |= meets && w->sm != c->sm;
    one_queue &= w->sm == r->chunks[0].sm;
  }
  if (foreign && r->counter == NONE) {
    r->counter = test_add_counter(g, MK_COUNTER_RELEASE);
    for (uint32_t i = 0; i < r->count; i++) {
      test_signal(g, &g->queues[r->writers[i].sm][r->writers[i].at], r->counter, r->amounts[i]);
    }
  }
  uint32_t all = foreign ? g->p->counters[r->counter].total : 0; /* 0: its writers had no room for another signal */
  if (all != 0 && !test_slips(g, 16)) { /* signals of one queue come in order: the later ones need not be waited for */
    test_wait(in, r->counter, test_slips(g, 16) ? 1 + test_below(g, all) : one_queue ? threshold : all);
  }
}

/* Instead of telling at once, the reader lets the writer know at the beginning of its next epoch. */
static void give_credit(generator *g, const residual *r, const chunk *c) {
  uint16_t counter = test_add_counter(g, MK_COUNTER_RELEASE);
  test_signal(g, &g->queues[c->sm][test_below(g, 2)], counter, 1);
  for (uint32_t i = 0; i < r->count; i++) {
    const chunk *w = &r->chunks[i];
    if (w->first < c->first + c->count && c->first < w->first + w->count && w->sm != c->sm) {
      test_wait(&g->queues[w->sm][r->writers[i].at], counter, g->p->counters[counter].total);
    }
  }
}

void test_acknowledge(generator *g, const residual *r, mk_instruction *in, const chunk *c) {
  bool foreign = false;
  for (uint32_t t = c->first; t < c->first + c->count; t++) {
    foreign |= r->owner[t] != c->sm;
  }
  if (foreign && g->counts[c->sm] > 2 && test_slips(g, 6)) {
    give_credit(g, r, c);
    return;
  }
  for (uint32_t t = c->first; t < c->first + c->count; t++) {
    g->must_wait[r->owner[t]] |= r->owner[t] != c->sm && !test_slips(g, 16);
  }
  if (foreign && !test_slips(g, 16)) {
    g->acknowledged = g->acknowledged == NONE ? test_add_counter(g, MK_COUNTER_RELEASE) : g->acknowledged;
    test_signal(g, in, g->acknowledged, 1);
  }
}
