/* The stages of a random program. See generate.h. */
#include <string.h>

#include "tests/support/generate_internal.h"

/* Splits `tiles` into chunks of whole units on random SMs below `sms`, the last `spread` of which get at least one. */
static uint32_t deal(generator *g, uint32_t tiles, uint32_t unit, uint32_t sms, uint32_t spread, chunk *chunks) {
  uint32_t count = 0;
  for (uint32_t t = 0; t < tiles; t += unit) {
    if (count == 0 || t / unit <= spread || test_below(g, 2) == 0) {
      uint32_t sm = t / unit < spread ? sms - 1 - t / unit : test_below(g, sms);
      chunks[count++] = (chunk){.sm = sm, .first = t};
    }
    chunks[count - 1].count += unit < tiles - t ? unit : tiles - t;
  }
  return count;
}

static vector new_vector(generator *g, uint32_t cols, bool hinted) {
  return (vector){.buffer = test_add_value(g, "v", MK_DTYPE_BF16, MK_STORE_STAMPED, 1, cols, MK_TILE),
                  .hint = hinted ? test_new_hint(g) : NONE};
}

static uint32_t width_of(const generator *g, uint16_t buffer) { return g->p->buffers[buffer].cols; }

static void add_vector(generator *g, vector v) {
  if (g->vector_count < MAX_VECTORS) {
    g->vectors[g->vector_count++] = v;
  }
}

/* x = NULL: the embedding row. */
vector test_push_qkv(generator *g, const vector *x, uint32_t rows, uint32_t rope_tiles, uint32_t unit,
                     uint32_t extras) {
  chunk chunks[3 * MAX_TILES];
  bool squares = extras != 0;
  uint32_t tile = squares ? MK_SQUARED_TILE : MK_TILE, cols = squares ? rows / MK_TILE * tile : rows;
  vector out = {.buffer = test_add_value(g, "q", MK_DTYPE_F32, MK_STORE_STAMPED, 1, cols, tile),
                .hint = test_new_hint(g)};
  uint16_t weight = test_add_weight(g, rows, g->hidden);
  uint32_t count = deal(g, mk_buffer_grid_rows(&g->p->buffers[weight]), unit, g->stateful, 0, chunks);
  for (uint32_t i = 0; i < count; i++) {
    mk_instruction *in = test_push(g, chunks[i].sm, MK_OP_QKV);
    in->operands[MK_SLOT_QKV_x] = x == NULL ? test_token_row(g, 0, g->tiles) : test_whole(g, x->buffer);
    in->operands[MK_SLOT_QKV_gain] = test_whole(g, g->gain);
    in->operands[MK_SLOT_QKV_weight] = test_tiles(weight, chunks[i].first, chunks[i].count, 0, g->tiles);
    in->operands[MK_SLOT_QKV_inv_freq] = test_whole(g, g->frequencies);
    in->operands[MK_SLOT_QKV_out] = test_tiles(out.buffer, 0, 1, chunks[i].first, chunks[i].count);
    test_set_norm(g, in, MK_PARAM_QKV_eps, MK_PARAM_QKV_width);
    in->params[MK_PARAM_QKV_rope_tiles] = rope_tiles;
    in->params[MK_PARAM_QKV_head_dim] = HEAD_DIM;
    in->params[MK_PARAM_QKV_extras] = extras;
    test_hint_signal(g, in, out.hint);
    test_hint_wait(g, in, x == NULL ? NONE : x->hint);
  }
  return out;
}

/* q and k of all heads, each normed over all of them, and v. */
static vector push_norm_heads(generator *g, vector values) {
  chunk chunks[3 * MAX_TILES];
  uint32_t tiles = (g->heads + 2 * g->kv_heads) * HEAD_TILES;
  vector out = {.buffer = test_add_value(g, "normed", MK_DTYPE_F32, MK_STORE_STAMPED, 1, tiles * MK_TILE, MK_TILE),
                .hint = test_new_hint(g)};
  uint32_t count = deal(g, tiles, 1 + test_below(g, 2), g->stateful, 0, chunks);
  for (uint32_t i = 0; i < count; i++) {
    mk_instruction *in = test_push(g, chunks[i].sm, MK_OP_NORM_HEADS);
    in->operands[MK_SLOT_NORM_HEADS_values] = test_whole(g, values.buffer);
    in->operands[MK_SLOT_NORM_HEADS_out] = test_tiles(out.buffer, 0, 1, chunks[i].first, chunks[i].count);
    in->params[MK_PARAM_NORM_HEADS_eps] = mk_float_param(1e-5f);
    in->params[MK_PARAM_NORM_HEADS_query_tiles] = g->heads * HEAD_TILES;
    in->params[MK_PARAM_NORM_HEADS_key_tiles] = g->kv_heads * HEAD_TILES;
    test_hint_signal(g, in, out.hint);
    test_hint_wait(g, in, values.hint);
  }
  return out;
}

