/* The greedy driver: every queue goes as far as it can, and an instruction goes through its three roles at once.
 *
 * Threads take any queue that nobody holds, each beginning at a place of its own, run it until it has to wait, and let
 * go of it. So a thread that the system takes away holds up one queue and no other, and how many threads there are
 * decides nothing but who runs a queue when.
 *
 * What happens before what: a queue's state passes from holder to holder with `held`; what an instruction wrote, with
 * its signals (release) and waits (acquire) and, word by word, with stamps, which come together with their data. No
 * epoch begins before the host has heard of the one before it, as it may end the run there; the host is called by the
 * thread that runs the machine alone. */
#include <sched.h>
#include <string.h>

#include "vm/cpu/machine_internal.h"

enum { LOOKS_BEFORE_YIELD = 64 };

typedef struct worker {
  mk_cpu *cpu;
  uint32_t index;
  pthread_t thread;
} worker;

typedef struct look {             /* at all queues, one after the other */
  uint64_t announced, progress;   /* before it */
  bool moved, unfinished, others; /* others: hold some queue, so that nothing follows from what was seen */
} look;

/* What has been announced is looked at first: the limit that the host may have set then was set before. */
static bool may_begin(const mk_cpu *cpu, const mk_cpu_sm *sm) {
  uint64_t epoch = sm->roles[MK_ROLE_CONSUMER].epoch;
  if (cpu->has_boundary && epoch > cpu->announced) {
    return false;
  }
  return epoch < cpu->limit && cpu->failure == MK_OK;
}

/* The first SM past the boundary of an epoch is the one that the host hears of. */
static void pass_boundary(mk_cpu *cpu, const mk_cpu_sm *sm) {
  unsigned long long epoch = sm->roles[MK_ROLE_CONSUMER].epoch;
  if (atomic_compare_exchange_strong(&cpu->passing, &epoch, epoch + 1)) {
    cpu->first_past = sm;
    cpu->passed = epoch + 1;
  }
}

/* Runs a queue that this thread holds until it has to wait. */
static void run_queue(mk_cpu *cpu, mk_cpu_sm *sm, float *scratch, look *l) {
  const mk_cpu_cursor *c = &sm->roles[MK_ROLE_CONSUMER];
  while (may_begin(cpu, sm) && mk_cpu_execute(cpu, sm, mk_cpu_epoch_generation(cpu, c->epoch), scratch)) {
    if (mk_cpu_at_boundary(sm)) {
      pass_boundary(cpu, sm);
    }
    mk_cpu_signal(cpu, &sm->queue[c->at]);
    mk_cpu_advance(cpu, sm, MK_ROLE_CONSUMER);
    cpu->progress++;
    l->moved = true;
  }
  l->unfinished |= c->epoch < cpu->limit;
}

/* The host hears what the first SM past the boundary has to say. */
static void tell_host(mk_cpu *cpu) {
  uint64_t epoch = cpu->announced;
  if (cpu->passed > epoch) {
    mk_cpu_announce(cpu, cpu->first_past, epoch);
    cpu->announced = epoch + 1;
  }
}

static look look_around(const worker *w) {
  mk_cpu *cpu = w->cpu;
  size_t queues = cpu->program->queue_count, first = queues * w->index / cpu->options.threads;
  look l = {.announced = cpu->announced, .progress = cpu->progress};
  for (size_t i = 0; i < queues; i++) {
    mk_cpu_sm *sm = &cpu->sms[(first + i) % queues];
    if (w->index == 0) {
      tell_host(cpu);
    }
    if (sm->count == 0) {
      continue;
    }
    if (atomic_load_explicit(&sm->held, memory_order_relaxed) ||
        atomic_exchange_explicit(&sm->held, true, memory_order_acquire)) {
      l.others = true;
      continue;
    }
    run_queue(cpu, sm, cpu->scratch[w->index], &l);
    atomic_store_explicit(&sm->held, false, memory_order_release);
  }
  if (w->index == 0) {
    tell_host(cpu);
  }
  return l;
}

/* Whether nobody can ever go on. An instruction in flight is one of a queue that was held, or it has been counted
 * since: so if all queues were found waiting, and nothing has been done in the meantime, nothing will be; unless the
 * host is still to be told, or has been told in the meantime, since when queues may go on that were looked at
 * before. */
static bool is_stuck(const mk_cpu *cpu, const look *l) {
  return !l->moved && l->unfinished && !l->others && cpu->passing == l->announced && cpu->announced == l->announced &&
         cpu->progress == l->progress;
}

static void *work(void *user) {
  const worker *w = user;
  mk_cpu *cpu = w->cpu;
  uint32_t looks = 0;
  while (cpu->failure == MK_OK) {
    look l = look_around(w);
    if (!l.moved && !l.unfinished && !l.others) {
      break;
    }
    if (is_stuck(cpu, &l)) {
      mk_cpu_fail(cpu, mk_cpu_deadlock(cpu));
      break;
    }
    looks = l.moved ? 0 : looks + 1;
    if (looks > LOOKS_BEFORE_YIELD) { /* there may be more threads than cores */
      sched_yield();
    }
  }
  return NULL;
}

mk_status mk_cpu_run_greedy(mk_cpu *cpu) {
  uint32_t threads = 1;
  worker *workers;
  MK_TRY(mk_alloc(cpu->options.threads, sizeof *workers, &workers));
  workers[0].cpu = cpu;
  for (; threads < cpu->options.threads; threads++) {
    workers[threads] = (worker){.cpu = cpu, .index = threads};
    if (pthread_create(&workers[threads].thread, NULL, work, &workers[threads]) != 0) {
      break; /* the system gives no more: those that there are do all of it */
    }
  }
  work(&workers[0]);
  for (uint32_t t = 1; t < threads; t++) {
    pthread_join(workers[t].thread, NULL);
  }
  mk_free(workers);
  if (cpu->failure == MK_OK || strcmp(cpu->failure_message, mk_error_message()) == 0) {
    return (mk_status)cpu->failure;
  }
  return mk_error((mk_status)cpu->failure, "%s", cpu->failure_message); /* another thread's */
}
