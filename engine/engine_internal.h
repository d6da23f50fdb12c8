/* What the files of the engine share: engine.c opens it, steps.c makes it work, slots.c gives programs that draw the
 * parameters and counts of sequences. Rules as in engine.h. */
#ifndef MK_ENGINE_INTERNAL_H
#define MK_ENGINE_INTERNAL_H

#include "engine/engine.h"
#include "models/checkpoint.h"

/* A program of the model, and the machine that runs it. All those of an engine have the same weights and KV cache. */
typedef struct mk_engine_machine {
  mk_program *program; /* NULL: there is no such machine */
  mk_cpu *cpu;         /* the machine is this one or `gpu`; the other is NULL */
  mk_gpu *gpu;
  int table, logits;          /* buffers */
  int sampling, bias, counts; /* of a program that draws, else -1 */
} mk_engine_machine;

struct mk_engine {
  mk_config config;
  mk_checkpoint *checkpoint; /* while it opens; NULL: hash weights */
  mk_graph *graph;
  mk_engine_machine machines[MK_MACHINES]; /* by mk_batch_machine */
  mk_group *group;                         /* NULL: all ranks are in this process */
  char device[160];
  bool want_logits;
  const volatile sig_atomic_t *cancel;
  void (*prompt_progress)(void *user, uint64_t done, uint64_t total); /* NULL: nobody is told */
  void *progress_user;
  void (*poll)(void *user); /* NULL: nothing comes from outside */
  void *poll_user;
  bool swaps_sampling, forgets_counts; /* mk_tamper */
  uint32_t max_seq;
  mk_recording recording; /* of the launches since mk_engine_trace */
  mk_batch *batch;
  mk_engine_busy busy;
  mk_ranking *rankings; /* of a GPU's step, by line, [MK_MOST_ROWS], NULL until somebody wants them */
  float *logits_copy;   /* of a GPU's step, [MK_MOST_ROWS][vocab], NULL until somebody wants them */
};

static inline bool mk_engine_cancelled(const mk_engine *engine) {
  return engine->cancel != NULL && *engine->cancel != 0;
}

static inline const mk_engine_machine *mk_engine_main(const mk_engine *engine) {
  return &engine->machines[MK_MACHINE_MAIN];
}

/* Writes into a buffer of one of the engine's machines. */
mk_status mk_engine_write(const mk_engine_machine *machine, size_t buffer, uint64_t offset, const void *data,
                          uint64_t bytes);

/* Before a launch of a machine that draws: gives it what it does not know yet of the sequences that take part. */
mk_status mk_engine_prepare_slots(mk_engine *engine, const mk_engine_machine *machine);

/* Makes engine->batch; programs and machines must be in place. */
mk_status mk_engine_open_batch(mk_engine *engine, const mk_engine_options *options);

#endif
