/* Products of a weight with vectors: bit for bit the sums that matvec.c defines, in every vector width and for every number of vectors. */
#include "instructions/matvec.h"

#include <criterion/criterion.h>
#include <string.h>

#include "tests/support/numbers.h"

enum { MOST_ROWS = 64, MOST_COLS = 1200, MOST_VECTORS = 64 };

typedef struct problem {
  mk_buffer buffer;
  mk_span span;
  uint16_t *elements;
  float *x, *scratch, *y;
} problem;

static void start(problem *p, uint32_t rows, uint32_t cols, uint64_t seed) {
  *p = (problem){
      .buffer = {.rows = rows, .cols = cols, .tile_rows = MK_TILE, .tile_cols = MK_TILE, .store = MK_STORE_TILES}};
  cr_assert_eq(mk_alloc_aligned(64, MOST_ROWS * (MOST_COLS + MK_TILE) * sizeof *p->elements, &p->elements), MK_OK);
  cr_assert_eq(mk_alloc_aligned(64, MOST_VECTORS * MOST_COLS * sizeof *p->x, &p->x), MK_OK);
  cr_assert_eq(
      mk_alloc_aligned(64, (size_t)MOST_VECTORS * MK_MATVEC_SCRATCH(MOST_COLS) * sizeof *p->scratch, &p->scratch),
      MK_OK);
  cr_assert_eq(mk_alloc_aligned(64, MOST_VECTORS * MOST_ROWS * sizeof *p->y, &p->y), MK_OK);
  for (size_t i = 0; i < (size_t)MOST_ROWS * (MOST_COLS + MK_TILE); i++) {
    p->elements[i] = (uint16_t)(mk_float_param(test_random_float(&seed)) >> 16);
  }
  for (size_t i = 0; i < (size_t)MOST_VECTORS * MOST_COLS; i++) {
    p->x[i] = test_random_float(&seed);
  }
}

static void stop(problem *p) {
  mk_free(p->elements);
  mk_free(p->x);
  mk_free(p->scratch);
  mk_free(p->y);
}

/* By its definition: a row has 16 running sums over K, by k mod 16; words 4 t and 4 t + 2 hold elements 2 t, 2 t + 1 and 2 t + 8, 2 t + 9. */
static float expected(const problem *p, uint32_t row, uint32_t first_step, uint32_t steps, const float *x) {
  float sums[16] = {0}, total = 0;
  uint32_t grid_cols = mk_buffer_grid_cols(&p->buffer);
  for (uint32_t k = 0; k < steps * MK_TILE; k++) {
    uint16_t w = p->elements[mk_tile_offset(grid_cols, row, first_step * MK_TILE + k)];
    sums[k % 16] += mk_bf16_to_float(w) * x[k];
  }
  for (uint32_t t = 0; t < 8; t += 2) {
    total += (sums[t] + sums[t + 1]) + (sums[t + 8] + sums[t + 9]);
  }
  return total;
}

static void expect_product(uint32_t rows, uint32_t cols, uint32_t first_row, uint32_t first_col, uint32_t count) {
  problem p;
  start(&p, rows, cols, rows * 31u + cols + count);
  p.span = (mk_span){.buffer = &p.buffer,
                     .memory = (uint8_t *)p.elements,
                     .row = first_row,
                     .rows = rows - first_row,
                     .col = first_col,
                     .cols = cols - first_col};
  uint32_t steps = (p.span.cols + MK_TILE - 1) / MK_TILE, padded = steps * MK_TILE;
  for (int width = MK_VECTOR_PLAIN; width <= (int)mk_vector_widest(); width++) {
    memset(p.y, 0xff, MOST_VECTORS * MOST_ROWS * sizeof *p.y);
    mk_matvec_at((mk_vector_width)width, &p.span, count, p.x, p.scratch, p.y);
    for (uint32_t i = 0; i < count; i++) {
      for (uint32_t row = 0; row < p.span.rows; row++) {
        float want = expected(&p, first_row + row, first_col / MK_TILE, steps, p.x + (size_t)i * padded);
        float got = p.y[(size_t)i * p.span.rows + row];
        cr_assert_eq(mk_float_param(got), mk_float_param(want),
                     "width %d, %u vectors: row %u of vector %u is %a, not %a", width, count, row, i, (double)got,
                     (double)want);
      }
    }
  }
  stop(&p);
}

Test(matvec, the_bits_of_its_definition_in_every_width) {
  static const uint32_t counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 15, 16, 17, 64};
  for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
    expect_product(16, 16, 0, 0, counts[i]);
    expect_product(48, 1024 + 48, 16, 32, counts[i]); /* more than a chunk of steps, and not a whole number of them */
    expect_product(64, 512, 0, 0, counts[i]);
  }
}

Test(matvec, the_widest_is_one_that_the_processor_has) {
#ifdef __x86_64__
  cr_assert_eq(mk_vector_widest() == MK_VECTOR_AVX512, __builtin_cpu_supports("avx512f") != 0);
#endif
  cr_assert_leq((int)mk_vector_widest(), MK_VECTOR_AVX512);
}
