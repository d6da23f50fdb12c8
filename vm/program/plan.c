/* See plan.h. */
#include "vm/program/plan.h"

#include "vm/program/attend_list.h"

void mk_plan_sequence(mk_step_row *plan, uint32_t steps, uint32_t position, const uint32_t *given, uint32_t count,
                      uint32_t flags) {
  for (uint32_t i = 0; i < steps; i++) {
    plan[i] = (mk_step_row){
        .position = position + i,
        .token = i < count ? given[i] : MK_TOKEN_CHOSEN,
        .flags = MK_ROW_ACTIVE | (i < count ? flags : 0) | (i + 1 >= count ? (uint32_t)MK_ROW_CHOOSES : 0)};
  }
}

/* Sets *slot to the buffer; false: it is another one already. */
static bool agree(uint16_t *slot, uint16_t buffer) {
  bool same = *slot == MK_NO_PLAN_BUFFER || *slot == buffer;
  *slot = buffer;
  return same;
}

/* The work lists of an instruction that has a cache; false: they are not those of the others. */
static bool find_work(const mk_program *program, const mk_instruction *in, mk_plan_buffers *out) {
  const int slot = mk_opcode_reads(mk_opcode_lookup(in->opcode), MK_CONTENT_WORK);
  if (slot < 0 || in->operands[slot].rows == 0) {
    return true;
  }
  const mk_operand *q = &in->operands[MK_SLOT_ATTEND_q];
  const uint32_t head_dim = program->buffers[in->operands[MK_SLOT_ATTEND_kv].buffer].head_dim;
  const uint32_t group = head_dim == 0 ? 0 : q->cols * program->buffers[q->buffer].tile_cols / head_dim;
  const bool same = out->work == MK_NO_PLAN_BUFFER || out->group == group;
  out->group = group;
  return agree(&out->work, in->operands[slot].buffer) && same;
}

/* A list for each tile of lines of each step, in a buffer of their own, which the host fills. */
static mk_status check_work(const mk_program *program, const mk_plan_buffers *found) {
  const mk_buffer *b = &program->buffers[found->work];
  const uint32_t rows = mk_program_rows(program), lines = mk_line_tile(rows);
  const bool fits = found->group >= 1 && found->group <= MK_ATTEND_MOST_HEADS &&
                    b->rows == (uint64_t)found->steps * (rows / lines) &&
                    b->cols == mk_attend_list_words(lines, found->group);
  return fits && b->kind == MK_KIND_INPUT && found->work != found->plan && found->work != found->table
             ? MK_OK
             : mk_error(MK_ERR_USAGE,
                        "buffer %s: %u x %u words; work lists are an input of their own, of %u words for each of %u "
                        "tiles of lines in %u steps",
                        b->name, b->rows, b->cols, mk_attend_list_words(lines, found->group), rows / lines,
                        found->steps);
}

mk_status mk_plan_find(const mk_program *program, mk_plan_buffers *out) {
  uint32_t rows = mk_program_rows(program);
  *out = (mk_plan_buffers){
      .plan = MK_NO_PLAN_BUFFER, .table = MK_NO_PLAN_BUFFER, .ring = MK_NO_PLAN_BUFFER, .kv = MK_NO_PLAN_BUFFER};
  bool one = true;
  out->work = MK_NO_PLAN_BUFFER;
  for (size_t i = 0; i < program->instruction_count; i++) {
    const mk_operand *o = program->instructions[i].operands;
    const mk_opcode_info *info = mk_opcode_lookup(program->instructions[i].opcode);
    const int cache = info == NULL ? -1 : mk_opcode_cache(info);
    if (cache >= 0) {
      one = one && agree(&out->table, o[mk_opcode_reads(info, MK_CONTENT_TABLE)].buffer);
      uint16_t kv = o[cache].buffer;
      one = one && (out->kv == MK_NO_PLAN_BUFFER ||
                    program->buffers[kv].block_tokens == program->buffers[out->kv].block_tokens);
      out->kv = kv;
      one = one && find_work(program, &program->instructions[i], out);
    } else if (info != NULL && info->state == MK_STATE_WRITE) {
      one = one && agree(&out->plan, o[MK_SLOT_NEXT_plan].buffer);
      out->ring = o[MK_SLOT_NEXT_ring].rows != 0 ? o[MK_SLOT_NEXT_ring].buffer : out->ring;
    }
  }
  bool lacks = out->plan == MK_NO_PLAN_BUFFER ||
               (rows > 1 && (out->table == MK_NO_PLAN_BUFFER || out->ring == MK_NO_PLAN_BUFFER));
  if (!one || lacks || out->plan == out->table) {
    return mk_error(MK_ERR_USAGE, "the program has %s; a plan is for one with one plan, one block table and a ring",
                    !one    ? "several plans, block tables or sizes of blocks"
                    : lacks ? "no attention, no next or no ring"
                            : "no buffers of their own for plan and block table");
  }
  out->steps = program->buffers[out->plan].cols / (MK_ROW_WORDS * rows);
  return out->work == MK_NO_PLAN_BUFFER ? MK_OK : check_work(program, out);
}

