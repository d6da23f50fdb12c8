/* Phase 1: the program's tables but for buffers (buffers.c), and each instruction by itself. Rules S01, S03-S08, B01,
 * P01-P04, E01-E03, E05. */
#include <inttypes.h>
#include <string.h>

#include "vm/program/strips.h"
#include "vm/verify/internal.h"
#include "vm/verify/sort.h"

enum {
  MAX_POSITION = 1 << 30,
  MAX_INSTRUCTIONS = 1 << 28,
  MAX_MACHINE_FIELD = 1 << 30,
};

static mk_status check_machine(mk_verifier *v) {
  const mk_machine *m = &v->program->machine;
  const struct {
    const char *name;
    uint32_t value;
  } fields[] = {{"sms", m->sms},
                {"page_bytes", m->page_bytes},
                {"ring_pages", m->ring_pages},
                {"resident_bytes", m->resident_bytes},
                {"copy_bytes", m->copy_bytes},
                {"consumer_warps", m->consumer_warps},
                {"loader_warps", m->loader_warps},
                {"instruction_ring", m->instruction_ring},
                {"result_slots", m->result_slots},
                {"ranks", m->ranks}};
  for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
    if (fields[i].value == 0 || fields[i].value > MAX_MACHINE_FIELD) {
      return mk_reject(v, "S01", MK_NONE_INDEX, "machine: %s is %u; it must be from 1 to 2^30", fields[i].name,
                       fields[i].value);
    }
  }
  if (m->ranks > MK_MAX_RANKS) {
    return mk_reject(v, "S01", MK_NONE_INDEX, "machine: ranks is %u; a program has at most %d", m->ranks, MK_MAX_RANKS);
  }
  const mk_step_ranges *r = &v->program->ranges;
  if (r->position.low > r->position.high || r->position.high >= MAX_POSITION) {
    return mk_reject(v, "S01", MK_NONE_INDEX, "ranges: position is %u to %u; it must rise and stay below 2^30",
                     r->position.low, r->position.high);
  }
  if (r->token.low > r->token.high || r->block.low > r->block.high) {
    return mk_reject(v, "S01", MK_NONE_INDEX, "ranges: token is %u to %u, block %u to %u; both must rise", r->token.low,
                     r->token.high, r->block.low, r->block.high);
  }
  if (r->batch.low != 1 || r->batch.high < 1 || r->batch.high > MK_MOST_ROWS ||
      (r->batch.high & (r->batch.high - 1)) != 0) {
    return mk_reject(v, "S01", MK_NONE_INDEX,
                     "ranges: batch is %u to %u; of 1, 2, 4, ... or %d rows of a step at least one is active",
                     r->batch.low, r->batch.high, MK_MOST_ROWS);
  }
  if (r->slot.low != 0 || r->slot.high >= r->batch.high) {
    return mk_reject(v, "S01", MK_NONE_INDEX, "ranges: slot is %u to %u; %u rows are of slots 0 to %u at most",
                     r->slot.low, r->slot.high, r->batch.high, r->batch.high - 1);
  }
  return MK_OK;
}

