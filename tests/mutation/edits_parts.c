/* Edits of what instructions touch: operands, buffers, ranges, parameters, and who takes part. See edits.h. */
#include <string.h>

#include "tests/mutation/edits.h"
#include "vm/program/plan.h"

static bool class_shift(mk_program *p, uint64_t *random) { return mutation_apply(p, MUTATION_shift_operand, random); }
static bool class_widen(mk_program *p, uint64_t *random) { return mutation_apply(p, MUTATION_widen_operand, random); }
static bool class_reuse(mk_program *p, uint64_t *random) { return mutation_apply(p, MUTATION_reuse_early, random); }
static bool class_proxy(mk_program *p, uint64_t *random) { return mutation_apply(p, MUTATION_drop_proxy, random); }

static uint32_t operands_of(const mk_instruction *in) { return mk_opcode_lookup(in->opcode)->operand_count; }
static mk_buffer *any_buffer(mk_program *p, uint64_t *random) {
  return &p->buffers[mutation_draw(random, (uint32_t)p->buffer_count)];
}
static uint32_t queue_count(const mk_program *p) { return (uint32_t)p->queue_count; }

/* An operand names another buffer that holds the same type in the same way, where it has as many columns. */
static bool retarget(mk_program *p, uint64_t *random) {
  mk_instruction *in = edit_any(p, random);
  uint32_t slot = mutation_draw(random, operands_of(in));
  mk_operand *o = &in->operands[slot];
  const mk_buffer *was = &p->buffers[o->buffer], *to = any_buffer(p, random);
  bool alike = was->dtype == to->dtype && was->store == to->store && was->cols == to->cols;
  if (was == to || o->rows == 0 || (!alike && mutation_draw(random, 16) != 0)) {
    return false;
  }
  o->buffer = (uint16_t)(to - p->buffers);
  if (mk_opcode_lookup(in->opcode)->operands[slot].extent == MK_EXTENT_WHOLE) {
    *o = mk_operand_whole(p, o->buffer);
  }
  return true;
}

/* An operand moves to other tiles of its buffer, as many as it had. */
static bool other_tiles(mk_program *p, uint64_t *random) {
  mk_instruction *in = edit_any(p, random);
  mk_operand *o = &in->operands[mutation_draw(random, operands_of(in))];
  const mk_buffer *b = &p->buffers[o->buffer];
  uint32_t rows = mk_buffer_grid_rows(b), cols = mk_buffer_grid_cols(b);
  if (o->rows == 0 || o->rows > rows || o->cols > cols || (o->rows == rows && o->cols == cols)) {
    return false;
  }
  o->row = (uint16_t)mutation_draw(random, rows - o->rows + 1);
  o->col = (uint16_t)mutation_draw(random, cols - o->cols + 1);
  return true;
}

/* Two instructions of an opcode change what they write: each goes on to be where the other was. */
static bool swap_operands(mk_program *p, uint64_t *random) {
  mk_instruction *a = edit_any(p, random), *b = edit_any_of(p, a->opcode, random);
  uint32_t slot = mutation_draw(random, operands_of(a));
  if (a == b || memcmp(&a->operands[slot], &b->operands[slot], sizeof a->operands[slot]) == 0) {
    return false;
  }
  mk_operand kept = a->operands[slot];
  a->operands[slot] = b->operands[slot];
  b->operands[slot] = kept;
  return true;
}

/* A second reader of what an instruction reads: a copy that writes to buffers of its own. */
static bool second_reader(mk_program *p, uint64_t *random) {
  mk_instruction copy = *edit_any(p, random);
  const mk_opcode_info *info = mk_opcode_lookup(copy.opcode);
  if (info->state == MK_STATE_WRITE) {
    return false;
  }
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    if (info->operands[slot].access != MK_ACCESS_READ && copy.operands[slot].rows != 0) {
      uint16_t buffer = edit_clone(p, copy.operands[slot].buffer);
      if (buffer == EDIT_NO_BUFFER) {
        return false;
      }
      copy.operands[slot].buffer = buffer;
      mk_buffer *b = &p->buffers[copy.operands[slot].buffer];
      b->kind = b->kind == MK_KIND_OUTPUT ? MK_KIND_ACTIVATION : b->kind; /* it may be written in part */
    }
  }
  if (mutation_draw(random, 2) == 0) {
    copy.signal_count = 0;
    memset(copy.signals, 0, sizeof copy.signals);
  }
  uint32_t q = mutation_draw(random, queue_count(p));
  return edit_insert(p, &copy, q, mutation_draw(random, p->queues[q].count + 1)) != NULL;
}

