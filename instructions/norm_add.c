/* NORM_ADD: y = residual_in + norm(s), s = (parts[0] + parts[1]) + ... + bias over all columns; residual_out = y; out =
 * bf16(y).
 * parts [P, all columns] fp32, gain [width] bf16, followed by as many biases where the instruction is biased; residuals
 * [n] fp32, out [n] bf16.
 * norm(s) = s (plus + gain) / sqrt(mean(s^2) + eps).
 *
 * ADD_NORMED: the same, but parts [P, n] have the instruction's columns alone, and squares [chains] fp32 come from
 * SQUARES. All else are the same operands in the same slots. */
#include <math.h>

#include "instructions/reference.h"

_Static_assert((int)MK_SLOT_NORM_ADD_out == (int)MK_SLOT_ADD_NORMED_out &&
                   (int)MK_PARAM_NORM_ADD_plus == (int)MK_PARAM_ADD_NORMED_plus,
               "the last ones that both have");

/* squares: of the sum, NULL: it has all columns. */
static mk_reference_result add_norm(mk_reference *machine, const mk_instruction *instruction, const mk_span *squares) {
  mk_span parts = mk_operand_span(machine, instruction, MK_SLOT_NORM_ADD_parts);
  mk_span gain = mk_operand_span(machine, instruction, MK_SLOT_NORM_ADD_gain);
  mk_span to = mk_operand_span(machine, instruction, MK_SLOT_NORM_ADD_residual_out);
  const uint32_t lines = machine->line_count, count = parts.rows / parts.buffer->tile_rows;
  const uint32_t width = instruction->params[MK_PARAM_NORM_ADD_width], chains = squares == NULL ? 0 : squares->cols;
  const bool biased = instruction->params[MK_PARAM_NORM_ADD_biased] != 0;
  const float eps = mk_param_float(instruction->params[MK_PARAM_NORM_ADD_eps]);
  const float plus = mk_param_float(instruction->params[MK_PARAM_NORM_ADD_plus]);
  const uint16_t *g = (const uint16_t *)(const void *)gain.memory;
  const size_t part = (size_t)lines * parts.cols;
  float *staged = machine->scratch, *y = staged + count * part, *residual = y + (size_t)lines * to.cols;
  float *of_chains = residual + (size_t)lines * to.cols;
  if (!mk_stage_sums(machine, &parts, count, staged) ||
      (squares != NULL && !mk_stage_lines(machine, squares, 0, of_chains, chains))) {
    return MK_REFERENCE_WAIT;
  }
  for (uint32_t l = 0; l < lines; l++) {
    float *s = staged + (size_t)l * parts.cols, *sums = y + (size_t)l * to.cols;
    for (uint32_t i = 0; biased && i < parts.cols && parts.col + i < width; i++) {
      s[i] += mk_bf16_to_float(g[width + parts.col + i]);
    }
    const float sum =
        squares == NULL ? mk_sum_squares(s, width) : mk_sum_chain_squares(of_chains + (size_t)l * chains, chains);
    const float scale = 1.0f / sqrtf(sum * (1.0f / (float)width) + eps);
    for (uint32_t i = 0; i < to.cols; i++) {
      const uint32_t at = to.col + i;
      sums[i] = at < width ? s[at - parts.col] * scale * (plus + mk_bf16_to_float(g[at])) : 0;
    }
  }
  mk_residual_epilogue(machine, instruction, MK_SLOT_NORM_ADD_residual_in, MK_SLOT_NORM_ADD_residual_out,
                       MK_SLOT_NORM_ADD_out, y, to.cols, residual);
  return MK_REFERENCE_DONE;
}

mk_reference_result mk_reference_NORM_ADD(mk_reference *machine, const mk_instruction *instruction) {
  return add_norm(machine, instruction, NULL);
}

mk_reference_result mk_reference_ADD_NORMED(mk_reference *machine, const mk_instruction *instruction) {
  const mk_span squares = mk_operand_span(machine, instruction, MK_SLOT_ADD_NORMED_squares);
  return add_norm(machine, instruction, &squares);
}