static mk_status check_queues(mk_verifier *v) {
  const mk_program *p = v->program;
  if ((uint64_t)p->machine.sms * p->machine.ranks != p->queue_count || p->instruction_count > MAX_INSTRUCTIONS) {
    return mk_reject(v, "S03", MK_NONE_INDEX,
                     "%zu queues, %zu instructions; %u SMs on %u ranks have %" PRIu64
                     " queues, and 2^28 instructions are the most",
                     p->queue_count, p->instruction_count, p->machine.sms, p->machine.ranks,
                     (uint64_t)p->machine.sms * p->machine.ranks);
  }
  uint64_t next = 0;
  for (size_t q = 0; q < p->queue_count; q++) {
    bool held = p->queues[q].first == next || p->queues[q].count == 0;
    next += p->queues[q].count;
    if (!held || next > p->instruction_count || p->queues[q].rank != q / p->machine.sms) {
      return mk_reject(v, "S03", MK_NONE_INDEX,
                       "queue %zu: first %u, count %u, rank %u; queues follow each other in order of rank and SM", q,
                       p->queues[q].first, p->queues[q].count, p->queues[q].rank);
    }
  }
  if (next != p->instruction_count) {
    return mk_reject(v, "S03", MK_NONE_INDEX, "the queues hold %" PRIu64 " instructions, the program %zu", next,
                     p->instruction_count);
  }
  MK_TRY(mk_alloc(p->instruction_count, sizeof *v->queue_of, &v->queue_of));
  MK_TRY(mk_alloc(p->queue_count, sizeof *v->lane_of, &v->lane_of));
  for (uint32_t q = 0; q < p->queue_count; q++) {
    v->lane_of[q] = v->lanes;
    v->lanes += p->queues[q].count != 0;
    for (uint32_t i = 0; i < p->queues[q].count; i++) {
      v->queue_of[p->queues[q].first + i] = q;
    }
  }
  return MK_OK;
}

static mk_status check_uids(mk_verifier *v) {
  size_t count = v->program->instruction_count;
  mk_keyed *uids;
  MK_TRY(mk_alloc(count, sizeof *uids, &uids));
  for (uint32_t i = 0; i < count; i++) {
    uids[i] = (mk_keyed){.low = mk_at(v, i)->uid, .entry = i};
  }
  mk_status status = mk_sort_keyed(uids, count);
  for (size_t i = 0; i < count && status == MK_OK; i++) {
    if (uids[i].low == 0) {
      status = mk_reject(v, "S05", uids[i].entry, "uid is 0, which stands for none; uids begin at 1");
    } else if (i != 0 && uids[i].low == uids[i - 1].low) {
      status = mk_reject(v, "S05", uids[i].entry, "uid %u is also that of %s; uids are unique", (uint32_t)uids[i].low,
                         mk_place_of(v, uids[i - 1].entry).text);
    }
  }
  mk_free(uids);
  return status;
}

static mk_status check_word(mk_verifier *v, uint32_t index) {
  const mk_instruction *in = mk_at(v, index);
  const mk_opcode_info *info = mk_info(in);
  if (info == NULL || in->version != MK_INSTRUCTION_VERSION || (in->flags & ~MK_FUSED) != 0 ||
      in->wait_count > MK_MAX_WAITS || in->signal_count > MK_MAX_SIGNALS) {
    return mk_reject(v, "S04", index,
                     "opcode %u, version %u, %u waits, %u signals, flags 0x%x is not an instruction of version %d",
                     in->opcode, in->version, in->wait_count, in->signal_count, in->flags, MK_INSTRUCTION_VERSION);
  }
  for (uint32_t i = in->wait_count; i < MK_MAX_WAITS; i++) {
    if (in->waits[i].counter != 0 || in->waits[i].threshold != 0) {
      return mk_reject(v, "S04", index, "wait %u is unused and must be zero", i);
    }
  }
  for (uint32_t i = in->signal_count; i < MK_MAX_SIGNALS; i++) {
    if (in->signals[i].counter != 0 || in->signals[i].amount != 0) {
      return mk_reject(v, "S04", index, "signal %u is unused and must be zero", i);
    }
  }
  for (uint32_t i = info->operand_count; i < MK_MAX_OPERANDS; i++) {
    static const mk_operand none;
    if (memcmp(&in->operands[i], &none, sizeof none) != 0) {
      return mk_reject(v, "S04", index, "operand %u is unused and must be zero", i);
    }
  }
  for (uint32_t i = info->param_count; i < MK_MAX_PARAMS; i++) {
    if (in->params[i] != 0) {
      return mk_reject(v, "S04", index, "parameter %u is 0x%x; it is unused and must be zero", i, in->params[i]);
    }
  }
  return MK_OK;
}

