/* LINEAR_PART: out = W x over a part of K. x [16 k], weight [16 n, 16 k], out [16 n] fp32. */
#include "instructions/reference.h"

mk_reference_result mk_reference_LINEAR_PART(mk_reference *machine, const mk_instruction *instruction) {
  mk_span weight = mk_operand_span(machine, instruction, MK_SLOT_LINEAR_PART_weight);
  mk_span out = mk_operand_span(machine, instruction, MK_SLOT_LINEAR_PART_out);
  uint32_t padded = (weight.cols + 15) / 16 * 16, lines = machine->line_count;
  float *x = machine->scratch, *expanded = x + (size_t)lines * padded,
        *y = expanded + (size_t)lines * MK_MATVEC_SCRATCH(padded);
  if (!mk_stage_vector(machine, instruction, MK_SLOT_LINEAR_PART_x, x, padded)) {
    return MK_REFERENCE_WAIT;
  }
  mk_matvec(&weight, lines, x, expanded, y);
  for (uint32_t l = 0; l < lines; l++) {
    mk_publish_floats(machine, &out, machine->lines[l].line, 0, weight.rows, y + (size_t)l * weight.rows);
  }
  return MK_REFERENCE_DONE;
}
