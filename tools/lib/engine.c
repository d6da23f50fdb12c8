/* See engine.h. */
#include "tools/lib/engine.h"

#include <stdio.h>
#include <string.h>

#include "models/checkpoint.h"
#include "models/llama.h"
#include "scheduler/compile.h"
#include "tools/lib/synth_weights.h"
#include "tools/lib/weights.h"
#include "vm/cpu/machine.h"
#include "vm/verify.h"

enum { DEFAULT_CONTEXT = 4096 };

struct mk_engine {
  mk_config config;
  mk_graph *graph;
  mk_program *program;
  mk_cpu *cpu; /* one of the two */
  mk_gpu *gpu;
  char device[160];
  bool want_logits;
  const volatile sig_atomic_t *cancel;
  uint32_t max_seq;
  uint32_t position_shift; /* mk_tamper */
  int prompt, logits;      /* buffers */
  float *logits_copy;      /* of the GPU's, [vocab] */
};

static bool needs_cpu(const mk_engine_options *options) {
  return options->interleave_seed != 0 || options->adversarial || options->check_races || options->tamper != NULL;
}

/* *index: the GPU to use, or -1 for the CPU. */
static mk_status choose_device(const mk_engine_options *options, int *index) {
  const char *name = options->device == NULL ? "" : options->device;
  *index = -1;
  if (strcmp(name, "cpu") == 0) {
    return MK_OK;
  }
  if (name[0] == '\0') {
    *index = !needs_cpu(options) && mk_gpu_present(0) ? 0 : -1;
    return MK_OK;
  }
  int length = 0, number = 0;
  if (strcmp(name, "cuda") != 0 &&
      (strlen(name) > 8 || sscanf(name, "cuda:%d%n", &number, &length) != 1 || name[length] != '\0' || number < 0)) {
    return mk_error(MK_ERR_USAGE, "device \"%s\" is unknown; it is cpu, cuda or cuda:N", name);
  }
  if (needs_cpu(options)) {
    return mk_error(MK_ERR_USAGE, "device %s does not interleave or check for races; use --device cpu for that", name);
  }
  *index = number;
  return MK_OK;
}

static mk_status write_buffer(mk_engine *engine, size_t buffer, uint64_t offset, const void *data, uint64_t bytes) {
  if (engine->gpu != NULL) {
    return mk_gpu_write(engine->gpu, buffer, offset, data, bytes);
  }
  memcpy((uint8_t *)mk_cpu_memory(engine->cpu, buffer) + offset, data, bytes);
  return MK_OK;
}

typedef struct weight_loader {
  mk_engine *engine;
  const mk_engine_options *options;
  mk_checkpoint *checkpoint; /* NULL: hash weights */
  void *staging;             /* cuda: holds any one packed weight */
  uint64_t done;
} weight_loader;

static mk_status load_weight(weight_loader *loader, const mk_weight *weight, size_t buffer) {
  mk_engine *engine = loader->engine;
  uint64_t bytes = engine->program->buffers[buffer].bytes;
  if (loader->checkpoint == NULL && engine->gpu != NULL) {
    return mk_synth_weights_fill_gpu(engine->graph, weight, loader->options->synth_seed, engine->gpu, buffer);
  }
  void *memory = engine->gpu == NULL ? mk_cpu_memory(engine->cpu, buffer) : loader->staging;
  if (loader->checkpoint == NULL) {
    return mk_synth_weights_fill(engine->graph, weight, loader->options->synth_seed, memory);
  }
  if (engine->gpu == NULL) {
    return mk_weights_load(loader->checkpoint, engine->graph, weight, memory);
  }
  memset(memory, 0, bytes); /* the padding: the last weight lay here */
  MK_TRY(mk_weights_load(loader->checkpoint, engine->graph, weight, memory));
  return mk_gpu_write(engine->gpu, buffer, 0, memory, bytes);
}

