/* SQUARES: squares = the sum of the squares of s = (parts[0] + parts[1]) + ... + bias over a chain of the first `width`
 * columns, by which a NORM_ADD of other columns knows its scale. parts [P, n] fp32; gain [2 width] bf16, which ends
 * with the biases, or nothing; squares [1] fp32, in the order of docs/NUMERICS.md. */
#include "instructions/reference.h"

mk_reference_result mk_reference_SQUARES(mk_reference *machine, const mk_instruction *instruction) {
  mk_span parts = mk_operand_span(machine, instruction, MK_SLOT_SQUARES_parts);
  mk_span gain = mk_operand_span(machine, instruction, MK_SLOT_SQUARES_gain);
  mk_span squares = mk_operand_span(machine, instruction, MK_SLOT_SQUARES_squares);
  const uint32_t width = instruction->params[MK_PARAM_SQUARES_width];
  const uint16_t *g = (const uint16_t *)(const void *)gain.memory;
  float *s = machine->scratch;
  if (!mk_stage_sums(machine, &parts, parts.rows / parts.buffer->tile_rows, s)) {
    return MK_REFERENCE_WAIT;
  }
  const uint32_t left = width > parts.col ? width - parts.col : 0, cols = left < parts.cols ? left : parts.cols;
  for (uint32_t l = 0; l < machine->line_count; l++, s += parts.cols) {
    for (uint32_t i = 0; gain.rows != 0 && i < cols; i++) {
      s[i] += mk_bf16_to_float(g[width + parts.col + i]);
    }
    const float sum = mk_chain_squares(s, cols);
    mk_publish_floats(machine, &squares, machine->lines[l].line, 0, 1, &sum);
  }
  return MK_REFERENCE_DONE;
}