static void stage_glu(generator *g, uint32_t spread) {
  chunk chunks[MAX_TILES];
  uint32_t cols = g->tiles * MK_TILE; /* whole tiles, which may be wider than the others */
  vector x = spread != 0 ? g->vectors[g->vector_count - 1] : test_any_vector(g);
  uint32_t tile = g->lines > 1 || test_below(g, 2) == 0 ? MK_TILE / 2 : MK_TILE, share = MK_TILE / tile;
  vector out = {.buffer = test_add_value(g, "v", MK_DTYPE_BF16, MK_STORE_STAMPED, 1, cols, tile),
                .hint = test_new_hint(g)};
  uint16_t weight = test_add_weight(g, 2 * cols, g->hidden);
  uint32_t count = deal(g, g->tiles, 1, g->sms, spread, chunks);
  const wide_norm n = test_push_norm(g, x, spread == 0 && test_below(g, 3) == 0);
  for (uint32_t i = 0; i < count; i++) {
    mk_instruction *in = test_push(g, n.one_sm && !test_slips(g, 8) ? n.sm : chunks[i].sm, MK_OP_GLU);
    if (n.there) {
      in->operands[MK_SLOT_GLU_x] = test_whole(g, n.out);
      in->operands[MK_SLOT_GLU_squares] = test_whole(g, n.squares);
      test_hint_wait_all(g, in, n.counter);
    } else {
      in->operands[MK_SLOT_GLU_x] = test_whole(g, x.buffer);
      in->operands[MK_SLOT_GLU_gain] = test_whole(g, g->gain);
    }
    in->operands[MK_SLOT_GLU_weight] = test_tiles(weight, 2 * chunks[i].first, 2 * chunks[i].count, 0, g->tiles);
    in->operands[MK_SLOT_GLU_out] = test_tiles(out.buffer, 0, 1, share * chunks[i].first, share * chunks[i].count);
    test_set_norm(g, in, MK_PARAM_GLU_eps, MK_PARAM_GLU_width);
    test_hint_signal(g, in, out.hint);
    test_hint_wait(g, in, x.hint);
  }
  add_vector(g, out);
}

/* The squares of the sum of parts, which are one chain. */
static vector push_squares(generator *g, const vector *parts) {
  vector out = {.buffer = test_add_value(g, "squares", MK_DTYPE_F32, MK_STORE_STAMPED, 1, 1, 1),
                .hint = test_new_hint(g)};
  mk_instruction *in = test_push(g, test_below(g, g->sms), MK_OP_SQUARES);
  in->operands[MK_SLOT_SQUARES_parts] = test_whole(g, parts->buffer);
  in->operands[MK_SLOT_SQUARES_squares] = test_whole(g, out.buffer);
  in->params[MK_PARAM_SQUARES_width] = g->hidden;
  test_hint_signal(g, in, out.hint);
  test_hint_wait(g, in, parts->hint);
  return out;
}