static mk_status load_all(weight_loader *loader) {
  const mk_engine *engine = loader->engine;
  const mk_engine_options *options = loader->options;
  for (size_t i = 0; i < engine->graph->weight_count; i++) {
    const mk_weight *weight = &engine->graph->weights[i];
    size_t buffer = (size_t)mk_program_find_buffer(engine->program, weight->name);
    MK_TRY(load_weight(loader, weight, buffer));
    loader->done += engine->program->buffers[buffer].bytes;
    if (options->progress != NULL) {
      options->progress(options->progress_user, loader->done, engine->program->weight_bytes);
    }
  }
  return MK_OK;
}

static mk_status new_staging(weight_loader *loader) {
  const mk_program *program = loader->engine->program;
  uint64_t largest = 0;
  for (size_t b = 0; b < program->buffer_count; b++) {
    if (program->buffers[b].kind == MK_KIND_WEIGHT && program->buffers[b].bytes > largest) {
      largest = program->buffers[b].bytes;
    }
  }
  return mk_alloc_aligned(64, largest, &loader->staging);
}

static mk_status load_weights(mk_engine *engine, const char *model_dir, const mk_engine_options *options) {
  weight_loader loader = {.engine = engine, .options = options};
  if (options->synth != NULL) {
    return load_all(&loader);
  }
  MK_TRY(mk_checkpoint_open(model_dir, &loader.checkpoint));
  mk_config config; /* as on disk: a tampered one need not match the checkpoint */
  mk_status status = mk_config_load(model_dir, &config);
  if (status == MK_OK) {
    status = mk_checkpoint_check(loader.checkpoint, &config);
  }
  if (status == MK_OK && engine->gpu != NULL) {
    status = new_staging(&loader);
  }
  if (status == MK_OK) {
    status = load_all(&loader);
  }
  mk_free(loader.staging);
  mk_checkpoint_close(loader.checkpoint);
  return status;
}

/* Blocks in an order that is not the identity, so that a forgotten look-up shows; every block once. */
static mk_status fill_block_table(mk_engine *engine) {
  size_t index = (size_t)mk_program_find_buffer(engine->program, "block_table");
  uint32_t blocks = engine->program->buffers[index].cols;
  uint32_t *table;
  MK_TRY(mk_alloc(blocks, sizeof *table, &table));
  for (uint32_t b = 0; b < blocks; b++) {
    table[b] = blocks - 1 - b;
  }
  mk_status status = write_buffer(engine, index, 0, table, blocks * sizeof *table);
  mk_free(table);
  return status;
}

static mk_status open_machine(mk_engine *engine, const mk_engine_options *options) {
  int gpu;
  MK_TRY(choose_device(options, &gpu));
  if (gpu >= 0) {
    mk_gpu_options machine = {.device = (uint32_t)gpu, .deadline_ms = options->gpu_deadline_ms};
    MK_TRY(mk_gpu_new(engine->program, &machine, &engine->gpu));
    snprintf(engine->device, sizeof engine->device, "cuda:%d (%s)", gpu, mk_gpu_name(engine->gpu));
    engine->want_logits = options->want_logits;
    return mk_alloc(engine->config.vocab, sizeof *engine->logits_copy, &engine->logits_copy);
  }
  snprintf(engine->device, sizeof engine->device, "cpu");
  mk_cpu_options machine = {
      .seed = options->interleave_seed, .adversarial = options->adversarial, .check_races = options->check_races};
  return mk_cpu_new(engine->program, &machine, &engine->cpu);
}

static mk_status open_engine(mk_engine *engine, const char *model_dir, const mk_engine_options *options) {
  engine->cancel = options->cancel;
  if (options->synth != NULL) {
    engine->config = *options->synth;
  } else {
    MK_TRY(mk_config_load(model_dir, &engine->config));
  }
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
  MK_TRY(open_machine(engine, options));
  engine->prompt = mk_program_find_buffer(engine->program, "prompt");
  engine->logits = mk_program_find_buffer(engine->program, "logits");
  MK_TRY(fill_block_table(engine));
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
  mk_gpu_free(engine->gpu);
  mk_free(engine->logits_copy);
  mk_program_free(engine->program);
  mk_graph_free(engine->graph);
  mk_free(engine);
}

