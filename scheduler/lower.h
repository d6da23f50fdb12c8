/* Lowering: graph nodes to instructions on queues. Private to the scheduler.
 *
 * A mk_lowering owns its queues, maps and placer until mk_lowering_free; the program under construction and the graph are the
 * caller's. */
#ifndef MK_LOWER_H
#define MK_LOWER_H

#include "scheduler/place.h"

typedef struct mk_queue_builder {
  mk_instruction *instructions;
  size_t count, capacity;
} mk_queue_builder;

typedef struct mk_lowered_value { /* a value of the graph, as stored */
  uint16_t buffer;
  uint16_t ready;      /* counter that its writers signal; MK_NO_COUNTER: none */
  bool ready_by_tiles; /* each tile of lines has one, from that on */
  uint32_t of_rank;    /* so many each rank has by itself, one rank's behind the other's; 0: all ranks have the same */
  uint16_t residual;   /* ADD: its fp32 rows, each touched by its owner only */
  /* Of a wide program, what NORM makes of it, which those counters tell of. */
  uint16_t normed, squares;
} mk_lowered_value;

enum {
  MK_NO_COUNTER = 0xffff,
  /* Of SIFT, before DRAW goes on over all scores, which every SM then reads whole: how often that
   * remains: docs/SAMPLING.md. */
  MK_SIFT_ROUNDS = 3,
  MK_SIFT_MOST = 2 * MK_SIFT_ROUNDS, /* with several rows per step: a second SIFT adds up what the first one has */
};

typedef struct mk_lowered_sampling { /* buffers of a sampling program */
  uint16_t sampling, bias, counts, scores, fronts, rounds[MK_SIFT_MOST], choices;
} mk_lowered_sampling;

typedef struct mk_lowering {
  const mk_graph *graph;
  mk_program *program;
  uint32_t ranks, sms_of_rank; /* SMs in use: the first ones of each rank; the queues of the others stay empty */
  uint32_t sms;                /* of all ranks; SM s of rank r is number r * sms_of_rank + s */
  uint32_t max_seq;
  uint32_t lines;      /* rows per step */
  uint32_t line_tiles; /* of a value of a step: an instruction computes one, but for attention, which computes all */
  uint32_t blocks;     /* of a KV cache */
  mk_dtype kv;         /* its form */
  mk_placer placer;
  mk_share *owners;         /* per SM: row tiles of the residual it owns */
  mk_queue_builder *queues; /* per SM */
  uint16_t *weights;        /* weight -> buffer */
  mk_lowered_value *values; /* value -> buffer, counter */
  uint16_t table, plan, ring, logits, candidates, work;
  bool wide;                 /* the wide form (wide.c) */
  bool reuses;               /* of that, a layer's values lie where those of the one before did */
  mk_lowered_value embedded; /* of that, the embedding rows of the step's tokens */
  uint32_t *turns; /* of each rank, units dealt so far, whose SMs take turns: of wide programs, and of attention */
  bool samples;    /* a sampling program, with the buffers below */
  mk_lowered_sampling sampling;
  uint32_t splits; /* of attention */
  uint32_t next_uid;
} mk_lowering;

mk_status mk_lowering_init(mk_lowering *lowering, const mk_graph *graph, const mk_compile_options *options,
                           mk_program *program);
void mk_lowering_free(mk_lowering *lowering);

/* Declares the buffers that all nodes share, then lowers every node and the token boundary. */
mk_status mk_lower(mk_lowering *lowering);

#endif
