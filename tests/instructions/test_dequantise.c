/* Quantised weights: every form against its definition, and products of them against products of the bf16 weights that
 * they stand for, bit for bit. */
#include "instructions/dequantise.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "instructions/matvec.h"
#include "tests/support/numbers.h"

enum { ROWS = 32, COLS = 512, STEPS = COLS / MK_TILE, MOST_VECTORS = 5 };

typedef struct weight {
  mk_buffer buffer;
  uint8_t *strips;
  uint16_t *plain; /* the same as bf16, in tiles */
} weight;

static const mk_scale scales[] = {MK_SCALE_F32, MK_SCALE_BF16, MK_SCALE_F16};

static float number_of(mk_dtype dtype, uint32_t code, uint32_t zero) {
  if (dtype == MK_DTYPE_I4) {
    return (float)code - (float)zero;
  }
  if (dtype == MK_DTYPE_I8) {
    return (float)(code < 128 ? (int)code : (int)code - 256);
  }
  const int exponent = (int)(code >> 3 & 15), fraction = (int)(code & 7);
  const double size = (code & 127) == 127 ? NAN
                      : exponent == 0     ? ldexp(fraction, -9)
                                          : ldexp(8 + fraction, exponent - 10);
  return (float)((code & 128) != 0 ? -size : size);
}

static float random_scale(mk_scale scale, uint64_t *seed, uint8_t bytes[4]) {
  float value = test_random_float(seed);
  uint32_t bits = mk_float_param(value);
  uint16_t half = scale == MK_SCALE_BF16 ? (uint16_t)(bits >> 16) : mk_float_to_half(value);
  memcpy(bytes, scale == MK_SCALE_F32 ? (const void *)&bits : &half, mk_scale_bytes(scale));
  return scale == MK_SCALE_F32 ? value : scale == MK_SCALE_BF16 ? mk_bf16_to_float(half) : mk_half_to_float(half);
}

/* Random codes, every one of them, also those that are no numbers if `nan`. */
static void start(weight *w, mk_dtype dtype, mk_scale scale, uint32_t scale_cols, bool zeros, bool nan, uint64_t seed) {
  *w = (weight){.buffer = {.kind = MK_KIND_WEIGHT,
                           .dtype = (uint8_t)dtype,
                           .store = MK_STORE_TILES,
                           .scale = (uint8_t)scale,
                           .scale_cols = (uint8_t)scale_cols,
                           .zeros = zeros,
                           .rows = ROWS,
                           .cols = COLS,
                           .tile_rows = MK_TILE,
                           .tile_cols = MK_TILE}};
  const uint64_t bytes = mk_buffer_bytes(&w->buffer), tile = mk_tiles_bytes(&w->buffer, 1, 0, STEPS);
  cr_assert_eq(bytes, 2 * tile);
  cr_assert_eq(mk_alloc_aligned(64, bytes, &w->strips), MK_OK);
  cr_assert_eq(mk_alloc_aligned(64, (size_t)ROWS * COLS * sizeof *w->plain, &w->plain), MK_OK);
  for (uint32_t row = 0; row < ROWS; row++) {
    float value = 0;
    uint32_t zero = 8;
    for (uint32_t col = 0; col < COLS; col++) {
      uint8_t *strip = w->strips + row / MK_TILE * tile + (uint64_t)(col / MK_STRIP_COLS) * mk_strip_bytes(&w->buffer);
      uint8_t *tail = strip + mk_strip_codes(&w->buffer);
      uint32_t shift, code = test_random_below(&seed, dtype == MK_DTYPE_I4 ? 16 : 256);
      uint32_t index = col % MK_STRIP_COLS / scale_cols * MK_TILE + mk_strip_row(row);
      if (col % scale_cols == 0) {
        value = random_scale(scale, &seed, tail + (size_t)index * mk_scale_bytes(scale));
        zero = zeros ? test_random_below(&seed, 16) : 8;
        if (zeros) {
          tail[mk_strip_scales(&w->buffer) + index] = (uint8_t)zero;
        }
      }
      code = !nan && dtype == MK_DTYPE_E4M3 && (code & 127) == 127 ? 126 : code;
      const uint32_t offset = mk_strip_offset(dtype, row % MK_TILE, col % MK_STRIP_COLS, &shift);
      strip[offset] |= (uint8_t)(code << shift);
      w->plain[mk_tile_offset(STEPS, row, col)] = mk_float_to_bf16(value * number_of(dtype, code, zero));
    }
  }
}

