/* See compare.h. */
#include "tools/lib/compare.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "instructions/dequantise.h"
#include "instructions/reference.h"
#include "tools/lib/compare_draw.h"
#include "vm/program/attend_list.h"

struct mk_compare {
  const mk_program *program;
  mk_compare_source source;
  uint8_t **seen;   /* the machine's memory after the step; NULL for weights */
  uint8_t **memory; /* the references' memory: the same, KV as before the step */
  float *scratch, *got, *want;
  bool *read;    /* by buffer: some instruction reads it */
  size_t *order; /* instructions by uid */
  uint32_t *queue_of;
  mk_compare_row rows[MK_OP_COUNT];
};

static bool is_weight(const mk_program *program, size_t buffer) {
  return program->buffers[buffer].kind == MK_KIND_WEIGHT;
}

static size_t largest_output(const mk_program *program) {
  size_t largest = 1;
  for (size_t b = 0; b < program->buffer_count; b++) {
    size_t elements = (size_t)program->buffers[b].rows * program->buffers[b].cols;
    if (!is_weight(program, b) && program->buffers[b].store != MK_STORE_BLOCKS && elements > largest) {
      largest = elements;
    }
    if (program->buffers[b].head_dim > largest) {
      largest = program->buffers[b].head_dim;
    }
  }
  return largest;
}

static void note_reads(const mk_program *program, bool *read) {
  for (size_t i = 0; i < program->instruction_count; i++) {
    const mk_instruction *in = &program->instructions[i];
    const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
    for (uint32_t slot = 0; slot < info->operand_count; slot++) {
      if (info->operands[slot].access != MK_ACCESS_WRITE) {
        read[in->operands[slot].buffer] = true;
      }
    }
  }
}

static bool comes_before(const mk_instruction *a, const mk_instruction *b) {
  const uint32_t turn = mk_compare_turn(a), other = mk_compare_turn(b);
  return turn != other ? turn < other : a->uid < b->uid;
}

/* Sorts instructions by uid, but for those that draw. Compiled programs number their uids from 1 on, but other programs
 * may not, so this is no sort by counting. */
static void sort_by_turn(const mk_program *program, size_t *order, size_t count) {
  for (size_t gap = count / 2; gap > 0; gap /= 2) {
    for (size_t i = gap; i < count; i++) {
      size_t moving = order[i], j = i;
      for (; j >= gap && comes_before(&program->instructions[moving], &program->instructions[order[j - gap]]);
           j -= gap) {
        order[j] = order[j - gap];
      }
      order[j] = moving;
    }
  }
}

static mk_status init(mk_compare *c, uint8_t *const *weights) {
  const mk_program *program = c->program;
  size_t largest = largest_output(program);
  MK_TRY(mk_alloc(program->buffer_count, sizeof *c->read, &c->read));
  note_reads(program, c->read);
  MK_TRY(mk_alloc(program->buffer_count, sizeof *c->seen, &c->seen));
  MK_TRY(mk_alloc(program->buffer_count, sizeof *c->memory, &c->memory));
  for (size_t b = 0; b < program->buffer_count; b++) {
    if (is_weight(program, b)) {
      c->memory[b] = weights[b];
      continue;
    }
    MK_TRY(mk_alloc_aligned(64, program->buffers[b].bytes, &c->seen[b]));
    MK_TRY(mk_alloc_aligned(64, program->buffers[b].bytes, &c->memory[b]));
    if (mk_compare_is_carried(&program->buffers[b])) { /* as before the first step */
      MK_TRY(c->source.read(c->source.user, b, c->seen[b], program->buffers[b].bytes));
    }
  }
  MK_TRY(mk_alloc_aligned(64, (mk_reference_scratch(program) + 64) * sizeof *c->scratch, &c->scratch));
  MK_TRY(mk_alloc(largest, sizeof *c->got, &c->got));
  MK_TRY(mk_alloc(largest, sizeof *c->want, &c->want));
  MK_TRY(mk_alloc(program->instruction_count, sizeof *c->order, &c->order));
  MK_TRY(mk_alloc(program->instruction_count, sizeof *c->queue_of, &c->queue_of));
  for (uint32_t q = 0; q < program->queue_count; q++) {
    for (uint32_t i = 0; i < program->queues[q].count; i++) {
      c->queue_of[program->queues[q].first + i] = q;
    }
  }
  for (size_t i = 0; i < program->instruction_count; i++) {
    c->order[i] = i;
  }
  sort_by_turn(program, c->order, program->instruction_count);
  return MK_OK;
}

