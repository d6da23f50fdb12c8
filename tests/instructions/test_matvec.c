/* Products of a weight with vectors: bit for bit the sums that matvec.c defines, in every vector width and for every
 * number of vectors. */
#include "instructions/matvec.h"

#include <criterion/criterion.h>
#include <string.h>

#include "tests/support/numbers.h"

enum { MOST_ROWS = 64, MOST_VECTORS = 64 };

typedef struct problem {
  mk_buffer buffer;
  mk_span span;
  uint16_t *elements;
  float *x, *scratch, *y;
} problem;

static void start(problem *p, uint32_t rows, uint32_t cols, uint32_t vectors, uint64_t seed) {
  *p = (problem){
      .buffer = {.rows = rows, .cols = cols, .tile_rows = MK_TILE, .tile_cols = MK_TILE, .store = MK_STORE_TILES}};
  cr_assert_eq(mk_alloc_aligned(64, (size_t)rows * cols * sizeof *p->elements, &p->elements), MK_OK);
  cr_assert_eq(mk_alloc_aligned(64, (size_t)vectors * cols * sizeof *p->x, &p->x), MK_OK);
  cr_assert_eq(mk_alloc_aligned(64, vectors * MK_MATVEC_SCRATCH((size_t)cols) * sizeof *p->scratch, &p->scratch),
               MK_OK);
  cr_assert_eq(mk_alloc_aligned(64, (size_t)vectors * rows * sizeof *p->y, &p->y), MK_OK);
  for (size_t i = 0; i < (size_t)rows * cols; i++) {
    p->elements[i] = (uint16_t)(mk_float_param(test_random_float(&seed)) >> 16);
  }
  for (size_t i = 0; i < (size_t)vectors * cols; i++) {
    p->x[i] = test_random_float(&seed);
  }
}

static void stop(problem *p) {
  mk_free(p->elements);
  mk_free(p->x);
  mk_free(p->scratch);
  mk_free(p->y);
}

/* By its definition: a row has chains of 128 columns; a chain has 16 running sums over K, by k mod 16; words 4 t and 4
 * t + 2 hold elements 2 t, 2 t + 1 and 2 t + 8, 2 t + 9. */
static float expected(const problem *p, uint32_t row, uint32_t first_col, uint32_t padded, const float *x) {
  float total = 0;
  uint32_t grid_cols = mk_buffer_grid_cols(&p->buffer);
  for (uint32_t chain = 0; chain < padded; chain += 128) {
    float sums[16] = {0}, sum = 0;
    for (uint32_t k = chain; k < chain + 128 && k < padded; k++) {
      uint16_t w = p->elements[mk_tile_offset(grid_cols, row, first_col + k)];
      sums[k % 16] += mk_bf16_to_float(w) * x[k];
    }
    for (uint32_t t = 0; t < 8; t += 2) {
      sum += (sums[t] + sums[t + 1]) + (sums[t + 8] + sums[t + 9]);
    }
    total += sum;
  }
  return total;
}

/* mk_matvec_at in every width. */
static void expect_definition(problem *p, uint32_t count) {
  uint32_t padded = (p->span.cols + MK_TILE - 1) / MK_TILE * MK_TILE;
  for (int width = MK_VECTOR_PLAIN; width <= (int)mk_vector_widest(); width++) {
    memset(p->y, 0xff, (size_t)count * p->span.rows * sizeof *p->y);
    mk_matvec_at((mk_vector_width)width, &p->span, count, p->x, p->scratch, p->y);
    for (uint32_t i = 0; i < count; i++) {
      for (uint32_t row = 0; row < p->span.rows; row++) {
        float want = expected(p, p->span.row + row, p->span.col, padded, p->x + (size_t)i * padded);
        float got = p->y[(size_t)i * p->span.rows + row];
        cr_assert_eq(mk_float_param(got), mk_float_param(want),
                     "width %d, %u vectors of %u: row %u of vector %u is %a, not %a", width, count, padded, row, i,
                     (double)got, (double)want);
      }
    }
  }
}

static void expect_product(uint32_t rows, uint32_t cols, uint32_t first_row, uint32_t first_col, uint32_t count) {
  problem p;
  start(&p, rows, cols, count, rows * 31u + cols + count);
  p.span = (mk_span){.buffer = &p.buffer,
                     .memory = (uint8_t *)p.elements,
                     .row = first_row,
                     .rows = rows - first_row,
                     .col = first_col,
                     .cols = cols - first_col};
  expect_definition(&p, count);
  stop(&p);
}