static void stop(weight *w) {
  mk_free(w->strips);
  mk_free(w->plain);
}

typedef void (*look)(const weight *w, const char *what);

static void every_form(bool nan, look with) {
  static const mk_dtype dtypes[] = {MK_DTYPE_E4M3, MK_DTYPE_I8, MK_DTYPE_I4, MK_DTYPE_I4};
  char what[80];
  for (uint32_t d = 0; d < 4; d++) {
    for (uint32_t s = 0; s < 3; s++) {
      for (uint32_t cols = 32; cols <= 128; cols *= 2) {
        weight w;
        snprintf(what, sizeof what, "%s, scales %s of %u columns%s", mk_dtype_name(dtypes[d]), mk_scale_name(scales[s]),
                 cols, d == 3 ? ", zeros" : "");
        start(&w, dtypes[d], scales[s], cols, d == 3, nan, cols + s);
        with(&w, what);
        stop(&w);
      }
    }
  }
}

static void look_at_steps(const weight *w, const char *what) {
  uint16_t out[COLS * MK_TILE];
  for (uint32_t row = 0; row < ROWS; row += MK_TILE) {
    const uint8_t *tile = w->strips + row / MK_TILE * mk_tiles_bytes(&w->buffer, 1, 0, STEPS);
    for (uint32_t first = 0; first < STEPS; first += 3) {
      const uint32_t steps = STEPS - first < 13 ? STEPS - first : 13;
      mk_dequantise(&w->buffer, tile, first, steps, out);
      const uint16_t *want = w->plain + mk_tile_offset(STEPS, row, first * MK_TILE);
      for (uint32_t i = 0; i < steps * MK_TILE_STEP_ELEMENTS; i++) {
        cr_assert_eq(out[i], want[i], "%s: row %u, step %u, element %u: %04x, not %04x", what, row, first, i, out[i],
                     want[i]);
      }
    }
  }
}
Test(dequantise, every_form_by_its_definition) { every_form(true, look_at_steps); }

static void look_at_products(const weight *w, const char *what) {
  enum { FIRST = 5, TILES = STEPS - FIRST, COLUMNS = TILES * MK_TILE };
  const mk_buffer plain = {
      .dtype = MK_DTYPE_BF16, .store = MK_STORE_TILES, .rows = ROWS, .cols = COLS, .tile_rows = 16, .tile_cols = 16};
  float *memory, *x, *scratch, *y[2];
  uint64_t seed = 7;
  cr_assert_eq(
      mk_alloc_aligned(64, (size_t)MOST_VECTORS * (COLUMNS + MK_MATVEC_SCRATCH(COLUMNS) + 2 * ROWS) * 4, &memory),
      MK_OK);
  x = memory, scratch = x + MOST_VECTORS * COLUMNS, y[0] = scratch + MOST_VECTORS * MK_MATVEC_SCRATCH(COLUMNS);
  y[1] = y[0] + MOST_VECTORS * ROWS;
  for (uint32_t i = 0; i < MOST_VECTORS * COLUMNS; i++) {
    x[i] = test_random_float(&seed);
  }
  for (uint32_t vectors = 1; vectors <= MOST_VECTORS; vectors += MOST_VECTORS - 1) {
    for (mk_vector_width width = MK_VECTOR_PLAIN; width <= mk_vector_widest(); width++) {
      for (uint32_t i = 0; i < 2; i++) {
        const mk_span span = {.buffer = i == 0 ? &plain : &w->buffer,
                              .memory = i == 0 ? (uint8_t *)w->plain : w->strips,
                              .rows = ROWS,
                              .col = FIRST * MK_TILE,
                              .cols = COLUMNS};
        mk_matvec_at(width, &span, vectors, x, scratch, y[i]);
      }
      cr_assert_arr_eq(y[0], y[1], vectors * ROWS * sizeof *x, "%s: %u vectors, width %d", what, vectors, (int)width);
    }
  }
  mk_free(memory);
}
Test(dequantise, products_are_those_of_bf16) { every_form(false, look_at_products); }