mk_status mk_compare_new(const mk_program *program, uint8_t *const *weights, const mk_compare_source *source,
                         mk_compare **out) {
  *out = NULL;
  mk_compare *c;
  MK_TRY(mk_alloc(1, sizeof *c, &c));
  c->program = program;
  c->source = *source;
  mk_status status = init(c, weights);
  if (status != MK_OK) {
    mk_compare_free(c);
    return status;
  }
  *out = c;
  return MK_OK;
}

void mk_compare_free(mk_compare *c) {
  if (c == NULL) {
    return;
  }
  for (size_t b = 0; b < c->program->buffer_count; b++) {
    if (c->seen != NULL) {
      mk_free(c->seen[b]);
    }
    if (c->memory != NULL && !is_weight(c->program, b)) {
      mk_free(c->memory[b]);
    }
  }
  mk_free(c->seen);
  mk_free(c->memory);
  mk_free(c->scratch);
  mk_free(c->got);
  mk_free(c->want);
  mk_free(c->read);
  mk_free(c->order);
  mk_free(c->queue_of);
  mk_free(c);
}

const mk_compare_row *mk_compare_rows(const mk_compare *c) { return c->rows; }

/* A piece of a buffer that an instruction writes. */
typedef struct piece {
  uint32_t row, rows; /* elements */
  uint32_t col, cols;
  uint64_t pair;         /* BLOCKS: bytes to the K and V of a block and head */
  uint32_t which, token; /* BLOCKS: K or V, of this token of the block; `cols` dims of it */
} piece;

/* Where dim `dim` of a BLOCKS piece lies, in bytes from the pair on; in *size its bytes. */
static uint64_t kv_place(const mk_buffer *b, const piece *p, uint32_t dim, size_t *size) {
  const bool quantised = mk_dtype_is_quantised(b->dtype);
  *size = quantised ? 1 : 2;
  return quantised ? p->which * mk_half_bytes(b) + mk_half_code(b, p->which, p->token, dim)
                   : 2 * mk_block_offset(b->block_tokens, b->head_dim, p->which, p->token, dim);
}

/* Where the scale of a quantised BLOCKS piece lies, in bytes from the pair on. */
static uint64_t kv_scale_place(const mk_buffer *b, const piece *p) {
  return p->which * mk_half_bytes(b) + mk_half_scale(b, p->which, p->token);
}

static float kv_element(const mk_buffer *b, const uint8_t *memory, const piece *p, uint32_t dim) {
  size_t size;
  const uint8_t *at = memory + p->pair + kv_place(b, p, dim, &size);
  uint16_t half;
  if (size == 1) {
    memcpy(&half, memory + p->pair + kv_scale_place(b, p), sizeof half);
    return mk_bf16_to_float(mk_dequantise_element(half, *at));
  }
  memcpy(&half, at, sizeof half);
  return mk_bf16_to_float(half);
}

static void restore_kv(const mk_buffer *b, const uint8_t *from, uint8_t *to, const piece *p) {
  for (uint32_t d = 0; d < p->cols; d++) {
    size_t size;
    const uint64_t at = p->pair + kv_place(b, p, d, &size);
    memcpy(to + at, from + at, size);
  }
  if (mk_dtype_is_quantised(b->dtype)) {
    const uint64_t at = p->pair + kv_scale_place(b, p);
    memcpy(to + at, from + at, mk_scale_bytes(b->scale));
  }
}

static float element(const mk_buffer *b, const uint8_t *memory, uint32_t row, uint32_t col) {
  uint32_t data;
  if (b->store == MK_STORE_STAMPED) {
    bool pairs = b->dtype == MK_DTYPE_BF16;
    size_t row_words = pairs ? (b->cols + 1u) / 2 : b->cols;
    uint64_t word;
    memcpy(&word, memory + 8 * (row * row_words + (pairs ? col / 2 : col)), sizeof word);
    data = (uint32_t)word;
    if (pairs) {
      return mk_bf16_to_float((uint16_t)(col % 2 == 0 ? data : data >> 16));
    }
  } else if (b->dtype == MK_DTYPE_BF16) {
    uint16_t half;
    memcpy(&half, memory + 2 * ((size_t)row * b->cols + col), sizeof half);
    return mk_bf16_to_float(half);
  } else {
    memcpy(&data, memory + 4 * ((size_t)row * b->cols + col), sizeof data);
  }
  return mk_param_float(data);
}

