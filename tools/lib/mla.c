/* See mla.h. */
#include "tools/lib/mla.h"

#include <math.h>
#include <string.h>

#include "instructions/reference.h"
#include "scheduler/mla_compile.h"
#include "vm/gpu/extra.h"
#include "vm/verify/verify.h"

enum { NOT_A_NUMBER = 0x7fc0 };

static uint16_t *memory_of(const mk_mla_session *s, uint16_t buffer) {
  return s->cpu != NULL ? mk_cpu_memory(s->cpu, buffer) : s->inputs[buffer];
}

/* Copies a buffer to the GPU, where there is one. */
static mk_status upload(const mk_mla_session *s, uint16_t buffer) {
  return s->gpu == NULL ? MK_OK : mk_gpu_write(s->gpu, buffer, 0, s->inputs[buffer], s->program->buffers[buffer].bytes);
}

static mk_status open_inputs(mk_mla_session *s, uint16_t buffer) {
  return mk_alloc(s->program->buffers[buffer].bytes, 1, &s->inputs[buffer]);
}

/* cpu or gpu is NULL. */
static mk_status open_session(mk_mla_session *s, uint32_t sms, const mk_cpu_options *cpu, const mk_gpu_options *gpu) {
  MK_TRY(mk_mla_compile(&s->shape, sms, &s->program));
  MK_TRY(mk_verify(s->program, NULL));
  (void)mk_mla_geometry_of(s->program, &s->geometry);
  MK_TRY(mk_mla_scheduler_new(s->program, NULL, &s->scheduler));
  MK_TRY(mk_mla_checker_new(s->program, &s->checker));
  MK_TRY(mk_alloc(s->shape.max_sequences, sizeof *s->lengths, &s->lengths));
  const mk_mla_geometry *g = &s->geometry;
  if (cpu != NULL) {
    MK_TRY(mk_cpu_new(s->program, cpu, &s->cpu));
  } else {
    const uint16_t buffers[] = {g->q, g->kv, g->sequence_buffer, g->work, g->out};
    MK_TRY(mk_gpu_new(s->program, gpu, &s->gpu));
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) {
      MK_TRY(open_inputs(s, buffers[i]));
    }
  }
  s->batch = (uint32_t *)memory_of(s, g->sequence_buffer);
  s->work = (uint32_t *)memory_of(s, g->work);
  return MK_OK;
}

static mk_status new_session(const mk_mla_shape *shape, uint32_t sms, const mk_cpu_options *cpu,
                             const mk_gpu_options *gpu, mk_mla_session **out) {
  mk_mla_session *s;
  *out = NULL;
  MK_TRY(mk_alloc(1, sizeof *s, &s));
  s->shape = *shape;
  mk_status status = open_session(s, sms, cpu, gpu);
  if (status != MK_OK) {
    mk_mla_session_free(s);
    return status;
  }
  *out = s;
  return MK_OK;
}

mk_status mk_mla_session_new(const mk_mla_shape *shape, uint32_t sms, const mk_cpu_options *options,
                             mk_mla_session **out) {
  return new_session(shape, sms, options, NULL, out);
}

mk_status mk_mla_session_new_gpu(const mk_mla_shape *shape, const mk_gpu_options *options, mk_mla_session **out) {
  mk_gpu_description about;
  *out = NULL;
  MK_TRY(mk_gpu_usable(options->device));
  MK_TRY(mk_gpu_describe(options->device, &about));
  return new_session(shape, (uint32_t)about.sms, NULL, options, out);
}

void mk_mla_session_free(mk_mla_session *s) {
  if (s == NULL) {
    return;
  }
  mk_cpu_free(s->cpu);
  mk_gpu_free(s->gpu);
  for (size_t i = 0; i < sizeof s->inputs / sizeof s->inputs[0]; i++) {
    mk_free(s->inputs[i]);
  }
  mk_mla_scheduler_free(s->scheduler);
  mk_mla_checker_free(s->checker);
  mk_free(s->lengths);
  mk_program_free(s->program);
  mk_free(s);
}

