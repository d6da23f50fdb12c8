/* Races on plain and paged buffers: every access is compared with the last write and the reads since, segment by
 * segment. See race.h; rules R01 (read after write), R02 (write after read), R03 (write after write). */
#include "vm/verify/race.h"

#include <stdlib.h>

mk_status mk_shadow_init(mk_verifier *v, mk_shadow *shadow) {
  *shadow = (mk_shadow){.count = v->cut_count, .span_count = v->span_count};
  MK_TRY(mk_alloc(v->cut_count, sizeof *shadow->segments, &shadow->segments));
  MK_TRY(mk_alloc(v->cut_count, sizeof *shadow->written_by, &shadow->written_by));
  return mk_alloc(v->span_count, sizeof *shadow->spans, &shadow->spans);
}

void mk_shadow_free(mk_shadow *shadow) {
  for (size_t i = 0; shadow->segments != NULL && i < shadow->count; i++) {
    mk_team_past *team = shadow->segments[i].team;
    if (team != NULL) {
      mk_free(team->shares.list);
      mk_free(team->before.list);
      mk_free(team);
    }
  }
  for (size_t i = 0; shadow->spans != NULL && i < shadow->span_count; i++) {
    mk_free(shadow->spans[i].readers.list);
  }
  mk_free(shadow->segments);
  mk_free(shadow->written_by);
  mk_free(shadow->spans);
}

static const char *field(const mk_verifier *v, const mk_actor *actor) {
  return mk_info(mk_at(v, actor->instruction))->operands[actor->slot].name;
}

static mk_status race(mk_verifier *v, const char *rule, const mk_actor *actor, size_t segment, const char *what,
                      uint32_t other, const char *other_what) {
  uint64_t cut = v->cuts[segment];
  return mk_reject(
      v, rule, actor->instruction,
      "%s: %s tile (%u, %u) of buffer %s, and nothing orders that after %s, which %s it; add a release counter that "
      "the latter's instruction signals and this one waits for",
      field(v, actor), what, (uint32_t)(cut >> 16 & 0xffff), (uint32_t)(cut & 0xffff),
      v->program->buffers[cut >> 32].name, mk_place_of(v, other).text, other_what);
}

static bool ordered(const mk_actor *actor, const mk_past *past) {
  return actor->is_known || mk_clock_at(actor->clock, past->thread) >= past->time;
}

static mk_past past_of(const mk_actor *actor) {
  return (mk_past){.thread = actor->thread, .time = actor->time, .instruction = actor->instruction};
}

static mk_status add_past(mk_pasts *pasts, mk_past past) {
  if (pasts->count == pasts->capacity) {
    const uint32_t wanted = pasts->capacity == 0 ? 1 : 2 * pasts->capacity;
    MK_TRY(mk_realloc(wanted, sizeof past, &pasts->list));
    pasts->capacity = wanted;
  }
  pasts->list[pasts->count++] = past;
  return MK_OK;
}

static int by_thread(const void *a, const void *b) {
  const mk_past *x = a, *y = b;
  if (x->thread != y->thread) {
    return x->thread < y->thread ? -1 : 1;
  }
  return x->time < y->time ? -1 : x->time > y->time;
}

/* Keeps the last access of each thread. */
static void keep_last(mk_pasts *pasts) {
  uint32_t kept = 0;
  qsort(pasts->list, pasts->count, sizeof *pasts->list, by_thread);
  for (uint32_t i = 0; i < pasts->count; i++) {
    if (i + 1 == pasts->count || pasts->list[i + 1].thread != pasts->list[i].thread) {
      pasts->list[kept++] = pasts->list[i];
    }
  }
  pasts->count = kept;
}

/* Looks for earlier reads of the thread only where the list is full, and lets it grow where most of it is last reads:
 * so a read costs the same however many have read. */
static mk_status note_read(mk_span_past *span, const mk_actor *actor) {
  enum { FEW = 8 };
  mk_pasts *readers = &span->readers;
  span->after_readers = (mk_seen){.times = NULL};
  if (readers->count != 0 && readers->list[readers->count - 1].thread == actor->thread) {
    readers->count--;
  } else if (readers->count == readers->capacity && readers->count >= FEW) {
    keep_last(readers);
    if (readers->count > readers->capacity / 2) {
      const uint32_t wanted = 2 * readers->capacity;
      MK_TRY(mk_realloc(wanted, sizeof *readers->list, &readers->list));
      readers->capacity = wanted;
    }
  }
  return add_past(readers, past_of(actor));
}

/* The first of these accesses that the actor is not ordered after; NULL: there is none. */
static const mk_past *find_unordered(mk_verifier *v, const mk_actor *actor, const mk_pasts *pasts) {
  for (uint32_t i = 0; i < pasts->count; i++) {
    v->report.conflicts++;
    if (!ordered(actor, &pasts->list[i])) {
      return &pasts->list[i];
    }
  }
  return NULL;
}