static size_t fetch(const mk_buffer *b, const uint8_t *memory, const piece *p, float *out) {
  size_t n = 0;
  if (b->store == MK_STORE_BLOCKS) {
    for (uint32_t d = 0; d < p->cols; d++) {
      out[n++] = kv_element(b, memory, p, d);
    }
    return n;
  }
  for (uint32_t r = p->row; r < p->row + p->rows; r++) {
    for (uint32_t col = p->col; col < p->col + p->cols; col++) {
      out[n++] = element(b, memory, r, col);
    }
  }
  return n;
}

/* Brings back what the machine wrote: the next instruction's inputs are the machine's own. */
static void restore(const mk_compare *c, size_t buffer, const piece *p) {
  const mk_buffer *b = &c->program->buffers[buffer];
  if (b->store == MK_STORE_BLOCKS) {
    restore_kv(b, c->seen[buffer], c->memory[buffer], p);
    return;
  }
  bool pairs = b->store == MK_STORE_STAMPED && b->dtype == MK_DTYPE_BF16;
  size_t size = b->store == MK_STORE_STAMPED ? 8
                : b->dtype == MK_DTYPE_BF16  ? 2
                                             : 4,
         row_words = pairs ? (b->cols + 1u) / 2 : b->cols;
  size_t first = pairs ? p->col / 2 : p->col, count = pairs ? (p->cols + 1u) / 2 : p->cols;
  for (uint32_t r = p->row; r < p->row + p->rows; r++) {
    size_t at = (r * row_words + first) * size;
    memcpy(c->memory[buffer] + at, c->seen[buffer] + at, count * size);
  }
}

/* |got - want| / |want|; equal infinities do not count; NaN when a number is one. */
static double relative_error(const float *got, const float *want, size_t count) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < count; i++) {
    if (isinf(want[i]) && got[i] == want[i]) {
      continue;
    }
    difference += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
    size += (double)want[i] * want[i];
  }
  return difference == 0 ? 0 : sqrt(difference / (size > 0 ? size : 1e-30));
}

static mk_status describe(const mk_compare *c, size_t index, uint32_t slot, double error, double limit, size_t count,
                          uint32_t position) {
  const mk_instruction *in = &c->program->instructions[index];
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  size_t worst = 0;
  double most = -1;
  for (size_t i = 0; i < count; i++) {
    double off = fabs((double)c->got[i] - c->want[i]);
    if (!(off <= most)) {
      most = off;
      worst = i;
      if (isnan(off)) {
        break;
      }
    }
  }
  char layer[24] = "";
  if (in->layer != MK_NO_LAYER) {
    snprintf(layer, sizeof layer, ", layer %u", in->layer);
  }
  return mk_error(
      MK_ERR_DEVICE,
      "position %u: SM %u, instruction %u (%s%s): its output %s (buffer %s) is off by %.3g, %.3g is allowed; of %zu "
      "numbers the worst is number %zu: %g instead of %g",
      position, c->queue_of[index], in->uid, info->name, layer, info->operands[slot].name,
      c->program->buffers[in->operands[slot].buffer].name, error, limit, count, worst, (double)c->got[worst],
      (double)c->want[worst]);
}

/* Parts of a head say what their sums are relative to, a whole number in base 2: the largest score rounded up. A score
 * that is nearly whole may be rounded to either neighbour, so what one side has relative to one more or less is told
 * relative to what the other one has. */
static void align_parts(const mk_buffer *b, size_t count, float *got, const float *want) {
  const size_t head_dim = (size_t)b->tile_cols - 2;
  for (size_t at = 0; at + head_dim + 2 <= count; at += head_dim + 2) {
    const float off = got[at + head_dim] - want[at + head_dim];
    if (fabsf(off) != 1.0f) {
      continue;
    }
    for (size_t i = 0; i < head_dim + 2; i++) {
      got[at + i] = i == head_dim ? want[at + i] : got[at + i] * exp2f(off);
    }
  }
}

