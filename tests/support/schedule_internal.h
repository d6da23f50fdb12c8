/* What the parts of the schedules share: schedule_world.c has the requests' texts, schedule_draw.c makes schedules of
 * them, schedule.c runs and judges them, schedule_books.c looks at the tables of blocks, and breaks
 * them. Rules as in schedule.h. */
#ifndef MK_TEST_SCHEDULE_INTERNAL_H
#define MK_TEST_SCHEDULE_INTERNAL_H

#include "scheduler/compile.h"
#include "tests/support/schedule.h"

enum {
  SCHEDULE_TEXTS = 512,  /* of which the answers are greedy; then as many that are drawn */
  SCHEDULE_FAMILY = 4,   /* neighbours of which each may go on from the answer to the one before */
  SCHEDULE_PROMPT = 200, /* tokens at most */
  SCHEDULE_ANSWER = 30,
  SCHEDULE_CONTEXT = 256,
  SCHEDULE_ASKS = 64,
  SCHEDULE_MOST_FAULTS = 3,
};

/* A prompt, and what a model says to it when nobody else is there. */
typedef struct schedule_text {
  uint32_t prompt[SCHEDULE_PROMPT];
  uint32_t prompt_count; /* 0: it has not been drawn so far */
  uint32_t tokens[SCHEDULE_ANSWER];
  uint64_t bits[SCHEDULE_ANSWER]; /* of the logits of each */
  uint32_t count;                 /* SCHEDULE_ANSWER, or fewer when it fails after them */
  mk_status status;
  mk_sampling sampling; /* of those that are drawn */
} schedule_text;

struct schedule_world {
  uint64_t seed;
  mk_config config;
  schedule_text texts[2 * SCHEDULE_TEXTS];
};

/* The world of a schedule's seed. */
void schedule_world_enter(schedule_world *world, uint64_t seed);
static inline bool schedule_draws(uint32_t text) { return text >= SCHEDULE_TEXTS; }
/* Computed when it is asked for first. */
mk_status schedule_world_text(schedule_world *world, uint32_t index, const schedule_text **out);
/* An engine of that world's model, on the CPU, with a spoiled cache. */
mk_dtype schedule_world_kv(const schedule_world *world);
mk_status schedule_world_open(const schedule_world *world, mk_engine_options options, mk_engine **out);
/* NaN in all of its KV cache, so that what is read without having been written shows. */
void schedule_spoil_cache(mk_engine *engine);
/* A hash of the logits of a token: equal for equal bits. */
uint64_t schedule_world_bits(const schedule_world *world, const float *logits);

typedef struct schedule_ask { /* times are on the schedule's clock; 0: never */
  double at, cancel_at, begin_by, end_by;
  uint32_t text, n_predict, stop; /* stop: its caller ends it after so many tokens; 0: does not */
  int32_t priority;
  bool unknown_token; /* its last one is not in the vocabulary */
} schedule_ask;

typedef struct schedule {
  uint64_t seed;
  mk_engine_options shape;
  schedule_ask asks[SCHEDULE_ASKS]; /* in the order of arrival */
  uint32_t count;
  double faults[SCHEDULE_MOST_FAULTS]; /* times */
  uint32_t fault_count;
} schedule;

mk_status schedule_draw(schedule_world *world, uint64_t seed, schedule *out);

/* Between launches: every block is spare, kept or held, who runs has blocks for what is computed, and a known block
 * follows a known one. MK_ERR_DEVICE when that is not so. */
mk_status schedule_books(const mk_engine *engine);

/* The block tables of all machines name blocks that do not exist. */
void schedule_break_tables(const mk_engine *engine);

#endif
