/* The mutation campaign: valid programs, small changes to them, and an oracle that says whether a changed program can
 * go wrong.
 *
 * The oracle uses nothing of the verifier. It looks at every instruction once (mutation_footprint: would the opcode
 * touch just what its operands declare), and then runs the program's accesses on the CPU machine in many interleavings,
 * with its race detector. A program fails when any of them deadlocks, races, reads a stale word, leaves an output or a
 * counter other than an epoch must, or passes other values than the first one did.
 *
 * One thread each; nothing is kept between calls but the messages of vm/status.h. */
#ifndef MK_TEST_MUTATION_H
#define MK_TEST_MUTATION_H

#include "vm/program/program.h"

/* MUTATION(name, is about order) */
#define MUTATIONS(MUTATION)          \
  MUTATION(drop_wait, true)          \
  MUTATION(move_wait, true)          \
  MUTATION(lower_threshold, true)    \
  MUTATION(swap_entries, true)       \
  MUTATION(shift_operand, false)     \
  MUTATION(widen_operand, false)     \
  MUTATION(reuse_early, false)       \
  MUTATION(drop_signal, true)        \
  MUTATION(double_signal, true)      \
  MUTATION(change_counter, true)     \
  MUTATION(release_to_relaxed, true) \
  MUTATION(drop_proxy, false)

typedef enum mutation_class {
#define MUTATION(name, order) MUTATION_##name,
  MUTATIONS(MUTATION)
#undef MUTATION
      MUTATION_CLASSES
} mutation_class;

typedef struct mutation_info {
  const char *name;
  bool order;
} mutation_info;
extern const mutation_info mutation_infos[MUTATION_CLASSES];

static inline uint32_t mutation_draw(uint64_t *random, uint32_t below) {
  *random = *random * 6364136223846793005u + 1442695040888963407u;
  /* NOLINTNEXTLINE(clang-analyzer-core.DivideZero): callers have something to choose from */
  return (uint32_t)((*random >> 33) % below);
}

/* A valid program: compiled for one to five SMs, hand-written (tests/vm/data), or generated. mk_program_free(). */
mk_status mutation_base(uint64_t *random, mk_program **out);

/* Changes the program; false: this one has no place for the class, and is as it was. Totals are made to fit, and
 * thresholds kept reachable, most of the time, so that it is the order that is wrong and not the sum. */
bool mutation_apply(mk_program *program, mutation_class kind, uint64_t *random);

/* Whether every counter that the program waits for or signals is there: without it no machine can run the program. */
bool mutation_can_run(const mk_program *program);

/* MK_OK when no interleaving fails; MK_ERR_DEVICE with the reason when one does; else as mk_cpu_new. */
mk_status mutation_oracle(const mk_program *program, uint64_t seed, uint32_t interleavings);
/* The static part of it. */
mk_status mutation_footprint(const mk_program *program);

enum { MUTATION_RULES = 40 };
typedef struct mutation_counts { /* of one class */
  uint32_t accepted, accepted_failing, rejected, never_failing;
  uint32_t failing_in_a_run; /* of the rejected: those that no footprint gives away */
  struct {
    char rule[8];
    uint32_t rejected, never_failing;
  } rules[MUTATION_RULES];
} mutation_counts;

/* One mutant of the class: verifies it, asks the oracle, and counts. When an accepted one fails, the message says
 * why. */
mk_status mutation_try(mutation_class kind, uint64_t *random, uint32_t interleavings, mutation_counts *counts);

#endif
