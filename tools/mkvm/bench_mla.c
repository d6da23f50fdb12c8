/* See bench_mla.h. */
#include "tools/mkvm/bench_mla.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/compile.h"
#include "scheduler/mla_compile.h"
#include "tools/lib/quantile.h"
#include "tools/mkvm/bench_mla_table.h"
#include "tools/mkvm/command.h"
#include "vm/gpu/machine.h"

enum {
  MOST_SEQUENCES = 65535,
  MOST_LENGTH = 65530 * MK_MLA_PAGE_TOKENS,
  TIMINGS = 101,
  BURSTS = 3,
};
static const double kMostError = 2.5e-3;
/* Rows times tokens of the reference. */
static const double kReferenceRows = 4e6, kGpuReferenceRows = 4e5, kSweepRows = 1e5;

typedef struct batch {
  uint32_t *lengths;
  size_t count, capacity;
  uint64_t tokens, pages;
  uint32_t shortest, longest;
} batch;

typedef struct mla_job {
  const mk_bench_mla *options;
  const mk_mla_costs *costs;
} mla_job;

static mk_status add(batch *b, uint64_t length) {
  if (length > MOST_LENGTH || b->count == MOST_SEQUENCES) {
    return mk_error(MK_ERR_USAGE, "--mla: sequence %zu of %" PRIu64 " tokens; at most %d sequences of %d tokens",
                    b->count, length, MOST_SEQUENCES, MOST_LENGTH);
  }
  MK_TRY(mk_grow(&b->lengths, &b->capacity, b->count + 1, sizeof *b->lengths));
  b->lengths[b->count++] = (uint32_t)length;
  b->tokens += length;
  b->pages += mk_mla_pages_of((uint32_t)length);
  b->shortest = length < b->shortest || b->count == 1 ? (uint32_t)length : b->shortest;
  b->longest = length > b->longest ? (uint32_t)length : b->longest;
  return MK_OK;
}

static mk_status not_lengths(const char *text) {
  return mk_error(MK_ERR_USAGE,
                  "--mla: '%s' are no lengths; give numbers after commas, 64x512, or random:COUNT:LOW:HIGH:SEED", text);
}

/* Numbers with the separators between them, to the end of the part; false: something else. */
static bool read_numbers(const char *text, size_t length, char separator, uint64_t *out, size_t count) {
  const char *end = text + length;
  for (size_t i = 0; i < count; i++) {
    char *after;
    if (*text < '0' || *text > '9') {
      return false;
    }
    out[i] = strtoull(text, &after, 10);
    text = after;
    if (i + 1 < count && *text++ != separator) {
      return false;
    }
  }
  return text == end;
}

static mk_status add_part(batch *b, const char *whole, const char *text, size_t length) {
  static const char word[] = "random:";
  uint64_t n[4], count = 1, low, span = 1, state = 0;
  if (length > strlen(word) && strncmp(text, word, strlen(word)) == 0) {
    if (!read_numbers(text + strlen(word), length - strlen(word), ':', n, 4) || n[1] > n[2] || n[2] > MOST_LENGTH) {
      return not_lengths(whole);
    }
    count = n[0], low = n[1], span = n[2] - n[1] + 1, state = n[3];
  } else if (read_numbers(text, length, 'x', n, 2)) {
    count = n[0], low = n[1];
  } else if (read_numbers(text, length, 0, n, 1)) {
    low = n[0];
  } else {
    return not_lengths(whole);
  }
  for (uint64_t i = 0; i < count; i++) { /* splitmix64 */
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    MK_TRY(add(b, low + (z >> 33) * span / ((uint64_t)1 << 31)));
  }
  return MK_OK;
}

static mk_status read_lengths(const char *text, batch *b) {
  for (const char *at = text;; at++) {
    size_t length = strcspn(at, ",");
    MK_TRY(add_part(b, text, at, length));
    at += length;
    if (*at == '\0') {
      return b->count != 0 ? MK_OK : not_lengths(text);
    }
  }
}

static mk_status measure_times(const mk_mla_session *s, bool each, mk_mla_time *times) {
  MK_TRY(mk_mla_session_time(s, MK_MLA_WARM, BURSTS, &times[MK_MLA_WARM]));
  for (int timing = MK_MLA_ALONE; each && timing < MK_MLA_TIMINGS; timing++) {
    MK_TRY(mk_mla_session_time(s, (mk_mla_timing)timing, 1, &times[timing]));
  }
  return mk_mla_session_time(s, MK_MLA_SUSTAINED, 1, &times[MK_MLA_SUSTAINED]);
}

