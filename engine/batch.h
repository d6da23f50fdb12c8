/* Several sequences side by side: which row of which step computes what (vm/program/plan.h), from their prompts to their ends.
 *
 * A launch goes on until its plan is full or a sequence has reached its limit; the caller ends it where one stops earlier. Before the
 * next one slots and blocks of sequences that have ended go to those that wait. In each step every sequence that generates has a
 * row, and the rest are rows of prompts, first come, first served.
 *
 * A mk_batch owns its tables until mk_batch_free; sequences and prompts are the caller's and outlive it. One thread. Failure: MK_ERR_RUNTIME
 * for memory; whatever goes wrong with one sequence ends that one alone, with a status and mk_error_message. */
#ifndef MK_BATCH_H
#define MK_BATCH_H

#include "vm/program/plan.h"

typedef struct mk_sequence {
  const uint32_t *prompt;
  size_t prompt_count; /* 1..max_seq, ids below the vocabulary's size */
  size_t n_predict;    /* tokens to generate, as far as the context has room */
} mk_sequence;

typedef struct mk_sequence_calls {
  /* A generated token; false ends the sequence. logits: [vocab], valid during the call; NULL: not to be had. */
  bool (*token)(void *user, size_t sequence, uint32_t token, const float *logits);
  /* Once for every sequence, in the order in which they end. mk_error_message() says why when status is not MK_OK. */
  void (*ended)(void *user, size_t sequence, mk_status status);
  void *user;
} mk_sequence_calls;

typedef struct mk_batch mk_batch;

mk_status mk_batch_new(const mk_program *program, const mk_sequence *sequences, size_t count,
                       const mk_sequence_calls *calls, mk_batch **out);
void mk_batch_free(mk_batch *batch); /* NULL is fine */

/* The launch that comes next: plan [steps][rows] and the block table, both valid until the next call. steps 0: all sequences have
 * ended. */
typedef struct mk_launch {
  const mk_step_row *plan;
  const uint32_t *table;
  uint32_t steps;
} mk_launch;
void mk_batch_plan(mk_batch *batch, mk_launch *launch);

/* What the rows of step `step` of that launch chose (mk_step_fn); logits: [rows][vocab] or NULL. false: a sequence has ended, so the
 * launch had better end, too. */
bool mk_batch_take(mk_batch *batch, uint32_t step, const uint32_t *results, const float *logits);

/* A sequence that has its slot and blocks, and a prompt of which nothing has been computed: a machine for prompts may do that. */
typedef struct mk_long_prompt {
  size_t sequence;
  const uint32_t *table; /* its row of the block table */
} mk_long_prompt;

/* After mk_batch_plan: the first such sequence of more than `longer_than` tokens; false: there is none. */
bool mk_batch_long_prompt(mk_batch *batch, size_t longer_than, mk_long_prompt *out);
/* Its prompt has been computed, and its last row came to `result` (as mk_step_fn has it). What has been planned is then out of date. */
void mk_batch_take_prompt(mk_batch *batch, size_t sequence, uint32_t result, const float *logits);

/* The sequence that is left when all others have ended and its prompt has been computed: a machine of one row may go on with it. */
typedef struct mk_single {
  const uint32_t *table;          /* its row of the block table: it has blocks up to its limit */
  uint32_t token, position, left; /* the next step's; tokens to generate */
} mk_single;

/* Launches end where such a sequence is left, instead of going on with it. */
void mk_batch_leave_single(mk_batch *batch);
/* false: there is no such sequence, or no room for what it may still need. */
bool mk_batch_single(mk_batch *batch, mk_single *out);
/* A token that it generated; false: it has ended. */
bool mk_batch_take_single(mk_batch *batch, uint32_t token, const float *logits);
/* Ends it, unless it has ended. */
void mk_batch_end_single(mk_batch *batch, mk_status status);

#endif
