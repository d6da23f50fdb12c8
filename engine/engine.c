/* See engine.h. */
#include "engine/engine_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/cache.h"
#include "engine/load.h"
#include "engine/weights.h"
#include "models/directory.h"
#include "models/llama.h"
#include "scheduler/compile.h"
#include "vm/cores.h"
#include "vm/cpu/machine.h"
#include "vm/file.h"
#include "vm/gpu/extra.h"
#include "vm/verify/verify.h"

enum {
  DEFAULT_CONTEXT = 4096,
  /* CPU: enough for threads to take turns when one is held up; every queue more prepares every input once more. */
  QUEUES_PER_THREAD = 4,
};

static bool needs_cpu(const mk_engine_options *options) {
  return options->interleave_seed != 0 || options->adversarial || options->check_races || options->tamper != NULL;
}

/* Where an engine runs. */
typedef struct place {
  uint32_t ranks;
  uint32_t gpus[MK_GPU_MOST_RANKS]; /* of each rank */
  bool on_gpus;                     /* else on the CPU, with any number of ranks */
} place;

static mk_status unknown_device(const char *name) {
  return mk_error(MK_ERR_USAGE,
                  "device \"%s\" is unknown; it is cpu, cuda, cuda:N, or, for ranks, cuda:N-M or cuda:N,M,...", name);
}

/* A number of at most three digits at *text, which goes on after it. */
static bool take_number(const char **text, uint32_t *number) {
  const size_t digits = strspn(*text, "0123456789");
  *number = (uint32_t)strtoul(*text, NULL, 10);
  *text += digits;
  return digits != 0 && digits <= 3;
}

/* The GPUs that "cuda:..." names; their number becomes *count. */
static mk_status take_gpus(const char *name, uint32_t *gpus, uint32_t *count) {
  const char *at = name + strlen("cuda:");
  do {
    uint32_t first, last;
    at += *count != 0; /* a comma */
    if (!take_number(&at, &first)) {
      return unknown_device(name);
    }
    last = first;
    if (*at == '-') {
      at++;
      if (!take_number(&at, &last) || last < first) {
        return unknown_device(name);
      }
    }
    for (uint32_t gpu = first; gpu <= last; gpu++) {
      if (*count == MK_GPU_MOST_RANKS) {
        return mk_error(MK_ERR_USAGE, "device %s: a model can be shared by at most %d GPUs", name, MK_GPU_MOST_RANKS);
      }
      gpus[(*count)++] = gpu;
    }
  } while (*at == ',');
  return *at == '\0' ? MK_OK : unknown_device(name);
}

/* Whether mkvm can use the first GPUs, one for each rank. */
static bool gpus_present(uint32_t ranks) {
  bool present = ranks <= MK_GPU_MOST_RANKS;
  for (uint32_t gpu = 0; gpu < ranks && present; gpu++) {
    present = mk_gpu_present(gpu);
  }
  return present;
}

/* Of a rank that is this process: the GPU that is named, or else the one of that number, where each process sees all of
 * them; where it sees one alone that one. Of the others' nothing is known. */
static mk_status choose_own(const mk_engine_options *options, const char *name, place *out) {
  const uint32_t rank = options->process->rank, ranks = options->process->ranks;
  uint32_t named = 0, gpus[MK_GPU_MOST_RANKS];
  if (strcmp(name, "cpu") == 0 || needs_cpu(options)) {
    return mk_error(MK_ERR_USAGE, "ranks on the cpu are all in one process; processes are for GPUs");
  }
  if (name[0] != '\0' && strcmp(name, "cuda") != 0 && strncmp(name, "cuda:", 5) != 0) {
    return unknown_device(name);
  }
  if (ranks > MK_GPU_MOST_RANKS || rank >= ranks || (options->ranks != 0 && options->ranks != ranks)) {
    return mk_error(MK_ERR_USAGE, "rank %u of %u: there are 2 to %d ranks, counted from 0", rank, ranks,
                    MK_GPU_MOST_RANKS);
  }
  MK_TRY(name[0] != '\0' && name[4] == ':' ? take_gpus(name, gpus, &named) : MK_OK);
  if (named > 1 && named != ranks) {
    return mk_error(MK_ERR_USAGE, "device %s names %u GPUs, for %u ranks", name, named, ranks);
  }
  *out = (place){.ranks = ranks, .on_gpus = true};
  if (named == 0) {
    uint32_t count;
    int version;
    MK_TRY(mk_gpu_count(&count, &version));
    out->gpus[rank] = count == 0 ? 0 : rank % count;
  } else {
    out->gpus[rank] = gpus[named == 1 ? 0 : rank];
  }
  return MK_OK;
}

