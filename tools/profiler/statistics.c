/* See statistics.h. */
#include "tools/profiler/statistics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

double mk_sorted_quantile(const double *values, size_t count, double part) {
  size_t index = (size_t)ceil(part * (double)count);
  return count == 0 ? 0 : values[index == 0 ? 0 : index - 1];
}

static void add_activities(const mk_profile *p, mk_statistics *s) {
  for (uint32_t role = 0; role < MK_TRACE_ROLES; role++) {
    uint32_t sms = 0;
    for (uint32_t sm = 0; sm < p->sms; sm++) {
      const mk_profile_track *track = mk_profile_track_of(p, sm, role);
      sms += track->count != 0;
      for (uint32_t i = 0; i < track->count; i++) {
        const mk_interval *in = &track->intervals[i];
        s->by_activity[role][in->activity] += (double)(in->end - in->start) * 1e-3;
      }
    }
    for (uint32_t a = 0; a < MK_ACTIVITY_COUNT && sms != 0 && p->steps != 0; a++) {
      s->by_activity[role][a] /= (double)sms * p->steps;
    }
  }
}

static void add_bytes(const mk_profile *p, mk_statistics *s) {
  uint32_t sms = 0;
  for (uint32_t i = 0; i < p->program->instruction_count; i++) {
    for (uint32_t step = 0; step < 2 && p->steps != 0; step++) { /* KV grows evenly: the first step and the last */
      double bytes = mk_profile_bytes(p, i, step * (p->steps - 1)) / 2;
      s->opcode_bytes[p->program->instructions[i].opcode] += bytes;
      s->bytes += bytes;
    }
  }
  for (uint32_t sm = 0; sm < p->sms; sm++) {
    sms += mk_profile_track_of(p, sm, MK_ROLE_CONSUMER)->count != 0;
  }
  sms = p->serial ? 1 : sms;
  for (size_t i = 0; i < s->opcode_count && sms != 0; i++) {
    const mk_opcode_time *o = &s->opcodes[i];
    if (o->role == MK_ROLE_CONSUMER) {
      s->opcode_us[o->opcode] = o->total / sms / p->steps;
    }
  }
}

static void add_execution(const mk_profile_track *track, const mk_execution *e, mk_opcode_time *o, double *duration) {
  *duration = 0;
  for (uint32_t i = e->first; i < e->end; i++) {
    const mk_interval *in = &track->intervals[i];
    if (in->activity != MK_ACTIVITY_BOUNDARY) {
      double us = (double)(in->end - in->start) * 1e-3;
      o->by_kind[mk_activity_kind_of(in->activity)] += us;
      *duration += us;
    }
  }
  o->count++;
  o->total += *duration;
}

/* Adds one opcode of one role; `durations` has room for all executions of the trace. */
static void add_opcode(const mk_profile *p, uint32_t opcode, uint32_t role, double *durations, mk_statistics *s) {
  mk_opcode_time o = {.opcode = opcode, .role = role};
  for (uint32_t sm = 0; sm < p->sms; sm++) {
    const mk_profile_track *track = mk_profile_track_of(p, sm, role);
    for (uint32_t i = 0; i < track->execution_count; i++) {
      if (p->program->instructions[track->executions[i].instruction].opcode == opcode) {
        add_execution(track, &track->executions[i], &o, &durations[o.count]);
      }
    }
  }
  if (o.count == 0) {
    return;
  }
  qsort(durations, o.count, sizeof *durations, by_value);
  o.p50 = mk_sorted_quantile(durations, o.count, 0.5);
  o.p99 = mk_sorted_quantile(durations, o.count, 0.99);
  s->opcodes[s->opcode_count++] = o;
}

static mk_status add_opcodes(const mk_profile *p, mk_statistics *s) {
  double *durations;
  size_t executions = 0;
  for (size_t t = 0; t < (size_t)p->sms * MK_TRACE_ROLES; t++) {
    executions += p->tracks[t].execution_count;
  }
  MK_TRY(mk_alloc((size_t)MK_OP_COUNT * MK_TRACE_ROLES, sizeof *s->opcodes, &s->opcodes));
  MK_TRY(mk_alloc(executions, sizeof *durations, &durations));
  for (uint32_t opcode = 1; opcode < MK_OP_COUNT; opcode++) {
    for (uint32_t role = 0; role < MK_TRACE_ROLES; role++) {
      add_opcode(p, opcode, role, durations, s);
    }
  }
  mk_free(durations);
  return MK_OK;
}