/* A bf16 in (-1, 1) that depends on its place alone. splitmix64, Steele, Lea, Flood 2014. */
static uint16_t hash_number(uint64_t seed, uint64_t place) {
  uint64_t z = seed + (place + 1) * 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  z ^= z >> 31;
  return mk_float_to_bf16((float)(int32_t)(z >> 40) * 0x1p-23f - 1.0f);
}

static uint32_t *sequence_row(const mk_mla_session *s, uint32_t q) {
  return s->batch + (size_t)q * (MK_MLA_SEQUENCE_HEAD + s->geometry.max_pages);
}

static uint16_t *token_at(const mk_mla_session *s, uint32_t q, uint32_t t) {
  uint32_t page = sequence_row(s, q)[MK_MLA_SEQUENCE_HEAD + t / MK_MLA_PAGE_TOKENS];
  size_t row = (size_t)page * MK_MLA_PAGE_TOKENS + t % MK_MLA_PAGE_TOKENS;
  return memory_of(s, s->geometry.kv) + row * MK_MLA_WIDTH;
}

static void fill_halves(uint16_t *to, uint64_t count, uint16_t bits) {
  for (uint64_t i = 0; i < count; i++) {
    to[i] = bits;
  }
}

/* Writes tokens [first, end) of a sequence. */
static void fill_tokens(const mk_mla_session *s, uint32_t q, uint32_t first, uint32_t end) {
  for (uint32_t t = first; t < end; t++) {
    uint16_t *row = token_at(s, q, t);
    for (uint32_t d = 0; d < MK_MLA_WIDTH; d++) {
      row[d] = hash_number(q + 1, (uint64_t)t * MK_MLA_WIDTH + d);
    }
  }
}

/* Page i of the batch, all sequences counted through: multiplication by a number without a factor in common scatters
 * them. */
static uint32_t scrambled(const mk_mla_session *s, uint64_t i) {
  uint32_t pool = s->geometry.pool_pages, by = pool * 5 / 8 | 1, a = by, b = pool;
  while (b != 0) { /* the greatest common divisor ends up in a */
    uint32_t rest = a % b;
    a = b;
    b = rest;
  }
  return (uint32_t)((a == 1 ? i * by : i) % pool);
}

static mk_status upload_batch(const mk_mla_session *s) {
  MK_TRY(upload(s, s->geometry.q));
  MK_TRY(upload(s, s->geometry.kv));
  return upload(s, s->geometry.sequence_buffer);
}

mk_status mk_mla_session_load(mk_mla_session *s, const uint32_t *lengths, uint32_t sequences, uint64_t seed) {
  const mk_mla_geometry *g = &s->geometry;
  uint64_t pages = 0;
  for (uint32_t q = 0; q < sequences && q < g->sequences; q++) {
    pages += mk_mla_pages_of(lengths[q]);
    if (mk_mla_pages_of(lengths[q]) > g->max_pages) {
      return mk_error(MK_ERR_USAGE, "sequence %u has %u tokens; the program takes %u", q, lengths[q],
                      g->max_pages * MK_MLA_PAGE_TOKENS);
    }
  }
  if (sequences > g->sequences || pages > g->pool_pages) {
    return mk_error(MK_ERR_USAGE, "a batch of %u sequences with %llu pages; the program takes %u with %u", sequences,
                    (unsigned long long)pages, g->sequences, g->pool_pages);
  }
  const mk_buffer *b = s->program->buffers;
  fill_halves(memory_of(s, g->kv), b[g->kv].bytes / 2, NOT_A_NUMBER);
  fill_halves(memory_of(s, g->q), b[g->q].bytes / 2, NOT_A_NUMBER);
  memset(s->batch, 0, b[g->sequence_buffer].bytes);
  s->sequences = sequences;
  uint64_t next = seed % g->pool_pages, query = (uint64_t)g->blocks * g->rows * MK_MLA_WIDTH;
  for (uint32_t q = 0; q < sequences; q++) {
    uint32_t *row = sequence_row(s, q);
    s->lengths[q] = row[0] = lengths[q];
    for (uint32_t p = 0; p < mk_mla_pages_of(lengths[q]); p++) {
      row[MK_MLA_SEQUENCE_HEAD + p] = scrambled(s, next++);
    }
    fill_tokens(s, q, 0, lengths[q]);
    for (uint64_t i = 0; i < query; i++) {
      memory_of(s, g->q)[q * query + i] = hash_number(seed + 1000003, q * query + i);
    }
  }
  return upload_batch(s);
}

