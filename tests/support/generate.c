/* See generate.h. */
#include "tests/support/generate.h"

#include <stdio.h>
#include <string.h>

enum {
  MAX_SMS = 4,
  MAX_QUEUE = 96,
  MAX_TILES = 8,
  MAX_VECTORS = 16,
  HEAD_DIM = 64,
  HEAD_TILES = HEAD_DIM / MK_TILE,
  CONTEXT = 128,
  BLOCK = 16,
  SPAN = 32,
  NONE = 0xffff
};

typedef struct place { /* an instruction */
  uint32_t sm, at;
} place;

typedef struct chunk { /* consecutive tiles of a stage that one SM computes */
  uint32_t sm, first, count;
} chunk;

typedef struct vector { /* stamped: any instruction may read it; `hint` is a counter of its writers, or NONE */
  uint16_t buffer, hint;
} vector;

typedef struct residual { /* plain: one SM at a time, in order */
  uint16_t buffer;        /* NONE: the embedding row */
  uint16_t counter;
  chunk chunks[MAX_TILES];
  place writers[MAX_TILES];
  uint32_t amounts[MAX_TILES];
  uint32_t count;
  uint32_t owner[MAX_TILES]; /* per tile: the SM that writes it first in an epoch */
} residual;

typedef struct generator {
  mk_program *p;
  mk_status status;
  uint64_t seed;
  uint32_t sms, stateful; /* SMs from `stateful` on have no step state */
  uint32_t hidden, tiles, heads, kv_heads;
  uint32_t names;
  mk_instruction queues[MAX_SMS][MAX_QUEUE];
  uint32_t counts[MAX_SMS];
  vector vectors[MAX_VECTORS];
  uint32_t vector_count;
  residual residual;
  uint16_t acknowledged; /* release counter of all who touch another SM's residual, or NONE */
  bool must_wait[MAX_SMS];
  uint16_t embedding, gain, frequencies, table, prompt, ring, logits, candidates;
} generator;

static uint32_t below(generator *g, uint32_t n) {
  g->seed = g->seed * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)((g->seed >> 33) % n);
}

static uint16_t add_buffer(generator *g, const char *name, mk_buffer buffer) {
  uint16_t index = 0;
  snprintf(buffer.name, sizeof buffer.name, "%s.%u", name, g->names++);
  buffer.scope = MK_SCOPE_GPU;
  buffer.proxy = buffer.proxy == 0 ? MK_PROXY_GENERIC : buffer.proxy;
  buffer.tile_rows = buffer.tile_rows == 0 ? 1 : buffer.tile_rows;
  buffer.tile_cols = buffer.tile_cols == 0 ? MK_TILE : buffer.tile_cols;
  mk_status status = mk_program_add_buffer(g->p, &buffer, &index);
  g->status = g->status == MK_OK ? status : g->status;
  return index;
}

static uint16_t add_plain(generator *g, const char *name, mk_buffer_kind kind, mk_dtype dtype, uint32_t cols) {
  return add_buffer(g, name,
                    (mk_buffer){.kind = (uint8_t)kind,
                                .dtype = (uint8_t)dtype,
                                .rows = 1,
                                .cols = cols,
                                .proxy = kind == MK_KIND_INPUT ? MK_PROXY_GENERIC | MK_PROXY_ASYNC : MK_PROXY_GENERIC});
}

static uint16_t add_stamped(generator *g, const char *name, mk_dtype dtype, uint32_t rows, uint32_t cols,
                            uint32_t tile) {
  return add_buffer(g, name,
                    (mk_buffer){.kind = MK_KIND_ACTIVATION,
                                .dtype = (uint8_t)dtype,
                                .store = MK_STORE_STAMPED,
                                .rows = rows,
                                .cols = cols,
                                .tile_cols = tile});
}

