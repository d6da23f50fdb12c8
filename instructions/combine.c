/* COMBINE: the splits of some query heads become their attention output.
 * parts [splits, heads * (head_dim + 2)] as ATTENTION writes them; out [heads * head_dim]. Splits 0..n-1 are in use, n =
 * min(splits, position / span + 1); others are neither waited for nor read. Added in split order. */
#include <math.h>
#include <string.h>

#include "instructions/reference.h"

mk_reference_result mk_reference_COMBINE(mk_reference *machine, const mk_instruction *instruction) {
  mk_span parts = mk_operand_span(machine, instruction, MK_SLOT_COMBINE_parts);
  mk_span out = mk_operand_span(machine, instruction, MK_SLOT_COMBINE_out);
  uint32_t in_use = machine->state->position / instruction->params[MK_PARAM_COMBINE_span] + 1;
  in_use = in_use < parts.rows ? in_use : parts.rows;
  float *staged = machine->scratch, *result = staged + (size_t)parts.rows * parts.cols;
  if (!mk_stage_stamped(machine, &parts, in_use, staged)) {
    return MK_REFERENCE_WAIT;
  }
  machine->rows_used[MK_SLOT_COMBINE_parts] = (uint16_t)in_use;
  uint32_t stride = parts.buffer->tile_cols, head_dim = stride - 2;
  for (uint32_t h = 0; h < parts.cols / stride; h++) {
    const float *head = staged + (size_t)h * stride;
    float max = -INFINITY, total = 0;
    for (uint32_t s = 0; s < in_use; s++) {
      float m = head[(size_t)s * parts.cols + head_dim];
      max = m > max || isnan(m) ? m : max;
    }
    float *o = result + (size_t)h * head_dim;
    memset(o, 0, head_dim * sizeof *o);
    for (uint32_t s = 0; s < in_use; s++) {
      const float *part = head + (size_t)s * parts.cols;
      float factor = expf(part[head_dim] - max);
      total += factor * part[head_dim + 1];
      for (uint32_t d = 0; d < head_dim; d++) {
        o[d] += factor * part[d];
      }
    }
    for (uint32_t d = 0; d < head_dim; d++) {
      o[d] /= total;
    }
  }
  mk_publish_floats(machine, &out, 0, 0, out.cols, result);
  return MK_REFERENCE_DONE;
}
