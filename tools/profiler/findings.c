/* See findings.h. */
#include "tools/profiler/findings.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/profiler/statistics.h"

static const double kLeastExcess = 0.5;        /* of the peers' work */
static const double kLeastShareOfStep = 0.003; /* of the time of a step */

/* An instruction's role, as it is compared. */
typedef struct candidate {
  mk_outlier outlier;
  uint32_t opcode, layer, pages;
  const char *value;
  double by_opcode; /* median of the peers */
} candidate;

/* A candidate in one step. */
typedef struct sample {
  uint32_t instruction, step;
  double work;
} sample;

static int by_instruction(const void *a, const void *b) {
  const sample *x = a, *y = b;
  if (x->instruction != y->instruction) {
    return x->instruction < y->instruction ? -1 : 1;
  }
  return (x->work > y->work) - (x->work < y->work);
}

static int by_opcode(const void *a, const void *b) {
  const candidate *x = a, *y = b;
  if (x->outlier.role != y->outlier.role) {
    return x->outlier.role < y->outlier.role ? -1 : 1;
  }
  if (x->opcode != y->opcode) {
    return x->opcode < y->opcode ? -1 : 1;
  }
  if (x->pages != y->pages) {
    return x->pages < y->pages ? -1 : 1;
  }
  return (x->outlier.work > y->outlier.work) - (x->outlier.work < y->outlier.work);
}

/* Whether both do the same amount of the same work. */
static bool are_alike(const candidate *x, const candidate *y) {
  return x->outlier.role == y->outlier.role && x->opcode == y->opcode && x->pages == y->pages;
}

static int by_stage(const void *a, const void *b) {
  const candidate *x = a, *y = b;
  if (are_alike(x, y) && x->layer != y->layer) {
    return x->layer < y->layer ? -1 : 1;
  }
  int order = are_alike(x, y) ? strcmp(x->value, y->value) : 0;
  return order != 0 ? order : by_opcode(a, b);
}

static double excess_of(const mk_outlier *o) { return (o->once ? o->worst : o->work) - o->peers; }

static int by_excess(const void *a, const void *b) {
  const mk_outlier *x = a, *y = b;
  if (x->once != y->once) {
    return x->once ? 1 : -1;
  }
  return (excess_of(x) < excess_of(y)) - (excess_of(x) > excess_of(y));
}

static size_t take_samples(const mk_profile *p, uint32_t role, sample *samples) {
  size_t count = 0;
  for (uint32_t sm = 0; sm < p->sms; sm++) {
    const mk_profile_track *track = mk_profile_track_of(p, sm, role);
    for (uint32_t i = 0; i < track->execution_count; i++) {
      const mk_execution *e = &track->executions[i];
      samples[count++] = (sample){.instruction = e->instruction,
                                  .step = e->step,
                                  .work = (double)mk_execution_time(track, e, MK_ACTIVITY_KIND_WORK) * 1e-3};
    }
  }
  qsort(samples, count, sizeof *samples, by_instruction);
  return count;
}

static mk_status collect(const mk_profile *p, candidate **out, size_t *count) {
  sample *samples;
  size_t executions = 0;
  for (size_t t = 0; t < (size_t)p->sms * MK_TRACE_ROLES; t++) {
    executions += p->tracks[t].execution_count;
  }
  *count = 0;
  MK_TRY(mk_alloc(executions, sizeof **out, out));
  mk_status status = mk_alloc(executions, sizeof *samples, &samples);
  if (status != MK_OK) {
    mk_free(*out);
    return status;
  }
  for (uint32_t role = 0; role < MK_ROLE_COUNT; role++) {
    size_t taken = take_samples(p, role, samples);
    for (size_t i = 0, end; i < taken; i = end) {
      const mk_instruction *in = &p->program->instructions[samples[i].instruction];
      for (end = i + 1; end < taken && samples[end].instruction == samples[i].instruction; end++) {
      }
      (*out)[(*count)++] = (candidate){.outlier = {.instruction = samples[i].instruction,
                                                   .role = role,
                                                   .work = samples[i + (end - i - 1) / 2].work,
                                                   .worst = samples[end - 1].work,
                                                   .worst_step = samples[end - 1].step},
                                       .opcode = in->opcode,
                                       .layer = in->layer,
                                       .pages = in->pages,
                                       .value = mk_value_name(p->program, samples[i].instruction)};
    }
  }
  mk_free(samples);
  return MK_OK;
}

