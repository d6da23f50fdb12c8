/* Operations of the tile library on words, lanes and warps, which tile_gpu.c has not (tests/gpu/tile/edge.cu, warp.cu,
 * codes.cu, barrier.cu), against plain C loops. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "instructions/dequantise.h"
#include "instructions/reference.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/tile/tile_test.h"
#include "tests/gpu/tile_run.h"

enum { NEAR_WRAP = -12 }; /* generations pass 0 on the way */

static void test_vectors(tile_gpu *gpu, uint32_t count) {
  enum { LOOKS = MK_EDGE_LOOKS };
  const size_t bytes = (size_t)count * LOOKS * 4;
  uint32_t *in = random_words((size_t)count * 4, 61), *got = new_bytes(bytes), *want = new_bytes(bytes);
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t *x = in + (size_t)i * 4;
    const bool even = i % 2 == 0, third = i % 3 == 0;
    const uint32_t looks[LOOKS] = {x[0],
                                   x[1],
                                   x[2],
                                   x[3],
                                   x[0],
                                   x[1],
                                   x[2],
                                   x[3],
                                   x[0],
                                   x[1],
                                   x[2],
                                   x[3],
                                   x[0],
                                   x[3],
                                   x[1],
                                   x[3],
                                   even ? x[0] : 1,
                                   even ? x[1] : 2,
                                   even ? x[2] : 3,
                                   even ? x[3] : 4,
                                   even ? 5 : x[0],
                                   even ? 6 : x[1],
                                   even ? 7 : x[2],
                                   even ? 8 : x[3],
                                   third ? x[1] : 9,
                                   third ? x[3] : 10};
    memcpy(want + (size_t)i * LOOKS, looks, sizeof looks);
  }
  const tile_run run = {"mk_tile_edge_vectors", 1, 32, count, 0, in, (size_t)count * 16, got, bytes, NULL,
                        (size_t)count * 4 * 16};
  if (tile_ran(gpu, &run)) {
    expect_words(run.kernel, got, want, bytes / 4, LOOKS);
  }
  free(in);
  free(got);
  free(want);
}

static void test_bf16(tile_gpu *gpu) {
  enum { COUNT = 0x10000 };
  uint16_t *in = new_bytes(COUNT * 2);
  uint32_t *got = new_bytes(COUNT * 4), *want = new_bytes(COUNT * 4);
  for (uint32_t i = 0; i < COUNT; i++) {
    in[i] = (uint16_t)(i * 40503); /* odd: all of them, in another order */
    want[i] = (uint32_t)in[i] << 16;
  }
  const tile_run run = {.kernel = "mk_tile_edge_bf16",
                        .blocks = MK_TILE_MAX_BLOCKS,
                        .threads = 256,
                        .count = COUNT,
                        .in = in,
                        .in_bytes = COUNT * 2,
                        .out = got,
                        .out_bytes = COUNT * 4};
  if (tile_ran(gpu, &run)) {
    expect_words(run.kernel, got, want, COUNT, 1);
  }
  free(in);
  free(got);
  free(want);
}

void test_edge_words(tile_gpu *gpu, bool quick) {
  const uint32_t rounds = quick ? 20 : 400;
  uint32_t work[64 + MK_EDGE_WORDS] = {[0] = (uint32_t)NEAR_WRAP, [32] = (uint32_t)NEAR_WRAP};
  test_vectors(gpu, quick ? 35 : 500);
  test_bf16(gpu);
  test_same(gpu, "mk_tile_edge_triples", 2, rounds, MK_EDGE_TRIPLES, (uint32_t)NEAR_WRAP, NULL, (32 * 2 + 32) * 8);
  test_same(gpu, "mk_tile_edge_fences", 2, rounds, MK_EDGE_WORDS, (uint32_t)NEAR_WRAP, work, sizeof work);
}

