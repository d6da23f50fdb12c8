/* Phase 2: who reads and writes which words. Rules D02, R04, O01.
 *
 * Stamped reads of one rectangle form a group: they wait for the same writers. As a stamped word has one writer, the
 * writers of a group are disjoint, and together they must cover it. Plain and paged buffers are cut at every end of an
 * access, so that an access is a run of whole segments. */
#include <stdio.h>
#include <string.h>

#include "vm/verify/internal.h"
#include "vm/verify/sort.h"

enum { NOT_CERTAIN = UINT32_MAX }; /* no word of a group need be waited for */

typedef struct mk_use { /* one stamped read */
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

typedef struct mk_pair { /* a write, and a group that waits for it */
  uint32_t write, group;
} mk_pair;

typedef struct mk_collect {
  mk_verifier *v;
  mk_use *uses;
  mk_keyed *uses_by; /* rectangle, span and meaning */
  mk_keyed *cuts;    /* where row i of tiles begins (entry 2 i) and ends (2 i + 1) */
  mk_pair *pairs;
  size_t use_count, cut_count, pair_count, pair_capacity, reader_count;
} mk_collect;

/* What is kept of an operand: a bit for each. */
enum { WRITTEN = 1, AWAITED = 2, TILED = 4 };

static uint32_t kept_of(const mk_verifier *v, const mk_operand_info *info, const mk_operand *o) {
  const mk_buffer *b = &v->program->buffers[o->buffer];
  if (mk_operand_empty(o) || mk_constant(b) || info->when == MK_WHEN_LISTED) {
    return 0; /* listed: ordered by rule L02, disjoint by the list's checker */
  }
  const bool stamped = b->store == MK_STORE_STAMPED;
  return (stamped ? 0 : TILED) | (info->access != MK_ACCESS_READ && b->store != MK_STORE_BLOCKS ? WRITTEN
                                  : stamped                                                     ? AWAITED
                                                                                                : 0);
}

static mk_status collect_write(mk_collect *c, uint32_t index, uint32_t slot) {
  mk_verifier *v = c->v;
  const mk_instruction *in = mk_at(v, index);
  const mk_operand *o = &in->operands[slot];
  if (o->rows != 1) {
    return mk_reject(v, "S10", index, "%s: writes %u rows of tiles; an instruction writes one",
                     mk_info(in)->operands[slot].name, o->rows);
  }
  v->writes[v->write_count++] = (mk_write){.key = mk_cell_key(o->buffer, o->row, o->col),
                                           .end = (uint32_t)o->col + o->cols,
                                           .instruction = index,
                                           .slot = (uint8_t)slot,
                                           .content = (uint8_t)mk_info(in)->operands[slot].content,
                                           .anywhere = mk_fused_anywhere(in),
                                           .long_only = only_when_long(v, in)};
  return MK_OK;
}

/* What sets groups of one rectangle apart: see mk_group. */
static uint32_t span_of(const mk_instruction *in, const mk_operand_info *info) {
  const uint32_t certain = info->when == MK_WHEN_USED ? NOT_CERTAIN : 0;
  return info->content == MK_CONTENT_PARTS ? in->params[MK_PARAM_COMBINE_span] : certain;
}

static void collect_use(mk_collect *c, uint32_t index, uint32_t slot) {
  const mk_verifier *v = c->v;
  const mk_instruction *in = mk_at(v, index);
  const mk_operand_info *info = &mk_info(in)->operands[slot];
  const mk_operand *o = &in->operands[slot];
  c->uses_by[c->use_count] =
      (mk_keyed){.high = (uint64_t)span_of(in, info) << 32 | (uint32_t)o->buffer << 16 | o->row,
                 .low = (uint64_t)o->col << 48 | (uint64_t)o->rows << 32 | (uint32_t)o->cols << 16 | info->content,
                 .entry = (uint32_t)c->use_count};
  c->uses[c->use_count++] = (mk_use){.instruction = index,
                                     .slot = slot,
                                     .thread = mk_thread_of(v, index, info->role),
                                     .time = mk_time(mk_position_of(v, index), MK_DONE)};
}

static void collect_cuts(mk_collect *c, uint32_t index, uint32_t slot) {
  const mk_verifier *v = c->v;
  const mk_operand *o = &mk_at(v, index)->operands[slot];
  const bool read = mk_info(mk_at(v, index))->operands[slot].access != MK_ACCESS_WRITE;
  *mk_link_of(v, index, slot) = (uint32_t)(c->cut_count / 2);
  for (uint32_t r = 0; r < o->rows; r++) {
    const uint64_t begin = mk_cell_key(o->buffer, (uint32_t)o->row + r, o->col);
    v->rows[c->cut_count / 2].span = read ? 0 : MK_NONE_INDEX;
    c->cuts[c->cut_count] = (mk_keyed){.low = begin, .entry = (uint32_t)c->cut_count};
    c->cuts[c->cut_count + 1] = (mk_keyed){.low = begin + o->cols, .entry = (uint32_t)c->cut_count + 1};
    c->cut_count += 2;
  }
}

static mk_status collect(mk_collect *c, uint32_t index) {
  const mk_verifier *v = c->v;
  const mk_instruction *in = mk_at(v, index);
  const mk_opcode_info *info = mk_info(in);
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const uint32_t kept = kept_of(v, &info->operands[slot], &in->operands[slot]);
    *mk_link_of(v, index, slot) = MK_NONE_INDEX;
    if ((kept & WRITTEN) != 0) {
      MK_TRY(collect_write(c, index, slot));
    }
    if ((kept & AWAITED) != 0) {
      collect_use(c, index, slot);
    }
    if ((kept & TILED) != 0) {
      collect_cuts(c, index, slot);
    }
  }
  return MK_OK;
}

