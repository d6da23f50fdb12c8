/* COMBINE: the splits of some query heads become their attention output.
 * parts [units][lines][heads * (head_dim + 2)] as ATTENTION writes them; out [heads * head_dim] for each line. Splits 0..n-1 of a line are
 * in use, n = min(units, position / span + 1); split j of a line in slot c is what unit (j + c) mod units has left. Others are
 * neither waited for nor read. Added in split order. */
#include <math.h>
#include <string.h>

#include "instructions/reference.h"

/* Stages the parts of active line l that are in use, one behind the other; 0: a stamp is missing. */
static uint32_t stage_parts(mk_reference *machine, const mk_instruction *instruction, const mk_span *parts, uint32_t l,
                            float *out) {
  const mk_line *line = &machine->lines[l];
  uint32_t units = parts->rows / parts->buffer->tile_rows;
  uint32_t in_use = line->row.position / instruction->params[MK_PARAM_COMBINE_span] + 1;
  in_use = in_use < units ? in_use : units;
  for (uint32_t j = 0; j < in_use; j++) {
    uint32_t unit = (j + line->row.slot) % units;
    mk_span part = *parts;
    part.row += unit * parts->buffer->tile_rows + line->line;
    if (!mk_stage_stamped(machine, &part, 1, out + (size_t)j * parts->cols)) {
      return 0;
    }
    machine->parts_used[unit / 64 % MK_PART_WORDS] |= UINT64_C(1) << unit % 64;
  }
  return in_use;
}

void mk_merge_parts(const float *parts, uint32_t count, size_t stride, uint32_t head_dim, float *out) {
  float max = -INFINITY, total = 0;
  for (uint32_t s = 0; s < count; s++) {
    float m = parts[s * stride + head_dim];
    max = m > max || isnan(m) ? m : max;
  }
  memset(out, 0, head_dim * sizeof *out);
  for (uint32_t s = 0; s < count; s++) {
    const float *part = parts + s * stride;
    float factor = mk_exp(part[head_dim] - max);
    total += factor * part[head_dim + 1];
    for (uint32_t d = 0; d < head_dim; d++) {
      out[d] += factor * part[d];
    }
  }
  out[head_dim] = max;
  out[head_dim + 1] = total;
}

/* One head: `in_use` parts, `stride` floats apart. */
static void merge(const float *head, uint32_t in_use, size_t stride, uint32_t head_dim, float *o) {
  float merged[MK_MAX_HEAD_DIM + 2];
  mk_merge_parts(head, in_use, stride, head_dim, merged);
  for (uint32_t d = 0; d < head_dim; d++) {
    o[d] = merged[d] / merged[head_dim + 1];
  }
}

mk_reference_result mk_reference_COMBINE(mk_reference *machine, const mk_instruction *instruction) {
  mk_span parts = mk_operand_span(machine, instruction, MK_SLOT_COMBINE_parts);
  mk_span out = mk_operand_span(machine, instruction, MK_SLOT_COMBINE_out);
  uint32_t stride = parts.buffer->tile_cols, head_dim = stride - 2, lines = machine->line_count, most = 0;
  size_t staged_floats = (size_t)parts.rows / parts.buffer->tile_rows * parts.cols;
  float *staged = machine->scratch, *result = staged + lines * staged_floats;
  uint32_t in_use[MK_MOST_ROWS];
  memset(machine->parts_used, 0, sizeof machine->parts_used);
  for (uint32_t l = 0; l < lines; l++) {
    in_use[l] = stage_parts(machine, instruction, &parts, l, staged + l * staged_floats);
    if (in_use[l] == 0) {
      return MK_REFERENCE_WAIT;
    }
    most = in_use[l] > most ? in_use[l] : most;
  }
  for (uint32_t l = 0; l < lines; l++) {
    for (uint32_t h = 0; h < parts.cols / stride; h++) {
      merge(staged + l * staged_floats + (size_t)h * stride, in_use[l], parts.cols, head_dim,
            result + (size_t)h * head_dim);
    }
    mk_publish_floats(machine, &out, machine->lines[l].line, 0, out.cols, result);
  }
  if (mk_program_rows(machine->program) == 1) { /* else parts_used tells them */
    machine->rows_used[MK_SLOT_COMBINE_parts] = (uint16_t)most;
  }
  return MK_REFERENCE_DONE;
}
