/* y = W x over weight tiles: the loop all linear opcodes share.
 *
 * A step of 512 bytes holds a 16 x 16 tile in fragment order (program.h). The 16 words of two bf16 that belong to row pair g lie
 * side by side; words 4 t and 4 t + 2 are of row g, words 4 t + 1 and 4 t + 3 of row g + 8. A shift gives the even elements
 * of all words as fp32, a mask the odd ones; x is expanded once to match. Each of the 32 sums runs over K in order, and
 * they are added in a fixed order at the end. Vectors take turns at a row tile, which stays in the cache. No fused multiply-add
 * (-ffp-contract=off): the same bits on every x86-64. */
#include <string.h>

#include "instructions/reference.h"

typedef float float16 __attribute__((vector_size(64)));
typedef uint32_t word16 __attribute__((vector_size(64)));

enum { STEPS_PER_CHUNK = 32 }; /* 16 KiB: stays in the first-level cache while four groups of rows pass over it */

/* even += W_even * x[0]; odd += W_odd * x[1]. (By pointer: passing vectors by value would depend on the clone's ABI.) */
static inline __attribute__((always_inline)) void add_products(float16 *even, float16 *odd, const uint16_t *w,
                                                               const float16 *x) {
  word16 raw, low, high;
  float16 low_float, high_float;
  memcpy(&raw, w, sizeof raw);
  low = raw << 16;
  high = raw & 0xffff0000u;
  memcpy(&low_float, &low, sizeof low);
  memcpy(&high_float, &high, sizeof high);
  *even += low_float * x[0];
  *odd += high_float * x[1];
}

/* sums[g] = {even, odd}: the 32 running sums of row pair g. */
__attribute__((target_clones("avx512f", "avx2", "default"))) static void row_tile(const uint16_t *tile,
                                                                                  const float16 *x, uint32_t steps,
                                                                                  float16 (*sums)[2]) {
  for (uint32_t start = 0; start < steps; start += STEPS_PER_CHUNK) {
    uint32_t end = start + STEPS_PER_CHUNK < steps ? start + STEPS_PER_CHUNK : steps;
    for (uint32_t g = 0; g < 8; g += 2) {
      float16 a0 = sums[g][0], a1 = sums[g][1], b0 = sums[g + 1][0], b1 = sums[g + 1][1];
      for (uint32_t step = start; step < end; step++) {
        const uint16_t *w = tile + (size_t)step * MK_TILE_STEP_ELEMENTS + g * 32;
        add_products(&a0, &a1, w, x + (size_t)step * 2);
        add_products(&b0, &b1, w + 32, x + (size_t)step * 2);
      }
      sums[g][0] = a0, sums[g][1] = a1, sums[g + 1][0] = b0, sums[g + 1][1] = b1;
    }
  }
}

static void expand(const float *x, uint32_t steps, float *out) {
  for (uint32_t step = 0; step < steps; step++) {
    for (uint32_t t = 0; t < 4; t++) {
      const float *from = x + step * 16 + 2 * t;
      float *even = out + (size_t)step * 32 + 4 * t, *odd = even + 16;
      even[0] = even[1] = from[0];
      even[2] = even[3] = from[8];
      odd[0] = odd[1] = from[1];
      odd[2] = odd[3] = from[9];
    }
  }
}

/* The sums of row tile `tile` with one vector. */
static void multiply_tile(const uint16_t *tile, const float *expanded, uint32_t steps, float *y) {
  float16 sums[8][2];
  memset(sums, 0, sizeof sums);
  row_tile(tile, (const float16 *)(const void *)expanded, steps, sums);
  for (uint32_t g = 0; g < 8; g++) {
    float low = 0, high = 0;
    for (uint32_t i = 0; i < 16; i += 4) {
      low += (sums[g][0][i] + sums[g][1][i]) + (sums[g][0][i + 2] + sums[g][1][i + 2]);
      high += (sums[g][0][i + 1] + sums[g][1][i + 1]) + (sums[g][0][i + 3] + sums[g][1][i + 3]);
    }
    y[g] = low;
    y[g + 8] = high;
  }
}

void mk_matvec(const mk_span *weight, uint32_t count, const float *x, float *scratch, float *y) {
  uint32_t grid_cols = mk_buffer_grid_cols(weight->buffer);
  uint32_t steps = (weight->cols + MK_TILE - 1) / MK_TILE, first = weight->col / MK_TILE;
  float *expanded = (float *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
  for (uint32_t i = 0; i < count; i++) {
    expand(x + (size_t)i * steps * MK_TILE, steps, expanded + (size_t)i * steps * 2 * MK_TILE);
  }
  const uint16_t *elements = (const uint16_t *)(const void *)weight->memory;
  for (uint32_t row = 0; row < weight->rows; row += MK_TILE) {
    const uint16_t *tile =
        elements + ((size_t)(weight->row + row) / MK_TILE * grid_cols + first) * MK_TILE_STEP_ELEMENTS;
    for (uint32_t i = 0; i < count; i++) {
      multiply_tile(tile, expanded + (size_t)i * steps * 2 * MK_TILE, steps, y + (size_t)i * weight->rows + row);
    }
  }
}
