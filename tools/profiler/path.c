/* See path.h. */
#include "tools/profiler/path.h"

#include <stdlib.h>

enum { MOST_DETOURS = 4 }; /* jumps from role to role at one and the same moment */

/* A proxy for the moment of publication may be this much later. */
static const uint64_t kSlack = 1000;

/* What one operand, or one signal, of an instruction published in a step. */
typedef struct publication {
  const mk_execution *execution;
  uint32_t target; /* a buffer, or the number of buffers and a counter */
  uint16_t slot, role;
} publication;

struct mk_edges {
  const mk_profile *profile;
  publication *publications; /* those that were recorded, by step, target and finish */
  size_t count, capacity;
};

static bool writes(const mk_program *program, const mk_instruction *in, uint32_t slot) {
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  return info->operands[slot].access != MK_ACCESS_READ && in->operands[slot].cols != 0 &&
         in->operands[slot].buffer < program->buffer_count;
}

static mk_status add_publications(mk_edges *edges, const mk_execution *e, uint32_t role) {
  const mk_program *program = edges->profile->program;
  const mk_instruction *in = &program->instructions[e->instruction];
  const uint32_t slots = mk_opcode_lookup(in->opcode)->operand_count;
  MK_TRY(mk_grow(&edges->publications, &edges->capacity, edges->count + slots + in->signal_count,
                 sizeof *edges->publications));
  publication made = {.execution = e, .role = (uint16_t)role};
  for (made.slot = 0; made.slot < slots; made.slot++) {
    if (writes(program, in, made.slot)) {
      made.target = in->operands[made.slot].buffer;
      edges->publications[edges->count++] = made;
    }
  }
  for (uint32_t s = 0; s < in->signal_count; s++) {
    if (in->signals[s].counter < program->counter_count) {
      made.target = (uint32_t)program->buffer_count + in->signals[s].counter;
      edges->publications[edges->count++] = made;
    }
  }
  return MK_OK;
}

/* Whether others see what the instruction makes once this role is done. In the CPU machine's greedy runs the consumer
 * stores, too. */
static bool publishes(const mk_profile *p, const mk_execution *e, uint32_t role) {
  uint32_t publisher = mk_publishing_role(p->program->instructions[e->instruction].opcode);
  return role == publisher || (role == MK_ROLE_CONSUMER && publisher == MK_ROLE_STORER &&
                               mk_profile_find(p, e->instruction, e->step, MK_ROLE_STORER) == NULL);
}

static mk_status find_publications(mk_edges *edges) {
  const mk_profile *p = edges->profile;
  for (size_t t = 0; t < (size_t)p->sms * MK_TRACE_ROLES; t++) {
    const mk_profile_track *track = &p->tracks[t];
    for (uint32_t i = 0; i < track->execution_count; i++) {
      if (publishes(p, &track->executions[i], t % MK_TRACE_ROLES)) {
        MK_TRY(add_publications(edges, &track->executions[i], t % MK_TRACE_ROLES));
      }
    }
  }
  return MK_OK;
}

static int compare_times(uint32_t step, uint32_t target, uint64_t time, const publication *with) {
  if (step != with->execution->step) {
    return step < with->execution->step ? -1 : 1;
  }
  if (target != with->target) {
    return target < with->target ? -1 : 1;
  }
  return (time > with->execution->finish) - (time < with->execution->finish);
}

/* Of several that finish at once the last one in the program comes first. */
static int by_finish(const void *a, const void *b) {
  const publication *x = a, *y = b;
  int order = compare_times(x->execution->step, x->target, x->execution->finish, y);
  if (order == 0 && x->execution->instruction != y->execution->instruction) {
    return x->execution->instruction > y->execution->instruction ? -1 : 1;
  }
  return order != 0 ? order : (x->slot < y->slot) - (x->slot > y->slot);
}