static bool is_of_team(const mk_segment *segment) { return segment->team != NULL && segment->team->team != 0; }

/* The first of the segment's last writers that the actor is not ordered after; NULL: there is none. */
static const mk_past *unordered_writer(mk_verifier *v, const mk_actor *actor, const mk_segment *segment) {
  if (is_of_team(segment)) {
    return find_unordered(v, actor, &segment->team->shares);
  }
  v->report.conflicts++;
  return segment->written && !ordered(actor, &segment->writer) ? &segment->writer : NULL;
}

/* P04: a tile of a buffer that is dealt to ranks is one rank's. */
static mk_status claim_segment(mk_verifier *v, const mk_actor *actor, const mk_buffer *b, mk_segment *segment,
                               size_t number) {
  const uint32_t rank = mk_queue_rank(v->program, v->queue_of[actor->instruction]);
  if (segment->rank == rank + 1) {
    return MK_OK;
  }
  if (segment->rank != 0) {
    return mk_reject(v, "P04", actor->instruction,
                     "%s: tile (%u, %u) of buffer %s is touched by rank %u as well; of what is dealt to ranks a tile "
                     "is one rank's",
                     field(v, actor), (uint32_t)(v->cuts[number] >> 16 & 0xffff), (uint32_t)(v->cuts[number] & 0xffff),
                     b->name, segment->rank - 1U);
  }
  segment->rank = (uint16_t)(rank + 1);
  return MK_OK;
}

/* Whether the vector that the actor shares is enough to come after the segment's last writer. */
static bool known_by_vector(const mk_actor *actor, const mk_segment *segment) {
  const mk_times *shared = actor->clock->known.shared;
  return shared != NULL && !is_of_team(segment) && segment->written &&
         shared->of[segment->writer.thread] >= segment->writer.time;
}

static mk_status check_segments(mk_verifier *v, mk_shadow *shadow, const mk_actor *actor, const mk_buffer *b,
                                mk_span span, bool *by_vector) {
  for (size_t i = span.first; i < (size_t)span.first + span.count; i++) {
    mk_segment *segment = &shadow->segments[i];
    MK_TRY(b->rank == MK_RANK_DEALT ? claim_segment(v, actor, b, segment, i) : MK_OK);
    if (!segment->written && b->kind != MK_KIND_KV) {
      return mk_reject(v, "R01", actor->instruction,
                       "%s: reads tile (%u, %u) of buffer %s, and no write of the same step is ordered before that",
                       field(v, actor), (uint32_t)(v->cuts[i] >> 16 & 0xffff), (uint32_t)(v->cuts[i] & 0xffff),
                       b->name);
    }
    const mk_past *writer = unordered_writer(v, actor, segment);
    if (writer != NULL) {
      return race(v, "R01", actor, i, "reads", writer->instruction, "writes");
    }
    *by_vector = *by_vector && known_by_vector(actor, segment);
  }
  return MK_OK;
}

static bool rewritten(const mk_shadow *shadow, mk_span span, uint64_t since) {
  uint64_t last = 0;
  for (size_t i = span.first; i < (size_t)span.first + span.count; i++) {
    last = shadow->written_by[i] > last ? shadow->written_by[i] : last;
  }
  return last > since;
}

static mk_status read_span(mk_verifier *v, mk_shadow *shadow, const mk_actor *actor, const mk_buffer *b,
                           uint32_t number) {
  const mk_span span = v->spans[number];
  mk_span_past *past = &shadow->spans[number];
  const uint32_t rank = 1 + mk_queue_rank(v->program, v->queue_of[actor->instruction]);
  const bool claimed = b->rank != MK_RANK_DEALT || past->rank == rank;
  const bool known = actor->is_known ? past->written
                                     : mk_holds(actor->clock->known.shared, past->after_writers) &&
                                           !rewritten(shadow, span, past->checked);
  if (!claimed || !known) {
    bool by_vector = !actor->is_known;
    MK_TRY(check_segments(v, shadow, actor, b, span, &by_vector));
    past->written = true;
    past->rank = rank;
    past->checked = shadow->writes;
    past->after_writers = by_vector ? mk_seen_now(actor->clock->known.shared) : (mk_seen){.times = NULL};
  } else {
    v->report.conflicts += span.count;
  }
  /* In a run in which one tile of lines has active rows, HB and the reads are those of the run with all tiles, but
   * for reads that are left out: so R02 has been checked in that one. */
  return actor->lines == MK_ALL_LINES ? note_read(past, actor) : MK_OK;
}