static uint16_t add_weight(generator *g, uint32_t rows, uint32_t cols) {
  for (size_t b = 0; b < g->p->buffer_count; b++) {
    const mk_buffer *buffer = &g->p->buffers[b];
    if (b != g->embedding && buffer->store == MK_STORE_TILES && buffer->rows == rows && buffer->cols == cols) {
      return (uint16_t)b;
    }
  }
  return add_buffer(g, "weight",
                    (mk_buffer){.kind = MK_KIND_WEIGHT,
                                .store = MK_STORE_TILES,
                                .rows = rows,
                                .cols = cols,
                                .tile_rows = MK_TILE,
                                .proxy = MK_PROXY_GENERIC | MK_PROXY_ASYNC});
}

static uint16_t add_counter(generator *g, mk_counter_kind kind) {
  char name[16];
  uint16_t index = 0;
  snprintf(name, sizeof name, "c%u", g->names++);
  mk_status status = mk_program_add_counter(g->p, name, kind, &index);
  g->status = g->status == MK_OK ? status : g->status;
  return index;
}

static mk_operand at(uint16_t buffer, uint32_t row, uint32_t rows, uint32_t col, uint32_t cols) {
  return (mk_operand){
      .buffer = buffer, .row = (uint16_t)row, .rows = (uint16_t)rows, .col = (uint16_t)col, .cols = (uint16_t)cols};
}

static mk_operand whole(const generator *g, uint16_t buffer) {
  const mk_buffer *b = &g->p->buffers[buffer];
  return at(buffer, 0, mk_buffer_grid_rows(b), 0, mk_buffer_grid_cols(b));
}

static mk_operand token_row(const generator *g, uint32_t col, uint32_t cols) {
  mk_operand o = at(g->embedding, 0, mk_buffer_grid_rows(&g->p->buffers[g->embedding]), col, cols);
  o.flags = MK_OPERAND_TOKEN_ROW;
  return o;
}

static mk_instruction *push(generator *g, uint32_t sm, mk_opcode opcode) {
  mk_instruction *in = &g->queues[sm][g->counts[sm]++];
  *in = (mk_instruction){
      .opcode = (uint8_t)opcode, .version = MK_INSTRUCTION_VERSION, .uid = ++g->names, .layer = MK_NO_LAYER};
  return in;
}

static void signal_counter(generator *g, mk_instruction *in, uint16_t counter, uint32_t amount) {
  in->signals[in->signal_count++] = (mk_signal){.counter = counter, .amount = (uint16_t)amount};
  g->p->counters[counter].total += amount;
}

static void wait_for(mk_instruction *in, uint16_t counter, uint32_t threshold) {
  for (uint32_t w = 0; w < in->wait_count; w++) {
    if (in->waits[w].counter == counter) {
      uint32_t have = in->waits[w].threshold;
      in->waits[w].threshold = (uint16_t)(have > threshold ? have : threshold);
      return;
    }
  }
  in->waits[in->wait_count++] = (mk_wait){.counter = counter, .threshold = (uint16_t)threshold};
}

/* Splits `tiles` into chunks of whole units on random SMs below `sms`, the last `spread` of which get at least one. */
static uint32_t deal(generator *g, uint32_t tiles, uint32_t unit, uint32_t sms, uint32_t spread, chunk *chunks) {
  uint32_t count = 0;
  for (uint32_t t = 0; t < tiles; t += unit) {
    if (count == 0 || t / unit <= spread || below(g, 2) == 0) {
      uint32_t sm = t / unit < spread ? sms - 1 - t / unit : below(g, sms);
      chunks[count++] = (chunk){.sm = sm, .first = t};
    }
    chunks[count - 1].count += unit;
  }
  return count;
}

/* Writers of a new stamped value may tell their readers through a counter of either kind, or not at all. */
static uint16_t new_hint(generator *g) {
  uint32_t kind = below(g, 4);
  return kind == 0 ? NONE : add_counter(g, kind == 1 ? MK_COUNTER_RELEASE : MK_COUNTER_RELAXED);
}

