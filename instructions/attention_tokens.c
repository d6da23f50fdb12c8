/* See attention.h.
 *
 * Tokens before the first new one come from the cache, the new ones from copies of the tiles of sixteen tokens that
 * hold them: tokens beyond the line's own position are cleared there, as 0 times what lies in V may be NaN. K of a
 * block is a matrix of weight tiles [block_tokens, head_dim], V of sixteen tokens one [head_dim, 16] (program.h), so
 * both products are mk_matvec's, of all query heads of the view at once, and each sum of theirs is one chain. q
 * times its scale and p are rounded to bf16, as K and V are.
 *
 * A quantised cache (vm/program/strips.h) is read sixteen tokens at a time, as the bf16 tiles that its codes stand for;
 * of a new token's K and V the codes are made as they are for the cache, and read in the same way. */
#include "instructions/attention.h"

#include <math.h>
#include <string.h>

#include "instructions/dequantise.h"

/* What is in a place of mk_unit_view.old_tiles. */
struct mk_old_tile {
  uint32_t slot, tile; /* slot UINT32_MAX: nothing */
};

/* Where the arrays of a mk_unit_view lie in scratch memory, in floats, after q, k and v of the lines; pairs of bf16
 * lie in one. */
typedef struct layout {
  size_t weights, product, parts, scratch, new_tiles, v_tiles, old_tiles, old, end;
} layout;

static layout lay_out(const mk_buffer *kv, uint32_t group) {
  const size_t head_dim = kv->head_dim, places = mk_dtype_is_quantised(kv->dtype) ? 2 * MK_OLD_TILES : 0;
  size_t most = head_dim > MK_FOLD_TOKENS ? head_dim : MK_FOLD_TOKENS;
  layout l = {.weights = 0};
  l.product = l.weights + (size_t)group * MK_FOLD_TOKENS;
  l.parts = l.product + group * most;
  l.scratch = l.parts + (size_t)MK_PART_LEVELS * group * (head_dim + 2u);
  l.new_tiles = l.scratch + group * MK_MATVEC_SCRATCH(most);
  l.v_tiles = l.new_tiles + (size_t)MK_NEW_TILES * MK_TILE * head_dim;
  l.old_tiles = l.v_tiles + head_dim * MK_FOLD_TOKENS / 2;
  l.old = l.old_tiles + places * head_dim * MK_TILE / 2;
  l.end = l.old + places * sizeof(struct mk_old_tile) / sizeof(float);
  return l;
}

void mk_unit_lay_out(mk_unit_view *view, float *memory) {
  const layout at = lay_out(view->buffer, view->group);
  view->weights = memory + at.weights;
  view->product = memory + at.product;
  view->parts = memory + at.parts;
  view->scratch = memory + at.scratch;
  view->new_tiles = (uint16_t *)(void *)(memory + at.new_tiles);
  view->v_tiles = (uint16_t *)(void *)(memory + at.v_tiles);
  view->old_tiles = (uint16_t *)(void *)(memory + at.old_tiles);
  view->old = (struct mk_old_tile *)(void *)(memory + at.old);
  memset(view->old, 0xff, (at.end - at.old) * sizeof *memory);
}

size_t mk_attention_scratch(const mk_buffer *kv, uint32_t group) { return lay_out(kv, group).end; }

static bool is_quantised(const mk_unit_view *view) { return mk_dtype_is_quantised(view->buffer->dtype); }

/* The K (which = 0) or V (which = 1) of the block and head that has token t of a slot. */
static uint8_t *cached_half(const mk_unit_view *view, uint32_t slot, uint32_t which, uint32_t t) {
  const mk_buffer *b = view->buffer;
  const uint32_t *table =
      (const uint32_t *)(const void *)view->table->memory + (size_t)slot * view->table->buffer->cols;
  uint64_t pair = (uint64_t)table[t / b->block_tokens] * b->cols + view->head;
  return view->memory + pair * mk_pair_bytes(b) + which * mk_half_bytes(b);
}

