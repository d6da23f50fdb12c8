/* See bench_mla.h. */
#include "tools/mkvm/bench_mla.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler/compile.h"
#include "scheduler/mla_compile.h"
#include "tools/lib/mla.h"
#include "tools/mkvm/command.h"
#include "vm/gpu/machine.h"

enum { MOST_SEQUENCES = 65535, MOST_LENGTH = 65530 * MK_MLA_PAGE_TOKENS, TIMINGS = 101 };
static const double kMostError = 2.5e-3;
static const double kReferenceRows = 4e6; /* rows times tokens of the reference: some seconds */

typedef struct batch {
  uint32_t *lengths;
  size_t count, capacity;
  uint64_t tokens, pages;
  uint32_t shortest, longest;
} batch;

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

static int by_time(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return x < y ? -1 : x > y;
}

static double median(double *times) {
  qsort(times, TIMINGS, sizeof *times, by_time);
  return times[TIMINGS / 2];
}

static mk_status run_placement(mk_mla_session *s, mk_mla_placement placement, uint32_t stride) {
  double schedule[TIMINGS], check[TIMINGS];
  mk_mla_summary summary;
  for (uint32_t i = 0; i < TIMINGS; i++) {
    double start = mk_seconds();
    MK_TRY(mk_mla_schedule(s->scheduler, placement, s->lengths, s->sequences, s->work, &summary));
    double scheduled = mk_seconds();
    MK_TRY(mk_mla_check_list(s->checker, s->work, s->sequences));
    check[i] = mk_seconds() - scheduled;
    schedule[i] = scheduled - start;
  }
  MK_TRY(mk_mla_session_run(s));
  double error = mk_mla_session_error(s, stride);
  printf("| %-9s | %6u | %5u | %10u | %11.1f | %8.1f | %12.1f | %8.2e |\n",
         placement == MK_MLA_MAKESPAN ? "makespan" : "naive", summary.items, summary.slots, summary.reductions,
         median(schedule) * 1e6, median(check) * 1e6, (double)summary.makespan * 1e-3, error);
  MK_TRY(mk_print_done());
  return error <= kMostError
             ? MK_OK
             : mk_error(MK_ERR_DEVICE, "the output is off by %.2e of a row's size; at most %.1e is right", error,
                        kMostError);
}

static const char *plural(uint64_t count) { return count == 1 ? "" : "s"; }

static mk_status print_head(const mk_mla_session *s, const batch *b) {
  const mk_mla_geometry *g = &s->geometry;
  uint64_t blocks = (uint64_t)b->count * g->blocks;
  printf("%zu sequence%s of %u to %u tokens, %" PRIu64 " in all; %u new token%s, %u heads: %" PRIu64
         " block%s of %u query rows, %" PRIu64 " KV page%s (%.1f MB), for %u SM%s\n\n",
         b->count, plural(b->count), b->shortest, b->longest, b->tokens, s->shape.new_tokens,
         plural(s->shape.new_tokens), s->shape.heads, blocks, plural(blocks), g->rows, b->pages, plural(b->pages),
         (double)b->pages * MK_MLA_PAGE_TOKENS * MK_MLA_WIDTH * 2e-6, g->sms, plural(g->sms));
  printf(
      "| placement |  items | slots | reductions | schedule us | check us | simulated us |    error |\n"
      "| --------- | -----: | ----: | ---------: | ----------: | -------: | -----------: | -------: |\n");
  return mk_print_done();
}

static mk_status print_notes(uint32_t stride) {
  const mk_mla_costs *c = &mk_mla_default_costs;
  char rows[32] = "every row";
  if (stride != 1) {
    snprintf(rows, sizeof rows, "1 row in %u", stride);
  }
  printf(
      "\nschedule, check: medians on this host. error: the largest relative error (L2) of a row on the CPU machine, "
      "against double\n"
      "precision, looking at %s; everything that no sequence uses is NaN\n"
      "simulated: by estimated costs in ns: item %u, page %u, output row %u, slot row %u, reduction %u, unit %u\n",
      rows, c->item, c->page, c->out_row, c->slot_row, c->reduction, c->unit);
  return mk_print_done();
}

static mk_status run_session(mk_mla_session *s, const batch *b) {
  double row_tokens = (double)b->tokens * s->geometry.blocks * s->geometry.rows;
  uint32_t stride = row_tokens > kReferenceRows ? (uint32_t)ceil(row_tokens / kReferenceRows) | 1u : 1;
  MK_TRY(mk_mla_session_load(s, b->lengths, (uint32_t)b->count, 1));
  MK_TRY(print_head(s, b));
  MK_TRY(run_placement(s, MK_MLA_MAKESPAN, stride));
  MK_TRY(run_placement(s, MK_MLA_NAIVE, stride));
  return print_notes(stride);
}

/* What the GPU machine says of such a program. */
static mk_status run_cuda(const mk_mla_shape *shape, uint32_t sms) {
  mk_program *program;
  mk_gpu *gpu;
  MK_TRY(mk_mla_compile(shape, sms, &program));
  mk_status status = mk_gpu_new(program, &(mk_gpu_options){.device = 0}, &gpu);
  if (status == MK_OK) {
    mk_gpu_free(gpu);
    status = mk_error(MK_ERR_USAGE, "--mla runs on --device cpu");
  }
  mk_program_free(program);
  return status;
}

static mk_status run(const mk_bench_mla *o, const batch *b) {
  const mk_mla_shape shape = {.heads = o->heads == 0 ? 16 : o->heads,
                              .new_tokens = o->new_tokens == 0 ? 1 : o->new_tokens,
                              .max_sequences = (uint32_t)b->count,
                              .max_pages = mk_mla_pages_of(b->longest) + 1,
                              .pool_pages = (uint32_t)(b->pages + b->count),
                              .scale = 0.0721687836f}; /* 1 / sqrt(128 + 64) */
  uint32_t sms = o->sms == 0 ? MK_DEFAULT_SMS : o->sms;
  if (o->cuda) {
    return run_cuda(&shape, sms);
  }
  mk_mla_session *session;
  MK_TRY(mk_mla_session_new(&shape, sms, &(mk_cpu_options){.seed = 0}, &session));
  mk_status status = run_session(session, b);
  mk_mla_session_free(session);
  return status;
}

mk_status mk_bench_mla_run(const mk_bench_mla *options) {
  batch b = {0};
  mk_status status = read_lengths(options->lengths, &b);
  if (status == MK_OK) {
    status = run(options, &b);
  }
  mk_free(b.lengths);
  return status;
}
