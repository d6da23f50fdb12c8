/* What the files of the batch share: batch.c keeps the sequences, waiting and running; batch_plan.c makes launches of
 * them. Rules as in batch.h. */
#ifndef MK_BATCH_INTERNAL_H
#define MK_BATCH_INTERNAL_H

#include "engine/batch.h"

enum { MK_NO_SLOT = UINT32_MAX };

typedef struct mk_member mk_member;
struct mk_member { /* a sequence, from its arrival to its end */
  mk_member *next; /* in the order of arrival */
  mk_sequence sequence;
  mk_sequence_calls calls;
  size_t tag;
  uint64_t id;
  uint32_t *tokens;   /* [prompt_count + n_predict] */
  uint32_t known;     /* how many tokens are known so far */
  uint32_t limit;     /* with so many tokens it ends */
  uint32_t computed;  /* how many, from the first on, have been computed: their K and V lie in its blocks */
  uint32_t slot;      /* MK_NO_SLOT: it waits */
  uint32_t overtaken; /* how often later arrivals have begun before it */
  uint32_t told;      /* positions of the prompt whose logits have been told */
  uint32_t drawn_by;  /* the mk_batch_machine that knows it as far as it has come; MK_MACHINES: none */
  bool went_on;       /* mk_slot_view */
  bool takes_part;    /* in the launch that was planned last */
  bool held_back;     /* during mk_batch_admit: it may not begin now */
  mk_sequence_report report;
};

typedef struct mk_batch_side { /* a machine */
  const mk_program *program;
  mk_plan_buffers buffers;
  mk_step_row *plan;
  mk_member **owner; /* [slots]; NULL: nobody. Those of the main machine run; others have who was in a launch last. */
  uint32_t *table;   /* [slots][columns], for the launch; NULL: the main machine takes that of the blocks */
  uint32_t rows, slots, columns;
} mk_batch_side;

struct mk_batch {
  mk_batch_options options;
  mk_batch_side sides[MK_MACHINES];
  mk_blocks blocks;
  mk_member *members;  /* all that have not ended, in the order of arrival */
  mk_member *youngest; /* the last of them */
  size_t left;         /* how many have not ended */
  uint64_t last_id;
  double next_deadline;      /* not later than any deadline; 0: there is none */
  bool arrived;              /* a sequence waits now that did not when the launch was planned */
  mk_launch launch;          /* the one that was planned last */
  mk_batch_machine stand_in; /* makes the steps of the main machine now; that one itself where no other can */
  bool few;                  /* it is the machine for few sequences, unless one of them is alone */
  uint32_t taken;            /* how many steps of the launch have been reported */
  bool lost;                 /* a sequence of the launch has ended */
  mk_batch_counters counters;
  uint64_t prompt_done, prompt_total; /* mk_batch_prompts */
};

static inline mk_known mk_member_known(const mk_batch *b, const mk_member *m, uint32_t count) {
  const bool chunks = b->sides[MK_MACHINE_PROMPTS].program != NULL && m->sequence.prompt_count > MK_LONG_PROMPT &&
                      !m->sequence.prompt_logits;
  const bool alone = b->sides[MK_MACHINE_ONE_ROW].program != NULL && m->sequence.alone && !b->options.draws;
  const bool greedy = m->sequence.sampling != NULL && mk_sampling_is_greedy(m->sequence.sampling);
  const uint32_t left = chunks && b->options.draws && !greedy ? 1 : 0; /* the main machine draws the first token, too */
  return (mk_known){.tokens = m->tokens,
                    .count = count,
                    .origin = {.prompt_count = (uint32_t)m->sequence.prompt_count - left,
                               .prompt = chunks ? MK_MACHINE_PROMPTS : MK_MACHINE_MAIN,
                               .rest = alone ? MK_MACHINE_ONE_ROW : MK_MACHINE_MAIN}};
}

/* Which machine computes that position of the sequence, or has another one stand in for it. */
static inline mk_batch_machine mk_member_machine(const mk_batch *b, const mk_member *m, uint32_t position) {
  const mk_origin origin = mk_member_known(b, m, 0).origin;
  return (mk_batch_machine)(position < origin.prompt_count ? origin.prompt : origin.rest);
}

/* Gives slots and blocks to those that wait, as far as there are any. */
void mk_batch_admit(mk_batch *batch);
/* Takes slot and blocks from the youngest running sequence, which then waits again. */
void mk_batch_preempt(mk_batch *batch);
/* Tells the sequence's calls of its end, and forgets it. */
void mk_member_end(mk_batch *batch, mk_member *member, mk_how_ended how, mk_status status);

#endif
