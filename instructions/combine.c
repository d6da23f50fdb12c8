/* COMBINE: what spans of tokens have left of some query heads becomes their attention output. parts
 * [units][lines][heads][spans][head_dim + 2] as ATTENTION writes them; out [heads * head_dim] for each line, or some
 * columns of one head. Spans 0..n-1 of a line at position p are in use, n = p / span + 1. Span s of a line is span
 * s / units of unit mk_unit_of. Spans that are not in use are neither waited for nor read. They are added in groups of
 * MK_TREE_PIECES pieces of tokens, each group as a tree, and then the groups' sums in order: so short spans give the
 * sums that long ones give. */
#include <math.h>
#include <string.h>

#include "instructions/reference.h"

typedef struct part_list { /* what a COMBINE takes */
  mk_span parts;
  uint32_t units, spans, heads, head_dim, span; /* span: tokens */
} part_list;

/* How many spans a line has in use. */
static uint32_t spans_of_line(const part_list *list, const mk_line *line) {
  const uint32_t most = list->units * list->spans, in_use = line->row.position / list->span + 1;
  return in_use < most ? in_use : most;
}

/* Stages the parts of active line l that are in use: out [span][head][head_dim + 2]; 0: a stamp is missing. */
static uint32_t stage_parts(mk_reference *machine, const part_list *list, uint32_t l, float *out) {
  const mk_line *line = &machine->lines[l];
  const uint32_t in_use = spans_of_line(list, line), stride = list->head_dim + 2;
  for (uint32_t s = 0; s < in_use; s++) {
    const uint32_t unit = mk_unit_of(s, line->row.slot, list->units);
    for (uint32_t h = 0; h < list->heads; h++, out += stride) {
      mk_span part = list->parts;
      part.row += unit * list->parts.buffer->tile_rows + machine->first_line + line->line;
      part.col += (h * list->spans + s / list->units) * stride;
      part.cols = stride;
      if (!mk_stage_rows(machine, &part, 1, out)) {
        return 0;
      }
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

typedef struct span_list { /* of one head */
  const float *parts;
  uint32_t in_use, head_dim;
  size_t stride; /* floats apart */
} span_list;

/* sum = spans first to first + count - 1 (count a power of two), those of them that are in use. */
static void add_tree(const span_list *spans, uint32_t first, uint32_t count, float *sum) {
  float other[MK_MAX_HEAD_DIM + 2];
  if (first >= spans->in_use) {
    mk_part_clear(sum, spans->head_dim);
  } else if (count == 1) {
    memcpy(sum, spans->parts + first * spans->stride, (spans->head_dim + 2) * sizeof *sum);
  } else {
    add_tree(spans, first, count / 2, sum);
    add_tree(spans, first + count / 2, count / 2, other);
    mk_part_add(sum, other, spans->head_dim);
  }
}

/* Merges the spans, groups of `together` of them as trees, into `count` values of a head, from dim `first` on. */
static void merge(const span_list *spans, uint32_t together, uint32_t first, uint32_t count, float *o) {
  float sum[MK_MAX_HEAD_DIM + 2], some[MK_MAX_HEAD_DIM + 2];
  mk_part_clear(sum, spans->head_dim);
  for (uint32_t next = 0; next < spans->in_use; next += together) {
    add_tree(spans, next, together, some);
    mk_part_add(sum, some, spans->head_dim);
  }
  for (uint32_t d = 0; d < count; d++) {
    o[d] = sum[first + d] / sum[spans->head_dim + 1];
  }
}

mk_reference_result mk_reference_COMBINE(mk_reference *machine, const mk_instruction *instruction) {
  mk_span out = mk_operand_span(machine, instruction, MK_SLOT_COMBINE_out);
  part_list list = {.parts = mk_operand_span(machine, instruction, MK_SLOT_COMBINE_parts),
                    .spans = instruction->params[MK_PARAM_COMBINE_spans],
                    .span = instruction->params[MK_PARAM_COMBINE_span]};
  const uint32_t stride = list.parts.buffer->tile_cols, lines = machine->line_count;
  list.units = list.parts.rows / list.parts.buffer->tile_rows;
  list.heads = list.parts.cols / stride / list.spans;
  list.head_dim = stride - 2;
  const size_t staged_floats = (size_t)list.units * list.parts.cols;
  float *staged = machine->scratch, *result = staged + lines * staged_floats;
  uint32_t in_use[MK_MOST_ROWS], together = MK_TREE_PIECES, most = 0;
  for (uint32_t tokens = MK_PIECE_TOKENS; tokens < list.span && together > 1; tokens *= 2) {
    together /= 2;
  }
  memset(machine->parts_used, 0, sizeof machine->parts_used);
  for (uint32_t l = 0; l < lines; l++) {
    in_use[l] = stage_parts(machine, &list, l, staged + l * staged_floats);
    if (in_use[l] == 0) {
      return MK_REFERENCE_WAIT;
    }
    most = in_use[l] > most ? in_use[l] : most;
  }
  const uint32_t of_head = out.cols / list.heads; /* columns, and the first of them */
  const uint32_t first = out.col % list.head_dim;
  for (uint32_t l = 0; l < lines; l++) {
    for (uint32_t h = 0; h < list.heads; h++) {
      span_list spans = {.parts = staged + l * staged_floats + (size_t)h * stride,
                         .in_use = in_use[l],
                         .head_dim = list.head_dim,
                         .stride = (size_t)list.heads * stride};
      merge(&spans, together, first, of_head, result + (size_t)h * of_head);
    }
    mk_publish_floats(machine, &out, machine->lines[l].line, 0, out.cols, result);
  }
  if (mk_program_rows(machine->program) == 1) { /* else parts_used tells them */
    machine->rows_used[MK_SLOT_COMBINE_parts] = (uint16_t)(most < list.units ? most : list.units);
  }
  return MK_REFERENCE_DONE;
}
