/* See weights.h. */
#include "tools/lib/weights.h"

#include <string.h>

#include "models/llama.h"
#include "vm/program.h"

typedef struct row_reader {
  const mk_checkpoint *checkpoint;
  const mk_graph *graph;
  const mk_weight *weight;
  const mk_tensor *tensors[3];
  uint16_t *rows; /* 16 source rows, the row tile that is being packed */
} row_reader;

/* Reads the source rows of packed rows [first, first + 16) into reader->rows, in as few reads as their order allows.
 * present[i]: packed row first + i has a source. */
static mk_status read_row_tile(const row_reader *reader, uint32_t first, bool present[16]) {
  uint32_t cols = reader->weight->cols;
  uint32_t run_source = 0, run_row = 0, run_at = 0, run = 0;
  for (uint32_t i = 0; i <= 16; i++) {
    uint32_t source = 0, row = 0;
    bool there = i < 16 && mk_weight_row(reader->weight, reader->graph->config.head_dim, first + i, &source, &row);
    if (i < 16) {
      present[i] = there;
    }
    if (run != 0 && (!there || source != run_source || row != run_row + run)) {
      MK_TRY(mk_tensor_read(reader->checkpoint, reader->tensors[run_source], (uint64_t)run_row * cols,
                            (uint64_t)run * cols, reader->rows + (size_t)run_at * cols));
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

static mk_status load_tiles(const row_reader *reader, uint16_t *memory) {
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
  }
  return MK_OK;
}

mk_status mk_weights_load(const mk_checkpoint *checkpoint, const mk_graph *graph, const mk_weight *weight,
                          void *memory) {
  if (weight->pack == MK_PACK_FREQUENCIES) {
    mk_llama_frequencies(&graph->config, memory);
    return MK_OK;
  }
  row_reader reader = {.checkpoint = checkpoint, .graph = graph, .weight = weight};
  for (uint32_t s = 0; s < weight->source_count; s++) {
    reader.tensors[s] = mk_checkpoint_find(checkpoint, weight->sources[s].tensor);
    if (reader.tensors[s] == NULL) {
      return mk_error(MK_ERR_FILE, "the checkpoint has no tensor %s", weight->sources[s].tensor);
    }
  }
  if (weight->pack == MK_PACK_VECTOR) {
    return mk_tensor_read(checkpoint, reader.tensors[0], 0, weight->cols, memory);
  }
  MK_TRY(mk_alloc((size_t)16 * weight->cols, sizeof *reader.rows, &reader.rows));
  mk_status status = load_tiles(&reader, memory);
  mk_free(reader.rows);
  return status;
}
