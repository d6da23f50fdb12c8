/* See bench.h. */
#include "tools/lib/bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "instructions/reference.h"
#include "models/synth.h"
#include "tools/lib/clock.h"
#include "tools/lib/quantile.h"
#include "vm/gpu/extra.h"
#include "vm/program/strips.h"

enum { DEFAULT_TOKENS = 128, DEFAULT_LAUNCHES = 10, KV_PIECE = 1 << 24 };

typedef struct samples {
  double *gaps;     /* milliseconds between tokens, all launches */
  double *launches; /* milliseconds per token */
  double *firsts;
  size_t gap_count;
  double start, first, last; /* of this launch */
  uint32_t seen;             /* tokens of this launch */
  uint32_t unmeasured;       /* on the CPU: tokens that come before the first measured step ends */
  bool counted;
} samples;

static bool take(samples *s) {
  double now = mk_seconds() * 1e3;
  if (s->unmeasured != 0) {
    s->unmeasured--;
    s->start = s->last = now;
    return true;
  }
  if (s->seen == 0) {
    s->first = now - s->start;
  } else if (s->counted) {
    s->gaps[s->gap_count++] = now - s->last;
  }
  s->last = now;
  s->seen++;
  return true;
}

static bool on_gpu_step(void *user, uint32_t step, const uint32_t *results) {
  (void)step;
  (void)results;
  return take(user);
}

static bool on_cpu_token(void *user, uint32_t token, const float *logits) {
  (void)token;
  (void)logits;
  return take(user);
}

static void mean_and_deviation(const double *values, uint32_t count, bool inverse, double *mean, double *deviation) {
  double sum = 0, squares = 0;
  for (uint32_t i = 0; i < count; i++) {
    sum += inverse ? 1e3 / values[i] : values[i];
  }
  *mean = sum / count;
  for (uint32_t i = 0; i < count; i++) {
    double off = (inverse ? 1e3 / values[i] : values[i]) - *mean;
    squares += off * off;
  }
  *deviation = count > 1 ? sqrt(squares / (count - 1)) : 0;
}

double mk_bench_kv_bytes(const mk_program *program) {
  double bytes = 0;
  for (size_t b = 0; b < program->buffer_count; b++) {
    const mk_buffer *kv = &program->buffers[b];
    bytes += kv->kind == MK_KIND_KV ? (double)kv->bytes / kv->blocks / kv->block_tokens : 0;
  }
  return bytes;
}

double mk_bench_weight_bytes(const mk_program *program) {
  double bytes = 0;
  for (size_t i = 0; i < program->instruction_count; i++) {
    const mk_instruction *in = &program->instructions[i];
    const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
    for (uint32_t slot = 0; info != NULL && slot < info->operand_count; slot++) {
      if (info->operands[slot].role == MK_ROLE_LOADER && info->operands[slot].store == MK_OPERAND_STORE_TILES) {
        const mk_operand *o = &in->operands[slot];
        bytes += (double)mk_tiles_bytes(&program->buffers[o->buffer], o->rows, o->col, o->cols);
      }
    }
  }
  return bytes;
}

static void summarise(samples *s, mk_bench_result *out) {
  mean_and_deviation(s->launches, out->launches, false, &out->launch_ms_mean, &out->launch_ms_deviation);
  mean_and_deviation(s->launches, out->launches, true, &out->rate_mean, &out->rate_deviation);
  out->token_ms_p50 = mk_quantile(s->gaps, s->gap_count, 0.5);
  out->token_ms_p99 = mk_quantile(s->gaps, s->gap_count, 0.99);
  out->launch_ms_p50 = mk_quantile(s->launches, out->launches, 0.5);
  out->launch_ms_p99 = mk_quantile(s->launches, out->launches, 0.99);
  out->first_ms_p50 = mk_quantile(s->firsts, out->launches, 0.5);
}

/* prompt: [depth + tokens]. On return *ms is the time of all measured steps. */
static mk_status launch_on_gpu(mk_engine *engine, const mk_bench_options *options, const uint32_t *prompt,
                               uint32_t tokens, samples *s, double *ms) {
  mk_step_row *plan;
  MK_TRY(mk_alloc(tokens, sizeof *plan, &plan));
  mk_plan_sequence(plan, tokens, options->depth, prompt + options->depth, options->prompt ? tokens : 1, MK_ROW_PROMPT);
  mk_status status = mk_engine_run_plan(engine, plan, tokens, on_gpu_step, s);
  *ms = mk_gpu_time_ms(mk_engine_gpu(engine));
  mk_free(plan);
  return status;
}