Test(matvec, the_bits_of_its_definition_in_every_width) {
  static const uint32_t counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 15, 16, 17, 64};
  for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
    expect_product(16, 16, 0, 0, counts[i]);
    expect_product(48, 1024 + 48, 16, 32, counts[i]); /* more than a chunk of chains, and not a whole number of them */
    expect_product(64, 512, 0, 0, counts[i]);
  }
}

Test(matvec, the_same_bits_for_every_number_of_columns_and_vectors) {
  static const uint32_t cols[] = {16, 128, 144, 2048, 9008, 14336}, counts[] = {1, 2, 4, 16, 64};
  for (size_t c = 0; c < sizeof cols / sizeof cols[0]; c++) {
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
      expect_product(16, cols[c], 0, 0, counts[i]);
    }
  }
}

/* Each chain's sum is exact. 1 is lost beside 2^24, 2 is not: so the result tells where chains begin, and in which
 * order they are added. */
static void expect_order_of_chains(const float *chains, uint32_t count, float want) {
  for (uint32_t first_col = 0; first_col <= 48; first_col += 48) { /* chains begin at the span's first column */
    problem p;
    start(&p, 16, first_col + count * 128, 4, 1);
    p.span = (mk_span){
        .buffer = &p.buffer, .memory = (uint8_t *)p.elements, .rows = 16, .col = first_col, .cols = count * 128};
    for (size_t i = 0; i < (size_t)16 * p.buffer.cols; i++) {
      p.elements[i] = 0x3f80; /* 1 */
    }
    memset(p.x, 0, (size_t)4 * p.buffer.cols * sizeof *p.x);
    for (uint32_t i = 0; i < 4 * count; i++) {
      p.x[i * 128 + 37 * i % 128] = chains[i % count]; /* anywhere within it */
    }
    for (int width = MK_VECTOR_PLAIN; width <= (int)mk_vector_widest(); width++) {
      for (uint32_t vectors = 1; vectors <= 4; vectors++) {
        mk_matvec_at((mk_vector_width)width, &p.span, vectors, p.x, p.scratch, p.y);
        for (uint32_t i = 0; i < vectors * 16; i++) {
          cr_assert_eq(p.y[i], want, "width %d, %u vectors, first column %u: y[%u] is %a, not %a", width, vectors,
                       first_col, i, (double)p.y[i], (double)want);
        }
      }
    }
    stop(&p);
  }
}

Test(matvec, chains_are_added_one_after_the_other) {
  expect_order_of_chains((const float[]){0x1p24f, 1, 1, 1, 1}, 5, 0x1p24f);
  expect_order_of_chains((const float[]){1, 1, 1, 1, 0x1p24f}, 5, 0x1p24f + 4);
  expect_order_of_chains((const float[]){1, 1, 0x1p24f, 0.5f, 0.5f}, 5, 0x1p24f + 2);
  expect_order_of_chains((const float[]){0x1p24f, 1, 1, -0x1p24f, 1, 1, 1, 1, 1}, 9, 5); /* beyond a chunk of four */
}

/* Ones of one chain come together before they meet 2^24, those of two chains do not. */
Test(matvec, a_chain_is_128_columns) {
  static const struct {
    uint32_t first, second;
    float want;
  } ones[] = {{15, 126, 0x1p24f + 2}, {126, 143, 0x1p24f}, {143, 254, 0x1p24f + 2}, {14, 271, 0x1p24f}};
  problem p;
  start(&p, 16, 272, 1, 1);
  p.span = (mk_span){.buffer = &p.buffer, .memory = (uint8_t *)p.elements, .rows = 16, .cols = 272};
  for (size_t i = 0; i < (size_t)16 * 272; i++) {
    p.elements[i] = 0x3f80;
  }
  for (size_t i = 0; i < sizeof ones / sizeof ones[0]; i++) {
    memset(p.x, 0, 272 * sizeof *p.x);
    p.x[0] = 0x1p24f;
    p.x[ones[i].first] = p.x[ones[i].second] = 1;
    expect_definition(&p, 1);
    cr_assert_eq(p.y[0], ones[i].want, "ones at %u and %u: %a, not %a", ones[i].first, ones[i].second, (double)p.y[0],
                 (double)ones[i].want);
  }
  stop(&p);
}

Test(matvec, the_widest_is_one_that_the_processor_has) {
#ifdef __x86_64__
  cr_assert_eq(mk_vector_widest() == MK_VECTOR_AVX512, __builtin_cpu_supports("avx512f") != 0);
#endif
  cr_assert_leq((int)mk_vector_widest(), MK_VECTOR_AVX512);
}
