/* Of the race detector: what is marked as fused and may be done on another SM (rule 5 of vm/program/program.h). In a
 * run in which it is, the instruction that makes all of it writes it, at its time. Of programs of one row alone: with
 * several each line has another maker.
 *
 * A mk_fused owns its lists; the program must outlive it. One thread. Failure: MK_ERR_RUNTIME for memory. */
#ifndef MK_CPU_FUSED_H
#define MK_CPU_FUSED_H

#include "instructions/reference.h"

typedef struct mk_fused {
  const mk_program *program;
  uint32_t *first, *next; /* by instruction: what it may do, and what else its maker may do; UINT32_MAX: nothing */
  bool on;                /* whether it is done so in this run; false at first */
} mk_fused;

mk_status mk_fused_init(mk_fused *fused, const mk_program *program); /* *fused is zero */
void mk_fused_free(mk_fused *fused);

/* Whether instruction `index` is done by its maker in this step. state: of its SM; NULL: it is not. */
bool mk_fused_is_elsewhere(const mk_fused *fused, uint32_t index, const mk_step_state *state);

#endif
