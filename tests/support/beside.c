/* See beside.h. */
#include "tests/support/beside.h"

#include <string.h>

#include "engine/load.h"
#include "models/llama.h"
#include "scheduler/compile.h"
#include "vm/verify/verify.h"

typedef struct machine {
  mk_program *program;
  mk_cpu *cpu; /* one of the two */
  mk_gpu *gpu;
  mk_plan_buffers buffers;
  size_t logits;
} machine;

struct beside {
  mk_graph *graph;
  machine machines[BESIDE_MACHINES];
  uint32_t holder; /* the CPU machine whose KV cache is the newest */
  float *logits;   /* of a GPU, of one step */
};

enum { LENDER = BESIDE_16 };

uint32_t beside_rows(uint32_t which) {
  static const uint32_t rows[BESIDE_MACHINES] = {1, 2, 4, 8, 16, 64, BESIDE_MOST_ROWS, BESIDE_PROMPT_ROWS};
  return rows[which];
}

static mk_status open_one(beside *b, const beside_options *o, uint32_t which) {
  machine *m = &b->machines[which];
  const mk_compile_options compile = {.sms = o->sms != 0 ? o->sms : MK_DEFAULT_SMS,
                                      .max_seq = o->max_seq,
                                      .rows = beside_rows(which),
                                      .slots = which == BESIDE_PROMPT ? 1 : beside_rows(which),
                                      .blocks = o->blocks};
  MK_TRY(mk_compile(b->graph, &compile, &m->program));
  MK_TRY(mk_verify(m->program, NULL));
  MK_TRY(mk_plan_find(m->program, &m->buffers));
  m->logits = (size_t)mk_program_find_buffer(m->program, "logits");
  if (o->gpu == NULL) {
    MK_TRY(mk_cpu_new(m->program, &(mk_cpu_options){.threads = o->threads}, &m->cpu));
  } else {
    MK_TRY(mk_gpu_new_beside(m->program, o->gpu, b->machines[LENDER].gpu, &m->gpu));
  }
  if (o->gpu != NULL && which != LENDER) {
    return MK_OK; /* the weights are the lender's */
  }
  return mk_load_weights(
      &(mk_load){.graph = b->graph, .program = m->program, .synth_seed = o->seed, .cpu = m->cpu, .gpu = m->gpu});
}

static mk_status open_all(beside *b, const beside_options *o) {
  MK_TRY(mk_llama_graph(o->config, &b->graph));
  MK_TRY(mk_alloc((size_t)BESIDE_MOST_ROWS * o->config->vocab, sizeof *b->logits, &b->logits));
  MK_TRY(open_one(b, o, LENDER));
  for (uint32_t i = 0; i < BESIDE_MACHINES; i++) {
    MK_TRY(i == LENDER ? MK_OK : open_one(b, o, i));
  }
  return MK_OK;
}

mk_status beside_open(const beside_options *options, beside **out) {
  MK_TRY(mk_alloc(1, sizeof **out, out));
  mk_status status = open_all(*out, options);
  if (status != MK_OK) {
    beside_close(*out);
    *out = NULL;
  }
  return status;
}

void beside_close(beside *b) {
  if (b == NULL) {
    return;
  }
  for (uint32_t i = 0; i < BESIDE_MACHINES; i++) {
    mk_cpu_free(b->machines[i].cpu);
    mk_gpu_free(i == LENDER ? NULL : b->machines[i].gpu);
  }
  mk_gpu_free(b->machines[LENDER].gpu);
  for (uint32_t i = 0; i < BESIDE_MACHINES; i++) {
    mk_program_free(b->machines[i].program);
  }
  mk_graph_free(b->graph);
  mk_free(b->logits);
  mk_free(b);
}

const mk_program *beside_program(const beside *b, uint32_t which) { return b->machines[which].program; }

/* The index of the next KV cache of a layer from *at on; false: there is none. */
static bool next_cache(const mk_program *program, size_t *at) {
  while (*at < program->buffer_count && program->buffers[*at].kind != MK_KIND_KV) {
    ++*at;
  }
  return *at < program->buffer_count;
}

/* Layers have the same order in all programs, and a block the same place in each. */
static mk_status move_cache(beside *b, uint32_t which) {
  const machine *from = &b->machines[b->holder], *to = &b->machines[which];
  size_t i = 0, j = 0;
  for (; next_cache(from->program, &i) && next_cache(to->program, &j); i++, j++) {
    uint64_t bytes = from->program->buffers[i].bytes;
    if (bytes != to->program->buffers[j].bytes) {
      return mk_error(MK_ERR_USAGE, "the KV caches %s have %llu and %llu bytes; they are to be the same",
                      from->program->buffers[i].name, (unsigned long long)bytes,
                      (unsigned long long)to->program->buffers[j].bytes);
    }
    memcpy(mk_cpu_memory(to->cpu, j), mk_cpu_memory(from->cpu, i), bytes);
  }
  b->holder = which;
  return MK_OK;
}

typedef struct listener {
  const float *logits;
  beside_take take;
  void *user;
} listener;

static bool on_step(void *user, uint32_t step, const uint32_t *results) {
  const listener *l = user;
  (void)results;
  l->take(l->user, step, l->logits);
  return true;
}

static mk_status run_on_cpu(beside *b, uint32_t which, const mk_step_row *plan, uint32_t steps, const uint32_t *table,
                            beside_take take, void *user) {
  machine *m = &b->machines[which];
  MK_TRY(which == b->holder ? MK_OK : move_cache(b, which));
  memcpy(mk_cpu_memory(m->cpu, m->buffers.table), table, m->program->buffers[m->buffers.table].bytes);
  listener l = {.logits = mk_cpu_memory(m->cpu, m->logits), .take = take, .user = user};
  return mk_cpu_run_plan(m->cpu, plan, steps, on_step, &l);
}

mk_status beside_run(beside *b, uint32_t which, const mk_step_row *plan, uint32_t steps, const uint32_t *table,
                     bool in_one_launch, beside_take take, void *user) {
  machine *m = &b->machines[which];
  if (m->cpu != NULL) {
    return run_on_cpu(b, which, plan, steps, table, take, user);
  }
  uint32_t rows = beside_rows(which), each = in_one_launch ? steps : 1;
  MK_TRY(mk_gpu_write(m->gpu, m->buffers.table, 0, table, m->program->buffers[m->buffers.table].bytes));
  for (uint32_t step = 0; step < steps; step += each) {
    MK_TRY(mk_gpu_run_plan(m->gpu, plan + (size_t)step * rows, each, NULL, NULL));
    MK_TRY(mk_gpu_read(m->gpu, m->logits, 0, b->logits, m->program->buffers[m->logits].bytes));
    take(user, step + each - 1, b->logits);
  }
  return MK_OK;
}
