/* The plan of a launch: what each row of each of its steps computes.
 *
 * All of it is known before the launch but the tokens that the launch itself chooses. A row is one token at one
 * position of the sequence in one slot; a slot's KV blocks are named by its row of the block table. Chunks of a prompt
 * (rows at neighbouring positions), several sequences at once and mixes of both are therefore the same thing to a
 * program.
 *
 * Plain data. Any thread may call. Failure: MK_ERR_USAGE, with step, row, field and value. */
#ifndef MK_PLAN_H
#define MK_PLAN_H

#include "vm/program/program.h"

enum {
  MK_ROW_ACTIVE = 1,  /* an idle row's other words mean nothing */
  MK_ROW_CHOOSES = 2, /* the row computes logits and decides the next token of its sequence */
  MK_ROW_PROMPT = 4,  /* its token is of a prompt, not a generated one: SCORE counts it so */
};
/* In place of a token: the one that the last earlier row of this slot chose in this launch. */
#define MK_TOKEN_CHOSEN UINT32_MAX
#define MK_RESULT_NAN 0x80000000u /* added to a result: its logits were not numbers */

typedef struct mk_step_row {
  uint32_t slot, position, token, flags;
} mk_step_row;

enum { MK_ROW_WORDS = sizeof(mk_step_row) / sizeof(uint32_t) };

/* The plan of one sequence, in slot 0 of a program of one row: `steps` steps from `position` on. The first `count`
 * tokens are given, with `flags` (MK_ROW_PROMPT or 0); every later token is what the step before it has chosen. */
void mk_plan_sequence(mk_step_row *plan, uint32_t steps, uint32_t position, const uint32_t *given, uint32_t count,
                      uint32_t flags);

/* The buffers that a program takes its plan, its work lists and its blocks from: one of each, so that what the host
 * checks is what is read. MK_ERR_USAGE for a program that has several, or no plan (it follows a work list), or, with
 * several rows, no table or no ring. */
enum { MK_NO_PLAN_BUFFER = 0xffff };
typedef struct mk_plan_buffers {
  uint16_t plan, table, ring; /* table and ring: MK_NO_PLAN_BUFFER where a program of one row has none */
  uint16_t kv;                /* the cache of some layer; the blocks of all layers have the same size */
  uint16_t work;              /* of a wide program of several slots (attend_list.h); else MK_NO_PLAN_BUFFER */
  uint32_t group;             /* with `work`: query heads of a KV head */
  uint32_t steps;             /* most steps of a launch */
} mk_plan_buffers;
mk_status mk_plan_find(const mk_program *program, mk_plan_buffers *out);

/* Checks what the verifier assumes of the host. plan: [steps][rows of the program]; table: [slots][blocks of a
 * sequence], as the buffer holds it; NULL: blocks are not checked.
 *   - Every step has an active row; slots, positions and tokens are in range.
 *   - The rows of a slot in one step are at neighbouring positions, in order, and go on from those of the step before.
 *   - Where a token is MK_TOKEN_CHOSEN, an earlier row of the slot has chosen one.
 *   - Of the table's entries that the plan uses, no two name a block that the plan fills; no two of one slot name a
 *     block that the plan only reads.
 *   - In programs for prompts the active rows are the first ones, and only the last of these may choose. */
mk_status mk_plan_check(const mk_program *program, const mk_step_row *plan, uint32_t steps, const uint32_t *table);
/* The same with buffers that mk_plan_find has found, which has to go through all instructions. */
mk_status mk_plan_check_found(const mk_program *program, const mk_plan_buffers *buffers, const mk_step_row *plan,
                              uint32_t steps, const uint32_t *table);

/* A machine calls this for each step in turn. results[row] is the token that the row chose, or MK_CANDIDATE_NONE where
 * it does not choose; MK_RESULT_NAN is added where logits were NaN, which is an error of that row's sequence alone. To
 * return false asks for no more steps. */
typedef bool (*mk_step_fn)(void *user, uint32_t step, const uint32_t *results);

/* Of the results of a step: MK_ERR_DEVICE when one of them has MK_RESULT_NAN. */
mk_status mk_plan_check_results(const mk_program *program, const mk_step_row *step, const uint32_t *results);

#endif
