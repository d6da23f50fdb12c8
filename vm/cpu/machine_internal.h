/* The inside of the CPU machine, shared by machine.c (memory, life, what an instruction does) and its two drivers:
 * threads.c (greedy, on any number of threads) and interleave.c (one thread, each role by itself). What several threads
 * touch is atomic; the rest of an SM belongs to the thread that holds the SM. */
#ifndef MK_CPU_MACHINE_INTERNAL_H
#define MK_CPU_MACHINE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "instructions/written.h"
#include "vm/cpu/accesses.h"
#include "vm/cpu/machine.h"
#include "vm/cpu/race.h"
#include "vm/cpu/recorder.h"

typedef struct mk_cpu_cursor { /* of one role: the next instruction */
  uint32_t at;
  uint64_t epoch; /* within this run */
} mk_cpu_cursor;

typedef struct mk_late_publication { /* stamped words that are written but not yet visible */
  const mk_instruction *instruction;
  uint32_t slot, generation, rank; /* operand; stamp; the rank in whose copy they are to become visible */
  uint32_t first, end;             /* tiles of the operand, row by row; of a listed operand, places in its list */
  uint64_t step;                   /* the number of that instruction among those that the queue does in this run */
  bool held;                       /* kept back until no actor can move */
} mk_late_publication;

typedef struct mk_late_signal { /* a signal that has not come to the copy of one rank yet */
  uint32_t counter, amount, rank;
  mk_race_view *view; /* what its sender knew; NULL: not checking */
} mk_late_signal;

typedef struct mk_cpu_sm {
  uint32_t rank;
  atomic_bool held; /* by a thread that runs its queue */
  const mk_instruction *queue;
  uint32_t count;
  mk_cpu_cursor roles[MK_ROLE_COUNT];
  uint64_t steps[MK_ROLE_COUNT]; /* instructions done in this run */
  uint64_t boundaries;           /* `next` instructions done by the consumer in this run */
  bool computed, stored;         /* the consumer, the storer has written its words, and has yet to signal */
  bool has_boundary;
  uint64_t since; /* for the recorder: when the role at work began its step */
  uint64_t pages_in_flight;
  mk_step_state step;
  uint16_t (*rows_used)[MK_MAX_OPERANDS]; /* per result slot: what the consumer touched, for the storer's part */
  uint64_t (*parts_used)[MK_PART_WORDS];  /* per result slot, of a COMBINE of several rows */
  uint32_t *tiles_used;                   /* per result slot, of several rows: tiles of lines that had an active one */
  mk_late_publication *late;
  size_t late_count, late_capacity;
  mk_late_signal *signals; /* adversarial */
  size_t signal_count, signal_capacity;
} mk_cpu_sm;

struct mk_cpu {
  const mk_program *program;
  mk_cpu_options options;
  const mk_cpu *lender; /* the machine to which weights and KV cache belong; NULL: this one */
  uint8_t **memory;     /* [ranks][buffers]; of a buffer without copies all ranks have the same pointer */
  mk_readers readers;   /* filled in where there are several ranks */
  mk_cpu_sm *sms;
  atomic_uint *counters; /* [counters][ranks] */
  float **scratch;       /* by thread */
  mk_race *race;         /* NULL: not checking */
  mk_accesses *accesses; /* NULL: with arithmetic, else without, and `memory` has no buffers */
  mk_written *written;   /* NULL: reads are not looked at */
  uint32_t *order;       /* adversarial: the actors by priority */
  /* Adversarial, by actor: 0, or it stands still until no other can move; the one with the highest number began
   * last. */
  uint32_t *frozen;
  uint32_t holds; /* adversarial: one in so many late publications is held until no actor can move; 0: none */
  uint64_t random;
  uint32_t first_epoch;    /* epochs since the buffers were cleared, before this run */
  atomic_ullong limit;     /* epochs of this run */
  atomic_ullong announced; /* epochs whose token the host has seen */
  const mk_step_row *plan; /* of the run; the caller's */
  uint32_t plan_steps;
  mk_step_fn fn;
  void *user;
  atomic_int failure; /* mk_status of the first failure */
  pthread_mutex_t failing;
  char failure_message[4096]; /* of the first failure */
  mk_recorder *recorder;      /* NULL: off */
  uint32_t delay_uid, delay_ns;
  bool listed;       /* the program follows work lists: a run is one epoch */
  bool has_boundary; /* some queue has a token boundary */
  /* Greedy. passing: of how many epochs some SM has passed the token boundary; first_past: the SM that was first in the
   * last of them; passed: follows `passing` once first_past is set. progress: instructions that all SMs have done. */
  atomic_ullong passing, passed, progress;
  const mk_cpu_sm *first_past;
};