/* Chunks of LINEAR_ADD of x, or of what adds parts: the residual moves on. */
static void stage_add(generator *g, const vector *x, const vector *parts, uint32_t spread) {
  residual old = g->residual, new = {.counter = NONE};
  bool from_row = old.buffer == NONE || test_below(g, 4) == 0, in_place = !from_row && test_below(g, 2) == 0;
  bool normed = x == NULL && test_below(g, 3) == 0; /* which takes all columns of the parts, */
  bool squared = normed && test_below(g, 2) == 0;   /* or goes by their squares */
  vector squares = {0};
  if (squared) {
    squares = push_squares(g, parts);
  }
  uint16_t base = from_row && test_below(g, 2) == 0
                      ? test_add_value(g, "base", MK_DTYPE_F32, MK_STORE_PLAIN, 1, g->hidden, MK_TILE)
                      : NONE;
  vector out = new_vector(g, g->hidden, false);
  uint16_t weight = x == NULL ? 0 : test_add_weight(g, g->hidden, width_of(g, x->buffer));
  new.buffer =
      in_place ? old.buffer : test_add_value(g, "residual", MK_DTYPE_F32, MK_STORE_PLAIN, 1, g->hidden, MK_TILE);
  new.count = deal(g, g->tiles, 1, g->stateful, spread, new.chunks);
  if (g->lines > 1 && !from_row) { /* it stays with its SMs, since nothing could order it elsewhere */
    new.count = old.count;
    memcpy(new.chunks, old.chunks, sizeof new.chunks);
  }
  for (uint32_t i = 0; i < new.count; i++) {
    const chunk *c = &new.chunks[i];
    if (base != NONE) {
      mk_instruction *offset = test_push(g, c->sm, MK_OP_OFFSET);
      offset->operands[MK_SLOT_OFFSET_residual_in] = test_token_row(g, c->first, c->count);
      offset->operands[MK_SLOT_OFFSET_residual_out] = test_tiles(base, 0, 1, c->first, c->count);
      offset->params[MK_PARAM_OFFSET_factor] = mk_float_param(test_below(g, 2) == 0 ? 0 : 3.5f);
      if (test_below(g, 2) == 0) {
        offset->operands[MK_SLOT_OFFSET_bias] = test_whole(g, g->gain);
      }
    }
    mk_instruction *in = test_push(g, c->sm,
                                   x != NULL ? MK_OP_LINEAR_ADD
                                   : squared ? MK_OP_ADD_NORMED
                                   : normed  ? MK_OP_NORM_ADD
                                             : MK_OP_REDUCE_ADD);
    uint32_t slot = x != NULL ? MK_SLOT_LINEAR_ADD_residual_in
                    : normed  ? MK_SLOT_NORM_ADD_residual_in
                              : MK_SLOT_REDUCE_ADD_residual_in;
    mk_operand where = test_tiles(new.buffer, 0, 1, c->first, c->count);
    if (x != NULL) {
      in->operands[MK_SLOT_LINEAR_ADD_x] = test_whole(g, x->buffer);
      in->operands[MK_SLOT_LINEAR_ADD_weight] =
          test_tiles(weight, c->first, c->count, 0, mk_buffer_grid_cols(&g->p->buffers[weight]));
      test_hint_wait(g, in, x->hint);
    } else if (normed) { /* the operands of both in the same slots */
      in->operands[MK_SLOT_NORM_ADD_parts] =
          squared ? test_tiles(parts->buffer, 0, mk_buffer_grid_rows(&g->p->buffers[parts->buffer]), c->first, c->count)
                  : test_whole(g, parts->buffer);
      if (squared) {
        in->operands[MK_SLOT_ADD_NORMED_squares] = test_whole(g, squares.buffer);
        test_hint_wait(g, in, squares.hint);
      }
      in->operands[MK_SLOT_NORM_ADD_gain] = test_whole(g, g->gain);
      test_set_norm(g, in, MK_PARAM_NORM_ADD_eps, MK_PARAM_NORM_ADD_width);
      test_hint_wait(g, in, parts->hint);
    } else {
      in->operands[MK_SLOT_REDUCE_ADD_parts] =
          test_tiles(parts->buffer, 0, mk_buffer_grid_rows(&g->p->buffers[parts->buffer]), c->first, c->count);
      test_hint_wait(g, in, parts->hint);
    }
    in->operands[slot] = base != NONE ? test_tiles(base, 0, 1, c->first, c->count)
                         : from_row   ? test_token_row(g, c->first, c->count)
                                      : test_tiles(old.buffer, 0, 1, c->first, c->count);
    in->operands[slot + 1] = where;
    in->operands[slot + 2] = test_tiles(out.buffer, 0, 1, c->first, c->count);
    new.writers[i] = (place){.sm = c->sm, .at = g->counts[c->sm] - 1};
    new.amounts[i] = 1 + test_below(g, 2);
    for (uint32_t t = c->first; t < c->first + c->count; t++) {
      new.owner[t] = in_place ? old.owner[t] : c->sm;
    }
    if (!from_row) {
      test_order_residual(g, &old, in, c);
      test_acknowledge(g, &old, in, c);
    }
  }
  g->residual = new;
  add_vector(g, out);
}

