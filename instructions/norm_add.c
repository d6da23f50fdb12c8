/* NORM_ADD: y = residual_in + norm(s), s = (parts[0] + parts[1]) + ... + bias over all columns; residual_out = y; out =
 * bf16(y).
 * parts [P, all columns] fp32, gain [width] bf16, followed by as many biases where the instruction is biased; residuals
 * [n] fp32, out [n] bf16.
 * norm(s) = s (plus + gain) / sqrt(mean(s^2) + eps). */
#include <math.h>
#include <string.h>

#include "instructions/reference.h"

mk_reference_result mk_reference_NORM_ADD(mk_reference *machine, const mk_instruction *instruction) {
  mk_span parts = mk_operand_span(machine, instruction, MK_SLOT_NORM_ADD_parts);
  mk_span gain = mk_operand_span(machine, instruction, MK_SLOT_NORM_ADD_gain);
  mk_span to = mk_operand_span(machine, instruction, MK_SLOT_NORM_ADD_residual_out);
  const uint32_t lines = machine->line_count, count = parts.rows / parts.buffer->tile_rows;
  const uint32_t width = instruction->params[MK_PARAM_NORM_ADD_width];
  const bool biased = instruction->params[MK_PARAM_NORM_ADD_biased] != 0;
  const float eps = mk_param_float(instruction->params[MK_PARAM_NORM_ADD_eps]);
  const float plus = mk_param_float(instruction->params[MK_PARAM_NORM_ADD_plus]);
  const uint16_t *g = (const uint16_t *)(const void *)gain.memory;
  const size_t part = (size_t)lines * parts.cols;
  float *staged = machine->scratch, *y = staged + count * part, *residual = y + (size_t)lines * to.cols;
  for (uint32_t p = 0; p < count; p++) {
    if (!mk_stage_lines(machine, &parts, p, staged + p * part, parts.cols)) {
      return MK_REFERENCE_WAIT;
    }
  }
  for (size_t i = 0; i < (count - 1) * part; i++) {
    staged[i % part] += staged[part + i];
  }
  for (uint32_t l = 0; l < lines; l++) {
    float *s = staged + (size_t)l * parts.cols, *sums = y + (size_t)l * to.cols;
    for (uint32_t i = 0; biased && i < width; i++) {
      s[i] += mk_bf16_to_float(g[width + i]);
    }
    const float scale = 1.0f / sqrtf(mk_sum_squares(s, width) * (1.0f / (float)width) + eps);
    for (uint32_t i = 0; i < to.cols; i++) {
      const uint32_t at = to.col + i;
      sums[i] = at < width ? s[at] * scale * (plus + mk_bf16_to_float(g[at])) : 0;
    }
  }
  mk_residual_epilogue(machine, instruction, MK_SLOT_NORM_ADD_residual_in, MK_SLOT_NORM_ADD_residual_out,
                       MK_SLOT_NORM_ADD_out, y, to.cols, residual);
  return MK_REFERENCE_DONE;
}