static bool drop_instruction(mk_program *p, uint64_t *random) {
  if (p->instruction_count < 4) {
    return false;
  }
  edit_remove(p, mutation_draw(random, (uint32_t)p->instruction_count));
  return true;
}

/* Small tiles, tiles of one and a half, and such as reach far beyond the buffer. */
static bool retile(mk_program *p, uint64_t *random) {
  static const uint32_t widths[] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 0xffff, 0x80000000u, 0xfffffffeu, 0xffffffffu};
  uint32_t index = mutation_draw(random, (uint32_t)p->buffer_count);
  const mk_buffer *b = &p->buffers[index];
  if (b->store == MK_STORE_TILES || b->store == MK_STORE_BLOCKS) {
    return false;
  }
  uint32_t width = widths[mutation_draw(random, sizeof widths / sizeof widths[0])], height = b->tile_rows;
  width = mutation_draw(random, 4) == 0 ? b->cols : width;
  if (b->rows <= b->tile_rows && mutation_draw(random, 4) == 0) {
    height = mutation_draw(random, 2) == 0 ? 0x80000000u : b->rows;
  }
  return (width != b->tile_cols || height != b->tile_rows) && edit_retile(p, (uint16_t)index, height, width);
}

/* One column more or less than its tiles have. */
static bool odd_columns(mk_program *p, uint64_t *random) {
  mk_buffer *b = any_buffer(p, random);
  uint32_t less = 1 + mutation_draw(random, 3);
  if (b->store == MK_STORE_BLOCKS || b->cols < 8) {
    return false;
  }
  b->cols = mutation_draw(random, 3) == 0 ? b->cols + 1 : b->cols - less;
  return true;
}

static bool fewer_rows(mk_program *p, uint64_t *random) {
  mk_buffer *b = any_buffer(p, random);
  uint32_t step = b->tile_rows > b->rows ? 1 : b->tile_rows;
  if (b->rows <= step || mk_buffer_grid_rows(b) > 16) {
    return false;
  }
  b->rows = mutation_draw(random, 3) == 0 ? b->rows + step : b->rows - step;
  return true;
}

static bool change_ranges(mk_program *p, uint64_t *random) {
  mk_step_ranges *r = &p->ranges;
  switch (mutation_draw(random, 7)) {
    case 6:
      r->block.high += 1 + mutation_draw(random, 4);
      return true;
    case 0:
    case 1:
      if (r->block.high == 0) {
        return false;
      }
      r->block.high -= 1 + mutation_draw(random, r->block.high);
      return true;
    case 2:
      r->block.low = mutation_draw(random, r->block.high + 1);
      return true;
    case 3:
      r->position.high += mutation_draw(random, 40);
      return true;
    case 4:
      if (r->position.high - r->position.low < 32) {
        return false;
      }
      r->position.low += mutation_draw(random, (r->position.high - r->position.low) / 2);
      return true;
    default: /* a row more than the embedding has, or fewer tokens than heads name */
      if (mutation_draw(random, 3) == 0 || r->token.high == 0) {
        r->token.high++;
      } else {
        r->token.high = mutation_draw(random, r->token.high);
      }
      return true;
  }
}

/* Positions go on, and of what is as long as they are nearly everything follows. */
static bool longer_context(mk_program *p, uint64_t *random) {
  const mk_instruction *attention = edit_any_of(p, MK_OP_ATTENTION, random), *next = edit_any_of(p, MK_OP_NEXT, random);
  if (attention == NULL || next == NULL || mk_program_rows(p) != 1) {
    return false;
  }
  const mk_operand *table = &attention->operands[MK_SLOT_ATTENTION_table];
  uint32_t block = p->buffers[attention->operands[MK_SLOT_ATTENTION_kv].buffer].block_tokens;
  uint32_t blocks = 1 + mutation_draw(random, 3), spared = mutation_draw(random, 6);
  p->ranges.position.high += blocks * block;
  p->ranges.block.high += spared == 0 ? 0 : blocks;
  for (size_t b = 0; b < p->buffer_count; b++) {
    if (p->buffers[b].kind == MK_KIND_KV && (spared != 1 || mutation_draw(random, 2) == 0)) {
      p->buffers[b].blocks += blocks;
    }
  }
  p->buffers[table->buffer].cols += spared == 2 ? 0 : blocks;
  p->buffers[next->operands[MK_SLOT_NEXT_plan].buffer].cols += spared == 3 ? 0 : blocks * block * MK_ROW_WORDS;
  for (size_t i = 0; i < p->instruction_count; i++) {
    const mk_instruction *in = &p->instructions[i];
    if (spared != 4 && in->opcode == MK_OP_NEXT && in->operands[MK_SLOT_NEXT_ring].rows != 0) {
      p->buffers[in->operands[MK_SLOT_NEXT_ring].buffer].cols += blocks * block;
    }
  }
  for (size_t i = 0; i < p->instruction_count; i++) {
    const mk_opcode_info *info = mk_opcode_lookup(p->instructions[i].opcode);
    for (uint32_t slot = 0; slot < info->operand_count; slot++) {
      mk_operand *o = &p->instructions[i].operands[slot];
      const mk_buffer *b = &p->buffers[o->buffer];
      bool whole = b->dtype == MK_DTYPE_U32 && (b->kind == MK_KIND_INPUT || b->kind == MK_KIND_OUTPUT);
      o->cols = whole && o->rows != 0 ? (uint16_t)mk_buffer_grid_cols(b) : o->cols;
    }
  }
  return true;
}