/* The store that the slot asks for, given whether the operand is the token's row. */
static bool store_fits(const mk_operand_info *slot, const mk_buffer *b, bool token_row) {
  switch (slot->store) {
    case MK_OPERAND_STORE_PLAIN:
      return !token_row && b->store == MK_STORE_PLAIN;
    case MK_OPERAND_STORE_STAMPED:
      return !token_row && b->store == MK_STORE_STAMPED;
    case MK_OPERAND_STORE_TILES:
      return !token_row && b->store == MK_STORE_TILES;
    case MK_OPERAND_STORE_BLOCKS:
      return !token_row && b->store == MK_STORE_BLOCKS;
    case MK_OPERAND_STORE_VALUE:
      return !token_row && (b->store == MK_STORE_STAMPED || b->store == MK_STORE_PLAIN);
    case MK_OPERAND_STORE_INPUT:
      return token_row ? b->store == MK_STORE_TILES : b->store == MK_STORE_STAMPED || b->store == MK_STORE_PLAIN;
    case MK_OPERAND_STORE_RESIDUAL:
      return b->store == (token_row ? MK_STORE_TILES : MK_STORE_PLAIN);
  }
  return false;
}

static mk_status check_type(mk_verifier *v, uint32_t index, const mk_operand_info *slot, const mk_operand *o) {
  const mk_buffer *b = &v->program->buffers[o->buffer];
  bool token_row = (o->flags & MK_OPERAND_TOKEN_ROW) != 0;
  if ((o->flags & ~MK_OPERAND_TOKEN_ROW) != 0 || !store_fits(slot, b, token_row)) {
    return mk_reject(v, "S07", index, "%s: buffer %s is stored as %s, flags 0x%x; the operand does not take that",
                     slot->name, b->name, mk_store_name(b->store), o->flags);
  }
  mk_dtype dtype = token_row ? MK_DTYPE_BF16 : slot->dtype;
  bool value = slot->store == MK_OPERAND_STORE_VALUE || (slot->store == MK_OPERAND_STORE_INPUT && !token_row);
  if (value && mk_constant(b)) {
    return mk_reject(v, "S07", index, "%s: buffer %s is of kind %s; the operand takes what instructions write",
                     slot->name, b->name, mk_kind_name(b->kind));
  }
  const bool may = slot->store == MK_OPERAND_STORE_TILES || slot->store == MK_OPERAND_STORE_BLOCKS;
  const bool quantised = may && !token_row && mk_dtype_is_quantised(b->dtype);
  if (b->dtype != dtype && !quantised) {
    return mk_reject(v, "S07", index, "%s: buffer %s holds %s; the operand takes %s", slot->name, b->name,
                     mk_dtype_name(b->dtype), mk_dtype_name(dtype));
  }
  if (slot->access == MK_ACCESS_WRITE && slot->store != MK_OPERAND_STORE_BLOCKS && b->kind != MK_KIND_ACTIVATION &&
      b->kind != MK_KIND_OUTPUT) {
    return mk_reject(v, "S07", index, "%s: writes buffer %s of kind %s; only activation and output are written",
                     slot->name, b->name, mk_kind_name(b->kind));
  }
  /* A machine writes scores and rounds only where an instruction will look at them. */
  bool spared = slot->content == MK_CONTENT_SCORES || slot->content == MK_CONTENT_ROUND;
  if (slot->access == MK_ACCESS_WRITE && spared && b->kind != MK_KIND_ACTIVATION) {
    return mk_reject(v, "S07", index,
                     "%s: buffer %s is of kind %s; these words are written where they are needed alone, and are "
                     "no output",
                     slot->name, b->name, mk_kind_name(b->kind));
  }
  if ((slot->when == MK_WHEN_EARLY || token_row) && !mk_constant(b)) {
    return mk_reject(v, "S08", index,
                     "%s: buffer %s of kind %s is read without any wait; it must be a weight or an input", slot->name,
                     b->name, mk_kind_name(b->kind));
  }
  return MK_OK;
}

