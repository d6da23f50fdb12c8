/* The buffer plan: every buffer of a Llama program, and who may touch it. See lower.h. */
#include <stdio.h>
#include <string.h>

#include "scheduler/lower_internal.h"
#include "vm/program/attend_list.h"
#include "vm/program/strips.h"

static uint16_t rank_of(const mk_program *program, bool dealt, bool at_home) {
  return program->machine.ranks == 1 || at_home ? 0 : dealt ? MK_RANK_DEALT : MK_RANK_EACH;
}

mk_status mk_add_vector(mk_program *program, const char *name, mk_vector vector, uint16_t *index) {
  uint32_t lines = vector.lines == 0 ? 1 : vector.lines;
  mk_buffer buffer = {.kind = (uint8_t)vector.kind,
                      .dtype = (uint8_t)vector.dtype,
                      .store = (uint8_t)vector.store,
                      .proxy = (uint8_t)(MK_PROXY_GENERIC | vector.extra_proxy),
                      .rank = rank_of(program, vector.dealt, vector.at_home),
                      .rows = (vector.rows == 0 ? 1 : vector.rows) * lines,
                      .cols = vector.cols,
                      .tile_rows = vector.by_tiles ? mk_line_tile(lines) : lines,
                      .tile_cols = vector.tile};
  buffer.scope = (uint8_t)(vector.scope != 0                       ? vector.scope
                           : mk_buffer_is_pushed(program, &buffer) ? MK_SCOPE_SYS
                                                                   : MK_SCOPE_GPU);
  snprintf(buffer.name, sizeof buffer.name, "%s", name);
  return mk_program_add_buffer(program, &buffer, index);
}

/* The name of a value without the "layers.N." at its beginning, if it has one. */
static const char *name_in_layer(const char *name) {
  const char *first = strchr(name, '.'), *second = first == NULL ? NULL : strchr(first + 1, '.');
  return strncmp(name, "layers.", 7) == 0 && second != NULL ? second + 1 : name;
}

mk_status mk_add_value(mk_lowering *lowering, const char *name, mk_vector vector, uint16_t *index) {
  mk_program *program = lowering->program;
  if (!lowering->reuses) {
    return mk_add_vector(program, name, vector, index);
  }
  const int found = mk_program_find_buffer(program, name_in_layer(name));
  if (found < 0) {
    return mk_add_vector(program, name_in_layer(name), vector, index);
  }
  const mk_buffer *b = &program->buffers[found];
  if (b->cols != vector.cols || b->tile_cols != vector.tile || b->dtype != vector.dtype ||
      b->rows != (vector.rows == 0 ? 1 : vector.rows) * vector.lines) { /* layers differ: it has one of its own */
    return mk_add_vector(program, name, vector, index);
  }
  *index = (uint16_t)found;
  return MK_OK;
}

void mk_set_form(const mk_form *form, mk_buffer *buffer) {
  static const uint8_t dtypes[] = {[MK_CODES_NONE] = MK_DTYPE_BF16,
                                   [MK_CODES_E4M3] = MK_DTYPE_E4M3,
                                   [MK_CODES_INT8] = MK_DTYPE_I8,
                                   [MK_CODES_INT4] = MK_DTYPE_I4};
  static const uint8_t scales[] = {
      [MK_TENSOR_BF16] = MK_SCALE_BF16, [MK_TENSOR_F16] = MK_SCALE_F16, [MK_TENSOR_F32] = MK_SCALE_F32};
  const bool quantised = form->codes != MK_CODES_NONE;
  buffer->dtype = dtypes[form->codes];
  buffer->scale = quantised ? scales[form->scale] : MK_SCALE_NONE;
  buffer->scale_cols = quantised ? (uint8_t)form->scale_cols : 0;
  buffer->zeros = form->zeros;
}

static mk_status declare_weight(mk_lowering *lowering, size_t index) {
  const mk_weight *weight = &lowering->graph->weights[index];
  uint16_t *buffer_index = &lowering->weights[index];
  if (mk_pack_is_vector(weight->pack)) {
    mk_dtype dtype = mk_pack_has_frequencies(weight->pack) ? MK_DTYPE_F32 : MK_DTYPE_BF16;
    return mk_add_vector(
        lowering->program, weight->name,
        (mk_vector){.kind = MK_KIND_WEIGHT, .dtype = dtype, .store = MK_STORE_PLAIN, .cols = weight->cols, .tile = 16},
        buffer_index);
  }
  mk_buffer buffer = {.kind = MK_KIND_WEIGHT,
                      .dtype = MK_DTYPE_BF16,
                      .store = MK_STORE_TILES,
                      .scope = MK_SCOPE_GPU,
                      .proxy = MK_PROXY_GENERIC | MK_PROXY_ASYNC,
                      .rank = rank_of(lowering->program, true, false),
                      .rows = weight->rows,
                      .cols = weight->cols,
                      .tile_rows = MK_TILE,
                      .tile_cols = MK_TILE};
  mk_set_form(&weight->form, &buffer);
  snprintf(buffer.name, sizeof buffer.name, "%s", weight->name);
  return mk_program_add_buffer(lowering->program, &buffer, buffer_index);
}

