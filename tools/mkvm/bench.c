/* mkvm bench: tokens per second in llama-bench's table, beside the read bandwidth of the same GPU. */
#include "tools/lib/bench.h"
#include "tools/lib/bench_sampling.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lib/prompt.h"
#include "models/family.h"
#include "models/synth.h"
#include "scheduler/compile.h"
#include "tools/mkvm/bench_load.h"
#include "tools/mkvm/bench_mla.h"
#include "tools/mkvm/bench_option.h"
#include "tools/mkvm/bench_rows_table.h"
#include "tools/mkvm/bench_sampling.h"
#include "tools/mkvm/bench_table.h"
#include "tools/mkvm/command.h"
#include "tools/mkvm/loading.h"
#include "tools/mkvm/signals.h"
#include "tools/mkvm/trace_option.h"
#include "tools/profiler/summary.h"

enum { CUDA_LAUNCHES = 10, CPU_LAUNCHES = 3 };

static uint32_t largest(const mk_bench_list *values) {
  uint32_t most = 0;
  for (size_t i = 0; i < values->count; i++) {
    most = values->values[i] > most ? values->values[i] : most;
  }
  return most;
}

/* More rows than MK_MAX_ROWS are of one sequence where prompts are measured, else of as many sequences. */
static uint32_t slots_of(const mk_bench_option *o) {
  return o->rows > MK_MAX_ROWS && largest(&o->prompts) == 0 ? o->rows : mk_rows_slots(o->rows);
}

static mk_status choose_context(const mk_bench_option *o, const mk_config *config, bool cuda, uint32_t *out) {
  uint32_t prompt = largest(&o->prompts), generated = largest(&o->generated);
  uint64_t need = mk_bench_context(cuda, largest(&o->depths), prompt > generated ? prompt : generated);
  MK_TRY(mk_context_size(o->ctx_size, config, out));
  if (need > config->max_position) {
    return mk_error(MK_ERR_USAGE, "the tests take %" PRIu64 " tokens of context; this model has at most %u", need,
                    config->max_position);
  }
  if (o->ctx_size == 0 && need > *out) {
    *out = (uint32_t)need;
  }
  return need <= *out
             ? MK_OK
             : mk_error(MK_ERR_USAGE, "the tests take %" PRIu64 " tokens of context; --ctx-size gives %u", need, *out);
}

static const char *last_part(const char *path) {
  static char text[128];
  size_t length = strlen(path);
  while (length > 1 && path[length - 1] == '/') {
    length--;
  }
  size_t start = length;
  while (start > 0 && path[start - 1] != '/') {
    start--;
  }
  snprintf(text, sizeof text, "%.*s", (int)(length - start < sizeof text ? length - start : sizeof text - 1),
           path + start);
  return text;
}

static mk_status describe(const mk_bench_option *o, mk_engine *engine, char *weights, size_t weights_size,
                          mk_bench_about *about) {
  const mk_config *config = mk_engine_config(engine);
  if (o->like != NULL) {
    snprintf(weights, weights_size, "hash of seed %" PRIu64 ", %s", o->seed, mk_bench_weights_name(o->weights));
  } else {
    snprintf(weights, weights_size, "of the directory");
  }
  *about = (mk_bench_about){.format = o->format,
                            .model = last_part(o->like != NULL ? o->like : o->model),
                            .weights = weights,
                            .device = mk_engine_device(engine),
                            .parameters = mk_family_parameters(config),
                            .weight_bytes = mk_family_parameters(config) * 2,
                            .context = mk_engine_max_seq(engine),
                            .sms = mk_engine_program(engine)->machine.sms,
                            .cuda = mk_engine_gpu(engine) != NULL};
  if (!about->cuda) {
    return MK_OK;
  }
  uint32_t count;
  MK_TRY(mk_gpu_count(&count, &about->cuda_version));
  mk_driver_version(about->driver, sizeof about->driver);
  return mk_gpu_describe(mk_cuda_index(about->device), &about->gpu);
}

typedef struct session {
  mk_engine *engine;
  const mk_bench_about *about;
  uint32_t launches;
  bool rows;
  double bandwidth;      /* the best */
  mk_bench_options last; /* test; 0 tokens: none yet */
} session;

static mk_status run_test(session *s, bool prompt, uint32_t tokens, uint32_t depth) {
  if (tokens == 0) {
    return MK_OK;
  }
  mk_bench_row row = {.prompt = prompt, .depth = depth};
  const mk_bench_options test = {.prompt = prompt, .depth = depth, .tokens = tokens, .launches = s->launches};
  MK_TRY(mk_bench_fill_kv(s->engine, 1));
  MK_TRY(mk_bench_run(s->engine, &test, &row.result));
  s->last = test;
  s->bandwidth = row.result.bandwidth > s->bandwidth ? row.result.bandwidth : s->bandwidth;
  mk_status status = mk_bench_table_row(s->about, &row, !s->rows);
  s->rows = true;
  return status;
}

