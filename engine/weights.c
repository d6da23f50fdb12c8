/* See weights.h. */
#include "engine/weights.h"

#include <string.h>

#include "engine/quantised.h"
#include "engine/vectors.h"
#include "scheduler/compile.h"
#include "vm/program/strips.h"

typedef struct row_reader {
  const mk_checkpoint *checkpoint;
  const mk_graph *graph;
  const mk_weight *weight;
  const mk_tensor *tensors[MK_MAX_SOURCES]; /* NULL: the source is quantised */
  mk_quantised modules[MK_MAX_SOURCES];     /* of those; the first one of several sources of one tensor */
  uint8_t *codes;                           /* of a row of them */
  uint16_t *rows;                           /* 16 source rows, the row tile that is being packed */
} row_reader;

static const mk_quantised *module_of(const row_reader *reader, uint32_t source) {
  uint32_t first = 0; /* where there are several of one tensor, they stand side by side */
  while (strcmp(reader->weight->sources[first].tensor, reader->weight->sources[source].tensor) != 0) {
    first++;
  }
  return &reader->modules[first];
}

/* `count` rows of a source from `row` on, which become rows [at, at + count) of the tile. */
static mk_status read_rows(const row_reader *reader, uint32_t source, uint32_t row, uint32_t count, uint32_t at) {
  const uint32_t cols = reader->weight->cols, first = reader->weight->sources[source].first + row;
  if (reader->tensors[source] != NULL) {
    return mk_tensor_read(reader->checkpoint, reader->tensors[source], (uint64_t)first * cols, (uint64_t)count * cols,
                          reader->rows + (size_t)at * cols);
  }
  for (uint32_t i = 0; i < count; i++) {
    MK_TRY(
        mk_quantised_row(module_of(reader, source), first + i, reader->codes, reader->rows + (size_t)(at + i) * cols));
  }
  return MK_OK;
}

/* Reads the source rows of packed rows [first, first + 16) into reader->rows, in as few reads as their order allows.
 * present[i]: packed row first + i has a source. */
static mk_status read_row_tile(const row_reader *reader, uint32_t first, bool present[16]) {
  uint32_t run_source = 0, run_row = 0, run_at = 0, run = 0;
  for (uint32_t i = 0; i <= 16; i++) {
    uint32_t source = 0, row = 0;
    bool there = i < 16 && mk_weight_row(reader->weight, reader->graph->config.head_dim, first + i, &source, &row);
    if (i < 16) {
      present[i] = there;
    }
    if (run != 0 && (!there || source != run_source || row != run_row + run)) {
      MK_TRY(read_rows(reader, run_source, run_row, run, run_at));
      run = 0;
    }
    if (there && run == 0) {
      run_source = source, run_row = row, run_at = i;
    }
    run += there;
  }
  return MK_OK;
}

/* Pairs of columns: element 2 t of a fragment word and its neighbour always move together. */
static void pack_row(const uint16_t *from, uint32_t cols, uint32_t row, uint16_t *tile) {
  for (uint32_t c = 0; c + 1 < cols; c += 2) {
    memcpy(tile + mk_tile_offset(0, row % MK_TILE, c % MK_TILE) + (size_t)(c / MK_TILE) * MK_TILE_STEP_ELEMENTS,
           from + c, 2 * sizeof *from);
  }
  if (cols % 2 != 0) {
    uint32_t c = cols - 1;
    tile[mk_tile_offset(0, row % MK_TILE, c % MK_TILE) + (size_t)(c / MK_TILE) * MK_TILE_STEP_ELEMENTS] = from[c];
  }
}

static mk_status load_tiles(const row_reader *reader, uint16_t *memory, mk_weights_tick tick, void *user) {
  const mk_weight *weight = reader->weight;
  size_t row_tile_elements = (size_t)(weight->cols + MK_TILE - 1) / MK_TILE * MK_TILE_STEP_ELEMENTS;
  for (uint32_t first = 0; first < weight->rows; first += MK_TILE) {
    bool present[16];
    MK_TRY(read_row_tile(reader, first, present));
    for (uint32_t i = 0; i < MK_TILE; i++) {
      if (present[i]) {
        pack_row(reader->rows + (size_t)i * weight->cols, weight->cols, i,
                 memory + first / MK_TILE * row_tile_elements);
      }
    }
    MK_TRY(tick == NULL ? MK_OK : tick(user, row_tile_elements * sizeof *memory));
  }
  return MK_OK;
}

mk_buffer mk_matrix_buffer(const mk_weight *weight) {
  mk_buffer buffer = {.kind = MK_KIND_WEIGHT,
                      .store = MK_STORE_TILES,
                      .rows = weight->rows,
                      .cols = weight->cols,
                      .tile_rows = MK_TILE,
                      .tile_cols = MK_TILE};
  mk_set_form(&weight->form, &buffer);
  return buffer;
}