/* Rows of W x, K split over `count` parts, on SMs below `sms`. */
static vector push_parts(generator *g, vector x, uint32_t count, uint32_t sms) {
  vector parts = {.buffer = test_add_value(g, "parts", MK_DTYPE_F32, MK_STORE_STAMPED, count, g->hidden, MK_TILE),
                  .hint = test_new_hint(g)};
  uint16_t weight = test_add_weight(g, g->hidden, width_of(g, x.buffer));
  uint32_t tiles = mk_buffer_grid_cols(&g->p->buffers[weight]), share = MK_TILE / g->p->buffers[x.buffer].tile_cols;
  for (uint32_t part = 0, first = 0; part < count; part++) {
    uint32_t end = (part + 1) * tiles / count;
    chunk chunks[MAX_TILES];
    uint32_t n = deal(g, g->tiles, 1, sms, 0, chunks);
    for (uint32_t i = 0; i < n; i++) {
      mk_instruction *in = test_push(g, chunks[i].sm, MK_OP_LINEAR_PART);
      in->operands[MK_SLOT_LINEAR_PART_x] = test_tiles(x.buffer, 0, 1, share * first, share * (end - first));
      in->operands[MK_SLOT_LINEAR_PART_weight] =
          test_tiles(weight, chunks[i].first, chunks[i].count, first, end - first);
      in->operands[MK_SLOT_LINEAR_PART_out] = test_tiles(parts.buffer, part, 1, chunks[i].first, chunks[i].count);
      test_hint_signal(g, in, parts.hint);
      test_hint_wait(g, in, x.hint);
    }
    first = end;
  }
  return parts;
}

static void stage_parts(generator *g, vector x) {
  uint32_t tiles = (width_of(g, x.buffer) + MK_TILE - 1) / MK_TILE, most = tiles < 3 ? tiles : 3;
  vector parts = push_parts(g, x, 1 + test_below(g, most), g->sms);
  stage_add(g, NULL, &parts, 0);
}

/* How many spans a split has at the last position. */
static uint32_t spans_of(const generator *g, uint32_t splits) { return (g->context - 1) / g->span / splits + 1; }

static vector new_splits(generator *g, uint32_t splits) {
  return (vector){.buffer = test_add_value(g, "splits", MK_DTYPE_F32, MK_STORE_STAMPED, splits,
                                           g->heads * spans_of(g, splits) * (HEAD_DIM + 2), HEAD_DIM + 2),
                  .hint = test_new_hint(g)};
}

static vector push_combine(generator *g, vector parts, uint32_t span) {
  chunk chunks[MAX_TILES];
  vector out = new_vector(g, g->heads * HEAD_DIM, true);
  uint32_t count = deal(g, g->heads, 1, g->stateful, 0, chunks),
           rows = mk_buffer_grid_rows(&g->p->buffers[parts.buffer]), spans = spans_of(g, rows);
  for (uint32_t i = 0; i < count; i++) {
    mk_instruction *in = test_push(g, chunks[i].sm, MK_OP_COMBINE);
    in->operands[MK_SLOT_COMBINE_parts] =
        test_tiles(parts.buffer, 0, rows, chunks[i].first * spans, chunks[i].count * spans);
    in->operands[MK_SLOT_COMBINE_out] =
        test_tiles(out.buffer, 0, 1, chunks[i].first * HEAD_TILES, chunks[i].count * HEAD_TILES);
    in->params[MK_PARAM_COMBINE_span] = span;
    in->params[MK_PARAM_COMBINE_spans] = spans;
    test_hint_signal(g, in, out.hint);
    test_hint_wait(g, in, parts.hint);
  }
  return out;
}

/* Merges splits, and goes on with what comes of it, as wide as it is. */
static void stage_combine(generator *g, vector parts, uint32_t span) {
  vector out = push_combine(g, parts, span);
  if (test_below(g, 2) == 0) {
    stage_parts(g, out);
  } else {
    stage_add(g, &out, NULL, 0);
  }
}

