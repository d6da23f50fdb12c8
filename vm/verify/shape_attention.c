/* Phase 1, per opcode: those that read or write a cache, and what merges their parts. Rules S09, S10, B03. See
 * shape.h. */
#include "vm/verify/shape.h"

enum { MAX_SPAN = 1024 }; /* scores of one span that a machine holds */

/* Of an opcode with a cache. */
static mk_status check_block_table(mk_shape *s) {
  const uint32_t slot = (uint32_t)mk_opcode_reads(s->info, MK_CONTENT_TABLE);
  const mk_buffer *kv = mk_shape_buffer(s, (uint32_t)mk_opcode_cache(s->info));
  const mk_step_ranges *ranges = &s->v->program->ranges;
  const mk_extent *table = &s->extents[slot];
  uint32_t blocks = ranges->position.high / kv->block_tokens + 1;
  MK_TRY(mk_expect(s, slot, "number of rows", table->rows, mk_program_slots(s->v->program)));
  MK_TRY(mk_expect(s, slot, "first row", table->row, 0));
  MK_TRY(mk_expect(s, slot, "first column", table->col, 0));
  if (table->cols < blocks) {
    return mk_reject(s->v, "B03", s->index, "table: %u entries; position %u needs %u blocks of %u tokens", table->cols,
                     ranges->position.high, blocks, kv->block_tokens);
  }
  /* One sequence needs so many blocks; of several, plans see to it (vm/program/plan.h). */
  if (ranges->block.high - ranges->block.low + 1 < blocks && mk_program_rows(s->v->program) == 1) {
    return mk_reject(s->v, "B03", s->index,
                     "table: names blocks %u to %u; %u different ones are needed up to position %u", ranges->block.low,
                     ranges->block.high, blocks, ranges->position.high);
  }
  if (kv->blocks <= ranges->block.high) {
    return mk_reject(s->v, "B03", s->index, "kv: buffer %s has %u blocks; the table may name block %u", kv->name,
                     kv->blocks, ranges->block.high);
  }
  return MK_OK;
}

/* Machines take q, k and v by pairs of words. */
static mk_status expect_even(mk_shape *s, uint32_t slot) {
  const mk_buffer *b = mk_shape_buffer(s, slot);
  MK_TRY(mk_expect(s, slot, "first column modulo 2", s->extents[slot].col % 2, 0));
  return b->rows == 1 ? MK_OK : mk_expect(s, slot, "number of columns in the buffer modulo 2", b->cols % 2, 0);
}

/* The operand has heads of q, k or v of all lines. Where q and k are normed, tiles are 18 columns wide. */
static mk_status expect_head(mk_shape *s, uint32_t slot, uint32_t cols, bool normed) {
  if (normed) {
    MK_TRY(mk_expect(s, slot, "tile width", mk_shape_buffer(s, slot)->tile_cols, MK_SQUARED_TILE));
    cols = cols / MK_TILE * MK_SQUARED_TILE;
  }
  MK_TRY(mk_expect_all_lines(s, slot, s->extents[slot].col, cols));
  return expect_even(s, slot);
}

/* Where several sequences share a step ATTENTION takes a span in pieces. */
static mk_status check_pieces(mk_shape *s) {
  uint32_t span = mk_shape_buffer(s, MK_SLOT_ATTENTION_kv)->span_tokens, pieces = span / MK_PIECE_TOKENS;
  bool fits = span % MK_PIECE_TOKENS == 0 && pieces != 0 && (pieces & (pieces - 1)) == 0;
  return fits || mk_program_is_for_prompts(s->v->program)
             ? MK_OK
             : mk_reject(s->v, "S10", s->index,
                         "kv: span_tokens is %u; with several sequences a step it is %d times a power of two", span,
                         MK_PIECE_TOKENS);
}

/* out: of each query head a part for each span of the split, as many as the last position needs. */
static mk_status expect_parts(mk_shape *s, uint32_t group) {
  const mk_buffer *kv = mk_shape_buffer(s, MK_SLOT_ATTENTION_kv), *parts = mk_shape_buffer(s, MK_SLOT_ATTENTION_out);
  const mk_operand *out = &s->in->operands[MK_SLOT_ATTENTION_out];
  const uint32_t spans = out->cols / group;
  const uint32_t needed = s->v->program->ranges.position.high / kv->span_tokens / kv->rows + 1;
  if (spans < needed) {
    return mk_reject(s->v, "S10", s->index,
                     "out: %u parts of %u query heads; position %u needs %u of each, of spans of %u tokens, with %u "
                     "splits",
                     out->cols, group, s->v->program->ranges.position.high, needed, kv->span_tokens, kv->rows);
  }
  MK_TRY(mk_expect(s, MK_SLOT_ATTENTION_out, "number of tiles modulo the query heads", out->cols % group, 0));
  MK_TRY(mk_expect(s, MK_SLOT_ATTENTION_out, "first tile", out->col,
                   (uint64_t)s->in->operands[MK_SLOT_ATTENTION_kv].col * out->cols));
  return mk_expect_lines(s, MK_SLOT_ATTENTION_out, 1, out->col * parts->tile_cols, out->cols * parts->tile_cols);
}

