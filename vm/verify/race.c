/* Races on plain and paged buffers: every access is compared with the last write and the reads since, segment by segment.
 * See race.h; rules R01 (read after write), R02 (write after read), R03 (write after write). */
#include "vm/verify/race.h"

mk_status mk_shadow_init(mk_verifier *v, mk_shadow *shadow) {
  *shadow = (mk_shadow){.free_read = MK_NONE_INDEX};
  MK_TRY(mk_alloc(v->cut_count, sizeof *shadow->segments, &shadow->segments));
  for (size_t i = 0; i < v->cut_count; i++) {
    shadow->segments[i].first_reader = MK_NONE_INDEX;
  }
  return MK_OK;
}

void mk_shadow_free(mk_shadow *shadow) {
  mk_free(shadow->segments);
  mk_free(shadow->reads);
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

static bool ordered(const mk_actor *actor, uint32_t thread, uint32_t time) { return actor->clock[thread] >= time; }

static mk_status note_read(mk_shadow *shadow, mk_segment *segment, const mk_actor *actor) {
  for (uint32_t r = segment->first_reader; r != MK_NONE_INDEX; r = shadow->reads[r].next) {
    if (shadow->reads[r].thread == actor->thread) {
      shadow->reads[r].time = actor->time;
      shadow->reads[r].instruction = actor->instruction;
      return MK_OK;
    }
  }
  uint32_t slot = shadow->free_read;
  if (slot != MK_NONE_INDEX) {
    shadow->free_read = shadow->reads[slot].next;
  } else {
    MK_TRY(mk_grow(&shadow->reads, &shadow->read_capacity, shadow->read_count + 1, sizeof *shadow->reads));
    slot = (uint32_t)shadow->read_count++;
  }
  shadow->reads[slot] = (mk_past_read){
      .thread = actor->thread, .time = actor->time, .instruction = actor->instruction, .next = segment->first_reader};
  segment->first_reader = slot;
  return MK_OK;
}

static mk_status read_segments(mk_verifier *v, mk_shadow *shadow, const mk_actor *actor, mk_link link) {
  for (size_t i = link.first; i < (size_t)link.first + link.count; i++) {
    mk_segment *segment = &shadow->segments[i];
    const mk_buffer *b = &v->program->buffers[v->cuts[i] >> 32];
    v->report.conflicts++;
    if (segment->writer == 0 && b->kind != MK_KIND_KV) {
      return mk_reject(v, "R01", actor->instruction,
                       "%s: reads tile (%u, %u) of buffer %s, and no write of the same step is ordered before that",
                       field(v, actor), (uint32_t)(v->cuts[i] >> 16 & 0xffff), (uint32_t)(v->cuts[i] & 0xffff),
                       b->name);
    }
    if (segment->writer != 0 && !ordered(actor, segment->writer - 1, segment->write_time)) {
      return race(v, "R01", actor, i, "reads", segment->write_instruction, "writes");
    }
    /* With one tile of lines HB is what it is with all, and so are the reads, but for those that are left out: R02
     * has been seen to. */
    MK_TRY(actor->lines == MK_ALL_LINES ? note_read(shadow, segment, actor) : MK_OK);
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

mk_status mk_shadow_write(mk_verifier *v, mk_shadow *shadow, const mk_actor *actor) {
  mk_link link = v->links[(size_t)actor->instruction * MK_MAX_OPERANDS + actor->slot];
  for (size_t i = link.first; i < (size_t)link.first + link.count; i++) {
    mk_segment *segment = &shadow->segments[i];
    v->report.conflicts++;
    if (segment->writer != 0 && !ordered(actor, segment->writer - 1, segment->write_time)) {
      return race(v, "R03", actor, i, "writes", segment->write_instruction, "writes");
    }
    while (segment->first_reader != MK_NONE_INDEX) {
      uint32_t slot = segment->first_reader;
      mk_past_read *read = &shadow->reads[slot];
      v->report.conflicts++;
      if (!ordered(actor, read->thread, read->time)) {
        return race(v, "R02", actor, i, "writes", read->instruction, "reads");
      }
      segment->first_reader = read->next;
      read->next = shadow->free_read;
      shadow->free_read = slot;
    }
    segment->writer = actor->thread + 1;
    segment->write_time = actor->time;
    segment->write_instruction = actor->instruction;
  }
  return MK_OK;
}
