/* GLU: g, u = W norm(x), rows 0-7 and 8-15 of each tile (MK_PACK_GLU); out = bf16(g / (1 + exp(-g)) * u), or with gelu
 * bf16(g / (1 + exp(-2 z)) * u), z = sqrt(2 / pi) (g + 0.044715 g^3), which is GELU as its tanh approximation has it.
 * x, gain [width], weight [16 n, width], out [8 n]. If biased, the gain is followed by a bias for each row of the whole
 * weight; where a NORM has multiplied by the gain, it is there for these. */
#include <math.h>

#include "instructions/reference.h"

/* What the gate is divided by is one more than exp of this. */
static float exponent(float g, bool gelu) {
  const float twice = 1.5957691216f; /* 2 sqrt(2 / pi) */
  return gelu ? -(twice * (g + 0.044715f * (g * g * g))) : -g;
}

mk_reference_result mk_reference_GLU(mk_reference *machine, const mk_instruction *instruction) {
  mk_span weight = mk_operand_span(machine, instruction, MK_SLOT_GLU_weight);
  mk_span out = mk_operand_span(machine, instruction, MK_SLOT_GLU_out);
  float scales[MK_MOST_ROWS], *y = mk_normed_product(machine, instruction, &MK_NORM_OF(GLU), &weight, scales);
  if (y == NULL) {
    return MK_REFERENCE_WAIT;
  }
  mk_span gain = mk_operand_span(machine, instruction, MK_SLOT_GLU_gain);
  const bool gelu = instruction->params[MK_PARAM_GLU_gelu] != 0;
  const bool biased = instruction->params[MK_PARAM_GLU_biased] != 0;
  const uint16_t *bias =
      (const uint16_t *)(const void *)gain.memory + instruction->params[MK_PARAM_GLU_width] + weight.row;
  for (uint32_t l = 0; l < machine->line_count; l++, y += weight.rows) {
    for (uint32_t tile = 0; tile < weight.rows / MK_TILE; tile++) {
      for (uint32_t i = 0; i < 8; i++) {
        float g = y[tile * 16 + i] * scales[l], u = y[tile * 16 + 8 + i] * scales[l];
        g += biased ? mk_bf16_to_float(bias[tile * 16 + i]) : 0;
        u += biased ? mk_bf16_to_float(bias[tile * 16 + 8 + i]) : 0;
        y[tile * 8 + i] = g / (1.0f + mk_exp(exponent(g, gelu))) * u; /* overwrites rows that are done with */
      }
    }
    mk_publish_floats(machine, &out, machine->lines[l].line, 0, weight.rows / 2, y);
  }
  return MK_REFERENCE_DONE;
}