static void hint_signal(generator *g, mk_instruction *in, uint16_t hint) {
  if (hint != NONE) {
    signal_counter(g, in, hint, 1 + below(g, 3));
  }
}

static void hint_wait(generator *g, mk_instruction *in, uint16_t hint) {
  if (hint != NONE && below(g, 4) != 0) {
    uint32_t total = g->p->counters[hint].total;
    wait_for(in, hint, below(g, 2) == 0 ? total : 1 + below(g, total));
  }
}

static vector new_vector(generator *g, bool hinted) {
  return (vector){.buffer = add_stamped(g, "v", MK_DTYPE_BF16, 1, g->hidden, MK_TILE),
                  .hint = hinted ? new_hint(g) : NONE};
}

static vector any_vector(generator *g) {
  return below(g, 2) == 0 ? g->vectors[g->vector_count - 1] : g->vectors[below(g, g->vector_count)];
}

static void add_vector(generator *g, vector v) { g->vectors[g->vector_count++] = v; }

static void set_norm(const generator *g, mk_instruction *in, uint32_t eps, uint32_t width) {
  in->params[eps] = mk_float_param(1e-3f);
  in->params[width] = g->hidden;
}

/* x = NULL: the embedding row. */
static vector push_qkv(generator *g, const vector *x, uint32_t rows, uint32_t rope_tiles, uint32_t unit) {
  chunk chunks[3 * MAX_TILES];
  vector out = {.buffer = add_stamped(g, "q", MK_DTYPE_F32, 1, rows, MK_TILE), .hint = new_hint(g)};
  uint16_t weight = add_weight(g, rows, g->hidden);
  uint32_t count = deal(g, rows / MK_TILE, unit, g->stateful, 0, chunks);
  for (uint32_t i = 0; i < count; i++) {
    mk_instruction *in = push(g, chunks[i].sm, MK_OP_QKV);
    in->operands[MK_SLOT_QKV_x] = x == NULL ? token_row(g, 0, g->tiles) : whole(g, x->buffer);
    in->operands[MK_SLOT_QKV_gain] = whole(g, g->gain);
    in->operands[MK_SLOT_QKV_weight] = at(weight, chunks[i].first, chunks[i].count, 0, g->tiles);
    in->operands[MK_SLOT_QKV_inv_freq] = whole(g, g->frequencies);
    in->operands[MK_SLOT_QKV_out] = at(out.buffer, 0, 1, chunks[i].first, chunks[i].count);
    set_norm(g, in, MK_PARAM_QKV_eps, MK_PARAM_QKV_width);
    in->params[MK_PARAM_QKV_rope_tiles] = rope_tiles;
    in->params[MK_PARAM_QKV_head_dim] = HEAD_DIM;
    hint_signal(g, in, out.hint);
    hint_wait(g, in, x == NULL ? NONE : x->hint);
  }
  return out;
}

static void stage_glu(generator *g, uint32_t spread) {
  chunk chunks[MAX_TILES];
  vector x = spread != 0 ? g->vectors[g->vector_count - 1] : any_vector(g), out = new_vector(g, true);
  uint16_t weight = add_weight(g, 2 * g->hidden, g->hidden);
  uint32_t count = deal(g, g->tiles, 1, g->sms, spread, chunks);
  for (uint32_t i = 0; i < count; i++) {
    mk_instruction *in = push(g, chunks[i].sm, MK_OP_GLU);
    in->operands[MK_SLOT_GLU_x] = whole(g, x.buffer);
    in->operands[MK_SLOT_GLU_gain] = whole(g, g->gain);
    in->operands[MK_SLOT_GLU_weight] = at(weight, 2 * chunks[i].first, 2 * chunks[i].count, 0, g->tiles);
    in->operands[MK_SLOT_GLU_out] = at(out.buffer, 0, 1, chunks[i].first, chunks[i].count);
    set_norm(g, in, MK_PARAM_GLU_eps, MK_PARAM_GLU_width);
    hint_signal(g, in, out.hint);
    hint_wait(g, in, x.hint);
  }
  add_vector(g, out);
}