/* Most of the time of what several queues use. */
static bool narrow_scope(mk_program *p, uint64_t *random) {
  if (p->counter_count != 0 && mutation_draw(random, 2) == 0) {
    mk_counter *c = &p->counters[mutation_draw(random, (uint32_t)p->counter_count)];
    c->scope = mutation_draw(random, 4) == 0 ? MK_SCOPE_SYS : MK_SCOPE_SM;
  } else {
    any_buffer(p, random)->scope = mutation_draw(random, 4) == 0 ? MK_SCOPE_SYS : MK_SCOPE_SM;
  }
  return true;
}

static bool change_kind(mk_program *p, uint64_t *random) {
  mk_buffer *b = any_buffer(p, random);
  if (b->kind == MK_KIND_ACTIVATION) {
    b->kind = MK_KIND_OUTPUT;
  } else if (b->kind == MK_KIND_OUTPUT) {
    b->kind = MK_KIND_ACTIVATION;
  } else {
    return false;
  }
  return true;
}

static bool change_param(mk_program *p, uint64_t *random) {
  mk_instruction *in = edit_any(p, random);
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  uint32_t which = edit_draw(random, info->param_count);
  const mk_instruction *other = edit_any_of(p, in->opcode, random);
  if (info->param_count == 0 || info->params[which].is_float) {
    return false;
  }
  uint32_t was = in->params[which];
  switch (mutation_draw(random, 4)) {
    case 0:
      in->params[which] = other->params[which];
      break;
    case 1:
      in->params[which] *= 2;
      break;
    case 2:
      in->params[which] /= 2;
      break;
    default:
      in->params[which] += mutation_draw(random, 2) == 0 ? 1 : UINT32_MAX;
      break;
  }
  return in->params[which] != was;
}

/* The span of a cache and of those that merge its splits. */
static bool change_span(mk_program *p, uint64_t *random) {
  const mk_instruction *in = edit_any_of(p, MK_OP_ATTENTION, random);
  if (in == NULL) {
    return false;
  }
  mk_buffer *kv = &p->buffers[in->operands[MK_SLOT_ATTENTION_kv].buffer];
  uint32_t was = kv->span_tokens, span = kv->block_tokens * (1 + mutation_draw(random, 4));
  kv->span_tokens = span;
  for (size_t i = 0; i < p->instruction_count && mutation_draw(random, 16) != 0; i++) {
    mk_instruction *c = &p->instructions[i];
    bool merges = c->opcode == MK_OP_COMBINE && c->params[MK_PARAM_COMBINE_span] == was;
    c->params[MK_PARAM_COMBINE_span] = merges ? span : c->params[MK_PARAM_COMBINE_span];
  }
  return span != was;
}

/* Some of the instructions that read a block table read another one, of the same cache. */
static bool second_table(mk_program *p, uint64_t *random) {
  mk_instruction *in = edit_any_of(p, MK_OP_ATTENTION, random);
  uint16_t table = in == NULL ? EDIT_NO_BUFFER : edit_clone(p, in->operands[MK_SLOT_ATTENTION_table].buffer);
  if (table == EDIT_NO_BUFFER) {
    return false;
  }
  bool several = mutation_draw(random, 2) == 0;
  for (size_t i = 0; i < p->instruction_count; i++) {
    mk_instruction *other = &p->instructions[i];
    if (other == in || (several && other->opcode == MK_OP_ATTENTION && mutation_draw(random, 2) == 0)) {
      other->operands[MK_SLOT_ATTENTION_table].buffer = table;
    }
  }
  return true;
}