/* The same of a weight that is packed as codes. */
static mk_status load_strips(const row_reader *reader, uint8_t *memory, mk_weights_tick tick, void *user) {
  const mk_weight *weight = reader->weight;
  const mk_buffer buffer = mk_matrix_buffer(weight);
  const uint64_t bytes = mk_tiles_bytes(&buffer, 1, 0, mk_buffer_grid_cols(&buffer));
  for (uint32_t first = 0; first < weight->rows; first += MK_TILE, memory += bytes) {
    for (uint32_t i = 0; i < MK_TILE; i++) {
      uint32_t source, row;
      if (mk_weight_row(weight, reader->graph->config.head_dim, first + i, &source, &row)) {
        MK_TRY(mk_quantised_pack(module_of(reader, source), weight->sources[source].first + row, reader->codes, &buffer,
                                 i, memory));
      }
    }
    MK_TRY(tick == NULL ? MK_OK : tick(user, bytes));
  }
  return MK_OK;
}

static mk_status load_matrix(row_reader *reader, void *memory, mk_weights_tick tick, void *user) {
  const mk_weight *weight = reader->weight;
  for (uint32_t s = 0; s < weight->source_count; s++) {
    if (reader->tensors[s] == NULL && module_of(reader, s) == &reader->modules[s]) {
      MK_TRY(mk_quantised_open(reader->checkpoint, &reader->graph->config, weight->sources[s].tensor,
                               &reader->modules[s]));
    }
  }
  MK_TRY(mk_alloc(weight->cols, sizeof *reader->codes, &reader->codes));
  if (weight->form.codes != MK_CODES_NONE) {
    return load_strips(reader, memory, tick, user);
  }
  MK_TRY(mk_alloc((size_t)16 * weight->cols, sizeof *reader->rows, &reader->rows));
  return load_tiles(reader, memory, tick, user);
}

static mk_status find_sources(const mk_checkpoint *checkpoint, const mk_weight *weight,
                              const mk_tensor *tensors[MK_MAX_SOURCES]) {
  for (uint32_t s = 0; s < weight->source_count; s++) {
    tensors[s] = NULL;
    if (weight->sources[s].quantised) {
      continue;
    }
    tensors[s] = mk_checkpoint_find(checkpoint, weight->sources[s].tensor);
    if (tensors[s] == NULL) {
      return mk_error(MK_ERR_FILE, "the checkpoint has no tensor %s", weight->sources[s].tensor);
    }
  }
  return MK_OK;
}

static mk_status read_vector(void *user, uint32_t source, uint32_t count, uint16_t *out) {
  const row_reader *reader = user;
  return mk_tensor_read(reader->checkpoint, reader->tensors[source], 0, count, out);
}

mk_status mk_weights_pack(const mk_checkpoint *checkpoint, const mk_graph *graph, const mk_weight *weight, void *memory,
                          mk_weights_tick tick, void *user) {
  row_reader reader = {.checkpoint = checkpoint, .graph = graph, .weight = weight};
  MK_TRY(find_sources(checkpoint, weight, reader.tensors));
  if (mk_pack_is_vector(weight->pack)) {
    return mk_vector_join(graph, weight, read_vector, &reader, memory);
  }
  mk_status status = load_matrix(&reader, memory, tick, user);
  for (uint32_t s = 0; s < weight->source_count; s++) {
    mk_quantised_close(&reader.modules[s]);
  }
  mk_free(reader.codes);
  mk_free(reader.rows);
  return status;
}

mk_status mk_weights_load(const mk_checkpoint *checkpoint, const mk_graph *graph, const mk_weight *weight,
                          void *memory) {
  return mk_weights_pack(checkpoint, graph, weight, memory, NULL, NULL);
}

/* Whether a source is no tensor, but quantised. */
static bool has_quantised_source(const mk_weight *weight, const mk_tensor *const tensors[MK_MAX_SOURCES]) {
  for (uint32_t s = 0; s < weight->source_count; s++) {
    if (tensors[s] == NULL) {
      return true;
    }
  }
  return false;
}

/* A weight that the host packs, as much at a time as there is room for: a vector that it has joined, and what is
 * quantised. */