static mk_status choose_device(const mk_engine_options *options, place *out) {
  const char *name = options->device == NULL ? "" : options->device;
  if (options->process != NULL) {
    return choose_own(options, name, out);
  }
  *out = (place){.ranks = options->ranks > 1 ? options->ranks : 1};
  if (strcmp(name, "cpu") == 0) {
    return MK_OK;
  }
  if (name[0] == '\0') {
    out->on_gpus = !needs_cpu(options) && gpus_present(out->ranks);
  } else if (strcmp(name, "cuda") != 0 && strncmp(name, "cuda:", 5) != 0) {
    return unknown_device(name);
  } else {
    out->on_gpus = true;
  }
  uint32_t named = 0;
  MK_TRY(name[0] != '\0' && name[4] == ':' ? take_gpus(name, out->gpus, &named) : MK_OK);
  if (out->on_gpus && name[0] != '\0' && needs_cpu(options)) {
    return mk_error(MK_ERR_USAGE, "device %s does not interleave or check for races; use device cpu for that", name);
  }
  if (out->on_gpus && out->ranks > MK_GPU_MOST_RANKS) {
    return mk_error(MK_ERR_USAGE, "device %s: %u ranks; GPUs have at most %d, the cpu more", name, out->ranks,
                    MK_GPU_MOST_RANKS);
  }
  if (named > 1 && options->ranks != 0 && options->ranks != named) {
    return mk_error(MK_ERR_USAGE, "device %s names %u GPUs, for %u ranks; leave one of the two out", name, named,
                    options->ranks);
  }
  out->ranks = named > 1 ? named : out->ranks;
  for (uint32_t r = named; r < out->ranks && out->on_gpus; r++) { /* those after the first one */
    out->gpus[r] = r == 0 ? 0 : out->gpus[r - 1] + 1;
  }
  return MK_OK;
}

static uint32_t threads_of(const mk_engine_options *options) {
  return options->threads != 0 ? options->threads : mk_cores(MK_CPU_MOST_THREADS);
}

/* What is computed does not depend on it. */
static uint32_t queues_of(const mk_engine_options *options, bool cpu) {
  if (options->sms != 0 || !cpu || needs_cpu(options)) {
    return options->sms != 0 ? options->sms : MK_DEFAULT_SMS;
  }
  const uint32_t ranks = options->ranks > 1 ? options->ranks : 1; /* of the CPU */
  const uint32_t queues = (QUEUES_PER_THREAD * threads_of(options) + ranks - 1) / ranks;
  return queues < MK_DEFAULT_SMS ? queues : MK_DEFAULT_SMS;
}

bool mk_engine_takes_cuda(const mk_engine_options *options) {
  place where;
  return choose_device(options, &where) == MK_OK && where.on_gpus;
}

bool mk_engine_takes_rows(const mk_engine_options *options) {
  const bool greedy = options->sampling == NULL || mk_sampling_is_greedy(options->sampling);
  return options->tamper == NULL && (greedy || !mk_engine_takes_cuda(options));
}

mk_status mk_engine_write(const mk_engine_machine *machine, size_t buffer, uint64_t offset, const void *data,
                          uint64_t bytes) {
  if (machine->gpu != NULL) {
    return mk_gpu_write(machine->gpu, buffer, offset, data, bytes);
  }
  memcpy((uint8_t *)mk_cpu_memory(machine->cpu, buffer) + offset, data, bytes);
  return MK_OK;
}