typedef struct slot_state { /* as far as the plan has been read */
  uint32_t first;           /* position; UINT32_MAX: not used so far */
  uint32_t next;            /* position; UINT32_MAX, too */
  uint32_t step;            /* of its last row */
  bool chose;
} slot_state;

typedef struct check {
  const mk_program *program;
  slot_state slots[MK_MOST_ROWS];
} check;

static mk_status check_row(check *c, uint32_t step, uint32_t line, const mk_step_row *row) {
  const mk_step_ranges *ranges = &c->program->ranges;
  if (row->slot >= mk_program_slots(c->program)) {
    return mk_error(MK_ERR_USAGE, "plan: step %u, row %u: slot is %u; the program has %u", step, line, row->slot,
                    mk_program_slots(c->program));
  }
  slot_state *slot = &c->slots[row->slot];
  if (row->position < ranges->position.low || row->position > ranges->position.high) {
    return mk_error(MK_ERR_USAGE, "plan: step %u, row %u: position is %u; positions are %u to %u", step, line,
                    row->position, ranges->position.low, ranges->position.high);
  }
  if (slot->next != UINT32_MAX && row->position != slot->next) {
    return mk_error(MK_ERR_USAGE, "plan: step %u, row %u: slot %u goes on at position %u; its last row makes that %u",
                    step, line, row->slot, row->position, slot->next);
  }
  bool chosen = row->token == MK_TOKEN_CHOSEN;
  if (chosen ? !slot->chose || slot->step == step : row->token < ranges->token.low || row->token > ranges->token.high) {
    return chosen ? mk_error(MK_ERR_USAGE,
                             "plan: step %u, row %u: takes a choice that slot %u has not made in an earlier step", step,
                             line, row->slot)
                  : mk_error(MK_ERR_USAGE, "plan: step %u, row %u: token is %u; tokens are %u to %u", step, line,
                             row->token, ranges->token.low, ranges->token.high);
  }
  slot->first = slot->first == UINT32_MAX ? row->position : slot->first;
  slot->chose = slot->chose || (row->flags & MK_ROW_CHOOSES) != 0;
  slot->next = row->position + 1;
  slot->step = step;
  return MK_OK;
}

/* Programs for prompts ask for more: the active rows are the first ones, and only the last of them chooses. */
static mk_status check_place(const mk_step_row *rows, uint32_t step, uint32_t line, uint32_t count) {
  if (line != 0 && (rows[line - 1].flags & MK_ROW_ACTIVE) == 0) {
    return mk_error(MK_ERR_USAGE, "plan: step %u, row %u is active and row %u is not; of %u rows the first ones are",
                    step, line, line - 1, count);
  }
  bool last = line + 1 == count || (rows[line + 1].flags & MK_ROW_ACTIVE) == 0;
  return last || (rows[line].flags & MK_ROW_CHOOSES) == 0
             ? MK_OK
             : mk_error(MK_ERR_USAGE, "plan: step %u, row %u chooses; of %u rows only the last active one does", step,
                        line, count);
}

