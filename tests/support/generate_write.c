/* Buffers, counters and instructions of a random program. See generate_internal.h. */
#include <stdio.h>

#include "tests/support/generate_internal.h"

uint32_t test_below(generator *g, uint32_t n) {
  g->seed = g->seed * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)((g->seed >> 33) % n);
}

bool test_slips(generator *g, uint32_t n) { return g->recipe.bold && test_below(g, n) == 0; }

uint16_t test_add_buffer(generator *g, const char *name, mk_buffer buffer) {
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

uint16_t test_add_value(generator *g, const char *name, mk_dtype dtype, mk_store store, uint32_t vectors, uint32_t cols,
                        uint32_t tile) {
  return test_add_buffer(g, name,
                         (mk_buffer){.kind = MK_KIND_ACTIVATION,
                                     .dtype = (uint8_t)dtype,
                                     .store = (uint8_t)store,
                                     .rows = vectors * g->lines,
                                     .cols = cols,
                                     .tile_rows = g->lines,
                                     .tile_cols = tile});
}

uint16_t test_add_plain(generator *g, const char *name, mk_buffer_kind kind, mk_dtype dtype, uint32_t rows,
                        uint32_t cols, uint32_t tile) {
  return test_add_buffer(
      g, name,
      (mk_buffer){.kind = (uint8_t)kind,
                  .dtype = (uint8_t)dtype,
                  .rows = rows,
                  .cols = cols,
                  .tile_cols = tile,
                  .proxy = kind == MK_KIND_INPUT ? MK_PROXY_GENERIC | MK_PROXY_ASYNC : MK_PROXY_GENERIC});
}

uint16_t test_add_cache(generator *g, uint32_t splits) {
  return test_add_buffer(g, "kv",
                         (mk_buffer){.kind = MK_KIND_KV,
                                     .dtype = g->fp8 ? MK_DTYPE_E4M3 : MK_DTYPE_BF16,
                                     .store = MK_STORE_BLOCKS,
                                     .scale = g->fp8 ? MK_SCALE_BF16 : MK_SCALE_NONE,
                                     .scale_cols = g->fp8 ? HEAD_DIM : 0,
                                     .proxy = MK_PROXY_GENERIC | MK_PROXY_ASYNC,
                                     .rows = splits,
                                     .cols = g->kv_heads,
                                     .tile_cols = 1,
                                     .head_dim = HEAD_DIM,
                                     .block_tokens = g->block,
                                     .span_tokens = g->span,
                                     .blocks = g->slots * g->context / g->block});
}

uint16_t test_add_weight(generator *g, uint32_t rows, uint32_t cols) {
  for (size_t b = 0; b < g->p->buffer_count; b++) {
    const mk_buffer *buffer = &g->p->buffers[b];
    if (b != g->embedding && buffer->store == MK_STORE_TILES && buffer->rows == rows && buffer->cols == cols) {
      return (uint16_t)b;
    }
  }
  return test_add_buffer(g, "weight",
                         (mk_buffer){.kind = MK_KIND_WEIGHT,
                                     .store = MK_STORE_TILES,
                                     .rows = rows,
                                     .cols = cols,
                                     .tile_rows = MK_TILE,
                                     .proxy = MK_PROXY_GENERIC | MK_PROXY_ASYNC});
}

uint16_t test_add_counter(generator *g, mk_counter_kind kind) {
  char name[16];
  uint16_t index = 0;
  snprintf(name, sizeof name, "c%u", g->names++);
  mk_status status = mk_program_add_counter(g->p, name, kind, &index);
  g->status = g->status == MK_OK ? status : g->status;
  return index;
}

mk_operand test_tiles(uint16_t buffer, uint32_t row, uint32_t rows, uint32_t col, uint32_t cols) {
  return (mk_operand){
      .buffer = buffer, .row = (uint16_t)row, .rows = (uint16_t)rows, .col = (uint16_t)col, .cols = (uint16_t)cols};
}

mk_operand test_whole(const generator *g, uint16_t buffer) {
  const mk_buffer *b = &g->p->buffers[buffer];
  return test_tiles(buffer, 0, mk_buffer_grid_rows(b), 0, mk_buffer_grid_cols(b));
}

mk_operand test_token_row(const generator *g, uint32_t col, uint32_t cols) {
  mk_operand o = test_tiles(g->embedding, 0, mk_buffer_grid_rows(&g->p->buffers[g->embedding]), col, cols);
  o.flags = MK_OPERAND_TOKEN_ROW;
  return o;
}

mk_instruction *test_push(generator *g, uint32_t sm, mk_opcode opcode) {
  mk_instruction *in = &g->queues[sm][g->counts[sm]++];
  *in = (mk_instruction){
      .opcode = (uint8_t)opcode, .version = MK_INSTRUCTION_VERSION, .uid = ++g->names, .layer = MK_NO_LAYER};
  return in;
}

void test_signal(generator *g, mk_instruction *in, uint16_t counter, uint32_t amount) {
  if (in->signal_count < MK_MAX_SIGNALS) {
    in->signals[in->signal_count++] = (mk_signal){.counter = counter, .amount = (uint16_t)amount};
    g->p->counters[counter].total += amount;
  }
}

void test_wait(mk_instruction *in, uint16_t counter, uint32_t threshold) {
  for (uint32_t w = 0; w < in->wait_count; w++) {
    if (in->waits[w].counter == counter) {
      uint32_t have = in->waits[w].threshold;
      in->waits[w].threshold = (uint16_t)(have > threshold ? have : threshold);
      return;
    }
  }
  if (threshold != 0 && in->wait_count < MK_MAX_WAITS) {
    in->waits[in->wait_count++] = (mk_wait){.counter = counter, .threshold = (uint16_t)threshold};
  }
}

uint16_t test_new_hint(generator *g) {
  uint32_t kind = test_below(g, 4);
  kind = kind == 1 && g->lines > 1 ? 2 : kind; /* steps of several rows have no release counters */
  return kind == 0 ? NONE : test_add_counter(g, kind == 1 ? MK_COUNTER_RELEASE : MK_COUNTER_RELAXED);
}

void test_hint_signal(generator *g, mk_instruction *in, uint16_t hint) {
  if (hint != NONE) {
    test_signal(g, in, hint, 1 + test_below(g, 3));
  }
}

void test_hint_wait(generator *g, mk_instruction *in, uint16_t hint) {
  uint32_t total = hint != NONE ? g->p->counters[hint].total : 0; /* 0: its writers had no room for another signal */
  if (hint != NONE && test_below(g, 4) != 0 && total != 0) {
    test_wait(in, hint, test_below(g, 2) == 0 ? total : 1 + test_below(g, total));
  }
}

void test_set_norm(const generator *g, mk_instruction *in, uint32_t eps, uint32_t width) {
  in->params[eps] = mk_float_param(1e-3f);
  in->params[width] = g->hidden;
}

vector test_any_vector(generator *g) {
  return test_below(g, 2) == 0 ? g->vectors[g->vector_count - 1] : g->vectors[test_below(g, g->vector_count)];
}
