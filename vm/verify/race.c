/* Races on plain and paged buffers: every access is compared with the last write and the reads since, segment by
 * segment. See race.h; rules R01 (read after write), R02 (write after read), R03 (write after write). */
#include "vm/verify/race.h"

mk_status mk_shadow_init(mk_verifier *v, mk_shadow *shadow) {
  *shadow = (mk_shadow){.count = v->cut_count};
  return mk_alloc(v->cut_count, sizeof *shadow->segments, &shadow->segments);
}

void mk_shadow_free(mk_shadow *shadow) {
  for (size_t i = 0; shadow->segments != NULL && i < shadow->count; i++) {
    mk_team_past *team = shadow->segments[i].team;
    mk_free(shadow->segments[i].readers.list);
    if (team != NULL) {
      mk_free(team->shares.list);
      mk_free(team->before.list);
      mk_free(team);
    }
  }
  mk_free(shadow->segments);
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
  return mk_clock_at(actor->clock, past->thread) >= past->time;
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

static mk_status note_read(mk_segment *segment, const mk_actor *actor) {
  for (uint32_t r = 0; r < segment->readers.count; r++) {
    if (segment->readers.list[r].thread == actor->thread) {
      segment->readers.list[r] = past_of(actor);
      return MK_OK;
    }
  }
  return add_past(&segment->readers, past_of(actor));
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
static mk_status claim_segment(mk_verifier *v, const mk_actor *actor, mk_segment *segment, size_t number) {
  const mk_buffer *b = &v->program->buffers[v->cuts[number] >> 32];
  const uint32_t rank = mk_queue_rank(v->program, v->queue_of[actor->instruction]);
  if (b->rank != MK_RANK_DEALT || segment->rank == rank + 1) {
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

static mk_status read_segments(mk_verifier *v, mk_shadow *shadow, const mk_actor *actor, mk_link link) {
  for (size_t i = link.first; i < (size_t)link.first + link.count; i++) {
    mk_segment *segment = &shadow->segments[i];
    const mk_buffer *b = &v->program->buffers[v->cuts[i] >> 32];
    MK_TRY(claim_segment(v, actor, segment, i));
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
    /* In a run in which one tile of lines has active rows, HB and the reads are those of the run with all tiles, but
     * for reads that are left out: so R02 has been checked in that one. */
    MK_TRY(actor->lines == MK_ALL_LINES ? note_read(segment, actor) : MK_OK);
  }
  return MK_OK;
}

mk_status mk_shadow_read(mk_verifier *v, mk_shadow *shadow, const mk_actor *actor) {
  const mk_operand *o = &mk_at(v, actor->instruction)->operands[actor->slot];
  const mk_buffer *b = &v->program->buffers[o->buffer];
  mk_link link = v->links[(size_t)actor->instruction * MK_MAX_OPERANDS + actor->slot];
  for (uint32_t r = 0; r < o->rows; r++) {
    const uint32_t lines = mk_row_tile_lines(v->program, v->lines_of[actor->instruction], b, o->row + r);
    if (lines != MK_ALL_LINES && actor->lines != MK_ALL_LINES && lines != actor->lines) {
      continue;
    }
    MK_TRY(read_segments(v, shadow, actor, r == 0 ? link : mk_segments_of(v, o, r)));
  }
  return MK_OK;
}

/* Called for every share of a team. With the first one in a step, the writes so far become those that all shares of the
 * team have to come after. Readers stay listed, since later writers have to come after them, too. */
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
  segment->readers.count = 0;
  if (segment->team != NULL) {
    segment->team->team = 0;
  }
  return MK_OK;
}

mk_status mk_shadow_write(mk_verifier *v, mk_shadow *shadow, const mk_actor *actor) {
  const mk_link link = v->links[(size_t)actor->instruction * MK_MAX_OPERANDS + actor->slot];
  const uint32_t team = v->team_of[actor->instruction];
  for (size_t i = link.first; i < (size_t)link.first + link.count; i++) {
    mk_segment *segment = &shadow->segments[i];
    MK_TRY(claim_segment(v, actor, segment, i));
    MK_TRY(team != 0 ? begin_team(segment, team, actor->epoch) : MK_OK);
    const mk_past *writer =
        team != 0 ? find_unordered(v, actor, &segment->team->before) : unordered_writer(v, actor, segment);
    if (writer != NULL) {
      return race(v, "R03", actor, i, "writes", writer->instruction, "writes");
    }
    const mk_past *reader = find_unordered(v, actor, &segment->readers);
    if (reader != NULL) {
      return race(v, "R02", actor, i, "writes", reader->instruction, "reads");
    }
    MK_TRY(note_write(segment, actor, team));
  }
  return MK_OK;
}
