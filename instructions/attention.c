/* ATTENTION: one unit of the decode attention of one KV head.
 * q [group * head_dim], k, v [head_dim] fp32 for each line; kv: the blocks that KV row u stands for; out: for each
 * line, query head and span of the unit up to the line's position a part (reference.h): (sum_t p_t v_t [head_dim], m,
 * sum p), p_t = 2^(x_t - m). With an eps q, k and v come in tiles of 18 columns, 16 values and their squares, and each
 * head of q and k is normed by the squares of its tiles.
 *
 * Of a line at position p unit u does split s of the line's slot (mk_split_of): the spans s, s + splits, ... up to p;
 * the part of span s + i splits is part i of a head. Of spans beyond the position nothing is written for that line.
 * With one line a step u is the split. The unit whose spans hold a position rounds its k and v as the cache has
 * them (bf16, or codes with a scale), appends them, and is the only one to read them later. Every unit waits for q, k
 * and v of all active lines.
 *
 * Lines of one slot in one step are at neighbouring positions. Tokens before the first of them come from the cache, the
 * new ones from k and v. So each line sees what it would see if the tokens had come one by one, in the same order of
 * sums.
 *
 * With a window of w tokens a line sees tokens p - w + 1 to p alone. Parts and spans stay where they are: those that
 * end before the window are not read, and have no tokens; in the part where the window begins the tokens before it are
 * masked as those after p are. A span that ends before the window leaves the part of no tokens, so that who merges
 * the spans need not know of windows.
 *
 * The order of sums: MK_FOLD_TOKENS tokens are a part by themselves. These are added up to pieces of MK_PIECE_TOKENS,
 * the oldest first, and the pieces of a span as a tree. q times its scale and p are rounded to bf16, as K and V are
 * when they are read. */
#include "instructions/attention.h"

#include <math.h>

static uint32_t first_new(const mk_reference *machine, uint32_t slot) {
  uint32_t first = UINT32_MAX;
  for (uint32_t l = 0; l < machine->line_count; l++) {
    const mk_step_row *row = &machine->lines[l].row;
    first = row->slot == slot && row->position < first ? row->position : first;
  }
  return first;
}

/* Attends over span `span` of the line's tokens. q: [group][head_dim]. The result is left in the parts of level
 * CLASS. */
static void attend(const mk_unit_view *view, const mk_line_view *line, uint32_t span, const float *q) {
  uint32_t first = span * view->buffer->span_tokens, end = first + view->buffer->span_tokens;
  end = end > line->position + 1 ? line->position + 1 : end;
  mk_unit_begin(view);
  if (end <= line->first_seen) {
    return;
  }
  for (uint32_t t = first, next; t < end; t = next) {
    next = t / MK_PIECE_TOKENS * MK_PIECE_TOKENS + MK_PIECE_TOKENS;
    next = next < end ? next : end;
    const uint32_t last = (next - 1) / MK_FOLD_TOKENS * MK_FOLD_TOKENS; /* its last part begins there, or with it */
    mk_unit_add_tokens(view, line, q, t, next);
    mk_unit_add_level(view, MK_PIECE, MK_CLASS + ((last > t ? last : t) - first) / MK_PIECE_TOKENS);
  }
  for (uint32_t away = 1; away < MK_SPAN_PIECES; away *= 2) {
    for (uint32_t i = 0; i < MK_SPAN_PIECES; i += 2 * away) {
      mk_unit_add_level(view, MK_CLASS + i + away, MK_CLASS + i);
    }
  }
}

mk_reference_result mk_reference_ATTENTION(mk_reference *machine, const mk_instruction *instruction) {
  mk_span q_span = mk_operand_span(machine, instruction, MK_SLOT_ATTENTION_q);
  mk_span k_span = mk_operand_span(machine, instruction, MK_SLOT_ATTENTION_k);
  mk_span v_span = mk_operand_span(machine, instruction, MK_SLOT_ATTENTION_v);
  mk_span kv = mk_operand_span(machine, instruction, MK_SLOT_ATTENTION_kv);
  mk_span out_span = mk_operand_span(machine, instruction, MK_SLOT_ATTENTION_out);
  mk_span table = mk_operand_span(machine, instruction, MK_SLOT_ATTENTION_table);
  uint32_t lines = machine->line_count, head_dim = kv.buffer->head_dim,
           group = instruction->params[MK_PARAM_ATTENTION_group],
           spans = instruction->operands[MK_SLOT_ATTENTION_out].cols / group;
  float *q = machine->scratch, *k = q + (size_t)lines * q_span.cols, *v = k + (size_t)lines * k_span.cols,
        *rest = v + (size_t)lines * v_span.cols;
  if (!mk_stage_lines(machine, &q_span, 0, q, q_span.cols) || !mk_stage_lines(machine, &k_span, 0, k, k_span.cols) ||
      !mk_stage_lines(machine, &v_span, 0, v, v_span.cols)) {
    return MK_REFERENCE_WAIT;
  }
  const float eps = mk_param_float(instruction->params[MK_PARAM_ATTENTION_eps]);
  if (eps != 0) {
    mk_take_heads(q, lines, group, head_dim, true, eps);
    mk_take_heads(k, lines, 1, head_dim, true, eps);
    mk_take_heads(v, lines, 1, head_dim, false, eps);
  }
  mk_scale_queries(q, (size_t)lines * group * head_dim, mk_param_float(instruction->params[MK_PARAM_ATTENTION_scale]));
  mk_unit_view view = {.machine = machine,
                       .buffer = kv.buffer,
                       .memory = kv.memory,
                       .table = &table,
                       .k = k,
                       .v = v,
                       .head = kv.col,
                       .head_dim = head_dim,
                       .group = group,
                       .unit = kv.row,
                       .splits = instruction->params[MK_PARAM_ATTENTION_splits]};
  mk_unit_lay_out(&view, rest);
  const uint32_t window = instruction->params[MK_PARAM_ATTENTION_window];
  bool works = false;
  if (!mk_unit_check_blocks(&view, machine)) {
    return MK_REFERENCE_FAULT;
  }
  for (uint32_t l = 0; l < lines; l++) {
    if (mk_unit_keeps(&view, machine->lines[l].row.slot, machine->lines[l].row.position)) {
      mk_unit_append(&view, l);
    }
  }
  for (uint32_t l = 0; l < lines; l++) {
    const mk_step_row *row = &machine->lines[l].row;
    mk_line_view line = {.slot = row->slot,
                         .position = row->position,
                         .split = mk_split_of(view.unit, row->slot, view.splits),
                         .first_new = first_new(machine, row->slot),
                         .first_seen = mk_first_seen(row->position, window)};
    if (line.split > row->position / kv.buffer->span_tokens) {
      continue;
    }
    works = true;
    mk_unit_copy_new_tiles(&view, &line);
    for (uint32_t i = 0; i * view.splits + line.split <= row->position / kv.buffer->span_tokens; i++) {
      attend(&view, &line, i * view.splits + line.split, q + (size_t)l * group * head_dim);
      for (uint32_t h = 0; h < group && i < spans; h++) {
        mk_publish_floats(machine, &out_span, machine->lines[l].line, (h * spans + i) * (head_dim + 2), head_dim + 2,
                          mk_unit_part(&view, MK_CLASS, h));
      }
    }
  }
  if (!works) {
    machine->rows_used[MK_SLOT_ATTENTION_kv] = machine->rows_used[MK_SLOT_ATTENTION_out] = 0;
  }
  return MK_REFERENCE_DONE;
}
