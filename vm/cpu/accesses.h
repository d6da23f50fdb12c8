/* What the instructions of a program read and write, and in which order, without what they compute: the CPU machine
 * under mk_cpu_options.accesses_only. It shares no code with the verifier, which is tested against it.
 *
 * A tile of a buffer that changes is one 64-bit word: in the high half the generation of its last write (or a stamp
 * that the machine holds back), in the low half a hash of all that was read for it. Two runs that end in the same words
 * have passed the same values along the same ways. Each role does its own work at its own time: loaders read the KV
 * cache, consumers stage inputs, storers read and write residuals.
 *
 * Operands must lie inside their buffers. A mk_accesses owns its words; the program must outlive it. One thread.
 * Failure: MK_ERR_DEVICE when a plain word does not hold this epoch's value, or when a step state is of another epoch
 * or has a position that is not declared; MK_ERR_RUNTIME for memory. */
#ifndef MK_CPU_ACCESSES_H
#define MK_CPU_ACCESSES_H

#include "instructions/reference.h"

typedef struct mk_accesses mk_accesses;

mk_status mk_accesses_new(const mk_program *program, mk_accesses **out);
void mk_accesses_free(mk_accesses *accesses); /* NULL is fine */

/* One word per tile, grid rows x grid columns, of the copy that the rank reads; NULL for a constant buffer. */
uint64_t *mk_accesses_words(mk_accesses *accesses, uint32_t rank, size_t buffer);

typedef struct mk_access_turn { /* one role's work on an instruction */
  uint32_t sm, index;           /* queue; place in program->instructions */
  uint64_t step;                /* instructions that this role of the queue has done before */
  uint32_t generation;          /* of this epoch */
  uint32_t stamp;               /* for stamped words: the generation, or what the machine publishes later */
  uint64_t boundaries;          /* `next` instructions that the consumer of the queue has done in this run */
  uint64_t epoch;               /* of this run */
  mk_step_state *state;         /* of the queue; the consumer of `next` changes it */
  const mk_step_row *plan;      /* of the run, of programs of one row: [steps] */
  uint32_t steps;
  uint16_t *rows_used; /* consumer: by operand, row tiles that were touched */
} mk_access_turn;

void mk_accesses_load(mk_accesses *accesses, const mk_access_turn *turn);
/* *waits: a stamped input is not there yet, and nothing has been done. */
mk_status mk_accesses_consume(mk_accesses *accesses, const mk_access_turn *turn, bool *waits);
mk_status mk_accesses_store(mk_accesses *accesses, const mk_access_turn *turn);
/* Makes a late word visible: in the copy of `rank`, the word of tile `tile` of an operand, counted row by row, gets its
 * generation if it carries the stamp `held`. */
void mk_accesses_publish(mk_accesses *accesses, uint32_t rank, const mk_operand *operand, uint32_t tile, uint32_t held,
                         uint32_t generation);

#endif
