/* See engine.h. */
#include "tools/lib/engine.h"

#include <stdio.h>
#include <string.h>

#include "models/checkpoint.h"
#include "models/llama.h"
#include "scheduler/compile.h"
#include "tools/lib/load.h"
#include "vm/cpu/machine.h"
#include "vm/verify.h"

enum { DEFAULT_CONTEXT = 4096 };

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
  uint32_t max_seq;
  uint32_t position_shift; /* mk_tamper */
  int prompt, logits;      /* buffers; prompt: of one row */
  mk_trace_window trace;
  /* With several rows on a GPU: a machine of one row beside it, for the last sequence, and one for long prompts. */
  beside one_row, prompts;
  float *logits_copy;         /* of the GPU's, [rows][vocab] */
  int sampling, bias, counts; /* buffers of a sampling program, else -1 */
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

bool mk_engine_takes_rows(const mk_engine_options *options) {
  return options->tamper == NULL && (options->sampling == NULL || mk_sampling_is_greedy(options->sampling));
}

static mk_status write_buffer(mk_engine *engine, size_t buffer, uint64_t offset, const void *data, uint64_t bytes) {
  if (engine->gpu != NULL) {
    return mk_gpu_write(engine->gpu, buffer, offset, data, bytes);
  }
  memcpy((uint8_t *)mk_cpu_memory(engine->cpu, buffer) + offset, data, bytes);
  return MK_OK;
}

static mk_status load_weights(mk_engine *engine, const mk_engine_options *options) {
  const mk_load load = {.graph = engine->graph,
                        .program = engine->program,
                        .checkpoint = engine->checkpoint,
                        .synth_seed = options->synth_seed,
                        .cpu = engine->cpu,
                        .gpu = engine->gpu,
                        .cache = options->cache,
                        .cancel = options->cancel,
                        .progress = options->progress,
                        .notice = options->notice,
                        .user = options->progress_user};
  mk_status status = mk_load_weights(&load);
  mk_checkpoint_close(engine->checkpoint);
  engine->checkpoint = NULL;
  return status;
}

/* Blocks in an order that is not the identity, so that a forgotten look-up shows; every block once. With several rows the
 * table changes from launch to launch. */
static mk_status fill_block_table(mk_engine *engine) {
  if (mk_program_rows(engine->program) > 1) {
    return MK_OK;
  }
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

/* Bytes that a line of /proc/meminfo states in kB; 0 where there is none. */
static uint64_t read_meminfo(const char *name) {
  char line[128];
  unsigned long long kilobytes = 0;
  FILE *file = fopen("/proc/meminfo", "r");
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, name, strlen(name)) == 0 && sscanf(line + strlen(name), ": %llu", &kilobytes) == 1) {
      break;
    }
  }
  if (file != NULL) {
    fclose(file);
  }
  return kilobytes * 1024;
}

static void tell_memory(const mk_program *program, const mk_engine_options *options) {
  if (options->memory != NULL) {
    mk_memory_plan plan = {.program = program->instruction_count * sizeof *program->instructions,
                           .available = read_meminfo("MemAvailable"),
                           .total = read_meminfo("MemTotal")};
    mk_memory_of(program, &plan);
    options->memory(options->progress_user, &plan);
  }
}

static mk_status open_machine(mk_engine *engine, const mk_engine_options *options) {
  int gpu;
  MK_TRY(choose_device(options, &gpu));
  if (gpu >= 0) {
    mk_gpu_options machine = {.device = (uint32_t)gpu,
                              .deadline_ms = options->gpu_deadline_ms,
                              .memory = options->memory,
                              .user = options->progress_user};
    MK_TRY(mk_gpu_new(engine->program, &machine, &engine->gpu));
    snprintf(engine->device, sizeof engine->device, "cuda:%d (%s)", gpu, mk_gpu_name(engine->gpu));
    engine->want_logits = options->want_logits;
    return mk_alloc((size_t)mk_program_rows(engine->program) * engine->config.vocab, sizeof *engine->logits_copy,
                    &engine->logits_copy);
  }
  snprintf(engine->device, sizeof engine->device, "cpu");
  tell_memory(engine->program, options);
  mk_cpu_options machine = {
      .seed = options->interleave_seed, .adversarial = options->adversarial, .check_races = options->check_races};
  return mk_cpu_new(engine->program, &machine, &engine->cpu);
}

