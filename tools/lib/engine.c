/* See engine.h. */
#include "tools/lib/engine.h"

#include <string.h>

#include "models/checkpoint.h"
#include "models/llama.h"
#include "scheduler/compile.h"
#include "tools/lib/weights.h"
#include "vm/cpu/machine.h"
#include "vm/verify.h"

enum { DEFAULT_CONTEXT = 4096 };

struct mk_engine {
  mk_config config;
  mk_graph *graph;
  mk_program *program;
  mk_cpu *cpu;
  uint32_t max_seq;
  uint32_t position_shift; /* mk_tamper */
  int prompt, logits;      /* buffers */
};

static mk_status load_weights(mk_engine *engine, const char *model_dir, const mk_engine_options *options) {
  mk_checkpoint *checkpoint;
  MK_TRY(mk_checkpoint_open(model_dir, &checkpoint));
  mk_config config; /* as on disk: a tampered one need not match the checkpoint */
  mk_status status = mk_config_load(model_dir, &config);
  if (status == MK_OK) {
    status = mk_checkpoint_check(checkpoint, &config);
  }
  uint64_t done = 0;
  for (size_t i = 0; status == MK_OK && i < engine->graph->weight_count; i++) {
    const mk_weight *weight = &engine->graph->weights[i];
    size_t buffer = (size_t)mk_program_find_buffer(engine->program, weight->name);
    status = mk_weights_load(checkpoint, engine->graph, weight, mk_cpu_memory(engine->cpu, buffer));
    done += engine->program->buffers[buffer].bytes;
    if (options->progress != NULL) {
      options->progress(options->progress_user, done, engine->program->weight_bytes);
    }
  }
  mk_checkpoint_close(checkpoint);
  return status;
}

/* Blocks in an order that is not the identity, so that a forgotten look-up shows; every block once. */
static void fill_block_table(mk_engine *engine) {
  int index = mk_program_find_buffer(engine->program, "block_table");
  uint32_t *table = mk_cpu_memory(engine->cpu, (size_t)index);
  uint32_t blocks = engine->program->buffers[index].cols;
  for (uint32_t b = 0; b < blocks; b++) {
    table[b] = blocks - 1 - b;
  }
}

static mk_status open_engine(mk_engine *engine, const char *model_dir, const mk_engine_options *options) {
  MK_TRY(mk_config_load(model_dir, &engine->config));
  if (options->tamper != NULL && options->tamper->config != NULL) {
    options->tamper->config(&engine->config);
  }
  uint32_t longest = engine->config.max_position;
  engine->max_seq = options->max_seq != 0 ? options->max_seq : longest < DEFAULT_CONTEXT ? longest : DEFAULT_CONTEXT;
  MK_TRY(mk_llama_graph(&engine->config, &engine->graph));
  mk_compile_options compile = {.sms = options->sms == 0 ? MK_DEFAULT_SMS : options->sms, .max_seq = engine->max_seq};
  MK_TRY(mk_compile(engine->graph, &compile, &engine->program));
  MK_TRY(mk_verify(engine->program, NULL));
  if (options->tamper != NULL) {
    engine->position_shift = options->tamper->position_shift;
    if (options->tamper->program != NULL) {
      options->tamper->program(engine->program);
    }
  }
  mk_cpu_options machine = {.seed = options->interleave_seed,
                            .adversarial = options->adversarial,
                            .check_races = options->check_races};
  MK_TRY(mk_cpu_new(engine->program, &machine, &engine->cpu));
  engine->prompt = mk_program_find_buffer(engine->program, "prompt");
  engine->logits = mk_program_find_buffer(engine->program, "logits");
  fill_block_table(engine);
  return load_weights(engine, model_dir, options);
}

mk_status mk_engine_open(const char *model_dir, const mk_engine_options *options, mk_engine **out) {
  MK_TRY(mk_alloc(1, sizeof **out, out));
  mk_status status = open_engine(*out, model_dir, options);
  if (status != MK_OK) {
    mk_engine_close(*out);
    *out = NULL;
  }
  return status;
}

void mk_engine_close(mk_engine *engine) {
  if (engine == NULL) {
    return;
  }
  mk_cpu_free(engine->cpu);
  mk_program_free(engine->program);
  mk_graph_free(engine->graph);
  mk_free(engine);
}

const mk_config *mk_engine_config(const mk_engine *engine) { return &engine->config; }
const mk_program *mk_engine_program(const mk_engine *engine) { return engine->program; }
uint32_t mk_engine_max_seq(const mk_engine *engine) { return engine->max_seq; }

typedef struct generation {
  mk_engine *engine;
  size_t prompt_count, left;
  mk_token_fn fn;
  void *user;
} generation;

static bool on_token(void *user, uint32_t position, uint32_t token) {
  generation *g = user;
  if (position + 1 < g->prompt_count + g->engine->position_shift) {
    return true; /* still inside the prompt */
  }
  g->left--;
  bool more = g->fn(g->user, token, mk_cpu_memory(g->engine->cpu, (size_t)g->engine->logits));
  return more && g->left != 0;
}

mk_status mk_engine_generate(mk_engine *engine, const uint32_t *prompt, size_t prompt_count, size_t n_predict,
                             mk_token_fn fn, void *user) {
  if (prompt_count == 0 || prompt_count > engine->max_seq) {
    return mk_error(MK_ERR_USAGE, "the prompt has %zu tokens; the context holds 1 to %u", prompt_count, engine->max_seq);
  }
  for (size_t i = 0; i < prompt_count; i++) {
    if (prompt[i] >= engine->config.vocab) {
      return mk_error(MK_ERR_USAGE, "prompt token %zu is %u; the vocabulary has %u", i, prompt[i], engine->config.vocab);
    }
  }
  size_t room = engine->max_seq - prompt_count;
  n_predict = n_predict < room ? n_predict : room;
  if (n_predict == 0) {
    return MK_OK;
  }
  uint32_t shift = engine->position_shift, count = (uint32_t)prompt_count + shift;
  uint32_t *tokens = mk_cpu_memory(engine->cpu, (size_t)engine->prompt);
  memcpy(tokens + shift, prompt, prompt_count * sizeof *prompt);
  mk_cpu_set_state(engine->cpu, prompt[0], shift, count);
  generation g = {.engine = engine, .prompt_count = prompt_count, .left = n_predict, .fn = fn, .user = user};
  return mk_cpu_run(engine->cpu, prompt_count - 1 + n_predict, on_token, &g);
}
