/* Phase 2: who reads and writes which words. Rules D02, R04, O01.
 *
 * Stamped reads of one rectangle form a group: they wait for the same writers. As a stamped word has one writer, the
 * writers of a group are disjoint, and together they must cover it. Plain and paged buffers are cut at every end of an
 * access, so that an access is a run of whole segments. */
#include <stdio.h>
#include <string.h>

#include "vm/verify/internal.h"
#include "vm/verify/sort.h"

enum { NOT_CERTAIN = UINT32_MAX };

typedef struct mk_use { /* one stamped read */
  mk_operand where;
  uint32_t span;      /* of a COMBINE; NOT_CERTAIN: no word need be waited for */
  mk_content meaning; /* readers of one meaning may share a group */
  uint32_t instruction, slot;
  uint32_t thread, time; /* of the reader, in epoch 0 */
} mk_use;

/* Whether the instruction writes only at some positions: an ATTENTION writes split s once position / span reaches s,
 * and with several rows it depends on the slot which unit has split s. Its reader, a COMBINE, knows when (S11). */
static bool only_when_long(const mk_verifier *v, const mk_instruction *in) {
  const mk_operand *kv = &in->operands[MK_SLOT_ATTENTION_kv];
  return mk_opcode_writes(mk_info(in), MK_CONTENT_PARTS) >= 0 &&
         (mk_program_rows(v->program) > 1 ||
          v->program->ranges.position.low / v->program->buffers[kv->buffer].span_tokens < kv->row);
}

typedef struct mk_collect {
  mk_verifier *v;
  mk_use *uses;
  size_t *plain; /* operands of plain and paged buffers, as links are numbered */
  size_t plain_count, plain_capacity;
  size_t use_count, use_capacity;
  size_t write_capacity, cut_capacity, target_capacity, target_count, group_capacity, reader_capacity, reader_count;
} mk_collect;

static const mk_operand *plain_operand(const mk_verifier *v, size_t plain) {
  return &mk_at(v, plain / MK_MAX_OPERANDS)->operands[plain % MK_MAX_OPERANDS];
}
static const mk_operand_info *plain_info(const mk_verifier *v, size_t plain) {
  return &mk_info(mk_at(v, plain / MK_MAX_OPERANDS))->operands[plain % MK_MAX_OPERANDS];
}

static mk_status collect_write(mk_collect *c, uint32_t index, uint32_t slot) {
  mk_verifier *v = c->v;
  const mk_instruction *in = mk_at(v, index);
  const mk_operand *o = &in->operands[slot];
  if (o->rows != 1) {
    return mk_reject(v, "S10", index, "%s: writes %u rows of tiles; an instruction writes one",
                     mk_info(in)->operands[slot].name, o->rows);
  }
  MK_TRY(mk_grow(&v->writes, &c->write_capacity, v->write_count + 1, sizeof *v->writes));
  v->writes[v->write_count++] = (mk_write){.key = mk_cell_key(o->buffer, o->row, o->col),
                                           .end = (uint32_t)o->col + o->cols,
                                           .instruction = index,
                                           .slot = (uint8_t)slot,
                                           .content = (uint8_t)mk_info(in)->operands[slot].content,
                                           .anywhere = mk_fused_anywhere(v, in),
                                           .long_only = only_when_long(v, in)};
  return MK_OK;
}

static mk_status collect_cuts(mk_collect *c, const mk_operand *o) {
  mk_verifier *v = c->v;
  MK_TRY(mk_grow(&v->cuts, &c->cut_capacity, v->cut_count + 2 * (size_t)o->rows, sizeof *v->cuts));
  for (uint32_t r = 0; r < o->rows; r++) {
    uint64_t row = mk_cell_key(o->buffer, (uint32_t)o->row + r, 0);
    v->cuts[v->cut_count++] = row + o->col;
    v->cuts[v->cut_count++] = row + o->col + o->cols;
  }
  return MK_OK;
}

