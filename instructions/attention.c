/* ATTENTION: one unit of the decode attention of one KV head.
 * q [group * head_dim], k, v [head_dim] fp32 for each line; kv: the blocks that KV row u stands for; out: for each line and query head
 * a part (reference.h): (sum_t p_t v_t [head_dim], m, sum p), p_t = 2^(x_t - m). With an eps q, k and v come in tiles of 18 columns, 16 values
 * and their squares, and each head of q and k is normed by the squares of its tiles.
 *
 * Of a line at position p in slot c, unit u does split (u - c) mod splits: the spans s, s + splits, ... up to p. A split whose first span
 * lies beyond the position has nothing to do, and nothing is written for that line. With one line a step c is 0, and u the split. The
 * unit whose spans hold a position rounds its k and v to bf16, appends them, and is the only one to read them later. Every unit waits for
 * q, k and v of all active lines.
 *
 * Lines of one slot in one step are at neighbouring positions. Tokens before the first of them come from the cache, the new ones from
 * k and v, in copies of the tiles of sixteen tokens that hold them: tokens beyond the line's own position are cleared there, as 0
 * times what lies in V may be NaN. So each line sees what it would see if the tokens had come one by one, in the same order of
 * sums. K of a block is a matrix of weight tiles [block_tokens, head_dim], V of sixteen tokens one [head_dim, 16] (program.h), so
 * both products are mk_matvec's, of all query heads of the group at once, and each sum of theirs is one chain.
 *
 * The order of sums: MK_FOLD_TOKENS tokens are a part by themselves. These are added up to pieces of MK_PIECE_TOKENS, the oldest first. The first
 * pieces of all spans of the split are added up, the oldest first, then the second ones and so on; and these sums as a tree. q times its scale and p
 * are rounded to bf16, as K and V are. */
#include <math.h>
#include <string.h>

#include "instructions/reference.h"

/* Parts of all query heads: of the tokens at hand, and what they are added up to. */
typedef enum part_level { FOLD, PIECE, CLASS, LEVELS = CLASS + MK_SPAN_PIECES } part_level;

typedef struct unit_view {
  const mk_reference *machine;
  const mk_buffer *buffer;
  uint16_t *memory;
  const mk_span *table;
  const float *k, *v; /* [lines][head_dim] */
  uint32_t head, head_dim, group, unit, splits;
  float *weights;      /* [group][tokens that are folded]: scores, then p */
  float *product;      /* of mk_matvec, [group][MK_FOLD_TOKENS or head_dim] */
  float *parts;        /* [LEVELS][group][head_dim + 2] */
  float *scratch;      /* mk_matvec's */
  uint16_t *new_tiles; /* [MK_NEW_TILES][K, V][16 * head_dim]: of the line at hand */
  uint16_t *v_tiles;   /* [head_dim / 16][tiles of tokens]: of the tokens at hand */
} unit_view;

typedef struct line_view { /* of the line at hand */
  uint32_t slot, position, split;
  uint32_t first_new; /* position of the slot's first token in this step */
} line_view;

/* Where the arrays of a unit_view lie in scratch memory, in floats, after q, k and v of the lines; pairs of bf16 lie in
 * one. */
typedef struct layout {
  size_t weights, product, parts, scratch, new_tiles, v_tiles, end;
} layout;

static layout lay_out(uint32_t head_dim, uint32_t group) {
  size_t most = head_dim > MK_FOLD_TOKENS ? head_dim : MK_FOLD_TOKENS;
  layout l = {.weights = 0};
  l.product = l.weights + (size_t)group * MK_FOLD_TOKENS;
  l.parts = l.product + group * most;
  l.scratch = l.parts + (size_t)LEVELS * group * (head_dim + 2u);
  l.new_tiles = l.scratch + group * MK_MATVEC_SCRATCH(most);
  l.v_tiles = l.new_tiles + (size_t)MK_NEW_TILES * MK_TILE * head_dim;
  l.end = l.v_tiles + (size_t)head_dim * MK_FOLD_TOKENS / 2;
  return l;
}