/* Who may touch the buffer: proxies, scope, rank. */
static mk_status check_reach(mk_verifier *v, uint32_t index, const mk_operand_info *slot, const mk_operand *o) {
  const mk_buffer *b = &v->program->buffers[o->buffer];
  bool update = slot->access == MK_ACCESS_UPDATE;
  uint32_t proxies =
      update ? MK_PROXY_GENERIC | MK_PROXY_ASYNC : (slot->role == MK_ROLE_LOADER ? MK_PROXY_ASYNC : MK_PROXY_GENERIC);
  if ((b->proxy & proxies) != proxies) {
    return mk_reject(v, "P03", index, "%s: the %s touches buffer %s through proxies %u, the buffer allows %u",
                     slot->name, update ? "loader and consumer" : mk_role_name(slot->role), b->name, proxies, b->proxy);
  }
  uint32_t rank = mk_queue_rank(v->program, v->queue_of[index]);
  if (slot->when == MK_WHEN_LISTED && slot->access != MK_ACCESS_READ && mk_buffer_is_pushed(v->program, b)) {
    return mk_reject(v, "P04", index,
                     "%s: buffer %s has a copy on each rank, and a work list says what is written; it must lie on one",
                     slot->name, b->name);
  }
  if (mk_rank_name(b->rank) != NULL) { /* DEALT: whose a tile is, race.c says */
    return !mk_buffer_is_pushed(v->program, b) || b->scope == MK_SCOPE_SYS
               ? MK_OK
               : mk_reject(v, "P04", index,
                           "%s: buffer %s of scope %s has a copy on each rank, which the others write; it needs "
                           "scope sys",
                           slot->name, b->name, mk_scope_name(b->scope));
  }
  if (b->scope != MK_SCOPE_SYS && b->rank != rank) {
    return mk_reject(v, "P04", index, "%s: buffer %s of scope %s lies on rank %u; another rank needs scope sys",
                     slot->name, b->name, mk_scope_name(b->scope), b->rank);
  }
  return MK_OK;
}

static mk_status check_operands(mk_verifier *v, uint32_t index) {
  const mk_instruction *in = mk_at(v, index);
  const mk_opcode_info *info = mk_info(in);
  for (uint32_t i = 0; i < info->operand_count; i++) {
    const mk_operand *o = &in->operands[i];
    const mk_operand_info *slot = &info->operands[i];
    if (o->buffer >= v->program->buffer_count) {
      return mk_reject(v, "S06", index, "%s: buffer is %u; the program has %zu", slot->name, o->buffer,
                       v->program->buffer_count);
    }
    if (mk_operand_empty(o)) {
      if (!slot->optional || o->rows != 0 || o->cols != 0 || o->row != 0 || o->col != 0 || o->flags != 0) {
        return mk_reject(
            v, "S06", index, "%s: %u x %u tiles; %s", slot->name, o->rows, o->cols,
            slot->optional ? "an empty operand is all zeros but for its buffer" : "this operand may not be empty");
      }
      continue;
    }
    if (slot->extent == MK_EXTENT_WHOLE && !mk_operand_is_whole(v->program, o)) {
      return mk_reject(v, "S13", index,
                       "%s: tiles [%u:%u,%u:%u] of buffer %s, flags 0x%x; this operand is its buffer whole", slot->name,
                       o->row, o->row + o->rows, o->col, o->col + o->cols, v->program->buffers[o->buffer].name,
                       o->flags);
    }
    MK_TRY(check_type(v, index, slot, o));
    MK_TRY(check_reach(v, index, slot, o));
    const mk_buffer *b = &v->program->buffers[o->buffer];
    uint32_t rows = mk_buffer_grid_rows(b), cols = mk_buffer_grid_cols(b);
    if ((uint32_t)o->row + o->rows > rows || (uint32_t)o->col + o->cols > cols) {
      return mk_reject(v, "B01", index, "%s: tiles [%u:%u,%u:%u] of buffer %s, which has %u x %u", slot->name, o->row,
                       o->row + o->rows, o->col, o->col + o->cols, b->name, rows, cols);
    }
  }
  return MK_OK;
}