static mk_status collect(mk_collect *c, uint32_t index) {
  mk_verifier *v = c->v;
  const mk_instruction *in = mk_at(v, index);
  const mk_opcode_info *info = mk_info(in);
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_operand *o = &in->operands[slot];
    const mk_buffer *b = &v->program->buffers[o->buffer];
    if (mk_operand_empty(o) || mk_constant(b) || info->operands[slot].when == MK_WHEN_LISTED) {
      continue; /* listed: ordered by rule L02, disjoint by the list's checker */
    }
    if (info->operands[slot].access != MK_ACCESS_READ && b->store != MK_STORE_BLOCKS) {
      MK_TRY(collect_write(c, index, slot));
    } else if (b->store == MK_STORE_STAMPED) {
      MK_TRY(mk_grow(&c->uses, &c->use_capacity, c->use_count + 1, sizeof *c->uses));
      bool used = info->operands[slot].when == MK_WHEN_USED;
      mk_content meaning = info->operands[slot].content;
      uint32_t span = meaning == MK_CONTENT_PARTS ? in->params[MK_PARAM_COMBINE_span] : used ? NOT_CERTAIN : 0;
      c->uses[c->use_count++] = (mk_use){.where = *o,
                                         .span = span,
                                         .meaning = meaning,
                                         .instruction = index,
                                         .slot = slot,
                                         .thread = mk_thread_of(v, index, info->operands[slot].role),
                                         .time = mk_time(mk_position_of(v, index), MK_DONE)};
    }
    if (b->store != MK_STORE_STAMPED) {
      MK_TRY(mk_grow(&c->plain, &c->plain_capacity, c->plain_count + 1, sizeof *c->plain));
      c->plain[c->plain_count++] = (size_t)index * MK_MAX_OPERANDS + slot;
      MK_TRY(collect_cuts(c, o));
    }
  }
  return MK_OK;
}

static bool is_stamped(const mk_verifier *v, const mk_write *w) {
  return v->program->buffers[w->key >> 32].store == MK_STORE_STAMPED;
}

/* R04: two writes per epoch to one stamped word carry the same generation. */
static mk_status check_single_writers(mk_verifier *v) {
  for (size_t i = 1; i < v->write_count; i++) {
    const mk_write *a = &v->writes[i - 1], *b = &v->writes[i];
    bool same_row = a->key >> 16 == b->key >> 16;
    if (same_row && is_stamped(v, a) && a->end > (b->key & 0xffff)) {
      return mk_reject(
          v, "R04", b->instruction,
          "%s: tile (%u, %u) of stamped buffer %s is also written by %s in the same epoch; readers could not tell the "
          "two apart",
          mk_info(mk_at(v, b->instruction))->operands[b->slot].name, (uint32_t)(b->key >> 16 & 0xffff),
          (uint32_t)(b->key & 0xffff), v->program->buffers[b->key >> 32].name, mk_place_of(v, a->instruction).text);
    }
  }
  return MK_OK;
}