size_t mk_attention_scratch(uint32_t head_dim, uint32_t group) { return lay_out(head_dim, group).end; }

/* K (which = 0) or V (which = 1) of token t of a slot. */
static uint16_t *cached(const unit_view *view, uint32_t slot, uint32_t which, uint32_t t, uint32_t dim) {
  const mk_buffer *b = view->buffer;
  const uint32_t *table =
      (const uint32_t *)(const void *)view->table->memory + (size_t)slot * view->table->buffer->cols;
  uint64_t pair = (uint64_t)table[t / b->block_tokens] * b->cols + view->head;
  return view->memory + pair * 2 * b->block_tokens * view->head_dim +
         mk_block_offset(b->block_tokens, view->head_dim, which, t % b->block_tokens, dim);
}

/* Whether this unit keeps token t of the slot. */
static bool keeps(const unit_view *view, uint32_t slot, uint32_t t) {
  return (t / view->buffer->span_tokens + slot) % view->splits == view->unit;
}

/* Whether the table has a block of the cache for every token that this unit keeps of the active lines. */
static bool check_blocks(const unit_view *view, mk_reference *machine) {
  const mk_buffer *table = view->table->buffer, *b = view->buffer;
  const mk_range *declared = &machine->program->ranges.block;
  for (uint32_t l = 0; l < machine->line_count; l++) {
    const mk_step_row *row = &machine->lines[l].row;
    for (uint32_t block = 0; block <= row->position / b->block_tokens; block++) {
      if (!keeps(view, row->slot, block * b->block_tokens)) {
        continue;
      }
      if (row->slot >= table->rows || block >= table->cols) {
        (void)mk_reference_fault(machine, "position %u of slot %u needs entry (%u, %u) of buffer %s, which is %u x %u",
                                 row->position, row->slot, row->slot, block, table->name, table->rows, table->cols);
        return false;
      }
      uint32_t entry = ((const uint32_t *)(const void *)view->table->memory)[(size_t)row->slot * table->cols + block];
      if (entry >= b->blocks || entry < declared->low || entry > declared->high) {
        (void)mk_reference_fault(machine,
                                 "entry (%u, %u) of buffer %s is block %u; buffer %s has %u, and the program declares "
                                 "blocks %u to %u",
                                 row->slot, block, table->name, entry, b->name, b->blocks, declared->low,
                                 declared->high);
        return false;
      }
    }
  }
  return true;
}

static void append(const unit_view *view, uint32_t l) {
  const mk_step_row *row = &view->machine->lines[l].row;
  for (uint32_t d = 0; d < view->head_dim; d++) {
    *cached(view, row->slot, 0, row->position, d) = mk_float_to_bf16(view->k[(size_t)l * view->head_dim + d]);
    *cached(view, row->slot, 1, row->position, d) = mk_float_to_bf16(view->v[(size_t)l * view->head_dim + d]);
  }
}

static uint32_t first_new(const mk_reference *machine, uint32_t slot) {
  uint32_t first = UINT32_MAX;
  for (uint32_t l = 0; l < machine->line_count; l++) {
    const mk_step_row *row = &machine->lines[l].row;
    first = row->slot == slot && row->position < first ? row->position : first;
  }
  return first;
}

static uint16_t *new_tile(const unit_view *view, const line_view *line, uint32_t which, uint32_t t) {
  uint32_t tile = t / MK_TILE - line->first_new / MK_TILE;
  return view->new_tiles + (size_t)(2 * tile + which) * MK_TILE * view->head_dim;
}

