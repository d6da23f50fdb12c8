/* Comparing two engines: see compare.h. */
#include "tools/lib/compare.h"

#include <string.h>

static mk_status read_gpu(void *user, size_t buffer, void *data, uint64_t bytes) {
  return mk_gpu_read(mk_engine_gpu(user), buffer, 0, data, bytes);
}

static uint32_t generation_gpu(void *user) { return mk_gpu_generation(mk_engine_gpu(user)); }

static mk_status read_cpu(void *user, size_t buffer, void *data, uint64_t bytes) {
  memcpy(data, mk_cpu_memory(mk_engine_cpu(user), buffer), bytes);
  return MK_OK;
}

static uint32_t generation_cpu(void *user) { return mk_cpu_generation(mk_engine_cpu(user)); }

typedef struct rows_seen {
  uint32_t rows, *results;
} rows_seen;

static bool keep_results(void *user, uint32_t step, const uint32_t *results) {
  const rows_seen *seen = user;
  (void)step;
  memcpy(seen->results, results, seen->rows * sizeof *results);
  return true;
}

static mk_status make_step(void *user, const mk_step_row *rows, uint32_t *results) {
  rows_seen seen = {.rows = mk_program_rows(mk_engine_program(user)), .results = results};
  return mk_engine_run_plan(user, rows, 1, keep_results, &seen);
}

mk_status mk_compare_engines(mk_engine *machine, mk_engine *oracle, mk_compare **out) {
  const mk_program *program = mk_engine_program(machine);
  mk_compare_source gpu = {make_step, read_gpu, generation_gpu, machine};
  mk_compare_source cpu = {make_step, read_cpu, generation_cpu, machine};
  uint8_t **weights;
  MK_TRY(mk_alloc(program->buffer_count, sizeof *weights, &weights));
  for (size_t b = 0; b < program->buffer_count; b++) {
    weights[b] = mk_cpu_memory(mk_engine_cpu(oracle), b);
  }
  mk_status status = mk_compare_new(program, weights, mk_engine_gpu(machine) != NULL ? &gpu : &cpu, out);
  mk_free(weights);
  return status;
}

static mk_status generate(mk_compare *compare, const uint32_t *prompt, size_t prompt_count, size_t steps,
                          mk_compare_fn fn, void *user) {
  uint32_t token = 0;
  for (uint32_t position = 0; position < steps; position++) {
    mk_step_row row;
    size_t given = position < prompt_count ? prompt_count - position : 1;
    mk_plan_sequence(&row, 1, position, position < prompt_count ? &prompt[position] : &token, (uint32_t)given,
                     position < prompt_count ? (uint32_t)MK_ROW_PROMPT : 0);
    MK_TRY(mk_compare_step(compare, &row, &token));
    token = given > 1 ? prompt[position + 1] : token;
    if (fn != NULL && !fn(user, position, token, position + 1 >= prompt_count)) {
      break;
    }
  }
  return MK_OK;
}

mk_status mk_compare_generate(mk_engine *machine, mk_engine *oracle, const uint32_t *prompt, size_t prompt_count,
                              size_t n_predict, mk_compare_fn fn, void *user, mk_compare **out) {
  mk_compare *compare;
  if (out != NULL) {
    *out = NULL;
  }
  uint32_t most = mk_engine_max_seq(machine);
  if (prompt_count == 0 || prompt_count > most) {
    return mk_error(MK_ERR_USAGE, "the prompt has %zu tokens; the context holds 1 to %u", prompt_count, most);
  }
  size_t steps = prompt_count - 1 + n_predict;
  MK_TRY(mk_compare_engines(machine, oracle, &compare));
  mk_status status = generate(compare, prompt, prompt_count, steps < most ? steps : most, fn, user);
  if (out != NULL) {
    *out = compare;
  } else {
    mk_compare_free(compare);
  }
  return status;
}
