/* ATTEND: attention of one query head over all tokens of the sequence up to each line's own, all of which lie in the
 * cache. q [head_dim] fp32, out [head_dim] bf16 for each line: out = bf16(sum_t p_t v_t / sum_t p_t). With a work list
 * it has all query heads of a KV head, and of the lines those that its items name (vm/program/attend_list.h). With an
 * eps q comes in tiles of 18 columns, 16 values and their squares, and each head is normed by the squares of its tiles.
 *
 * The order of sums is what ATTENTION and COMBINE make of it for one row a step (docs/NUMERICS.md): parts of
 * MK_FOLD_TOKENS tokens are added up to pieces of MK_PIECE_TOKENS, the oldest first; MK_TREE_PIECES pieces as a
 * tree, neighbours first; and these one after the other. */
#include "instructions/attention.h"
#include "vm/program/attend_list.h"

/* Adds the piece at hand, number `number` of its tree, to the sums so far. These are like a binary counter whose digits
 * are sums of 1, 2, 4 and 8 pieces. The last piece of a tree carries the whole tree to the level after them. */
static void add_piece(const mk_unit_view *view, uint32_t number) {
  mk_part_level from = MK_PIECE;
  uint32_t digit = 0;
  for (; (number >> digit & 1) != 0; digit++) {
    mk_unit_add_level(view, from, MK_CLASS + digit);
    from = MK_CLASS + digit;
  }
  mk_unit_add_level(view, from, MK_CLASS + digit);
}

/* Attends over all tokens up to the line's own. The result is left in the part of the last level. */
static void attend(const mk_unit_view *view, const mk_line_view *line, const float *q) {
  mk_unit_begin(view);
  for (uint32_t t = 0; t <= line->position; t += MK_PIECE_TOKENS) {
    const uint32_t left = line->position + 1 - t; /* a piece that ends before the window keeps its place in the tree */
    mk_unit_add_tokens(view, line, q, t, t + (left < MK_PIECE_TOKENS ? left : (uint32_t)MK_PIECE_TOKENS));
    add_piece(view, t / MK_PIECE_TOKENS % MK_TREE_PIECES);
  }
  for (uint32_t digit = 0; digit + 1 < MK_TREE_LEVELS; digit++) {
    mk_unit_add_level(view, MK_CLASS + digit, MK_CLASS + digit + 1);
  }
}

/* Computes one line, for the query heads of the view. q: those of these heads; their results go to the columns of out
 * from `col` on. */
static void attend_line(const mk_unit_view *view, const mk_line *at, const float *q, const mk_span *out, uint32_t col) {
  const uint32_t window = view->machine->instruction->params[MK_PARAM_ATTEND_window];
  const mk_line_view line = {.slot = at->row.slot,
                             .position = at->row.position,
                             .first_new = at->row.position + 1,
                             .first_seen = mk_first_seen(at->row.position, window)};
  float o[MK_MAX_HEAD_DIM];
  mk_unit_copy_new_tiles(view, &line);
  attend(view, &line, q);
  for (uint32_t head = 0; head < view->group; head++) {
    const float *sum = mk_unit_part(view, MK_CLASS + MK_TREE_LEVELS - 1, head);
    for (uint32_t d = 0; d < view->head_dim; d++) {
      o[d] = sum[d] / sum[view->head_dim + 1];
    }
    mk_publish_floats(view->machine, out, at->line, col + head * view->head_dim, view->head_dim, o);
  }
}

/* The number of the active line that is line i of the item. UINT32_MAX, a fault: there is none, so the list is one that
 * nobody has checked. */
static uint32_t find_line(mk_reference *machine, const mk_attend_item *item, uint32_t i) {
  for (uint32_t l = 0; l < machine->line_count; l++) {
    const mk_line *at = &machine->lines[l];
    if (at->line == item->first + i && at->row.slot == item->slot && at->row.position == item->position + i) {
      return l;
    }
  }
  (void)mk_reference_fault(machine, "the work list has line %u at position %u of slot %u, which the step has not",
                           item->first + i, item->position + i, item->slot);
  return UINT32_MAX;
}