/* Memory for what collect will find. */
static mk_status make_room(mk_collect *c) {
  mk_verifier *v = c->v;
  size_t writes = 0, uses = 0, rows = 0;
  for (size_t i = 0; i < v->program->instruction_count; i++) {
    const mk_instruction *in = mk_at(v, i);
    const mk_opcode_info *info = mk_info(in);
    for (uint32_t slot = 0; slot < info->operand_count; slot++) {
      const uint32_t kept = kept_of(v, &info->operands[slot], &in->operands[slot]);
      writes += (kept & WRITTEN) != 0;
      uses += (kept & AWAITED) != 0;
      rows += (kept & TILED) != 0 ? in->operands[slot].rows : 0;
    }
  }
  if (rows > UINT32_MAX / 2) {
    return mk_error(MK_ERR_RUNTIME, "%zu rows of tiles are touched: more than can be verified", rows);
  }
  MK_TRY(mk_alloc(writes, sizeof *v->writes, &v->writes));
  MK_TRY(mk_alloc(uses, sizeof *c->uses, &c->uses));
  MK_TRY(mk_alloc(uses, sizeof *c->uses_by, &c->uses_by));
  MK_TRY(mk_alloc(uses, sizeof *v->readers, &v->readers));
  MK_TRY(mk_alloc(rows, sizeof *v->rows, &v->rows));
  MK_TRY(mk_alloc(2 * rows, sizeof *v->cuts, &v->cuts));
  return mk_alloc(2 * rows, sizeof *c->cuts, &c->cuts);
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
static mk_status find_writers(mk_collect *c, uint32_t group, const mk_use *use) {
  mk_verifier *v = c->v;
  const mk_operand *o = &v->groups[group].where;
  const mk_operand_info *info = &mk_info(mk_at(v, use->instruction))->operands[use->slot];
  uint32_t end = (uint32_t)o->col + o->cols;
  for (uint32_t row = o->row; row < (uint32_t)o->row + o->rows; row++) {
    size_t first, last;
    uint32_t covered = o->col;
    writes_in(v, o->buffer, row, o->col, end, &first, &last);
    MK_TRY(mk_grow(&c->pairs, &c->pair_capacity, c->pair_count + (last - first), sizeof *c->pairs));
    for (size_t w = first; w < last && (v->writes[w].key & 0xffff) <= covered; w++) {
      if (info->content != v->writes[w].content || info->content == MK_CONTENT_PARTS) {
        MK_TRY(mk_verify_value(v, use->instruction, use->slot, &v->writes[w]));
      }
      covered = v->writes[w].end;
      c->pairs[c->pair_count++] = (mk_pair){.write = (uint32_t)w, .group = group};
      v->writes[w].group_count++;
    }
    if (covered < end) {
      return mk_reject(v, "D02", use->instruction,
                       "%s: waits for the stamp of tile (%u, %u) of buffer %s, which nobody writes in an epoch",
                       info->name, row, covered, v->program->buffers[o->buffer].name);
    }
    v->groups[group].writers += (uint32_t)(last - first);
  }
  return MK_OK;
}

/* The readers of one group: the last of every thread stands for all, as a thread goes on in order. */
static void add_readers(mk_collect *c, mk_group *group, const mk_keyed *entries, size_t count) {
  mk_verifier *v = c->v;
  group->first_reader = (uint32_t)c->reader_count;
  for (size_t i = 0; i < count; i++) {
    const mk_use *use = &c->uses[entries[i].entry];
    const mk_reader reader = {.instruction = use->instruction, .thread = use->thread, .index = use->time};
    if (group->reader_count == 0 || v->readers[c->reader_count - 1].thread != reader.thread) {
      c->reader_count++;
      group->reader_count++;
    }
    v->readers[c->reader_count - 1] = reader;
  }
}

static bool same_keys(const mk_keyed *a, const mk_keyed *b) { return a->high == b->high && a->low == b->low; }

/* Reads of one rectangle, span and meaning are a group. */
static mk_status make_groups(mk_collect *c) {
  mk_verifier *v = c->v;
  const mk_keyed *by = c->uses_by;
  size_t groups = 0, end;
  MK_TRY(mk_sort_keyed(c->uses_by, c->use_count));
  for (size_t i = 0; i < c->use_count; i++) {
    groups += i == 0 || !same_keys(&by[i], &by[i - 1]);
  }
  MK_TRY(mk_alloc(groups, sizeof *v->groups, &v->groups));
  for (size_t i = 0; i < c->use_count; i = end) {
    const mk_use *use = &c->uses[by[i].entry];
    const mk_instruction *in = mk_at(v, use->instruction);
    const mk_operand *where = &in->operands[use->slot];
    const uint32_t span = span_of(in, &mk_info(in)->operands[use->slot]);
    /* With several rows, which units a COMBINE waits for depends on the slots; and one that is done elsewhere waits for
     * none. */
    bool none = span == NOT_CERTAIN || (span != 0 && mk_program_rows(v->program) > 1);
    for (end = i; end < c->use_count && same_keys(&by[end], &by[i]); end++) {
      const mk_use *reader = &c->uses[by[end].entry];
      *mk_link_of(v, reader->instruction, reader->slot) = (uint32_t)v->group_count;
      none |= mk_fused_anywhere(mk_at(v, reader->instruction));
    }
    const uint64_t certain = none ? 0 : span == 0 ? where->rows : (uint64_t)v->program->ranges.position.low / span + 1;
    v->groups[v->group_count] = (mk_group){.where = *where,
                                           .span = span,
                                           .certain_rows = certain < where->rows ? (uint32_t)certain : where->rows,
                                           .reads = (uint32_t)(end - i)};
    add_readers(c, &v->groups[v->group_count], &by[i], end - i);
    MK_TRY(find_writers(c, (uint32_t)v->group_count, use));
    v->group_count++;
  }
  return MK_OK;
}

/* Lists the groups of each write. */
static mk_status link_writers(mk_collect *c) {
  mk_verifier *v = c->v;
  uint32_t next = 0;
  MK_TRY(make_groups(c));
  MK_TRY(mk_alloc(c->pair_count, sizeof *v->targets, &v->targets));
  for (size_t w = 0; w < v->write_count; w++) {
    v->writes[w].first_group = next;
    next += v->writes[w].group_count;
    v->writes[w].group_count = 0;
  }
  for (size_t i = 0; i < c->pair_count; i++) {
    mk_write *w = &v->writes[c->pairs[i].write];
    const mk_group *group = &v->groups[c->pairs[i].group];
    uint32_t row = (uint32_t)(w->key >> 16 & 0xffff) - group->where.row, col = (uint32_t)(w->key & 0xffff);
    v->targets[w->first_group + w->group_count++] =
        (mk_target){.group = c->pairs[i].group,
                    .certain = row < group->certain_rows && !w->long_only && !w->anywhere,
                    .whole = group->where.col <= col && w->end <= (uint32_t)group->where.col + group->where.cols};
  }
  return MK_OK;
}

/* Cuts buffers, and finds the segments of each row of tiles. */
static mk_status cut(mk_collect *c) {
  mk_verifier *v = c->v;
  MK_TRY(mk_sort_keyed(c->cuts, c->cut_count));
  for (size_t i = 0; i < c->cut_count; i++) {
    if (i == 0 || c->cuts[i].low != c->cuts[i - 1].low) {
      v->cuts[v->cut_count++] = c->cuts[i].low;
    }
    mk_tile_row *row = &v->rows[c->cuts[i].entry / 2];
    if (c->cuts[i].entry % 2 == 0) {
      row->first = (uint32_t)v->cut_count - 1;
    } else {
      row->count = (uint32_t)v->cut_count - 1 - row->first; /* it comes after where it begins */
    }
  }
  return MK_OK;
}

/* Lists the spans that are read. */
static mk_status list_spans(mk_collect *c) {
  mk_verifier *v = c->v;
  mk_keyed *spans = c->cuts; /* which are done with */
  size_t count = 0;
  for (uint32_t row = 0; row < c->cut_count / 2; row++) {
    if (v->rows[row].span != MK_NONE_INDEX) {
      spans[count++] = (mk_keyed){.low = (uint64_t)v->rows[row].first << 32 | v->rows[row].count, .entry = row};
    }
  }
  MK_TRY(mk_sort_keyed(spans, count));
  MK_TRY(mk_alloc(count, sizeof *v->spans, &v->spans));
  for (size_t i = 0; i < count; i++) {
    if (i == 0 || spans[i].low != spans[i - 1].low) {
      mk_span *span = &v->spans[v->span_count++];
      *span = (mk_span){.first = (uint32_t)(spans[i].low >> 32), .count = (uint32_t)spans[i].low};
      span->reach = span->first + span->count;
      span->reach = span != v->spans && span[-1].reach > span->reach ? span[-1].reach : span->reach;
    }
    v->rows[spans[i].entry].span = (uint32_t)v->span_count - 1;
  }
  return MK_OK;
}

/* By key, and those of one key in the order of instructions. */
static mk_status sort_writes(mk_verifier *v) {
  mk_keyed *keyed;
  MK_TRY(mk_alloc(v->write_count, sizeof *keyed, &keyed));
  for (uint32_t i = 0; i < v->write_count; i++) {
    keyed[i] = (mk_keyed){.low = v->writes[i].key, .entry = i};
  }
  const mk_status status = mk_sort_table(keyed, v->write_count, &v->writes, sizeof *v->writes);
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
  MK_TRY(mk_alloc(count, sizeof *v->lines_of, &v->lines_of));
  MK_TRY(make_room(c));
  for (uint32_t i = 0; i < count; i++) {
    v->lines_of[i] = mk_instruction_lines(v->program, mk_at(v, i));
    MK_TRY(collect(c, i));
  }
  MK_TRY(sort_writes(v));
  for (size_t i = 0; i < v->write_count; i++) {
    if (is_stamped(v, &v->writes[i])) {
      *mk_link_of(v, v->writes[i].instruction, v->writes[i].slot) = (uint32_t)i;
    }
  }
  MK_TRY(check_single_writers(v));
  MK_TRY(link_writers(c));
  MK_TRY(cut(c));
  MK_TRY(list_spans(c));
  return check_outputs(v);
}

mk_status mk_verify_access(mk_verifier *v) {
  mk_collect c = {.v = v};
  mk_status status = build(&c);
  mk_free(c.uses);
  mk_free(c.uses_by);
  mk_free(c.cuts);
  mk_free(c.pairs);
  return status;
}
