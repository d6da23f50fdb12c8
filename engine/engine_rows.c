/* An engine with several rows: launches of a batch, the machines beside it. See engine_internal.h. */
#include <string.h>

#include "engine/engine_internal.h"

typedef struct side_by_side {
  mk_engine *engine;
  mk_batch *batch;
  const mk_step_row *plan; /* of the launch at hand */
  uint64_t prompt_done, prompt_total;
  uint32_t rows; /* of the results */
  uint32_t results[MK_PROMPT_ROWS];
} side_by_side;

/* Of a prompt all rows but the last choose nothing, and what is generated always comes of one that does. */
static void tell_prompts(side_by_side *s, uint32_t step) {
  uint64_t before = s->prompt_done;
  for (uint32_t i = 0; i < s->rows; i++) {
    s->prompt_done += (s->plan[(size_t)step * s->rows + i].flags & (MK_ROW_ACTIVE | MK_ROW_CHOOSES)) == MK_ROW_ACTIVE;
  }
  if (s->prompt_done != before) {
    mk_engine_tell_prompt(s->engine, s->prompt_done, s->prompt_total);
  }
}

static bool on_step(void *user, uint32_t step, const uint32_t *results) {
  side_by_side *s = user;
  tell_prompts(s, step);
  const float *logits = s->engine->cpu == NULL ? NULL : mk_cpu_memory(s->engine->cpu, (size_t)s->engine->logits);
  return !mk_engine_cancelled(s->engine) && mk_batch_take(s->batch, step, results, logits);
}

static bool keep_results(void *user, uint32_t step, const uint32_t *results) {
  side_by_side *s = user;
  (void)step;
  memcpy(s->results, results, s->rows * sizeof *results);
  return !mk_engine_cancelled(s->engine);
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
  s->plan = launch->plan;
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
  for (uint32_t step = 0; step < steps && !mk_engine_cancelled(engine); step++) {
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
  for (uint32_t first = 0; first < count && status == MK_OK && !mk_engine_cancelled(engine); first += most) {
    uint32_t rows = count - first < most ? count - first : most;
    for (uint32_t i = 0; i < most; i++) {
      bool last = first + i + 1 == count;
      plan[i] = i < rows ? (mk_step_row){.position = first + i,
                                         .token = sequence->prompt[first + i],
                                         .flags = MK_ROW_ACTIVE | MK_ROW_PROMPT | (last ? (uint32_t)MK_ROW_CHOOSES : 0)}
                         : (mk_step_row){0};
    }
    status = mk_gpu_run_plan(gpu, plan, (rows + MK_PROMPT_ROWS - 1) / MK_PROMPT_ROWS, keep_results, &here);
  }
  uint32_t line = (count - 1) % MK_PROMPT_ROWS, vocab = engine->config.vocab;
  if (status == MK_OK && engine->want_logits) {
    size_t logits = (size_t)MK_OPERAND_BUFFER(program, HEAD, logits);
    uint64_t bytes = vocab * sizeof *engine->logits_copy;
    status = mk_gpu_read(gpu, logits, line * bytes, engine->logits_copy, bytes);
  }
  if (status == MK_OK && !mk_engine_cancelled(engine)) {
    mk_batch_take_prompt(s->batch, prompt->sequence, here.results[line],
                         engine->want_logits ? engine->logits_copy : NULL);
  }
  mk_free(plan);
  return status;
}

static bool on_single(void *user, uint32_t step, const uint32_t *results) {
  side_by_side *s = user;
  (void)step;
  return !mk_engine_cancelled(s->engine) && mk_batch_take_single(s->batch, results[0], NULL);
}

/* In one launch. */
static mk_status run_single_whole(side_by_side *s, const mk_single *single) {
  mk_step_row *plan;
  MK_TRY(mk_alloc(single->left, sizeof *plan, &plan));
  mk_plan_sequence(plan, single->left, single->position, &single->token, 1, 0);
  mk_status status = mk_gpu_run_plan(s->engine->one_row.gpu, plan, single->left, on_single, s);
  mk_free(plan);
  return status;
}

/* The last sequence, token by token: a step of one row is the faster one. With logits, a launch for each token. */
static mk_status run_single(side_by_side *s, const mk_single *single) {
  mk_engine *engine = s->engine;
  const mk_program *program = engine->one_row.program;
  mk_gpu *gpu = engine->one_row.gpu;
  size_t table = (size_t)MK_OPERAND_BUFFER(program, ATTENTION, table);
  MK_TRY(mk_gpu_write(gpu, table, 0, single->table, program->buffers[table].bytes));
  if (!engine->want_logits) {
    return run_single_whole(s, single);
  }
  size_t logits = (size_t)MK_OPERAND_BUFFER(program, HEAD, logits);
  uint32_t token = single->token;
  bool more = true;
  for (uint32_t i = 0; more && !mk_engine_cancelled(engine); i++) {
    mk_step_row row;
    mk_plan_sequence(&row, 1, single->position + i, &token, 1, 0);
    MK_TRY(mk_gpu_run_plan(gpu, &row, 1, mk_engine_keep_token, &token));
    MK_TRY(mk_gpu_read(gpu, logits, 0, engine->logits_copy, engine->config.vocab * sizeof *engine->logits_copy));
    more = mk_batch_take_single(s->batch, token, engine->logits_copy);
  }
  return MK_OK;
}

mk_status mk_engine_generate_rows(mk_engine *engine, const mk_sequence *sequences, size_t count,
                                  const mk_sequence_calls *calls, bool hands_over) {
  side_by_side s = {.engine = engine, .rows = mk_program_rows(engine->program)};
  mk_plan_buffers buffers;
  mk_launch launch;
  MK_TRY(mk_plan_find(engine->program, &buffers));
  MK_TRY(mk_batch_new(engine->program, sequences, count, calls, &s.batch));
  mk_status status = MK_OK;
  for (size_t i = 0; i < count; i++) {
    s.prompt_total += sequences[i].prompt_count;
  }
  hands_over = hands_over && engine->one_row.gpu != NULL;
  if (hands_over) {
    mk_batch_leave_single(s.batch);
  }
  mk_batch_plan(s.batch, &launch);
  while (status == MK_OK && launch.steps != 0 && !mk_engine_cancelled(engine)) {
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
    status = mk_engine_write(engine, buffers.table, 0, launch.table, engine->program->buffers[buffers.table].bytes);
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