static void stage_attention(generator *g) {
  if (g->lines == 1 && test_below(g, 4) == 0) {
    vector out = test_push_attend(g, test_any_vector(g));
    stage_parts(g, out);
    return;
  }
  uint32_t splits = 1 + test_below(g, 3), group = g->heads / g->kv_heads, q_tiles = g->heads * HEAD_TILES;
  vector x = test_any_vector(g);
  uint32_t norms = test_below(g, 4); /* 0: of each head; 1: over all heads; else none */
  const uint32_t window = test_below(g, 3) != 0 ? 0 : 1 + test_below(g, 2 * g->span);
  vector qkv = test_push_qkv(g, &x, (g->heads + 2 * g->kv_heads) * HEAD_DIM, (g->heads + g->kv_heads) * HEAD_TILES,
                             1 + test_below(g, 2), norms < 2 ? MK_QKV_SQUARES : 0);
  qkv = norms == 1 ? push_norm_heads(g, qkv) : qkv;
  vector parts = new_splits(g, splits);
  const uint16_t kv = test_add_cache(g, splits);
  const uint32_t spans = spans_of(g, splits);
  for (uint32_t i = 0; i < splits * g->kv_heads; i++) {
    uint32_t head = i % g->kv_heads, split = i / g->kv_heads;
    mk_instruction *in = test_push(g, test_below(g, g->stateful), MK_OP_ATTENTION);
    in->operands[MK_SLOT_ATTENTION_q] = test_tiles(qkv.buffer, 0, 1, head * group * HEAD_TILES, group * HEAD_TILES);
    in->operands[MK_SLOT_ATTENTION_k] = test_tiles(qkv.buffer, 0, 1, q_tiles + head * HEAD_TILES, HEAD_TILES);
    in->operands[MK_SLOT_ATTENTION_v] =
        test_tiles(qkv.buffer, 0, 1, q_tiles + (g->kv_heads + head) * HEAD_TILES, HEAD_TILES);
    in->operands[MK_SLOT_ATTENTION_kv] = test_tiles(kv, split, 1, head, 1);
    in->operands[MK_SLOT_ATTENTION_table] = test_whole(g, g->table);
    in->operands[MK_SLOT_ATTENTION_out] = test_tiles(parts.buffer, split, 1, head * group * spans, group * spans);
    in->params[MK_PARAM_ATTENTION_scale] = mk_float_param(0.125f);
    in->params[MK_PARAM_ATTENTION_splits] = splits;
    in->params[MK_PARAM_ATTENTION_group] = group;
    in->params[MK_PARAM_ATTENTION_eps] = mk_float_param(norms == 0 ? 1e-5f : 0);
    in->params[MK_PARAM_ATTENTION_window] = window;
    test_hint_signal(g, in, parts.hint);
    test_hint_wait(g, in, qkv.hint);
  }
  stage_combine(g, parts, g->span);
}

/* Splits that products write, at every position, the first one on an SM from `first` on; a combine reads those that its
 * span has. */
static vector push_products(generator *g, uint32_t first) {
  uint32_t splits = 1 + test_below(g, 3);
  vector x = test_any_vector(g), parts = new_splits(g, splits);
  const uint32_t tiles = g->heads * spans_of(g, splits);
  uint16_t weight = test_add_weight(g, tiles * (HEAD_DIM + 2), width_of(g, x.buffer));
  for (uint32_t split = splits; split-- != 0;) {
    uint32_t from = split == 0 ? first : 0;
    mk_instruction *in = test_push(g, from + test_below(g, g->sms - from), MK_OP_LINEAR_PART);
    in->operands[MK_SLOT_LINEAR_PART_x] = test_whole(g, x.buffer);
    in->operands[MK_SLOT_LINEAR_PART_weight] = test_whole(g, weight);
    in->operands[MK_SLOT_LINEAR_PART_out] = test_tiles(parts.buffer, split, 1, 0, tiles);
    test_hint_signal(g, in, parts.hint);
    test_hint_wait(g, in, x.hint);
  }
  return parts;
}

static uint32_t any_span(generator *g) { return test_below(g, 2) == 0 ? g->span : 2 * g->span; }

static void any_stage(generator *g) {
  vector x = test_any_vector(g);
  switch (test_below(g, 7)) {
    case 0:
      stage_glu(g, 0);
      break;
    case 1:
      stage_parts(g, x);
      break;
    case 2:
    case 3:
      stage_attention(g);
      break;
    case 4:
      if (test_slips(g, 8)) { /* parts are attention's */
        stage_combine(g, push_products(g, 0), any_span(g));
        break;
      } /* fall through */
    default:
      stage_add(g, &x, NULL, 0);
      break;
  }
}

/* One LINEAR_ADD of all rows on an SM; residual NONE: the embedding row. Gives the new residual, and the vector in
 * *out. */
static uint16_t push_add(generator *g, uint32_t sm, uint16_t old, vector *out) {
  vector x = test_any_vector(g);
  uint16_t weight = test_add_weight(g, g->hidden, width_of(g, x.buffer));
  mk_instruction *in = test_push(g, sm, MK_OP_LINEAR_ADD);
  *out = new_vector(g, g->hidden, false);
  uint16_t new = test_add_value(g, "residual", MK_DTYPE_F32, MK_STORE_PLAIN, 1, g->hidden, MK_TILE);
  in->operands[MK_SLOT_LINEAR_ADD_x] = test_whole(g, x.buffer);
  in->operands[MK_SLOT_LINEAR_ADD_weight] = test_whole(g, weight);
  in->operands[MK_SLOT_LINEAR_ADD_residual_in] = old == NONE ? test_token_row(g, 0, g->tiles) : test_whole(g, old);
  in->operands[MK_SLOT_LINEAR_ADD_residual_out] = test_whole(g, new);
  in->operands[MK_SLOT_LINEAR_ADD_out] = test_whole(g, out->buffer);
  return new;
}

