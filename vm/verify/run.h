/* The state of the verifier's run over two epochs (order.c). counters.c prepares it; deadlock.c reads it when the run
 * is stuck. HB and DEP are the two relations of race.h. */
#ifndef MK_VERIFY_RUN_H
#define MK_VERIFY_RUN_H

#include "vm/verify/race.h"

typedef struct mk_group_state { /* of one group in one epoch */
  uint32_t writers, reads;      /* still to come */
  uint32_t blocked;             /* first lane that waits, MK_NONE_INDEX: none */
  mk_known view;                /* DEP: all that happened before the writes made so far */
  mk_seen passed;               /* what some writer of the next epoch knew, and it was enough to write */
} mk_group_state;

/* What both relations know. DEP is HB and more; where it is no more (`apart` is false), it is not kept, and HB stands
 * for it: so it is in programs whose stamps say nothing that counters do not. */
typedef struct mk_thread { /* of a consumer or storer */
  mk_clock hb, dep;
  bool apart;
} mk_thread;

typedef struct mk_views { /* what several threads have left for those who wait */
  mk_known hb, dep;
  bool apart;
} mk_views;

/* A wait until a release counter reaches `threshold`; all waits of one counter for the same threshold share it. When it
 * ends, of each thread the signals up to a certain one must have arrived; later ones may or may not have. */
typedef struct mk_barrier {
  uint32_t counter, threshold;
  mk_views views[MK_EPOCHS]; /* all that happened before the signals that must have arrived */
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

typedef struct mk_acts {            /* what an instruction of an opcode does; a bit for each slot */
  uint16_t slots[MK_ROLE_COUNT][2]; /* that the role reads, and that it writes */
  uint16_t loaded;                  /* it is the loader that reads them */
  uint16_t updates;
  bool loader_waits; /* the loader makes the waits for counters, too */
  mk_role finisher;
} mk_acts;

typedef struct mk_run {
  mk_verifier *v;
  uint32_t threads;
  uint32_t active; /* the one tile of lines that has active rows; MK_ALL_LINES: all tiles have */
  bool parted;     /* in some thread DEP has been more than HB */
  bool replays;    /* it goes over a run that has been made */
  /* Lanes in the order in which their instructions were executed, both epochs, and HB at the `next` of each lane and
   * epoch: what replays of the run go by. NULL: nobody asks for them. */
  uint32_t *order;
  mk_clock *at_next;
  mk_clocks clocks;
  mk_thread *known; /* by thread */
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
  mk_acts acts[UINT8_MAX + 1]; /* by opcode */
} mk_run;

/* One run over two epochs (order.c), in which only this tile of lines has active rows (MK_ALL_LINES: all tiles have).
 * It changes nothing of the verifier but its report. */
mk_status mk_run_in_order(mk_verifier *v, uint32_t active);

/* The clock of DEP. */
static inline const mk_clock *dep_of(const mk_thread *t) { return t->apart ? &t->dep : &t->hb; }
static inline void set_time(mk_thread *t, uint32_t thread, uint32_t time) {
  mk_clock_set(&t->hb, thread, time);
  mk_clock_set(&t->dep, thread, time);
}
/* DEP of the thread is about to know what HB does not. */
static inline void part(mk_run *run, mk_thread *t) {
  if (!t->apart) {
    mk_clock_copy(&run->clocks, &t->dep, &t->hb);
    t->apart = true;
  }
}
/* It has turned out to be no more than HB. */
static inline void unite(mk_run *run, mk_thread *t) {
  t->apart = t->apart && !mk_clock_same(&t->dep, &t->hb);
  run->parted = run->parted || t->apart;
}

/* Whether no line of the tile that it computes is active in this run. */
static inline bool is_idle(const mk_run *run, uint32_t instruction) {
  const uint32_t lines = run->active == MK_ALL_LINES ? MK_ALL_LINES : run->v->lines_of[instruction];
  return lines != MK_ALL_LINES && lines != run->active;
}

static inline mk_group_state *group_state(mk_run *run, uint32_t group, uint32_t epoch) {
  return &run->groups[(size_t)group * MK_EPOCHS + epoch];
}

/* Makes the lanes of a list ready that need no more than `value` (order.c). */
void mk_wake(mk_run *run, uint32_t *list, uint64_t value);

/* What a stamped access adds to the run, and rule R02 (stamps.c). `thread` is the accessor's. */
mk_status mk_read_stamps(mk_run *run, uint32_t group, uint32_t epoch, mk_thread *thread, bool idle);
mk_status mk_write_stamps(mk_run *run, const mk_write *write, uint32_t epoch, const mk_clock *dep);

/* The instruction at which a lane stands. The lane must not be done with both epochs. */
static inline const mk_instruction *head_of(const mk_run *run, uint32_t lane, uint32_t *index, uint32_t *epoch) {
  const mk_queue *q = &run->v->program->queues[run->lanes[lane].queue];
  *epoch = run->lanes[lane].done / q->count;
  *index = q->first + run->lanes[lane].done % q->count;
  return mk_at(run->v, *index);
}

/* Fills in signals, waits, the last ones of each thread, barriers and joins (counters.c). */
mk_status mk_collect_counters(mk_run *run);
/* Adds to a clock of HB, and to a thread's DEP (NULL: to none), what the instruction's waits for release counters
 * prove. */
mk_status mk_join_waits(mk_run *run, const mk_instruction *in, uint32_t epoch, mk_clock *hb, mk_thread *thread);
/* Adds what its signals prove to the barriers that they feed. */
mk_status mk_feed_barriers(mk_run *run, uint32_t index, uint32_t epoch, mk_thread *thread);
/* Rule E04, for a signal of the second epoch. */
mk_status mk_check_overrun(mk_run *run, uint32_t counter, uint32_t index, const mk_thread *thread);

/* Rule D01: rejects a run of which no lane can go on, and tells the cycle of waits. */
mk_status mk_report_deadlock(mk_run *run);

#endif
