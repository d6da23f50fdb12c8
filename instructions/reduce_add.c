/* REDUCE_ADD: y = residual_in + ((parts[0] + parts[1]) + ...); residual_out = y; out = bf16(y).
 * parts [P, n] fp32, residuals [n] fp32, out [n] bf16. */
#include "instructions/reference.h"

mk_reference_result mk_reference_REDUCE_ADD(mk_reference *machine, const mk_instruction *instruction) {
  mk_span parts = mk_operand_span(machine, instruction, MK_SLOT_REDUCE_ADD_parts);
  uint32_t lines = machine->line_count, parts_count = parts.rows / parts.buffer->tile_rows;
  size_t stride = parts.cols, part = lines * stride;
  float *staged = machine->scratch, *residual = staged + parts_count * part;
  if (!mk_stage_sums(machine, &parts, parts_count, staged)) {
    return MK_REFERENCE_WAIT;
  }
  mk_residual_epilogue(machine, instruction, MK_SLOT_REDUCE_ADD_residual_in, MK_SLOT_REDUCE_ADD_residual_out,
                       MK_SLOT_REDUCE_ADD_out, staged, stride, residual);
  return MK_REFERENCE_DONE;
}