/* The chunk's instruction reads tiles of the residual that other SMs have written: release counters order it after them, and it
 * tells that it is done. */
static void order_residual(generator *g, residual *r, mk_instruction *in, const chunk *c) {
  bool foreign = false;
  uint32_t threshold = 0, total = 0;
  bool one_queue = true;
  for (uint32_t i = 0; i < r->count; i++) {
    const chunk *w = &r->chunks[i];
    bool meets = w->first < c->first + c->count && c->first < w->first + w->count;
    total += r->amounts[i];
    threshold = meets ? total : threshold;
    foreign |= meets && w->sm != c->sm;
    one_queue &= w->sm == r->chunks[0].sm;
  }
  if (foreign && r->counter == NONE) {
    r->counter = add_counter(g, MK_COUNTER_RELEASE);
    for (uint32_t i = 0; i < r->count; i++) {
      signal_counter(g, &g->queues[r->writers[i].sm][r->writers[i].at], r->counter, r->amounts[i]);
    }
  }
  if (foreign) { /* signals of one queue come in order: the later ones need not be waited for */
    wait_for(in, r->counter, one_queue ? threshold : g->p->counters[r->counter].total);
  }
}

static void acknowledge(generator *g, const residual *r, mk_instruction *in, const chunk *c) {
  bool foreign = false;
  for (uint32_t t = c->first; t < c->first + c->count; t++) {
    if (r->owner[t] != c->sm) {
      foreign = true;
      g->must_wait[r->owner[t]] = true;
    }
  }
  if (foreign) {
    g->acknowledged = g->acknowledged == NONE ? add_counter(g, MK_COUNTER_RELEASE) : g->acknowledged;
    signal_counter(g, in, g->acknowledged, 1);
  }
}

/* Chunks of LINEAR_ADD of x, or of REDUCE_ADD of parts: the residual moves on. */
static void stage_add(generator *g, const vector *x, const vector *parts, uint32_t spread) {
  residual old = g->residual, new = {.counter = NONE};
  bool from_row = old.buffer == NONE || below(g, 4) == 0, in_place = !from_row && below(g, 2) == 0;
  vector out = new_vector(g, false);
  uint16_t weight = x == NULL ? 0 : add_weight(g, g->hidden, g->hidden);
  new.buffer = in_place ? old.buffer : add_plain(g, "residual", MK_KIND_ACTIVATION, MK_DTYPE_F32, g->hidden);
  new.count = deal(g, g->tiles, 1, g->stateful, spread, new.chunks);
  for (uint32_t i = 0; i < new.count; i++) {
    const chunk *c = &new.chunks[i];
    mk_instruction *in = push(g, c->sm, x != NULL ? MK_OP_LINEAR_ADD : MK_OP_REDUCE_ADD);
    uint32_t slot = x != NULL ? MK_SLOT_LINEAR_ADD_residual_in : MK_SLOT_REDUCE_ADD_residual_in;
    mk_operand where = at(new.buffer, 0, 1, c->first, c->count);
    if (x != NULL) {
      in->operands[MK_SLOT_LINEAR_ADD_x] = whole(g, x->buffer);
      in->operands[MK_SLOT_LINEAR_ADD_weight] = at(weight, c->first, c->count, 0, g->tiles);
      hint_wait(g, in, x->hint);
    } else {
      in->operands[MK_SLOT_REDUCE_ADD_parts] =
          at(parts->buffer, 0, g->p->buffers[parts->buffer].rows, c->first, c->count);
      hint_wait(g, in, parts->hint);
    }
    in->operands[slot] = from_row ? token_row(g, c->first, c->count) : at(old.buffer, 0, 1, c->first, c->count);
    in->operands[slot + 1] = where;
    in->operands[slot + 2] = at(out.buffer, 0, 1, c->first, c->count);
    new.writers[i] = (place){.sm = c->sm, .at = g->counts[c->sm] - 1};
    new.amounts[i] = 1 + below(g, 2);
    for (uint32_t t = c->first; t < c->first + c->count; t++) {
      new.owner[t] = in_place ? old.owner[t] : c->sm;
    }
    if (!from_row) {
      order_residual(g, &old, in, c);
      acknowledge(g, &old, in, c);
    }
  }
  g->residual = new;
  add_vector(g, out);
}