mk_status mk_shape_ATTENTION(mk_shape *s) {
  const mk_buffer *kv = mk_shape_buffer(s, MK_SLOT_ATTENTION_kv), *parts = mk_shape_buffer(s, MK_SLOT_ATTENTION_out);
  const mk_extent *at = &s->extents[MK_SLOT_ATTENTION_kv];
  uint32_t group = s->in->params[MK_PARAM_ATTENTION_group], head_dim = kv->head_dim;
  MK_TRY(mk_expect_positive(s, MK_PARAM_ATTENTION_scale));
  MK_TRY(mk_expect_factor(s, MK_PARAM_ATTENTION_eps));
  MK_TRY(mk_expect_param(s, MK_PARAM_ATTENTION_splits, s->in->params[MK_PARAM_ATTENTION_splits] == kv->rows,
                         "it must be the number of rows of the KV buffer"));
  MK_TRY(mk_expect_param(s, MK_PARAM_ATTENTION_group, group >= 1 && group <= MK_MAX_COORDINATE,
                         "it must be from 1 to 65535"));
  MK_TRY(mk_expect(s, MK_SLOT_ATTENTION_kv, "number of rows", at->rows, 1));
  MK_TRY(mk_expect(s, MK_SLOT_ATTENTION_kv, "number of columns", at->cols, 1));
  if (kv->span_tokens > MAX_SPAN) {
    return mk_reject(s->v, "S10", s->index, "kv: span_tokens is %u; a machine takes at most %d at a time",
                     kv->span_tokens, MAX_SPAN);
  }
  const bool normed = s->in->params[MK_PARAM_ATTENTION_eps] != 0;
  MK_TRY(expect_head(s, MK_SLOT_ATTENTION_q, group * head_dim, normed));
  MK_TRY(expect_head(s, MK_SLOT_ATTENTION_k, head_dim, normed));
  MK_TRY(expect_head(s, MK_SLOT_ATTENTION_v, head_dim, normed));
  MK_TRY(mk_expect(s, MK_SLOT_ATTENTION_out, "tile width", parts->tile_cols, head_dim + 2u));
  MK_TRY(mk_expect(s, MK_SLOT_ATTENTION_out, "number of columns in the buffer modulo the tile width",
                   parts->cols % parts->tile_cols, 0));
  uint32_t lines = mk_shape_lines(s);
  if (lines > 1) {
    MK_TRY(mk_expect(s, MK_SLOT_ATTENTION_v, "number of columns in the buffer",
                     mk_shape_buffer(s, MK_SLOT_ATTENTION_v)->cols, mk_shape_buffer(s, MK_SLOT_ATTENTION_k)->cols));
    MK_TRY(check_pieces(s));
  }
  if (lines > 1 && kv->rows > MK_MAX_UNITS) {
    return mk_reject(s->v, "S10", s->index, "kv: buffer %s has %u rows; with several rows a step, a machine takes %d",
                     kv->name, kv->rows, MK_MAX_UNITS);
  }
  MK_TRY(mk_expect(s, MK_SLOT_ATTENTION_out, "number of rows in the buffer", parts->rows, (uint64_t)kv->rows * lines));
  MK_TRY(mk_expect(s, MK_SLOT_ATTENTION_out, "row", s->extents[MK_SLOT_ATTENTION_out].row, (uint64_t)at->row * lines));
  MK_TRY(check_block_table(s));
  return expect_parts(s, group);
}

/* One head of a cache that is not split: where any token of any slot may be. */
static mk_status expect_whole_head(mk_shape *s, uint32_t slot) {
  MK_TRY(mk_expect(s, slot, "number of rows in the buffer", mk_shape_buffer(s, slot)->rows, 1));
  MK_TRY(mk_expect(s, slot, "number of rows", s->extents[slot].rows, 1));
  return mk_expect(s, slot, "number of columns", s->extents[slot].cols, 1);
}