static mk_status compare_piece(mk_compare *c, size_t index, uint32_t slot, const piece *p, uint32_t position) {
  const mk_instruction *in = &c->program->instructions[index];
  size_t buffer = in->operands[slot].buffer;
  const mk_buffer *b = &c->program->buffers[buffer];
  size_t count = fetch(b, c->seen[buffer], p, c->got);
  fetch(b, c->memory[buffer], p, c->want);
  const uint32_t content = mk_opcode_lookup(in->opcode)->operands[slot].content;
  if (content == MK_CONTENT_PARTS) {
    align_parts(b, count, c->got, c->want);
  }
  double error = relative_error(c->got, c->want, count);
  double limit = content == MK_CONTENT_PARTS       ? MK_COMPARE_LIMIT_PARTS
                 : content == MK_CONTENT_CANDIDATE ? MK_COMPARE_LIMIT_CANDIDATE
                 : b->dtype == MK_DTYPE_BF16       ? MK_COMPARE_LIMIT_BF16
                 : b->dtype == MK_DTYPE_E4M3       ? MK_COMPARE_LIMIT_E4M3
                                                   : MK_COMPARE_LIMIT_F32;
  mk_compare_row *row = &c->rows[in->opcode];
  row->outputs++;
  if (!(error <= row->worst)) {
    row->worst = error;
    row->uid = in->uid;
  }
  if (!(error <= limit)) {
    return describe(c, index, slot, error, limit, count, position);
  }
  restore(c, buffer, p);
  return MK_OK;
}

/* K and V of a new token, which operand `slot` keeps, where this split owns it. */
static mk_status compare_kv(mk_compare *c, size_t index, uint32_t slot, uint32_t sequence, uint32_t position) {
  const mk_instruction *in = &c->program->instructions[index];
  const mk_operand *kv = &in->operands[slot];
  const mk_buffer *b = &c->program->buffers[kv->buffer];
  if (mk_unit_of(position / b->span_tokens, sequence, b->rows) != kv->row) {
    return MK_OK;
  }
  int table_slot = mk_opcode_reads(mk_opcode_lookup(in->opcode), MK_CONTENT_TABLE);
  size_t named = in->operands[table_slot].buffer;
  const uint32_t *table =
      (const uint32_t *)(const void *)c->memory[named] + (size_t)sequence * c->program->buffers[named].cols;
  uint64_t block = table[position / b->block_tokens];
  for (uint32_t which = 0; which < 2; which++) {
    piece p = {.cols = b->head_dim,
               .pair = (block * b->cols + kv->col) * mk_pair_bytes(b),
               .which = which,
               .token = position % b->block_tokens};
    MK_TRY(compare_piece(c, index, slot, &p, position));
  }
  return MK_OK;
}

/* Whether what it writes there is the candidate among logits that it writes, too. */
static bool is_of_logits(const mk_opcode_info *info, uint32_t slot) {
  return info->operands[slot].content == MK_CONTENT_CANDIDATE && mk_opcode_writes(info, MK_CONTENT_LOGITS) >= 0;
}

/* A candidate is a value and an index; the index must be that of a logit of the machine's with that value. */
static mk_status compare_candidate(mk_compare *c, size_t index, const piece *whole, uint32_t logits_row,
                                   uint32_t position) {
  const mk_instruction *in = &c->program->instructions[index];
  const mk_operand *operand = &in->operands[MK_SLOT_HEAD_candidate];
  const mk_buffer *b = &c->program->buffers[operand->buffer];
  float value = element(b, c->seen[operand->buffer], whole->row, whole->col);
  uint32_t word = mk_float_param(element(b, c->seen[operand->buffer], whole->row, whole->col + 1)) & MK_CANDIDATE_NONE;
  size_t logits = in->operands[MK_SLOT_HEAD_logits].buffer;
  if (word != MK_CANDIDATE_NONE &&
      (word >= c->program->buffers[logits].cols ||
       element(&c->program->buffers[logits], c->seen[logits], logits_row, word) != value)) {
    return mk_error(
        MK_ERR_DEVICE,
        "position %u: SM %u, instruction %u (head): its candidate is row %u with %g, which is not the logit "
        "of that row",
        position, c->queue_of[index], in->uid, word, (double)value);
  }
  piece p = *whole;
  p.cols = 1;
  MK_TRY(compare_piece(c, index, MK_SLOT_HEAD_candidate, &p, position));
  restore(c, operand->buffer, whole);
  return MK_OK;
}