/* Tokens from the first new one on, in the tiles of this line: those of the step up to its position, then nothing. */
static void copy_new_tiles(const unit_view *view, const line_view *line) {
  size_t elements = (size_t)MK_TILE * view->head_dim;
  for (uint32_t t = line->first_new / MK_TILE * MK_TILE; t <= line->position; t += MK_TILE) {
    for (uint32_t which = 0; keeps(view, line->slot, t) && which < 2; which++) {
      uint16_t *to = new_tile(view, line, which, t);
      if (t < line->first_new) {
        memcpy(to, cached(view, line->slot, which, t, 0), elements * sizeof *to);
      }
      for (uint32_t i = t < line->first_new ? line->first_new - t : 0; i < MK_TILE; i++) {
        for (uint32_t d = 0; d < view->head_dim; d++) {
          to[which == 0 ? mk_tile_offset(view->head_dim / MK_TILE, i, d) : mk_tile_offset(1, d, i)] = 0;
        }
      }
    }
  }
  for (uint32_t l = 0; l < view->machine->line_count; l++) {
    const mk_step_row *row = &view->machine->lines[l].row;
    if (row->slot != line->slot || row->position > line->position || !keeps(view, row->slot, row->position)) {
      continue;
    }
    uint16_t *k = new_tile(view, line, 0, row->position), *v = new_tile(view, line, 1, row->position);
    for (uint32_t d = 0; d < view->head_dim; d++) {
      uint32_t i = row->position % MK_TILE;
      k[mk_tile_offset(view->head_dim / MK_TILE, i, d)] = mk_float_to_bf16(view->k[(size_t)l * view->head_dim + d]);
      v[mk_tile_offset(1, d, i)] = mk_float_to_bf16(view->v[(size_t)l * view->head_dim + d]);
    }
  }
}

/* view->product = W x of rows x cols weight tiles, for an x of every query head. */
static void multiply(const unit_view *view, uint16_t *tiles, uint32_t rows, uint32_t cols, const float *x) {
  mk_buffer shape = {.rows = rows, .cols = cols, .tile_rows = MK_TILE, .tile_cols = MK_TILE};
  mk_span weight = {.buffer = &shape, .memory = (uint8_t *)tiles, .rows = rows, .cols = cols};
  mk_matvec(&weight, view->group, x, view->scratch, view->product);
}

/* K or V of the tile of sixteen tokens from t on, as the line sees it. */
static uint16_t *token_tile(const unit_view *view, const line_view *line, uint32_t which, uint32_t t) {
  bool is_new = t / MK_TILE >= line->first_new / MK_TILE;
  return is_new ? new_tile(view, line, which, t) : cached(view, line->slot, which, t, 0);
}

/* weights[head][i] = q k_(first + i), for whole tiles of tokens. */
static void score_tokens(const unit_view *view, const line_view *line, const float *q, uint32_t first,
                         uint32_t padded) {
  uint32_t block_tokens = view->buffer->block_tokens, old_end = line->first_new / MK_TILE * MK_TILE, rows;
  for (uint32_t t = first; t < first + padded; t += rows) {
    rows = MK_TILE;
    if (t < old_end) { /* tiles of a block lie one after the other */
      rows = block_tokens - t % block_tokens;
      rows = first + padded - t < rows ? first + padded - t : rows;
      rows = old_end - t < rows ? old_end - t : rows;
    }
    multiply(view, token_tile(view, line, 0, t), rows, view->head_dim, q);
    for (uint32_t h = 0; h < view->group; h++) {
      memcpy(view->weights + (size_t)h * padded + (t - first), view->product + (size_t)h * rows, rows * sizeof *q);
    }
  }
}

/* Scores of one query head become p; m and the sum of p are left after the part's sum of p v. */
static void weigh_tokens(const unit_view *view, float *scores, uint32_t count, uint32_t padded, float *part) {
  float *m = part + view->head_dim, *total = m + 1;
  *m = -INFINITY;
  *total = 0;
  for (uint32_t i = 0; i < count; i++) {
    *m = scores[i] > *m || isnan(scores[i]) ? scores[i] : *m;
  }
  *m = ceilf(*m);
  for (uint32_t i = 0; i < padded; i++) {
    scores[i] = i < count ? mk_bf16_to_float(mk_float_to_bf16(mk_exp2(scores[i] - *m))) : 0;
    *total += scores[i];
  }
}

static float *part_of(const unit_view *view, part_level level, uint32_t h) {
  return view->parts + ((size_t)level * view->group + h) * (view->head_dim + 2u);
}