/* Measures a placement: `row` has the batch, and gets the rest. */
static mk_status run_placement(mk_mla_session *s, const mk_bench_mla_about *about, uint32_t stride, bool first,
                               mk_bench_mla_row *row) {
  double schedule[TIMINGS], check[TIMINGS];
  for (uint32_t i = 0; i < TIMINGS; i++) {
    double start = mk_seconds();
    MK_TRY(mk_mla_schedule(s->scheduler, row->placement, s->lengths, s->sequences, s->work, &row->summary));
    double scheduled = mk_seconds();
    MK_TRY(mk_mla_check_list(s->checker, s->work, s->sequences));
    check[i] = mk_seconds() - scheduled;
    schedule[i] = scheduled - start;
  }
  row->schedule_us = mk_quantile(schedule, TIMINGS, 0.5) * 1e6;
  row->check_us = mk_quantile(check, TIMINGS, 0.5) * 1e6;
  MK_TRY(mk_mla_session_run(s));
  mk_mla_session_errors(s, stride, &row->error, &row->row_error);
  if (about->gpu) {
    MK_TRY(measure_times(s, about->each, row->times));
  }
  MK_TRY(mk_bench_mla_put(about, row, first));
  return row->error <= kMostError
             ? MK_OK
             : mk_error(MK_ERR_DEVICE, "the output is off by %.2e of its size; at most %.1e is right", row->error,
                        kMostError);
}

static const char *plural(uint64_t count) { return count == 1 ? "" : "s"; }

static void print_batch(const mk_mla_session *s, const batch *b) {
  const mk_mla_geometry *g = &s->geometry;
  uint64_t blocks = (uint64_t)b->count * g->blocks;
  printf("%zu sequence%s of %u to %u tokens, %" PRIu64 " in all; %u new token%s, %u heads: %" PRIu64
         " block%s of %u query rows, %" PRIu64 " KV page%s (%.1f MB), for %u SM%s\n\n",
         b->count, plural(b->count), b->shortest, b->longest, b->tokens, s->shape.new_tokens,
         plural(s->shape.new_tokens), s->shape.heads, blocks, plural(blocks), g->rows, b->pages, plural(b->pages),
         (double)b->pages * MK_MLA_PAGE_TOKENS * MK_MLA_WIDTH * 2e-6, g->sms, plural(g->sms));
}

static mk_status print_notes(const mk_bench_mla_about *about, const mk_mla_costs *c, uint32_t stride,
                             const mk_bench_mla_row *row) {
  char rows[32] = "every row";
  if (stride != 1) {
    snprintf(rows, sizeof rows, "1 row in %u", stride);
  }
  printf(
      "\nschedule, check: medians on this host. error: the relative error (L2) of the output%s against double "
      "precision, looking at\n"
      "%s; of row: of the worst one; everything that no sequence uses is NaN\n"
      "simulated: by these costs in ns: item %u, page %u, output row %u, slot row %u, reduction %u, unit %u\n",
      about->gpu ? "" : " on the CPU machine", rows, c->item, c->page, c->out_row, c->slot_row, c->reduction, c->unit);
  if (about->gpu) {
    printf(
        "us warm: launches in a row, each of which begins on SMs that are done with the one before it, launch "
        "and reduction\n"
        "included, scheduling not: groups of 20 in the first 20 ms after half a second of idleness, the median of %d "
        "such times;\n"
        "sustained: after 150 ms of launches; MHz: the SMs' clock meanwhile; TFLOP/s, GB/s, %% floor: of warm; floor: "
        "the time for the bytes\n"
        "at 4.67 TB/s or for the arithmetic at 790 TFLOP/s\n",
        BURSTS);
  }
  if (about->each) {
    printf(
        "alone: one launch between events; flushed: with an L2 that was read full of other data; written: that was "
        "written full of it,\n"
        "which has to be written back meanwhile; a kernel with nothing to do takes %.1f us so\n",
        row->times[MK_MLA_EMPTY].us);
  }
  return mk_print_done();
}

static mk_mla_shape shape_of(const batch *b, uint32_t heads, uint32_t new_tokens) {
  return (mk_mla_shape){.heads = heads == 0 ? 16 : heads,
                        .new_tokens = new_tokens == 0 ? 1 : new_tokens,
                        .max_sequences = (uint32_t)b->count,
                        .max_pages = mk_mla_pages_of(b->longest) + 1,
                        .pool_pages = (uint32_t)(b->pages + b->count),
                        .scale = 0.0721687836f}; /* 1 / sqrt(128 + 64) */
}