static mk_status check_resources(mk_verifier *v, uint32_t index) {
  const mk_instruction *in = mk_at(v, index);
  uint32_t pages = mk_instruction_pages(v->program, in), resident = mk_instruction_resident(v->program, in);
  if (in->pages != pages) {
    return mk_reject(v, "P01", index, "pages is %u; its operands stream %u", in->pages, pages);
  }
  if ((uint64_t)in->resident * MK_RESIDENT_UNIT != resident || resident > v->program->machine.resident_bytes) {
    return mk_reject(v, "P02", index, "resident is %u bytes; its operands need %u, the machine has %u",
                     in->resident * (uint32_t)MK_RESIDENT_UNIT, resident, v->program->machine.resident_bytes);
  }
  return MK_OK;
}

static mk_status check_counter(mk_verifier *v, uint32_t index, const char *what, uint32_t counter) {
  if (counter >= v->program->counter_count) {
    return mk_reject(v, "E01", index, "%s names counter %u; the program has %zu", what, counter,
                     v->program->counter_count);
  }
  const mk_counter *c = &v->program->counters[counter];
  if (c->rank == MK_RANK_EACH) {
    return v->program->machine.ranks == 1 || c->scope == MK_SCOPE_SYS
               ? MK_OK
               : mk_reject(v, "P04", index,
                           "%s: counter %s of scope %s has a copy on each rank, to which all add; it needs scope sys",
                           what, c->name, mk_scope_name(c->scope));
  }
  if (c->scope != MK_SCOPE_SYS && c->rank != v->queue_of[index] / v->program->machine.sms) {
    return mk_reject(v, "P04", index, "%s: counter %s of scope %s lies on rank %u; another rank needs scope sys", what,
                     c->name, mk_scope_name(c->scope), c->rank);
  }
  return MK_OK;
}

/* Rule E05. With 2 to 32 rows per step, and with 64 of one slot, several storers finish an instruction, each its own
 * lines, so none of them could signal for all. In programs of tiles of lines (mk_program_has_tiles) the lines of a tile
 * are finished together. */
static mk_status check_kinds(mk_verifier *v) {
  const uint32_t rows = mk_program_rows(v->program);
  const bool none = rows > 1 && !mk_program_has_tiles(v->program);
  for (size_t c = 0; c < v->program->counter_count && none; c++) {
    if (v->program->counters[c].kind == MK_COUNTER_RELEASE) {
      return mk_reject(
          v, "E05", MK_NONE_INDEX,
          "counter %s is a release counter; programs of 2 to %d rows per step have none, and %d of one slot",
          v->program->counters[c].name, MK_PROMPT_ROWS / 2, MK_PROMPT_ROWS);
    }
  }
  return MK_OK;
}

static mk_status check_edges(mk_verifier *v) {
  const mk_program *p = v->program;
  uint64_t *totals;
  for (size_t c = 0; c < p->counter_count; c++) {
    const mk_counter *counter = &p->counters[c];
    if (counter->kind >= MK_COUNTER_KIND_COUNT || counter->scope >= MK_SCOPE_COUNT ||
        (counter->rank >= p->machine.ranks && counter->rank != MK_RANK_EACH) || counter->total > MK_MAX_COORDINATE ||
        memchr(counter->name, 0, sizeof counter->name) == NULL) {
      return mk_reject(v, "E01", MK_NONE_INDEX,
                       "counter %zu: kind %u, scope %u, rank %u, total %u; at most %d signals an epoch", c,
                       counter->kind, counter->scope, counter->rank, counter->total, MK_MAX_COORDINATE);
    }
  }
  MK_TRY(check_kinds(v));
  MK_TRY(mk_alloc(p->counter_count, sizeof *totals, &totals));
  mk_status status = MK_OK;
  for (uint32_t i = 0; i < p->instruction_count; i++) {
    const mk_instruction *in = mk_at(v, i);
    for (uint32_t k = 0; k < in->signal_count; k++) {
      MK_TRY_GOTO(check_counter(v, i, "a signal", in->signals[k].counter), done);
      if (in->signals[k].amount == 0) {
        status = mk_reject(v, "E01", i, "the signal of counter %s adds 0; drop it",
                           p->counters[in->signals[k].counter].name);
        goto done;
      }
      totals[in->signals[k].counter] += in->signals[k].amount;
    }
    v->report.signals += in->signal_count;
    v->report.waits += in->wait_count;
  }
  for (size_t c = 0; c < p->counter_count; c++) {
    if (totals[c] != p->counters[c].total) {
      status =
          mk_reject(v, "E02", MK_NONE_INDEX, "counter %s: total is %u; its signals add up to %" PRIu64 " per epoch",
                    p->counters[c].name, p->counters[c].total, totals[c]);
      goto done;
    }
  }
  for (uint32_t i = 0; i < p->instruction_count; i++) {
    const mk_instruction *in = mk_at(v, i);
    for (uint32_t k = 0; k < in->wait_count; k++) {
      MK_TRY_GOTO(check_counter(v, i, "a wait", in->waits[k].counter), done);
      const mk_counter *c = &p->counters[in->waits[k].counter];
      if (in->waits[k].threshold == 0 || in->waits[k].threshold > c->total) {
        status = mk_reject(v, "E03", i, "waits for %u signals of counter %s, which gets %u per epoch",
                           in->waits[k].threshold, c->name, c->total);
        goto done;
      }
    }
  }
done:
  mk_free(totals);
  return status;
}

