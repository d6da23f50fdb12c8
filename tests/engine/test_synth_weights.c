/* Hash weights of quantised forms: what they stand for is finite, padding is 0, and every code comes up. And of all
 * forms: threads that fill them side by side. */
#define _GNU_SOURCE
#include "engine/synth_weights.h"

#include <criterion/criterion.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>

#include "engine/weights.h"
#include "instructions/dequantise.h"
#include "instructions/reference.h"
#include "models/llama.h"
#include "models/synth.h"
#include "tests/support/numbers.h"

static const struct {
  mk_codes codes;
  uint32_t group;
  mk_tensor_dtype scale;
  bool zeros;
} forms[] = {{MK_CODES_E4M3, 0, MK_TENSOR_BF16, false}, {MK_CODES_E4M3, 64, MK_TENSOR_F32, false},
             {MK_CODES_INT8, 0, MK_TENSOR_F16, false},  {MK_CODES_INT4, 128, MK_TENSOR_BF16, false},
             {MK_CODES_INT4, 64, MK_TENSOR_F32, true},  {MK_CODES_INT4, 32, MK_TENSOR_F16, true}};
enum { FORMS = sizeof forms / sizeof forms[0], SEED = 5 };

/* Of a family whose sizes divide by nothing. form: FORMS for bf16. */
static mk_graph *graph_of(size_t form, uint32_t hidden) {
  mk_config config;
  mk_graph *graph;
  cr_assert_eq(mk_synth_shape("tiny", &config), MK_OK);
  config.hidden = hidden;
  config.intermediate = 331;
  config.layers = 1;
  if (form < FORMS) {
    mk_synth_quantise(&config, forms[form].codes, forms[form].group, forms[form].scale, forms[form].zeros);
  }
  cr_assert_eq(mk_llama_graph(&config, &graph), MK_OK, "%s", mk_error_message());
  return graph;
}

static uint32_t code_at(const mk_buffer *b, const uint8_t *packed, uint32_t row, uint32_t col) {
  const uint64_t tile = mk_tiles_bytes(b, 1, 0, mk_buffer_grid_cols(b));
  uint32_t shift;
  const uint32_t offset = mk_strip_offset(b->dtype, row % MK_TILE, col % MK_STRIP_COLS, &shift);
  const uint32_t byte = packed[row / MK_TILE * tile + (uint64_t)(col / MK_STRIP_COLS) * mk_strip_bytes(b) + offset];
  return byte >> shift & (b->dtype == MK_DTYPE_I4 ? 0xfu : 0xffu);
}

/* What the whole weight stands for: padding 0, everything else finite, and not all the same. */
static void check_numbers(const mk_weight *weight, const mk_buffer *b, const uint8_t *packed) {
  const uint32_t steps = mk_buffer_grid_cols(b);
  const uint64_t tile = mk_tiles_bytes(b, 1, 0, steps);
  uint16_t *out;
  uint32_t different = 0;
  cr_assert_eq(mk_alloc((size_t)steps * MK_TILE_STEP_ELEMENTS, sizeof *out, &out), MK_OK);
  for (uint32_t row = 0; row < b->rows; row++) {
    uint32_t source, source_row;
    const bool there = mk_weight_row(weight, 64, row, &source, &source_row);
    mk_dequantise(b, packed + row / MK_TILE * tile, 0, steps, out);
    for (uint32_t col = 0; col < steps * MK_TILE; col++) {
      const float value = mk_bf16_to_float(out[mk_tile_offset(steps, row % MK_TILE, col)]);
      const bool padding = col >= weight->cols || !there;
      cr_assert(value > -100 && value < 100 && (!padding || value == 0), "row %u, column %u: %g", row, col,
                (double)value);
      different += value != 0;
    }
  }
  cr_assert_gt(different, weight->sources[0].rows * weight->cols / 2);
  mk_free(out);
}

Test(synth_weights, quantised_forms) {
  for (size_t f = 0; f < FORMS; f++) {
    mk_graph *graph = graph_of(f, 203);
    uint32_t seen = 0;
    for (size_t w = 0; w < graph->weight_count; w++) {
      const mk_weight *weight = &graph->weights[w];
      if (weight->form.codes == MK_CODES_NONE) {
        continue;
      }
      const mk_buffer b = mk_matrix_buffer(weight);
      uint8_t *packed, *again;
      cr_assert_eq(mk_alloc(mk_buffer_bytes(&b), 1, &packed), MK_OK);
      cr_assert_eq(mk_alloc(mk_buffer_bytes(&b), 1, &again), MK_OK);
      cr_assert_eq(mk_synth_weights_fill(graph, weight, SEED, packed), MK_OK, "%s", mk_error_message());
      cr_assert_eq(mk_synth_weights_fill(graph, weight, SEED + 1, again), MK_OK);
      cr_expect_neq(memcmp(packed, again, mk_buffer_bytes(&b)), 0, "%s: the seed does not count", weight->name);
      check_numbers(weight, &b, packed);
      /* All codes that there are come up, but for those of e4m3 that are no numbers. */
      uint32_t counts[256] = {0};
      for (uint32_t row = 0; row < weight->sources[0].rows / MK_TILE * MK_TILE; row++) {
        for (uint32_t col = 0; col < weight->cols; col++) {
          counts[code_at(&b, packed, row, col)]++;
        }
      }
      for (uint32_t code = 0; code < (b.dtype == MK_DTYPE_I4 ? 16U : 256U); code++) {
        const bool nan = b.dtype == MK_DTYPE_E4M3 && (code & 0x7f) == 0x7f;
        cr_expect_eq(counts[code] == 0, nan, "%s, form %zu: code %u comes up %u times", weight->name, f, code,
                     counts[code]);
      }
      mk_free(again);
      mk_free(packed);
      seen++;
    }
    cr_assert_eq(seen, 4);
    mk_graph_free(graph);
  }
}

/* As many threads as there are cores fill a matrix that is large enough for several; one does where there is one. */
Test(synth_weights, the_same_by_any_number_of_threads) {
  for (size_t f = 0; f <= FORMS; f++) {
    mk_graph *graph = graph_of(f, 3203);
    uint32_t large = 0;
    for (size_t w = 0; w < graph->weight_count; w++) {
      const mk_weight *weight = &graph->weights[w];
      if ((uint64_t)weight->rows * weight->cols < 1 << 20) {
        continue;
      }
      const mk_buffer b = mk_matrix_buffer(weight);
      uint8_t *by_many, *by_one;
      cpu_set_t all, one;
      cr_assert_eq(mk_alloc(mk_buffer_bytes(&b), 1, &by_many), MK_OK);
      cr_assert_eq(mk_alloc(mk_buffer_bytes(&b), 1, &by_one), MK_OK);
      cr_assert_eq(mk_synth_weights_fill(graph, weight, SEED, by_many), MK_OK, "%s", mk_error_message());
      cr_assert_eq(sched_getaffinity(0, sizeof all, &all), 0);
      CPU_ZERO(&one);
      CPU_SET((size_t)sched_getcpu(), &one);
      cr_assert_eq(sched_setaffinity(0, sizeof one, &one), 0);
      cr_assert_eq(mk_synth_weights_fill(graph, weight, SEED, by_one), MK_OK, "%s", mk_error_message());
      cr_assert_eq(sched_setaffinity(0, sizeof all, &all), 0);
      cr_expect_eq(memcmp(by_many, by_one, mk_buffer_bytes(&b)), 0, "%s, form %zu", weight->name, f);
      mk_free(by_one);
      mk_free(by_many);
      large++;
    }
    cr_assert_gt(large, 0);
    mk_graph_free(graph);
  }
}
