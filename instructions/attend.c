/* ATTEND: attention of one query head over all tokens of the sequence up to each line's own, all of which lie in the
 * cache. q [head_dim] fp32, out [head_dim] bf16 for each line: out = bf16(sum_t p_t v_t / sum_t p_t).
 *
 * The order of sums is what ATTENTION and COMBINE make of it for one row a step (docs/NUMERICS.md): parts of
 * MK_FOLD_TOKENS tokens are added up to pieces of MK_PIECE_TOKENS, the oldest first; MK_TREE_PIECES pieces as a
 * tree, neighbours first; and these one after the other. */
#include "instructions/attention.h"

/* Adds the part of PIECE, which is piece number `number` of its tree: like a binary counter, whose digits are sums
 * of 1, 2, 4 and 8 pieces. The last one of a tree carries all of it to the level after those. */
static void add_piece(const mk_unit_view *view, uint32_t number) {
  mk_part_level from = MK_PIECE;
  uint32_t digit = 0;
  for (; (number >> digit & 1) != 0; digit++) {
    mk_unit_add_level(view, from, MK_CLASS + digit);
    from = MK_CLASS + digit;
  }
  mk_unit_add_level(view, from, MK_CLASS + digit);
}

/* The result is the part of the last level. */
static void attend(const mk_unit_view *view, const mk_line_view *line, const float *q) {
  mk_unit_begin(view);
  for (uint32_t t = 0; t <= line->position; t += MK_PIECE_TOKENS) {
    const uint32_t left = line->position + 1 - t;
    mk_unit_add_tokens(view, line, q, t, t + (left < MK_PIECE_TOKENS ? left : (uint32_t)MK_PIECE_TOKENS));
    add_piece(view, t / MK_PIECE_TOKENS % MK_TREE_PIECES);
  }
  for (uint32_t digit = 0; digit + 1 < MK_TREE_LEVELS; digit++) {
    mk_unit_add_level(view, MK_CLASS + digit, MK_CLASS + digit + 1);
  }
}

mk_reference_result mk_reference_ATTEND(mk_reference *machine, const mk_instruction *instruction) {
  mk_span q_span = mk_operand_span(machine, instruction, MK_SLOT_ATTEND_q);
  mk_span kv = mk_operand_span(machine, instruction, MK_SLOT_ATTEND_kv);
  mk_span table = mk_operand_span(machine, instruction, MK_SLOT_ATTEND_table);
  mk_span out = mk_operand_span(machine, instruction, MK_SLOT_ATTEND_out);
  const uint32_t lines = machine->line_count, head_dim = kv.buffer->head_dim;
  float *q = machine->scratch, o[MK_MAX_HEAD_DIM];
  if (!mk_stage_lines(machine, &q_span, 0, q, head_dim)) {
    return MK_REFERENCE_WAIT;
  }
  mk_scale_queries(q, (size_t)lines * head_dim, mk_param_float(instruction->params[MK_PARAM_ATTEND_scale]));
  mk_unit_view view = {.machine = machine,
                       .buffer = kv.buffer,
                       .memory = (uint16_t *)(void *)kv.memory,
                       .table = &table,
                       .head = kv.col,
                       .head_dim = head_dim,
                       .group = 1,
                       .splits = 1};
  mk_unit_lay_out(&view, q + (size_t)lines * head_dim);
  if (!mk_unit_check_blocks(&view, machine)) {
    return MK_REFERENCE_FAULT;
  }
  for (uint32_t l = 0; l < lines; l++) {
    const mk_step_row *row = &machine->lines[l].row;
    const mk_line_view line = {.slot = row->slot, .position = row->position, .first_new = row->position + 1};
    const float *sum = mk_unit_part(&view, MK_CLASS + MK_TREE_LEVELS - 1, 0);
    mk_unit_copy_new_tiles(&view, &line);
    attend(&view, &line, q + (size_t)l * head_dim);
    for (uint32_t d = 0; d < head_dim; d++) {
      o[d] = sum[d] / sum[head_dim + 1];
    }
    mk_publish_floats(machine, &out, machine->lines[l].line, 0, head_dim, o);
  }
  return MK_REFERENCE_DONE;
}