static mk_instruction *last_of(generator *g, uint32_t sm) { return &g->queues[sm][g->counts[sm] - 1]; }

/* A residual goes from one SM to another, after a counter that a third one signals as well, ahead of time; what the
 * third one knows of the first it knows by a stamp. What the first one has to hear of the others, it mostly does. */
static void push_crossing(generator *g) {
  uint32_t from = test_below(g, g->stateful), to = test_below(g, g->stateful), third = test_below(g, g->stateful);
  uint16_t moved = test_add_counter(g, MK_COUNTER_RELEASE), heard = test_add_counter(g, MK_COUNTER_RELEASE);
  uint16_t read = test_add_counter(g, MK_COUNTER_RELEASE);
  vector out, other;
  uint16_t between = push_add(g, from, NONE, &out);
  test_signal(g, last_of(g, from), moved, 1);
  if (g->heads_end[third] != 0) {
    test_signal(g, &g->queues[third][test_below(g, g->heads_end[third])], moved, 1);
  }
  if (test_below(g, 4) != 0) {
    add_vector(g, out);
    (void)push_add(g, third, NONE, &other);
    last_of(g, third)->operands[MK_SLOT_LINEAR_ADD_x] = test_whole(g, out.buffer);
    last_of(g, third)->operands[MK_SLOT_LINEAR_ADD_weight] = test_whole(g, test_add_weight(g, g->hidden, g->hidden));
    test_signal(g, last_of(g, third), read, 1);
  }
  (void)push_add(g, to, between, &other);
  test_wait(last_of(g, to), moved, g->p->counters[moved].total);
  test_signal(g, last_of(g, to), heard, 1);
  test_push_nexts(g);
  for (uint32_t sm = 0; sm < g->stateful; sm++) {
    if (sm == from ? test_below(g, 8) != 0 : test_below(g, 6) == 0) {
      test_wait(last_of(g, sm), heard, g->p->counters[heard].total);
    }
    if (sm == from ? test_below(g, 8) != 0 : test_below(g, 6) == 0) {
      test_wait(last_of(g, sm), read, g->p->counters[read].total);
    }
  }
}

/* Between heads and `next`s only counters order one epoch before the other: of these, some are signalled by each of the
 * instructions there, by others now and then, and waited for here and there. */
static void push_late(generator *g) {
  uint16_t fences[MAX_FENCES];
  uint32_t count = 1 + test_below(g, MAX_FENCES);
  for (uint32_t i = 0; i < count; i++) {
    fences[i] = test_add_counter(g, test_below(g, 8) == 0 ? MK_COUNTER_RELAXED : MK_COUNTER_RELEASE);
  }
  for (uint32_t stages = 1 + test_below(g, 2); stages != 0; stages--) {
    vector x = test_any_vector(g), row;
    switch (test_below(g, 5)) {
      case 0:
        stage_glu(g, 0);
        break;
      case 1:
        stage_parts(g, x);
        break;
      case 2:
        row = test_push_qkv(g, test_below(g, 2) == 0 ? NULL : &x, g->hidden, 0, 1, 0);
        stage_add(g, NULL, &row, 0);
        break;
      default:
        stage_add(g, &x, NULL, 0);
        break;
    }
  }
  for (uint32_t sm = 0; sm < g->sms; sm++) {
    for (uint32_t i = 0; i < g->counts[sm]; i++) {
      bool late = i >= g->heads_end[sm];
      if (late ? test_below(g, 3) != 0 : test_below(g, 12) == 0) {
        test_signal(g, &g->queues[sm][i], fences[test_below(g, count)], 1);
      }
    }
  }
  test_push_nexts(g);
  for (uint32_t sm = 0; sm < g->sms; sm++) {
    for (uint32_t i = g->heads_end[sm]; i < g->counts[sm]; i++) {
      uint16_t fence = fences[test_below(g, count)];
      uint32_t total = g->p->counters[fence].total;
      if (total != 0 && test_below(g, i + 1 == g->counts[sm] ? 2 : 6) == 0) {
        test_wait(&g->queues[sm][i], fence, test_below(g, 4) != 0 ? total : 1 + test_below(g, total));
      }
    }
  }
}