/* Blocks of the sequences in use, from their beginning to where the plan ends. Those before the first one that the plan
 * fills are only read, and several sequences may read the same one. */
static mk_status check_blocks(const check *c, const mk_plan_buffers *buffers, const uint32_t *table) {
  enum { READ = 0x8000 }; /* with its first reader's slot + 1 */
  const mk_buffer *kv = &c->program->buffers[buffers->kv];
  uint32_t columns = c->program->buffers[buffers->table].cols, blocks = kv->blocks;
  uint16_t *owner;
  MK_TRY(mk_alloc(blocks, sizeof *owner, &owner));
  mk_status status = MK_OK;
  for (uint32_t s = 0; s < mk_program_slots(c->program); s++) {
    uint32_t used = c->slots[s].next == UINT32_MAX ? 0 : (c->slots[s].next + kv->block_tokens - 1) / kv->block_tokens;
    for (uint32_t b = 0; b < used && status == MK_OK; b++) {
      uint32_t block = table[(size_t)s * columns + b];
      bool reads = b < c->slots[s].first / kv->block_tokens;
      if (block >= blocks || block < c->program->ranges.block.low || block > c->program->ranges.block.high) {
        status = mk_error(MK_ERR_USAGE, "block table: slot %u, entry %u is block %u; blocks are %u to %u", s, b, block,
                          c->program->ranges.block.low, c->program->ranges.block.high);
      } else if (owner[block] != 0 && (!reads || (owner[block] & READ) == 0 || owner[block] == (READ | (s + 1)))) {
        status = mk_error(MK_ERR_USAGE, "block table: slot %u, entry %u is block %u, which slot %u has already", s, b,
                          block, (owner[block] & (READ - 1U)) - 1);
      } else {
        owner[block] = (uint16_t)(reads ? READ | (s + 1) : s + 1);
      }
    }
  }
  mk_free(owner);
  return status;
}

mk_status mk_plan_check(const mk_program *program, const mk_step_row *plan, uint32_t steps, const uint32_t *table) {
  mk_plan_buffers buffers;
  MK_TRY(mk_plan_find(program, &buffers));
  return mk_plan_check_found(program, &buffers, plan, steps, table);
}

mk_status mk_plan_check_found(const mk_program *program, const mk_plan_buffers *buffers, const mk_step_row *plan,
                              uint32_t steps, const uint32_t *table) {
  check c = {.program = program};
  uint32_t rows = mk_program_rows(program);
  if (steps < 1 || steps > buffers->steps) {
    return mk_error(MK_ERR_USAGE, "plan: %u steps; a launch of this program has 1 to %u", steps, buffers->steps);
  }
  for (uint32_t s = 0; s < mk_program_slots(program); s++) {
    c.slots[s].first = c.slots[s].next = UINT32_MAX;
  }
  for (uint32_t step = 0; step < steps; step++) {
    uint32_t active = 0;
    for (uint32_t line = 0; line < rows; line++) {
      const mk_step_row *row = &plan[(size_t)step * rows + line];
      if ((row->flags & MK_ROW_ACTIVE) != 0) {
        MK_TRY(mk_program_is_for_prompts(program) ? check_place(plan + (size_t)step * rows, step, line, rows) : MK_OK);
        MK_TRY(check_row(&c, step, line, row));
        active++;
      }
    }
    if (active == 0) {
      return mk_error(MK_ERR_USAGE, "plan: step %u has no active row", step);
    }
  }
  return table == NULL || buffers->table == MK_NO_PLAN_BUFFER ? MK_OK : check_blocks(&c, buffers, table);
}

mk_status mk_plan_check_results(const mk_program *program, const mk_step_row *step, const uint32_t *results) {
  for (uint32_t row = 0; row < mk_program_rows(program); row++) {
    if ((results[row] & MK_RESULT_NAN) != 0) {
      return mk_error(MK_ERR_DEVICE, "the logits at position %u are not numbers (NaN)", step[row].position);
    }
  }
  return MK_OK;
}