/* An instruction takes what the host writes from a buffer of its own: a plan, sampling parameters, a bias. A `next`, or
 * all of them, may take one row of the candidates. */
static bool own_input(mk_program *p, uint64_t *random) {
  static const mk_opcode opcodes[] = {MK_OP_NEXT, MK_OP_NEXT, MK_OP_DRAW, MK_OP_SIFT, MK_OP_SCORE};
  mk_instruction *in = edit_any_of(p, opcodes[mutation_draw(random, 5)], random);
  if (in == NULL) {
    return false;
  }
  mk_operand *candidates = &in->operands[MK_SLOT_NEXT_candidates];
  if (in->opcode == MK_OP_NEXT && mutation_draw(random, 3) == 0 && candidates->rows > 1) {
    mk_operand one = *candidates;
    one.row = (uint16_t)mutation_draw(random, one.rows);
    one.rows = 1;
    bool all = mutation_draw(random, 2) == 0;
    for (size_t i = 0; i < p->instruction_count; i++) {
      if (all && p->instructions[i].opcode == MK_OP_NEXT) {
        p->instructions[i].operands[MK_SLOT_NEXT_candidates] = one;
      }
    }
    *candidates = one;
    return true;
  }
  for (uint32_t slot = 0; slot < operands_of(in); slot++) {
    mk_operand *o = &in->operands[slot];
    if (o->rows != 0 && p->buffers[o->buffer].kind == MK_KIND_INPUT) {
      uint16_t clone = edit_clone(p, o->buffer);
      o->buffer = clone == EDIT_NO_BUFFER ? o->buffer : clone;
      return clone != EDIT_NO_BUFFER;
    }
  }
  return false;
}

/* Of programs that follow a work list: whose row, which buffers, and how often. */
static bool change_listed(mk_program *p, uint64_t *random) {
  mk_instruction *in = edit_any_of(p, mutation_draw(random, 2) == 0 ? MK_OP_MLA_PART : MK_OP_MLA_REDUCE, random);
  if (in == NULL) {
    return false;
  }
  uint32_t index = (uint32_t)(in - p->instructions), q = mutation_draw(random, queue_count(p));
  mk_operand *work = &in->operands[in->opcode == MK_OP_MLA_PART ? MK_SLOT_MLA_PART_work : MK_SLOT_MLA_REDUCE_work];
  mk_operand *o = &in->operands[mutation_draw(random, operands_of(in))];
  const mk_instruction *other = edit_any(p, random);
  const mk_operand *from = &other->operands[mutation_draw(random, operands_of(other))];
  uint16_t clone;
  switch (mutation_draw(random, 5)) {
    case 0:
      work->row = (uint16_t)mutation_draw(random, queue_count(p));
      return true;
    case 1:
      edit_remove(p, index);
      return p->instruction_count != 0;
    case 2: { /* again, after what the queue has, for the row of that queue or of its own */
      mk_instruction copy = *in;
      uint32_t slot = (uint32_t)(work - in->operands);
      copy.operands[slot].row = mutation_draw(random, 2) == 0 ? (uint16_t)q : copy.operands[slot].row;
      return edit_insert(p, &copy, q, p->queues[q].count) != NULL;
    }
    case 3:
      clone = edit_clone(p, o->buffer);
      o->buffer = clone == EDIT_NO_BUFFER ? o->buffer : clone;
      return clone != EDIT_NO_BUFFER;
    default:
      *o = from->rows == 0 ? *o : *from;
      return true;
  }
}

