/* The state of the verifier's run over two epochs (order.c). counters.c prepares it; deadlock.c reads it when the run
 * is stuck. HB and DEP are the two relations of race.h. */
#ifndef MK_VERIFY_RUN_H
#define MK_VERIFY_RUN_H

#include "vm/verify/race.h"

typedef struct mk_group_state { /* of one group in one epoch */
  uint32_t writers, reads;      /* still to come */
  uint32_t blocked;             /* first lane that waits, MK_NONE_INDEX: none */
  mk_times *view;               /* DEP: all that happened before the writes made so far */
  mk_seen passed;               /* what some writer of the next epoch knew, and it was enough to write */
} mk_group_state;

/* A wait until a release counter reaches `threshold`; all waits of one counter for the same threshold share it. When it
 * ends, of each thread the signals up to a certain one must have arrived; later ones may or may not have. */
typedef struct mk_barrier {
  uint32_t counter, threshold;
  mk_times *views[MK_EPOCHS][2]; /* HB, DEP: all that happened before the signals that must have arrived */
} mk_barrier;

typedef struct mk_user { /* a signal to a counter, or a wait for it */
  uint32_t counter;
  uint32_t thread;
  uint32_t instruction;
  uint32_t amount; /* signal: amount, wait: threshold */
} mk_user;

typedef struct mk_join { /* the signal of this instruction feeds that barrier */
  uint32_t instruction;
  uint32_t barrier;
} mk_join;

typedef struct mk_lane {
  uint32_t queue;
  uint32_t done; /* instructions finished, over both epochs */
  uint32_t next_blocked;
  uint64_t need;                     /* the value that the counter it waits for must reach */
  uint32_t wait_counter, wait_group; /* what it waits for; MK_NONE_INDEX: no counter, no group */
} mk_lane;

typedef struct mk_run {
  mk_verifier *v;
  uint32_t threads;
  uint32_t active; /* the one tile of lines that has active rows; MK_ALL_LINES: all tiles have */
  mk_clocks clocks;
  mk_clock *hb, *dep; /* by thread */
  /* By lane, HB: what happened before the queue's last `next`, and before the waits that its loader has made since. A
   * lane that has done no `next` knows nothing. */
  mk_clock *loader_hb;
  mk_clock entered; /* DEP of the instruction at hand, as it was before the instruction read anything */
  mk_lane *lanes;
  uint32_t *ready; /* stack of lanes */
  uint32_t ready_count;
  uint64_t *values;         /* of the counters */
  mk_seen *waits_over;      /* by counter: what a thread knew that knew that all waits of the first epoch are over */
  uint32_t *blocked;        /* counter -> first lane that waits for it */
  uint64_t *least;          /* counter -> the least that a waiting lane needs */
  mk_group_state *groups;   /* [group][epoch] */
  mk_user *signals, *waits; /* by counter, thread, instruction */
  size_t signal_count, wait_count;
  mk_user *last_signals, *last_waits; /* of each thread the last signal and wait; its others come before that */
  uint32_t *first_signal, *first_last_signal, *first_last_wait; /* counter -> range, one more at the end */
  mk_barrier *barriers;
  size_t barrier_count, barrier_capacity;
  mk_join *joins; /* by instruction */
  size_t join_count, join_capacity;
  mk_shadow shadow;
} mk_run;

/* One run over two epochs (order.c), in which only this tile of lines has active rows (MK_ALL_LINES: all tiles have).
 * It changes nothing of the verifier but its report. */
mk_status mk_run_in_order(mk_verifier *v, uint32_t active);

/* The instruction at which a lane stands. The lane must not be done with both epochs. */
static inline const mk_instruction *head_of(const mk_run *run, uint32_t lane, uint32_t *index, uint32_t *epoch) {
  const mk_queue *q = &run->v->program->queues[run->lanes[lane].queue];
  *epoch = run->lanes[lane].done / q->count;
  *index = q->first + run->lanes[lane].done % q->count;
  return mk_at(run->v, *index);
}

/* The thread that sends the instruction's signals. */
uint32_t mk_finisher_of(const mk_verifier *v, uint32_t instruction);
/* Fills in signals, waits, the last ones of each thread, barriers and joins (counters.c). */
mk_status mk_collect_counters(mk_run *run);
/* The barrier of the waits until the release counter reaches `threshold`. */
mk_barrier *mk_find_barrier(mk_run *run, uint32_t counter, uint32_t threshold);

/* Rule D01: rejects a run of which no lane can go on, and tells the cycle of waits. */
mk_status mk_report_deadlock(mk_run *run);

#endif