/* Groups lie side by side, each sorted by work. */
static void set_medians(candidate *c, size_t count, bool stages) {
  for (size_t i = 0, end; i < count; i = end) {
    for (end = i + 1; end < count && are_alike(&c[end], &c[i]) &&
                      (!stages || (c[end].layer == c[i].layer && strcmp(c[end].value, c[i].value) == 0));
         end++) {
    }
    double median = c[i + (end - i - 1) / 2].outlier.work;
    for (size_t j = i; j < end; j++) {
      if (!stages) {
        c[j].by_opcode = median;
      } else { /* a stage of one or two has no peers of its own */
        c[j].outlier.peers = end - i > 2 ? fmax(median, c[j].by_opcode) : c[j].by_opcode;
      }
    }
  }
}

mk_status mk_outliers_find(const mk_profile *profile, mk_outlier **out, size_t *count) {
  candidate *c;
  size_t candidates;
  *count = 0;
  MK_TRY(collect(profile, &c, &candidates));
  mk_status status = mk_alloc(candidates, sizeof **out, out);
  if (status == MK_OK) {
    qsort(c, candidates, sizeof *c, by_opcode);
    set_medians(c, candidates, false);
    qsort(c, candidates, sizeof *c, by_stage);
    set_medians(c, candidates, true);
    for (size_t i = 0; i < candidates; i++) {
      mk_outlier *o = &c[i].outlier;
      double least = o->peers + fmax(kLeastExcess * o->peers, kLeastShareOfStep * profile->token_us);
      o->once = o->work <= least;
      if (o->worst > least) {
        (*out)[(*count)++] = *o;
      }
    }
    qsort(*out, *count, sizeof **out, by_excess);
  }
  mk_free(c);
  return status;
}

static int by_publisher(const void *a, const void *b) {
  const mk_long_wait *x = a, *y = b;
  if (x->publisher != y->publisher) {
    return x->publisher < y->publisher ? -1 : 1;
  }
  return (x->longest < y->longest) - (x->longest > y->longest);
}

static int by_longest(const void *a, const void *b) {
  const mk_long_wait *x = a, *y = b;
  if (x->longest != y->longest) {
    return x->longest > y->longest ? -1 : 1;
  }
  return by_publisher(a, b);
}

static mk_status collect_waits(const mk_edges *edges, const mk_profile *p, mk_long_wait **out, size_t *count) {
  size_t capacity = 0;
  for (size_t t = 0; t < (size_t)p->sms * MK_TRACE_ROLES; t++) {
    for (uint32_t i = 0; i < p->tracks[t].count; i++) {
      const mk_interval *in = &p->tracks[t].intervals[i];
      uint32_t role;
      const mk_execution *e =
          mk_activity_kind_of(in->activity) == MK_ACTIVITY_KIND_WAIT ? mk_edges_publisher(edges, in, &role) : NULL;
      if (e == NULL) {
        continue;
      }
      double time = (double)(in->end - in->start) * 1e-3;
      MK_TRY(mk_grow(out, &capacity, *count + 1, sizeof **out));
      (*out)[(*count)++] = (mk_long_wait){.publisher = e->instruction,
                                          .publisher_role = role,
                                          .published = (double)e->finish * 1e-3,
                                          .waits = 1,
                                          .longest = time,
                                          .total = time,
                                          .example = *in,
                                          .sm = (uint32_t)(t / MK_TRACE_ROLES),
                                          .role = t % MK_TRACE_ROLES};
    }
  }
  return MK_OK;
}

typedef struct hop {
  double us;
  uint32_t opcode, kind;
} hop;

