/* Of the verifier's run (run.h): who signals and who waits for each counter, and of release counters which signals have
 * arrived when a wait is over. */
#include <stdlib.h>

#include "vm/verify/run.h"

uint32_t mk_finisher_of(const mk_verifier *v, uint32_t instruction) {
  return mk_thread_of(v, instruction, mk_opcode_finisher(mk_info(mk_at(v, instruction))));
}

static int by_user(const void *a, const void *b) {
  const mk_user *x = a, *y = b;
  if (x->counter != y->counter) {
    return x->counter < y->counter ? -1 : 1;
  }
  if (x->thread != y->thread) {
    return x->thread < y->thread ? -1 : 1;
  }
  return x->instruction < y->instruction ? -1 : x->instruction > y->instruction;
}

static void sort_users(mk_user *users, size_t count) {
  if (count != 0) {
    qsort(users, count, sizeof *users, by_user);
  }
}

/* Makes the index of sorted users: where those of each counter begin. */
static void index_users(const mk_user *users, size_t count, uint32_t *first, size_t counters) {
  for (size_t c = 0, i = 0; c <= counters; c++) {
    while (i < count && users[i].counter < c) {
      i++;
    }
    first[c] = (uint32_t)i;
  }
}

/* Keeps the last user of each counter in every thread: what is ordered after the last one is ordered after all. */
static mk_status index_last_users(const mk_run *run, const mk_user *users, size_t count, mk_user **out,
                                  uint32_t **first) {
  size_t counters = run->v->program->counter_count, kept = 0;
  MK_TRY(mk_alloc(counters + 1, sizeof **first, first));
  MK_TRY(mk_alloc(count, sizeof **out, out));
  for (size_t i = 0; i < count; i++) {
    if (i + 1 == count || users[i + 1].counter != users[i].counter || users[i + 1].thread != users[i].thread) {
      (*out)[kept++] = users[i];
    }
  }
  index_users(*out, kept, *first, counters);
  return MK_OK;
}

static mk_status collect_users(mk_run *run) {
  const mk_program *p = run->v->program;
  MK_TRY(mk_alloc(run->v->report.signals, sizeof *run->signals, &run->signals));
  MK_TRY(mk_alloc(run->v->report.waits, sizeof *run->waits, &run->waits));
  MK_TRY(mk_alloc(p->counter_count + 1, sizeof *run->first_signal, &run->first_signal));
  for (uint32_t i = 0; i < p->instruction_count; i++) {
    const mk_instruction *in = mk_at(run->v, i);
    uint32_t waiter = mk_thread_of(run->v, i, MK_ROLE_CONSUMER), sender = mk_finisher_of(run->v, i);
    for (uint32_t k = 0; k < in->signal_count; k++) {
      run->signals[run->signal_count++] = (mk_user){
          .counter = in->signals[k].counter, .thread = sender, .instruction = i, .amount = in->signals[k].amount};
    }
    for (uint32_t k = 0; k < in->wait_count; k++) {
      run->waits[run->wait_count++] = (mk_user){
          .counter = in->waits[k].counter, .thread = waiter, .instruction = i, .amount = in->waits[k].threshold};
    }
  }
  sort_users(run->signals, run->signal_count);
  sort_users(run->waits, run->wait_count);
  index_users(run->signals, run->signal_count, run->first_signal, p->counter_count);
  MK_TRY(index_last_users(run, run->signals, run->signal_count, &run->last_signals, &run->first_last_signal));
  return index_last_users(run, run->waits, run->wait_count, &run->last_waits, &run->first_last_wait);
}

/* Finds the signals that must have arrived when the counter reaches the barrier's threshold: signal s of a thread must,
 * if the counter cannot reach it without s and the later signals of that thread. */
static mk_status add_joins(mk_run *run, uint32_t barrier) {
  mk_verifier *v = run->v;
  const mk_barrier *b = &run->barriers[barrier];
  uint32_t total = v->program->counters[b->counter].total;
  uint32_t last = run->first_signal[b->counter], first_of_all = last;
  for (uint32_t i = run->first_signal[b->counter + 1]; i > first_of_all; i = last) {
    uint32_t thread = run->signals[i - 1].thread, later = 0, forced = MK_NONE_INDEX;
    for (last = i; last > first_of_all && run->signals[last - 1].thread == thread; last--) {
      later += run->signals[last - 1].amount;
      if (forced == MK_NONE_INDEX && total - later < b->threshold) {
        forced = run->signals[last - 1].instruction;
      }
    }
    if (forced != MK_NONE_INDEX) {
      MK_TRY(mk_grow(&run->joins, &run->join_capacity, run->join_count + 1, sizeof *run->joins));
      run->joins[run->join_count++] = (mk_join){.instruction = forced, .barrier = barrier};
    }
  }
  return MK_OK;
}

static int by_join(const void *a, const void *b) {
  const mk_join *x = a, *y = b;
  if (x->instruction != y->instruction) {
    return x->instruction < y->instruction ? -1 : 1;
  }
  return x->barrier < y->barrier ? -1 : x->barrier > y->barrier;
}

static int by_barrier(const void *a, const void *b) {
  const mk_barrier *x = a, *y = b;
  if (x->counter != y->counter) {
    return x->counter < y->counter ? -1 : 1;
  }
  return x->threshold < y->threshold ? -1 : x->threshold > y->threshold;
}

static mk_status collect_barriers(mk_run *run) {
  for (size_t i = 0; i < run->wait_count; i++) {
    const mk_user *w = &run->waits[i];
    if (run->v->program->counters[w->counter].kind == MK_COUNTER_RELEASE) {
      MK_TRY(mk_grow(&run->barriers, &run->barrier_capacity, run->barrier_count + 1, sizeof *run->barriers));
      run->barriers[run->barrier_count++] = (mk_barrier){.counter = w->counter, .threshold = w->amount};
    }
  }
  if (run->barrier_count == 0) {
    return MK_OK;
  }
  qsort(run->barriers, run->barrier_count, sizeof *run->barriers, by_barrier);
  size_t kept = 0;
  for (size_t i = 0; i < run->barrier_count; i++) {
    if (kept == 0 || by_barrier(&run->barriers[i], &run->barriers[kept - 1]) != 0) {
      run->barriers[kept++] = run->barriers[i];
    }
  }
  run->barrier_count = kept;
  for (uint32_t b = 0; b < run->barrier_count; b++) {
    MK_TRY(add_joins(run, b));
  }
  if (run->join_count != 0) {
    qsort(run->joins, run->join_count, sizeof *run->joins, by_join);
  }
  return MK_OK;
}

mk_status mk_collect_counters(mk_run *run) {
  MK_TRY(collect_users(run));
  return collect_barriers(run);
}

mk_barrier *mk_find_barrier(mk_run *run, uint32_t counter, uint32_t threshold) {
  mk_barrier key = {.counter = counter, .threshold = threshold};
  return bsearch(&key, run->barriers, run->barrier_count, sizeof key, by_barrier);
}