/* Whether some sequence uses the page. */
static bool in_use(const mk_mla_session *s, uint32_t page) {
  for (uint32_t q = 0; q < s->sequences; q++) {
    const uint32_t *row = sequence_row(s, q);
    for (uint32_t p = 0; p < mk_mla_pages_of(row[0]); p++) {
      if (row[MK_MLA_SEQUENCE_HEAD + p] == page) {
        return true;
      }
    }
  }
  return false;
}

mk_status mk_mla_session_grow(mk_mla_session *s, uint32_t tokens) {
  uint32_t page = 0;
  for (uint32_t q = 0; q < s->sequences; q++) {
    uint32_t *row = sequence_row(s, q), old = row[0], pages = mk_mla_pages_of(old + tokens);
    for (uint32_t p = mk_mla_pages_of(old); p < pages; p++) {
      while (page < s->geometry.pool_pages && in_use(s, page)) {
        page++;
      }
      if (p >= s->geometry.max_pages || page == s->geometry.pool_pages) {
        return mk_error(MK_ERR_USAGE, "sequence %u grows to %u pages; there is no room", q, pages);
      }
      row[MK_MLA_SEQUENCE_HEAD + p] = page;
      row[0] = (p + 1) * MK_MLA_PAGE_TOKENS;
    }
    s->lengths[q] = row[0] = old + tokens;
    fill_tokens(s, q, old, old + tokens);
  }
  return upload_batch(s);
}

mk_status mk_mla_session_set_costs(mk_mla_session *s, const mk_mla_costs *costs) {
  mk_mla_scheduler *scheduler;
  MK_TRY(mk_mla_scheduler_new(s->program, costs, &scheduler));
  mk_mla_scheduler_free(s->scheduler);
  s->scheduler = scheduler;
  return MK_OK;
}

mk_status mk_mla_session_schedule(mk_mla_session *s, mk_mla_placement placement, mk_mla_summary *summary) {
  MK_TRY(mk_mla_schedule(s->scheduler, placement, s->lengths, s->sequences, s->work, summary));
  MK_TRY(mk_mla_check_list(s->checker, s->work, s->sequences));
  return upload(s, s->geometry.work);
}

mk_status mk_mla_session_run(mk_mla_session *s) {
  uint16_t out = s->geometry.out;
  MK_TRY(mk_mla_check_batch(s->checker, s->batch, s->sequences));
  MK_TRY(mk_mla_check_list(s->checker, s->work, s->sequences));
  uint64_t bytes = s->program->buffers[out].bytes;
  fill_halves(memory_of(s, out), bytes / 2, NOT_A_NUMBER);
  if (s->gpu == NULL) {
    return mk_cpu_run(s->cpu, 1);
  }
  MK_TRY(upload(s, out));
  MK_TRY(upload(s, s->geometry.work));
  MK_TRY(mk_gpu_run(s->gpu));
  return mk_gpu_read(s->gpu, out, 0, s->inputs[out], bytes);
}

mk_status mk_mla_session_record(mk_mla_session *s, mk_recording *recording) {
  const mk_recorded_launch launch = {.program = s->program, .cpu = s->cpu, .gpu = s->gpu, .steps = 1};
  bool records;
  MK_TRY(mk_recording_start(recording, &launch, &records));
  mk_status status = mk_mla_session_run(s);
  recording->steps++;
  return mk_recording_stop(recording, &launch, records, status);
}