/* The same model in a program of so many rows, verified like the first. */
static mk_status open_beside(const mk_engine *engine, const mk_engine_options *options, mk_compile_options compile,
                             uint32_t rows, uint32_t blocks, beside *out) {
  int gpu;
  compile.rows = rows;
  compile.blocks = blocks;
  MK_TRY(choose_device(options, &gpu));
  MK_TRY(mk_compile(engine->graph, &compile, &out->program));
  MK_TRY(mk_verify(out->program, NULL));
  mk_gpu_options machine = {.device = (uint32_t)gpu, .deadline_ms = options->gpu_deadline_ms};
  return mk_gpu_new_beside(out->program, &machine, engine->gpu, &out->gpu);
}

/* A configuration that the weights do not bear out is refused before anything is made of its size. */
static mk_status open_model(mk_engine *engine, const char *model_dir) {
  MK_TRY(mk_config_load(model_dir, &engine->config));
  MK_TRY(mk_checkpoint_open(model_dir, &engine->checkpoint));
  return mk_checkpoint_check(engine->checkpoint, &engine->config);
}

mk_status mk_engine_set_sampling(mk_engine *engine, const mk_sampling *sampling) {
  uint32_t words[MK_SAMPLING_WORDS], vocab = engine->config.vocab;
  float *bias;
  MK_TRY(mk_sampling_check(sampling, vocab));
  if (engine->sampling < 0) {
    return mk_sampling_is_greedy(sampling)
               ? MK_OK
               : mk_error(MK_ERR_USAGE, "the engine was opened with a greedy program; it cannot sample");
  }
  mk_sampling_words(sampling, vocab, words);
  MK_TRY(write_buffer(engine, (size_t)engine->sampling, 0, words, sizeof words));
  MK_TRY(mk_alloc(vocab, sizeof *bias, &bias));
  for (size_t i = 0; i < sampling->bias_count; i++) {
    bias[sampling->biases[i].token] = sampling->biases[i].bias;
  }
  mk_status status = write_buffer(engine, (size_t)engine->bias, 0, bias, vocab * sizeof *bias);
  mk_free(bias);
  return status;
}

/* No token has been seen yet. */
static mk_status clear_counts(mk_engine *engine) {
  uint32_t *zeros;
  if (engine->counts < 0) {
    return MK_OK;
  }
  MK_TRY(mk_alloc(engine->config.vocab, sizeof *zeros, &zeros));
  mk_status status = write_buffer(engine, (size_t)engine->counts, 0, zeros, engine->config.vocab * sizeof *zeros);
  mk_free(zeros);
  return status;
}