/* NaN is no largest value where there is a number. */
static void test_largest(tile_gpu *gpu, uint32_t count) {
  enum { WIDTHS = MK_WARP_WIDTHS - 1 };
  const size_t bytes = (size_t)count * WIDTHS * 128 * 4;
  uint32_t *in = random_words((size_t)count * 128, 71);
  float *got = new_bytes(bytes), *want = new_bytes(bytes);
  for (uint32_t i = 0; i < count * 128; i++) {
    const uint32_t kind = in[i] % 16;
    in[i] = kind == 0 || i / 128 == 1 ? 0x7fc00000 : kind == 1 ? 0xff800000 : in[i] & 0xff7fffff; /* finite */
  }
  for (uint32_t i = 0; i < count; i++) {
    for (uint32_t l = 0; l < 128; l++) {
      for (uint32_t w = 0; w < WIDTHS; w++) {
        const uint32_t width = 1u << w, first = l / width * width;
        float top = NAN;
        for (uint32_t k = first; k < first + width; k++) {
          top = fmaxf(top, mk_param_float(in[(size_t)i * 128 + k]));
        }
        want[((size_t)i * WIDTHS + w) * 128 + l] = top;
      }
    }
  }
  const tile_run run = {"mk_tile_warp_largest", 1, 128, count, 0, in, (size_t)count * 512, got, bytes, NULL, 0};
  if (tile_ran(gpu, &run)) {
    for (size_t i = 0; i < bytes / 4; i++) { /* which NaN is not promised, nor which zero */
      const bool alike = (isnan(got[i]) && isnan(want[i])) || got[i] == want[i];
      got[i] = alike ? want[i] : got[i];
    }
    expect_words(run.kernel, got, want, bytes / 4, 128);
  }
  free(in);
  free(got);
  free(want);
}

static void test_same_in_all(tile_gpu *gpu, uint32_t count) {
  const size_t bytes = (size_t)count * 4 * 128 * 4;
  uint32_t *in = random_words((size_t)count * 128, 72), *got = new_bytes(bytes), *want = new_bytes(bytes);
  for (uint32_t i = 0; i < count * 128; i++) {
    in[i] = i / 32 % 3 == 0 ? in[i] & ~1u : in[i]; /* none odd in every third warp */
  }
  for (uint32_t i = 0; i < count; i++) {
    for (uint32_t l = 0; l < 128; l++) {
      uint32_t top = 0, odd = 0, *to = want + (size_t)i * 512 + l;
      for (uint32_t k = l / 32 * 32; k < l / 32 * 32 + 32; k++) {
        const uint32_t word = in[(size_t)i * 128 + k];
        top = word > top ? word : top;
        odd |= word % 2;
      }
      to[0] = top, to[128] = odd, to[256] = in[(size_t)i * 128 + l], to[384] = l;
    }
  }
  const tile_run run = {"mk_tile_warp_same", 1, 128, count, 0, in, (size_t)count * 512, got, bytes, NULL, 0};
  if (tile_ran(gpu, &run)) {
    expect_words(run.kernel, got, want, bytes / 4, 128);
  }
  free(in);
  free(got);
  free(want);
}

static uint32_t half_of(float value) {
  const _Float16 half = (_Float16)value;
  uint16_t bits;
  memcpy(&bits, &half, sizeof bits);
  return bits;
}