/* In a bf16 cache, where K or V of token t of a slot lies, from dim `dim` on. */
static uint16_t *cached(const mk_unit_view *view, uint32_t slot, uint32_t which, uint32_t t, uint32_t dim) {
  const mk_buffer *b = view->buffer;
  return (uint16_t *)(void *)cached_half(view, slot, 0, t) +
         mk_block_offset(b->block_tokens, view->head_dim, which, t % b->block_tokens, dim);
}

/* The tile of sixteen tokens of a slot that begins with token t: where it lies, or what the codes there stand for. */
static const uint16_t *cached_tile(const mk_unit_view *view, uint32_t slot, uint32_t which, uint32_t t) {
  if (!is_quantised(view)) {
    return cached(view, slot, which, t, 0);
  }
  const uint32_t tile = t / MK_TILE, place = (view->machine->line_count > 1 ? tile % MK_OLD_TILES : 0) * 2 + which;
  uint16_t *out = view->old_tiles + (size_t)place * MK_TILE * view->head_dim;
  if (view->old[place].slot != slot || view->old[place].tile != tile) {
    mk_dequantise_tokens(view->buffer, cached_half(view, slot, which, t), which, t % view->buffer->block_tokens, out);
    view->old[place] = (struct mk_old_tile){.slot = slot, .tile = tile};
  }
  return out;
}

/* A head of K or V of a new token, as it will be read from the cache. */
static void round_head(const mk_unit_view *view, const float *x, uint16_t out[MK_MAX_HEAD_DIM]) {
  uint8_t codes[MK_MAX_HEAD_DIM];
  const uint16_t scale = is_quantised(view) ? mk_quantise_head(x, view->head_dim, codes) : 0;
  for (uint32_t d = 0; d < view->head_dim; d++) {
    out[d] = is_quantised(view) ? mk_dequantise_element(scale, codes[d]) : mk_float_to_bf16(x[d]);
  }
}

bool mk_unit_keeps(const mk_unit_view *view, uint32_t slot, uint32_t t) {
  return mk_unit_of(t / view->buffer->span_tokens, slot, view->splits) == view->unit;
}