Test(dequantise, corners_of_e4m3) {
  cr_expect_eq(mk_e4m3_to_float(0x7e), 448);
  cr_expect_eq(mk_e4m3_to_float(0xfe), -448);
  cr_expect_eq(mk_e4m3_to_float(0x01), 0x1p-9f);
  cr_expect_eq(mk_e4m3_to_float(0x08), 0x1p-6f);
  cr_expect(mk_e4m3_to_float(0x80) == 0 && signbit(mk_e4m3_to_float(0x80)));
  cr_expect(isnan(mk_e4m3_to_float(0x7f)) && isnan(mk_e4m3_to_float(0xff)));
  for (uint32_t code = 0; code < 256; code++) {
    const float want = number_of(MK_DTYPE_E4M3, code, 0), got = mk_e4m3_to_float((uint8_t)code);
    cr_expect(got == want || (isnan(got) && isnan(want)), "code %u", code);
  }
}

/* By a search for the nearest, of numbers between all neighbours and beyond. */
Test(dequantise, numbers_to_e4m3) {
  for (uint32_t i = 0; i < 126 * 8; i++) {
    const uint32_t code = i / 8;
    const float low = number_of(MK_DTYPE_E4M3, code, 0), high = number_of(MK_DTYPE_E4M3, code + 1, 0);
    const float x = low + (high - low) * (float)(i % 8) / 8;
    const uint32_t want = code + (i % 8 > 4 || (i % 8 == 4 && code % 2 == 1));
    cr_expect_eq(mk_float_to_e4m3(x), want, "%g: %02x, not %02x", (double)x, mk_float_to_e4m3(x), want);
    cr_expect_eq(mk_float_to_e4m3(-x), want | 128, "%g", (double)-x);
  }
  cr_expect_eq(mk_float_to_e4m3(1e9f), 0x7e);
  cr_expect_eq(mk_float_to_e4m3(-INFINITY), 0xfe);
  cr_expect_eq(mk_float_to_e4m3(NAN), 0x7f);
}

Test(dequantise, corners_of_scales) {
  static const float corners[] = {0, -1.5f, 0x1p-140f, INFINITY, NAN, 3.4e38f};
  for (size_t i = 0; i < sizeof corners / sizeof corners[0]; i++) {
    mk_buffer b = {.kind = MK_KIND_WEIGHT,
                   .dtype = MK_DTYPE_I4,
                   .store = MK_STORE_TILES,
                   .scale = MK_SCALE_F32,
                   .scale_cols = 128,
                   .zeros = 1,
                   .rows = 16,
                   .cols = 128,
                   .tile_rows = 16,
                   .tile_cols = 16};
    uint8_t strip[4096] = {0};
    uint16_t out[8 * MK_TILE_STEP_ELEMENTS];
    cr_assert_eq(mk_buffer_bytes(&b), 1024 + 64 + 16);
    memset(strip, 0xf0, 1024); /* codes 0 and 15 */
    for (uint32_t row = 0; row < 16; row++) {
      memcpy(strip + 1024 + 4 * row, &corners[i], 4);
      strip[1024 + 64 + row] = row < 8 ? 15 : 0; /* zeros at both ends */
    }
    mk_dequantise(&b, strip, 0, 8, out);
    for (uint32_t row = 0; row < 16; row++) {
      for (uint32_t col = 0; col < 128; col++) {
        uint32_t shift;
        const uint32_t offset = mk_strip_offset(MK_DTYPE_I4, row, col, &shift);
        const uint32_t code = strip[offset] >> shift & 15;
        const float want = corners[i] * ((float)code - (mk_strip_row(row) < 8 ? 15.0f : 0.0f));
        cr_expect_eq(out[mk_tile_offset(8, row, col)], mk_float_to_bf16(want), "scale %g, row %u, col %u",
                     (double)corners[i], row, col);
      }
    }
  }
}

