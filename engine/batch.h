/* Sequences that share steps: who waits, who runs, and which row of which step computes what (vm/program/plan.h), from
 * arrival to end.
 *
 * Sequences may come and go at any time; what comes of it begins with the next launch, and a launch at work ends at the
 * next step boundary when somebody could join it. A sequence that has a slot and blocks *runs*; the others wait.
 *
 * Who begins first: lower `priority`, then who came first. Nobody is overtaken more than MK_MOST_OVERTAKEN times by
 * later arrivals: then all others wait for it. A sequence whose beginning another one computes at the moment waits for
 * those blocks, unless it has been overtaken that often.
 *
 * Who computes: the positions of a prompt and those of what is generated have a machine each (mk_origin), which follows
 * from the sequence alone. The machines take turns. In a step of the main one each of its sequences has a row, and what
 * is left are rows of prompts, first come, first served. Where one row of it alone would have something to do, the
 * machine of one row, which is faster, makes the step in its place, as far as it has the same bits (mk_batch_alike).
 * While prompts wait for their own machine, a launch of that has at most `prompt_tokens` rows and one of another
 * machine at most `decode_steps` steps: so long somebody who generates waits at most.
 *
 * Out of blocks: the youngest that runs gives its own back and waits again, with all its tokens; they are computed
 * anew, each position by its own machine, so to the same bits.
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
  uint32_t cached;      /* tokens of the prompt that were not computed, as they were known */
  uint32_t preemptions; /* how often its blocks were taken */
} mk_sequence_report;

typedef struct mk_sequence {
  const uint32_t *prompt;
  size_t prompt_count; /* 1..mk_batch_context, ids below the vocabulary's size */
  size_t n_predict;    /* tokens to generate, as far as the context has room */
  /* Of a program that samples; NULL: as the engine says. Outlives the sequence, as the report does. */
  const mk_sampling *sampling;
  mk_sequence_report *report; /* NULL: nobody wants it */
  bool alone;                 /* what it generates is computed in steps of one row where there are such */
  bool logits; /* its calls get logits; on a GPU every step that it takes part in is then a launch of its own */
  /* Filled in before each of its calls: how the token stands among all, and `most`, which stays, of the most probable.
   * NULL: nobody wants it. On a GPU as dear as logits, but for these themselves, which stay there. */
  mk_ranking *ranking;
  /* `calls.prompt` is told of its whole prompt, with a ranking or, without one, logits; the main machine computes it
   * then, whatever its length, and all of it: nothing that is known is taken over. */
  bool prompt_logits;
  int32_t priority;        /* lower ones first */
  double begin_by, end_by; /* on the batch's clock: when its time to wait, and all its time, is up; 0: never */
} mk_sequence;

typedef struct mk_sequence_calls {
  /* A generated token; false ends the sequence. logits: [vocab], valid during the call; NULL: nobody asked. */
  bool (*token)(void *user, size_t sequence, uint32_t token, const float *logits);
  /* With prompt_logits, for each position of the prompt but the last, in order, each once: logits of what follows it
   * (NULL: a ranking has been asked for). May be NULL else. */
  void (*prompt)(void *user, size_t sequence, uint32_t position, const float *logits);
  /* Once for every sequence, in the order in which they end. mk_error_message() says why when status is not MK_OK. */
  void (*ended)(void *user, size_t sequence, mk_status status);
  void *user;
} mk_sequence_calls;

/* The machines of an engine, each with a program of the same model, on the same weights and KV cache. */
typedef enum mk_batch_machine {
  MK_MACHINE_MAIN,
  MK_MACHINE_PROMPTS, /* of one sequence's rows, for prompts of more than MK_LONG_PROMPT tokens */
  MK_MACHINE_ONE_ROW,
  MK_MACHINES,
} mk_batch_machine;

enum {
  MK_LONG_PROMPT = 32, /* tokens: more of them are worth a program of their own */
  MK_MOST_OVERTAKEN = 32,
  MK_PROMPT_TOKENS = 512, /* of a launch, when others wait */
  MK_DECODE_STEPS = 8,
};

typedef struct mk_batch_options {
  const mk_program *programs[MK_MACHINES]; /* NULL but for MK_MACHINE_MAIN: there is no such machine */
  uint32_t kept_blocks;                    /* mk_blocks_options.kept */
  uint32_t prompt_tokens, decode_steps;    /* 0: MK_PROMPT_TOKENS, MK_DECODE_STEPS */
  bool draws; /* the main program does, and that of one row, by the sequences' parameters; that of prompts is greedy */
  uint32_t position_shift;     /* mk_tamper */
  mk_blocks_fault fault;       /* tests */
  double (*clock)(void *user); /* NULL: a time that stands still, for which nothing is ever late */
  void *clock_user;
} mk_batch_options;

typedef struct mk_batch mk_batch;

mk_status mk_batch_new(const mk_batch_options *options, mk_batch **out);
void mk_batch_free(mk_batch *batch); /* NULL is fine; nobody is told */

/* Tokens that a sequence may have: what program and KV cache have room for. */
uint32_t mk_batch_context(const mk_batch *batch);

/* Up to how many tokens of context a step of one row has the bits that one of several has (docs/NUMERICS.md): as long
 * as no split of attention of one row has a second span. 0: there is no such machine, or it never has. */
uint32_t mk_batch_alike(const mk_batch *batch);

/* A sequence more, known to its calls as `tag`; *id (may be NULL) is its number, from 1, in the order of arrival.
 * MK_ERR_USAGE for what can never be computed; nobody is told then. A sequence with nothing to generate ends at the
 * next mk_batch_plan. */
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

/* What those who take part in it want beside tokens. */
typedef struct mk_batch_wants {
  bool logits, rankings;
  uint32_t most; /* of the most probable, that somebody wants */
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

/* What the rows of step `step` of that launch chose (mk_step_fn). false: the launch had better end here, since a
 * sequence has ended, or one that waits could begin. */
bool mk_batch_take(mk_batch *batch, uint32_t step, const uint32_t *results, const mk_batch_extras *extras);

/* The launch failed: all that run end with `status` and the message at hand, and no block is known any more. The
 * message stands afterwards, whatever callbacks did. */
void mk_batch_fail(mk_batch *batch, mk_status status);

/* A sequence as a launch finds it. */
typedef struct mk_slot_view {
  const mk_sampling *sampling;
  const uint32_t *tokens; /* [count], of the prompt and generated so far */
  uint32_t count, prompt_count;
  uint32_t computed; /* of them */
  bool fresh;        /* the launch's machine does not know it: it did not make the step before */
  bool crosses;      /* another one that knows it did */
  bool went_on; /* its last launch ended before its plan did, so the machine may have computed more than was told */
} mk_slot_view;
/* false: the slot is free, or has no part in the launch that was planned last. */
bool mk_batch_slot(const mk_batch *batch, uint32_t slot, mk_slot_view *out);

typedef struct mk_batch_counters { /* since mk_batch_new, but for what is there now */
  uint32_t waiting, running;
  uint32_t blocks, blocks_in_use, blocks_kept;
  uint64_t launches, steps;
  uint64_t one_row_steps; /* of them, by the machine of one row */
  uint64_t rows;          /* of steps: tokens that were computed */
  uint64_t preemptions, expired;
  uint64_t asked_tokens, cached_tokens; /* of prompts that began; of them, known */
} mk_batch_counters;
void mk_batch_count(const mk_batch *batch, mk_batch_counters *out);
/* Tokens of prompts since nothing was left to do, and those of them that are done; the last of each never is. */
void mk_batch_prompts(const mk_batch *batch, uint64_t *done, uint64_t *total);

#endif