static uint32_t stride_for(const batch *b, const mk_mla_session *s, double most) {
  double row_tokens = (double)b->tokens * s->geometry.blocks * s->geometry.rows;
  return row_tokens > most ? (uint32_t)ceil(row_tokens / most) | 1u : 1;
}

static mk_bench_mla_about about_of(const mk_bench_mla *o, const mk_mla_session *s) {
  return (mk_bench_mla_about){.format = o->format,
                              .gpu = s->gpu != NULL,
                              .each = s->gpu != NULL && o->flush,
                              .index = o->device,
                              .sms = s->geometry.sms};
}

static mk_bench_mla_row row_of(const mk_mla_session *s, const batch *b, const char *lengths,
                               mk_mla_placement placement) {
  return (mk_bench_mla_row){.lengths = lengths,
                            .sequences = (uint32_t)b->count,
                            .new_tokens = s->shape.new_tokens,
                            .heads = s->shape.heads,
                            .tokens = b->tokens,
                            .placement = placement,
                            .floor = mk_mla_session_floor(s)};
}

/* Records a launch of the list by makespans where that is asked for: before all else, as a GPU may refuse it. */
static mk_status trace_session(mk_mla_session *s, const mk_trace_option *trace) {
  mk_recording recording = {.window = mk_trace_option_window(trace)};
  if (trace->path == NULL) {
    return MK_OK;
  }
  MK_TRY(mk_mla_session_schedule(s, MK_MLA_MAKESPAN, NULL));
  mk_status status = mk_mla_session_record(s, &recording);
  status = status == MK_OK ? mk_trace_option_end_recording(trace, &recording, s->program) : status;
  mk_recording_reset(&recording, NULL);
  return status;
}

static mk_status run_session(mk_mla_session *s, const mla_job *job, const batch *b) {
  const mk_bench_mla *o = job->options;
  const mk_bench_mla_about about = about_of(o, s);
  uint32_t stride = stride_for(b, s, about.gpu ? kGpuReferenceRows : kReferenceRows);
  MK_TRY(mk_mla_session_set_costs(s, job->costs));
  MK_TRY(mk_mla_session_load(s, b->lengths, (uint32_t)b->count, 1));
  MK_TRY(trace_session(s, o->trace));
  if (o->format == MK_BENCH_MD) {
    print_batch(s, b);
  }
  MK_TRY(mk_bench_mla_begin(&about));
  mk_bench_mla_row best = row_of(s, b, o->lengths, MK_MLA_MAKESPAN), naive = row_of(s, b, o->lengths, MK_MLA_NAIVE);
  MK_TRY(run_placement(s, &about, stride, true, &best));
  MK_TRY(run_placement(s, &about, stride, false, &naive));
  return o->format == MK_BENCH_MD ? print_notes(&about, job->costs, stride, &best) : mk_bench_mla_end(&about);
}

static mk_status run(const mla_job *job, const batch *b) {
  const mk_bench_mla *o = job->options;
  const mk_mla_shape shape = shape_of(b, o->heads, o->new_tokens);
  uint32_t sms = o->sms == 0 ? MK_DEFAULT_SMS : o->sms;
  mk_mla_session *session;
  MK_TRY(o->cuda ? mk_mla_session_new_gpu(&shape, &(mk_gpu_options){.device = o->device}, &session)
                 : mk_mla_session_new(&shape, sms, &(mk_cpu_options){.seed = 0}, &session));
  mk_status status = run_session(session, job, b);
  mk_mla_session_free(session);
  return status;
}

static mk_status sweep_session(mk_mla_session *s, const mla_job *job, const batch *b, const char *lengths, bool first) {
  const mk_bench_mla_about about = about_of(job->options, s);
  MK_TRY(mk_mla_session_set_costs(s, job->costs));
  MK_TRY(mk_mla_session_load(s, b->lengths, (uint32_t)b->count, 1));
  mk_bench_mla_row row = row_of(s, b, lengths, MK_MLA_MAKESPAN);
  MK_TRY(mk_mla_session_schedule(s, row.placement, &row.summary));
  MK_TRY(mk_mla_session_run(s));
  mk_mla_session_errors(s, stride_for(b, s, kSweepRows), &row.error, &row.row_error);
  MK_TRY(mk_mla_session_time(s, MK_MLA_WARM, 0, &row.times[MK_MLA_WARM])); /* the host took long before this */
  MK_TRY(mk_bench_mla_put_sweep(&about, &row, first));
  return row.error <= kMostError
             ? MK_OK
             : mk_error(MK_ERR_DEVICE, "%s: the output is off by %.2e of its size; at most %.1e is right", lengths,
                        row.error, kMostError);
}