/* Tokens [first, end), MK_FOLD_TOKENS at most, as parts of their own. */
static void fold_tokens(const unit_view *view, const line_view *line, const float *q, uint32_t first, uint32_t end) {
  uint32_t count = end - first, tiles = (count + MK_TILE - 1) / MK_TILE, padded = tiles * MK_TILE;
  score_tokens(view, line, q, first, padded);
  for (uint32_t h = 0; h < view->group; h++) {
    weigh_tokens(view, view->weights + (size_t)h * padded, count, padded, part_of(view, FOLD, h));
  }
  for (uint32_t i = 0; i < tiles; i++) {
    const uint16_t *from = token_tile(view, line, 1, first + i * MK_TILE);
    for (uint32_t dims = 0; dims < view->head_dim / MK_TILE; dims++) {
      memcpy(view->v_tiles + ((size_t)dims * tiles + i) * MK_TILE_STEP_ELEMENTS,
             from + (size_t)dims * MK_TILE_STEP_ELEMENTS, MK_TILE_STEP_ELEMENTS * sizeof *from);
    }
  }
  multiply(view, view->v_tiles, view->head_dim, padded, view->weights);
  for (uint32_t h = 0; h < view->group; h++) {
    memcpy(part_of(view, FOLD, h), view->product + (size_t)h * view->head_dim, view->head_dim * sizeof *q);
  }
}

static void clear(const unit_view *view, part_level level) {
  for (uint32_t h = 0; h < view->group; h++) {
    mk_part_clear(part_of(view, level, h), view->head_dim);
  }
}

/* Adds the parts of a level to those of another one, and begins new ones. */
static void add_level(const unit_view *view, part_level from, part_level to) {
  for (uint32_t h = 0; h < view->group; h++) {
    mk_part_add(part_of(view, to, h), part_of(view, from, h), view->head_dim);
  }
  clear(view, from);
}

/* The split's tokens of a line, q [group][head_dim]: the result is the parts of CLASS. */
static void attend(const unit_view *view, const line_view *line, const float *q) {
  uint32_t span_tokens = view->buffer->span_tokens;
  for (part_level level = PIECE; level < LEVELS; level++) {
    clear(view, level);
  }
  for (uint32_t span = line->split; span <= line->position / span_tokens; span += view->splits) {
    uint32_t first = span * span_tokens, end = first + span_tokens;
    end = end > line->position + 1 ? line->position + 1 : end;
    for (uint32_t t = first, next; t < end; t = next) {
      next = t / MK_FOLD_TOKENS * MK_FOLD_TOKENS + MK_FOLD_TOKENS;
      next = next < end ? next : end;
      fold_tokens(view, line, q, t, next);
      add_level(view, FOLD, PIECE);
      if (next % MK_PIECE_TOKENS == 0 || next == end) {
        add_level(view, PIECE, CLASS + (t - first) / MK_PIECE_TOKENS);
      }
    }
  }
  for (uint32_t away = 1; away < MK_SPAN_PIECES; away *= 2) {
    for (uint32_t i = 0; i < MK_SPAN_PIECES; i += 2 * away) {
      add_level(view, CLASS + i + away, CLASS + i);
    }
  }
}

/* Vectors of heads in tiles of 18 columns, in place to heads of head_dim; normed if so asked. */
static void take_heads(float *x, uint32_t lines, uint32_t heads, uint32_t head_dim, bool normed, float eps) {
  const uint32_t tiles = head_dim / MK_TILE;
  for (uint32_t head = 0; head < lines * heads; head++) {
    const float *from = x + (size_t)head * tiles * MK_SQUARED_TILE;
    float *to = x + (size_t)head * head_dim, squares = 0, scale = 1;
    for (uint32_t t = 0; t < tiles; t++) {
      squares += from[t * MK_SQUARED_TILE + MK_TILE];
    }
    scale = normed ? 1.0f / sqrtf(squares / (float)head_dim + eps) : 1;
    for (uint32_t i = 0; i < head_dim; i++) {
      to[i] = from[i / MK_TILE * MK_SQUARED_TILE + i % MK_TILE] * scale;
    }
  }
}

