/* NORM: what of norm(x) no product is needed for, over a chain of columns. x [n] bf16, or the row of the token; gain
 * [gains] bf16 (0: all of it), which may go on with biases, or nothing; out [n] = bf16(x gain), zero beyond the gain's
 * last column, or x; squares [1] fp32 = the sum of the squares of x in the order of docs/NUMERICS.md. */
#include <string.h>

#include "instructions/reference.h"

mk_reference_result mk_reference_NORM(mk_reference *machine, const mk_instruction *instruction) {
  mk_span gain = mk_operand_span(machine, instruction, MK_SLOT_NORM_gain);
  mk_span out = mk_operand_span(machine, instruction, MK_SLOT_NORM_out);
  mk_span squares = mk_operand_span(machine, instruction, MK_SLOT_NORM_squares);
  const uint32_t from = mk_operand_span(machine, instruction, MK_SLOT_NORM_x).cols;
  const uint32_t given = instruction->params[MK_PARAM_NORM_gains], end = given != 0 ? given : gain.cols;
  const uint32_t gains = end > out.col ? end - out.col : 0;
  float *x = machine->scratch;
  if (!mk_stage_vector(machine, instruction, MK_SLOT_NORM_x, x, out.cols)) {
    return MK_REFERENCE_WAIT;
  }
  for (uint32_t l = 0; l < machine->line_count; l++, x += out.cols) {
    const float sum = mk_chain_squares(x, from);
    if (gain.rows != 0) {
      mk_scale_by_gain(x, from, out.cols, (const uint16_t *)(const void *)gain.memory + out.col, gains, 0);
    } else {
      memset(x + from, 0, (out.cols - from) * sizeof *x);
    }
    mk_publish_floats(machine, &squares, machine->lines[l].line, 0, 1, &sum);
    mk_publish_floats(machine, &out, machine->lines[l].line, 0, out.cols, x);
  }
  return MK_REFERENCE_DONE;
}