/* Rows of W x, K split over `count` parts, on SMs below `sms`. */
static vector push_parts(generator *g, uint32_t count, uint32_t sms) {
  vector x = any_vector(g);
  vector parts = {.buffer = add_stamped(g, "parts", MK_DTYPE_F32, count, g->hidden, MK_TILE), .hint = new_hint(g)};
  uint16_t weight = add_weight(g, g->hidden, g->hidden);
  for (uint32_t part = 0, first = 0; part < count; part++) {
    uint32_t end = (part + 1) * g->tiles / count;
    chunk chunks[MAX_TILES];
    uint32_t n = deal(g, g->tiles, 1, sms, 0, chunks);
    for (uint32_t i = 0; i < n; i++) {
      mk_instruction *in = push(g, chunks[i].sm, MK_OP_LINEAR_PART);
      in->operands[MK_SLOT_LINEAR_PART_x] = at(x.buffer, 0, 1, first, end - first);
      in->operands[MK_SLOT_LINEAR_PART_weight] = at(weight, chunks[i].first, chunks[i].count, first, end - first);
      in->operands[MK_SLOT_LINEAR_PART_out] = at(parts.buffer, part, 1, chunks[i].first, chunks[i].count);
      hint_signal(g, in, parts.hint);
      hint_wait(g, in, x.hint);
    }
    first = end;
  }
  return parts;
}

static void stage_parts(generator *g) {
  vector parts = push_parts(g, 1 + below(g, 3), g->sms);
  stage_add(g, NULL, &parts, 0);
}

static void stage_attention(generator *g) {
  uint32_t splits = 1 + below(g, 3), group = g->heads / g->kv_heads, q_tiles = g->heads * HEAD_TILES;
  vector x = any_vector(g);
  vector qkv =
      push_qkv(g, &x, (g->heads + 2 * g->kv_heads) * HEAD_DIM, (g->heads + g->kv_heads) * HEAD_TILES, 1 + below(g, 2));
  vector parts = {.buffer = add_stamped(g, "splits", MK_DTYPE_F32, splits, g->heads * (HEAD_DIM + 2), HEAD_DIM + 2),
                  .hint = new_hint(g)};
  vector out = new_vector(g, true);
  uint16_t kv = add_buffer(g, "kv",
                           (mk_buffer){.kind = MK_KIND_KV,
                                       .store = MK_STORE_BLOCKS,
                                       .proxy = MK_PROXY_GENERIC | MK_PROXY_ASYNC,
                                       .rows = splits,
                                       .cols = g->kv_heads,
                                       .tile_cols = 1,
                                       .head_dim = HEAD_DIM,
                                       .block_tokens = BLOCK,
                                       .span_tokens = SPAN,
                                       .blocks = CONTEXT / BLOCK});
  for (uint32_t i = 0; i < splits * g->kv_heads; i++) {
    uint32_t head = i % g->kv_heads, split = i / g->kv_heads;
    mk_instruction *in = push(g, below(g, g->stateful), MK_OP_ATTENTION);
    in->operands[MK_SLOT_ATTENTION_q] = at(qkv.buffer, 0, 1, head * group * HEAD_TILES, group * HEAD_TILES);
    in->operands[MK_SLOT_ATTENTION_k] = at(qkv.buffer, 0, 1, q_tiles + head * HEAD_TILES, HEAD_TILES);
    in->operands[MK_SLOT_ATTENTION_v] = at(qkv.buffer, 0, 1, q_tiles + (g->kv_heads + head) * HEAD_TILES, HEAD_TILES);
    in->operands[MK_SLOT_ATTENTION_kv] = at(kv, split, 1, head, 1);
    in->operands[MK_SLOT_ATTENTION_table] = whole(g, g->table);
    in->operands[MK_SLOT_ATTENTION_out] = at(parts.buffer, split, 1, head * group, group);
    in->params[MK_PARAM_ATTENTION_scale] = mk_float_param(0.125f);
    in->params[MK_PARAM_ATTENTION_splits] = splits;
    in->params[MK_PARAM_ATTENTION_group] = group;
    hint_signal(g, in, parts.hint);
    hint_wait(g, in, qkv.hint);
  }
  chunk chunks[MAX_TILES];
  uint32_t count = deal(g, g->heads, 1, g->stateful, 0, chunks);
  for (uint32_t i = 0; i < count; i++) {
    mk_instruction *in = push(g, chunks[i].sm, MK_OP_COMBINE);
    in->operands[MK_SLOT_COMBINE_parts] = at(parts.buffer, 0, splits, chunks[i].first, chunks[i].count);
    in->operands[MK_SLOT_COMBINE_out] =
        at(out.buffer, 0, 1, chunks[i].first * HEAD_TILES, chunks[i].count * HEAD_TILES);
    in->params[MK_PARAM_COMBINE_span] = SPAN;
    hint_signal(g, in, out.hint);
    hint_wait(g, in, parts.hint);
  }
  add_vector(g, out);
}