/* Computes the items of a share. q: that of all lines; memory: scratch for the view. */
static mk_reference_result attend_share(mk_reference *machine, const mk_instruction *instruction, mk_unit_view *view,
                                        const float *q, const mk_span *out, float *memory) {
  const mk_span work = mk_operand_span(machine, instruction, MK_SLOT_ATTEND_work);
  const uint32_t shares = instruction->params[MK_PARAM_ATTEND_shares], group = out->cols / view->head_dim;
  const uint32_t rows = mk_program_rows(machine->program), lines = mk_line_tile(rows);
  const uint64_t place = (uint64_t)machine->state->step * (rows / lines) + machine->first_line / lines;
  if (place >= work.rows) {
    return mk_reference_fault(machine, "step %u has no list in buffer %s, which has %u", machine->state->step,
                              work.buffer->name, work.rows);
  }
  const uint32_t *list = (const uint32_t *)(const void *)work.memory + place * work.buffer->cols;
  const mk_attend_item *items = (const mk_attend_item *)(const void *)list + 1;
  for (uint32_t i = instruction->params[MK_PARAM_ATTEND_share]; i < list[0] && i < lines + 2 * group; i += shares) {
    const mk_attend_item *item = &items[i];
    if (item->heads < 1 || item->head >= group || item->heads > group - item->head) {
      return mk_reference_fault(machine, "item %u of the work list has %u heads from %u on; there are %u", i,
                                item->heads, item->head, group);
    }
    view->group = item->heads;
    mk_unit_lay_out(view, memory);
    for (uint32_t n = 0; n < item->lines; n++) {
      const uint32_t l = find_line(machine, item, n), col = item->head * view->head_dim;
      if (l == UINT32_MAX) {
        return MK_REFERENCE_FAULT;
      }
      attend_line(view, &machine->lines[l], q + (size_t)l * out->cols + col, out, col);
    }
  }
  return MK_REFERENCE_DONE;
}

mk_reference_result mk_reference_ATTEND(mk_reference *machine, const mk_instruction *instruction) {
  mk_span q_span = mk_operand_span(machine, instruction, MK_SLOT_ATTEND_q);
  mk_span kv = mk_operand_span(machine, instruction, MK_SLOT_ATTEND_kv);
  mk_span table = mk_operand_span(machine, instruction, MK_SLOT_ATTEND_table);
  mk_span out = mk_operand_span(machine, instruction, MK_SLOT_ATTEND_out);
  const uint32_t lines = machine->line_count;
  float *q = machine->scratch, *memory = q + (size_t)lines * q_span.cols;
  if (!mk_stage_lines(machine, &q_span, 0, q, q_span.cols)) {
    return MK_REFERENCE_WAIT;
  }
  const float eps = mk_param_float(instruction->params[MK_PARAM_ATTEND_eps]);
  if (eps != 0) {
    mk_take_heads(q, lines, out.cols / kv.buffer->head_dim, kv.buffer->head_dim, true, eps);
  }
  mk_scale_queries(q, (size_t)lines * out.cols, mk_param_float(instruction->params[MK_PARAM_ATTEND_scale]));
  mk_unit_view view = {.machine = machine,
                       .buffer = kv.buffer,
                       .memory = kv.memory,
                       .table = &table,
                       .head = kv.col,
                       .head_dim = kv.buffer->head_dim,
                       .group = 1,
                       .splits = 1};
  if (!mk_unit_check_blocks(&view, machine)) {
    return MK_REFERENCE_FAULT;
  }
  if (instruction->operands[MK_SLOT_ATTEND_work].rows != 0) {
    return attend_share(machine, instruction, &view, q, &out, memory);
  }
  mk_unit_lay_out(&view, memory);
  for (uint32_t l = 0; l < lines; l++) {
    attend_line(&view, &machine->lines[l], q + (size_t)l * view.head_dim, &out, 0);
  }
  return MK_REFERENCE_DONE;
}