static mk_status print_breakdown(const mk_trace *trace, double bandwidth) {
  mk_summary *summary;
  MK_TRY(mk_summary_new(trace, MK_MEDIAN_STEP, bandwidth, &summary));
  mk_summary_print_short(summary, stdout);
  mk_summary_free(summary);
  return mk_print_done();
}

static bool wants_trace(const mk_bench_option *o) { return o->breakdown || o->trace.path != NULL; }

/* Shows and saves a trace, and frees it. */
static mk_status show_trace(const mk_bench_option *o, mk_trace *trace, double bandwidth) {
  mk_trace_option_facts(&o->trace, trace);
  mk_status status = o->breakdown ? print_breakdown(trace, bandwidth) : MK_OK;
  if (status == MK_OK && o->trace.path != NULL) {
    status = mk_trace_option_save(&o->trace, trace);
  }
  mk_trace_free(trace);
  return status;
}

/* Makes one more launch of the last test, recorded; `rows` is that test if it has several rows, or NULL. */
static mk_status trace_last(const mk_bench_option *o, session *s, const mk_bench_rows_options *rows) {
  const mk_trace_window window = mk_trace_option_window(&o->trace);
  mk_trace *trace;
  if (!wants_trace(o)) {
    return MK_OK;
  }
  MK_TRY(rows != NULL ? mk_bench_rows_trace(s->engine, rows, &window, &trace)
                      : mk_bench_trace(s->engine, &s->last, &window, &trace));
  return show_trace(o, trace, s->bandwidth);
}

static mk_status run_tests(const mk_bench_option *o, mk_engine *engine, const mk_bench_about *about,
                           uint32_t launches) {
  session s = {.engine = engine, .about = about, .launches = launches};
  MK_TRY(mk_bench_table_begin(about));
  for (size_t d = 0; d < o->depths.count; d++) {
    for (size_t i = 0; i < o->prompts.count; i++) {
      MK_TRY(run_test(&s, true, o->prompts.values[i], o->depths.values[d]));
    }
    for (size_t i = 0; i < o->generated.count; i++) {
      MK_TRY(run_test(&s, false, o->generated.values[i], o->depths.values[d]));
    }
  }
  MK_TRY(mk_bench_table_end(about, s.bandwidth, s.rows));
  return trace_last(o, &s, NULL);
}

/* And one more launch of the last way to sample. */
static mk_status trace_sampling(const mk_bench_option *o, mk_engine *sampling, uint32_t tokens) {
  const mk_trace_window window = mk_trace_option_window(&o->trace);
  mk_trace *trace;
  if (!wants_trace(o)) {
    return MK_OK;
  }
  MK_TRY(mk_bench_sampling_trace(sampling, tokens, &window, &trace));
  return show_trace(o, trace, 0);
}

static mk_status run_sampling(const mk_bench_option *o, const mk_engine_options *open, mk_engine *greedy,
                              const mk_bench_about *about, uint32_t launches) {
  const uint32_t tokens = o->generated.values[0];
  mk_engine *sampling;
  MK_TRY(mk_bench_sampling_open(o->model, open, &sampling));
  mk_status status = mk_bench_sampling_table(greedy, sampling, about, tokens, launches);
  status = status == MK_OK ? trace_sampling(o, sampling, tokens) : status;
  mk_engine_close(sampling);
  return status;
}

static mk_status run_all(const mk_bench_option *o, const mk_engine_options *open, mk_engine *engine) {
  char weights[64];
  mk_bench_about about;
  MK_TRY(describe(o, engine, weights, sizeof weights, &about));
  uint32_t usual = about.cuda ? CUDA_LAUNCHES : CPU_LAUNCHES, launches = o->repetitions == 0 ? usual : o->repetitions;
  if (o->sampling) {
    return run_sampling(o, open, engine, &about, launches);
  }
  if (o->rows <= 1) {
    return run_tests(o, engine, &about, launches);
  }
  const mk_bench_rows_tests tests = {.prompts = o->prompts.values,
                                     .generated = o->generated.values,
                                     .depths = o->depths.values,
                                     .prompt_count = o->prompts.count,
                                     .generated_count = o->generated.count,
                                     .depth_count = o->depths.count,
                                     .launches = launches};
  mk_bench_rows_options last;
  MK_TRY(mk_bench_rows_table(engine, &about, &tests, &last));
  return trace_last(o, &(session){.engine = engine, .about = &about}, &last);
}

