/* Random schedules of an engine at work, and a judge: whatever comes, goes, waits and fails, a request's tokens and the
 * bits of its logits are those that it has alone.
 *
 * A schedule is a shape of engine (rows, blocks, prefix cache), greedy or not; requests that arrive, are cancelled,
 * have priorities and deadlines, begin alike or go on from an answer; and faults of the machine. A seed stands for all
 * of it. It runs on a real engine over the CPU machine, opened for it, on a clock that moves at the boundaries of steps
 * alone. Every request is also computed by itself, once per world: SCHEDULE_WORLD neighbouring seeds draw from the same
 * model and prompts.
 *
 * The judge looks at tokens and logits; at reports, counters and times; at who begins before whom; and between launches
 * at the tables of blocks.
 *
 * The caller owns a world until schedule_world_free. One thread each; nothing is kept elsewhere. Failure: what
 * schedule_run says. */
#ifndef MK_TEST_SCHEDULE_H
#define MK_TEST_SCHEDULE_H

#include <stdio.h>

#include "engine/engine.h"

enum { SCHEDULE_WORLD = 1000 }; /* seeds that share one */

/* What came of schedules. */
typedef enum schedule_count {
  SCHEDULE_SCHEDULES,
  SCHEDULE_INTERLEAVED, /* of them, in random interleavings, with a look at races */
  SCHEDULE_REQUESTS,
  SCHEDULE_WHOLE,
  SCHEDULE_CANCELLED,
  SCHEDULE_LATE,
  SCHEDULE_NAN,    /* ended by logits that were not numbers */
  SCHEDULE_STRUCK, /* ended by a fault of the machine */
  SCHEDULE_REFUSED,
  SCHEDULE_FAULTS, /* of machines */
  SCHEDULE_PREEMPTIONS,
  SCHEDULE_TOKENS, /* each compared with what its request has alone */
  SCHEDULE_ASKED,  /* tokens of prompts that began */
  SCHEDULE_CACHED, /* of them, known */
  SCHEDULE_LAUNCHES,
  SCHEDULE_STEPS,
  SCHEDULE_ONE_ROW,   /* of them, by the machine of one row */
  SCHEDULE_FEW,       /* and by that for few sequences */
  SCHEDULE_CROSSINGS, /* requests that went on by another machine: into more company, or less */
  SCHEDULE_COUNTS,
} schedule_count;
extern const char *const schedule_count_names[SCHEDULE_COUNTS];

typedef struct schedule_counts {
  uint64_t n[SCHEDULE_COUNTS];
  uint32_t most_overtaken; /* times that a request was, by later ones */
} schedule_counts;
void schedule_add(schedule_counts *into, const schedule_counts *from);

/* Faults that can be planted in the engine: a row for each that mk_tamper knows. */
typedef struct schedule_plant {
  const char *name, *what;
  mk_tamper tamper;
} schedule_plant;
extern const schedule_plant schedule_plants[];
extern const size_t schedule_plant_count;

typedef struct schedule_options {
  const schedule_plant *plant; /* NULL: none */
  bool bits_alone;             /* the judge does not look into the tables of blocks, but only at what callers see */
} schedule_options;

typedef struct schedule_world schedule_world;
mk_status schedule_world_new(schedule_world **out);
void schedule_world_free(schedule_world *world);

/* Runs the schedule of a seed. MK_OK: nothing is wrong, and its counts are added to `counts`. MK_ERR_DEVICE: something
 * is wrong, and the message says what. MK_ERR_RUNTIME: out of memory. */
mk_status schedule_run(schedule_world *world, uint64_t seed, const schedule_options *options, schedule_counts *counts);
/* Prints the schedule of a seed, a line per request. */
mk_status schedule_print(schedule_world *world, uint64_t seed, FILE *out);

#endif