mk_status mk_edges_new(const mk_profile *profile, mk_edges **out) {
  MK_TRY(mk_alloc(1, sizeof **out, out));
  (*out)->profile = profile;
  mk_status status = find_publications(*out);
  if (status != MK_OK) {
    mk_edges_free(*out);
    *out = NULL;
    return status;
  }
  if ((*out)->count != 0) {
    qsort((*out)->publications, (*out)->count, sizeof *(*out)->publications, by_finish);
  }
  return MK_OK;
}

void mk_edges_free(mk_edges *edges) {
  if (edges != NULL) {
    mk_free(edges->publications);
    mk_free(edges);
  }
}

static bool overlap(uint32_t a, uint32_t a_count, uint32_t b, uint32_t b_count) {
  return a < b + b_count && b < a + a_count;
}

/* Whether it is something that the instruction reads. */
static bool feeds(const mk_program *program, const publication *from, const mk_instruction *reader) {
  const mk_operand *out = &program->instructions[from->execution->instruction].operands[from->slot];
  const mk_opcode_info *info = mk_opcode_lookup(reader->opcode);
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand *in = &reader->operands[slot];
    if (info->operands[slot].access == MK_ACCESS_READ && in->buffer == from->target &&
        overlap(in->row, in->rows, out->row, out->rows) && overlap(in->col, in->cols, out->col, out->cols)) {
      return true;
    }
  }
  return false;
}

/* How many come before all that is published later in that step, or of another target. */
static size_t count_until(const mk_edges *edges, uint32_t step, uint32_t target, uint64_t time) {
  size_t low = 0, high = edges->count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    bool until = compare_times(step, target, time, &edges->publications[middle]) >= 0;
    low = until ? middle + 1 : low;
    high = until ? high : middle;
  }
  return low;
}

static bool is_of(const publication *of, uint32_t step, uint32_t target) {
  return of->execution->step == step && of->target == target;
}

const mk_execution *mk_edges_publisher(const mk_edges *edges, const mk_interval *wait, uint32_t *role) {
  const mk_program *program = edges->profile->program;
  const bool counter = wait->activity == MK_ACTIVITY_COUNTER;
  *role = 0;
  if (wait->instruction == MK_NO_INSTRUCTION || (!counter && wait->activity != MK_ACTIVITY_STAMP)) {
    return NULL;
  }
  const mk_instruction *reader = &program->instructions[wait->instruction];
  const uint32_t step = wait->step, target = wait->edge + (counter ? (uint32_t)program->buffer_count : 0);
  const size_t until = count_until(edges, step, target, wait->end + kSlack);
  const publication *all = edges->publications, *found = NULL;
  /* The last one that had finished when the wait ended; if there is none, the first one after that. */
  for (size_t i = until; found == NULL && i != 0 && is_of(&all[i - 1], step, target); i--) {
    found = counter || feeds(program, &all[i - 1], reader) ? &all[i - 1] : NULL;
  }
  for (size_t i = until; found == NULL && i < edges->count && is_of(&all[i], step, target); i++) {
    found = counter || feeds(program, &all[i], reader) ? &all[i] : NULL;
  }
  if (found == NULL) {
    return NULL;
  }
  *role = found->role;
  return found->execution;
}

/* Walking. */

typedef struct place {
  uint32_t sm, role;
  uint64_t time;
} place;

/* The last interval of the track that began before the time; NULL: there is none. */
static const mk_interval *interval_before(const mk_profile *p, const place *at) {
  const mk_profile_track *track = mk_profile_track_of(p, at->sm, at->role);
  uint32_t low = 0, high = track->count;
  while (low < high) {
    uint32_t middle = low + (high - low) / 2;
    bool before = track->intervals[middle].start < at->time;
    low = before ? middle + 1 : low;
    high = before ? high : middle;
  }
  return low == 0 ? NULL : &track->intervals[low - 1];
}

/* Pages are issued in the order of the ring. The loader is not half a ring ahead of a page that has not come. */
static bool precedes(const mk_profile *p, uint32_t page, uint32_t other) {
  uint32_t ring = p->program->machine.ring_pages;
  return page == other || (other % ring + ring - page % ring) % ring < ring / 2;
}