/* What the host gives and takes with every step: the plan, and what every row chose. With one row a launch may be as
 * long as the whole context. */
static mk_status declare_tokens(mk_lowering *lowering) {
  mk_program *program = lowering->program;
  uint32_t rows = lowering->lines * (lowering->lines > 1 ? MK_PLAN_STEPS : lowering->max_seq);
  MK_TRY(mk_add_vector(program, "plan",
                       (mk_vector){.kind = MK_KIND_INPUT,
                                   .dtype = MK_DTYPE_U32,
                                   .store = MK_STORE_PLAIN,
                                   .cols = rows * MK_ROW_WORDS,
                                   .tile = 64},
                       &lowering->plan));
  return mk_add_vector(program, "token_ring",
                       (mk_vector){.kind = MK_KIND_OUTPUT,
                                   .dtype = MK_DTYPE_U32,
                                   .store = MK_STORE_PLAIN,
                                   .scope = MK_SCOPE_SYS,
                                   .cols = rows,
                                   .tile = 64,
                                   .at_home = true},
                       &lowering->ring);
}

mk_status mk_declare_shared(mk_lowering *lowering) {
  const mk_config *c = &lowering->graph->config;
  mk_program *program = lowering->program;
  for (size_t i = 0; i < lowering->graph->weight_count; i++) {
    MK_TRY(declare_weight(lowering, i));
  }
  MK_TRY(mk_add_vector(program, "block_table",
                       (mk_vector){.kind = MK_KIND_INPUT,
                                   .dtype = MK_DTYPE_U32,
                                   .store = MK_STORE_PLAIN,
                                   .extra_proxy = MK_PROXY_ASYNC,
                                   .rows = mk_program_slots(program),
                                   .cols = mk_divide_up(lowering->max_seq, MK_BLOCK_TOKENS),
                                   .tile = 16},
                       &lowering->table));
  MK_TRY(declare_tokens(lowering));
  MK_TRY(mk_add_vector(program, "logits",
                       (mk_vector){.kind = MK_KIND_OUTPUT,
                                   .dtype = MK_DTYPE_F32,
                                   .store = MK_STORE_PLAIN,
                                   .cols = c->vocab,
                                   .tile = 16,
                                   .lines = lowering->lines,
                                   .by_tiles = true,
                                   .dealt = true},
                       &lowering->logits));
  return mk_add_vector(program, "candidates",
                       (mk_vector){.kind = MK_KIND_ACTIVATION,
                                   .dtype = MK_DTYPE_U32,
                                   .store = MK_STORE_STAMPED,
                                   .rows = lowering->sms,
                                   .cols = 2,
                                   .tile = 2,
                                   .lines = lowering->lines,
                                   .by_tiles = true},
                       &lowering->candidates);
}