typedef struct mk_word_range { /* of a stamped operand */
  uint64_t *words;             /* of the buffer */
  size_t row_words, first, end;
  uint32_t first_row, end_row;
} mk_word_range;

/* How many actors there are: every role of every queue, and for every queue its late publications. */
static inline uint32_t mk_cpu_actors(const mk_cpu *cpu) {
  return (uint32_t)cpu->program->queue_count * (MK_ROLE_COUNT + 1);
}

/* The generation of an epoch of this run. */
static inline uint32_t mk_cpu_epoch_generation(const mk_cpu *cpu, uint64_t epoch) {
  return cpu->first_epoch + (uint32_t)epoch + 1;
}

/* Whether the consumer's instruction is the token boundary. */
static inline bool mk_cpu_at_boundary(const mk_cpu_sm *sm) {
  return mk_opcode_lookup(sm->queue[sm->roles[MK_ROLE_CONSUMER].at].opcode)->state == MK_STATE_WRITE;
}

/* Computes the consumer's instruction, whose stamped words get the stamp `publish`; false: an input is not there yet,
 * or it failed. */
bool mk_cpu_execute(mk_cpu *cpu, mk_cpu_sm *sm, uint32_t publish, float *scratch);
/* Calls mk_cpu.fn with what the rows of the epoch chose, which the SM knows since it has passed the token boundary.
 * Only for the thread that called the machine. */
void mk_cpu_announce(mk_cpu *cpu, const mk_cpu_sm *sm, uint64_t epoch);
/* Keeps the first failure of the run with this thread's message. */
void mk_cpu_fail(mk_cpu *cpu, mk_status status);
/* The part of mk_cpu_execute that accesses_only puts in the place of arithmetic; an error goes to cpu->failure. */
bool mk_cpu_execute_accesses(mk_cpu *cpu, mk_cpu_sm *sm);
/* Whether the loader need not wait for the instruction's counters, or they have what it waits for. */
bool mk_cpu_loader_may(const mk_cpu *cpu, const mk_cpu_sm *sm, const mk_instruction *in, uint64_t epoch);
/* Adds what the instruction signals to all copies of the counters. */
void mk_cpu_signal(mk_cpu *cpu, const mk_instruction *in);
/* Records that the role has worked at its instruction since mk_cpu_sm.since. */
void mk_cpu_record_work(const mk_cpu *cpu, const mk_cpu_sm *sm, mk_role role);
/* The role goes on to its next instruction. */
void mk_cpu_advance(const mk_cpu *cpu, mk_cpu_sm *sm, mk_role role);
mk_word_range mk_cpu_words(const mk_cpu *cpu, uint32_t rank, const mk_operand *operand);
/* The buffers as a rank sees them. */
static inline uint8_t **mk_cpu_memory_of(const mk_cpu *cpu, uint32_t rank) {
  return cpu->memory + rank * cpu->program->buffer_count;
}
/* Where a rank looks for a counter. */
static inline atomic_uint *mk_cpu_count(const mk_cpu *cpu, uint32_t rank, uint32_t counter) {
  const uint32_t place = cpu->program->counters[counter].rank;
  return &cpu->counters[(size_t)counter * cpu->program->machine.ranks + (place == MK_RANK_EACH ? rank : place)];
}
/* The ranks to whose copies a signal of the counter goes, a bit for each. */
static inline uint64_t mk_cpu_ranks_of_counter(const mk_cpu *cpu, uint32_t counter) {
  const uint64_t ranks = cpu->readers.counters == NULL ? 0 : cpu->readers.counters[counter];
  return ranks != 0 ? ranks : 1; /* tests also look at counters that nobody waits for */
}
/* MK_ERR_DEVICE: the SM that has come least far, and what it waits for; MK_OK: all have come to the end. */
mk_status mk_cpu_deadlock(const mk_cpu *cpu);

/* Runs cpu->limit epochs, every queue as far as it goes. */
mk_status mk_cpu_run_greedy(mk_cpu *cpu);
/* Runs cpu->limit epochs, every role of every SM moving on its own. */
mk_status mk_cpu_run_interleaved(mk_cpu *cpu);

#endif
