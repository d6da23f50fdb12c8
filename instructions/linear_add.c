/* LINEAR_ADD: y = residual_in + W x; residual_out = y; out = bf16(y).
 * x [16 k], weight [16 n, 16 k], residuals [16 n] fp32, out [16 n] bf16. */
#include "instructions/reference.h"

mk_reference_result mk_reference_LINEAR_ADD(mk_reference *machine, const mk_instruction *instruction) {
  mk_span weight = mk_operand_span(machine, instruction, MK_SLOT_LINEAR_ADD_weight);
  uint32_t padded = (weight.cols + 15) / 16 * 16, lines = machine->line_count;
  float *x = machine->scratch, *expanded = x + (size_t)lines * padded,
        *y = expanded + (size_t)lines * MK_MATVEC_SCRATCH(padded), *residual = y + (size_t)lines * weight.rows;
  if (!mk_stage_vector(machine, instruction, MK_SLOT_LINEAR_ADD_x, x, padded)) {
    return MK_REFERENCE_WAIT;
  }
  mk_matvec(&weight, lines, x, expanded, y);
  mk_residual_epilogue(machine, instruction, MK_SLOT_LINEAR_ADD_residual_in, MK_SLOT_LINEAR_ADD_residual_out,
                       MK_SLOT_LINEAR_ADD_out, y, weight.rows, residual);
  return MK_REFERENCE_DONE;
}
