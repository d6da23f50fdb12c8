/* What the parts of the engine share: engine.c opens it and generates with one row, engine_rows.c with several. Rules as in engine.h. */
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
  uint32_t max_seq;
  uint32_t position_shift; /* mk_tamper */
  int logits;              /* buffer */
  mk_trace_window trace;
  /* With several rows on a GPU: a machine of one row beside it, for the last sequence, and one for long prompts. */
  beside one_row, prompts;
  float *logits_copy;         /* of the GPU's, [rows][vocab] */
  int sampling, bias, counts; /* buffers of a sampling program, else -1 */
};

static inline bool mk_engine_cancelled(const mk_engine *engine) {
  return engine->cancel != NULL && *engine->cancel != 0;
}

static inline void mk_engine_tell_prompt(const mk_engine *engine, uint64_t done, uint64_t total) {
  if (engine->prompt_progress != NULL) {
    engine->prompt_progress(engine->progress_user, done, total);
  }
}

/* Into the memory of the engine's machine. */
mk_status mk_engine_write(mk_engine *engine, size_t buffer, uint64_t offset, const void *data, uint64_t bytes);

/* A mk_step_fn for programs of one row that leaves the choice in *user, a uint32_t. */
bool mk_engine_keep_token(void *user, uint32_t step, const uint32_t *results);

/* mk_engine_generate_all in a program of several rows. hands_over: the last sequence may go on in a program of one row. */
mk_status mk_engine_generate_rows(mk_engine *engine, const mk_sequence *sequences, size_t count,
                                  const mk_sequence_calls *calls, bool hands_over);

#endif