const mk_config *mk_engine_config(const mk_engine *engine) { return &engine->config; }
const mk_program *mk_engine_program(const mk_engine *engine) { return engine->program; }
uint32_t mk_engine_max_seq(const mk_engine *engine) { return engine->max_seq; }
const char *mk_engine_device(const mk_engine *engine) { return engine->device; }
mk_gpu *mk_engine_gpu(mk_engine *engine) { return engine->gpu; }

static bool is_cancelled(const mk_engine *engine) { return engine->cancel != NULL && *engine->cancel != 0; }

typedef struct generation {
  mk_engine *engine;
  size_t prompt_count, left;
  mk_token_fn fn;
  void *user;
} generation;

static bool on_token(void *user, uint32_t position, uint32_t token) {
  generation *g = user;
  if (is_cancelled(g->engine)) {
    return false;
  }
  if (position + 1 < g->prompt_count + g->engine->position_shift) {
    return true; /* still inside the prompt */
  }
  g->left--;
  const float *logits = g->engine->cpu == NULL ? NULL : mk_cpu_memory(g->engine->cpu, (size_t)g->engine->logits);
  bool more = g->fn(g->user, token, logits);
  return more && g->left != 0;
}

static bool keep_token(void *user, uint32_t position, uint32_t token) {
  (void)position;
  *(uint32_t *)user = token;
  return true;
}

/* The prompt in one launch, then a launch for each token, with the logits read in between. */
static mk_status generate_with_logits(generation *g, uint32_t first) {
  mk_engine *engine = g->engine;
  uint32_t token = first, position = 0, count = (uint32_t)g->prompt_count;
  bool more = true;
  while (more && g->left != 0 && !is_cancelled(engine)) {
    uint32_t steps = position == 0 ? count : 1;
    MK_TRY(mk_gpu_run(engine->gpu, token, position, count, steps, keep_token, &token));
    MK_TRY(mk_gpu_read(engine->gpu, (size_t)engine->logits, 0, engine->logits_copy,
                       engine->config.vocab * sizeof *engine->logits_copy));
    position += steps;
    g->left--;
    more = g->fn(g->user, token, engine->logits_copy);
  }
  return MK_OK;
}

mk_status mk_engine_generate(mk_engine *engine, const uint32_t *prompt, size_t prompt_count, size_t n_predict,
                             mk_token_fn fn, void *user) {
  if (prompt_count == 0 || prompt_count > engine->max_seq) {
    return mk_error(MK_ERR_USAGE, "the prompt has %zu tokens; the context holds 1 to %u", prompt_count,
                    engine->max_seq);
  }
  for (size_t i = 0; i < prompt_count; i++) {
    if (prompt[i] >= engine->config.vocab) {
      return mk_error(MK_ERR_USAGE, "prompt token %zu is %u; the vocabulary has %u", i, prompt[i],
                      engine->config.vocab);
    }
  }
  size_t room = engine->max_seq - prompt_count;
  n_predict = n_predict < room ? n_predict : room;
  if (n_predict == 0) {
    return MK_OK;
  }
  uint32_t shift = engine->position_shift, count = (uint32_t)prompt_count + shift;
  MK_TRY(write_buffer(engine, (size_t)engine->prompt, shift * sizeof *prompt, prompt, prompt_count * sizeof *prompt));
  generation g = {.engine = engine, .prompt_count = prompt_count, .left = n_predict, .fn = fn, .user = user};
  if (engine->gpu == NULL) {
    mk_cpu_set_state(engine->cpu, prompt[0], shift, count);
    return mk_cpu_run(engine->cpu, prompt_count - 1 + n_predict, on_token, &g);
  }
  if (engine->want_logits) {
    return generate_with_logits(&g, prompt[0]);
  }
  return mk_gpu_run(engine->gpu, prompt[0], 0, count, (uint32_t)(prompt_count - 1 + n_predict), on_token, &g);
}
