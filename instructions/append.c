/* APPEND: k, v [head_dim] fp32 of every active line go into the cache of a KV head, at the line's position, rounded as
 * the cache has them (bf16, or codes with a scale). With an eps they come in tiles of 18 columns, 16 values and their
 * squares, and k is normed by the squares of its tiles. One instruction has all lines of the step, and the cache has
 * one split. */
#include "instructions/attention.h"

mk_reference_result mk_reference_APPEND(mk_reference *machine, const mk_instruction *instruction) {
  mk_span k_span = mk_operand_span(machine, instruction, MK_SLOT_APPEND_k);
  mk_span v_span = mk_operand_span(machine, instruction, MK_SLOT_APPEND_v);
  mk_span kv = mk_operand_span(machine, instruction, MK_SLOT_APPEND_kv);
  mk_span table = mk_operand_span(machine, instruction, MK_SLOT_APPEND_table);
  const uint32_t lines = machine->line_count;
  float *k = machine->scratch, *v = k + (size_t)lines * k_span.cols;
  if (!mk_stage_lines(machine, &k_span, 0, k, k_span.cols) || !mk_stage_lines(machine, &v_span, 0, v, v_span.cols)) {
    return MK_REFERENCE_WAIT;
  }
  const float eps = mk_param_float(instruction->params[MK_PARAM_APPEND_eps]);
  if (eps != 0) {
    mk_take_heads(k, lines, 1, kv.buffer->head_dim, true, eps);
    mk_take_heads(v, lines, 1, kv.buffer->head_dim, false, eps);
  }
  mk_unit_view view = {.machine = machine,
                       .buffer = kv.buffer,
                       .memory = kv.memory,
                       .table = &table,
                       .k = k,
                       .v = v,
                       .head = kv.col,
                       .head_dim = kv.buffer->head_dim,
                       .splits = 1};
  if (!mk_unit_check_blocks(&view, machine)) {
    return MK_REFERENCE_FAULT;
  }
  for (uint32_t l = 0; l < lines; l++) {
    mk_unit_append(&view, l);
  }
  return MK_REFERENCE_DONE;
}