static mk_status load_weights(mk_engine *engine, const mk_engine_options *options) {
  const mk_engine_machine *main = mk_engine_main(engine);
  const mk_load load = {.graph = engine->graph,
                        .program = main->program,
                        .checkpoint = engine->checkpoint,
                        .synth_seed = options->synth_seed,
                        .cpu = main->cpu,
                        .gpu = main->gpu,
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

/* Blocks in an order that is not the identity, so that a forgotten look-up shows; every block once. With several rows
 * the table changes from launch to launch. */
static mk_status fill_block_table(const mk_engine *engine) {
  const mk_engine_machine *main = mk_engine_main(engine);
  if (mk_program_rows(main->program) > 1) {
    return MK_OK;
  }
  size_t index = (size_t)main->table;
  uint32_t blocks = main->program->buffers[index].cols;
  uint32_t *table;
  MK_TRY(mk_alloc(blocks, sizeof *table, &table));
  for (uint32_t b = 0; b < blocks; b++) {
    table[b] = blocks - 1 - b;
  }
  mk_status status = mk_engine_write(main, index, 0, table, blocks * sizeof *table);
  mk_free(table);
  return status;
}

/* Bytes that a line of /proc/meminfo states in kB; 0 where there is none. */
static uint64_t read_meminfo(const char *name) {
  char line[128];
  unsigned long long kilobytes = 0;
  FILE *file = fopen("/proc/meminfo", "r");
  while (file != NULL && fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, name, strlen(name)) == 0 && line[strlen(name)] == ':') {
      kilobytes = strtoull(line + strlen(name) + 1, NULL, 10);
      break;
    }
  }
  if (file != NULL) {
    (void)fclose(file);
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

/* "cuda:0", "cuda:0-3" where they follow each other, or else all of them. */
static void name_gpus(const place *where, char *name, size_t size) {
  const uint32_t *gpus = where->gpus, last = where->ranks - 1;
  bool run = last > 0;
  for (uint32_t r = 1; r <= last; r++) {
    run = run && gpus[r] == gpus[r - 1] + 1;
  }
  int n = snprintf(name, size, "cuda:%u", gpus[0]);
  if (run) {
    (void)snprintf(name + n, size - (size_t)n, "-%u", gpus[last]);
  }
  for (uint32_t r = 1; r <= last && !run; r++) {
    n += snprintf(name + n, size - (size_t)n, ",%u", gpus[r]);
  }
}

/* Stands for all that has to be the same on all ranks. */
static mk_status hash_model(const mk_engine *engine, const mk_engine_options *options, uint64_t *out) {
  uint64_t parts[3] = {0, options->synth_seed, options->gpu_deadline_ms};
  MK_TRY(engine->checkpoint == NULL ? MK_OK : mk_cache_key(engine->checkpoint, engine->graph, &parts[0]));
  MK_TRY(mk_program_hash(mk_engine_main(engine)->program, out));
  *out ^= mk_fnv1a(parts, sizeof parts);
  return MK_OK;
}

static mk_status open_group(mk_engine *engine, const mk_engine_options *options, const place *where) {
  uint64_t model = 0;
  if (options->process == NULL) {
    return MK_OK;
  }
  MK_TRY(hash_model(engine, options, &model));
  return mk_group_open(options->process, model, where->gpus[options->process->rank], &engine->group);
}

static mk_status open_gpu(mk_engine *engine, const mk_engine_options *options, const place *where) {
  mk_engine_machine *main = &engine->machines[MK_MACHINE_MAIN];
  char name[64]; /* room for all GPUs that there may be */
  MK_TRY(open_group(engine, options, where));
  const mk_gpu_options machine = {.devices = where->gpus,
                                  .group = engine->group,
                                  .deadline_ms = options->gpu_deadline_ms,
                                  .memory = options->memory,
                                  .user = options->progress_user};
  MK_TRY(mk_gpu_new(main->program, &machine, &main->gpu));
  if (engine->group == NULL) {
    name_gpus(where, name, sizeof name);
  } else {
    const uint32_t rank = mk_group_rank(engine->group);
    snprintf(name, sizeof name, "cuda:%u, rank %u of %u processes", where->gpus[rank], rank, where->ranks);
  }
  snprintf(engine->device, sizeof engine->device, "%s (%s)", name, mk_gpu_name(main->gpu));
  engine->want_logits = options->want_logits;
  return MK_OK;
}

/* On the CPU: beside `lender`, unless that is NULL. */
static mk_status open_cpu(const mk_engine_options *options, const mk_cpu *lender, mk_engine_machine *out) {
  const mk_cpu_options machine = {.threads = threads_of(options),
                                  .seed = options->interleave_seed,
                                  .adversarial = options->adversarial,
                                  .check_races = options->check_races};
  return mk_cpu_new_beside(out->program, &machine, lender, &out->cpu);
}

static mk_status open_machine(mk_engine *engine, const mk_engine_options *options) {
  mk_engine_machine *main = &engine->machines[MK_MACHINE_MAIN];
  place where;
  MK_TRY(choose_device(options, &where));
  if (where.on_gpus) {
    return open_gpu(engine, options, &where);
  }
  snprintf(engine->device, sizeof engine->device, "cpu");
  tell_memory(main->program, options);
  return open_cpu(options, NULL, main);
}

static void find_buffers(mk_engine_machine *machine) {
  mk_plan_buffers plan = {.table = MK_NO_PLAN_BUFFER};
  machine->table = mk_plan_find(machine->program, &plan) == MK_OK && plan.table != MK_NO_PLAN_BUFFER ? plan.table : -1;
  machine->logits = MK_OPERAND_BUFFER(machine->program, HEAD, logits);
  machine->sampling = MK_OPERAND_BUFFER(machine->program, SCORE, sampling);
  machine->bias = MK_OPERAND_BUFFER(machine->program, SCORE, bias);
  machine->counts = MK_OPERAND_BUFFER(machine->program, SCORE, counts);
}

static uint32_t prompt_slots(const mk_engine_options *options) {
  return options->prompt_slots > 1 ? options->prompt_slots : 1;
}

/* The same model in a program of so many rows, verified like the first. */
static mk_status open_beside(mk_engine *engine, const mk_engine_options *options, mk_compile_options compile,
                             uint32_t rows, mk_batch_machine which) {
  const mk_engine_machine *main = mk_engine_main(engine);
  mk_engine_machine *out = &engine->machines[which];
  place where;
  compile.rows = rows;
  compile.slots = which == MK_MACHINE_FEW ? rows : which == MK_MACHINE_PROMPTS ? prompt_slots(options) : 1;
  compile.blocks = main->program->ranges.block.high + 1; /* that a table may name, whichever program reads it */
  const uint64_t cache = (uint64_t)compile.blocks * MK_BLOCK_TOKENS; /* no sequence is longer */
  compile.max_seq = rows == 1 && cache < compile.max_seq ? (uint32_t)cache : compile.max_seq;
  compile.sampling = compile.sampling && which != MK_MACHINE_PROMPTS; /* which chooses greedily */
  MK_TRY(choose_device(options, &where));
  MK_TRY(mk_compile(engine->graph, &compile, &out->program));
  MK_TRY(mk_verify(out->program, NULL));
  find_buffers(out);
  if (!where.on_gpus) {
    return open_cpu(options, main->cpu, out);
  }
  const mk_gpu_options machine = {
      .devices = where.gpus, .group = engine->group, .deadline_ms = options->gpu_deadline_ms};
  return mk_gpu_new_beside(out->program, &machine, main->gpu, &out->gpu);
}

/* Whether a GPU, or several, are given wide programs of these options: not yet such that draw on several
 * (vm/gpu/refuse.c, refuse_wide.c). */
static bool takes_wide(const mk_graph *graph, const mk_compile_options *wide) {
  return !(wide->sampling && wide->ranks > 1) && mk_is_wide(graph, wide) &&
         mk_wide_shares(graph, wide->ranks > 1 ? wide->ranks : 1);
}

/* Of the machine for long prompts: as many as there may be, where a GPU takes such programs of this shape. */
static uint32_t prompt_rows(const mk_engine *engine, const mk_engine_options *options,
                            const mk_compile_options *compile) {
  mk_compile_options wide = *compile;
  wide.slots = prompt_slots(options);
  wide.rows = wide.slots > 1 ? MK_MOST_SHARED_ROWS : MK_MOST_ROWS;
  wide.sampling = false;
  return options->prompt_rows != 0 ? options->prompt_rows : takes_wide(engine->graph, &wide) ? wide.rows : 0;
}

/* Of the machine for few sequences; 0: there is none. */
static uint32_t few_rows(const mk_engine *engine, const mk_engine_options *options) {
  const mk_engine_machine *main = mk_engine_main(engine);
  const uint32_t most = mk_program_rows(main->program), usual = main->gpu != NULL ? (uint32_t)MK_MAX_ROWS : most;
  const uint32_t rows = options->few_rows != 0 ? options->few_rows : usual;
  return rows < most && mk_program_slots(main->program) > 1 ? rows : 0;
}

/* On a GPU one row goes on where a program for prompts ends, too. */
static mk_status open_others(mk_engine *engine, const mk_engine_options *options, const mk_compile_options *compile) {
  const mk_engine_machine *main = mk_engine_main(engine);
  const bool several = mk_program_slots(main->program) > 1;
  if (several || (main->gpu != NULL && mk_program_rows(main->program) > 1)) {
    MK_TRY(open_beside(engine, options, *compile, 1, MK_MACHINE_ONE_ROW));
  }
  const uint32_t few = few_rows(engine, options);
  MK_TRY(few != 0 ? open_beside(engine, options, *compile, few, MK_MACHINE_FEW) : MK_OK);
  const uint32_t rows =
      several && main->gpu != NULL && options->long_prompts ? prompt_rows(engine, options, compile) : 0;
  return rows != 0 ? open_beside(engine, options, *compile, rows, MK_MACHINE_PROMPTS) : MK_OK;
}

/* Of several processes rank 0 does, and each tells of its own packed copy. */
static bool tells_of_model(const mk_engine_options *options) {
  return options->notice != NULL && (options->process == NULL || options->process->rank == 0);
}

static mk_status open_model(mk_engine *engine, const char *model_dir, const mk_engine_options *options) {
  mk_directory directory;
  char line[MK_NOTE_SIZE];
  MK_TRY(mk_directory_open(model_dir, MK_WEIGHTS_NEEDED, options->cancel, &directory));
  engine->config = directory.config;
  engine->checkpoint = directory.checkpoint;
  for (int note = 0; note < MK_NOTES && tells_of_model(options); note++) {
    if (mk_directory_note(&directory, (mk_note)note, line) != NULL) {
      options->notice(options->progress_user, line);
    }
  }
  return MK_OK;
}

/* As many of the rows as suit the machine: more than MK_MAX_ROWS on a GPU, or on several where nothing is drawn, of
 * models that have wide steps there; one with more GPUs than KV heads. */
static uint32_t rows_that_fit(const mk_engine *engine, const mk_engine_options *options, bool samples,
                              const place *where) {
  const uint32_t most = samples && options->rows > MK_MOST_DRAWING_ROWS ? MK_MOST_DRAWING_ROWS : options->rows;
  const mk_compile_options wide = {.ranks = where->ranks,
                                   .rows = most,
                                   .slots = options->slots < most ? options->slots : most,
                                   .kv = options->kv,
                                   .sampling = samples};
  if (!where->on_gpus) {
    return most;
  }
  if (where->ranks > engine->config.kv_heads) {
    return 1;
  }
  return most > MK_MAX_ROWS && !takes_wide(engine->graph, &wide) ? (uint32_t)MK_MAX_ROWS : most;
}

static void note_cache(const mk_engine_options *options) {
  if (options->kv != MK_DTYPE_BF16 && tells_of_model(options)) {
    options->notice(options->progress_user, "the KV cache is fp8 (e4m3), with a scale for each token and KV head");
  }
}

/* A seed that was drawn is another one in each process: rank 0's is what counts. */
static mk_status begin_to_lead(mk_engine *engine, const mk_engine_options *options) {
  MK_TRY(mk_group_lead(engine->group));
  return options->sampling != NULL ? mk_engine_set_sampling(engine, options->sampling) : MK_OK;
}

static mk_status open_engine(mk_engine *engine, const char *model_dir, const mk_engine_options *options) {
  engine->cancel = options->cancel;
  engine->prompt_progress = options->prompt_progress;
  engine->progress_user = options->progress_user;
  engine->poll = options->poll;
  engine->poll_user = options->poll_user;
  engine->swaps_sampling = options->tamper != NULL && options->tamper->swaps_sampling;
  engine->forgets_counts = options->tamper != NULL && options->tamper->forgets_counts;
  if (options->synth != NULL) {
    engine->config = *options->synth;
  } else {
    MK_TRY(open_model(engine, model_dir, options));
  }
  note_cache(options);
  if (options->tamper != NULL && options->tamper->config != NULL) {
    options->tamper->config(&engine->config);
  }
  uint32_t longest = engine->config.max_position;
  engine->max_seq = options->max_seq != 0 ? options->max_seq : longest < DEFAULT_CONTEXT ? longest : DEFAULT_CONTEXT;
  mk_config_set_context(&engine->config, engine->max_seq);
  MK_TRY(mk_llama_graph(&engine->config, &engine->graph));
  bool samples = options->sampling != NULL && !mk_sampling_is_greedy(options->sampling);
  place where;
  MK_TRY(choose_device(options, &where));
  const uint32_t rows = options->rows_or_fewer ? rows_that_fit(engine, options, samples, &where) : options->rows;
  mk_compile_options compile = {.sms = queues_of(options, !where.on_gpus),
                                .ranks = where.ranks,
                                .max_seq = engine->max_seq,
                                .rows = rows,
                                .slots = options->slots < rows ? options->slots : rows,
                                .blocks = options->kv_blocks,
                                .kv = options->kv,
                                .sampling = samples,
                                .keep_values = options->keep_values};
  mk_engine_machine *main = &engine->machines[MK_MACHINE_MAIN];
  MK_TRY(mk_compile(engine->graph, &compile, &main->program));
  MK_TRY(mk_verify(main->program, NULL));
  find_buffers(main);
  if (options->tamper != NULL && options->tamper->program != NULL) {
    options->tamper->program(main->program);
  }
  MK_TRY(open_machine(engine, options));
  MK_TRY(open_others(engine, options, &compile));
  if (options->sampling != NULL) {
    MK_TRY(mk_engine_set_sampling(engine, options->sampling));
  }
  MK_TRY(fill_block_table(engine));
  MK_TRY(mk_engine_open_batch(engine, options));
  MK_TRY(load_weights(engine, options));
  return engine->group != NULL && mk_group_rank(engine->group) == 0 ? begin_to_lead(engine, options) : MK_OK;
}

mk_status mk_engine_follow(mk_engine *engine) { return mk_group_follow(engine->group); }

mk_status mk_engine_watch(mk_engine *engine) {
  return engine->group == NULL ? MK_OK : mk_group_watch(engine->group, false);
}

mk_status mk_engine_open(const char *model_dir, const mk_engine_options *options, mk_engine **out) {
  MK_TRY(mk_alloc(1, sizeof **out, out));
  mk_status status = open_engine(*out, model_dir, options);
  if (status != MK_OK) {
    mk_group_end((*out)->group, status); /* the others wait for this one */
    mk_engine_close(*out);
    *out = NULL;
  }
  return status;
}

void mk_engine_close(mk_engine *engine) {
  if (engine == NULL) {
    return;
  }
  mk_group_end(engine->group, MK_OK); /* before the machines, whose memory all ranks free together */
  mk_batch_free(engine->batch);
  mk_checkpoint_close(engine->checkpoint);
  for (uint32_t i = MK_MACHINES; i-- > 0;) { /* the main one last: it lends to the others */
    mk_cpu_free(engine->machines[i].cpu);
    mk_gpu_free(engine->machines[i].gpu);
    mk_program_free(engine->machines[i].program);
  }
  mk_group_free(engine->group);
  mk_free(engine->logits_copy);
  mk_free(engine->rankings);
  mk_recording_reset(&engine->recording, NULL);
  mk_graph_free(engine->graph);
  mk_free(engine);
}

const mk_config *mk_engine_config(const mk_engine *engine) { return &engine->config; }
const mk_program *mk_engine_program(const mk_engine *engine) { return mk_engine_main(engine)->program; }
uint32_t mk_engine_max_seq(const mk_engine *engine) { return engine->max_seq; }
const char *mk_engine_device(const mk_engine *engine) { return engine->device; }
mk_gpu *mk_engine_gpu(mk_engine *engine) { return mk_engine_main(engine)->gpu; }
mk_cpu *mk_engine_cpu(mk_engine *engine) { return mk_engine_main(engine)->cpu; }

void mk_engine_trace(mk_engine *engine, const mk_trace_window *window) {
  mk_recording_reset(&engine->recording, window);
}

void mk_engine_trace_facts(const mk_engine *engine, mk_trace *trace) {
  snprintf(trace->facts.device, sizeof trace->facts.device, "%.95s", engine->device);
  snprintf(trace->facts.model, sizeof trace->facts.model, "%s", mk_engine_main(engine)->program->model);
}

mk_status mk_engine_trace_take(mk_engine *engine, mk_trace **out) {
  MK_TRY(mk_recording_take(&engine->recording, out));
  mk_engine_trace_facts(engine, *out);
  return MK_OK;
}