/* What a line leaves of what an instruction of several rows writes; false: nothing. */
static bool writes_line(const mk_compare *c, const mk_instruction *in, uint32_t slot, const mk_line *line) {
  const mk_operand_info *info = &mk_opcode_lookup(in->opcode)->operands[slot];
  if (info->content == MK_CONTENT_LOGITS) {
    return (line->row.flags & MK_ROW_CHOOSES) != 0;
  }
  if (info->content != MK_CONTENT_PARTS) {
    return true;
  }
  const mk_operand *kv = &in->operands[MK_SLOT_ATTENTION_kv];
  const uint32_t split = mk_split_of(kv->row, line->row.slot, in->params[MK_PARAM_ATTENTION_splits]);
  return split <= line->row.position / c->program->buffers[kv->buffer].span_tokens;
}

/* The lines and heads that a share of a work list writes. */
static mk_status compare_items(mk_compare *c, size_t index, const mk_reference *reference, uint32_t slot) {
  const mk_instruction *in = &c->program->instructions[index];
  const mk_span work = mk_operand_span(reference, in, MK_SLOT_ATTEND_work), to = mk_operand_span(reference, in, slot);
  const uint32_t rows = mk_program_rows(c->program), lines = mk_line_tile(rows);
  const uint32_t head_dim = c->program->buffers[in->operands[MK_SLOT_ATTEND_kv].buffer].head_dim;
  const size_t place = (size_t)reference->state->step * (rows / lines) + reference->first_line / lines;
  const uint32_t *list = (const uint32_t *)(const void *)work.memory + place * work.buffer->cols;
  const mk_attend_item *items = (const mk_attend_item *)(const void *)list + 1;
  for (uint32_t i = in->params[MK_PARAM_ATTEND_share]; i < list[0]; i += in->params[MK_PARAM_ATTEND_shares]) {
    for (uint32_t line = 0; line < items[i].lines; line++) {
      const piece p = {.row = to.row + items[i].first + line,
                       .rows = 1,
                       .col = to.col + items[i].head * head_dim,
                       .cols = items[i].heads * head_dim};
      MK_TRY(compare_piece(c, index, slot, &p, items[i].position + line));
    }
  }
  return MK_OK;
}

static bool has_list(const mk_instruction *in, const mk_opcode_info *info) {
  const int work = mk_opcode_reads(info, MK_CONTENT_WORK);
  return work >= 0 && in->operands[work].rows != 0;
}

static mk_status compare_lines(mk_compare *c, size_t index, const mk_reference *reference) {
  const mk_instruction *in = &c->program->instructions[index];
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_buffer *b = &c->program->buffers[in->operands[slot].buffer];
    if (info->operands[slot].access == MK_ACCESS_READ || (b->kind == MK_KIND_OUTPUT && b->scope == MK_SCOPE_SYS)) {
      continue;
    }
    if (is_of_logits(info, slot) && !c->read[in->operands[slot].buffer]) {
      continue; /* where a DRAW chooses nobody looks at those of a HEAD, and a machine need not publish them */
    }
    if (has_list(in, info)) {
      MK_TRY(reference->line_count != 0 ? compare_items(c, index, reference, slot) : MK_OK);
      continue;
    }
    for (uint32_t l = 0; l < reference->line_count; l++) {
      const mk_line *line = &reference->lines[l];
      if (b->store == MK_STORE_BLOCKS) {
        MK_TRY(compare_kv(c, index, slot, line->row.slot, line->row.position));
        continue;
      }
      mk_span span = mk_operand_span(reference, in, slot);
      piece p = {.row = span.row + line->line, .rows = 1, .col = span.col, .cols = span.cols};
      if (span.cols == 0 || span.rows == 0 || !writes_line(c, in, slot, line)) {
        continue;
      }
      if (is_of_logits(info, slot)) {
        const uint32_t first = mk_operand_span(reference, in, MK_SLOT_HEAD_logits).row;
        MK_TRY(compare_candidate(c, index, &p, first + line->line, line->row.position));
      } else {
        MK_TRY(compare_piece(c, index, slot, &p, line->row.position));
      }
    }
  }
  return MK_OK;
}