/* Buffers and counters of scope SM belong to the queue of the first instruction that touches them: *owner - 1. */
static mk_status claim(mk_verifier *v, uint32_t *owner, uint32_t index, const char *what, const char *name) {
  if (*owner == 0) {
    *owner = index + 1;
  }
  if (v->queue_of[*owner - 1] != v->queue_of[index]) {
    return mk_reject(v, "P04", index, "%s %s has scope sm and is also used by %s; it needs scope gpu", what, name,
                     mk_place_of(v, *owner - 1).text);
  }
  return MK_OK;
}

static mk_status check_private(mk_verifier *v, uint32_t *buffers, uint32_t *counters) {
  const mk_program *p = v->program;
  for (uint32_t i = 0; i < p->instruction_count; i++) {
    const mk_instruction *in = mk_at(v, i);
    for (uint32_t k = 0; k < mk_info(in)->operand_count; k++) {
      const mk_operand *o = &in->operands[k];
      if (!mk_operand_empty(o) && p->buffers[o->buffer].scope == MK_SCOPE_SM) {
        MK_TRY(claim(v, &buffers[o->buffer], i, "buffer", p->buffers[o->buffer].name));
      }
    }
    for (uint32_t k = 0; k < in->wait_count + in->signal_count; k++) {
      uint32_t c = k < in->wait_count ? in->waits[k].counter : in->signals[k - in->wait_count].counter;
      if (p->counters[c].scope == MK_SCOPE_SM) {
        MK_TRY(claim(v, &counters[c], i, "counter", p->counters[c].name));
      }
    }
  }
  return MK_OK;
}

static mk_status check_scopes(mk_verifier *v) {
  uint32_t *buffers, *counters = NULL;
  MK_TRY(mk_alloc(v->program->buffer_count, sizeof *buffers, &buffers));
  mk_status status = mk_alloc(v->program->counter_count, sizeof *counters, &counters);
  if (status == MK_OK) {
    status = check_private(v, buffers, counters);
  }
  mk_free(buffers);
  mk_free(counters);
  return status;
}

mk_status mk_verify_structure(mk_verifier *v) {
  const mk_program *p = v->program;
  MK_TRY(check_machine(v));
  MK_TRY(check_queues(v));
  MK_TRY(mk_verify_buffers(v));
  v->report.instructions = p->instruction_count;
  for (uint32_t i = 0; i < p->instruction_count; i++) {
    MK_TRY(check_word(v, i));
  }
  MK_TRY(check_uids(v));
  for (uint32_t i = 0; i < p->instruction_count; i++) {
    MK_TRY(check_operands(v, i));
    MK_TRY(mk_verify_shape(v, i));
    MK_TRY(check_resources(v, i));
  }
  MK_TRY(check_edges(v));
  return check_scopes(v);
}