/* An execution as its stage sees it. The consumer's start, once it waits for no other SM, is the part's start, the
 * storer's finish its end; a loader only waits. */
typedef struct part {
  uint32_t opcode, layer, step, role;
  const char *value;
  double start, finish, ring_empty, ring_full, bytes;
} part;

static int by_stage(const void *a, const void *b) {
  const part *x = a, *y = b;
  if (x->opcode != y->opcode) {
    return x->opcode < y->opcode ? -1 : 1;
  }
  if (x->layer != y->layer) {
    return x->layer < y->layer ? -1 : 1;
  }
  return strcmp(x->value, y->value);
}

static int by_stage_and_step(const void *a, const void *b) {
  const part *x = a, *y = b;
  int order = by_stage(a, b);
  return order != 0 ? order : (x->step > y->step) - (x->step < y->step);
}

static part part_of(const mk_profile *p, const mk_profile_track *track, const mk_execution *e, uint32_t role) {
  const mk_instruction *in = &p->program->instructions[e->instruction];
  part made = {.opcode = in->opcode,
               .layer = in->layer,
               .step = e->step,
               .role = role,
               .value = mk_value_name(p->program, e->instruction),
               .start = (double)e->start * 1e-3,
               .finish = (double)e->finish * 1e-3};
  for (uint32_t i = e->first; i < e->end; i++) {
    const mk_interval *at = &track->intervals[i];
    made.start = mk_activity_kind_of(at->activity) == MK_ACTIVITY_KIND_WAIT ? (double)at->end * 1e-3 : made.start;
  }
  if (role == MK_ROLE_CONSUMER) {
    made.ring_empty = (double)mk_execution_time(track, e, MK_ACTIVITY_KIND_FEED) * 1e-3;
    made.bytes = mk_profile_bytes(p, e->instruction, e->step);
  } else if (role == MK_ROLE_LOADER) {
    made.ring_full = (double)mk_execution_time(track, e, MK_ACTIVITY_KIND_RING) * 1e-3;
  }
  return made;
}

/* Adds what the parts of one stage in one step say; they lie side by side. */
static void add_step(const part *parts, size_t count, const double *boundaries, mk_stage_time *stage) {
  double first_start = INFINITY, last_start = 0, first_finish = INFINITY, last_finish = 0;
  uint32_t consumers = 0;
  bool stores = false; /* a storer publishes; greedy runs of the CPU machine have none */
  for (size_t i = 0; i < count; i++) {
    stores |= parts[i].role == MK_ROLE_STORER && mk_publishing_role(parts[i].opcode) == MK_ROLE_STORER;
  }
  for (size_t i = 0; i < count; i++) {
    const part *at = &parts[i];
    stage->ring_empty += at->ring_empty;
    stage->ring_full += at->ring_full;
    stage->bytes += at->bytes;
    if (at->role == MK_ROLE_CONSUMER) {
      consumers++;
      first_start = fmin(first_start, at->start);
      last_start = fmax(last_start, at->start);
      last_finish = fmax(last_finish, at->finish);
    }
    if (at->role == (stores ? MK_ROLE_STORER : MK_ROLE_CONSUMER)) {
      first_finish = fmin(first_finish, at->finish);
      last_finish = fmax(last_finish, at->finish);
    }
  }
  if (consumers == 0) {
    return;
  }
  stage->parts = consumers > stage->parts ? consumers : stage->parts;
  stage->begin += first_start - boundaries[parts[0].step];
  stage->length += last_finish - first_start;
  stage->start_skew += last_start - first_start;
  stage->end_skew += last_finish - fmin(first_finish, last_finish);
}

static void divide(mk_stage_time *stage, double steps) {
  stage->begin /= steps;
  stage->length /= steps;
  stage->start_skew /= steps;
  stage->end_skew /= steps;
  stage->ring_empty /= steps * (stage->parts == 0 ? 1 : stage->parts);
  stage->ring_full /= steps * (stage->parts == 0 ? 1 : stage->parts);
  stage->bytes /= steps;
}