/* When the loader could issue the copy for which the consumer waited: the end of its last wait for room up to that
 * page, or where it began the instruction. 0: before the consumer's wait. */
static uint64_t issue_of(const mk_profile *p, const place *at, const mk_interval *wait) {
  const mk_profile_track *track = mk_profile_track_of(p, at->sm, MK_ROLE_LOADER);
  place loader = {at->sm, MK_ROLE_LOADER, at->time + 1};
  const mk_interval *in = interval_before(p, &loader);
  for (; in != NULL && in->end > wait->start; in = in == track->intervals ? NULL : in - 1) {
    if (in->activity == MK_ACTIVITY_PAGE_EMPTY && in->end <= at->time && precedes(p, in->edge, wait->edge)) {
      return in->end;
    }
  }
  const mk_execution *load = mk_profile_find(p, wait->instruction, wait->step, MK_ROLE_LOADER);
  return load != NULL && load->start > wait->start && load->start <= at->time ? load->start : 0;
}

/* The execution that published last what the instruction reads, if that was between the two times. Just after the first
 * one does not count: what the first warp had by then may seem a little later than it was. */
static const mk_execution *late_publisher(const mk_edges *edges, uint32_t instruction, uint32_t step, uint64_t since,
                                          uint64_t until, uint32_t *role) {
  const mk_program *program = edges->profile->program;
  const mk_instruction *reader = &program->instructions[instruction];
  const mk_opcode_info *info = mk_opcode_lookup(reader->opcode);
  const mk_execution *last = NULL;
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    uint32_t buffer = reader->operands[slot].buffer, its_role;
    if (info->operands[slot].access != MK_ACCESS_READ || buffer >= program->buffer_count ||
        program->buffers[buffer].store != MK_STORE_STAMPED) {
      continue;
    }
    mk_interval wait = {.start = since,
                        .end = until,
                        .instruction = instruction,
                        .step = step,
                        .edge = (uint16_t)buffer,
                        .activity = MK_ACTIVITY_STAMP};
    const mk_execution *e = mk_edges_publisher(edges, &wait, &its_role);
    if (e != NULL && e->finish > since + kSlack && e->finish <= until + kSlack &&
        (last == NULL || e->finish > last->finish)) {
      last = e;
      *role = its_role;
    }
  }
  return last;
}

/* A consumer's track is its first warp's, and each warp waits for its own part of x alone: the first one may long be
 * further while others still wait for a value. It shows in what they hold back. */
typedef struct laggards {
  const mk_interval *at; /* an interval of the instruction that they are at */
  uint64_t since;        /* from when on the wait is theirs to end */
} laggards;

/* False: as far as can be seen, no such warp caused that wait. */
static bool find_laggards(const mk_profile *p, const place *at, const mk_interval *in, laggards *out) {
  const place consumer = {at->sm, MK_ROLE_CONSUMER, at->time}, storer = {at->sm, MK_ROLE_STORER, at->time};
  const mk_interval *first = interval_before(p, &consumer), *sums = interval_before(p, &storer);
  *out = (laggards){in, in->start};
  uint64_t since = 0;
  if (in->instruction == MK_NO_INSTRUCTION) {
    return false;
  }
  if (in->activity == MK_ACTIVITY_PAGE_EMPTY && first != NULL && first->activity == MK_ACTIVITY_PAGE_FULL) {
    /* The warp has left its pages: it waits for one itself. */
    out->at = sums != NULL && sums->activity == MK_ACTIVITY_RESULT_FULL ? sums : first;
    since = first->start;
  } else if (in->activity == MK_ACTIVITY_RESULT_FULL) {
    /* The warp has handed in its sums, all of them or more than there is room for. */
    const mk_execution *e = mk_profile_find(p, in->instruction, in->step, MK_ROLE_CONSUMER);
    if (e != NULL && e->finish < at->time) {
      since = e->finish;
    } else if (first != NULL && first->activity == MK_ACTIVITY_RESULT_EMPTY) {
      since = first->start;
    } else {
      return false;
    }
  } else if (in->activity != MK_ACTIVITY_MEETING) {
    return false;
  }
  out->since = since > out->since ? since : out->since;
  return out->at->instruction != MK_NO_INSTRUCTION;
}