static mk_status open_engine(mk_engine *engine, const char *model_dir, const mk_engine_options *options) {
  engine->cancel = options->cancel;
  if (options->synth != NULL) {
    engine->config = *options->synth;
  } else {
    MK_TRY(open_model(engine, model_dir));
  }
  if (options->tamper != NULL && options->tamper->config != NULL) {
    options->tamper->config(&engine->config);
  }
  uint32_t longest = engine->config.max_position;
  engine->max_seq = options->max_seq != 0 ? options->max_seq : longest < DEFAULT_CONTEXT ? longest : DEFAULT_CONTEXT;
  MK_TRY(mk_llama_graph(&engine->config, &engine->graph));
  bool samples = options->sampling != NULL && !mk_sampling_is_greedy(options->sampling);
  uint32_t rows = options->rows;
  if (options->rows_or_one && rows > 1) {
    int gpu;
    MK_TRY(choose_device(options, &gpu));
    bool whole = engine->config.hidden % MK_TILE == 0 && engine->config.intermediate % MK_TILE == 0;
    rows = gpu < 0 && rows > MK_MAX_ROWS ? (uint32_t)MK_MAX_ROWS
           : gpu < 0 || whole            ? rows
                                         : 1; /* what the GPU's kernels of several rows ask for */
  }
  mk_compile_options compile = {.sms = options->sms == 0 ? MK_DEFAULT_SMS : options->sms,
                                .max_seq = engine->max_seq,
                                .rows = rows,
                                .blocks = options->kv_blocks,
                                .sampling = samples};
  MK_TRY(mk_compile(engine->graph, &compile, &engine->program));
  MK_TRY(mk_verify(engine->program, NULL));
  if (options->tamper != NULL) {
    engine->position_shift = options->tamper->position_shift;
    if (options->tamper->program != NULL) {
      options->tamper->program(engine->program);
    }
  }
  MK_TRY(open_machine(engine, options));
  if (engine->gpu != NULL && mk_program_rows(engine->program) > 1) {
    MK_TRY(open_beside(engine, options, compile, 1, 0, &engine->one_row));
  }
  if (engine->one_row.gpu != NULL && mk_program_slots(engine->program) > 1 && options->long_prompts) {
    uint32_t blocks = engine->program->ranges.block.high + 1;
    MK_TRY(open_beside(engine, options, compile, MK_PROMPT_ROWS, blocks, &engine->prompts));
  }
  engine->prompt = mk_program_find_buffer(engine->program, "prompt");
  engine->logits = mk_program_find_buffer(engine->program, "logits");
  engine->sampling = mk_program_find_buffer(engine->program, "sampling");
  engine->bias = mk_program_find_buffer(engine->program, "logit_bias");
  engine->counts = mk_program_find_buffer(engine->program, "token_counts");
  if (options->sampling != NULL) {
    MK_TRY(mk_engine_set_sampling(engine, options->sampling));
  }
  MK_TRY(fill_block_table(engine));
  return load_weights(engine, options);
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
  mk_checkpoint_close(engine->checkpoint);
  mk_cpu_free(engine->cpu);
  mk_gpu_free(engine->one_row.gpu);
  mk_program_free(engine->one_row.program);
  mk_gpu_free(engine->prompts.gpu);
  mk_program_free(engine->prompts.program);
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
mk_cpu *mk_engine_cpu(mk_engine *engine) { return engine->cpu; }

mk_status mk_engine_set_prompt(mk_engine *engine, const uint32_t *prompt, size_t count) {
  if (engine->prompt < 0) {
    return mk_error(MK_ERR_USAGE, "the engine has %u rows, whose prompts are in their plans",
                    mk_program_rows(engine->program));
  }
  return write_buffer(engine, (size_t)engine->prompt, 0, prompt, count * sizeof *prompt);
}

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

/* The window of the launch that follows, whose step `generated` computes the first generated token. */
static mk_status arm_recorder(mk_engine *engine, uint32_t generated) {
  const mk_trace_window *w = &engine->trace;
  uint32_t first = w->first == MK_FIRST_GENERATED ? generated : w->first;
  if (w->steps == 0) {
    return MK_OK;
  }
  return engine->gpu != NULL ? mk_gpu_trace_on(engine->gpu, first, w->steps, w->records)
                             : mk_cpu_trace_on(engine->cpu, first, w->steps, w->records);
}

/* Several rows. */

typedef struct side_by_side {
  mk_engine *engine;
  mk_batch *batch;
  uint32_t rows; /* of the results */
  uint32_t results[MK_PROMPT_ROWS];
} side_by_side;

static bool on_step(void *user, uint32_t step, const uint32_t *results) {
  side_by_side *s = user;
  const float *logits = s->engine->cpu == NULL ? NULL : mk_cpu_memory(s->engine->cpu, (size_t)s->engine->logits);
  return !is_cancelled(s->engine) && mk_batch_take(s->batch, step, results, logits);
}

static bool keep_results(void *user, uint32_t step, const uint32_t *results) {
  side_by_side *s = user;
  (void)step;
  memcpy(s->results, results, s->rows * sizeof *results);
  return !is_cancelled(s->engine);
}

/* The steps of a launch up to the first one in which a row chooses: logits are to be had of a launch's last step. */
static uint32_t steps_to_logits(const mk_launch *launch, uint32_t rows) {
  for (uint32_t i = 0; i < launch->steps * rows; i++) {
    if ((launch->plan[i].flags & MK_ROW_CHOOSES) != 0) {
      return i / rows + 1;
    }
  }
  return launch->steps;
}

/* One launch; with logits to be had from a GPU, as far as they are to be had. */
static mk_status run_launch(side_by_side *s, const mk_launch *launch) {
  mk_engine *engine = s->engine;
  if (engine->gpu == NULL) {
    return mk_cpu_run_plan(engine->cpu, launch->plan, launch->steps, on_step, s);
  }
  if (!engine->want_logits) {
    return mk_gpu_run_plan(engine->gpu, launch->plan, launch->steps, on_step, s);
  }
  uint64_t bytes = engine->program->buffers[engine->logits].bytes;
  uint32_t steps = steps_to_logits(launch, s->rows);
  MK_TRY(mk_gpu_run_plan(engine->gpu, launch->plan, steps, keep_results, s));
  MK_TRY(mk_gpu_read(engine->gpu, (size_t)engine->logits, 0, engine->logits_copy, bytes));
  for (uint32_t step = 0; step < steps && !is_cancelled(engine); step++) {
    (void)mk_batch_take(s->batch, step, s->results, engine->logits_copy); /* none before the last one chooses */
  }
  return MK_OK;
}

/* A prompt in chunks, on the machine for prompts, and the token that follows. */
static mk_status run_prompt(side_by_side *s, const mk_sequence *sequence, const mk_long_prompt *prompt) {
  mk_engine *engine = s->engine;
  const mk_program *program = engine->prompts.program;
  mk_gpu *gpu = engine->prompts.gpu;
  mk_plan_buffers buffers;
  mk_step_row *plan;
  MK_TRY(mk_plan_find(program, &buffers));
  MK_TRY(mk_gpu_write(gpu, buffers.table, 0, prompt->table, program->buffers[buffers.table].bytes));
  MK_TRY(mk_alloc((size_t)buffers.steps * MK_PROMPT_ROWS, sizeof *plan, &plan));
  side_by_side here = {.engine = engine, .rows = MK_PROMPT_ROWS};
  uint32_t count = (uint32_t)sequence->prompt_count, most = buffers.steps * MK_PROMPT_ROWS;
  mk_status status = MK_OK;
  for (uint32_t first = 0; first < count && status == MK_OK && !is_cancelled(engine); first += most) {
    uint32_t rows = count - first < most ? count - first : most;
    for (uint32_t i = 0; i < most; i++) {
      bool last = first + i + 1 == count;
      plan[i] = i < rows ? (mk_step_row){.position = first + i,
                                         .token = sequence->prompt[first + i],
                                         .flags = MK_ROW_ACTIVE | (last ? (uint32_t)MK_ROW_CHOOSES : 0)}
                         : (mk_step_row){0};
    }
    status = mk_gpu_run_plan(gpu, plan, (rows + MK_PROMPT_ROWS - 1) / MK_PROMPT_ROWS, keep_results, &here);
  }
  uint32_t line = (count - 1) % MK_PROMPT_ROWS, vocab = engine->config.vocab;
  if (status == MK_OK && engine->want_logits) {
    size_t logits = (size_t)mk_program_find_buffer(program, "logits");
    uint64_t bytes = vocab * sizeof *engine->logits_copy;
    status = mk_gpu_read(gpu, logits, line * bytes, engine->logits_copy, bytes);
  }
  if (status == MK_OK && !is_cancelled(engine)) {
    mk_batch_take_prompt(s->batch, prompt->sequence, here.results[line],
                         engine->want_logits ? engine->logits_copy : NULL);
  }
  mk_free(plan);
  return status;
}

static bool on_single(void *user, uint32_t position, uint32_t token) {
  side_by_side *s = user;
  (void)position;
  return !is_cancelled(s->engine) && mk_batch_take_single(s->batch, token, NULL);
}

/* The last sequence, token by token: a step of one row is the faster one. With logits, a launch for each token. */
static mk_status run_single(side_by_side *s, const mk_single *single) {
  mk_engine *engine = s->engine;
  const mk_program *program = engine->one_row.program;
  mk_gpu *gpu = engine->one_row.gpu;
  size_t table = (size_t)mk_program_find_buffer(program, "block_table");
  MK_TRY(mk_gpu_write(gpu, table, 0, single->table, program->buffers[table].bytes));
  if (!engine->want_logits) {
    return mk_gpu_run(gpu, single->token, single->position, 0, single->left, on_single, s);
  }
  size_t logits = (size_t)mk_program_find_buffer(program, "logits");
  uint32_t token = single->token;
  bool more = true;
  for (uint32_t i = 0; more && !is_cancelled(engine); i++) {
    MK_TRY(mk_gpu_run(gpu, token, single->position + i, 0, 1, keep_token, &token));
    MK_TRY(mk_gpu_read(gpu, logits, 0, engine->logits_copy, engine->config.vocab * sizeof *engine->logits_copy));
    more = mk_batch_take_single(s->batch, token, engine->logits_copy);
  }
  return MK_OK;
}

/* hands_over: the last sequence may go on in a program of one row. */
static mk_status generate_rows(mk_engine *engine, const mk_sequence *sequences, size_t count,
                               const mk_sequence_calls *calls, bool hands_over) {
  side_by_side s = {.engine = engine, .rows = mk_program_rows(engine->program)};
  mk_plan_buffers buffers;
  mk_launch launch;
  MK_TRY(mk_plan_find(engine->program, &buffers));
  MK_TRY(mk_batch_new(engine->program, sequences, count, calls, &s.batch));
  mk_status status = MK_OK;
  hands_over = hands_over && engine->one_row.gpu != NULL;
  if (hands_over) {
    mk_batch_leave_single(s.batch);
  }
  mk_batch_plan(s.batch, &launch);
  while (status == MK_OK && launch.steps != 0 && !is_cancelled(engine)) {
    mk_single single;
    mk_long_prompt prompt;
    if (engine->prompts.gpu != NULL && mk_batch_long_prompt(s.batch, MK_LONG_PROMPT, &prompt)) {
      status = run_prompt(&s, &sequences[prompt.sequence], &prompt);
      if (status == MK_OK) {
        mk_batch_plan(s.batch, &launch);
      }
      continue;
    }
    if (hands_over && mk_batch_single(s.batch, &single)) {
      mk_batch_end_single(s.batch, run_single(&s, &single));
      break;
    }
    status = write_buffer(engine, buffers.table, 0, launch.table, engine->program->buffers[buffers.table].bytes);
    if (status == MK_OK) {
      status = run_launch(&s, &launch);
    }
    if (status == MK_OK) {
      mk_batch_plan(s.batch, &launch);
    }
  }
  mk_batch_free(s.batch);
  return status;
}

typedef struct alone { /* the one sequence of a batch, or one of several that take turns */
  mk_token_fn fn;
  void *user;
  const mk_sequence_calls *calls;
  size_t index;
  mk_status status;
} alone;

static bool alone_token(void *user, size_t sequence, uint32_t token, const float *logits) {
  alone *a = user;
  (void)sequence;
  return a->fn(a->user, token, logits);
}

static void alone_ended(void *user, size_t sequence, mk_status status) {
  (void)sequence;
  ((alone *)user)->status = status;
}

static bool turn_token(void *user, uint32_t token, const float *logits) {
  alone *a = user;
  return a->calls->token(a->calls->user, a->index, token, logits);
}

mk_status mk_engine_generate_all(mk_engine *engine, const mk_sequence *sequences, size_t count,
                                 const mk_sequence_calls *calls) {
  if (mk_program_rows(engine->program) > 1) {
    return generate_rows(engine, sequences, count, calls, false); /* alone and in company the same bits */
  }
  for (size_t i = 0; i < count && !is_cancelled(engine); i++) {
    alone a = {.calls = calls, .index = i};
    calls->ended(calls->user, i,
                 mk_engine_generate(engine, sequences[i].prompt, sequences[i].prompt_count, sequences[i].n_predict,
                                    turn_token, &a));
  }
  return MK_OK;
}

mk_status mk_engine_generate(mk_engine *engine, const uint32_t *prompt, size_t prompt_count, size_t n_predict,
                             mk_token_fn fn, void *user) {
  if (mk_program_rows(engine->program) > 1) {
    alone a = {.fn = fn, .user = user};
    mk_sequence sequence = {.prompt = prompt, .prompt_count = prompt_count, .n_predict = n_predict};
    mk_sequence_calls calls = {.token = alone_token, .ended = alone_ended, .user = &a};
    MK_TRY(generate_rows(engine, &sequence, 1, &calls, true));
    return a.status;
  }
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
  MK_TRY(arm_recorder(engine, (uint32_t)prompt_count - 1));
  MK_TRY(clear_counts(engine));
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

uint32_t mk_trace_records(const mk_program *program, uint32_t steps) {
  enum { LEAST = 16384, MOST = 65536, PER_INSTRUCTION = 8, PER_PAGE = 2, MOST_PAGES = 4096 };
  uint64_t most = 0;
  for (size_t q = 0; q < program->queue_count; q++) {
    uint64_t records = 0, pages = 0;
    for (uint32_t i = 0; i < program->queues[q].count; i++) {
      records += PER_INSTRUCTION;
      pages += program->instructions[program->queues[q].first + i].pages;
    }
    /* Pages of KV are stated for the largest position, which few runs are at. */
    records += PER_PAGE * (pages < MOST_PAGES ? pages : MOST_PAGES);
    most = records > most ? records : most;
  }
  most *= steps;
  return most < LEAST ? LEAST : most > MOST ? MOST : (uint32_t)most;
}

mk_status mk_engine_trace(mk_engine *engine, const mk_trace_window *window) {
  if (window->steps != 0 && engine->want_logits) {
    return mk_error(MK_ERR_USAGE,
                    "a trace with logits is possible on the cpu only: cuda starts a launch for every token");
  }
  if (window->steps != 0 && mk_program_rows(engine->program) > 1) {
    return mk_error(MK_ERR_USAGE, "a trace is of one launch, and an engine of %u rows makes many; open it with 1",
                    mk_program_rows(engine->program));
  }
  engine->trace = *window;
  if (window->steps == 0 && engine->gpu != NULL) {
    return mk_gpu_trace_off(engine->gpu);
  }
  if (window->steps == 0) {
    mk_cpu_trace_off(engine->cpu);
  }
  return MK_OK;
}

mk_status mk_engine_trace_take(mk_engine *engine, mk_trace **out) {
  MK_TRY(engine->gpu != NULL ? mk_gpu_trace_take(engine->gpu, out) : mk_cpu_trace_take(engine->cpu, out));
  snprintf((*out)->facts.device, sizeof(*out)->facts.device, "%.95s", engine->device);
  snprintf((*out)->facts.model, sizeof(*out)->facts.model, "%s", engine->program->model);
  return MK_OK;
}
