/* OFFSET: residual_out = factor residual_in + bias, where there is a factor (0: none) and a bias.
 * residuals [16 n] fp32 or the row of a token, bias [all columns] bf16. It takes what the SM itself has left, and waits
 * for nobody. */
#include <string.h>

#include "instructions/reference.h"

mk_reference_result mk_reference_OFFSET(mk_reference *machine, const mk_instruction *instruction) {
  mk_span to = mk_operand_span(machine, instruction, MK_SLOT_OFFSET_residual_out);
  mk_span bias = mk_operand_span(machine, instruction, MK_SLOT_OFFSET_bias);
  const float factor = mk_param_float(instruction->params[MK_PARAM_OFFSET_factor]);
  const uint16_t *added = (const uint16_t *)(const void *)bias.memory;
  float *y = machine->scratch;
  memset(y, 0, (size_t)machine->line_count * to.cols * sizeof *y); /* an embedding row ends before the padding does */
  (void)mk_stage_vector(machine, instruction, MK_SLOT_OFFSET_residual_in, y, to.cols);
  for (uint32_t l = 0; l < machine->line_count; l++, y += to.cols) {
    for (uint32_t i = 0; i < to.cols; i++) {
      y[i] = factor != 0 ? y[i] * factor : y[i];
      y[i] += bias.rows != 0 && to.col + i < bias.cols ? mk_bf16_to_float(added[to.col + i]) : 0;
    }
    mk_publish_floats(machine, &to, machine->lines[l].line, 0, to.cols, y);
  }
  return MK_REFERENCE_DONE;
}
