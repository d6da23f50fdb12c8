/* See bench_rows.h. */
#include "tools/lib/bench_rows.h"

#include "models/synth.h"
#include "tools/lib/bench.h"
#include "tools/lib/clock.h"
#include "tools/lib/quantile.h"
#include "vm/gpu/extra.h"

/* Gives every slot blocks of its own, in reverse order. */
static mk_status write_table(mk_engine *engine, const mk_plan_buffers *buffers) {
  const mk_buffer *table = &mk_engine_program(engine)->buffers[buffers->table];
  uint32_t count = table->rows * table->cols, *blocks;
  MK_TRY(mk_alloc(count, sizeof *blocks, &blocks));
  for (uint32_t i = 0; i < count; i++) {
    blocks[i] = count - 1 - i;
  }
  mk_status status = mk_gpu_write(mk_engine_gpu(engine), buffers->table, 0, blocks, count * sizeof *blocks);
  mk_free(blocks);
  return status;
}

/* One launch: a sequence in each row, each step taking the token of the one before. */
static mk_status run_steps(mk_engine *engine, const mk_bench_rows_options *options, mk_step_row *plan, double *ms) {
  uint32_t rows = mk_program_rows(mk_engine_program(engine)), vocab = mk_engine_config(engine)->vocab;
  for (uint32_t i = 0; i < options->steps * rows; i++) {
    plan[i] = (mk_step_row){.slot = i % rows,
                            .position = options->depth + i / rows,
                            .token = i < rows ? (uint32_t)(mk_synth_mix(i + 1) % vocab) : MK_TOKEN_CHOSEN,
                            .flags = MK_ROW_ACTIVE | MK_ROW_CHOOSES};
  }
  MK_TRY(mk_engine_run_plan(engine, plan, options->steps, NULL, NULL));
  *ms = mk_gpu_time_ms(mk_engine_gpu(engine)) / options->steps;
  return MK_OK;
}

static bool note_time(void *user, uint32_t token, const float *logits) {
  (void)token;
  (void)logits;
  *(double *)user = mk_seconds() * 1e3;
  return true;
}

static mk_status run_prompt(mk_engine *engine, uint32_t tokens, double *ms) {
  uint32_t *prompt, vocab = mk_engine_config(engine)->vocab;
  MK_TRY(mk_alloc(tokens, sizeof *prompt, &prompt));
  for (uint32_t i = 0; i < tokens; i++) {
    prompt[i] = (uint32_t)(mk_synth_mix(i + 1) % vocab);
  }
  double start = mk_seconds() * 1e3, first = start;
  mk_status status = mk_engine_generate(engine, prompt, tokens, 1, note_time, &first);
  *ms = first - start;
  mk_free(prompt);
  return status;
}

static mk_status run_all(mk_engine *engine, const mk_bench_rows_options *options, mk_step_row *plan, double *times,
                         mk_bench_rows_result *out) {
  for (uint32_t i = 0; i <= options->launches; i++) { /* the first one warms up, and its time is overwritten */
    double *ms = &times[i == 0 ? 0 : i - 1];
    MK_TRY(options->prompt != 0 ? run_prompt(engine, options->prompt, ms) : run_steps(engine, options, plan, ms));
    if (i == 1 || *ms > out->ms_slowest) {
      out->ms_slowest = *ms;
      out->sm_mhz = mk_gpu_clock_mhz(mk_engine_gpu(engine));
    }
  }
  return MK_OK;
}

static mk_status measure(mk_engine *engine, const mk_bench_rows_options *options, mk_step_row *plan, double *times,
                         mk_bench_rows_result *out) {
  MK_TRY(run_all(engine, options, plan, times, out));
  out->ms_p50 = mk_quantile(times, options->launches, 0.5);
  return options->no_bandwidth ? MK_OK : mk_gpu_read_bandwidth(mk_engine_gpu(engine), 0, &out->bandwidth);
}

static mk_status check(mk_engine *engine, const mk_bench_rows_options *options) {
  uint32_t most = mk_engine_max_seq(engine);
  if (mk_engine_gpu(engine) == NULL) {
    return mk_error(MK_ERR_USAGE, "steps of several rows are measured on cuda");
  }
  uint64_t need = options->prompt != 0 ? options->prompt + UINT64_C(1) : (uint64_t)options->depth + options->steps;
  return need <= most ? MK_OK
                      : mk_error(MK_ERR_USAGE, "%llu tokens do not fit into a context of %u; raise --ctx-size",
                                 (unsigned long long)need, most);
}

static mk_status prepare(mk_engine *engine, const mk_bench_rows_options *options, mk_step_row **plan) {
  mk_plan_buffers buffers;
  MK_TRY(check(engine, options));
  MK_TRY(mk_plan_find(mk_engine_program(engine), &buffers));
  MK_TRY(write_table(engine, &buffers));
  return mk_alloc((size_t)buffers.steps * mk_program_rows(mk_engine_program(engine)), sizeof **plan, plan);
}

static mk_status record(mk_engine *engine, const mk_bench_rows_options *options, mk_trace_window window,
                        mk_step_row *plan, mk_trace **out) {
  double ms;
  window.first = window.first == MK_FIRST_GENERATED ? 0 : window.first;
  mk_engine_trace(engine, &window);
  MK_TRY(options->prompt != 0 ? run_prompt(engine, options->prompt, &ms) : run_steps(engine, options, plan, &ms));
  return mk_engine_trace_take(engine, out);
}

mk_status mk_bench_rows_trace(mk_engine *engine, const mk_bench_rows_options *options, const mk_trace_window *window,
                              mk_trace **out) {
  mk_step_row *plan = NULL;
  MK_TRY(prepare(engine, options, &plan));
  mk_status status = record(engine, options, *window, plan, out);
  mk_free(plan);
  return status;
}

mk_status mk_bench_rows_run(mk_engine *engine, const mk_bench_rows_options *options, mk_bench_rows_result *out) {
  mk_step_row *plan = NULL;
  double *times = NULL;
  uint32_t rows = mk_program_rows(mk_engine_program(engine));
  *out = (mk_bench_rows_result){0};
  MK_TRY(prepare(engine, options, &plan));
  mk_status status = mk_alloc(options->launches, sizeof *times, &times);
  if (status == MK_OK) {
    status = measure(engine, options, plan, times, out);
  }
  mk_free(plan);
  mk_free(times);
  double position = options->depth + (options->steps - 1) / 2.0;
  out->bytes =
      mk_bench_weight_bytes(mk_engine_program(engine)) + rows * position * mk_bench_kv_bytes(mk_engine_program(engine));
  if (out->bandwidth > 0 && out->ms_p50 > 0 && options->prompt == 0) {
    out->share = out->bytes / (out->ms_p50 * 1e-3) / out->bandwidth;
  }
  return status;
}