static int by_begin(const void *a, const void *b) {
  double x = ((const mk_stage_time *)a)->begin, y = ((const mk_stage_time *)b)->begin;
  return (x > y) - (x < y);
}

static mk_status make_stages(part *parts, size_t count, const double *boundaries, mk_statistics *s) {
  size_t capacity = 0, steps = 0;
  if (count == 0) {
    return MK_OK;
  }
  qsort(parts, count, sizeof *parts, by_stage_and_step);
  for (size_t i = 0, next; i < count; i = next) {
    if (i == 0 || by_stage(&parts[i], &parts[i - 1]) != 0) {
      if (s->stage_count != 0) {
        divide(&s->stages[s->stage_count - 1], (double)steps);
      }
      MK_TRY(mk_grow(&s->stages, &capacity, s->stage_count + 1, sizeof *s->stages));
      s->stages[s->stage_count] = (mk_stage_time){.opcode = parts[i].opcode, .layer = parts[i].layer};
      snprintf(s->stages[s->stage_count].value, sizeof s->stages->value, "%s", parts[i].value);
      s->stage_count++;
      steps = 0;
    }
    for (next = i + 1; next < count && by_stage_and_step(&parts[i], &parts[next]) == 0; next++) {
    }
    add_step(&parts[i], next - i, boundaries, &s->stages[s->stage_count - 1]);
    steps++;
  }
  divide(&s->stages[s->stage_count - 1], (double)steps);
  qsort(s->stages, s->stage_count, sizeof *s->stages, by_begin);
  return MK_OK;
}

/* When the first consumer begins each step. */
static mk_status find_boundaries(const mk_profile *p, double **out) {
  MK_TRY(mk_alloc(p->steps + (size_t)1, sizeof **out, out));
  for (uint32_t step = 0; step <= p->steps; step++) {
    (*out)[step] = INFINITY;
  }
  for (uint32_t sm = 0; sm < p->sms; sm++) {
    const mk_profile_track *track = mk_profile_track_of(p, sm, MK_ROLE_CONSUMER);
    for (uint32_t i = 0; i < track->count; i++) {
      double *first = &(*out)[track->intervals[i].step];
      *first = fmin(*first, (double)track->intervals[i].start * 1e-3);
    }
  }
  return MK_OK;
}

static mk_status add_stages(const mk_profile *p, mk_statistics *s) {
  part *parts = NULL;
  double *boundaries;
  size_t count = 0, capacity = 0;
  MK_TRY(find_boundaries(p, &boundaries));
  mk_status status = MK_OK;
  for (size_t t = 0; t < (size_t)p->sms * MK_TRACE_ROLES && status == MK_OK; t++) {
    const mk_profile_track *track = &p->tracks[t];
    uint32_t role = t % MK_TRACE_ROLES, add = role == MK_TRACE_CONTROLLER ? 0 : track->execution_count;
    status = mk_grow(&parts, &capacity, count + add, sizeof *parts);
    for (uint32_t i = 0; i < add && status == MK_OK; i++) {
      parts[count++] = part_of(p, track, &track->executions[i], role);
    }
  }
  if (status == MK_OK) {
    status = make_stages(parts, count, boundaries, s);
  }
  mk_free(parts);
  mk_free(boundaries);
  return status;
}

mk_status mk_statistics_new(const mk_profile *profile, mk_statistics **out) {
  MK_TRY(mk_alloc(1, sizeof **out, out));
  add_activities(profile, *out);
  mk_status status = add_opcodes(profile, *out);
  if (status == MK_OK) {
    add_bytes(profile, *out);
    status = add_stages(profile, *out);
  }
  if (status != MK_OK) {
    mk_statistics_free(*out);
    *out = NULL;
  }
  return status;
}

void mk_statistics_free(mk_statistics *statistics) {
  if (statistics != NULL) {
    mk_free(statistics->opcodes);
    mk_free(statistics->stages);
    mk_free(statistics);
  }
}

const char *mk_stage_label(const mk_stage_time *stage, char text[MK_LABEL_SIZE]) {
  snprintf(text, MK_LABEL_SIZE, "%s %s", mk_opcode_lookup(stage->opcode)->name, stage->value);
  return text;
}
