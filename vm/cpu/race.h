/* Detection of unordered accesses while a program runs on the CPU machine: vector clocks over (SM, role), by the rules
 * of vm/program/program.h. It shares no code with the verifier, so that each can be tested against the other.
 *
 * A mk_race owns its clocks and shadow cells. One thread. */
#ifndef MK_CPU_RACE_H
#define MK_CPU_RACE_H

#include "instructions/reference.h"

typedef struct mk_race mk_race;

mk_status mk_race_new(const mk_program *program, mk_race **out);
void mk_race_free(mk_race *race); /* NULL is fine */

/* Gives the machine's memory, by buffer. After that the race detector also looks at operands that a work list confines,
 * as far as the list says, and in the KV cache not only at the rows that operands declare, but also at the blocks that
 * tables name. */
mk_status mk_race_memory(mk_race *race, uint8_t *const *memory);

/* What a role touches in its work on an instruction. */
typedef struct mk_race_use {
  const uint16_t *rows;       /* of operand i, the first rows[i] row tiles; NULL: all that operands declare */
  const uint64_t *parts;      /* not NULL: of a COMBINE's `parts`, the row tiles whose bits are set */
  uint32_t tiles;             /* tiles of the step's lines, a bit for each: it touches nothing of other tiles */
  const mk_step_state *state; /* not NULL: of the cache, the blocks of this step's rows */
  uint32_t generation;        /* of the epoch */
} mk_race_use;

/* Whether, from now on, what is marked as fused and may be done elsewhere is done there. False at first. */
void mk_race_fuse(mk_race *race, bool fuses);

/* `role` of queue `sm` does its work on instruction `index` (into program->instructions). MK_ERR_DEVICE when one of its
 * accesses is not ordered against an earlier one. The caller keeps to an order that the machine's rules allow. */
mk_status mk_race_step(mk_race *race, uint32_t sm, mk_role role, uint32_t index, const mk_race_use *used);

/* `role` of queue `sm` signals for instruction `index`, and has finished it. */
void mk_race_signal(mk_race *race, uint32_t sm, mk_role role, uint32_t index);

/* The same for a signal that comes to the ranks' copies of its counter later: mk_race_send keeps what the sender knows
 * when it sends; mk_race_arrive says that the signal has come to the copy of one rank. */
typedef struct mk_race_view mk_race_view;
mk_status mk_race_send(const mk_race *race, uint32_t sm, mk_role role, mk_race_view **out);
void mk_race_arrive(mk_race *race, const mk_race_view *view, uint32_t counter, uint32_t rank);
void mk_race_view_free(mk_race_view *view); /* NULL is fine */

/* Between two runs: all accesses so far happen before all later ones. */
void mk_race_barrier(mk_race *race);

#endif