static void add_shared(generator *g) {
  uint32_t vocab = MK_TILE * (2 + test_below(g, 3)), blocks = g->slots * g->context / g->block;
  g->embedding = test_add_buffer(g, "embedding",
                                 (mk_buffer){.kind = MK_KIND_WEIGHT,
                                             .store = MK_STORE_TILES,
                                             .rows = vocab,
                                             .cols = g->hidden,
                                             .tile_rows = MK_TILE,
                                             .proxy = MK_PROXY_GENERIC | MK_PROXY_ASYNC});
  g->gain = test_add_plain(g, "gain", MK_KIND_WEIGHT, MK_DTYPE_BF16, 1, g->hidden, MK_TILE);
  g->frequencies = test_add_plain(g, "frequencies", MK_KIND_WEIGHT, MK_DTYPE_F32, 1, HEAD_DIM / 2, MK_TILE);
  g->table = test_add_plain(g, "table", MK_KIND_INPUT, MK_DTYPE_U32, g->slots, g->context / g->block, MK_TILE);
  g->plan = test_add_plain(g, "plan", MK_KIND_INPUT, MK_DTYPE_U32, 1, PLAN_STEPS * g->lines * 4, MK_TILE);
  g->ring = test_add_plain(g, "ring", MK_KIND_OUTPUT, MK_DTYPE_U32, 1, PLAN_STEPS * g->lines, MK_TILE);
  g->logits = test_add_value(g, "logits", MK_DTYPE_F32, MK_STORE_PLAIN, 1, vocab, MK_TILE);
  g->p->buffers[g->logits].kind = MK_KIND_OUTPUT;
  g->candidates = test_add_value(g, "candidates", MK_DTYPE_U32, MK_STORE_STAMPED, g->headed, 2, 2);
  uint32_t low = g->lines == 1 && test_below(g, 4) == 0 ? test_below(g, g->context / 2) : 0;
  g->p->ranges = (mk_step_ranges){.position = {low, g->context - 1},
                                  .token = {0, vocab - 1},
                                  .block = {0, blocks - 1},
                                  .batch = {1, g->lines},
                                  .slot = {0, g->slots - 1}};
}

static mk_status finish(generator *g) {
  mk_program *p = g->p;
  for (uint32_t sm = 0; sm < g->sms; sm++) {
    size_t first = p->instruction_count;
    MK_TRY(mk_grow(&p->instructions, &p->instruction_capacity, first + g->counts[sm], sizeof *p->instructions));
    memcpy(&p->instructions[first], g->queues[sm], g->counts[sm] * sizeof *p->instructions);
    p->queues[sm].first = (uint32_t)first;
    p->queues[sm].count = g->counts[sm];
    p->instruction_count += g->counts[sm];
  }
  for (size_t i = 0; i < p->instruction_count; i++) {
    mk_instruction *in = &p->instructions[i];
    in->pages = mk_instruction_pages(p, in);
    in->resident = (uint16_t)(mk_instruction_resident(p, in) / MK_RESIDENT_UNIT);
  }
  for (uint32_t sm = 0; sm < g->sms; sm++) {
    mk_instruction *in = &p->instructions[p->queues[sm].first];
    for (uint32_t i = 0; i < p->queues[sm].count; i++) {
      in[i].flags = mk_fuses(p, i == 0 ? NULL : &in[i - 1], &in[i]) ? MK_FUSED : 0;
    }
  }
  return MK_OK;
}

/* No weights, and no cache. */
static bool streams_nothing(uint32_t opcode) {
  return opcode == MK_OP_COMBINE || opcode == MK_OP_REDUCE_ADD || opcode == MK_OP_OFFSET || opcode == MK_OP_NORM_ADD ||
         opcode == MK_OP_NORM_HEADS || opcode == MK_OP_NORM || opcode == MK_OP_APPEND || opcode == MK_OP_SQUARES ||
         opcode == MK_OP_ADD_NORMED;
}

/* After an attention, whose loader looks at the step state, something streams weights before the boundary. */
static void hold_loaders(generator *g) {
  for (uint32_t sm = 0; sm < g->stateful; sm++) {
    uint32_t at = g->counts[sm];
    while (at != 0 && streams_nothing(g->queues[sm][at - 1].opcode)) {
      at--;
    }
    if (at == 0 || !mk_opcode_loads_state(mk_opcode_lookup(g->queues[sm][at - 1].opcode)) || test_slips(g, 16)) {
      continue;
    }
    vector x = test_any_vector(g);
    mk_instruction *in = test_push(g, sm, MK_OP_LINEAR_PART);
    in->operands[MK_SLOT_LINEAR_PART_x] = test_whole(g, x.buffer);
    in->operands[MK_SLOT_LINEAR_PART_weight] = test_whole(g, test_add_weight(g, MK_TILE, width_of(g, x.buffer)));
    in->operands[MK_SLOT_LINEAR_PART_out] =
        test_whole(g, test_add_value(g, "held", MK_DTYPE_F32, MK_STORE_STAMPED, 1, MK_TILE, MK_TILE));
  }
}

