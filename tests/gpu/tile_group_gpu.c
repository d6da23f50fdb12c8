/* Tiles of a warpgroup on the GPU (tests/gpu/tile/group.cu), against plain C loops: products of small whole numbers,
 * which are exact in any order, and what a number that is none touches. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "instructions/reference.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/tile/tile_test.h"
#include "tests/gpu/tile_run.h"

enum { LINES = MK_GROUP_LINES, ROWS = MK_GROUP_ROWS, STEPS = MK_GROUP_STEPS, COLS = STEPS * 16 };
enum { CHAIN_ELEMENTS = ROWS * COLS, STEP_WORDS = 128 };

/* Element of a chain of 64 rows as it lies in memory: row tile by row tile, steps side by side. */
static size_t place_of(uint32_t row, uint32_t col) {
  return ((size_t)(row / 16) * STEPS + col / 16) * MK_TILE_STEP_ELEMENTS + mk_step_offset(row, col);
}

static void test_load(tile_gpu *gpu, uint32_t count) {
  const size_t words = (size_t)count * CHAIN_ELEMENTS / 2;
  uint32_t *in = random_words(words, 21), *got = new_bytes(words * 4), *want = new_bytes(words * 4);
  for (uint32_t kept = 0; kept <= STEPS; kept++) {
    for (size_t i = 0; i < words; i++) {
      want[i] = i / STEP_WORDS % STEPS < kept ? in[i] : 0;
    }
    const tile_run run = {"mk_tile_group_load", 1, 128, count, kept, in, words * 4, got, words * 4, NULL, 0};
    if (tile_ran(gpu, &run)) {
      expect_words(run.kernel, got, want, words, STEP_WORDS);
    }
  }
  free(in);
  free(got);
  free(want);
}

typedef struct product {
  const char *kernel;
  uint32_t first, lines; /* that are multiplied; sums of others stay zero */
  uint32_t chains, cols; /* of which the last chain has what is left */
  uint16_t *in;          /* weight, then lines */
  size_t in_bytes;
  float *got, *want; /* [line][row] */
} product;

static uint16_t *weight_at(const product *p, uint32_t row, uint32_t col) {
  return p->in + (size_t)col / COLS * CHAIN_ELEMENTS + place_of(row, col % COLS);
}
static uint16_t *line_at(const product *p, uint32_t line, uint32_t col) {
  return p->in + (size_t)p->chains * CHAIN_ELEMENTS + (size_t)line * p->chains * COLS + col;
}

static bool multiplies(const product *p, uint32_t line) { return line >= p->first && line < p->first + p->lines; }

/* Of 16 elements a side, what is beyond the columns in use is a NaN of the weight, or a number of the lines. */
static product new_product(uint32_t cols, uint32_t lines, uint64_t seed) {
  product p = {.kernel = lines == LINES       ? "mk_tile_group_chains"
                         : lines == LINES / 2 ? "mk_tile_group_half_chains"
                                              : "mk_tile_group_quarter_chains",
               .first = lines == LINES / 4 ? LINES / 4 : 0,
               .lines = lines,
               .chains = (cols + COLS - 1) / COLS,
               .cols = cols};
  p.in_bytes = (size_t)p.chains * COLS * (ROWS + LINES) * 2;
  p.in = new_bytes(p.in_bytes);
  p.got = new_bytes(sizeof(float) * LINES * ROWS);
  p.want = new_bytes(sizeof(float) * LINES * ROWS);
  for (uint32_t col = 0; col < p.chains * COLS; col++) {
    for (uint32_t row = 0; row < ROWS; row++) {
      *weight_at(&p, row, col) =
          col < cols ? mk_float_to_bf16((float)(random_word(&seed) % 17) - 8.0f) : (uint16_t)0x7fc0;
    }
    for (uint32_t line = 0; line < LINES; line++) {
      *line_at(&p, line, col) = mk_float_to_bf16((float)(random_word(&seed) % 17) - 8.0f);
    }
  }
  for (uint32_t line = 0; line < LINES; line++) {
    for (uint32_t row = 0; row < ROWS; row++) {
      float sum = 0.0f;
      for (uint32_t col = 0; multiplies(&p, line) && col < cols; col++) {
        sum += mk_bf16_to_float(*weight_at(&p, row, col)) * mk_bf16_to_float(*line_at(&p, line, col));
      }
      p.want[line * ROWS + row] = sum;
    }
  }
  return p;
}

static void free_product(product *p) {
  free(p->in);
  free(p->got);
  free(p->want);
}

