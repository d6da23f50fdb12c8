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

/* The machine's memory, by buffer. From now on operands that a work list confines are looked at as far as it says,
 * before not at all; and of the KV cache not only the rows that operands declare, but also the blocks that tables
 * name. */
mk_status mk_race_memory(mk_race *race, uint8_t *const *memory);

/* What a part touches: of operand i the first rows[i] row tiles (NULL: all that it declares); of a COMBINE's parts,
 * where `parts` is not NULL, the row tiles whose bits are set; of the cache, where `state` is not NULL, the blocks of
 * this step's rows. */
typedef struct mk_race_use {
  const uint16_t *rows;
  const uint64_t *parts;
  uint32_t tiles; /* of the lines of the step, a bit for each: of others nothing is touched */
  const mk_step_state *state;
  uint32_t generation; /* of the epoch */
} mk_race_use;

/* `role` of queue `sm` performs its part of instruction `index` (into program->instructions). MK_ERR_DEVICE when an
 * access of that part is not ordered against an earlier one. Parts come in an order that the machine's rules allow. */
mk_status mk_race_step(mk_race *race, uint32_t sm, mk_role role, uint32_t index, const mk_race_use *used);

/* `role` of queue `sm` signals for instruction `index`, which it finishes: its last step there. */
void mk_race_signal(mk_race *race, uint32_t sm, mk_role role, uint32_t index);

/* The same, of a counter with copies, of which the ranks' in question have the signal later: what the sender knows
 * now, and that it has come to one of them. */
typedef struct mk_race_view mk_race_view;
mk_status mk_race_send(const mk_race *race, uint32_t sm, mk_role role, mk_race_view **out);
void mk_race_arrive(mk_race *race, const mk_race_view *view, uint32_t counter, uint32_t rank);
void mk_race_view_free(mk_race_view *view); /* NULL is fine */

/* Everything so far happens before everything that follows: the host between two runs. */
void mk_race_barrier(mk_race *race);

#endif