/* The CPU machine starts from an empty context: what precedes the first measured step is computed, then left out. */
static mk_status launch_on_cpu(mk_engine *engine, const mk_bench_options *options, const uint32_t *prompt,
                               uint32_t tokens, samples *s, double *ms) {
  if (options->prompt) {
    MK_TRY(mk_engine_generate(engine, prompt, tokens, 1, on_cpu_token, s));
  } else if (options->depth == 0) {
    MK_TRY(mk_engine_generate(engine, prompt, 1, tokens, on_cpu_token, s));
  } else {
    s->unmeasured = 1;
    MK_TRY(mk_engine_generate(engine, prompt, options->depth, (size_t)tokens + 1, on_cpu_token, s));
  }
  *ms = s->last - s->start;
  return MK_OK;
}

static mk_status run_launches(mk_engine *engine, const mk_bench_options *options, const uint32_t *prompt, samples *s,
                              mk_bench_result *out) {
  mk_gpu *gpu = mk_engine_gpu(engine);
  MK_TRY(mk_alloc((size_t)out->launches * out->tokens, sizeof *s->gaps, &s->gaps));
  MK_TRY(mk_alloc(out->launches, sizeof *s->launches, &s->launches));
  MK_TRY(mk_alloc(out->launches, sizeof *s->firsts, &s->firsts));
  for (uint32_t i = 0; i <= out->launches; i++) { /* launch 0 warms up */
    double ms;
    s->counted = i > 0;
    s->seen = 0;
    s->start = s->last = mk_seconds() * 1e3;
    if (gpu != NULL) {
      MK_TRY(launch_on_gpu(engine, options, prompt, out->tokens, s, &ms));
    } else {
      MK_TRY(launch_on_cpu(engine, options, prompt, out->tokens, s, &ms));
    }
    if (s->counted) {
      s->launches[i - 1] = ms / out->tokens;
      double mhz = gpu == NULL ? 0 : mk_gpu_clock_mhz(gpu);
      out->sm_mhz = i == 1 || mhz < out->sm_mhz ? mhz : out->sm_mhz;
      s->firsts[i - 1] = s->first;
    }
  }
  return MK_OK;
}

uint64_t mk_bench_context(bool cuda, uint64_t depth, uint64_t tokens) { return depth + tokens + (cuda ? 0 : 1); }

static mk_status check_test(mk_engine *engine, const mk_bench_options *options, uint32_t tokens) {
  bool cuda = mk_engine_gpu(engine) != NULL;
  if (!cuda && options->prompt && options->depth != 0) {
    return mk_error(MK_ERR_USAGE,
                    "a prompt of %u tokens at depth %u: the cpu measures prompts at depth 0 only; leave them out "
                    "(-p 0), or use cuda",
                    tokens, options->depth);
  }
  if (mk_bench_context(cuda, options->depth, tokens) > mk_engine_max_seq(engine)) {
    return mk_error(MK_ERR_USAGE, "%u tokens from depth %u on do not fit into a context of %u; raise --ctx-size",
                    tokens, options->depth, mk_engine_max_seq(engine));
  }
  return MK_OK;
}

/* Token ids all over the vocabulary, so that the rows of the embedding are read as a text reads them. */
static mk_status make_prompt(mk_engine *engine, uint32_t count, uint32_t **out) {
  uint32_t vocab = mk_engine_config(engine)->vocab;
  MK_TRY(mk_alloc(count, sizeof **out, out));
  for (uint32_t i = 0; i < count; i++) {
    (*out)[i] = (uint32_t)(mk_synth_mix(i + 1) % vocab);
  }
  return MK_OK;
}

static mk_status measure(mk_engine *engine, const mk_bench_options *options, samples *s, mk_bench_result *out) {
  uint32_t *prompt = NULL;
  mk_status status = make_prompt(engine, options->depth + out->tokens, &prompt);
  if (status == MK_OK) {
    status = run_launches(engine, options, prompt, s, out);
  }
  mk_free(prompt);
  MK_TRY(status);
  summarise(s, out);
  if (mk_engine_gpu(engine) == NULL || options->no_bandwidth) {
    return MK_OK;
  }
  return mk_gpu_read_bandwidth(mk_engine_gpu(engine), 0, &out->bandwidth);
}