mk_status mk_declare_value(mk_lowering *lowering, const mk_node *node) {
  const mk_value *value = &lowering->graph->values[node->output];
  /* GLU writes 8 values per row tile; everything else moves in whole tiles. Q, K and V stay fp32: few SMs read them. */
  const bool squares = node->kind == MK_NODE_QKV && lowering->graph->config.qk_norm != MK_QK_PLAIN;
  const bool heads = node->kind == MK_NODE_QKV || node->kind == MK_NODE_NORM_HEADS;
  mk_dtype dtype = heads ? MK_DTYPE_F32 : MK_DTYPE_BF16;
  uint32_t tile = node->kind == MK_NODE_GLU ? 8 : squares ? MK_SQUARED_TILE : MK_TILE;
  mk_lowered_value *lowered = &lowering->values[node->output];
  lowered->ready = MK_NO_COUNTER;
  lowered->ready_by_tiles = false;
  lowered->of_rank = 0;
  if (node->kind == MK_NODE_ADD || node->kind == MK_NODE_OFFSET) {
    char name[48];
    snprintf(name, sizeof name, "%.38s_residual", value->name);
    MK_TRY(mk_add_value(lowering, name,
                        (mk_vector){.kind = MK_KIND_ACTIVATION,
                                    .dtype = MK_DTYPE_F32,
                                    .store = MK_STORE_PLAIN,
                                    .cols = value->length,
                                    .tile = MK_TILE,
                                    .lines = lowering->lines,
                                    .by_tiles = true,
                                    .dealt = true},
                        &lowered->residual));
  }
  if (node->kind == MK_NODE_OFFSET) {
    return MK_OK; /* nobody else reads it */
  }
  return mk_add_value(lowering, value->name,
                      (mk_vector){.kind = MK_KIND_ACTIVATION,
                                  .dtype = dtype,
                                  .store = lowering->wide ? MK_STORE_PLAIN : MK_STORE_STAMPED,
                                  .extra_proxy = lowering->wide ? MK_PROXY_ASYNC : 0,
                                  .cols = squares ? value->length / MK_TILE * MK_SQUARED_TILE : value->length,
                                  .tile = tile,
                                  .lines = lowering->lines,
                                  .by_tiles = true,
                                  /* In the wide form a sum that a NORM reads is read on its own rank alone. */
                                  .dealt = lowering->wide && node->kind == MK_NODE_ADD &&
                                           mk_norm_of(lowering->graph, node->output) != NULL},
                      &lowered->buffer);
}

mk_status mk_declare_normed(mk_lowering *lowering, const char *name, mk_lowered_value *value) {
  const uint32_t cols = mk_divide_up(lowering->graph->config.hidden, MK_TILE) * MK_TILE;
  char buffer[48];
  mk_vector vector = {.kind = MK_KIND_ACTIVATION,
                      .dtype = MK_DTYPE_BF16,
                      .store = MK_STORE_PLAIN,
                      .extra_proxy = MK_PROXY_ASYNC,
                      .cols = cols,
                      .tile = MK_TILE,
                      .lines = lowering->lines,
                      .by_tiles = true};
  snprintf(buffer, sizeof buffer, "%.38s_normed", name);
  MK_TRY(mk_add_value(lowering, buffer, vector, &value->normed));
  snprintf(buffer, sizeof buffer, "%.38s_squares", name);
  vector.dtype = MK_DTYPE_F32;
  vector.cols = mk_divide_up(cols, MK_CHAIN_COLS);
  vector.tile = 1;
  return mk_add_value(lowering, buffer, vector, &value->squares);
}

mk_status mk_declare_work(mk_lowering *lowering) {
  const mk_config *c = &lowering->graph->config;
  const uint32_t words = mk_attend_list_words(mk_line_tile(lowering->lines), c->heads / c->kv_heads);
  return mk_add_vector(lowering->program, "work",
                       (mk_vector){.kind = MK_KIND_INPUT,
                                   .dtype = MK_DTYPE_U32,
                                   .store = MK_STORE_PLAIN,
                                   .extra_proxy = MK_PROXY_ASYNC,
                                   .rows = MK_PLAN_STEPS * lowering->line_tiles,
                                   .cols = words,
                                   .tile = words},
                       &lowering->work);
}

mk_status mk_declare_kv(mk_lowering *lowering, uint32_t layer, uint16_t *index) {
  const mk_config *c = &lowering->graph->config;
  mk_buffer buffer = {.kind = MK_KIND_KV,
                      .dtype = (uint8_t)lowering->kv,
                      .store = MK_STORE_BLOCKS,
                      .scope = MK_SCOPE_GPU,
                      .proxy = MK_PROXY_GENERIC | MK_PROXY_ASYNC,
                      .rank = rank_of(lowering->program, true, false),
                      .head_dim = (uint16_t)c->head_dim,
                      .block_tokens = MK_BLOCK_TOKENS,
                      .span_tokens = mk_span_tokens(mk_program_slots(lowering->program)),
                      .blocks = lowering->blocks,
                      .rows = lowering->splits,
                      .cols = c->kv_heads,
                      .tile_rows = 1,
                      .tile_cols = 1};
  if (mk_dtype_is_quantised(buffer.dtype)) {
    buffer.scale = MK_SCALE_BF16;
    buffer.scale_cols = (uint8_t)c->head_dim;
  }
  snprintf(buffer.name, sizeof buffer.name, "layers.%u.kv", layer);
  return mk_program_add_buffer(lowering->program, &buffer, index);
}
