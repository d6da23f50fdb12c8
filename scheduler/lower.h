/* Lowering: graph nodes to instructions on queues. Private to the scheduler.
 *
 * A mk_lowering owns its queues, maps and placer until mk_lowering_free; the program under construction and the graph
 * are the caller's. */
#ifndef MK_LOWER_H
#define MK_LOWER_H

#include "scheduler/place.h"

typedef struct mk_queue_builder {
  mk_instruction *instructions;
  size_t count, capacity;
} mk_queue_builder;

typedef struct mk_lowered_value { /* where a value of the graph is stored, and how its readers wait for it */
  uint16_t buffer;
  uint16_t ready;      /* the counter that its writers signal; MK_NO_COUNTER: none */
  bool ready_by_tiles; /* each tile of lines has a counter of its own: `ready` is the first, the others follow it */
  /* Where each rank makes columns of its own: how many, one rank's after the other's. 0: all ranks have the same. */
  uint32_t of_rank;
  uint16_t summed; /* the first of the sums' counters, a tile of lines each, for a NORM on another SM; MK_NO_COUNTER */
  uint16_t residual; /* of an ADD: the buffer of its fp32 rows, each touched by its owner only */
  /* Wide programs: the buffers of what NORM makes of the value. The counters above then tell that these are ready. What
   * no product norms is read as it is: `normed` is the value itself, and `summed` its counters. */
  uint16_t normed, squares;
} mk_lowered_value;

enum {
  MK_NO_COUNTER = 0xffff,
  /* How many rounds of SIFT there are before DRAW, which searches all scores if they were not enough, and reads them
   * all on every SM; docs/SAMPLING.md says how often that happens. */
  MK_SIFT_ROUNDS = 3,
  /* With several rows per step a round takes two SIFTs: the second one adds up what all SMs found in the first. */
  MK_SIFT_MOST = 2 * MK_SIFT_ROUNDS,
};

typedef struct mk_lowered_sampling { /* buffers of a sampling program */
  uint16_t sampling, bias, counts, scores, fronts, rounds[MK_SIFT_MOST], choices;
} mk_lowered_sampling;

typedef struct mk_lowering {
  const mk_graph *graph;
  mk_program *program;
  uint32_t ranks, sms_of_rank; /* SMs in use: the first ones of each rank; the queues of its other SMs stay empty */
  uint32_t sms;                /* SMs in use of all ranks; SM s of rank r is number r * sms_of_rank + s */
  uint32_t max_seq;
  uint32_t lines;      /* rows per step */
  uint32_t line_tiles; /* tiles of lines in a value: an instruction computes one, but attention computes all */
  uint32_t blocks;     /* of a KV cache */
  mk_dtype kv;         /* its form */
  mk_placer placer;
  mk_share *owners;         /* per SM: row tiles of the residual it owns */
  mk_queue_builder *queues; /* per SM */
  uint16_t *weights;        /* weight -> buffer */
  mk_lowered_value *values; /* value -> buffer, counter */
  uint16_t table, plan, ring, logits, candidates, work;
  bool wide;                 /* the program has the wide form (wide.c) */
  bool reuses;               /* wide programs: a layer's values lie where those of the layer before did */
  mk_lowered_value embedded; /* wide programs: the embedding rows of the step's tokens */
  /* By rank: how many units have been dealt to its SMs, which take turns. Units of wide programs, and of attention. */
  uint32_t *turns, *begun; /* begun: of wide programs, turns when the dealing at hand began */
  bool samples;            /* a sampling program, with the buffers below */
  mk_lowered_sampling sampling;
  uint32_t splits, spans; /* of attention: splits of a KV head, and spans of a split */
  uint32_t next_uid;
} mk_lowering;

mk_status mk_lowering_init(mk_lowering *lowering, const mk_graph *graph, const mk_compile_options *options,
                           mk_program *program);
void mk_lowering_free(mk_lowering *lowering);

/* Declares the buffers that all nodes share, then lowers every node, and adds the token boundary (`head` to `next`). */
mk_status mk_lower(mk_lowering *lowering);

#endif