/* Every exponent, and fractions around the half that ties to even. */
static void test_halves(tile_gpu *gpu, uint32_t fractions) {
  static const uint32_t ends[] = {0, 1, 0xfff, 0x1000, 0x1001, 0x1fff};
  enum { ENDS = sizeof ends / sizeof ends[0] };
  const uint32_t count = 512 * fractions * ENDS;
  uint32_t *in = new_bytes((size_t)count * 4), *got = new_bytes((size_t)count * 12);
  uint32_t *want = new_bytes((size_t)count * 12), wrong = 0;
  uint64_t seed = 73;
  for (uint32_t i = 0; i < count; i++) {
    in[i] = i % 512 << 23 | (random_word(&seed) % 1024) << 13 | ends[i / 512 % ENDS];
  }
  const tile_run run = {.kernel = "mk_tile_warp_half",
                        .blocks = MK_TILE_MAX_BLOCKS,
                        .threads = 256,
                        .count = count,
                        .in = in,
                        .in_bytes = (size_t)count * 4,
                        .out = got,
                        .out_bytes = (size_t)count * 12};
  if (tile_ran(gpu, &run)) {
    for (uint32_t i = 0; i < count; i++) {
      const float both[2] = {mk_param_float(in[i]), mk_param_float(in[count - 1 - i])};
      for (uint32_t h = 0; h < 2; h++) {
        const uint32_t half = got[3 * i] >> 16 * h & 0xffff, back = got[3 * i + 1 + h];
        const bool nan = (half & 0x7fff) > 0x7c00 && isnan(mk_param_float(back)); /* which one is not promised */
        const float rounded = (float)(_Float16)both[h];
        wrong += isnan(both[h]) ? !nan : half != half_of(both[h]) || back != mk_float_param(rounded);
      }
    }
    expect(wrong == 0, run.kernel, "a pair of fp16 is not what C makes of both numbers");
  }
  free(in);
  free(got);
  free(want);
}

/* Values about the limit, and any others. */
static void test_wraps(tile_gpu *gpu, uint32_t limit, uint32_t count) {
  uint32_t *in = random_words(count, 89), *got = new_bytes((size_t)count * 16), *want = new_bytes((size_t)count * 16);
  for (uint32_t i = 0; i < count; i++) {
    in[i] = i < count / 2 ? limit - 8 + i % 16 : in[i];
    const bool over = in[i] >= limit;
    const uint32_t all[4] = {in[i] - (over ? limit : 0), i + over, in[i] - (over ? limit : 0), i % 2 ^ over};
    memcpy(want + (size_t)i * 4, all, sizeof all);
  }
  const tile_run run = {.kernel = "mk_tile_warp_wrap",
                        .blocks = MK_TILE_MAX_BLOCKS,
                        .threads = 256,
                        .count = count,
                        .first = limit,
                        .in = in,
                        .in_bytes = (size_t)count * 4,
                        .out = got,
                        .out_bytes = (size_t)count * 16};
  if (tile_ran(gpu, &run)) {
    expect_words(run.kernel, got, want, (size_t)count * 4, 4);
  }
  free(in);
  free(got);
  free(want);
}

/* What a code stands for, and a scale. Of E4M3 the numbers of codes that are none are not asked for the short way. */
static float code_of(uint32_t way, const uint32_t *in, uint32_t element) {
  if (way >= MK_CODES_WAY_I4_BF16) {
    const uint32_t nibble = element / 2 + element % 2 * 4, row = element / 2 % 2;
    return (float)(in[0] >> 4 * nibble & 15) - (float)(in[3] >> 8 * row & 255);
  }
  const uint32_t byte = element % 4 / 2 + element % 2 * 2; /* 0 2 1 3 */
  const uint8_t code = (uint8_t)(in[element / 4] >> 8 * byte);
  return way >= MK_CODES_WAY_I8 ? (float)(int8_t)code : mk_e4m3_to_float(code);
}

static float scale_of(uint32_t way, const uint32_t *in, uint32_t element) {
  const uint16_t bits = (uint16_t)(in[2] >> 16 * (element / 2 % 2));
  return way == MK_CODES_WAY_I4_FP16 ? mk_half_to_float(bits) : mk_bf16_to_float(bits);
}

/* All scales of sixteen bits in either row, beside random codes of eight bits, with zeros of 0 to 15, or without. Of
 * four bits each scale of a row meets four codes in each of four rounds of the scales, sixteen in all. */