mk_reference_result mk_reference_ATTENTION(mk_reference *machine, const mk_instruction *instruction) {
  mk_span q_span = mk_operand_span(machine, instruction, MK_SLOT_ATTENTION_q);
  mk_span k_span = mk_operand_span(machine, instruction, MK_SLOT_ATTENTION_k);
  mk_span v_span = mk_operand_span(machine, instruction, MK_SLOT_ATTENTION_v);
  mk_span kv = mk_operand_span(machine, instruction, MK_SLOT_ATTENTION_kv);
  mk_span out_span = mk_operand_span(machine, instruction, MK_SLOT_ATTENTION_out);
  mk_span table = mk_operand_span(machine, instruction, MK_SLOT_ATTENTION_table);
  uint32_t lines = machine->line_count, head_dim = kv.buffer->head_dim,
           group = instruction->params[MK_PARAM_ATTENTION_group];
  float *q = machine->scratch, *k = q + (size_t)lines * q_span.cols, *v = k + (size_t)lines * k_span.cols,
        *rest = v + (size_t)lines * v_span.cols;
  const layout at = lay_out(head_dim, group);
  const float log2_e = 1.4426950408889634f;
  if (!mk_stage_lines(machine, &q_span, 0, q, q_span.cols) || !mk_stage_lines(machine, &k_span, 0, k, k_span.cols) ||
      !mk_stage_lines(machine, &v_span, 0, v, v_span.cols)) {
    return MK_REFERENCE_WAIT;
  }
  const float eps = mk_param_float(instruction->params[MK_PARAM_ATTENTION_eps]);
  if (eps != 0) {
    take_heads(q, lines, group, head_dim, true, eps);
    take_heads(k, lines, 1, head_dim, true, eps);
    take_heads(v, lines, 1, head_dim, false, eps);
  }
  const float scale = mk_param_float(instruction->params[MK_PARAM_ATTENTION_scale]) * log2_e;
  for (size_t i = 0; i < (size_t)lines * group * head_dim; i++) {
    q[i] = mk_bf16_to_float(mk_float_to_bf16(q[i] * scale));
  }
  unit_view view = {.machine = machine,
                    .buffer = kv.buffer,
                    .memory = (uint16_t *)(void *)kv.memory,
                    .table = &table,
                    .k = k,
                    .v = v,
                    .head = kv.col,
                    .head_dim = head_dim,
                    .group = group,
                    .unit = kv.row,
                    .splits = instruction->params[MK_PARAM_ATTENTION_splits],
                    .weights = rest + at.weights,
                    .product = rest + at.product,
                    .parts = rest + at.parts,
                    .scratch = rest + at.scratch,
                    .new_tiles = (uint16_t *)(void *)(rest + at.new_tiles),
                    .v_tiles = (uint16_t *)(void *)(rest + at.v_tiles)};
  bool works = false;
  if (!check_blocks(&view, machine)) {
    return MK_REFERENCE_FAULT;
  }
  for (uint32_t l = 0; l < lines; l++) {
    if (keeps(&view, machine->lines[l].row.slot, machine->lines[l].row.position)) {
      append(&view, l);
    }
  }
  for (uint32_t l = 0; l < lines; l++) {
    const mk_step_row *row = &machine->lines[l].row;
    line_view line = {.slot = row->slot,
                      .position = row->position,
                      .split = (view.unit + view.splits - row->slot % view.splits) % view.splits,
                      .first_new = first_new(machine, row->slot)};
    if (line.split > row->position / kv.buffer->span_tokens) {
      continue;
    }
    works = true;
    copy_new_tiles(&view, &line);
    attend(&view, &line, q + (size_t)l * group * head_dim);
    mk_publish_floats(machine, &out_span, machine->lines[l].line, 0, group * (head_dim + 2), part_of(&view, CLASS, 0));
  }
  if (!works) {
    machine->rows_used[MK_SLOT_ATTENTION_kv] = machine->rows_used[MK_SLOT_ATTENTION_out] = 0;
  }
  return MK_REFERENCE_DONE;
}
