/* See synth_weights.h. */
#include "engine/synth_weights.h"

#include <string.h>

#include "engine/vectors.h"
#include "models/synth.h"
#include "vm/gpu/extra.h"
#include "vm/program/program.h"

static mk_status find_source(const mk_config *config, const mk_weight_source *source, uint64_t seed,
                             mk_gpu_fill_source *out) {
  uint64_t count = mk_synth_tensor_count(config);
  for (uint64_t i = 0; i < count; i++) {
    mk_synth_tensor tensor;
    mk_synth_tensor_at(config, i, &tensor);
    if (strcmp(tensor.name, source->tensor) == 0) {
      *out = (mk_gpu_fill_source){.key = mk_synth_key(seed, tensor.name),
                                  .rows = source->rows,
                                  .first = source->first,
                                  .offset = tensor.offset,
                                  .scale = tensor.scale};
      return MK_OK;
    }
  }
  return mk_error(MK_ERR_FILE, "a synthetic model has no tensor %s", source->tensor);
}

static mk_status describe(const mk_graph *graph, const mk_weight *weight, uint64_t seed, mk_gpu_fill *fill) {
  static const mk_gpu_fill_order orders[] = {[MK_PACK_ROWS] = MK_GPU_FILL_ROWS,
                                             [MK_PACK_ROPE] = MK_GPU_FILL_ROPE,
                                             [MK_PACK_GLU] = MK_GPU_FILL_GLU,
                                             [MK_PACK_VECTOR] = MK_GPU_FILL_VECTOR};
  *fill = (mk_gpu_fill){.order = orders[weight->pack],
                        .cols = weight->cols,
                        .head_dim = graph->config.head_dim,
                        .rotary = weight->rotary,
                        .source_count = weight->source_count};
  for (uint32_t s = 0; s < weight->source_count; s++) {
    MK_TRY(find_source(&graph->config, &weight->sources[s], seed, &fill->sources[s]));
  }
  return MK_OK;
}

typedef struct vector_reader {
  const mk_graph *graph;
  const mk_weight *weight;
  uint64_t seed;
} vector_reader;

static mk_status read_vector(void *user, uint32_t source, uint32_t count, uint16_t *out) {
  const vector_reader *reader = user;
  mk_gpu_fill_source from;
  MK_TRY(find_source(&reader->graph->config, &reader->weight->sources[source], reader->seed, &from));
  mk_synth_fill(from.key, 0, count, from.offset, from.scale, out);
  return MK_OK;
}

mk_status mk_synth_weights_fill(const mk_graph *graph, const mk_weight *weight, uint64_t seed, void *memory) {
  if (mk_pack_is_vector(weight->pack)) {
    vector_reader reader = {graph, weight, seed};
    return mk_vector_join(graph, weight, read_vector, &reader, memory);
  }
  mk_gpu_fill fill;
  MK_TRY(describe(graph, weight, seed, &fill));
  uint16_t *to = memory;
  uint32_t grid_cols = (weight->cols + MK_TILE - 1) / MK_TILE;
  for (uint32_t row = 0; row < weight->rows; row++) {
    uint32_t source, source_row;
    if (!mk_weight_row(weight, graph->config.head_dim, row, &source, &source_row)) {
      continue;
    }
    const mk_gpu_fill_source *from = &fill.sources[source];
    for (uint32_t col = 0; col < weight->cols; col++) {
      uint64_t index = ((uint64_t)weight->sources[source].first + source_row) * weight->cols + col;
      to[mk_tile_offset(grid_cols, row, col)] = mk_synth_value(from->key, index, from->offset, from->scale);
    }
  }
  return MK_OK;
}

mk_status mk_synth_weights_fill_gpu(const mk_graph *graph, const mk_weight *weight, uint64_t seed, mk_gpu *gpu,
                                    size_t buffer) {
  if (mk_vector_is_joined(weight)) {
    vector_reader reader = {graph, weight, seed};
    void *vector;
    MK_TRY(mk_alloc(mk_vector_bytes(weight), 1, &vector));
    mk_status status = mk_vector_join(graph, weight, read_vector, &reader, vector);
    if (status == MK_OK) {
      status = mk_gpu_write(gpu, buffer, 0, vector, mk_vector_bytes(weight));
    }
    mk_free(vector);
    return status;
  }
  mk_gpu_fill fill;
  MK_TRY(describe(graph, weight, seed, &fill));
  return mk_gpu_fill_hash(gpu, buffer, &fill);
}