mk_status mk_bench_run(mk_engine *engine, const mk_bench_options *options, mk_bench_result *out) {
  *out = (mk_bench_result){.tokens = options->tokens == 0 ? DEFAULT_TOKENS : options->tokens,
                           .launches = options->launches == 0 ? DEFAULT_LAUNCHES : options->launches};
  MK_TRY(check_test(engine, options, out->tokens));
  samples s = {0};
  mk_status status = measure(engine, options, &s, out);
  mk_free(s.gaps);
  mk_free(s.launches);
  mk_free(s.firsts);
  MK_TRY(status);
  double position = options->depth + (out->tokens - 1) / 2.0;
  out->weight_bytes = mk_bench_weight_bytes(mk_engine_program(engine));
  out->kv_bytes = position * mk_bench_kv_bytes(mk_engine_program(engine));
  if (out->bandwidth > 0 && out->launch_ms_p50 > 0) {
    out->share = (out->weight_bytes + out->kv_bytes) / (out->launch_ms_p50 * 1e-3) / out->bandwidth;
  }
  return MK_OK;
}

static mk_status run_traced(mk_engine *engine, const mk_bench_options *options, mk_trace_window window,
                            const uint32_t *prompt, uint32_t tokens, mk_trace **out) {
  samples s = {0};
  double ms;
  if (window.first == MK_FIRST_GENERATED) { /* the CPU computes the context in the same launch */
    window.first = mk_engine_gpu(engine) != NULL || options->prompt ? 0 : options->depth;
  }
  mk_engine_trace(engine, &window);
  MK_TRY(mk_engine_gpu(engine) != NULL ? launch_on_gpu(engine, options, prompt, tokens, &s, &ms)
                                       : launch_on_cpu(engine, options, prompt, tokens, &s, &ms));
  return mk_engine_trace_take(engine, out);
}

mk_status mk_bench_trace(mk_engine *engine, const mk_bench_options *options, const mk_trace_window *window,
                         mk_trace **out) {
  uint32_t *prompt = NULL, tokens = options->tokens == 0 ? DEFAULT_TOKENS : options->tokens;
  *out = NULL;
  mk_status status = make_prompt(engine, options->depth + tokens, &prompt);
  if (status == MK_OK) {
    status = run_traced(engine, options, *window, prompt, tokens, out);
  }
  mk_free(prompt);
  return status;
}

/* Of hash values, which have been hash bytes so far, codes and scales as a quantised cache has them: as many halves of
 * pairs as there is room for. No code is a NaN, and no number larger than 1.75. Gives the bytes. */
static uint64_t make_halves(const mk_buffer *kv, uint8_t *piece) {
  const uint64_t bytes = mk_half_bytes(kv), codes = mk_half_codes(kv);
  const uint16_t scale = mk_float_to_bf16(0x1p-8f);
  uint64_t at = 0;
  for (; at + bytes <= KV_PIECE; at += bytes) {
    for (uint64_t i = 0; i < codes; i++) {
      piece[at + i] &= (piece[at + i] & 0x7f) == 0x7f ? 0xbf : 0xff;
    }
    for (uint64_t i = codes; i < bytes; i += sizeof scale) {
      memcpy(piece + at + i, &scale, sizeof scale);
    }
  }
  return at;
}

static mk_status fill_all(mk_gpu *gpu, const mk_program *program, uint8_t *piece) {
  uint64_t size = 0; /* of what is written again and again; all caches of a program are alike */
  for (size_t b = 0; b < program->buffer_count; b++) {
    const mk_buffer *buffer = &program->buffers[b];
    if (buffer->kind == MK_KIND_KV && size == 0) {
      size = mk_dtype_is_quantised(buffer->dtype) ? make_halves(buffer, piece) : KV_PIECE;
    }
    for (uint64_t at = 0; buffer->kind == MK_KIND_KV && at < buffer->bytes; at += size) {
      uint64_t rest = buffer->bytes - at;
      MK_TRY(mk_gpu_write(gpu, b, at, piece, rest < size ? rest : size));
    }
  }
  return MK_OK;
}

mk_status mk_bench_fill_kv(mk_engine *engine, uint64_t seed) {
  uint16_t *piece;
  if (mk_engine_gpu(engine) == NULL) {
    return MK_OK;
  }
  MK_TRY(mk_alloc(KV_PIECE, 1, &piece));
  mk_synth_fill(mk_synth_key(seed, "kv"), 0, KV_PIECE / sizeof *piece, 0.0f, 0x1p-15f, piece);
  mk_status status = fill_all(mk_engine_gpu(engine), mk_engine_program(engine), (uint8_t *)piece);
  mk_free(piece);
  return status;
}