mk_status mk_shadow_read(mk_verifier *v, mk_shadow *shadow, const mk_actor *actor) {
  const mk_instruction *in = mk_at(v, actor->instruction);
  const mk_operand *o = &in->operands[actor->slot];
  const mk_buffer *b = &v->program->buffers[o->buffer];
  const mk_tile_row *rows = &v->rows[*mk_link_of(v, actor->instruction, actor->slot)];
  for (uint32_t r = 0; r < o->rows; r++) {
    const uint32_t lines = mk_row_tile_lines(v->program, v->lines_of[actor->instruction], b, o->row + r);
    if (lines != MK_ALL_LINES && actor->lines != MK_ALL_LINES && lines != actor->lines) {
      continue;
    }
    MK_TRY(read_span(v, shadow, actor, b, rows[r].span));
  }
  return MK_OK;
}

/* Called for every share of a team. With the first one in a step, the writes so far become those that all shares of the
 * team have to come after. */
static mk_status begin_team(mk_segment *segment, uint32_t team, uint32_t epoch) {
  MK_TRY(segment->team != NULL ? MK_OK : mk_alloc(1, sizeof *segment->team, &segment->team));
  mk_team_past *past = segment->team;
  if (past->team == team && past->epoch == epoch) {
    return MK_OK;
  }
  if (past->team != 0) {
    const mk_pasts last = past->shares;
    past->shares = past->before;
    past->before = last;
  } else {
    past->before.count = 0;
    MK_TRY(segment->written ? add_past(&past->before, segment->writer) : MK_OK);
  }
  past->shares.count = 0;
  past->team = team;
  past->epoch = epoch;
  return MK_OK;
}

static mk_status note_write(mk_segment *segment, const mk_actor *actor, uint32_t team) {
  segment->written = true;
  if (team != 0) {
    return add_past(&segment->team->shares, past_of(actor));
  }
  segment->writer = past_of(actor);
  if (segment->team != NULL) {
    segment->team->team = 0;
  }
  return MK_OK;
}

/* The first span that may reach beyond the start of that segment. */
static size_t span_beyond(const mk_verifier *v, size_t segment) {
  size_t low = 0, high = v->span_count;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (v->spans[middle].reach <= segment) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

static bool comes_after(const mk_times *times, const mk_pasts *pasts) {
  for (uint32_t i = 0; i < pasts->count; i++) {
    if (times->of[pasts->list[i].thread] < pasts->list[i].time) {
      return false;
    }
  }
  return true;
}

/* A vector that is enough to come after all of these: a part of `times` where one is, as more clocks hold that. */
static mk_seen enough(mk_times *times, const mk_pasts *pasts) {
  for (uint32_t i = 0; times != NULL && i < MK_PARTS_KNOWN; i++) {
    const mk_seen part = times->parts[i];
    if (mk_is_seen(part, part.times) && comes_after(part.times, pasts)) {
      return part;
    }
  }
  return times != NULL && comes_after(times, pasts) ? mk_seen_now(times) : (mk_seen){.times = NULL};
}

/* R02: the actor comes after all who have read of these segments. */
static mk_status check_readers(mk_verifier *v, mk_shadow *shadow, const mk_actor *actor, const mk_tile_row *row) {
  mk_times *shared = actor->clock->known.shared;
  const size_t end = (size_t)row->first + row->count;
  for (size_t s = span_beyond(v, row->first); s < v->span_count && v->spans[s].first < end; s++) {
    mk_span_past *past = &shadow->spans[s];
    if (v->spans[s].first + (size_t)v->spans[s].count <= row->first || past->readers.count == 0) {
      continue;
    }
    if (mk_holds(shared, past->after_readers)) {
      v->report.conflicts += past->readers.count;
      continue;
    }
    const mk_past *reader = find_unordered(v, actor, &past->readers);
    if (reader != NULL) {
      const size_t both = v->spans[s].first > row->first ? v->spans[s].first : row->first;
      return race(v, "R02", actor, both, "writes", reader->instruction, "reads");
    }
    past->after_readers = enough(shared, &past->readers);
  }
  return MK_OK;
}

mk_status mk_shadow_write(mk_verifier *v, mk_shadow *shadow, const mk_actor *actor) {
  const mk_buffer *b = &v->program->buffers[mk_at(v, actor->instruction)->operands[actor->slot].buffer];
  const mk_tile_row *row = &v->rows[*mk_link_of(v, actor->instruction, actor->slot)];
  const uint32_t team = v->team_of[actor->instruction];
  for (size_t i = row->first; i < (size_t)row->first + row->count; i++) {
    mk_segment *segment = &shadow->segments[i];
    MK_TRY(b->rank == MK_RANK_DEALT ? claim_segment(v, actor, b, segment, i) : MK_OK);
    MK_TRY(team != 0 ? begin_team(segment, team, actor->epoch) : MK_OK);
    const mk_past *writer =
        team != 0 ? find_unordered(v, actor, &segment->team->before) : unordered_writer(v, actor, segment);
    if (writer != NULL) {
      return race(v, "R03", actor, i, "writes", writer->instruction, "writes");
    }
    MK_TRY(note_write(segment, actor, team));
    shadow->written_by[i] = shadow->writes + 1;
  }
  shadow->writes++;
  return check_readers(v, shadow, actor, row);
}
