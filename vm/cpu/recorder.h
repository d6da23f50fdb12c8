/* The CPU machine's recorder: what the roles of its SMs did in some steps of a run, on the host's clock.
 *
 * There are fewer host threads than SMs, and a thread goes from SM to SM. A role works while a thread computes its
 * instruction, it waits where the thread has found that the role cannot go on, and it is idle while no thread is with
 * its SM. Greedy runs record consumers alone: a greedy thread takes an instruction through its three roles at once.
 *
 * Ownership: a mk_recorder owns its records and refers to the program. One thread. Failure: MK_ERR_RUNTIME for memory;
 * a full track drops and counts. */
#ifndef MK_CPU_RECORDER_H
#define MK_CPU_RECORDER_H

#include "vm/trace/trace.h"

typedef struct mk_recorder mk_recorder;

mk_status mk_recorder_new(const mk_program *program, uint32_t first_step, uint32_t steps, uint32_t capacity,
                          mk_recorder **out);
void mk_recorder_free(mk_recorder *recorder); /* NULL is fine, here and in all functions that return nothing */

/* The first step of which records are kept; 0 without a recorder. */
uint32_t mk_recorder_first(const mk_recorder *recorder);

/* A run begins, that step at `position`; roles_apart: every role moves on its own. Then: it has ended, after `steps`
 * steps. */
void mk_recorder_begin(mk_recorder *recorder, uint32_t position, bool roles_apart);
void mk_recorder_end(mk_recorder *recorder, uint64_t steps);

/* Nanoseconds of the host's clock; 0 without a recorder. */
uint64_t mk_recorder_now(const mk_recorder *recorder);
/* What a role has done from `since` on; steps outside the window are left out. _work: it has worked at an instruction.
 * _wait: it has looked for an input in vain, and the thread leaves it (looking for the same input again is not
 * recorded). _rest: the thread is with the host. */
void mk_recorder_work(mk_recorder *recorder, uint32_t sm, uint32_t role, uint64_t step, uint64_t since, uint32_t uid);
void mk_recorder_wait(mk_recorder *recorder, uint32_t sm, uint32_t role, uint64_t step, uint64_t since,
                      mk_activity activity, uint32_t uid, uint32_t edge);
void mk_recorder_rest(mk_recorder *recorder, uint32_t sm, uint32_t role, uint64_t step);
/* The role goes on to its next instruction, which belongs to `step`; begins: it is the first one of that step. */
void mk_recorder_leave(mk_recorder *recorder, uint32_t sm, uint32_t role, uint64_t step, bool begins);
/* Whether records of that step are kept. */
bool mk_recorder_wants(const mk_recorder *recorder, uint64_t step);

mk_status mk_recorder_take(const mk_recorder *recorder, mk_trace **out);

#endif