/* The scale and the numbers of a head of four, by hand. */
static void expect_head(const float x[4], float scale, const float read[4]) {
  uint8_t codes[4];
  const uint16_t bits = mk_quantise_head(x, 4, codes);
  cr_assert_eq(mk_float_param(mk_bf16_to_float(bits)), mk_float_param(scale), "scale of %a %a: %a, not %a",
               (double)x[0], (double)x[1], (double)mk_bf16_to_float(bits), (double)scale);
  for (uint32_t i = 0; i < 4; i++) {
    const float have = mk_bf16_to_float(mk_dequantise_element(bits, codes[i]));
    cr_assert(isnan(read[i]) ? isnan(have) : mk_float_param(have) == mk_float_param(read[i]), "%a became %a, not %a",
              (double)x[i], (double)have, (double)read[i]);
  }
}

Test(dequantise, a_head_of_a_cache) {
  expect_head((float[]){0, -0.0f, 0, 0}, 0, (float[]){0, -0.0f, 0, 0});
  expect_head((float[]){448, 1, 17, -19}, 1, (float[]){448, 1, 16, -20});
  expect_head((float[]){449, 1, 17, -19}, 2, (float[]){448, 1, 16, -20});
  expect_head((float[]){1, 0.5f, 0x1p-9f, 0x1p-10f}, 0x1p-8f, (float[]){1, 0.5f, 0x1p-9f, 0x1p-10f});
  expect_head((float[]){256, 0x1p-9f, 0x1p-10f, 0x1.8p-10f}, 1, (float[]){256, 0x1p-9f, 0, 0x1p-9f});
  /* the largest and the smallest */
  expect_head((float[]){0x1.fffffep127f, -0x1p120f, 0, 0}, 0x1p120f, (float[]){INFINITY, -0x1p120f, 0, 0});
  expect_head((float[]){0x1.cp127f, 0, 0, 0}, 0x1p119f, (float[]){0x1.cp127f, 0, 0, 0});
  expect_head((float[]){0x1p-126f, 0x1p-149f, -0x1p-127f, 0}, 0x1p-117f, (float[]){0x1p-126f, 0, -0.0f, 0});
  expect_head((float[]){0x1p-149f, 0, 0, 0}, 0x1p-117f, (float[]){0, 0, 0, 0});
  /* what is not finite is not hidden, and does not count */
  expect_head((float[]){NAN, 1, 2, 3}, 0x1p-7f, (float[]){NAN, 1, 2, 3});
  expect_head((float[]){-INFINITY, 1, INFINITY, 3}, 0x1p-7f, (float[]){NAN, 1, NAN, 3});
  expect_head((float[]){NAN, 0, INFINITY, 0}, 0, (float[]){NAN, 0, NAN, 0});
}

/* Within half a unit of four bits, or of the smallest codes; and what was read is stored to the same bits. */
Test(dequantise, a_head_keeps_four_bits) {
  uint64_t seed = 5;
  for (uint32_t i = 0; i < 20000; i++) {
    float x[64], again[64];
    uint8_t codes[64], others[64];
    const float size = ldexpf(1, (int)test_random_below(&seed, 200) - 100);
    for (uint32_t d = 0; d < 64; d++) {
      x[d] = test_random_float(&seed) * ldexpf(size, -(int)test_random_below(&seed, 20));
    }
    const uint16_t scale = mk_quantise_head(x, 64, codes);
    for (uint32_t d = 0; d < 64; d++) {
      again[d] = mk_bf16_to_float(mk_dequantise_element(scale, codes[d]));
      cr_assert_leq(fabsf(again[d] - x[d]), fmaxf(0x1p-4f * fabsf(x[d]), 0x1p-10f * mk_bf16_to_float(scale)));
    }
    const uint16_t other = mk_quantise_head(again, 64, others);
    for (uint32_t d = 0; d < 64; d++) {
      const float third = mk_bf16_to_float(mk_dequantise_element(other, others[d]));
      cr_assert_eq(mk_float_param(third), mk_float_param(again[d]));
    }
  }
}

