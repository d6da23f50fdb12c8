/* See bench.h. */
#include "tools/lib/bench.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "vm/gpu/extra.h"

enum { DEFAULT_TOKENS = 128, DEFAULT_LAUNCHES = 10, START_TOKEN = 1 };

typedef struct samples {
  double *gaps;     /* milliseconds between tokens, all launches */
  double *launches; /* milliseconds per token by events */
  double *firsts;
  size_t gap_count;
  uint32_t seen; /* tokens of this launch */
  double last;
  bool counted;
  uint32_t launch;
} samples;

static double now_ms(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static bool on_token(void *user, uint32_t position, uint32_t token) {
  samples *s = user;
  (void)position;
  (void)token;
  double now = now_ms();
  if (s->counted && s->seen == 0) {
    s->firsts[s->launch] = now - s->last;
  } else if (s->counted) {
    s->gaps[s->gap_count++] = now - s->last;
  }
  s->last = now;
  s->seen++;
  return true;
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Sorts; the smallest value that `part` of them do not exceed. */
static double quantile(double *values, size_t count, double part) {
  if (count == 0) {
    return 0;
  }
  qsort(values, count, sizeof *values, compare);
  size_t index = (size_t)ceil(part * (double)count);
  return values[index == 0 ? 0 : index - 1];
}

double mk_bench_weight_bytes(const mk_program *program) {
  double bytes = 0;
  for (size_t i = 0; i < program->instruction_count; i++) {
    const mk_instruction *in = &program->instructions[i];
    const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
    for (uint32_t slot = 0; info != NULL && slot < info->operand_count; slot++) {
      if (info->operands[slot].role == MK_ROLE_LOADER && info->operands[slot].store == MK_OPERAND_STORE_TILES) {
        bytes += (double)in->operands[slot].rows * (double)in->operands[slot].cols * MK_TILE_STEP_ELEMENTS * 2;
      }
    }
  }
  return bytes;
}

static void summarise(samples *s, mk_bench_result *out) {
  double sum = 0, squares = 0;
  for (uint32_t i = 0; i < out->launches; i++) {
    sum += s->launches[i];
  }
  out->launch_ms_mean = sum / out->launches;
  for (uint32_t i = 0; i < out->launches; i++) {
    squares += (s->launches[i] - out->launch_ms_mean) * (s->launches[i] - out->launch_ms_mean);
  }
  out->launch_ms_deviation = out->launches > 1 ? sqrt(squares / (out->launches - 1)) : 0;
  out->token_ms_p50 = quantile(s->gaps, s->gap_count, 0.5);
  out->token_ms_p99 = quantile(s->gaps, s->gap_count, 0.99);
  out->launch_ms_p50 = quantile(s->launches, out->launches, 0.5);
  out->launch_ms_p99 = quantile(s->launches, out->launches, 0.99);
  out->first_ms_p50 = quantile(s->firsts, out->launches, 0.5);
}

static mk_status run_launches(mk_gpu *gpu, const mk_bench_options *options, samples *s, mk_bench_result *out) {
  MK_TRY(mk_alloc((size_t)out->launches * out->tokens, sizeof *s->gaps, &s->gaps));
  MK_TRY(mk_alloc(out->launches, sizeof *s->launches, &s->launches));
  MK_TRY(mk_alloc(out->launches, sizeof *s->firsts, &s->firsts));
  for (uint32_t i = 0; i <= out->launches; i++) {
    s->counted = i > 0;
    s->launch = i - s->counted;
    s->seen = 0;
    s->last = now_ms();
    MK_TRY(mk_gpu_run(gpu, START_TOKEN, options->depth, options->depth + 1, out->tokens, on_token, s));
    if (s->counted) {
      s->launches[s->launch] = mk_gpu_time_ms(gpu) / out->tokens;
    }
  }
  return MK_OK;
}

mk_status mk_bench_run(mk_engine *engine, const mk_bench_options *options, mk_bench_result *out) {
  mk_gpu *gpu = mk_engine_gpu(engine);
  const mk_config *config = mk_engine_config(engine);
  *out = (mk_bench_result){.tokens = options->tokens == 0 ? DEFAULT_TOKENS : options->tokens,
                           .launches = options->launches == 0 ? DEFAULT_LAUNCHES : options->launches};
  if (gpu == NULL) {
    return mk_error(MK_ERR_USAGE, "bench measures a GPU; this engine runs on the cpu");
  }
  if ((uint64_t)options->depth + out->tokens > mk_engine_max_seq(engine)) {
    return mk_error(MK_ERR_USAGE, "%u tokens from depth %u on do not fit into a context of %u; raise --ctx-size",
                    out->tokens, options->depth, mk_engine_max_seq(engine));
  }
  samples s = {0};
  mk_status status = run_launches(gpu, options, &s, out);
  if (status == MK_OK) {
    summarise(&s, out);
  }
  mk_free(s.gaps);
  mk_free(s.launches);
  mk_free(s.firsts);
  if (status == MK_OK && !options->no_bandwidth) {
    status = mk_gpu_read_bandwidth(gpu, 0, &out->bandwidth);
  }
  double position = options->depth + (out->tokens - 1) / 2.0;
  out->weight_bytes = mk_bench_weight_bytes(mk_engine_program(engine));
  out->kv_bytes = position * 4.0 * config->layers * config->kv_heads * config->head_dim; /* K and V, two bytes each */
  if (out->bandwidth > 0 && out->launch_ms_p50 > 0) {
    out->share = (out->weight_bytes + out->kv_bytes) / (out->launch_ms_p50 * 1e-3) / out->bandwidth;
  }
  return status;
}