static void boundary(generator *g) {
  uint32_t tiles = mk_buffer_grid_cols(&g->p->buffers[g->logits]);
  vector x = g->vectors[g->vector_count - 1];
  uint16_t hint = new_hint(g);
  for (uint32_t sm = 0, first = 0; sm < g->stateful; sm++) {
    uint32_t end = sm + 1 == g->stateful ? tiles : first + below(g, tiles - first + 1);
    mk_instruction *in = push(g, sm, MK_OP_HEAD);
    in->operands[MK_SLOT_HEAD_x] = whole(g, x.buffer);
    in->operands[MK_SLOT_HEAD_gain] = whole(g, g->gain);
    in->operands[MK_SLOT_HEAD_weight] = at(g->embedding, first, end - first, 0, g->tiles);
    in->operands[MK_SLOT_HEAD_logits] = at(g->logits, 0, 1, first, end - first);
    if (end == first) {
      in->operands[MK_SLOT_HEAD_weight] = at(g->embedding, 0, 0, 0, 0);
      in->operands[MK_SLOT_HEAD_logits] = at(g->logits, 0, 0, 0, 0);
    }
    in->operands[MK_SLOT_HEAD_candidate] = at(g->candidates, sm, 1, 0, 1);
    set_norm(g, in, MK_PARAM_HEAD_eps, MK_PARAM_HEAD_width);
    in->params[MK_PARAM_HEAD_vocab] = tiles * MK_TILE;
    hint_signal(g, in, hint);
    hint_wait(g, in, x.hint);
    first = end;
  }
  for (uint32_t sm = 0; sm < g->stateful; sm++) {
    mk_instruction *head = &g->queues[sm][g->counts[sm] - 1], *in = push(g, sm, MK_OP_NEXT);
    in->operands[MK_SLOT_NEXT_candidates] = whole(g, g->candidates);
    in->operands[MK_SLOT_NEXT_prompt] = whole(g, g->prompt);
    in->operands[MK_SLOT_NEXT_ring] = sm == 0 ? whole(g, g->ring) : at(g->ring, 0, 0, 0, 0);
    hint_wait(g, in, hint);
    hint_wait(g, in, any_vector(g).hint); /* of long ago: whoever signals next must come after that */
    if (g->must_wait[sm]) {
      wait_for(below(g, 2) == 0 ? head : in, g->acknowledged, g->p->counters[g->acknowledged].total);
    }
  }
}