static mk_status upload_packed(const row_reader *reader, mk_gpu_upload *upload, size_t buffer, mk_weights_tick tick,
                               void *user) {
  const mk_weight *weight = reader->weight;
  const mk_buffer matrix = mk_matrix_buffer(weight);
  const size_t bytes = mk_pack_is_vector(weight->pack) ? mk_vector_bytes(weight) : mk_buffer_bytes(&matrix),
               room = mk_gpu_upload_room(upload);
  uint8_t *packed;
  MK_TRY(mk_alloc(bytes, 1, &packed));
  mk_status status = mk_weights_pack(reader->checkpoint, reader->graph, weight, packed, tick, user);
  for (size_t at = 0, count; status == MK_OK && at < bytes; at += count) {
    void *memory;
    count = bytes - at < room ? bytes - at : room;
    status = mk_gpu_upload_begin(upload, &memory);
    if (status == MK_OK) {
      memcpy(memory, packed + at, count);
      status = mk_gpu_upload_bytes(upload, buffer, at, count);
    }
  }
  mk_free(packed);
  return status;
}

/* Rows [first_row, first_row + rows) of the source that *pack names, which begins with row `first` of its tensor; of
 * these no more than are needed here. */
static mk_status upload_rows(const mk_checkpoint *checkpoint, const mk_tensor *tensor, uint32_t first,
                             mk_gpu_upload *upload, size_t buffer, const mk_gpu_pack *pack) {
  void *memory;
  mk_gpu_pack here = *pack;
  mk_gpu_upload_trim(upload, buffer, &here);
  if (here.rows == 0) {
    return MK_OK;
  }
  MK_TRY(mk_gpu_upload_begin(upload, &memory));
  MK_TRY(mk_tensor_read_raw(checkpoint, tensor, ((uint64_t)first + here.first_row) * here.cols,
                            (uint64_t)here.rows * here.cols, memory));
  return mk_gpu_upload_rows(upload, buffer, &here);
}

static mk_status upload_source(const mk_checkpoint *checkpoint, const mk_tensor *tensor, uint32_t first, uint32_t rows,
                               mk_gpu_upload *upload, size_t buffer, mk_gpu_pack *pack, mk_weights_tick tick,
                               void *user) {
  static const mk_gpu_pack_dtype dtypes[] = {
      [MK_TENSOR_BF16] = MK_GPU_PACK_BF16, [MK_TENSOR_F16] = MK_GPU_PACK_F16, [MK_TENSOR_F32] = MK_GPU_PACK_F32};
  uint64_t row_bytes = pack->cols * mk_tensor_unit(tensor), most = mk_gpu_upload_room(upload) / row_bytes;
  if (most == 0) {
    return mk_error(MK_ERR_FILE, "tensor %.200s: a row has %llu bytes; at most %zu are loaded at a time", tensor->name,
                    (unsigned long long)row_bytes, mk_gpu_upload_room(upload));
  }
  pack->dtype = dtypes[tensor->dtype];
  for (pack->first_row = 0; pack->first_row < rows; pack->first_row += pack->rows) {
    pack->rows = rows - pack->first_row < most ? rows - pack->first_row : (uint32_t)most;
    MK_TRY(upload_rows(checkpoint, tensor, first, upload, buffer, pack));
    MK_TRY(tick == NULL ? MK_OK : tick(user, pack->rows * row_bytes));
  }
  return MK_OK;
}

mk_status mk_weights_upload(const mk_checkpoint *checkpoint, const mk_graph *graph, const mk_weight *weight,
                            mk_gpu_upload *upload, size_t buffer, mk_weights_tick tick, void *user) {
  static const mk_gpu_fill_order orders[] = {[MK_PACK_ROWS] = MK_GPU_FILL_ROWS,
                                             [MK_PACK_ROPE] = MK_GPU_FILL_ROPE,
                                             [MK_PACK_GLU] = MK_GPU_FILL_GLU,
                                             [MK_PACK_VECTOR] = MK_GPU_FILL_VECTOR};
  const mk_tensor *tensors[MK_MAX_SOURCES];
  MK_TRY(find_sources(checkpoint, weight, tensors));
  if (mk_vector_is_joined(weight) || has_quantised_source(weight, tensors)) {
    const row_reader reader = {.checkpoint = checkpoint, .graph = graph, .weight = weight};
    return upload_packed(&reader, upload, buffer, tick, user);
  }
  mk_gpu_pack pack = {.order = orders[weight->pack],
                      .cols = weight->cols,
                      .head_dim = graph->config.head_dim,
                      .rotary = weight->rotary};
  for (uint32_t s = 0; s < weight->source_count; s++) {
    pack.source_rows[s] = weight->sources[s].rows;
  }
  for (pack.source = 0; pack.source < weight->source_count; pack.source++) {
    const mk_weight_source *source = &weight->sources[pack.source];
    uint32_t rows = weight->pack == MK_PACK_VECTOR ? 1 : source->rows;
    MK_TRY(upload_source(checkpoint, tensors[pack.source], source->first, rows, upload, buffer, &pack, tick, user));
  }
  return MK_OK;
}
