/* Mutants of programs with several rows: of those that the verifier accepts none fails on the CPU machine, in any of
 * some interleavings, and of those that it rejects enough do.
 *
 * The campaign of tests/mutation has an oracle of its own, which knows what one row's instructions touch. Here a
 * program runs with its arithmetic, and all that is held against it is what the machine finds, races among it, and that
 * an interleaving leaves other memory than the first one did. A failure ends the running test. */
#ifndef MK_TEST_MUTANTS_H
#define MK_TEST_MUTANTS_H

#include "vm/cpu/machine.h"

typedef struct mutant_rig {
  mk_program *(*base)(void); /* a program to change; mk_program_free() */
  /* Makes some steps on a machine with these options; *hash is what is then in its memory. */
  mk_status (*run)(const mk_program *program, mk_cpu_options options, uint64_t *hash);
  uint32_t seeds; /* interleavings: the first is fair, the others are an adversary's */
  /* A class of changes beside those of tests/mutation; false: this program has no place for it. NULL: there is none. */
  bool (*other)(mk_program *program, uint64_t *random);
} mutant_rig;

/* What the campaign counted. */
typedef struct mutant_counts {
  uint32_t accepted, rejected, failing; /* failing: of those rejected */
} mutant_counts;

/* The base is accepted, and `times` sets of interleavings leave the same memory. */
void mutants_expect_sound(const mutant_rig *rig, uint32_t times);
/* Makes that many mutants of each class. */
mutant_counts mutants_expect(const mutant_rig *rig, uint64_t random, uint32_t mutants);

#endif