bool mk_unit_check_blocks(const mk_unit_view *view, mk_reference *machine) {
  const mk_buffer *table = view->table->buffer, *b = view->buffer;
  const mk_range *declared = &machine->program->ranges.block;
  for (uint32_t l = 0; l < machine->line_count; l++) {
    const mk_step_row *row = &machine->lines[l].row;
    for (uint32_t block = 0; block <= row->position / b->block_tokens; block++) {
      if (!mk_unit_keeps(view, row->slot, block * b->block_tokens)) {
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

static void append_codes(const mk_unit_view *view, const mk_step_row *row, uint32_t which, const float *x) {
  const mk_buffer *b = view->buffer;
  const uint32_t token = row->position % b->block_tokens;
  uint8_t codes[MK_MAX_HEAD_DIM], *half = cached_half(view, row->slot, which, row->position);
  const uint16_t scale = mk_quantise_head(x, view->head_dim, codes);
  for (uint32_t d = 0; d < view->head_dim; d++) {
    half[mk_half_code(b, which, token, d)] = codes[d];
  }
  memcpy(half + mk_half_scale(b, which, token), &scale, sizeof scale);
}

void mk_unit_append(const mk_unit_view *view, uint32_t l) {
  const mk_step_row *row = &view->machine->lines[l].row;
  for (uint32_t which = 0; which < 2; which++) {
    const float *x = (which == 0 ? view->k : view->v) + (size_t)l * view->head_dim;
    if (is_quantised(view)) {
      append_codes(view, row, which, x);
      continue;
    }
    for (uint32_t d = 0; d < view->head_dim; d++) {
      *cached(view, row->slot, which, row->position, d) = mk_float_to_bf16(x[d]);
    }
  }
}

static uint16_t *new_tile(const mk_unit_view *view, const mk_line_view *line, uint32_t which, uint32_t t) {
  uint32_t tile = t / MK_TILE - line->first_new / MK_TILE;
  return view->new_tiles + (size_t)(2 * tile + which) * MK_TILE * view->head_dim;
}

/* Tokens from the first new one on, in the tiles of this line: those of the step up to its position, then nothing. */
void mk_unit_copy_new_tiles(const mk_unit_view *view, const mk_line_view *line) {
  size_t elements = (size_t)MK_TILE * view->head_dim;
  for (uint32_t t = line->first_new / MK_TILE * MK_TILE; t <= line->position; t += MK_TILE) {
    for (uint32_t which = 0; mk_unit_keeps(view, line->slot, t) && which < 2; which++) {
      uint16_t *to = new_tile(view, line, which, t);
      if (t < line->first_new) {
        memcpy(to, cached_tile(view, line->slot, which, t), elements * sizeof *to);
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
    if (row->slot != line->slot || row->position > line->position || row->position < line->first_new ||
        !mk_unit_keeps(view, row->slot, row->position)) {
      continue;
    }
    uint16_t *k = new_tile(view, line, 0, row->position), *v = new_tile(view, line, 1, row->position);
    uint16_t rounded_k[MK_MAX_HEAD_DIM], rounded_v[MK_MAX_HEAD_DIM];
    round_head(view, view->k + (size_t)l * view->head_dim, rounded_k);
    round_head(view, view->v + (size_t)l * view->head_dim, rounded_v);
    for (uint32_t d = 0; d < view->head_dim; d++) {
      uint32_t i = row->position % MK_TILE;
      k[mk_tile_offset(view->head_dim / MK_TILE, i, d)] = rounded_k[d];
      v[mk_tile_offset(1, d, i)] = rounded_v[d];
    }
  }
}

/* view->product = W x of rows x cols weight tiles, for an x of every query head. */
static void multiply(const mk_unit_view *view, const uint16_t *tiles, uint32_t rows, uint32_t cols, const float *x) {
  mk_buffer shape = {.rows = rows, .cols = cols, .tile_rows = MK_TILE, .tile_cols = MK_TILE};
  mk_span weight = {.buffer = &shape, .memory = (uint8_t *)(uintptr_t)tiles, .rows = rows, .cols = cols};
  mk_matvec(&weight, view->group, x, view->scratch, view->product);
}

/* K or V of the tile of sixteen tokens from t on, as the line sees it. */
static const uint16_t *token_tile(const mk_unit_view *view, const mk_line_view *line, uint32_t which, uint32_t t) {
  bool is_new = t / MK_TILE >= line->first_new / MK_TILE;
  return is_new ? new_tile(view, line, which, t) : cached_tile(view, line->slot, which, t);
}

/* weights[head][i] = q k_(first + i), for whole tiles of tokens. */
static void score_tokens(const mk_unit_view *view, const mk_line_view *line, const float *q, uint32_t first,
                         uint32_t padded) {
  uint32_t block_tokens = view->buffer->block_tokens, old_end = line->first_new / MK_TILE * MK_TILE, rows;
  for (uint32_t t = first; t < first + padded; t += rows) {
    rows = MK_TILE;
    if (t < old_end && !is_quantised(view)) { /* tiles of a block lie one after the other */
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

/* Scores of one query head become p, which is zero for the `unseen` first tokens; m and the sum of p are left after the
 * part's sum of p v. */
static void weigh_tokens(const mk_unit_view *view, float *scores, uint32_t unseen, uint32_t count, uint32_t padded,
                         float *part) {
  float *m = part + view->head_dim, *total = m + 1;
  *m = -INFINITY;
  *total = 0;
  for (uint32_t i = unseen; i < count; i++) {
    *m = scores[i] > *m || isnan(scores[i]) ? scores[i] : *m;
  }
  *m = ceilf(*m);
  for (uint32_t i = 0; i < padded; i++) {
    scores[i] = i >= unseen && i < count ? mk_bf16_to_float(mk_float_to_bf16(mk_exp2(scores[i] - *m))) : 0;
    *total += scores[i];
  }
}

float *mk_unit_part(const mk_unit_view *view, mk_part_level level, uint32_t h) {
  return view->parts + ((size_t)level * view->group + h) * (view->head_dim + 2u);
}

/* Clears V of the first tokens of v_tiles, which no line sees: 0 times what lies there may be NaN. */
static void clear_unseen(const mk_unit_view *view, uint32_t unseen, uint32_t tiles) {
  for (uint32_t d = 0; d < view->head_dim; d++) {
    for (uint32_t i = 0; i < unseen; i++) {
      view->v_tiles[mk_tile_offset(tiles, d, i)] = 0;
    }
  }
}

/* Adds tokens [first, end), MK_FOLD_TOKENS at most, as a part by themselves. */
static void fold_tokens(const mk_unit_view *view, const mk_line_view *line, const float *q, uint32_t first,
                        uint32_t end) {
  uint32_t count = end - first, tiles = (count + MK_TILE - 1) / MK_TILE, padded = tiles * MK_TILE;
  const uint32_t unseen = line->first_seen > first ? line->first_seen - first : 0;
  score_tokens(view, line, q, first, padded);
  for (uint32_t h = 0; h < view->group; h++) {
    weigh_tokens(view, view->weights + (size_t)h * padded, unseen, count, padded, mk_unit_part(view, MK_FOLD, h));
  }
  for (uint32_t i = 0; i < tiles; i++) {
    const uint16_t *from = token_tile(view, line, 1, first + i * MK_TILE);
    for (uint32_t dims = 0; dims < view->head_dim / MK_TILE; dims++) {
      memcpy(view->v_tiles + ((size_t)dims * tiles + i) * MK_TILE_STEP_ELEMENTS,
             from + (size_t)dims * MK_TILE_STEP_ELEMENTS, MK_TILE_STEP_ELEMENTS * sizeof *from);
    }
  }
  clear_unseen(view, unseen, tiles);
  multiply(view, view->v_tiles, view->head_dim, padded, view->weights);
  for (uint32_t h = 0; h < view->group; h++) {
    memcpy(mk_unit_part(view, MK_FOLD, h), view->product + (size_t)h * view->head_dim, view->head_dim * sizeof *q);
  }
}

static void clear(const mk_unit_view *view, mk_part_level level) {
  for (uint32_t h = 0; h < view->group; h++) {
    mk_part_clear(mk_unit_part(view, level, h), view->head_dim);
  }
}

void mk_unit_add_level(const mk_unit_view *view, mk_part_level from, mk_part_level to) {
  for (uint32_t h = 0; h < view->group; h++) {
    mk_part_add(mk_unit_part(view, to, h), mk_unit_part(view, from, h), view->head_dim);
  }
  clear(view, from);
}

void mk_unit_begin(const mk_unit_view *view) {
  for (mk_part_level level = MK_PIECE; level < MK_PART_LEVELS; level++) {
    clear(view, level);
  }
}

void mk_unit_add_tokens(const mk_unit_view *view, const mk_line_view *line, const float *q, uint32_t first,
                        uint32_t end) {
  for (uint32_t t = first, next; t < end; t = next) {
    next = t / MK_FOLD_TOKENS * MK_FOLD_TOKENS + MK_FOLD_TOKENS;
    next = next < end ? next : end;
    if (next > line->first_seen) {
      fold_tokens(view, line, q, t, next);
      mk_unit_add_level(view, MK_FOLD, MK_PIECE);
    }
  }
}

void mk_take_heads(float *x, uint32_t lines, uint32_t heads, uint32_t head_dim, bool normed, float eps) {
  const uint32_t tiles = head_dim / MK_TILE;
  for (uint32_t head = 0; head < lines * heads; head++) {
    const float *from = x + (size_t)head * tiles * MK_SQUARED_TILE;
    float *to = x + (size_t)head * head_dim;
    const float scale = normed ? 1.0f / sqrtf(mk_sum_tile_squares(from, tiles) * (1.0f / (float)head_dim) + eps) : 1;
    for (uint32_t i = 0; i < head_dim; i++) {
      to[i] = from[i / MK_TILE * MK_SQUARED_TILE + i % MK_TILE] * scale;
    }
  }
}

void mk_scale_queries(float *q, size_t count, float scale) {
  const float log2_e = 1.4426950408889634f, factor = scale * log2_e;
  for (size_t i = 0; i < count; i++) {
    q[i] = mk_bf16_to_float(mk_float_to_bf16(q[i] * factor));
  }
}
