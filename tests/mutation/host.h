/* The host of generated programs: what stands in weights and inputs, and a script of launches, the same for every
 * machine.
 *
 * Between two launches it writes what a host may: block tables, plans, sampling parameters, work lists. It keeps to
 * what docs/VERIFIER.md assumes of one, except that a table has to repeat blocks where the declared range has too few.
 *
 * A host owns its numbers; the program outlives it. One thread. */
#ifndef MK_TEST_HOST_H
#define MK_TEST_HOST_H

#include "vm/cpu/machine.h"

enum { HOST_LAUNCHES = 4, HOST_EPOCHS = 4, HOST_PATCHES = 16 };

typedef enum host_role { /* of an input buffer */
                         HOST_NUMBERS,
                         HOST_TABLE,
                         HOST_PLAN,
                         HOST_SAMPLING,
                         HOST_LIST,
                         HOST_BATCH,
} host_role;

typedef struct host_patch { /* what a launch has in a buffer */
  uint16_t buffer;
  uint32_t *words;
} host_patch;

typedef struct host_launch {
  host_patch patches[HOST_PATCHES];
  uint32_t patch_count;
  uint32_t epochs;
  mk_step_row *plan;  /* [epochs][rows]; NULL: it follows a work list */
  uint32_t sequences; /* of a batch */
} host_launch;

typedef struct host {
  const mk_program *program;
  uint64_t random;
  uint8_t *roles;    /* of buffers: host_role */
  uint8_t **numbers; /* of buffers: weights and other constants, NULL for the rest */
  uint32_t rows;
  bool listed;
  host_launch launches[HOST_LAUNCHES];
  uint32_t launch_count;
} host;

/* MK_ERR_USAGE: no host can run the program, for want of a plan or because a buffer would be two things at once. */
mk_status host_new(const mk_program *program, uint64_t seed, host *out);
void host_free(host *h);
/* A new machine's constants. */
void host_fill(const host *h, mk_cpu *cpu);
/* Writes the launch's inputs and runs it. */
mk_status host_run(const host *h, mk_cpu *cpu, uint32_t launch);

/* Plans and lists, in files of their own. */
mk_status host_plan(host *h);
mk_status host_lists(host *h);
/* Zeroed words for a buffer, as a patch of the launch. */
mk_status host_patch_of(host *h, uint32_t launch, uint16_t buffer, uint32_t **words);

#endif
