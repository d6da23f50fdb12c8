/* What the parts of the engine share: engine.c opens it, steps.c makes it work. Rules as in engine.h. */
#ifndef MK_ENGINE_INTERNAL_H
#define MK_ENGINE_INTERNAL_H

#include "engine/engine.h"
#include "models/checkpoint.h"

typedef struct beside { /* another program of the model, on the same weights and KV cache */
  mk_program *program;
  mk_gpu *gpu;
} beside;

struct mk_engine {
  mk_config config;
  mk_checkpoint *checkpoint; /* while it opens; NULL: hash weights */
  mk_graph *graph;
  mk_program *program;
  mk_cpu *cpu; /* one of the two */
  mk_gpu *gpu;
  char device[160];
  bool want_logits;
  const volatile sig_atomic_t *cancel;
  void (*prompt_progress)(void *user, uint64_t done, uint64_t total); /* NULL: nobody is told */
  void *progress_user;
  void (*poll)(void *user); /* NULL: nothing comes from outside */
  void *poll_user;
  bool swaps_sampling; /* mk_tamper */
  uint32_t max_seq;
  int logits; /* buffer */
  mk_trace_window trace;
  uint64_t traced_steps; /* of launches since it was set */
  mk_trace *recorded;    /* NULL: none of them had its first step */
  /* With several rows on a GPU: a machine of one row beside it, for the last sequence, and one for long prompts. */
  beside one_row, prompts;
  mk_batch *batch;
  double busy_ms;             /* of all launches on GPUs */
  mk_ranking *rankings;       /* of a GPU's step, [MK_PROMPT_ROWS], NULL until somebody wants them */
  float *logits_copy;         /* of a GPU's step, [MK_PROMPT_ROWS][vocab], NULL until somebody wants them */
  int sampling, bias, counts; /* buffers of a sampling program, else -1 */
};

static inline bool mk_engine_cancelled(const mk_engine *engine) {
  return engine->cancel != NULL && *engine->cancel != 0;
}

/* Into the memory of the engine's machine. */
mk_status mk_engine_write(mk_engine *engine, size_t buffer, uint64_t offset, const void *data, uint64_t bytes);

/* With programs and machines in place. */
mk_status mk_engine_open_batch(mk_engine *engine, const mk_engine_options *options);

#endif
