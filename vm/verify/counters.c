/* Of the verifier's run (run.h): who signals and who waits for each counter, of release counters which signals have
 * arrived when a wait is over and what that proves, and rule E04 (counter overrun). */
#include <stdlib.h>

#include "vm/verify/run.h"

/* The thread that sends the instruction's signals. */
static uint32_t finisher_of(const mk_verifier *v, uint32_t instruction) {
  return mk_thread_of(v, instruction, mk_opcode_finisher(mk_info(mk_at(v, instruction))));
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

/* Puts the signals of a queue's instructions that this role finishes behind the others of their counters; with the
 * consumer's, the waits of all, since it is the consumer that waits. */
static void place_users(mk_run *run, const mk_queue *q, mk_role finisher, uint32_t *next_signal, uint32_t *next_wait) {
  const mk_verifier *v = run->v;
  for (uint32_t i = q->first; i < q->first + q->count; i++) {
    const mk_instruction *in = mk_at(v, i);
    const uint32_t consumer = mk_thread_of(v, i, MK_ROLE_CONSUMER), sender = mk_thread_of(v, i, finisher);
    for (uint32_t k = 0; k < in->signal_count && mk_opcode_finisher(mk_info(in)) == finisher; k++) {
      run->signals[next_signal[in->signals[k].counter]++] = (mk_user){
          .counter = in->signals[k].counter, .thread = sender, .instruction = i, .amount = in->signals[k].amount};
    }
    for (uint32_t k = 0; k < in->wait_count && finisher == MK_ROLE_CONSUMER; k++) {
      run->waits[next_wait[in->waits[k].counter]++] = (mk_user){
          .counter = in->waits[k].counter, .thread = consumer, .instruction = i, .amount = in->waits[k].threshold};
    }
  }
}

/* By counter, thread and instruction: threads are in the order of queues, the consumer of each before its storer. */
static mk_status list_users(mk_run *run, uint32_t *next_signal, uint32_t *next_wait) {
  const mk_program *p = run->v->program;
  for (uint32_t i = 0; i < p->instruction_count; i++) {
    const mk_instruction *in = mk_at(run->v, i);
    for (uint32_t k = 0; k < in->signal_count; k++) {
      next_signal[in->signals[k].counter]++;
    }
    for (uint32_t k = 0; k < in->wait_count; k++) {
      next_wait[in->waits[k].counter]++;
    }
  }
  for (size_t c = 0; c < p->counter_count; c++) {
    const uint32_t signals = next_signal[c], waits = next_wait[c];
    run->first_signal[c] = next_signal[c] = (uint32_t)run->signal_count;
    next_wait[c] = (uint32_t)run->wait_count;
    run->signal_count += signals;
    run->wait_count += waits;
  }
  run->first_signal[p->counter_count] = (uint32_t)run->signal_count;
  MK_TRY(mk_alloc(run->signal_count, sizeof *run->signals, &run->signals));
  MK_TRY(mk_alloc(run->wait_count, sizeof *run->waits, &run->waits));
  for (size_t q = 0; q < p->queue_count; q++) {
    place_users(run, &p->queues[q], MK_ROLE_CONSUMER, next_signal, next_wait);
    place_users(run, &p->queues[q], MK_ROLE_STORER, next_signal, next_wait);
  }
  return MK_OK;
}

static mk_status collect_users(mk_run *run) {
  const size_t counters = run->v->program->counter_count;
  uint32_t *next;
  MK_TRY(mk_alloc(counters + 1, sizeof *run->first_signal, &run->first_signal));
  MK_TRY(mk_alloc(counters, 2 * sizeof *next, &next));
  const mk_status status = list_users(run, next, next + counters);
  mk_free(next);
  MK_TRY(status);
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
    const mk_barrier *last = run->barrier_count == 0 ? NULL : &run->barriers[run->barrier_count - 1];
    const bool again = last != NULL && last->counter == w->counter && last->threshold == w->amount;
    if (run->v->program->counters[w->counter].kind == MK_COUNTER_RELEASE && !again) {
      MK_TRY(mk_grow(&run->barriers, &run->barrier_capacity, run->barrier_count + 1, sizeof *run->barriers));
      run->barriers[run->barrier_count++] = (mk_barrier){.counter = w->counter, .threshold = w->amount};
    }
  }
  if (run->barriers == NULL) { /* there is none */
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

static const mk_barrier *find_barrier(const mk_run *run, uint32_t counter, uint32_t threshold) {
  mk_barrier key = {.counter = counter, .threshold = threshold};
  return bsearch(&key, run->barriers, run->barrier_count, sizeof key, by_barrier);
}

mk_status mk_join_waits(mk_run *run, const mk_instruction *in, uint32_t epoch, mk_clock *hb, mk_thread *thread) {
  for (uint32_t k = 0; k < in->wait_count; k++) {
    if (run->v->program->counters[in->waits[k].counter].kind != MK_COUNTER_RELEASE) {
      continue;
    }
    const mk_views *views = &find_barrier(run, in->waits[k].counter, in->waits[k].threshold)->views[epoch];
    if (thread != NULL && views->apart) {
      part(run, thread);
    }
    MK_TRY(mk_clock_learn(&run->clocks, hb, &views->hb));
    if (thread != NULL && thread->apart) {
      MK_TRY(mk_clock_learn(&run->clocks, &thread->dep, views->apart ? &views->dep : &views->hb));
      unite(run, thread);
    }
  }
  return MK_OK;
}

static bool has_copies(const mk_verifier *v, uint32_t counter) {
  return v->program->counters[counter].rank == MK_RANK_EACH && v->program->machine.ranks > 1;
}

/* Adds what a signal proves to the barriers that it feeds. Where the counter has copies, a thread that has waited on
 * one copy knows that the signaller was done, but not that the signal has come to the other copies. */
static mk_status feed_barrier(mk_run *run, mk_barrier *b, uint32_t index, uint32_t epoch, mk_thread *t) {
  const uint32_t thread = finisher_of(run->v, index), done = run->lanes[thread / 2].done;
  mk_views *views = &b->views[epoch];
  if (t->apart && !views->apart) {
    mk_known_copy(&run->clocks, &views->dep, &views->hb);
    views->apart = true;
  }
  set_time(t, thread, mk_time(done, has_copies(run->v, b->counter) ? MK_DONE : MK_SIGNALLED));
  MK_TRY(mk_known_feed(&run->clocks, &views->hb, &t->hb));
  MK_TRY(views->apart ? mk_known_feed(&run->clocks, &views->dep, dep_of(t)) : MK_OK);
  set_time(t, thread, mk_time(done, MK_SIGNALLED));
  return MK_OK;
}

mk_status mk_feed_barriers(mk_run *run, uint32_t index, uint32_t epoch, mk_thread *thread) {
  size_t low = 0, high = run->join_count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (run->joins[middle].instruction < index) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  for (; low < run->join_count && run->joins[low].instruction == index; low++) {
    MK_TRY(feed_barrier(run, &run->barriers[run->joins[low].barrier], index, epoch, thread));
  }
  return MK_OK;
}

/* E04: a signal of the next epoch must not help a wait of this one. Of a counter with copies each has to get the
 * signals of this epoch first: that one copy has had one, which stamps may tell of, says nothing of the others; what
 * comes after a later release of the same thread does. */
mk_status mk_check_overrun(mk_run *run, uint32_t counter, uint32_t index, const mk_thread *thread) {
  mk_verifier *v = run->v;
  const mk_clock *dep = dep_of(thread);
  uint32_t wait = MK_NONE_INDEX, signal = MK_NONE_INDEX;
  bool by_vector = dep->known.shared != NULL; /* whether that alone is enough: then it is for all who share it */
  if (by_vector && mk_holds(dep->known.shared, run->waits_over[counter])) {
    return MK_OK;
  }
  uint32_t end = run->first_last_wait[counter + 1];
  for (uint32_t i = run->first_last_wait[counter]; i < end && wait == MK_NONE_INDEX; i++) {
    const mk_user *user = &run->last_waits[i];
    const uint32_t entered = mk_time(mk_position_of(v, user->instruction), MK_ENTERED);
    by_vector = by_vector && dep->known.shared->of[user->thread] >= entered;
    if (mk_clock_at(dep, user->thread) < entered) {
      wait = user->instruction;
    }
  }
  if (wait == MK_NONE_INDEX) {
    run->waits_over[counter] = by_vector ? mk_seen_now(dep->known.shared) : (mk_seen){.times = NULL};
    return MK_OK;
  }
  end = run->first_last_signal[counter + 1];
  const mk_clock *known = has_copies(v, counter) ? &thread->hb : dep;
  for (uint32_t i = run->first_last_signal[counter]; i < end && signal == MK_NONE_INDEX; i++) {
    const mk_user *user = &run->last_signals[i];
    if (mk_clock_at(known, user->thread) < mk_time(mk_position_of(v, user->instruction), MK_SIGNALLED)) {
      signal = user->instruction;
    }
  }
  if (signal == MK_NONE_INDEX) {
    return MK_OK;
  }
  return mk_reject(
      v, "E04", index,
      "signals counter %s in the next epoch before the wait of %s in this one is over and before the signal of %s has "
      "come, so that wait may end too early; order this instruction after either",
      v->program->counters[counter].name, mk_place_of(v, wait).text, mk_place_of(v, signal).text);
}