static mk_status sweep_batch(const mla_job *job, const char *lengths, const batch *b, uint32_t heads,
                             uint32_t new_tokens, bool first) {
  const mk_mla_shape shape = shape_of(b, heads, new_tokens);
  mk_mla_session *session;
  MK_TRY(mk_mla_session_new_gpu(&shape, &(mk_gpu_options){.device = job->options->device}, &session));
  mk_status status = sweep_session(session, job, b, lengths, first);
  mk_mla_session_free(session);
  return status;
}

/* Measures batches of short and of long sequences, of few and of many, even and uneven. */
static mk_status sweep_all(const mla_job *job) {
  static const char *const batches[] = {"1",       "1000",    "8192",    "65536",   "4x1000",
                                        "8x4096",  "32x1024", "132x512", "200x100", "random:48:16:2048:3",
                                        "3,20000", "64x1000"};
  static const struct { uint32_t heads, new_tokens; } shapes[] = {{16, 1}, {16, 4}, {128, 1}};
  const mk_bench_mla_about about = {.format = job->options->format};
  MK_TRY(mk_bench_mla_begin_sweep(&about));
  for (size_t i = 0; i < sizeof batches / sizeof batches[0]; i++) {
    for (size_t j = 0; j < sizeof shapes / sizeof shapes[0]; j++) {
      batch b = {0};
      mk_status status = read_lengths(batches[i], &b);
      if (status == MK_OK) {
        status = sweep_batch(job, batches[i], &b, shapes[j].heads, shapes[j].new_tokens, i + j == 0);
      }
      mk_free(b.lengths);
      MK_TRY(status);
    }
  }
  return mk_bench_mla_end(&about);
}

static mk_status sweep(const mla_job *job) {
  /* It keeps the GPU's context, which takes longer to make than most batches. */
  const mk_mla_shape smallest = {
      .heads = 8, .new_tokens = 1, .max_sequences = 1, .max_pages = 1, .pool_pages = 1, .scale = 1.0f};
  mk_mla_session *keeper;
  MK_TRY(mk_mla_session_new_gpu(&smallest, &(mk_gpu_options){.device = job->options->device}, &keeper));
  mk_status status = sweep_all(job);
  mk_mla_session_free(keeper);
  return status;
}

static void say_batches(uint32_t done, uint32_t total) { mk_progress("timing lists", done, total); }

static mk_status measure(const mk_bench_mla *o) {
  mk_mla_costs costs;
  MK_TRY(mk_mla_measure_costs(&(mk_gpu_options){.device = o->device}, say_batches, &costs));
  return mk_bench_mla_put_costs(&(mk_bench_mla_about){.format = o->format, .gpu = true, .index = o->device}, &costs);
}

static mk_status read_costs(const char *text, mk_mla_costs *out) {
  uint64_t n[6];
  *out = mk_mla_default_costs;
  if (text == NULL) {
    return MK_OK;
  }
  bool good = read_numbers(text, strlen(text), ',', n, 6) && n[1] != 0;
  for (size_t i = 0; good && i < 6; i++) {
    good = n[i] <= 1000000000;
  }
  if (!good) {
    return mk_error(MK_ERR_USAGE, "--costs: '%s' are no costs; give six as --mla-costs prints them", text);
  }
  *out = (mk_mla_costs){(uint32_t)n[0], (uint32_t)n[1], (uint32_t)n[2], (uint32_t)n[3], (uint32_t)n[4], (uint32_t)n[5]};
  return MK_OK;
}

mk_status mk_bench_mla_run(const mk_bench_mla *o) {
  mk_mla_costs costs;
  MK_TRY(read_costs(o->costs, &costs));
  if (o->measure) {
    return measure(o);
  }
  const mla_job job = {o, &costs};
  if (o->sweep) {
    return sweep(&job);
  }
  batch b = {0};
  mk_status status = read_lengths(o->lengths, &b);
  if (status == MK_OK) {
    status = run(&job, &b);
  }
  mk_free(b.lengths);
  return status;
}
