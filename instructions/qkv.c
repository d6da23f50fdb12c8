/* QKV: out = rope(W norm(x), position) for the first rope_tiles row tiles of the weight, W norm(x) for the rest. x
 * [width], gain [width], weight [16 n, width], inv_freq [head_dim / 2], out [16 n] fp32. In a rotated tile, row r < 8
 * and row r + 8 are the two halves of a pair (MK_PACK_ROPE): (a, b) -> (a cos - b sin, b cos + a sin).
 *
 * With `extras`, inv_freq is followed by a bias and then by a gain for each row of the whole weight, as far as there
 * are any; bias and gain come before the rotation. With squares, a tile of out has 18 columns: 16 values, the sum of
 * their squares before the gains, and a zero. */
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

/* Adds the biases of a tile's rows, gives the sum of the squares, and multiplies by the gains. */
static float finish_rows(uint32_t extras, const float *bias, const float *gain, float *y) {
  for (uint32_t i = 0; i < MK_TILE && (extras & MK_QKV_BIASES) != 0; i++) {
    y[i] += bias[i];
  }
  const float squares = mk_sum_squares(y, MK_TILE);
  for (uint32_t i = 0; i < MK_TILE && (extras & MK_QKV_GAINS) != 0; i++) {
    y[i] *= gain[i];
  }
  return squares;
}

mk_reference_result mk_reference_QKV(mk_reference *machine, const mk_instruction *instruction) {
  mk_span weight = mk_operand_span(machine, instruction, MK_SLOT_QKV_weight);
  mk_span frequencies = mk_operand_span(machine, instruction, MK_SLOT_QKV_inv_freq);
  mk_span out = mk_operand_span(machine, instruction, MK_SLOT_QKV_out);
  float scales[MK_MOST_ROWS], squares[2],
      *y = mk_normed_product(machine, instruction, &MK_NORM_OF(QKV), &weight, scales);
  if (y == NULL) {
    return MK_REFERENCE_WAIT;
  }
  const uint32_t extras = instruction->params[MK_PARAM_QKV_extras];
  const float *inv_freq = (const float *)(const void *)frequencies.memory;
  const float *bias = inv_freq + instruction->params[MK_PARAM_QKV_head_dim] / 2 + weight.row;
  const float *gain = (extras & MK_QKV_BIASES) != 0 ? bias + weight.buffer->rows : bias;
  for (uint32_t l = 0; l < machine->line_count; l++, y += weight.rows) {
    const uint32_t line = machine->lines[l].line;
    for (uint32_t i = 0; i < weight.rows; i++) {
      y[i] *= scales[l];
    }
    for (uint32_t row = 0; extras != 0 && row < weight.rows; row += MK_TILE) {
      squares[0] = finish_rows(extras, bias + row, gain + row, y + row);
      squares[1] = 0;
      if ((extras & MK_QKV_SQUARES) != 0) {
        mk_publish_floats(machine, &out, line, row / MK_TILE * MK_SQUARED_TILE + MK_TILE, 2, squares);
      }
    }
    rotate(instruction, &weight, inv_freq, machine->lines[l].row.position, y);
    if ((extras & MK_QKV_SQUARES) == 0) {
      mk_publish_floats(machine, &out, line, 0, weight.rows, y);
      continue;
    }
    for (uint32_t row = 0; row < weight.rows; row += MK_TILE) {
      mk_publish_floats(machine, &out, line, row / MK_TILE * MK_SQUARED_TILE, MK_TILE, y + row);
    }
  }
  return MK_REFERENCE_DONE;
}