static void add_shared(generator *g) {
  uint32_t vocab = MK_TILE * (2 + below(g, 3));
  g->embedding = add_buffer(g, "embedding",
                            (mk_buffer){.kind = MK_KIND_WEIGHT,
                                        .store = MK_STORE_TILES,
                                        .rows = vocab,
                                        .cols = g->hidden,
                                        .tile_rows = MK_TILE,
                                        .proxy = MK_PROXY_GENERIC | MK_PROXY_ASYNC});
  g->gain = add_plain(g, "gain", MK_KIND_WEIGHT, MK_DTYPE_BF16, g->hidden);
  g->frequencies = add_plain(g, "frequencies", MK_KIND_WEIGHT, MK_DTYPE_F32, HEAD_DIM / 2);
  g->table = add_plain(g, "table", MK_KIND_INPUT, MK_DTYPE_U32, CONTEXT / BLOCK);
  g->prompt = add_plain(g, "prompt", MK_KIND_INPUT, MK_DTYPE_U32, CONTEXT);
  g->ring = add_plain(g, "ring", MK_KIND_OUTPUT, MK_DTYPE_U32, CONTEXT + 1);
  g->logits = add_plain(g, "logits", MK_KIND_OUTPUT, MK_DTYPE_F32, vocab);
  g->candidates = add_stamped(g, "candidates", MK_DTYPE_U32, g->stateful, 2, 2);
  uint32_t low = below(g, 4) == 0 ? below(g, CONTEXT / 2) : 0;
  g->p->ranges = (mk_step_ranges){
      .position = {low, CONTEXT - 1}, .token = {0, vocab - 1}, .block = {0, CONTEXT / BLOCK - 1}, .batch = {1, 1}};
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
  return MK_OK;
}

static mk_status generate(generator *g) {
  g->sms = 1 + below(g, MAX_SMS);
  g->stateful = g->sms > 2 && below(g, 3) == 0 ? g->sms - 1 : g->sms;
  g->heads = 1 + below(g, 2);
  g->kv_heads = 1 + below(g, g->heads);
  g->hidden = g->heads * HEAD_DIM;
  g->tiles = g->hidden / MK_TILE;
  g->acknowledged = g->residual.buffer = g->residual.counter = NONE;
  mk_machine machine = mk_machine_latency(g->sms);
  MK_TRY(mk_program_new(&machine, &g->p));
  add_shared(g);
  /* Nobody passes the next token boundary before all have passed this one: all take part in the first or in the last stage. */
  bool early = below(g, 2) == 0;
  vector start = push_qkv(g, NULL, g->hidden, 0, 1);
  stage_add(g, NULL, &start, early ? g->stateful : 0);
  for (uint32_t stages = 1 + below(g, 4); stages != 0; stages--) {
    vector x = any_vector(g);
    switch (below(g, 5)) {
      case 0:
        stage_glu(g, 0);
        break;
      case 1:
        stage_parts(g);
        break;
      case 2:
        stage_attention(g);
        break;
      default:
        stage_add(g, &x, NULL, 0);
        break;
    }
  }
  if (!early || g->stateful != g->sms || below(g, 2) == 0) {
    stage_glu(g, early ? g->sms - g->stateful : g->sms);
  }
  if (below(g, 2) == 0) { /* nobody needs it: only its place in the queue keeps it within the epoch */
    (void)push_parts(g, 1, g->stateful);
  }
  boundary(g);
  MK_TRY(g->status);
  return finish(g);
}

mk_status test_generate(uint64_t seed, mk_program **out) {
  generator *g;
  *out = NULL;
  MK_TRY(mk_alloc(1, sizeof *g, &g));
  g->seed = seed * 0x9e3779b97f4a7c15u + 1;
  mk_status status = generate(g);
  if (status == MK_OK) {
    *out = g->p;
  } else {
    mk_program_free(g->p);
  }
  mk_free(g);
  return status;
}