/* Sides and SMs. Where all SMs have to take part in a stage, it takes a tile for each. */
static void choose_shape(generator *g) {
  g->lines = g->recipe.rows == 0 ? 1 : g->recipe.rows;
  g->slots = g->lines > MK_MAX_ROWS ? 1 : g->lines;
  g->sms = g->recipe.small ? 2 + test_below(g, MAX_SMS - 1) : 1 + test_below(g, MAX_SMS);
  bool stateless = g->lines == 1 && g->sms > 2 && test_slips(g, 24);
  g->stateful = g->sms - stateless;
  g->headed = g->stateful > 1 && !g->recipe.sampling && test_slips(g, 16) ? g->stateful - 1 : g->stateful;
  g->heads = g->recipe.small ? 1 + test_below(g, 4) / 3 : 1 + test_below(g, 2);
  g->kv_heads = 1 + test_below(g, g->heads);
  g->tiles = g->recipe.small ? 1 + test_below(g, 4) : g->heads * HEAD_TILES;
  if (!test_slips(g, 6)) {
    g->tiles = g->tiles < g->sms ? g->sms : g->tiles;
  }
  g->hidden =
      g->tiles * MK_TILE - (test_slips(g, 40) ? test_below(g, MK_TILE) & (test_below(g, 4) != 0 ? ~1u : ~0u) : 0);
  bool pieces = g->lines > 1 && g->lines <= MK_MAX_ROWS;
  g->context = pieces ? MK_PIECE_TOKENS + 2 * BLOCK : CONTEXT;
  g->span = pieces ? MK_PIECE_TOKENS : SPAN;
  g->acknowledged = g->residual.buffer = g->residual.counter = NONE;
}

static mk_status generate(generator *g) {
  choose_shape(g);
  mk_machine machine = g->lines > MK_MAX_ROWS ? mk_machine_prompt(g->sms) : mk_machine_latency(g->sms);
  MK_TRY(mk_program_new(&machine, &g->p));
  add_shared(g);
  /* Nobody passes the next token boundary before all have passed this one: all take part in the first or in the last
   * stage. */
  bool planned = g->lines > 1; /* where nothing depends on a split, the stages after one depend on nothing */
  bool early = test_below(g, 2) == 0 && (!planned || g->recipe.bold), careless = test_slips(g, 6);
  vector start = test_push_qkv(g, NULL, g->hidden, 0, 1, 0);
  stage_add(g, NULL, &start, early && !careless ? g->stateful : 0);
  if (planned) {
    stage_attention(g); /* without one there is no plan */
  }
  for (uint32_t stages = test_below(g, g->recipe.small ? 3 : 5); stages != 0; stages--) {
    any_stage(g);
  }
  if (!careless && (!early || g->stateful != g->sms || test_below(g, 2) == 0)) {
    stage_glu(g, early ? g->sms - g->stateful : g->sms);
  }
  if (test_slips(g, 24)) {
    (void)push_combine(g, push_products(g, test_below(g, 2) == 0 ? g->sms - 1 : 0), any_span(g));
  } else if (test_below(g, 2) == 0) { /* nobody needs it: only its place in the queue keeps it within the epoch */
    (void)push_parts(g, test_any_vector(g), 1, g->stateful);
  }
  hold_loaders(g);
  test_push_heads(g);
  memcpy(g->heads_end, g->counts, sizeof g->heads_end);
  if (test_slips(g, planned || g->recipe.sampling ? 24 : 3)) { /* of those the ends of queues are all alike */
    if (test_below(g, 3) == 0) {
      push_crossing(g);
    } else {
      push_late(g);
    }
  } else {
    test_push_nexts(g);
  }
  MK_TRY(g->status);
  return finish(g);
}

mk_status test_generate_recipe(uint64_t seed, const test_recipe *recipe, mk_program **out) {
  generator *g;
  *out = NULL;
  MK_TRY(mk_alloc(1, sizeof *g, &g));
  g->seed = seed * 0x9e3779b97f4a7c15u + 1;
  g->fp8 = seed % 4 == 3;
  g->block = g->fp8 ? 2 * BLOCK : BLOCK;
  g->recipe = *recipe;
  mk_status status = generate(g);
  if (status == MK_OK) {
    *out = g->p;
  } else {
    mk_program_free(g->p);
  }
  mk_free(g);
  return status;
}

mk_status test_generate(uint64_t seed, mk_program **out) {
  return test_generate_recipe(seed, &(test_recipe){.rows = 1}, out);
}