/* Query row `row` of sequence q, all in double precision, by the definition: scores, their maximum, weights. */
static void reference_row(const mk_mla_session *s, uint32_t q, uint32_t row, double *scores, double *out) {
  uint32_t rows = s->geometry.blocks * s->geometry.rows, later = s->shape.new_tokens - 1 - row / s->shape.heads;
  uint32_t length = s->lengths[q], sees = length > later ? length - later : 0;
  const uint16_t *query = memory_of(s, s->geometry.q) + ((size_t)q * rows + row) * MK_MLA_WIDTH;
  double max = -INFINITY, total = 0, expanded[MK_MLA_WIDTH];
  for (uint32_t d = 0; d < MK_MLA_WIDTH; d++) {
    expanded[d] = (double)mk_bf16_to_float(query[d]);
  }
  for (uint32_t t = 0; t < sees; t++) {
    const uint16_t *key = token_at(s, q, t);
    double sums[8] = {0}, sum = 0;
    for (uint32_t d = 0; d < MK_MLA_WIDTH; d += 8) {
      for (uint32_t i = 0; i < 8; i++) {
        sums[i] += expanded[d + i] * (double)mk_bf16_to_float(key[d + i]);
      }
    }
    for (uint32_t i = 0; i < 8; i++) {
      sum += sums[i];
    }
    scores[t] = sum * (double)s->shape.scale;
    max = scores[t] > max ? scores[t] : max;
  }
  memset(out, 0, MK_MLA_LATENT * sizeof *out);
  for (uint32_t t = 0; t < sees; t++) {
    const uint16_t *value = token_at(s, q, t);
    double p = exp(scores[t] - max);
    total += p;
    for (uint32_t d = 0; d < MK_MLA_LATENT; d++) {
      out[d] += p * (double)mk_bf16_to_float(value[d]);
    }
  }
  for (uint32_t d = 0; d < MK_MLA_LATENT && total != 0; d++) {
    out[d] /= total;
  }
}

typedef struct error_sums {
  double difference, size; /* of all rows, squared */
  double worst;
} error_sums;

static void add_row_error(const uint16_t *have, const double *want, error_sums *sums) {
  double difference = 0, size = 0;
  for (uint32_t d = 0; d < MK_MLA_LATENT; d++) {
    double x = (double)mk_bf16_to_float(have[d]) - want[d];
    difference += x * x;
    size += want[d] * want[d];
  }
  double error = size == 0 && difference == 0 ? 0 : sqrt(difference / size);
  error = isfinite(error) ? error : (double)INFINITY;
  sums->worst = error > sums->worst ? error : sums->worst;
  sums->difference += difference;
  sums->size += size;
}

static mk_status sum_errors(const mk_mla_session *s, uint32_t stride, error_sums *sums) {
  uint32_t rows = s->geometry.blocks * s->geometry.rows, longest = 1;
  double want[MK_MLA_LATENT], *scores;
  *sums = (error_sums){0};
  for (uint32_t q = 0; q < s->sequences; q++) {
    longest = s->lengths[q] > longest ? s->lengths[q] : longest;
  }
  MK_TRY(mk_alloc(longest, sizeof *scores, &scores));
  for (uint32_t i = 0; i < s->sequences * rows; i += stride) {
    reference_row(s, i / rows, i % rows, scores, want);
    add_row_error(memory_of(s, s->geometry.out) + (size_t)i * MK_MLA_LATENT, want, sums);
  }
  mk_free(scores);
  return MK_OK;
}

void mk_mla_session_errors(const mk_mla_session *s, uint32_t stride, double *whole, double *worst) {
  error_sums sums;
  *whole = *worst = (double)INFINITY;
  if (sum_errors(s, stride, &sums) == MK_OK) {
    *worst = sums.worst;
    *whole = !isfinite(sums.worst) ? (double)INFINITY : sums.size == 0 ? 0 : sqrt(sums.difference / sums.size);
  }
}

double mk_mla_session_error(const mk_mla_session *s, uint32_t stride) {
  double whole, worst;
  mk_mla_session_errors(s, stride, &whole, &worst);
  return worst;
}

const uint16_t *mk_mla_session_output(const mk_mla_session *s, size_t *bytes) {
  *bytes = (size_t)s->sequences * s->geometry.blocks * s->geometry.rows * MK_MLA_LATENT * sizeof(uint16_t);
  return memory_of(s, s->geometry.out);
}
