/* QKV: out = rope(W norm(x), position) for the first rope_tiles row tiles of the weight, W norm(x) for the rest.
 * x [width], gain [width], weight [16 n, width], inv_freq [head_dim / 2], out [16 n] fp32. In a rotated tile, row r < 8 and
 * row r + 8 are the two halves of a pair (MK_PACK_ROPE): (a, b) -> (a cos - b sin, b cos + a sin). */
#include <math.h>

#include "instructions/reference.h"

mk_reference_result mk_reference_QKV(mk_reference *machine, const mk_instruction *instruction) {
  mk_span weight = mk_operand_span(machine, instruction, MK_SLOT_QKV_weight);
  mk_span frequencies = mk_operand_span(machine, instruction, MK_SLOT_QKV_inv_freq);
  mk_span out = mk_operand_span(machine, instruction, MK_SLOT_QKV_out);
  uint32_t padded = (weight.cols + 15) / 16 * 16;
  float *x = machine->scratch, *expanded = x + padded, *y = expanded + MK_MATVEC_SCRATCH(padded), scale;
  if (!mk_stage_normed(machine, instruction, MK_SLOT_QKV_x, MK_SLOT_QKV_gain,
                       mk_param_float(instruction->params[MK_PARAM_QKV_eps]), instruction->params[MK_PARAM_QKV_width],
                       x, &scale)) {
    return MK_REFERENCE_WAIT;
  }
  mk_matvec(&weight, x, expanded, y);
  for (uint32_t i = 0; i < weight.rows; i++) {
    y[i] *= scale;
  }
  const float *inv_freq = (const float *)(const void *)frequencies.memory;
  uint32_t tiles_per_head = instruction->params[MK_PARAM_QKV_head_dim] / MK_TILE;
  for (uint32_t row = 0; row < weight.rows; row += MK_TILE) {
    uint32_t tile = (weight.row + row) / MK_TILE;
    if (tile >= instruction->params[MK_PARAM_QKV_rope_tiles]) {
      break;
    }
    for (uint32_t i = 0; i < 8; i++) {
      float angle = (float)machine->state->position * inv_freq[tile % tiles_per_head * 8 + i];
      float c = cosf(angle), s = sinf(angle), a = y[row + i], b = y[row + i + 8];
      y[row + i] = a * c - b * s;
      y[row + i + 8] = b * c + a * s;
    }
  }
  mk_publish_floats(machine, &out, 0, 0, weight.rows, y);
  return MK_REFERENCE_DONE;
}