/* Tokens of a block as a bf16 cache has them: all codes, NaN as well, and any scale (exponents of 0), or powers of
 * two. */
static void expect_tokens(uint32_t head_dim, uint32_t block_tokens, const int exponents[2], uint64_t seed) {
  const mk_buffer b = {.kind = MK_KIND_KV,
                       .dtype = MK_DTYPE_E4M3,
                       .store = MK_STORE_BLOCKS,
                       .scale = MK_SCALE_BF16,
                       .scale_cols = (uint8_t)head_dim,
                       .head_dim = (uint16_t)head_dim,
                       .block_tokens = block_tokens,
                       .span_tokens = block_tokens,
                       .blocks = 1,
                       .rows = 1,
                       .cols = 1,
                       .tile_rows = 1,
                       .tile_cols = 1};
  uint8_t *pair, *seen;
  cr_assert_eq(mk_buffer_bytes(&b), 2 * (uint64_t)block_tokens * (head_dim + 2));
  cr_assert_eq(mk_alloc(mk_buffer_bytes(&b), 1, &pair), MK_OK);
  cr_assert_eq(mk_alloc(mk_buffer_bytes(&b), 1, &seen), MK_OK);
  for (uint32_t which = 0; which < 2; which++) {
    uint8_t *half = pair + which * mk_half_bytes(&b);
    for (uint32_t t = 0; t < block_tokens; t++) {
      const uint32_t exponent = test_random_below(&seed, (uint32_t)(exponents[1] - exponents[0] + 1));
      const float power = ldexpf(1, exponents[0] + (int)exponent);
      const uint16_t scale = mk_float_to_bf16(exponents[1] == 0 ? test_random_float(&seed) : power);
      memcpy(half + mk_half_scale(&b, which, t), &scale, sizeof scale);
      seen[which * mk_half_bytes(&b) + mk_half_scale(&b, which, t)]++;
      seen[which * mk_half_bytes(&b) + mk_half_scale(&b, which, t) + 1]++;
      for (uint32_t d = 0; d < head_dim; d++) {
        half[mk_half_code(&b, which, t, d)] = (uint8_t)test_random_below(&seed, 256);
        seen[which * mk_half_bytes(&b) + mk_half_code(&b, which, t, d)]++;
      }
    }
    for (uint32_t t = 0; t < block_tokens; t++) {
      uint16_t out[MK_TILE * 128], scale;
      mk_dequantise_tokens(&b, half, which, t / MK_TILE * MK_TILE, out);
      memcpy(&scale, half + mk_half_scale(&b, which, t), sizeof scale);
      for (uint32_t d = 0; d < head_dim; d++) {
        const uint64_t at = mk_block_offset(block_tokens, head_dim, which, t, d) -
                            mk_block_offset(block_tokens, head_dim, which, t / MK_TILE * MK_TILE, 0);
        cr_assert_eq(out[at], mk_dequantise_element(scale, half[mk_half_code(&b, which, t, d)]),
                     "which %u, token %u, dim %u", which, t, d);
      }
    }
  }
  for (uint64_t i = 0; i < mk_buffer_bytes(&b); i++) {
    cr_assert_eq(seen[i], 1, "byte %llu is of %u things", (unsigned long long)i, seen[i]);
  }
  mk_free(pair);
  mk_free(seen);
}

Test(dequantise, tokens_of_a_cache) {
  static const int any[] = {0, 0}, usual[] = {-20, -1}, all[] = {-117, 119}, beyond[] = {-117, 120},
                   too_small[] = {-126, 5};
  expect_tokens(64, 64, any, 1);
  expect_tokens(128, 64, any, 2);
  expect_tokens(128, 32, any, 3);
  for (uint64_t seed = 4; seed < 40; seed++) { /* powers of two */
    expect_tokens(64, 64, usual, seed);
    expect_tokens(128, 64, all, seed);
    expect_tokens(128, 64, beyond, seed);
    expect_tokens(64, 32, too_small, seed);
  }
}
