/* REDUCE_ADD: y = residual_in + ((parts[0] + parts[1]) + ...); residual_out = y; out = bf16(y).
 * parts [P, n] fp32, residuals [n] fp32, out [n] bf16. */
#include "instructions/reference.h"

mk_reference_result mk_reference_REDUCE_ADD(mk_reference *machine, const mk_instruction *instruction) {
  mk_span parts = mk_operand_span(machine, instruction, MK_SLOT_REDUCE_ADD_parts);
  float *staged = machine->scratch, *residual = staged + (size_t)parts.rows * parts.cols;
  if (!mk_stage_stamped(machine, &parts, parts.rows, staged)) {
    return MK_REFERENCE_WAIT;
  }
  for (uint32_t p = 1; p < parts.rows; p++) {
    for (uint32_t i = 0; i < parts.cols; i++) {
      staged[i] += staged[(size_t)p * parts.cols + i];
    }
  }
  mk_residual_epilogue(machine, instruction, MK_SLOT_REDUCE_ADD_residual_in, MK_SLOT_REDUCE_ADD_residual_out,
                       MK_SLOT_REDUCE_ADD_out, staged, residual);
  return MK_REFERENCE_DONE;
}
