/* Sequences that share steps: who waits, who runs, and which row of which step computes what (vm/program/plan.h), from
 * arrival to end.
 *
 * Sequences may come and go at any time. A change takes effect with the next launch, and a launch at work ends at the
 * next step boundary when a sequence could join. A sequence that has a slot and blocks *runs*; the others wait.
 *
 * Which sequence begins first: the one with the lower number as `priority`, then the one that came first. Later
 * arrivals overtake a sequence at most MK_MOST_OVERTAKEN times: then all others wait for it. If a running sequence is
 * just computing the same first tokens, a sequence waits for the blocks that come of it, unless it has been overtaken
 * that often.
 *
 * Which machine computes: one the positions of the prompt, and perhaps another one those of what is generated
 * (mk_origin); both follow from the sequence alone. The machines take turns. In a step of the main machine each
 * generating sequence has a row, and the rows that are left compute prompts, first come, first served. A faster machine
 * makes steps of the main one in its place, to the same bits: that of one row where the step would use one row alone,
 * else that for few sequences where these have slots enough. While prompts wait for the machine for prompts, its
 * launches have at most `prompt_tokens` rows, and those of other machines at most `decode_steps` steps, or of more than
 * MK_MAX_ROWS rows so many fewer that these have no more rows: this bounds how long a generating sequence waits, and
 * keeps prompts coming where many can generate at once.
 *
 * When blocks run out, the youngest running sequence gives its blocks back and waits again. Later all its tokens are
 * computed anew, each position by the same machine as before, so to the same bits.
 *
 * A mk_batch owns its tables, and copies of tokens, until mk_batch_free. One thread. Failure: MK_ERR_RUNTIME for
 * memory; whatever goes wrong with one sequence ends that one alone. */
#ifndef MK_BATCH_H
#define MK_BATCH_H

#include "engine/blocks.h"
#include "instructions/sampling_host.h"
#include "vm/program/plan.h"

typedef enum mk_how_ended {
  MK_ENDED_WHOLE,     /* its callback or its limit ended it */
  MK_ENDED_CANCELLED, /* mk_batch_cancel */
  MK_ENDED_LATE,      /* its time was up */
  MK_ENDED_FAILED,    /* `ended` has a status other than MK_OK */
} mk_how_ended;

typedef struct mk_sequence_report { /* filled before `ended` is called */
  mk_how_ended how;
  bool begun;
  double begun_at;      /* on the batch's clock */
  uint32_t cached;      /* tokens of the prompt that were not computed, as their K and V were known */
  uint32_t preemptions; /* how often its blocks were taken */
} mk_sequence_report;

typedef struct mk_sequence {
  const uint32_t *prompt;
  size_t prompt_count; /* 1..mk_batch_context, ids below the vocabulary's size */
  size_t n_predict;    /* tokens to generate, as far as the context has room */
  /* For a program that samples; NULL: as the engine says. It must outlive the sequence, and so must the report. */
  const mk_sampling *sampling;
  mk_sequence_report *report; /* NULL: nobody wants it */
  bool alone;                 /* what it generates is computed by the machine of one row, if there is one */
  bool logits; /* its calls get logits; on a GPU every step that it takes part in is then a launch of its own */
  /* Filled in before each of the sequence's calls: the token's rank among all, and the ranking->most most probable
   * tokens; the caller sets `most`, which is not changed. NULL: nobody wants it. On a GPU it makes steps as slow as
   * logits do, but logits are not copied to the host. */
  mk_ranking *ranking;
  /* mk_sequence_calls.prompt is called for the whole prompt, with a ranking if there is one, else with logits. The main
   * machine then computes the prompt, whatever its length, and all of it: no known block is taken over. */
  bool prompt_logits;
  int32_t priority;        /* lower numbers first */
  double begin_by, end_by; /* deadlines, on the batch's clock: to begin, and to end; 0: none */
} mk_sequence;

typedef struct mk_sequence_calls {
  /* A generated token; false ends the sequence. logits: [vocab], valid during the call; NULL: nobody asked. */
  bool (*token)(void *user, size_t sequence, uint32_t token, const float *logits);
  /* With prompt_logits (else it may be NULL): called once for each position of the prompt but the last, in order, with
   * the logits of the next token; these are NULL where a ranking has been asked for. */
  void (*prompt)(void *user, size_t sequence, uint32_t position, const float *logits);
  /* Once for every sequence, in the order in which they end. mk_error_message() says why when status is not MK_OK. */
  void (*ended)(void *user, size_t sequence, mk_status status);
  void *user;
} mk_sequence_calls;

/* The machines of an engine, each with a program of the same model, on the same weights and KV cache. */
typedef enum mk_batch_machine {
  MK_MACHINE_MAIN,
  MK_MACHINE_PROMPTS, /* for prompts of more than MK_LONG_PROMPT tokens, each as many rows as there are, in its turn */
  MK_MACHINE_ONE_ROW,
  /* Of fewer rows and slots than the main one, and of as many sequences as rows: makes its steps while few sequences
   * have work there. It has slots of its own: a sequence that goes over to it gets one. */
  MK_MACHINE_FEW,
  MK_MACHINES,
} mk_batch_machine;

enum {
  MK_LONG_PROMPT = 32, /* tokens: more of them are worth a program of their own */
  MK_MOST_OVERTAKEN = 32,
  MK_PROMPT_TOKENS = 512, /* of a launch, when others wait */
  MK_DECODE_STEPS = 8,
};