static void lead_to(const mk_profile *p, const place *at, const mk_execution *e, place *to, uint32_t *from) {
  *from = e->instruction;
  to->sm = p->sm_of[e->instruction];
  to->time = e->finish < at->time ? e->finish : at->time;
}

/* Finds the place that a wait leads to; false: nothing explains the wait. */
static bool reason_of(const mk_edges *edges, const place *at, const mk_interval *in, place *to, uint32_t *from) {
  const mk_profile *p = edges->profile;
  const mk_execution *e;
  laggards others;
  *to = *at;
  *from = MK_NO_INSTRUCTION;
  bool lag = find_laggards(p, at, in, &others);
  e = lag ? late_publisher(edges, others.at->instruction, others.at->step, others.since, at->time, &to->role) : NULL;
  if (e != NULL) {
    lead_to(p, at, e, to, from);
    return true;
  }
  switch (in->activity) {
    case MK_ACTIVITY_STAMP:
    case MK_ACTIVITY_COUNTER:
      e = mk_edges_publisher(edges, in, &to->role);
      if (e == NULL) {
        return false;
      }
      lead_to(p, at, e, to, from);
      break;
    case MK_ACTIVITY_RESULT_FULL:
      to->role = MK_ROLE_CONSUMER;
      to->time = lag ? others.since : at->time;
      break;
    case MK_ACTIVITY_PAGE_FULL:
      to->role = MK_ROLE_LOADER;
      to->time = in->instruction == MK_NO_INSTRUCTION ? 0 : issue_of(p, at, in);
      break;
    case MK_ACTIVITY_PAGE_EMPTY:
      to->role = MK_ROLE_CONSUMER;
      to->time = lag ? others.since : at->time;
      return lag || mk_profile_track_of(p, to->sm, to->role)->count != 0;
    case MK_ACTIVITY_STEP_STATE:
      to->role = MK_ROLE_CONSUMER;
      break;
    case MK_ACTIVITY_RESULT_EMPTY:
      to->role = MK_ROLE_STORER;
      break;
    default:
      return false;
  }
  return to->time > in->start && mk_profile_track_of(p, to->sm, to->role)->count != 0;
}

static mk_status add_part(mk_path *path, const place *at, const mk_interval *in, uint64_t start, uint32_t from) {
  mk_path_part *last = path->count == 0 ? NULL : &path->parts[path->count - 1];
  if (start == at->time) {
    return MK_OK;
  }
  if (last != NULL && last->start == at->time && last->sm == at->sm && last->role == at->role &&
      last->instruction == in->instruction && last->activity == in->activity && last->from == from) {
    last->start = start;
    return MK_OK;
  }
  MK_TRY(mk_grow(&path->parts, &path->capacity, path->count + 1, sizeof *path->parts));
  path->parts[path->count++] = (mk_path_part){.start = start,
                                              .end = at->time,
                                              .sm = at->sm,
                                              .role = at->role,
                                              .step = in->step,
                                              .instruction = in->instruction,
                                              .from = from,
                                              .edge = in->edge,
                                              .activity = in->activity};
  return MK_OK;
}

/* The end of the step: of its last `next`, or of its last instruction where it has none. */
static bool find_end(const mk_profile *p, uint32_t step, place *end) {
  bool found = false, found_next = false;
  for (uint32_t sm = 0; sm < p->sms; sm++) {
    const mk_profile_track *track = mk_profile_track_of(p, sm, MK_ROLE_CONSUMER);
    for (uint32_t i = 0; i < track->execution_count; i++) {
      const mk_execution *e = &track->executions[i];
      bool next = mk_opcode_lookup(p->program->instructions[e->instruction].opcode)->state == MK_STATE_WRITE;
      if (e->step == step && (!found || next > found_next || (next == found_next && e->finish > end->time))) {
        *end = (place){sm, MK_ROLE_CONSUMER, e->finish};
        found = true;
        found_next = next;
      }
    }
  }
  return found;
}

