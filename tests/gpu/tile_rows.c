/* See tile_run.h: what attention of wide steps takes of the tile library, bit for bit as plain C loops have it. */
#include <math.h>
#include <string.h>

#include "instructions/reference.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/tile_run.h"

/* The eight of rows that is the n-th of squares of 32 rows. */
static uint32_t rows_in_squares(uint32_t squares, uint32_t n) { return n % squares * 4 + n / squares; }

/* Rows of sums: what is hidden, the largest, powers of two below it, their sum, factors; the diagonal at different
 * places. */
static void test_rows_of_sums(tile_gpu *gpu) {
  enum { SIDE = 64, PART = 32 };
  typedef struct rows_out {
    float left[SIDE][PART], powers[SIDE][PART], top[SIDE], total[SIDE], scaled[SIDE][SIDE];
  } rows_out;
  static float in[SIDE + 1][SIDE];
  static rows_out got, want;
  static const uint32_t firsts[] = {0, 100, 132, 147, 164};
  uint64_t seed = 13;
  for (size_t i = 0; i < sizeof firsts / sizeof firsts[0]; i++) {
    for (uint32_t j = 0; j < SIDE * SIDE; j++) {
      in[j / SIDE][j % SIDE] = (float)(random_word(&seed) % 12) - 8.0f;
    }
    for (uint32_t r = 0; r < SIDE; r++) {
      in[SIDE][r] = i == 0 ? 1.0f : (float)(1u << random_word(&seed) % 3);
      want.top[r] = -12.0f, want.total[r] = 0;
      for (uint32_t c = 0; c < PART; c++) {
        want.left[r][c] = firsts[i] + c <= 100 + r ? in[r][PART + c] : -INFINITY;
        want.top[r] = fmaxf(want.top[r], want.left[r][c]);
      }
      for (uint32_t c = 0; c < PART; c++) {
        want.powers[r][c] = exp2f(want.left[r][c] - want.top[r]);
        want.total[r] += want.powers[r][c];
      }
      for (uint32_t c = 0; c < SIDE; c++) {
        want.scaled[r][c] = 3.0f * in[r][c] * in[SIDE][r];
      }
    }
    tile_run run = {"mk_tile_rows", 1, 128, 0, firsts[i], in, sizeof in, &got, sizeof got, NULL, 0};
    if (tile_ran(gpu, &run)) {
      expect_words("mk_tile_rows: hidden", got.left, want.left, SIDE * PART, PART);
      expect_words("mk_tile_rows: powers", got.powers, want.powers, SIDE * PART, PART);
      expect_words("mk_tile_rows: largest", got.top, want.top, SIDE, 1);
      expect_words("mk_tile_rows: sums", got.total, want.total, SIDE, 1);
      expect_words("mk_tile_rows: factors", got.scaled, want.scaled, SIDE * SIDE, SIDE);
    }
  }
}

static void test_rows_in_memory(tile_gpu *gpu) {
  enum { SIDE = 64, STRIDE = 80, SCALE = 3 };
  typedef struct rows_memory {
    uint16_t left[SIDE][SIDE], stored[SIDE][STRIDE];
  } rows_memory;
  static float in[SIDE][STRIDE];
  static rows_memory got, want;
  static const uint32_t counts[] = {64, 1, 9, 16, 40, 63};
  uint64_t seed = 14;
  for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
    memset(&want, 0xff, sizeof want);
    for (uint32_t r = 0; r < SIDE; r++) {
      for (uint32_t c = 0; c < STRIDE; c++) {
        in[r][c] = (float)(int32_t)random_word(&seed) * 0x1p-31f;
        if (c < SIDE) {
          want.left[r][c] = r < counts[i] ? mk_float_to_bf16(in[r][c] * SCALE) : 0;
        }
        if (c < SIDE && r < counts[i]) {
          want.stored[r][rows_in_squares(2, c / 8) * 8 + c % 8] =
              mk_float_to_bf16(mk_bf16_to_float(want.left[r][c]) * 3.0f);
        }
      }
    }
    tile_run run = {"mk_tile_rows_memory", 1, 128, counts[i], SCALE, in, sizeof in, &got, sizeof got, NULL, 0};
    if (tile_ran(gpu, &run)) {
      expect_words(run.kernel, &got, &want, sizeof got / 4, SIDE / 2);
    }
  }
}

void test_tile_rows(tile_gpu *gpu) {
  test_rows_of_sums(gpu);
  test_rows_in_memory(gpu);
}

/* Right operands that come as tiles: of 64 and 128 columns in strips, of 64 and 128 rows in squares, some columns of
 * these left out. */
void test_tile_packed(tile_gpu *gpu) {
  enum { SIDE = 64, MOST = 128 };
  static const struct {
    const char *kernel;
    uint32_t rows, columns, squares, present;
  } cases[] = {{"mk_tile_wgmma_strips_64", 64, 64, 0, 64},  {"mk_tile_wgmma_strips_128", 64, 128, 0, 128},
               {"mk_tile_wgmma_squares_64", 64, 64, 2, 64}, {"mk_tile_wgmma_squares_128", 128, 64, 4, 64},
               {"mk_tile_wgmma_squares_64", 64, 64, 2, 17}, {"mk_tile_wgmma_squares_128", 128, 64, 4, 48},
               {"mk_tile_wgmma_squares_128", 128, 64, 4, 1}};
  static uint16_t in[2 * SIDE * MOST], right[MOST][MOST];
  static float got[SIDE * MOST], want[SIDE * MOST];
  uint64_t seed = 12;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    uint32_t rows = cases[i].rows, columns = cases[i].columns, squares = cases[i].squares;
    for (uint32_t j = 0; j < SIDE * columns; j++) {
      in[j] = small_number(&seed);
    }
    for (uint32_t r = 0; r < rows; r++) {
      for (uint32_t k = 0; k < columns; k++) {
        uint32_t tile = squares != 0 ? k / MK_TILE * (rows / MK_TILE) + r / MK_TILE
                                     : r / MK_TILE * (columns / MK_TILE) + k / MK_TILE;
        right[r][k] = in[SIDE * columns + tile * MK_TILE_STEP_ELEMENTS + mk_step_offset(r, k)] = small_number(&seed);
        if (k / MK_TILE * MK_TILE >= cases[i].present) {
          right[r][k] = 0;
          in[SIDE * columns + tile * MK_TILE_STEP_ELEMENTS + mk_step_offset(r, k)] = 0x7fc0; /* not a number */
        }
      }
    }
    for (uint32_t l = 0; l < SIDE; l++) {
      for (uint32_t n = 0; n < rows; n++) {
        uint32_t r = squares != 0 ? rows_in_squares(squares, n / 8) * 8 + n % 8 : n;
        float sum = 0;
        for (uint32_t k = 0; k < columns; k++) {
          sum += mk_bf16_to_float(in[l * columns + k]) * mk_bf16_to_float(right[r][k]);
        }
        want[l * rows + n] = sum;
      }
    }
    tile_run run = {.kernel = cases[i].kernel,
                    .blocks = 1,
                    .threads = 128,
                    .count = cases[i].present,
                    .in = in,
                    .in_bytes = sizeof in,
                    .out = got,
                    .out_bytes = SIDE * rows * sizeof *got};
    if (tile_ran(gpu, &run)) {
      expect_words(run.kernel, got, want, SIDE * rows, rows);
    }
  }
}
