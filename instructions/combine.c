/* COMBINE: the splits of some query heads become their attention output. parts [units][lines][heads * (head_dim + 2)]
 * as ATTENTION writes them; out [heads * head_dim] for each line. Splits 0..n-1 of a line are in use, n = min(units,
 * position / span + 1); split j of a line in slot c is what unit (j + c) mod units has left. Splits that are not in use
 * are neither waited for nor read. Splits are added in groups of MK_TREE_PIECES pieces of tokens, each group as a tree,
 * and then the groups' sums in order: so short spans give the sums that long ones give. */
#include <math.h>
#include <string.h>

#include "instructions/reference.h"

/* Stages the parts of active line l that are in use, one after the other; 0: a stamp is missing. */
static uint32_t stage_parts(mk_reference *machine, const mk_instruction *instruction, const mk_span *parts, uint32_t l,
                            float *out) {
  const mk_line *line = &machine->lines[l];
  uint32_t units = parts->rows / parts->buffer->tile_rows;
  uint32_t in_use = line->row.position / instruction->params[MK_PARAM_COMBINE_span] + 1;
  in_use = in_use < units ? in_use : units;
  for (uint32_t j = 0; j < in_use; j++) {
    uint32_t unit = (j + line->row.slot) % units;
    mk_span part = *parts;
    part.row += unit * parts->buffer->tile_rows + machine->first_line + line->line;
    if (!mk_stage_rows(machine, &part, 1, out + (size_t)j * parts->cols)) {
      return 0;
    }
    machine->parts_used[unit / 64 % MK_PART_WORDS] |= UINT64_C(1) << unit % 64;
  }
  return in_use;
}

void mk_part_clear(float *part, uint32_t head_dim) {
  memset(part, 0, head_dim * sizeof *part);
  part[head_dim] = -INFINITY;
  part[head_dim + 1] = 0;
}

void mk_part_add(float *part, const float *other, uint32_t head_dim) {
  if (other[head_dim] == -INFINITY) {
    return;
  }
  float m = other[head_dim] > part[head_dim] || isnan(other[head_dim]) ? other[head_dim] : part[head_dim];
  float keep = mk_exp2(part[head_dim] - m), factor = mk_exp2(other[head_dim] - m);
  for (uint32_t d = 0; d < head_dim; d++) {
    part[d] = part[d] * keep + other[d] * factor;
  }
  part[head_dim] = m;
  part[head_dim + 1] = part[head_dim + 1] * keep + other[head_dim + 1] * factor;
}

typedef struct split_list { /* of one head */
  const float *parts;
  uint32_t in_use, head_dim;
  size_t stride; /* floats apart */
} split_list;

/* sum = splits first to first + count - 1 (count a power of two), those of them that are in use. */
static void add_tree(const split_list *splits, uint32_t first, uint32_t count, float *sum) {
  float other[MK_MAX_HEAD_DIM + 2];
  if (first >= splits->in_use) {
    mk_part_clear(sum, splits->head_dim);
  } else if (count == 1) {
    memcpy(sum, splits->parts + first * splits->stride, (splits->head_dim + 2) * sizeof *sum);
  } else {
    add_tree(splits, first, count / 2, sum);
    add_tree(splits, first + count / 2, count / 2, other);
    mk_part_add(sum, other, splits->head_dim);
  }
}

/* Merges the splits, groups of `together` splits as trees, into the output o of a head. */
static void merge(const split_list *splits, uint32_t together, float *o) {
  float sum[MK_MAX_HEAD_DIM + 2], some[MK_MAX_HEAD_DIM + 2];
  mk_part_clear(sum, splits->head_dim);
  for (uint32_t first = 0; first < splits->in_use; first += together) {
    add_tree(splits, first, together, some);
    mk_part_add(sum, some, splits->head_dim);
  }
  for (uint32_t d = 0; d < splits->head_dim; d++) {
    o[d] = sum[d] / sum[splits->head_dim + 1];
  }
}

mk_reference_result mk_reference_COMBINE(mk_reference *machine, const mk_instruction *instruction) {
  mk_span parts = mk_operand_span(machine, instruction, MK_SLOT_COMBINE_parts);
  mk_span out = mk_operand_span(machine, instruction, MK_SLOT_COMBINE_out);
  uint32_t stride = parts.buffer->tile_cols, head_dim = stride - 2, lines = machine->line_count, most = 0;
  size_t staged_floats = (size_t)parts.rows / parts.buffer->tile_rows * parts.cols;
  float *staged = machine->scratch, *result = staged + lines * staged_floats;
  uint32_t together = MK_TREE_PIECES;
  for (uint32_t tokens = MK_PIECE_TOKENS; tokens < instruction->params[MK_PARAM_COMBINE_span] && together > 1;
       tokens *= 2) {
    together /= 2;
  }
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
      split_list splits = {.parts = staged + l * staged_floats + (size_t)h * stride,
                           .in_use = in_use[l],
                           .head_dim = head_dim,
                           .stride = parts.cols};
      merge(&splits, together, result + (size_t)h * head_dim);
    }
    mk_publish_floats(machine, &out, machine->lines[l].line, 0, out.cols, result);
  }
  if (mk_program_rows(machine->program) == 1) { /* else parts_used tells them */
    machine->rows_used[MK_SLOT_COMBINE_parts] = (uint16_t)most;
  }
  return MK_REFERENCE_DONE;
}
