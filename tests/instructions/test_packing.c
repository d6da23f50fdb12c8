/* How weights get into tiles: the layout, the order of rows, and a checkpoint read back from its packed buffers. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "engine/weights.h"
#include "models/llama.h"
#include "models/synth.h"
#include "scheduler/compile.h"
#include "tests/support/model.h"
#include "tests/support/numbers.h"
#include "tests/support/rig.h"

Test(packing, tile_offset_is_a_bijection) {
  enum { ROWS = 48, COLS = 80 };
  static uint8_t seen[ROWS * COLS];
  memset(seen, 0, sizeof seen);
  for (uint32_t row = 0; row < ROWS; row++) {
    for (uint32_t col = 0; col < COLS; col++) {
      uint64_t at = mk_tile_offset(COLS / 16, row, col);
      cr_assert_lt(at, ROWS * COLS);
      cr_assert_eq(seen[at]++, 0, "two elements at %llu", (unsigned long long)at);
      cr_assert_eq(at / 256, row / 16 * (COLS / 16) + col / 16, "an element left its tile");
    }
  }
}

Test(packing, tile_offset_is_the_table_of_the_header) {
  test_rig rig;
  test_rig_start(&rig, MK_OP_LINEAR_PART, 1);
  uint16_t weight = test_rig_weight(&rig, 64, 100);
  const uint16_t *elements = (const uint16_t *)(const void *)rig.memory[weight];
  for (uint32_t row = 0; row < 64; row++) {
    for (uint32_t col = 0; col < 100; col++) {
      cr_assert((double)mk_bf16_to_float(elements[mk_tile_offset(7, row, col)]) ==
                test_rig_value(&rig, weight, row, col));
    }
  }
  test_rig_stop(&rig);
}

Test(packing, bf16_rounds_to_nearest_even) {
  uint64_t seed = 1;
  for (uint32_t i = 0; i < 200000; i++) {
    uint32_t bits = (uint32_t)test_random(&seed);
    if (i % 4 == 0) {
      bits = (bits & 0xffff0000u) | 0x8000u; /* half way */
    }
    float value = mk_param_float(bits), low = mk_param_float(bits & 0xffff0000u);
    uint16_t got = mk_float_to_bf16(value);
    if (isnan(value)) {
      cr_assert(isnan(mk_bf16_to_float(got)));
      continue;
    }
    if (isinf(value) || (bits & 0x7f800000u) == 0x7f000000u) {
      continue; /* the neighbour above may be infinity */
    }
    float high = mk_param_float((bits & 0xffff0000u) + 0x10000u);
    double below = fabs((double)value - (double)low), above = fabs((double)high - (double)value);
    bool up = above < below || (above == below && (bits >> 16 & 1) != 0);
    cr_assert_eq(got, (uint16_t)((bits >> 16) + up), "%08x became %04x", bits, got);
  }
  cr_assert_eq(mk_float_to_bf16(3.4e38f), 0x7f80);
  cr_assert_eq(mk_float_to_bf16(-INFINITY), 0xff80);
}

/* Every row of every source is the source of one packed row. */
static void expect_rows_covered(const mk_weight *weight, uint32_t head_dim) {
  for (uint32_t source = 0; source < weight->source_count; source++) {
    uint8_t *seen;
    cr_assert_eq(mk_alloc(weight->sources[source].rows, 1, &seen), MK_OK);
    for (uint32_t row = 0; row < weight->rows; row++) {
      uint32_t from, at;
      if (mk_weight_row(weight, head_dim, row, &from, &at) && from == source) {
        cr_assert_lt(at, weight->sources[source].rows);
        seen[at]++;
      }
    }
    for (uint32_t at = 0; at < weight->sources[source].rows; at++) {
      cr_assert_eq(seen[at], 1, "%s: row %u of source %u is packed %u times", weight->name, at, source, seen[at]);
    }
    mk_free(seen);
  }
}

Test(packing, every_source_row_is_packed_once) {
  for (size_t i = 0; i < TEST_MODELS; i++) {
    mk_config config = test_model_config(i);
    mk_graph *graph;
    cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
    for (size_t w = 0; w < graph->weight_count; w++) {
      expect_rows_covered(&graph->weights[w], config.head_dim);
    }
    mk_graph_free(graph);
  }
}