/* Before anything is loaded: the CPU measures no prompt at a depth, and no steps of several rows. */
static mk_status check_device(const mk_bench_option *o, bool cuda) {
  if (o->rows > 1 && !cuda) {
    return mk_error(MK_ERR_USAGE, "--rows %u: steps of several rows are measured on cuda alone", o->rows);
  }
  if (o->sampling && !cuda) {
    return mk_error(MK_ERR_USAGE, "--sampling: what ways of choosing a token cost is measured on cuda alone");
  }
  if (!cuda && largest(&o->prompts) != 0 && largest(&o->depths) != 0) {
    return mk_error(MK_ERR_USAGE, "the cpu measures prompts at depth 0 only; give -p 0 with --n-depth, or use cuda");
  }
  if (largest(&o->prompts) == 0 && largest(&o->generated) == 0) {
    return mk_error(MK_ERR_USAGE, "--n-prompt and --n-gen are both 0: there is nothing to measure");
  }
  return MK_OK;
}

static mk_status find_shape(const mk_bench_option *o, mk_config *config) {
  bool named = o->like != NULL && strchr(o->like, '/') == NULL;
  MK_TRY(named ? mk_synth_shape(o->like, config) : mk_config_load(o->like != NULL ? o->like : o->model, config));
  if (o->weights != MK_CODES_NONE) {
    mk_synth_quantise(config, o->weights, o->weights == MK_CODES_INT4 ? 128 : 0, MK_TENSOR_BF16, false);
  }
  return MK_OK;
}

static mk_status run_load(const mk_bench_option *o, const mk_config *config, mk_engine_options *open) {
  char weights[64];
  mk_bench_about about;
  mk_load *load;
  mk_engine *engine = NULL;
  MK_TRY(mk_bench_load_prepare(&o->load, o->seed, o->rows, o->ctx_size, config, open, &load));
  mk_status status = mk_open_engine(o->model, open, &engine);
  if (status == MK_OK && engine == NULL) { /* another rank than 0 */
    goto done;
  }
  if (status == MK_OK) {
    status = describe(o, engine, weights, sizeof weights, &about);
  }
  if (status == MK_OK) {
    mk_trace_option_begin(&o->trace, engine);
    status = mk_bench_load_table(&o->load, load, engine, &about);
  }
  if (status == MK_OK) {
    status = mk_trace_option_end(&o->trace, engine);
  }
done:
  mk_engine_close(engine);
  mk_load_free(load);
  return status;
}

mk_status mk_command_bench(int argc, char **argv) {
  mk_bench_option o;
  mk_bench_option_parse(argc, argv, &o);
  if (mk_bench_option_is_mla(&o)) {
    o.mla.cuda = o.device == NULL ? o.sms == 0 && mk_gpu_present(0) : mk_is_cuda(o.device);
    if (o.device != NULL) {
      o.mla.device = mk_cuda_index(o.device);
    }
    o.mla.sms = o.sms;
    o.mla.format = o.format;
    o.mla.trace = &o.trace;
    return mk_bench_mla_run(&o.mla);
  }
  mk_config config;
  mk_engine_options open = {.device = o.device,
                            .gpu_deadline_ms = o.deadline_ms,
                            .synth = o.like == NULL ? NULL : &config,
                            .synth_seed = o.seed,
                            .sms = o.sms,
                            .ranks = o.ranks,
                            .process = mk_process_option_group(&o.process),
                            .threads = o.threads,
                            .kv = o.kv,
                            .rows = o.rows,
                            .slots = slots_of(&o),
                            .cache = o.cache};
  bool cuda = mk_engine_takes_cuda(&open);
  mk_engine *engine;
  MK_TRY(find_shape(&o, &config));
  if (o.load.load) {
    return run_load(&o, &config, &open);
  }
  MK_TRY(check_device(&o, cuda));
  MK_TRY(choose_context(&o, &config, cuda, &open.max_seq));
  if (!cuda && largest(&o.prompts) != 0) { /* as `run` has it for prompts */
    open.rows = MK_MAX_ROWS;
    open.kv_blocks = (open.max_seq + MK_BLOCK_TOKENS - 1) / MK_BLOCK_TOKENS;
  }
  MK_TRY(mk_open_engine(o.model, &open, &engine));
  mk_release_interrupt();
  mk_status status = engine == NULL ? MK_OK : run_all(&o, &open, engine);
  mk_engine_close(engine);
  return status;
}
