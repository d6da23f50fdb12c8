/* One model in programs of every number of rows, side by side: any of them may compute a sequence's next step, on one
 * KV cache.
 *
 * On a GPU the machines share weights and cache (mk_gpu_new_beside). A CPU machine has a cache of its own, which is
 * copied to whichever machine has the next launch. Free of Criterion: the GPU tests use it, too.
 *
 * A `beside` owns its machines and programs until beside_close; the options are the caller's, and are not looked at
 * after beside_open. One thread. Failure: the status of the step that failed, with its message. */
#ifndef MK_TEST_BESIDE_H
#define MK_TEST_BESIDE_H

#include "models/config.h"
#include "vm/cpu/machine.h"
#include "vm/gpu/machine.h"

/* Machines, and how many rows a step of each has; the last one is for prompts, of one sequence at a time. */
enum {
  BESIDE_1,
  BESIDE_2,
  BESIDE_4,
  BESIDE_8,
  BESIDE_16,
  BESIDE_64,
  BESIDE_512,
  BESIDE_PROMPT,
  BESIDE_MACHINES,
  BESIDE_MOST_ROWS = 512
};
enum { BESIDE_PROMPT_ROWS = 2 * MK_LINE_TILE }; /* more than a tile, so that some steps leave one out */
uint32_t beside_rows(uint32_t machine);

typedef struct beside_options {
  const mk_config *config;   /* with hash weights (models/synth.h) */
  uint64_t seed;             /* of those */
  const mk_gpu_options *gpu; /* NULL: on the CPU */
  uint32_t sms;              /* 0: 132 */
  uint32_t threads;          /* of the CPU */
  uint32_t max_seq, blocks;  /* blocks of 64 tokens, of all sequences */
} beside_options;

typedef struct beside beside;

mk_status beside_open(const beside_options *options, beside **out);
void beside_close(beside *b); /* NULL is fine */

const mk_program *beside_program(const beside *b, uint32_t machine);

/* Logits [rows][vocab] of step `step` of a launch: of the rows that choose. Valid during the call. */
typedef void (*beside_take)(void *user, uint32_t step, const float *logits);

/* The steps of a plan [steps][rows of the machine], under this block table [slots][blocks of a sequence]. `take` is
 * called for every step or, with `in_one_launch` on a GPU, for the last one. Without it a GPU has a launch for each. */
mk_status beside_run(beside *b, uint32_t machine, const mk_step_row *plan, uint32_t steps, const uint32_t *table,
                     bool in_one_launch, beside_take take, void *user);

#endif