static int by_hop(const void *a, const void *b) {
  const hop *x = a, *y = b;
  if (x->opcode != y->opcode) {
    return x->opcode < y->opcode ? -1 : 1;
  }
  if (x->kind != y->kind) {
    return x->kind < y->kind ? -1 : 1;
  }
  return (x->us > y->us) - (x->us < y->us);
}

/* Takes the hops of these waits, each twice: for its opcode, and for any. */
static size_t take_hops(const mk_profile *p, const mk_long_wait *waits, size_t count, hop *hops) {
  size_t kept = 0;
  for (size_t i = 0; i < count; i++) {
    const mk_long_wait *w = &waits[i];
    double ns = round((double)w->example.end - w->published * 1e3);
    if (w->published > (double)w->example.start * 1e-3 && ns >= -p->trace->alignment_ns) {
      bool remote = mk_queue_rank(p->program, w->sm) != mk_queue_rank(p->program, p->sm_of[w->publisher]);
      hop taken = {.us = ns * 1e-3, .kind = remote ? MK_HOP_REMOTE : MK_HOP_LOCAL};
      hops[kept++] = taken;
      taken.opcode = p->program->instructions[w->example.instruction].opcode;
      hops[kept++] = taken;
    }
  }
  qsort(hops, kept, sizeof *hops, by_hop);
  return kept;
}

/* `times`: room for as many. */
static mk_status group_hops(const hop *hops, size_t hop_count, double *times, mk_opcode_hops **out, size_t *count) {
  size_t capacity = 0;
  for (size_t i = 0, end; i < hop_count; i = end) {
    for (end = i; end < hop_count && hops[end].opcode == hops[i].opcode && hops[end].kind == hops[i].kind; end++) {
      times[end - i] = hops[end].us;
    }
    if (i == 0 || hops[i].opcode != hops[i - 1].opcode) {
      MK_TRY(mk_grow(out, &capacity, *count + 1, sizeof **out));
      (*out)[(*count)++] = (mk_opcode_hops){.opcode = hops[i].opcode};
    }
    (*out)[*count - 1].of[hops[i].kind] = (mk_hop_time){.count = end - i,
                                                        .p50 = mk_sorted_quantile(times, end - i, 0.5),
                                                        .p90 = mk_sorted_quantile(times, end - i, 0.9)};
  }
  return MK_OK;
}

static mk_status find_hops(const mk_profile *p, const mk_long_wait *waits, size_t wait_count, mk_opcode_hops **out,
                           size_t *count) {
  hop *hops;
  double *times;
  MK_TRY(mk_alloc(2 * wait_count, sizeof *hops, &hops));
  mk_status status = mk_alloc(2 * wait_count, sizeof *times, &times);
  if (status == MK_OK) {
    status = group_hops(hops, take_hops(p, waits, wait_count, hops), times, out, count);
    mk_free(times);
  }
  mk_free(hops);
  return status;
}

/* Makes one of all waits that an instruction ended. */
static size_t join_by_publisher(mk_long_wait *waits, size_t count) {
  size_t kept = 1;
  qsort(waits, count, sizeof *waits, by_publisher);
  for (size_t i = 1; i < count; i++) {
    mk_long_wait *last = &waits[kept - 1], *at = &waits[i];
    if (at->publisher == last->publisher) {
      last->waits++;
      last->total += at->total;
    } else {
      waits[kept++] = *at;
    }
  }
  qsort(waits, kept, sizeof *waits, by_longest);
  return kept;
}

mk_status mk_waits_find(const mk_edges *edges, const mk_profile *profile, mk_waits *out) {
  *out = (mk_waits){0};
  mk_status status = collect_waits(edges, profile, &out->longest, &out->count);
  if (status == MK_OK && out->count != 0) {
    status = find_hops(profile, out->longest, out->count, &out->hops, &out->hop_count);
  }
  if (status != MK_OK) {
    mk_waits_free(out);
  } else if (out->count != 0) {
    out->count = join_by_publisher(out->longest, out->count);
  }
  return status;
}

void mk_waits_free(mk_waits *waits) {
  mk_free(waits->longest);
  mk_free(waits->hops);
  *waits = (mk_waits){0};
}