/* Two layers share a cache; the one may tell the other when it is done. */
static bool share_cache(mk_program *p, uint64_t *random) {
  const mk_instruction *a = edit_any_of(p, MK_OP_ATTENTION, random), *b = edit_any_of(p, MK_OP_ATTENTION, random);
  if (a == NULL || a->operands[MK_SLOT_ATTENTION_kv].buffer == b->operands[MK_SLOT_ATTENTION_kv].buffer) {
    return false;
  }
  uint16_t from = b->operands[MK_SLOT_ATTENTION_kv].buffer, to = a->operands[MK_SLOT_ATTENTION_kv].buffer, done;
  if (mutation_draw(random, 2) == 0 && mk_program_add_counter(p, "shared", MK_COUNTER_RELEASE, &done) == MK_OK) {
    for (size_t i = 0; i < p->instruction_count; i++) {
      mk_instruction *in = &p->instructions[i];
      uint16_t kv = in->opcode == MK_OP_ATTENTION ? in->operands[MK_SLOT_ATTENTION_kv].buffer : EDIT_NO_BUFFER;
      if (kv == to && in->signal_count < MK_MAX_SIGNALS) {
        in->signals[in->signal_count++] = (mk_signal){.counter = done, .amount = 1};
        p->counters[done].total++;
      }
    }
    for (size_t i = 0; i < p->instruction_count; i++) {
      mk_instruction *in = &p->instructions[i];
      uint16_t kv = in->opcode == MK_OP_ATTENTION ? in->operands[MK_SLOT_ATTENTION_kv].buffer : EDIT_NO_BUFFER;
      if (kv == from && in->wait_count < MK_MAX_WAITS) {
        in->waits[in->wait_count++] = (mk_wait){.counter = done, .threshold = (uint16_t)p->counters[done].total};
      }
    }
  }
  for (size_t i = 0; i < p->instruction_count; i++) {
    mk_operand *kv = &p->instructions[i].operands[MK_SLOT_ATTENTION_kv];
    kv->buffer = p->instructions[i].opcode == MK_OP_ATTENTION && kv->buffer == from ? to : kv->buffer;
  }
  return true;
}

/* How far a storer may lag, and how much a loader streams at a time. */
static bool change_machine(mk_program *p, uint64_t *random) {
  if (mutation_draw(random, 2) == 0) {
    p->machine.result_slots = 1 + mutation_draw(random, 12);
  } else {
    p->machine.ring_pages = 1 + mutation_draw(random, 12);
  }
  return true;
}

static bool change_uid(mk_program *p, uint64_t *random) {
  edit_any(p, random)->uid = mutation_draw(random, 3) == 0 ? edit_any(p, random)->uid : 0;
  return true;
}

/* A residual comes from another buffer, which is of the same shape. */
static bool other_residual(mk_program *p, uint64_t *random) {
  mk_instruction *in = edit_any_of(p, mutation_draw(random, 2) == 0 ? MK_OP_REDUCE_ADD : MK_OP_LINEAR_ADD, random);
  const mk_instruction *from =
      edit_any_of(p, mutation_draw(random, 2) == 0 ? MK_OP_REDUCE_ADD : MK_OP_LINEAR_ADD, random);
  if (in == NULL || from == NULL || in == from) {
    return false;
  }
  uint32_t slot = in->opcode == MK_OP_REDUCE_ADD ? MK_SLOT_REDUCE_ADD_residual_in : MK_SLOT_LINEAR_ADD_residual_in;
  uint32_t slot_from =
      from->opcode == MK_OP_REDUCE_ADD ? MK_SLOT_REDUCE_ADD_residual_out : MK_SLOT_LINEAR_ADD_residual_out;
  mk_operand *o = &in->operands[slot + mutation_draw(random, 2)];
  o->flags = 0;
  o->buffer = from->operands[slot_from].buffer;
  o->row = 0;
  o->rows = 1;
  return true;
}

const edit edit_parts[] = {
    {"shift_operand", class_shift, 2, false},
    {"widen_operand", class_widen, 1, false},
    {"reuse_early", class_reuse, 2, false},
    {"drop_proxy", class_proxy, 3, false},
    {"retarget", retarget, 6, false},
    {"other_tiles", other_tiles, 3, false},
    {"swap_operands", swap_operands, 4, false},
    {"second_reader", second_reader, 8, false},
    {"drop_instruction", drop_instruction, 2, false},
    {"retile", retile, 7, false},
    {"odd_columns", odd_columns, 2, false},
    {"fewer_rows", fewer_rows, 2, false},
    {"change_ranges", change_ranges, 5, false},
    {"longer_context", longer_context, 3, false},
    {"narrow_scope", narrow_scope, 3, false},
    {"change_kind", change_kind, 4, false},
    {"change_param", change_param, 3, false},
    {"change_span", change_span, 4, false},
    {"second_table", second_table, 3, false},
    {"change_listed", change_listed, 4, false},
    {"own_input", own_input, 4, false},
    {"share_cache", share_cache, 2, false},
    {"empty_head", edit_empty_head, 3, false},
    {"other_candidates", edit_other_candidates, 4, false},
    {"other_writer", edit_other_writer, 3, false},
    {"signal_next", edit_signal_next, 2, false},
    {"drop_next", edit_drop_next, 3, false},
    {"change_search", edit_change_search, 9, false},
    {"change_machine", change_machine, 3, false},
    {"change_uid", change_uid, 1, false},
    {"other_residual", other_residual, 4, false},
};
const size_t edit_part_count = sizeof edit_parts / sizeof edit_parts[0];
