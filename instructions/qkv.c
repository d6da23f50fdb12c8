/* QKV: out = rope(W norm(x), position) for the first rope_tiles row tiles of the weight, W norm(x) for the rest.
 * x [width], gain [width], weight [16 n, width], inv_freq [head_dim / 2], out [16 n] fp32. In a rotated tile, row r < 8 and
 * row r + 8 are the two halves of a pair (MK_PACK_ROPE): (a, b) -> (a cos - b sin, b cos + a sin). */
#include <math.h>

#include "instructions/reference.h"

static void rotate(const mk_instruction *instruction, const mk_span *weight, const float *inv_freq, uint32_t position,
                   float *y) {
  uint32_t tiles_per_head = instruction->params[MK_PARAM_QKV_head_dim] / MK_TILE;
  for (uint32_t row = 0; row < weight->rows; row += MK_TILE) {
    uint32_t tile = (weight->row + row) / MK_TILE;
    if (tile >= instruction->params[MK_PARAM_QKV_rope_tiles]) {
      break;
    }
    for (uint32_t i = 0; i < 8; i++) {
      float angle = (float)position * inv_freq[tile % tiles_per_head * 8 + i];
      float c = mk_cos(angle), s = mk_sin(angle), a = y[row + i], b = y[row + i + 8];
      y[row + i] = a * c - b * s;
      y[row + i + 8] = b * c + a * s;
    }
  }
}

mk_reference_result mk_reference_QKV(mk_reference *machine, const mk_instruction *instruction) {
  mk_span weight = mk_operand_span(machine, instruction, MK_SLOT_QKV_weight);
  mk_span frequencies = mk_operand_span(machine, instruction, MK_SLOT_QKV_inv_freq);
  mk_span out = mk_operand_span(machine, instruction, MK_SLOT_QKV_out);
  float scales[MK_MOST_ROWS], *y = mk_normed_product(machine, instruction, MK_SLOT_QKV_x, MK_SLOT_QKV_gain,
                                                     mk_param_float(instruction->params[MK_PARAM_QKV_eps]),
                                                     instruction->params[MK_PARAM_QKV_width], &weight, scales);
  if (y == NULL) {
    return MK_REFERENCE_WAIT;
  }
  for (uint32_t l = 0; l < machine->line_count; l++, y += weight.rows) {
    for (uint32_t i = 0; i < weight.rows; i++) {
      y[i] *= scales[l];
    }
    rotate(instruction, &weight, (const float *)(const void *)frequencies.memory, machine->lines[l].row.position, y);
    mk_publish_floats(machine, &out, machine->lines[l].line, 0, weight.rows, y);
  }
  return MK_REFERENCE_DONE;
}