mk_status mk_shape_APPEND(mk_shape *s) {
  const uint32_t head_dim = mk_shape_buffer(s, MK_SLOT_APPEND_kv)->head_dim;
  const bool normed = s->in->params[MK_PARAM_APPEND_eps] != 0;
  MK_TRY(mk_expect_factor(s, MK_PARAM_APPEND_eps));
  MK_TRY(expect_whole_head(s, MK_SLOT_APPEND_kv));
  MK_TRY(mk_expect_sole(s, MK_SLOT_APPEND_k));
  MK_TRY(expect_head(s, MK_SLOT_APPEND_k, head_dim, normed));
  MK_TRY(mk_expect_sole(s, MK_SLOT_APPEND_v));
  MK_TRY(expect_head(s, MK_SLOT_APPEND_v, head_dim, normed));
  return check_block_table(s);
}

mk_status mk_shape_ATTEND(mk_shape *s) {
  const uint32_t head_dim = mk_shape_buffer(s, MK_SLOT_ATTEND_kv)->head_dim;
  static const uint32_t heads[] = {MK_SLOT_ATTEND_q, MK_SLOT_ATTEND_out};
  const bool listed = !mk_operand_empty(&s->in->operands[MK_SLOT_ATTEND_work]);
  const uint32_t share = s->in->params[MK_PARAM_ATTEND_share], shares = s->in->params[MK_PARAM_ATTEND_shares];
  const uint32_t group = listed ? s->extents[MK_SLOT_ATTEND_out].cols / head_dim : 1;
  const bool normed = s->in->params[MK_PARAM_ATTEND_eps] != 0;
  MK_TRY(mk_expect_param(s, MK_PARAM_ATTEND_shares, listed == (shares != 0), "it is 0 where there is no work list"));
  MK_TRY(mk_expect_param(s, MK_PARAM_ATTEND_share, share < shares || !listed, "it must be below the number of shares"));
  MK_TRY(mk_expect_param(s, MK_PARAM_ATTEND_share, share == 0 || listed, "it is 0 where there is no work list"));
  MK_TRY(mk_expect_positive(s, MK_PARAM_ATTEND_scale));
  MK_TRY(mk_expect_factor(s, MK_PARAM_ATTEND_eps));
  MK_TRY(expect_whole_head(s, MK_SLOT_ATTEND_kv));
  for (uint32_t i = 0; i < 2; i++) {
    const uint32_t width = normed && heads[i] == MK_SLOT_ATTEND_q ? MK_SQUARED_TILE : MK_TILE;
    MK_TRY(mk_expect_sole(s, heads[i]));
    MK_TRY(mk_expect(s, heads[i], "tile width", mk_shape_buffer(s, heads[i])->tile_cols, width));
    MK_TRY(mk_expect_line_tile(s, heads[i], s->extents[heads[i]].col, group * head_dim / MK_TILE * width));
  }
  return check_block_table(s);
}

mk_status mk_shape_COMBINE(mk_shape *s) {
  const mk_buffer *parts = mk_shape_buffer(s, MK_SLOT_COMBINE_parts);
  const mk_extent *at = &s->extents[MK_SLOT_COMBINE_parts], *out = &s->extents[MK_SLOT_COMBINE_out];
  const mk_operand *heads = &s->in->operands[MK_SLOT_COMBINE_parts];
  const uint32_t head_dim = parts->tile_cols - 2u, spans = s->in->params[MK_PARAM_COMBINE_spans];
  MK_TRY(mk_expect_param(s, MK_PARAM_COMBINE_span, s->in->params[MK_PARAM_COMBINE_span] != 0, "it must be above 0"));
  MK_TRY(mk_expect_param(s, MK_PARAM_COMBINE_spans, spans != 0 && heads->col % spans == 0 && heads->cols % spans == 0,
                         "parts must have so many of each head"));
  if (parts->tile_rows != mk_program_rows(s->v->program) || !mk_head_dim_exists(head_dim) ||
      parts->cols % parts->tile_cols != 0) {
    return mk_reject(s->v, "S10", s->index,
                     "parts: buffer %s has tiles of %ux%u; they must be %u rows of 66, 130 or 258 columns, and whole",
                     parts->name, parts->tile_rows, parts->tile_cols, mk_program_rows(s->v->program));
  }
  MK_TRY(mk_expect(s, MK_SLOT_COMBINE_parts, "first row", at->row, 0));
  MK_TRY(mk_expect(s, MK_SLOT_COMBINE_parts, "number of rows", at->rows, parts->rows));
  const uint32_t col = heads->col / spans * head_dim, cols = heads->cols / spans * head_dim;
  /* With one row, of one head some of its slices. */
  const uint32_t slice = head_dim / MK_COMBINE_SLICES;
  const bool some = cols == head_dim && mk_program_rows(s->v->program) == 1 && out->col >= col &&
                    out->col + out->cols <= col + cols && out->col % slice == 0 && out->cols % slice == 0;
  return some ? mk_expect_line_tile(s, MK_SLOT_COMBINE_out, out->col, out->cols)
              : mk_expect_line_tile(s, MK_SLOT_COMBINE_out, col, cols);
}
