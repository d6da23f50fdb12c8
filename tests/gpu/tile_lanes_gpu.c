/* Lanes and views of the tile library (tests/gpu/tile/lanes.cu) against plain C loops. */
#include <math.h>
#include <stdlib.h>

#include "instructions/reference.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/tile/tile_test.h"
#include "tests/gpu/tile_run.h"

static float number_of(uint32_t x) { return (float)(x & 0xffff) * 0.37f; }

/* The sum over lanes whose numbers differ in the bits from `first` to below `end`, the lowest of them first. */
static float sum_of(const uint32_t x[32], uint32_t lane, uint32_t first, uint32_t end) {
  float sums[32];
  for (uint32_t l = 0; l < 32; l++) {
    sums[l] = number_of(x[l]);
  }
  for (uint32_t away = first; away < end; away *= 2) {
    float before[32];
    for (uint32_t l = 0; l < 32; l++) {
      before[l] = sums[l];
    }
    for (uint32_t l = 0; l < 32; l++) {
      sums[l] = before[l] + before[l ^ away];
    }
  }
  return sums[lane];
}

static void look(const uint32_t x[32], uint32_t round, uint32_t lane, uint32_t looks[MK_LANES_LOOKS]) {
  uint32_t none = 0, thirds = 0, sharing = 0, most = 0, least = UINT32_MAX, sum = 0, some = 0;
  float largest = 0.0f;
  for (uint32_t l = 0; l < 32; l++) {
    none += x[l] % 64 == 0;
    thirds |= (uint32_t)(x[l] % 3 == 0) << l;
    sharing |= (uint32_t)(x[l] % 5 == x[lane] % 5) << l;
    most = x[l] > most ? x[l] : most;
    least = x[l] < least ? x[l] : least;
    sum += x[l];
    some |= x[l] & 0x11111111u << l % 4;
    largest = l % 8 == lane % 8 ? fmaxf(largest, number_of(x[l])) : largest;
  }
  const uint32_t half = x[lane / 2], width = 5 + round % 3;
  const uint32_t all[MK_LANES_LOOKS] = {none == 0,
                                        none != 0,
                                        thirds,
                                        sharing,
                                        x[lane] >> lane & 1,
                                        (uint32_t)(((uint64_t)1 << lane) - 1),
                                        x[(x[lane] >> 8) % 32],
                                        x[31 - lane],
                                        ~x[31 - lane],
                                        half ^ (half + 1) << 8 ^ (half + 2) << 16 ^ (half + 3) << 24,
                                        x[lane < 3 ? lane : lane - 3],
                                        x[lane ^ 5],
                                        most,
                                        least,
                                        sum,
                                        some,
                                        mk_float_param(sum_of(x, lane, 1, 8)),
                                        mk_float_param(sum_of(x, lane, 4, 32)),
                                        mk_float_param(largest),
                                        lane / 3 << 8 | lane % 3,
                                        lane % width << 8 | (lane >> 2 & 1),
                                        lane / 4 << 16 | lane % 4 << 8 | lane % 4 * 2,
                                        lane << 24 | (lane * 5 / 32) << 16 | (lane * 5 % 32) << 8 | lane,
                                        (16 * (round % 4) + lane % 16) * 128 + (lane / 16 ^ lane % 8) * 16};
  for (uint32_t k = 0; k < MK_LANES_LOOKS; k++) {
    looks[k] = all[k];
  }
}

void test_lane_words(tile_gpu *gpu, bool quick) {
  const uint32_t count = quick ? 12 : 300;
  const size_t words = (size_t)count * MK_LANES_LOOKS * 32;
  uint32_t *in = random_words((size_t)count * 32, 81), *got = new_bytes(words * 4), *want = new_bytes(words * 4);
  for (uint32_t i = 0; i < count; i++) {
    for (uint32_t lane = 0; lane < 32; lane++) {
      uint32_t looks[MK_LANES_LOOKS];
      look(in + (size_t)i * 32, i, lane, looks);
      for (uint32_t k = 0; k < MK_LANES_LOOKS; k++) {
        want[((size_t)i * MK_LANES_LOOKS + k) * 32 + lane] = looks[k];
      }
    }
  }
  const tile_run run = {"mk_tile_lanes", 1, 32, count, 0, in, (size_t)count * 128, got, words * 4, NULL, 0};
  if (tile_ran(gpu, &run)) {
    expect_words(run.kernel, got, want, words, 32);
  }
  free(in);
  free(got);
  free(want);
  test_same(gpu, "mk_tile_view", 1, quick ? 6 : 60, 32 * 4, 0, NULL, 0);
}