typedef struct mk_batch_options {
  const mk_program *programs[MK_MACHINES]; /* NULL: there is no such machine; there is a main one always */
  uint32_t most;                           /* sequences that run at a time; 0: as many as have slots */
  uint32_t kept_blocks;                    /* mk_blocks_options.kept */
  uint32_t prompt_tokens, decode_steps;    /* 0: MK_PROMPT_TOKENS, MK_DECODE_STEPS */
  bool draws;              /* all programs draw, as sequences ask, but for that for prompts, which is greedy always */
  uint32_t position_shift; /* mk_tamper */
  mk_blocks_fault fault;   /* tests */
  double (*clock)(void *user); /* NULL: a time that stands still, for which nothing is ever late */
  void *clock_user;
} mk_batch_options;

typedef struct mk_batch mk_batch;

mk_status mk_batch_new(const mk_batch_options *options, mk_batch **out);
void mk_batch_free(mk_batch *batch); /* NULL is fine; nobody is told */

/* Tokens that a sequence may have: what program and KV cache have room for. */
uint32_t mk_batch_context(const mk_batch *batch);

/* Adds a sequence, which its calls know as `tag`; *id (may be NULL) is its number, from 1, in the order of arrival.
 * MK_ERR_USAGE for what can never be computed; `ended` is not called then. A sequence with nothing to generate ends at
 * the next mk_batch_plan. */
mk_status mk_batch_add(mk_batch *batch, const mk_sequence *sequence, const mk_sequence_calls *calls, size_t tag,
                       uint64_t *id);
/* Ends it with MK_ENDED_CANCELLED; false: there is no such sequence any more. */
bool mk_batch_cancel(mk_batch *batch, uint64_t id);
/* Ends all whose time is up. */
void mk_batch_expire(mk_batch *batch);
/* All are gone, and nobody is told. */
void mk_batch_drop(mk_batch *batch);
/* Sequences that have not ended. */
size_t mk_batch_left(const mk_batch *batch);

/* The launch that comes next: plan [steps][rows of that machine's program] and its block table, both valid until the
 * next call. steps 0: all sequences have ended. */
typedef struct mk_launch {
  mk_batch_machine machine;
  const mk_step_row *plan;
  const uint32_t *table;
  uint32_t steps;
} mk_launch;
void mk_batch_plan(mk_batch *batch, mk_launch *launch);

/* What the sequences of the planned launch want beside tokens. */
typedef struct mk_batch_wants {
  bool logits, rankings;
  uint32_t most; /* how many of the most probable tokens some sequence wants */
} mk_batch_wants;
mk_batch_wants mk_batch_wants_of(const mk_batch *batch);

/* Whether row `line` of step `step` of that launch wants a ranking, and of which token; MK_TOKEN_CHOSEN: of what it
 * will choose. */
bool mk_batch_ranked(const mk_batch *batch, uint32_t step, uint32_t line, uint32_t *token);

/* What comes with the results of a step. */
typedef struct mk_batch_extras {
  const float *logits;        /* [rows][vocab]; NULL: none */
  const mk_ranking *rankings; /* [rows]; NULL: they are made of the logits */
} mk_batch_extras;

/* Takes what the rows of step `step` of that launch chose (mk_step_fn). false: the launch should end here, since a
 * sequence has ended, or one that waits could begin. */
bool mk_batch_take(mk_batch *batch, uint32_t step, const uint32_t *results, const mk_batch_extras *extras);

/* The launch failed: all running sequences end with `status` and the current message, and no kept block is used again.
 * The message is the same afterwards, whatever callbacks did. */
void mk_batch_fail(mk_batch *batch, mk_status status);

/* A sequence as a launch finds it. */
typedef struct mk_slot_view {
  const mk_sampling *sampling;
  const uint32_t *tokens; /* [count], of the prompt and generated so far */
  uint32_t count, prompt_count;
  uint32_t computed; /* how many of them have been computed */
  bool fresh;        /* the launch's machine did not make the sequence's last step, so it knows nothing of it */
  bool crosses;      /* another machine made that step */
  bool went_on; /* its last launch ended before its plan did, so the machine may have computed more than was told */
} mk_slot_view;
/* slot: of the machine of the launch that was planned last. false: it is free, or has no part in that launch. */
bool mk_batch_slot(const mk_batch *batch, uint32_t slot, mk_slot_view *out);

typedef struct mk_batch_counters { /* the first five are of now; all others count from mk_batch_new on */
  uint32_t waiting, running;
  uint32_t blocks, blocks_in_use, blocks_kept;
  uint64_t launches, steps;
  uint64_t one_row_steps, few_steps; /* those of the steps that the machine of one row made, and that for few */
  uint64_t rows;                     /* active rows of all steps: tokens that were computed */
  uint64_t preemptions, expired;
  uint64_t asked_tokens, cached_tokens; /* of prompts that began; those of them that were known */
} mk_batch_counters;
void mk_batch_count(const mk_batch *batch, mk_batch_counters *out);
/* Of all prompts since there was last nothing to do: how many tokens they have, and how many of these are done. The
 * last token of a prompt never counts as done. */
void mk_batch_prompts(const mk_batch *batch, uint64_t *done, uint64_t *total);

#endif