static mk_status compare_outputs(mk_compare *c, size_t index, const mk_reference *reference, uint32_t position) {
  const mk_instruction *in = &c->program->instructions[index];
  const mk_opcode_info *info = mk_opcode_lookup(in->opcode);
  for (uint32_t slot = 0; slot < info->operand_count; slot++) {
    const mk_buffer *b = &c->program->buffers[in->operands[slot].buffer];
    if (info->operands[slot].access == MK_ACCESS_READ || (b->kind == MK_KIND_OUTPUT && b->scope == MK_SCOPE_SYS)) {
      continue; /* the token ring lies in the host's memory; the token itself is compared */
    }
    if (b->store == MK_STORE_BLOCKS) {
      MK_TRY(compare_kv(c, index, slot, 0, position));
      continue;
    }
    mk_span span = mk_operand_span(reference, in, slot);
    uint32_t used = reference->rows_used[slot] * (uint32_t)b->tile_rows;
    piece p = {.row = span.row, .rows = used < span.rows ? used : span.rows, .col = span.col, .cols = span.cols};
    if (p.rows == 0 || p.cols == 0) {
      continue;
    }
    if (is_of_logits(info, slot)) {
      MK_TRY(compare_candidate(c, index, &p, 0, position));
    } else {
      MK_TRY(compare_piece(c, index, slot, &p, position));
    }
  }
  return MK_OK;
}

static mk_status read_back(mk_compare *c) {
  for (size_t b = 0; b < c->program->buffer_count; b++) {
    if (is_weight(c->program, b)) {
      continue;
    }
    uint64_t bytes = c->program->buffers[b].bytes;
    const bool carried = mk_compare_is_carried(&c->program->buffers[b]);
    if (carried) {
      memcpy(c->memory[b], c->seen[b], bytes); /* as before this step */
    }
    MK_TRY(c->source.read(c->source.user, b, c->seen[b], bytes));
    if (!carried) {
      memcpy(c->memory[b], c->seen[b], bytes);
    }
  }
  return MK_OK;
}

static mk_status compare_instruction(mk_compare *c, size_t index, const mk_step_state *before, uint32_t generation,
                                     const uint32_t *next) {
  const mk_instruction *in = &c->program->instructions[index];
  mk_step_state state = *before;
  mk_reference reference = {.program = c->program,
                            .memory = c->memory,
                            .state = &state,
                            .generation = generation,
                            .publish = generation,
                            .scratch = c->scratch,
                            .sm = c->queue_of[index]};
  mk_reference_result result = mk_reference_run(&reference, in);
  if (result == MK_REFERENCE_FAULT) {
    return mk_error_prefix(MK_ERR_DEVICE, "position %u", before->rows[0].position);
  }
  if (result == MK_REFERENCE_WAIT) {
    return mk_error(MK_ERR_DEVICE, "position %u: SM %u, instruction %u (%s): the machine never wrote one of its inputs",
                    before->rows[0].position, c->queue_of[index], in->uid, mk_opcode_lookup(in->opcode)->name);
  }
  if (mk_compare_draws(in)) {
    c->rows[in->opcode].outputs++;
    return mk_compare_drawn(&reference, c->seen, in);
  }
  if (mk_opcode_lookup(in->opcode)->state == MK_STATE_WRITE) {
    uint32_t rows = mk_program_rows(c->program);
    c->rows[in->opcode].outputs++;
    for (uint32_t i = 0; i < rows; i++) {
      if (state.results[i] != next[i]) {
        return mk_error(MK_ERR_DEVICE,
                        "SM %u, instruction %u (next): the machine's row %u chose %u, its candidates say %u",
                        c->queue_of[index], in->uid, i, next[i], state.results[i]);
      }
    }
  }
  return mk_program_rows(c->program) > 1 ? compare_lines(c, index, &reference)
                                         : compare_outputs(c, index, &reference, before->rows[0].position);
}

mk_status mk_compare_step(mk_compare *c, const mk_step_row *rows, uint32_t *results) {
  MK_TRY(c->source.step(c->source.user, rows, results));
  MK_TRY(read_back(c));
  mk_step_state state = {0};
  mk_step_begin(&state, c->program, rows);
  uint32_t generation = c->source.generation(c->source.user);
  for (size_t i = 0; i < c->program->instruction_count; i++) {
    MK_TRY(compare_instruction(c, c->order[i], &state, generation, results));
  }
  return MK_OK;
}