Test(packing, rotated_pairs_lie_eight_rows_apart) {
  mk_weight weight = {.pack = MK_PACK_ROPE,
                      .rows = 5 * 128,
                      .cols = 16,
                      .source_count = 3,
                      .sources = {{.rows = 3 * 128}, {.rows = 128}, {.rows = 128}}};
  for (uint32_t row = 0; row < 640; row++) {
    uint32_t source, at, other_source, other;
    cr_assert(mk_weight_row(&weight, 128, row, &source, &at));
    if (row >= 512) {
      cr_assert_eq(source, 2);
      cr_assert_eq(at, row - 512, "V stays in order");
    } else if (row % 16 < 8) {
      cr_assert(mk_weight_row(&weight, 128, row + 8, &other_source, &other));
      cr_assert_eq(source, other_source);
      cr_assert_eq(other, at + 64);
    }
  }
}

Test(packing, gate_and_up_lie_eight_rows_apart) {
  mk_weight weight = {
      .pack = MK_PACK_GLU, .rows = 2 * 48, .cols = 16, .source_count = 2, .sources = {{.rows = 40}, {.rows = 40}}};
  for (uint32_t feature = 0; feature < 48; feature++) {
    uint32_t row = feature / 8 * 16 + feature % 8, source, at;
    cr_assert_eq(mk_weight_row(&weight, 64, row, &source, &at), feature < 40);
    cr_assert(feature >= 40 || (source == 0 && at == feature));
    cr_assert_eq(mk_weight_row(&weight, 64, row + 8, &source, &at), feature < 40);
    cr_assert(feature >= 40 || (source == 1 && at == feature));
  }
}

static const mk_synth_tensor *find_tensor(const mk_config *config, const char *name, mk_synth_tensor *tensor) {
  for (uint64_t i = 0; i < mk_synth_tensor_count(config); i++) {
    mk_synth_tensor_at(config, i, tensor);
    if (strcmp(tensor->name, name) == 0) {
      return tensor;
    }
  }
  cr_assert_fail("no tensor %s", name);
  return NULL;
}

/* The packed bits are the hash of (seed, tensor, index), element by element, and padding is zero. */
static void expect_packed(const mk_config *config, const mk_weight *weight, const uint16_t *memory) {
  uint32_t steps = (weight->cols + 15) / 16;
  bool vector = weight->pack == MK_PACK_VECTOR;
  for (uint32_t row = 0; row < weight->rows; row++) {
    uint32_t source = 0, at = 0;
    bool real = vector || mk_weight_row(weight, config->head_dim, row, &source, &at);
    mk_synth_tensor tensor = {0};
    uint64_t key = 0;
    if (real) {
      find_tensor(config, weight->sources[source].tensor, &tensor);
      key = mk_synth_key(TEST_MODEL_SEED, tensor.name);
    }
    for (uint32_t col = 0; col < (vector ? weight->cols : steps * 16); col++) {
      bool inside = real && col < weight->cols;
      uint16_t want =
          inside ? mk_synth_value(key, (uint64_t)at * weight->cols + col, tensor.offset, tensor.scale) : (uint16_t)0;
      uint16_t got = vector ? memory[col] : memory[mk_tile_offset(steps, row, col)];
      cr_assert_eq(got, want, "%s: row %u, col %u is %04x, not %04x", weight->name, row, col, got, want);
    }
  }
}

Test(packing, weights_come_back_from_their_tiles) {
  char directory[TEST_PATH];
  mk_config config = test_model_config(TEST_MODEL_ODD);
  test_model_write(&config, directory);
  mk_checkpoint *checkpoint;
  mk_graph *graph;
  cr_assert_eq(mk_checkpoint_open(directory, &checkpoint), MK_OK, "%s", mk_error_message());
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK);
  for (size_t w = 0; w < graph->weight_count; w++) {
    const mk_weight *weight = &graph->weights[w];
    size_t tiles = (size_t)(weight->rows + 15) / 16 * ((weight->cols + 15) / 16);
    uint16_t *memory;
    size_t bytes = weight->pack == MK_PACK_VECTOR        ? weight->cols * sizeof(uint16_t)
                   : weight->pack == MK_PACK_FREQUENCIES ? weight->cols * sizeof(float)
                                                         : tiles * 512;
    cr_assert_eq(mk_alloc_aligned(64, bytes, &memory), MK_OK);
    cr_assert_eq(mk_weights_load(checkpoint, graph, weight, memory), MK_OK, "%s", mk_error_message());
    if (weight->pack != MK_PACK_FREQUENCIES) {
      expect_packed(&config, weight, memory);
    }
    mk_free(memory);
  }
  mk_graph_free(graph);
  mk_checkpoint_close(checkpoint);
  test_model_remove(directory);
}