static bool multiply(tile_gpu *gpu, const product *p) {
  const size_t bytes = sizeof(float) * LINES * ROWS;
  const tile_run run = {.kernel = p->kernel,
                        .blocks = 1,
                        .threads = 128,
                        .count = p->chains,
                        .first = (p->cols - (p->chains - 1) * COLS) / 16,
                        .in = p->in,
                        .in_bytes = p->in_bytes,
                        .out = p->got,
                        .out_bytes = bytes};
  memset(p->got, 0xff, bytes); /* not a number, should nothing be written */
  return tile_ran(gpu, &run);
}

/* With a NaN in one line, or in one row: all of its sums are none, and no others. line, row: LINES, ROWS: none. */
static void expect_spoilt(tile_gpu *gpu, const product *p, uint32_t line, uint32_t row) {
  bool there = true;
  if (!multiply(gpu, p)) {
    return;
  }
  for (uint32_t i = 0; i < LINES * ROWS; i++) {
    if (multiplies(p, i / ROWS) && (i / ROWS == line || i % ROWS == row)) {
      there = there && isnan(p->got[i]);
      p->got[i] = p->want[i];
    }
  }
  expect(there, p->kernel, "a NaN does not reach every sum of its line, or of its row");
  expect_words(p->kernel, p->got, p->want, (size_t)LINES * ROWS, ROWS); /* nor any other one */
}

static void test_chains(tile_gpu *gpu, uint32_t lines, bool quick) {
  static const uint32_t cols[] = {128, 16, 272, 384, 48, 112, 240, 640, 1136, 2048};
  const uint32_t shapes = quick ? 4 : sizeof cols / sizeof cols[0];
  for (uint32_t i = 0; i < shapes; i++) {
    product p = new_product(cols[i], lines, 31 + i);
    if (multiply(gpu, &p)) {
      expect_words(p.kernel, p.got, p.want, (size_t)LINES * ROWS, ROWS);
    }
    const uint32_t places = quick ? 1 : 4;
    for (uint32_t n = 0; n < places; n++) { /* anywhere in a warp's rows, a panel, a step */
      const uint32_t line = (n * 37 + i * 5 + 9) % LINES, row = (n * 23 + i * 3 + 7) % ROWS;
      const uint32_t col = (n * 51 + 15) % cols[i];
      const uint16_t of_line = *line_at(&p, line, col), of_row = *weight_at(&p, row, col);
      *line_at(&p, line, col) = 0x7fc0;
      expect_spoilt(gpu, &p, line, ROWS);
      *line_at(&p, line, col) = of_line;
      *weight_at(&p, row, col) = 0x7fc0;
      expect_spoilt(gpu, &p, LINES, row);
      *weight_at(&p, row, col) = of_row;
    }
    free_product(&p);
  }
}

/* Any bits, the special ones among them; which NaN comes out is not promised. Lines go by batches, and those of others
 * than the first `lines` stay as they were. */
static void test_pairs(tile_gpu *gpu, uint32_t count, uint32_t lines) {
  enum { BATCH = 32, UNTOUCHED = 0xffff };
  static const uint32_t special[] = {0,          0x80000000, 0x7f800000, 0xff800000, 0x7fc00000, 0x00000001,
                                     0x3f808000, 0x3f818000, 0x3f807fff, 0x7f7fffff, 0x00800000, 0x3f808001};
  const size_t elements = (size_t)count * LINES * ROWS;
  uint32_t *in = random_words(elements, 41);
  uint16_t *got = new_bytes(elements * 2), *want = new_bytes(elements * 2);
  for (size_t i = 0; i < elements; i += 5) {
    in[i] = special[i / 5 % (sizeof special / sizeof special[0])];
  }
  const tile_run run = {"mk_tile_group_pairs", 1, 128, count, lines, in, elements * 4, got, elements * 2, NULL, 0};
  if (tile_ran(gpu, &run)) {
    for (size_t i = 0; i < elements; i++) {
      const float value = mk_param_float(in[i] ^ 0x80000000u);
      want[i] = i / ROWS % LINES / BATCH * BATCH >= lines    ? (uint16_t)UNTOUCHED
                : isnan(value) && (got[i] & 0x7fff) > 0x7f80 ? got[i]
                                                             : mk_float_to_bf16(value);
    }
    expect_words(run.kernel, got, want, elements / 2, ROWS / 2);
  }
  free(in);
  free(got);
  free(want);
}

void test_groups(tile_gpu *gpu, bool quick) {
  test_load(gpu, quick ? 1 : 5);
  test_chains(gpu, LINES, quick);
  test_chains(gpu, LINES / 2, quick);
  test_chains(gpu, LINES / 4, quick);
  test_pairs(gpu, quick ? 2 : 40, LINES);
  test_pairs(gpu, 2, LINES / 2);
  test_pairs(gpu, 2, LINES / 4 + 1);
  test_pairs(gpu, 2, 1);
}
