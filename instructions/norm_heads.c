/* NORM_HEADS: q and k, each normed over all of its heads, and v as it is.
 * values [query_tiles + key_tiles + value tiles] of 18 columns as QKV leaves them with squares; out [the same tiles] of
 * 16, of which the instruction writes some. */
#include <math.h>

#include "instructions/reference.h"

/* The scale of the norm over `count` tiles from `first` on. */
static float scale_of(const float *values, uint32_t first, uint32_t count, float eps) {
  const float squares = mk_sum_tile_squares(values + (size_t)first * MK_SQUARED_TILE, count);
  return 1.0f / sqrtf(squares * (1.0f / (float)(count * MK_TILE)) + eps);
}

mk_reference_result mk_reference_NORM_HEADS(mk_reference *machine, const mk_instruction *instruction) {
  mk_span values = mk_operand_span(machine, instruction, MK_SLOT_NORM_HEADS_values);
  mk_span out = mk_operand_span(machine, instruction, MK_SLOT_NORM_HEADS_out);
  const uint32_t queries = instruction->params[MK_PARAM_NORM_HEADS_query_tiles];
  const uint32_t keys = instruction->params[MK_PARAM_NORM_HEADS_key_tiles];
  const float eps = mk_param_float(instruction->params[MK_PARAM_NORM_HEADS_eps]);
  float *staged = machine->scratch;
  if (!mk_stage_lines(machine, &values, 0, staged, values.cols)) {
    return MK_REFERENCE_WAIT;
  }
  for (uint32_t l = 0; l < machine->line_count; l++, staged += values.cols) {
    const float scales[] = {scale_of(staged, 0, queries, eps), scale_of(staged, queries, keys, eps), 1};
    for (uint32_t i = 0; i < out.cols / MK_TILE; i++) {
      const uint32_t tile = out.col / MK_TILE + i;
      float *from = staged + (size_t)tile * MK_SQUARED_TILE, result[MK_TILE];
      for (uint32_t k = 0; k < MK_TILE; k++) {
        result[k] = from[k] * scales[tile < queries ? 0 : tile < queries + keys ? 1 : 2];
      }
      mk_publish_floats(machine, &out, machine->lines[l].line, i * MK_TILE, MK_TILE, result);
    }
  }
  return MK_REFERENCE_DONE;
}
