/* See synth_weights.h. */
#include "engine/synth_weights.h"

#include <math.h>
#include <pthread.h>
#include <string.h>

#include "engine/vectors.h"
#include "engine/weights.h"
#include "instructions/reference.h"
#include "models/synth.h"
#include "vm/cores.h"
#include "vm/gpu/extra.h"
#include "vm/program/strips.h"

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

/* A tensor has eight scales, from 0.75 to 1.19 times the one with which its codes vary as much as the
 * bf16 tensor's elements do. This is how one of them is stored. */
static uint32_t scale_bits(const mk_form *form, float element_scale, uint32_t number) {
  static const double deviations[] = {
      [MK_CODES_E4M3] = 107.24, [MK_CODES_INT8] = 73.90, [MK_CODES_INT4] = 4.637}; /* of codes that are all as likely */
  const double scale = element_scale * 32768 / sqrt(3) / deviations[form->codes];
  const float value = (float)(scale * (12 + number) / 16);
  return form->scale == MK_TENSOR_F32    ? mk_float_param(value)
         : form->scale == MK_TENSOR_BF16 ? mk_float_to_bf16(value)
                                         : mk_float_to_half(value);
}

/* Of a row's columns [first, first + scale_cols), whose scales and zeros are number `place` of the strip. The scale is
 * one of eight, the zero 7 or 8, as their hash says. Gives the zero. */
static uint32_t put_scale(const mk_buffer *b, const mk_form *form, const mk_gpu_fill_source *source, uint64_t index,
                          uint32_t place, uint8_t *strip) {
  const uint64_t z = mk_synth_hash(~source->key, index);
  const uint32_t bits = scale_bits(form, source->scale, (uint32_t)(z >> 61)), bytes = mk_scale_bytes(b->scale);
  const uint32_t zero = b->zeros != 0 ? (uint32_t)MK_PLAIN_ZERO - (uint32_t)(z & 1) : (uint32_t)MK_PLAIN_ZERO;
  uint8_t *scales = strip + mk_strip_codes(b);
  memcpy(scales + (size_t)place * bytes, &bits, bytes); /* little-endian, as strips are */
  if (b->zeros != 0) {
    scales[mk_strip_scales(b) + place] = (uint8_t)zero;
  }
  return zero;
}

/* A row of strips. The code of an element is the highest bits of its hash, e4m3 without what is no number; that of
 * padding is 0's. */
static void fill_row(const mk_buffer *b, const mk_form *form, const mk_gpu_fill_source *source, uint32_t source_row,
                     uint32_t row, uint8_t *strips) {
  const bool four = b->dtype == MK_DTYPE_I4;
  const uint32_t count = (b->cols + MK_STRIP_COLS - 1) / MK_STRIP_COLS, ranges = mk_strip_ranges(b);
  uint32_t zero = 0, shift;
  for (uint32_t col = 0; col < count * MK_STRIP_COLS; col++) {
    uint8_t *strip = strips + (size_t)(col / MK_STRIP_COLS) * mk_strip_bytes(b);
    if (col % b->scale_cols == 0) {
      const uint32_t range = col / b->scale_cols;
      zero = put_scale(b, form, source, (uint64_t)source_row * count * ranges + range,
                       range % ranges * MK_TILE + mk_strip_row(row), strip);
    }
    const uint64_t z = mk_synth_hash(source->key, (uint64_t)source_row * b->cols + col);
    uint32_t code = (uint32_t)(z >> (four ? 60 : 56));
    code -= b->dtype == MK_DTYPE_E4M3 && (code & 0x7fu) == 0x7fu;
    code = col < b->cols ? code : four ? zero : 0;
    const uint32_t at = mk_strip_offset(b->dtype, row % MK_TILE, col % MK_STRIP_COLS, &shift);
    strip[at] |= (uint8_t)(code << shift);
  }
}

/* A matrix that several threads fill, a row tile at a time: what they write lies apart. */
typedef struct matrix_fill {
  const mk_graph *graph;
  const mk_weight *weight;
  const mk_gpu_fill_source *sources;
  uint8_t *memory; /* zeros */
  mk_buffer b;
  _Atomic uint32_t taken; /* row tiles */
} matrix_fill;

static void fill_plain_row(const matrix_fill *f, uint32_t source, uint32_t source_row, uint32_t row) {
  const mk_gpu_fill_source *from = &f->sources[source];
  const uint32_t cols = f->weight->cols, grid_cols = mk_buffer_grid_cols(&f->b);
  const uint64_t first = ((uint64_t)f->weight->sources[source].first + source_row) * cols;
  uint16_t *to = (uint16_t *)f->memory;
  for (uint32_t col = 0; col < cols; col++) {
    to[mk_tile_offset(grid_cols, row, col)] = mk_synth_value(from->key, first + col, from->offset, from->scale);
  }
}

/* Rows of padding stay zero, which quantised ones' scales are then, too. */
static void *fill_tiles(void *user) {
  matrix_fill *f = user;
  const mk_weight *weight = f->weight;
  const uint64_t row_tile = mk_tiles_bytes(&f->b, 1, 0, mk_buffer_grid_cols(&f->b));
  for (uint32_t tile = f->taken++; tile < mk_buffer_grid_rows(&f->b); tile = f->taken++) {
    for (uint32_t row = tile * MK_TILE; row < (tile + 1) * MK_TILE && row < weight->rows; row++) {
      uint32_t source, source_row;
      if (!mk_weight_row(weight, f->graph->config.head_dim, row, &source, &source_row)) {
        continue;
      }
      if (weight->form.codes != MK_CODES_NONE) {
        fill_row(&f->b, &weight->form, &f->sources[source], weight->sources[source].first + source_row, row,
                 f->memory + tile * row_tile);
      } else {
        fill_plain_row(f, source, source_row, row);
      }
    }
  }
  return NULL;
}

static void fill_matrix(matrix_fill *f) {
  enum { MOST_THREADS = 64, ELEMENTS_OF_THREAD = 1 << 18 }; /* a few milliseconds each, at least */
  pthread_t threads[MOST_THREADS];
  const uint64_t parts = (uint64_t)f->weight->rows * f->weight->cols / ELEMENTS_OF_THREAD;
  const uint32_t cores = mk_cores(MOST_THREADS), wanted = parts < cores ? (uint32_t)parts : cores;
  uint32_t started = 0;
  while (started + 1 < wanted && pthread_create(&threads[started], NULL, fill_tiles, f) == 0) {
    started++; /* if the system gives no more, those that there are do all of it */
  }
  fill_tiles(f);
  for (uint32_t t = 0; t < started; t++) {
    pthread_join(threads[t], NULL);
  }
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
  matrix_fill f = {
      .graph = graph, .weight = weight, .sources = fill.sources, .memory = memory, .b = mk_matrix_buffer(weight)};
  fill_matrix(&f);
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
  if (weight->form.codes != MK_CODES_NONE) { /* by the host, some ten seconds of a core a billion weights */
    const mk_buffer b = mk_matrix_buffer(weight);
    void *strips;
    MK_TRY(mk_alloc(mk_buffer_bytes(&b), 1, &strips));
    mk_status status = mk_synth_weights_fill(graph, weight, seed, strips);
    if (status == MK_OK) {
      status = mk_gpu_write(gpu, buffer, 0, strips, mk_buffer_bytes(&b));
    }
    mk_free(strips);
    return status;
  }
  mk_gpu_fill fill;
  MK_TRY(describe(graph, weight, seed, &fill));
  return mk_gpu_fill_hash(gpu, buffer, &fill);
}