/* First write whose key is above `key`. */
static size_t writes_above(const mk_verifier *v, uint64_t key) {
  size_t low = 0, high = v->write_count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (v->writes[middle].key > key) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

/* Writes of stamped words of row `row` that meet columns [col, end): writes[*first, *last). Stamped writes are
 * disjoint, so only the one before `col` may reach into it. */
static void writes_in(const mk_verifier *v, uint32_t buffer, uint32_t row, uint32_t col, uint32_t end, size_t *first,
                      size_t *last) {
  uint64_t start = mk_cell_key(buffer, row, 0);
  *first = writes_above(v, start + col);
  *last = writes_above(v, start + end - 1);
  if (*first > 0 && v->writes[*first - 1].key >= start && v->writes[*first - 1].end > col) {
    (*first)--;
  }
}

/* Finds the writers of a group, row by row, and that they cover it (D02). */
static mk_status find_writers(mk_collect *c, uint32_t group, const mk_use *use, mk_keyed **pairs, size_t *count,
                              size_t *capacity) {
  mk_verifier *v = c->v;
  const mk_operand *o = &use->where;
  uint32_t end = (uint32_t)o->col + o->cols;
  for (uint32_t row = o->row; row < (uint32_t)o->row + o->rows; row++) {
    size_t first, last;
    uint32_t covered = o->col;
    writes_in(v, o->buffer, row, o->col, end, &first, &last);
    MK_TRY(mk_grow(pairs, capacity, *count + (last - first), sizeof **pairs));
    for (size_t w = first; w < last && (v->writes[w].key & 0xffff) <= covered; w++) {
      if (use->meaning != v->writes[w].content || use->meaning == MK_CONTENT_PARTS) {
        MK_TRY(mk_verify_value(v, use->instruction, use->slot, &v->writes[w]));
      }
      covered = v->writes[w].end;
      (*pairs)[(*count)++] = (mk_keyed){.low = w, .entry = group};
    }
    if (covered < end) {
      return mk_reject(v, "D02", use->instruction,
                       "%s: waits for the stamp of tile (%u, %u) of buffer %s, which nobody writes in an epoch",
                       mk_info(mk_at(v, use->instruction))->operands[use->slot].name, row, covered,
                       v->program->buffers[o->buffer].name);
    }
    v->groups[group].writers += (uint32_t)(last - first);
  }
  return MK_OK;
}

/* The readers of one group: the last of every thread stands for all, as a thread goes on in order. */
static mk_status add_readers(mk_collect *c, mk_group *group, const mk_use *uses, size_t count) {
  mk_verifier *v = c->v;
  group->first_reader = (uint32_t)c->reader_count;
  for (size_t i = 0; i < count; i++) {
    const mk_reader reader = {.instruction = uses[i].instruction, .thread = uses[i].thread, .index = uses[i].time};
    if (group->reader_count != 0 && v->readers[c->reader_count - 1].thread == reader.thread) {
      v->readers[c->reader_count - 1] = reader;
      continue;
    }
    MK_TRY(mk_grow(&v->readers, &c->reader_capacity, c->reader_count + 1, sizeof *v->readers));
    v->readers[c->reader_count++] = reader;
    group->reader_count++;
  }
  return MK_OK;
}

/* Brings reads of one rectangle, span and meaning together, in the order of instructions. */
static mk_status sort_uses(mk_collect *c) {
  mk_keyed *keyed;
  MK_TRY(mk_alloc(c->use_count, sizeof *keyed, &keyed));
  for (uint32_t i = 0; i < c->use_count; i++) {
    keyed[i] = (mk_keyed){.low = c->uses[i].meaning, .entry = i};
  }
  mk_status status = mk_sort_keyed(keyed, c->use_count);
  for (size_t i = 0; status == MK_OK && i < c->use_count; i++) {
    const mk_operand *o = &c->uses[keyed[i].entry].where;
    keyed[i].high = (uint64_t)c->uses[keyed[i].entry].span << 32 | (uint32_t)o->flags << 16 | o->buffer;
    keyed[i].low = (uint64_t)o->row << 48 | (uint64_t)o->col << 32 | (uint32_t)o->rows << 16 | o->cols;
  }
  if (status == MK_OK) {
    status = mk_sort_table(keyed, c->use_count, c->uses, sizeof *c->uses);
  }
  mk_free(keyed);
  return status;
}

static mk_status make_groups(mk_collect *c, mk_keyed **pairs, size_t *pair_count) {
  mk_verifier *v = c->v;
  size_t pair_capacity = 0, end;
  MK_TRY(sort_uses(c));
  for (size_t i = 0; i < c->use_count; i = end) {
    const mk_use *use = &c->uses[i];
    for (end = i; end < c->use_count && c->uses[end].span == use->span && c->uses[end].meaning == use->meaning &&
                  memcmp(&c->uses[end].where, &use->where, sizeof use->where) == 0;
         end++) {
      v->links[(size_t)c->uses[end].instruction * MK_MAX_OPERANDS + c->uses[end].slot].first = (uint32_t)v->group_count;
    }
    MK_TRY(mk_grow(&v->groups, &c->group_capacity, v->group_count + 1, sizeof *v->groups));
    /* With several rows, which units a COMBINE waits for depends on the slots. */
    bool none = use->span == NOT_CERTAIN || (use->span != 0 && mk_program_rows(v->program) > 1);
    uint64_t certain = none             ? 0
                       : use->span == 0 ? use->where.rows
                                        : (uint64_t)v->program->ranges.position.low / use->span + 1;
    v->groups[v->group_count] =
        (mk_group){.where = use->where,
                   .span = use->span,
                   .certain_rows = certain < use->where.rows ? (uint32_t)certain : use->where.rows,
                   .reads = (uint32_t)(end - i)};
    MK_TRY(add_readers(c, &v->groups[v->group_count], use, end - i));
    MK_TRY(find_writers(c, (uint32_t)v->group_count, use, pairs, pair_count, &pair_capacity));
    v->group_count++;
  }
  return MK_OK;
}

static mk_status link_writers(mk_collect *c) {
  mk_verifier *v = c->v;
  mk_keyed *pairs = NULL; /* a write and a group that waits for it */
  size_t count = 0;
  mk_status status = make_groups(c, &pairs, &count);
  if (status == MK_OK) {
    status = mk_sort_keyed(pairs, count);
  }
  if (status == MK_OK) {
    status = mk_alloc(count, sizeof *v->targets, &v->targets);
  }
  if (status == MK_OK) {
    for (size_t i = 0; i < count; i++) {
      mk_write *w = &v->writes[pairs[i].low];
      const mk_group *group = &v->groups[pairs[i].entry];
      if (w->group_count++ == 0) {
        w->first_group = (uint32_t)i;
      }
      uint32_t row = (uint32_t)(w->key >> 16 & 0xffff) - group->where.row, col = (uint32_t)(w->key & 0xffff);
      v->targets[i] =
          (mk_target){.group = pairs[i].entry,
                      .certain = row < group->certain_rows && !w->long_only && !w->anywhere,
                      .whole = group->where.col <= col && w->end <= (uint32_t)group->where.col + group->where.cols};
    }
  }
  mk_free(pairs);
  return status;
}

static size_t cut_at(const mk_verifier *v, uint64_t key) {
  size_t low = 0, high = v->cut_count;
  while (low < high) {
    size_t middle = low + (high - low) / 2;
    if (v->cuts[middle] < key) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

mk_span mk_segments_of(const mk_verifier *v, const mk_operand *o, uint32_t row) {
  uint64_t key = mk_cell_key(o->buffer, o->row + row, o->col);
  size_t first = cut_at(v, key);
  return (mk_span){.first = (uint32_t)first, .count = (uint32_t)(cut_at(v, key + o->cols) - first)};
}

uint32_t mk_span_of(const mk_verifier *v, mk_span span) {
  size_t low = 0, high = v->span_count - 1;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    const mk_span *at = &v->spans[middle];
    if (at->first < span.first || (at->first == span.first && at->count < span.count)) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return (uint32_t)low;
}

static mk_status sort_cuts(mk_verifier *v) {
  mk_keyed *keyed;
  MK_TRY(mk_alloc(v->cut_count, sizeof *keyed, &keyed));
  for (size_t i = 0; i < v->cut_count; i++) {
    keyed[i] = (mk_keyed){.low = v->cuts[i]};
  }
  const mk_status status = mk_sort_keyed(keyed, v->cut_count);
  for (size_t i = 0; i < v->cut_count; i++) {
    v->cuts[i] = keyed[i].low;
  }
  mk_free(keyed);
  return status;
}

/* Links operands to their segments, and lists the spans that they read. */
static mk_status list_segments(mk_collect *c, mk_keyed **spans, size_t *count) {
  mk_verifier *v = c->v;
  size_t capacity = 0;
  for (size_t i = 0; i < c->plain_count; i++) {
    const mk_operand *o = plain_operand(v, c->plain[i]);
    const bool read = plain_info(v, c->plain[i])->access != MK_ACCESS_WRITE;
    for (uint32_t r = 0; r < o->rows && (r == 0 || read); r++) {
      const mk_span span = mk_segments_of(v, o, r);
      if (r == 0) {
        v->links[c->plain[i]] = (mk_link){.first = span.first, .count = span.count};
      }
      if (read) {
        MK_TRY(mk_grow(spans, &capacity, *count + 1, sizeof **spans));
        (*spans)[(*count)++] = (mk_keyed){.low = (uint64_t)span.first << 32 | span.count};
      }
    }
  }
  return MK_OK;
}

static mk_status keep_spans(mk_verifier *v, mk_keyed *spans, size_t count) {
  MK_TRY(mk_sort_keyed(spans, count));
  MK_TRY(mk_alloc(count, sizeof *v->spans, &v->spans));
  for (size_t i = 0; i < count; i++) {
    if (i == 0 || spans[i].low != spans[i - 1].low) {
      mk_span *span = &v->spans[v->span_count++];
      *span = (mk_span){.first = (uint32_t)(spans[i].low >> 32), .count = (uint32_t)spans[i].low};
      span->reach = span->first + span->count;
      span->reach = span != v->spans && span[-1].reach > span->reach ? span[-1].reach : span->reach;
    }
  }
  return MK_OK;
}

static void link_spans(const mk_collect *c) {
  for (size_t i = 0; i < c->plain_count; i++) {
    mk_link *link = &c->v->links[c->plain[i]];
    if (plain_info(c->v, c->plain[i])->access == MK_ACCESS_READ) {
      link->first = mk_span_of(c->v, (mk_span){.first = link->first, .count = link->count});
    }
  }
}

static mk_status link_segments(mk_collect *c) {
  mk_verifier *v = c->v;
  size_t kept = 0, count = 0;
  mk_keyed *spans = NULL;
  MK_TRY(sort_cuts(v));
  for (size_t i = 0; i < v->cut_count; i++) {
    if (kept == 0 || v->cuts[i] != v->cuts[kept - 1]) {
      v->cuts[kept++] = v->cuts[i];
    }
  }
  v->cut_count = kept;
  mk_status status = list_segments(c, &spans, &count);
  if (status == MK_OK && count != 0) {
    status = keep_spans(v, spans, count);
  }
  mk_free(spans);
  if (status == MK_OK) {
    link_spans(c);
  }
  return status;
}

/* By key, and those of one key in the order of instructions. */
static mk_status sort_writes(mk_verifier *v) {
  mk_keyed *keyed;
  MK_TRY(mk_alloc(v->write_count, sizeof *keyed, &keyed));
  for (uint32_t i = 0; i < v->write_count; i++) {
    keyed[i] = (mk_keyed){.low = v->writes[i].key, .entry = i};
  }
  const mk_status status = mk_sort_table(keyed, v->write_count, v->writes, sizeof *v->writes);
  mk_free(keyed);
  return status;
}

/* Marks the buffers of listed operands: what a work list writes is for its checker to say. */
static void mark_listed(const mk_verifier *v, bool *listed) {
  for (uint32_t i = 0; i < v->program->instruction_count; i++) {
    const mk_opcode_info *info = mk_info(mk_at(v, i));
    for (uint32_t slot = 0; slot < info->operand_count; slot++) {
      if (info->operands[slot].when == MK_WHEN_LISTED) {
        listed[mk_at(v, i)->operands[slot].buffer] = true;
      }
    }
  }
}

/* O01: what the host reads is written in every epoch; the ring, which is indexed by position, is written somewhere. */
static mk_status check_written(mk_verifier *v, const bool *listed) {
  for (uint32_t buffer = 0; buffer < v->program->buffer_count; buffer++) {
    const mk_buffer *b = &v->program->buffers[buffer];
    if (b->kind != MK_KIND_OUTPUT || listed[buffer]) {
      continue;
    }
    uint32_t rows = mk_buffer_grid_rows(b), cols = mk_buffer_grid_cols(b);
    size_t w = writes_above(v, mk_cell_key(buffer, 0, 0) - (buffer != 0));
    if (buffer == 0) {
      w = 0;
    }
    for (uint32_t row = 0; row < rows; row++) {
      uint32_t covered = 0;
      for (; w < v->write_count && v->writes[w].key >> 16 == ((uint64_t)buffer << 16 | row); w++) {
        if ((v->writes[w].key & 0xffff) <= covered && v->writes[w].end > covered && !v->writes[w].long_only) {
          covered = v->writes[w].end;
        }
      }
      if (covered < cols) {
        return mk_reject(v, "O01", MK_NONE_INDEX,
                         "buffer %s: tile (%u, %u) of this output is not written in every epoch", b->name, row,
                         covered);
      }
    }
  }
  return MK_OK;
}

static mk_status check_outputs(mk_verifier *v) {
  bool *listed;
  MK_TRY(mk_alloc(v->program->buffer_count, sizeof *listed, &listed));
  mark_listed(v, listed);
  mk_status status = check_written(v, listed);
  mk_free(listed);
  return status;
}

static mk_status build(mk_collect *c) {
  mk_verifier *v = c->v;
  size_t count = v->program->instruction_count;
  MK_TRY(mk_alloc(count * MK_MAX_OPERANDS, sizeof *v->links, &v->links));
  for (size_t i = 0; i < count * MK_MAX_OPERANDS; i++) {
    v->links[i].first = MK_NONE_INDEX;
  }
  MK_TRY(mk_alloc(count, sizeof *v->lines_of, &v->lines_of));
  for (uint32_t i = 0; i < count; i++) {
    v->lines_of[i] = mk_instruction_lines(v->program, mk_at(v, i));
    MK_TRY(collect(c, i));
  }
  if (v->write_count != 0) {
    MK_TRY(sort_writes(v));
  }
  for (size_t i = 0; i < v->write_count; i++) {
    if (is_stamped(v, &v->writes[i])) {
      v->links[(size_t)v->writes[i].instruction * MK_MAX_OPERANDS + v->writes[i].slot].first = (uint32_t)i;
    }
  }
  MK_TRY(check_single_writers(v));
  if (c->use_count != 0) {
    MK_TRY(link_writers(c));
  }
  if (v->cut_count != 0) {
    MK_TRY(link_segments(c));
  }
  return check_outputs(v);
}

mk_status mk_verify_access(mk_verifier *v) {
  mk_collect c = {.v = v};
  mk_status status = build(&c);
  mk_free(c.uses);
  mk_free(c.plain);
  return status;
}