static void test_way(tile_gpu *gpu, uint32_t way, uint32_t count) {
  uint32_t *in = random_words((size_t)count * 4, 83), *got = new_bytes((size_t)count * 16);
  uint64_t wrong = 0, first = UINT64_MAX;
  for (uint32_t i = 0; i < count; i++) {
    uint32_t *x = in + (size_t)i * 4;
    x[2] = i % 0x10000 | i * 40503 << 16; /* an odd factor: every upper half once a round */
    x[3] = way == MK_CODES_WAY_I4_WHOLE ? MK_PLAIN_ZERO * 0x101 : x[3] & 0xf0f;
    if (way >= MK_CODES_WAY_I4_BF16) { /* nibbles 0 2 4 6 are of one row, 1 3 5 7 of the other */
      x[0] = 0x33221100 + (i + i / 0x10000) % 4 * 0x44444444;
    }
    for (uint32_t h = 0; h < 2 && way == MK_CODES_WAY_I4_FP16; h++) { /* infinities become NaN there */
      const uint32_t at = 16 * h;
      x[2] ^= (x[2] >> at & 0x7fff) == 0x7c00 ? 1u << at : 0;
    }
    for (uint32_t b = 0; b < 8 && (way == MK_CODES_WAY_E4M3_RAISED || way == MK_CODES_WAY_E4M3_TWICE); b++) {
      const uint32_t at = 8 * (b % 4);
      x[b / 4] ^= (x[b / 4] >> at & 0x7f) == 0x7f ? 1u << at : 0;
    }
  }
  const tile_run run = {.kernel = "mk_tile_codes",
                        .blocks = MK_TILE_MAX_BLOCKS,
                        .threads = 256,
                        .count = count,
                        .first = way,
                        .in = in,
                        .in_bytes = (size_t)count * 16,
                        .out = got,
                        .out_bytes = (size_t)count * 16};
  if (tile_ran(gpu, &run)) {
    for (uint64_t e = 0; e < (uint64_t)count * 8; e++) {
      const uint32_t *x = in + e / 8 * 4, element = (uint32_t)(e % 8);
      const uint16_t have = (uint16_t)(got[e / 2] >> 16 * (e % 2));
      const float want = scale_of(way, x, element) * code_of(way, x, element);
      const bool zero = want == 0 && (have & 0x7fff) == 0; /* whose sign no sum depends on */
      const bool same = isnan(want) ? isnan(mk_bf16_to_float(have)) : zero || have == mk_float_to_bf16(want);
      first = same || wrong != 0 ? first : e;
      wrong += !same;
    }
    char what[128];
    snprintf(what, sizeof what, "way %u: %llu elements are not what C has, the first one %llu", way,
             (unsigned long long)wrong, (unsigned long long)first);
    expect(wrong == 0, run.kernel, what);
  }
  free(in);
  free(got);
}

void test_codes(tile_gpu *gpu, bool quick) {
  for (uint32_t way = 0; way < MK_CODES_WAYS; way++) {
    test_way(gpu, way, quick ? 0x10000 : 0x80000);
  }
}

static void test_meetings(tile_gpu *gpu, uint32_t count) {
  const size_t words = (size_t)count * 2 * 128;
  uint32_t *got = new_bytes(words * 4), *want = new_bytes(words * 4);
  for (uint32_t i = 0; i < words; i++) { /* what is not written stays 0xff bytes */
    const uint32_t meeting = i / 128, thread = i % 128;
    want[i] = meeting < count * (thread / 64 + 1) ? meeting << 16 | (thread ^ 32) : UINT32_MAX;
  }
  const tile_run run = {.kernel = "mk_tile_barrier_meet_at",
                        .blocks = 1,
                        .threads = 128,
                        .count = count,
                        .out = got,
                        .out_bytes = words * 4};
  if (tile_ran(gpu, &run)) {
    expect_words(run.kernel, got, want, words, 128);
  }
  free(got);
  free(want);
}

void test_lanes(tile_gpu *gpu, bool quick) {
  test_largest(gpu, quick ? 6 : 100);
  test_same_in_all(gpu, quick ? 6 : 100);
  test_halves(gpu, quick ? 1 : 16);
  test_wraps(gpu, 12, quick ? 64 : 4096);
  test_wraps(gpu, 15840, quick ? 64 : 4096);
  test_same(gpu, "mk_tile_warp_stay", 1, quick ? 3 : 50, 32 * 4, 0, NULL, 0);
}

void test_pairs_of_warps(tile_gpu *gpu, bool quick) { test_meetings(gpu, quick ? 7 : 200); }