static void reverse(mk_path *path) {
  for (size_t i = 0; i < path->count / 2; i++) {
    mk_path_part part = path->parts[i];
    path->parts[i] = path->parts[path->count - 1 - i];
    path->parts[path->count - 1 - i] = part;
  }
}

static int by_start(const void *a, const void *b) {
  const mk_path_part *x = a, *y = b;
  return (x->start > y->start) - (x->start < y->start);
}

static mk_status find_serial(const mk_profile *p, uint64_t until, mk_path *out) {
  for (size_t t = 0; t < (size_t)p->sms * MK_TRACE_ROLES; t++) {
    for (uint32_t i = 0; i < p->tracks[t].count; i++) {
      const mk_interval *in = &p->tracks[t].intervals[i];
      place at = {(uint32_t)(t / MK_TRACE_ROLES), t % MK_TRACE_ROLES, in->end};
      if (in->step == out->step && in->activity == MK_ACTIVITY_WORK && in->end <= until) {
        MK_TRY(add_part(out, &at, in, in->start, MK_NO_INSTRUCTION));
      }
    }
  }
  if (out->count != 0) {
    qsort(out->parts, out->count, sizeof *out->parts, by_start);
  }
  return MK_OK;
}

static mk_status walk(const mk_edges *edges, place at, mk_path *out) {
  const mk_profile *p = edges->profile;
  place to;
  uint32_t detours = 0, from;
  for (;;) {
    const mk_interval *in = interval_before(p, &at);
    if (in == NULL || in->step < out->step) {
      break;
    }
    bool jumps = reason_of(edges, &at, in, &to, &from) && (to.time < at.time || detours < MOST_DETOURS);
    uint64_t start = jumps ? to.time : in->start;
    detours = start < at.time ? 0 : detours + 1;
    MK_TRY(add_part(out, &at, in, start, from));
    if (jumps) {
      at = to;
    } else {
      at.time = start;
    }
  }
  reverse(out);
  return MK_OK;
}

mk_status mk_path_find(const mk_edges *edges, uint32_t step, mk_path *out) {
  place end;
  *out = (mk_path){.step = step};
  if (!find_end(edges->profile, step, &end)) {
    return MK_OK;
  }
  mk_status status = edges->profile->serial ? find_serial(edges->profile, end.time, out) : walk(edges, end, out);
  if (status != MK_OK) {
    mk_path_free(out);
  }
  return status;
}

void mk_path_free(mk_path *path) {
  mk_free(path->parts);
  *path = (mk_path){0};
}

typedef struct step_time {
  uint64_t start, end;
  uint32_t step;
} step_time;

static int by_length(const void *a, const void *b) {
  const step_time *x = a, *y = b;
  uint64_t left = x->end - x->start, right = y->end - y->start;
  return (left > right) - (left < right);
}

mk_status mk_path_median_step(const mk_profile *profile, uint32_t *step, double *us) {
  step_time *times;
  MK_TRY(mk_alloc(profile->steps, sizeof *times, &times));
  for (uint32_t sm = 0; sm < profile->sms; sm++) {
    const mk_profile_track *track = mk_profile_track_of(profile, sm, MK_ROLE_CONSUMER);
    for (uint32_t i = 0; i < track->count; i++) {
      const mk_interval *in = &track->intervals[i];
      if (in->step < profile->steps) {
        step_time *time = &times[in->step];
        time->start = time->end == 0 || in->start < time->start ? in->start : time->start;
        time->end = in->end > time->end ? in->end : time->end;
      }
    }
  }
  for (uint32_t i = 0; i < profile->steps; i++) {
    times[i].step = i;
  }
  qsort(times, profile->steps, sizeof *times, by_length);
  const step_time *median = &times[profile->steps / 2];
  *step = profile->steps == 0 ? 0 : median->step;
  *us = profile->steps == 0 ? 0 : (double)(median->end - median->start) * 1e-3;
  mk_free(times);
  return MK_OK;
}
