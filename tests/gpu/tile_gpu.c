/* The tile library on the GPU: the kernels of tests/gpu/tile/, each compared bit for bit with a plain C loop. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "instructions/reference.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/tile/tile_test.h"
#include "tests/gpu/tile_run.h"

#ifdef MK_TILE_IMAGES /* the folder of the cubins; not there without nvcc */
#define TILE_IMAGE(name)                                                                                 \
  __asm__(".pushsection .rodata\n.balign 64\ntile_image_" #name ":\n.incbin \"" MK_TILE_IMAGES "/" #name \
          ".cubin\"\n.byte 0"                                                                            \
          "\n.popsection\n");                                                                            \
  extern const unsigned char tile_image_##name[] __attribute__((visibility("hidden")))
#else
#define TILE_IMAGE(name) static const unsigned char tile_image_##name[1]
#endif
TILE_IMAGE(barrier);
TILE_IMAGE(codes);
TILE_IMAGE(copy);
TILE_IMAGE(edge);
TILE_IMAGE(fragment);
TILE_IMAGE(gemm);
TILE_IMAGE(group);
TILE_IMAGE(rows);
TILE_IMAGE(tensor);
TILE_IMAGE(warp);
TILE_IMAGE(wgmma);

static void test_barriers(tile_gpu *gpu) {
  enum { PHASES = 9, LOOKS = MK_BARRIER_ARRIVALS + 1, MEETINGS = 11 };
  enum { RING = MK_BARRIER_ROUNDS * 32, MET = MEETINGS * MK_BARRIER_MEET, WORDS = RING + MET };
  uint32_t got[WORDS] = {0}, want[WORDS] = {0};
  tile_run phases = {"mk_tile_barrier_phases", 1, 32, PHASES, 0, .out = got, .out_bytes = PHASES * LOOKS * 4};
  for (uint32_t i = 0; i < PHASES * LOOKS; i++) {
    uint32_t phase = i / LOOKS, complete = i % LOOKS == MK_BARRIER_ARRIVALS ? phase : phase + 1;
    want[i] = 4u | 1u << complete % 2;
  }
  if (tile_ran(gpu, &phases)) {
    expect_words(phases.kernel, got, want, PHASES * LOOKS, LOOKS);
  }

  uint32_t *in = random_words(RING, 1);
  tile_run ring = {"mk_tile_barrier_ring", 1, 64, 0, 0, in, RING * 4, got, RING * 4, NULL, 0};
  for (uint32_t i = 0; i < RING; i++) {
    want[i] = in[i ^ 1];
  }
  if (tile_ran(gpu, &ring)) {
    expect_words(ring.kernel, got, want, RING, 32);
  }
  free(in);

  tile_run meeting = {.kernel = "mk_tile_barrier_meeting",
                      .blocks = 1,
                      .threads = MK_BARRIER_WARPS * 32,
                      .count = MEETINGS,
                      .out = got,
                      .out_bytes = MEETINGS * MK_BARRIER_WARPS * 4};
  for (uint32_t i = 0; i < MEETINGS * MK_BARRIER_WARPS; i++) {
    want[i] = 0;
    for (uint32_t warp = 0; warp < MK_BARRIER_WARPS; warp++) {
      want[i] += (i / MK_BARRIER_WARPS + 1) << 8 * warp;
    }
  }
  if (tile_ran(gpu, &meeting)) {
    expect_words(meeting.kernel, got, want, MEETINGS * MK_BARRIER_WARPS, MK_BARRIER_WARPS);
  }

  tile_run meet = {"mk_tile_barrier_meet", 1, 128, MEETINGS, 0, .out = got, .out_bytes = MET * 4};
  for (uint32_t i = 0; i < MET; i++) {
    want[i] = i / MK_BARRIER_MEET << 16 | (i % MK_BARRIER_MEET + 32) % MK_BARRIER_MEET;
  }
  if (tile_ran(gpu, &meet)) {
    expect_words(meet.kernel, got, want, MET, MK_BARRIER_MEET);
  }
}

static void test_copy_ring(tile_gpu *gpu) {
  static const uint32_t sizes[] = {16,   32,   48,   64,   112,  128,  144,   256,   496,  512,
                                   1024, 1040, 2048, 4080, 4096, 8192, 12288, 16368, 16384};
  static const mk_tile_copy in_pieces[] = {
      {16, 0, 16384, 4}, {0, 0, 16384, 16}, {48, 4096, 4096, 256}, {32, 16, 48, 3}};
  enum { SIZES = sizeof sizes / sizeof sizes[0], PLACES = 3, PIECES = sizeof in_pieces / sizeof in_pieces[0] };
  enum { COPIES = SIZES * PLACES + PIECES, DATA = 2 * MK_COPY_SLOT_BYTES, WORDS = MK_COPY_SLOT_BYTES / 4 };
  size_t in_bytes = COPIES * sizeof(mk_tile_copy) + DATA, out_bytes = (size_t)COPIES * MK_COPY_SLOT_BYTES;
  uint32_t *in = random_words(in_bytes / 4, 2), *got = new_bytes(out_bytes), *want = new_bytes(out_bytes);
  mk_tile_copy *copies = (mk_tile_copy *)(void *)in;
  const uint8_t *data = (const uint8_t *)(copies + COPIES);
  for (uint32_t c = 0; c < COPIES; c++) {
    mk_tile_copy *copy = &copies[c];
    if (c < SIZES * PLACES) { /* at the slot's start, at its end, and between, from places of any 16-byte alignment */
      uint32_t bytes = sizes[c / PLACES], room = (MK_COPY_SLOT_BYTES - bytes) / 16, place = c % PLACES;
      *copy = (mk_tile_copy){.from = 16 * (37 * c % 1024),
                             .to = 16 * (place == 0   ? 0
                                         : place == 1 ? room
                                                      : room / 3),
                             .bytes = bytes,
                             .pieces = 1};
    } else {
      *copy = in_pieces[c - SIZES * PLACES];
    }
    uint32_t *slot = want + (size_t)c * WORDS;
    for (uint32_t i = 0; i < WORDS; i++) {
      slot[i] = mk_tile_pattern(c, i);
    }
    memcpy((uint8_t *)slot + copy->to, data + copy->from, copy->bytes);
  }
  tile_run run = {"mk_tile_copy_ring", 1, 32 + MK_COPY_CONSUMERS, COPIES, 0, in, in_bytes, got, out_bytes, NULL, 0};
  if (tile_ran(gpu, &run)) {
    expect_words(run.kernel, got, want, out_bytes / 4, WORDS);
  }
  free(in);
  free(got);
  free(want);
}

static void test_copies(tile_gpu *gpu) {
  test_copy_ring(gpu);
  test_same(gpu, "mk_tile_copy_fixed", 1, 7, MK_COPY_FIXED_BYTES / 4, 0, NULL, 0);
  test_same(gpu, "mk_tile_copy_stored", 1, 9, 128, 0, NULL, 512);
}

static void test_words(tile_gpu *gpu) {
  static const uint32_t special[] = {0, 1, 0x7fffffff, 0x80000000, 0xffffffff, 0x7fc00000, 0xff800000, 0x80000001};
  enum { SPECIAL = sizeof special / sizeof special[0], COUNT = 2 * SPECIAL * SPECIAL, LOOKS = 6 };
  uint32_t in[COUNT][2];
  uint64_t got[COUNT][LOOKS], want[COUNT][LOOKS];
  for (uint32_t i = 0; i < COUNT; i++) {
    in[i][0] = special[i % SPECIAL], in[i][1] = special[i / SPECIAL % SPECIAL];
    for (uint32_t look = 0; look < LOOKS; look++) {
      want[i][look] = (uint64_t)in[i][1] << 32 | in[i][0];
    }
  }
  tile_run run = {"mk_tile_edge_words", 1, 32, COUNT, 0, in, sizeof in, got, sizeof got, NULL, COUNT * 8};
  if (tile_ran(gpu, &run)) {
    expect_words(run.kernel, got, want, sizeof got / 4, 2 * LOOKS);
  }
}

static void test_edges(tile_gpu *gpu) {
  enum { ROUNDS = 12, ADDS = 10, LOOKS = 6, BLOCKS = 4, THREADS = BLOCKS * 128 };
  const uint32_t near_wrap = 0xfffffff4u; /* generations and counters pass 0 on the way */
  test_words(gpu);
  test_same(gpu, "mk_tile_edge_stamps", 2, ROUNDS + 8, MK_EDGE_WORDS, near_wrap, NULL, (MK_EDGE_WORDS + 32) * 8);
  uint32_t work[64 + MK_EDGE_WORDS + 64] = {[0] = near_wrap, [32] = near_wrap};
  test_same(gpu, "mk_tile_edge_release", 2, ROUNDS, MK_EDGE_WORDS, near_wrap, work, sizeof work);

  uint32_t counters[96] = {[0] = near_wrap, [32] = near_wrap + 1};
  uint32_t sums[2], added = ADDS * (THREADS * (THREADS + 1) / 2);
  const uint32_t want_sums[2] = {near_wrap + added, near_wrap + 1 + added};
  tile_run add = {"mk_tile_edge_add", BLOCKS, 128, ADDS, 0, NULL, 0, sums, sizeof sums, counters, sizeof counters};
  if (tile_ran(gpu, &add)) {
    expect_words(add.kernel, sums, want_sums, 2, 2);
  }

  uint32_t advanced[LOOKS][2], ones[LOOKS][2];
  tile_run clocks = {"mk_tile_edge_clocks", 1, 32, LOOKS, 0, .out = advanced, .out_bytes = sizeof advanced};
  for (uint32_t i = 0; i < LOOKS; i++) {
    ones[i][0] = ones[i][1] = 1;
  }
  if (tile_ran(gpu, &clocks)) {
    expect_words(clocks.kernel, advanced, ones, (size_t)2 * LOOKS, 2);
  }
}

enum { ROW_TILES = 3, ROWS = 16 * ROW_TILES, K = 16 * MK_FRAGMENT_STEPS, COLUMNS = 8 };

static void test_fragment_load(tile_gpu *gpu) {
  static const uint32_t row_of[4] = {0, 8, 0, 8}, column_of[4] = {0, 0, 8, 8};
  static uint16_t packed[ROWS * K];
  static uint32_t got[ROWS * K / 2], want[ROWS * K / 2];
  for (uint32_t row = 0; row < ROWS; row++) {
    for (uint32_t k = 0; k < K; k++) {
      packed[mk_tile_offset(MK_FRAGMENT_STEPS, row, k)] = (uint16_t)(row * K + k);
    }
  }
  for (uint32_t i = 0; i < ROWS * K / 2; i++) { /* word `i % 4` of a lane, by the PTX ISA's table of A */
    uint32_t lane = i / 4 % 32, step = i / 128;
    uint32_t row = step / MK_FRAGMENT_STEPS * 16 + lane / 4 + row_of[i % 4];
    uint32_t k = step % MK_FRAGMENT_STEPS * 16 + lane % 4 * 2 + column_of[i % 4];
    want[i] = (row * K + k) | (row * K + k + 1) << 16;
  }
  tile_run run = {"mk_tile_fragment_load", 1, 32, ROW_TILES, 0, packed, sizeof packed, got, sizeof got, NULL, 0};
  if (tile_ran(gpu, &run)) {
    expect_words(run.kernel, got, want, ROWS * K / 2, 128);
  }
}

static void test_multiply(tile_gpu *gpu) {
  static struct {
    float x[K][COLUMNS];
    uint16_t w[ROWS * K];
  } in;
  float got[ROWS][COLUMNS], want[ROWS][COLUMNS];
  uint64_t seed = 4;
  for (uint32_t k = 0; k < K; k++) {
    for (uint32_t column = 0; column < COLUMNS; column++) {
      in.x[k][column] = (float)((int)(random_word(&seed) % 33) - 16);
    }
    for (uint32_t row = 0; row < ROWS; row++) {
      in.w[mk_tile_offset(MK_FRAGMENT_STEPS, row, k)] = mk_float_to_bf16((float)((int)(random_word(&seed) % 33) - 16));
    }
  }
  for (uint32_t row = 0; row < ROWS; row++) {
    for (uint32_t column = 0; column < COLUMNS; column++) {
      float sum = 0.0f;
      for (uint32_t k = 0; k < K; k++) {
        sum += mk_bf16_to_float(in.w[mk_tile_offset(MK_FRAGMENT_STEPS, row, k)]) * in.x[k][column];
      }
      want[row][column] = sum;
    }
  }
  tile_run run = {"mk_tile_fragment_multiply", 1, 32, ROW_TILES, 0, &in, sizeof in, got, sizeof got, NULL, 0};
  if (tile_ran(gpu, &run)) {
    expect_words(run.kernel, got, want, ROWS * COLUMNS, COLUMNS);
  }
  in.x[K / 2][COLUMNS - 1] = NAN; /* a column depends on its own vector alone */
  if (tile_ran(gpu, &run)) {
    bool all_nan = true;
    for (uint32_t row = 0; row < ROWS; row++) {
      all_nan = all_nan && isnan(got[row][COLUMNS - 1]);
      got[row][COLUMNS - 1] = want[row][COLUMNS - 1];
    }
    expect(all_nan, run.kernel, "a NaN in a vector does not reach every sum of its column");
    expect_words("mk_tile_fragment_multiply beside a NaN", got, want, ROWS * COLUMNS, COLUMNS);
  }
}

static void test_fragment_transpose(tile_gpu *gpu) {
  enum { TILES = 5 };
  static uint16_t in[TILES][8][8], got[TILES][8][8];
  uint64_t seed = 5;
  for (uint32_t i = 0; i < TILES * 64; i++) {
    in[i / 64][i / 8 % 8][i % 8] = (uint16_t)random_word(&seed);
  }
  tile_run run = {"mk_tile_fragment_transpose", 1, 32, TILES, 0, in, sizeof in, got, sizeof got, NULL, 0};
  if (tile_ran(gpu, &run)) {
    bool same = true;
    for (uint32_t i = 0; i < TILES * 64; i++) {
      same = same && got[i / 64][i / 8 % 8][i % 8] == in[i / 64][i % 8][i / 8 % 8];
    }
    expect(same, run.kernel, "a tile is not its transpose");
  }
}

static void test_fragments(tile_gpu *gpu) {
  test_fragment_load(gpu);
  test_fragment_transpose(gpu);
  test_multiply(gpu);
}

/* In each of the 128 / 32 warps: value[l] += value[l ^ offset] for offset = width / 2 .. 1. */
static void sum_in_c(const float *in, uint32_t width, float *out) {
  float next[128];
  memcpy(out, in, sizeof next);
  for (uint32_t offset = width / 2; offset > 0; offset /= 2) {
    for (uint32_t l = 0; l < 128; l++) {
      next[l] = out[l] + out[l ^ offset];
    }
    memcpy(out, next, sizeof next);
  }
}

static void test_sums(tile_gpu *gpu) {
  enum { COUNT = 8 };
  static float in[COUNT][128], got[COUNT][MK_WARP_WIDTHS][128], want[COUNT][MK_WARP_WIDTHS][128];
  static uint32_t lanes[128], want_lanes[128];
  uint64_t seed = 5;
  for (uint32_t i = 0; i < COUNT; i++) {
    for (uint32_t l = 0; l < 128; l++) {
      want_lanes[l] = l % 32 == 0 ? 256 : l % 32;
      float mantissa = (float)(int)(random_word(&seed) | 1) * 0x1p-31f;
      in[i][l] = i == 0 ? -0.0f : ldexpf(mantissa, i == 1 ? -130 : (int)(random_word(&seed) % (4 * i)) - 8);
    }
    sum_in_c(in[i], 32, want[i][0]);
    for (uint32_t w = 0; w < 6; w++) {
      sum_in_c(in[i], 1u << w, want[i][1 + w]);
    }
  }
  tile_run run = {"mk_tile_warp_sums", 1, 128, COUNT, 0, in, sizeof in, got, sizeof got, lanes, sizeof lanes};
  if (tile_ran(gpu, &run)) {
    expect_words(run.kernel, got, want, sizeof got / 4, 128);
    expect_words("mk_tile_warp_sums: lane", lanes, want_lanes, 128, 32);
  }
}

static void test_exp2(tile_gpu *gpu) {
  enum { COUNT = 4096 };
  static float in[COUNT], got[COUNT];
  static uint32_t warps[128];
  for (uint32_t i = 0; i < COUNT; i++) {
    in[i] = (float)i * -0.031f + 1.0f; /* down to where the result is no longer normal */
  }
  in[0] = -INFINITY, in[1] = NAN, in[2] = 0.0f, in[3] = INFINITY;
  tile_run run = {"mk_tile_warp_exp2", 1, 128, COUNT, 0, in, sizeof in, got, sizeof got, warps, sizeof warps};
  if (!tile_ran(gpu, &run)) {
    return;
  }
  double worst = 0;
  bool tiny = true, numbered = true;
  for (uint32_t i = 4; i < COUNT; i++) {
    double want = exp2((double)in[i]), error = fabs((double)got[i] - want);
    tiny = tiny && (want >= 0x1p-126 || error <= want);
    worst = want >= 0x1p-126 && !(error / want <= worst) ? error / want : worst;
  }
  for (uint32_t i = 0; i < 128; i++) {
    numbered = numbered && warps[i] == i / 32;
  }
  expect(worst <= 0x1p-22 && tiny, run.kernel, "a power of two is off by more than 2^-22");
  expect(got[0] == 0.0f && isnan(got[1]) && got[2] == 1.0f && isinf(got[3]), run.kernel,
         "2^-inf, 2^NaN, 2^0 or 2^inf is wrong");
  expect(numbered, run.kernel, "a warp has another number");
}

static void test_pack(tile_gpu *gpu) {
  static const uint32_t low_halves[] = {0, 1, 0x7fff, 0x8000, 0x8001, 0xffff}; /* around the half that ties to even */
  enum { LOW_HALVES = sizeof low_halves / sizeof low_halves[0], COUNT = 0x10000 * LOW_HALVES };
  uint32_t *in = new_bytes(COUNT * 4), *got = new_bytes(COUNT * 4), *want = new_bytes(COUNT * 4);
  for (uint32_t i = 0; i < COUNT; i++) {
    in[i] = i / LOW_HALVES << 16 | low_halves[i % LOW_HALVES];
  }
  tile_run run = {"mk_tile_warp_pack", MK_TILE_MAX_BLOCKS, 256, COUNT, 0, in, COUNT * 4, got, COUNT * 4, NULL, 0};
  if (tile_ran(gpu, &run)) {
    for (uint32_t i = 0; i < COUNT; i++) {
      for (uint32_t half = 0; half < 2; half++) {
        uint32_t bits = in[half == 0 ? i : COUNT - 1 - i], had = got[i] >> 16 * half & 0xffff;
        uint32_t rounded = mk_float_to_bf16(mk_param_float(bits));
        if (isnan(mk_param_float(bits)) && (had & 0x7fff) > 0x7f80) {
          rounded = had; /* which NaN is not promised */
        }
        want[i] |= rounded << 16 * half;
      }
    }
    expect_words(run.kernel, got, want, COUNT, 1);
  }
  free(in);
  free(got);
  free(want);
}

static void test_unpack(tile_gpu *gpu) {
  enum { COUNT = 0x10000 };
  uint32_t *in = new_bytes(COUNT * 4), *got = new_bytes(COUNT * 8), *want = new_bytes(COUNT * 8);
  for (uint32_t i = 0; i < COUNT; i++) {
    uint32_t high = i * 40503 % COUNT; /* odd: all of them, in another order */
    in[i] = i | high << 16;
    want[2 * i] = i << 16;
    want[2 * i + 1] = high << 16;
  }
  tile_run run = {"mk_tile_warp_unpack", MK_TILE_MAX_BLOCKS, 256, COUNT, 0, in, COUNT * 4, got, COUNT * 8, NULL, 0};
  if (tile_ran(gpu, &run)) {
    expect_words(run.kernel, got, want, (size_t)2 * COUNT, 2);
  }
  free(in);
  free(got);
  free(want);
}

static void test_multiply_pairs(tile_gpu *gpu) {
  enum { COUNT = 0x20000 };
  uint32_t *in = new_bytes(COUNT * 4), *got = new_bytes(COUNT * 4), *want = new_bytes(COUNT * 4), state = 1;
  for (uint32_t i = 0; i < COUNT; i++) { /* any sign and significand, exponents from -32 to 31 */
    state = state * 1664525u + 1013904223u;
    in[i] = (state & 0x9fff9fffu) + 0x2f802f80u;
  }
  tile_run run = {"mk_tile_warp_multiply", MK_TILE_MAX_BLOCKS, 256, COUNT, 0, in, COUNT * 4, got, COUNT * 4, NULL, 0};
  if (tile_ran(gpu, &run)) {
    for (uint32_t i = 0; i < COUNT; i++) {
      for (uint32_t half = 0; half < 2; half++) {
        float a = mk_bf16_to_float((uint16_t)(in[i] >> 16 * half));
        float b = mk_bf16_to_float((uint16_t)(in[COUNT - 1 - i] >> 16 * half));
        want[i] |= (uint32_t)mk_float_to_bf16(a * b) << 16 * half;
      }
    }
    expect_words(run.kernel, got, want, COUNT, 1);
  }
  free(in);
  free(got);
  free(want);
}

static void test_registers(tile_gpu *gpu) {
  enum { COUNT = 500 };
  uint32_t got[MK_REGISTER_THREADS], want[MK_REGISTER_THREADS];
  tile_run run = {"mk_tile_warp_registers", 1, MK_REGISTER_THREADS, COUNT, 0, .out = got, .out_bytes = sizeof got};
  for (uint32_t thread = 0; thread < MK_REGISTER_THREADS; thread++) {
    want[thread] = thread;
    for (uint32_t i = 0; i < 2 * COUNT; i++) {
      want[thread] = want[thread] * 1664525u + 1013904223u;
    }
  }
  if (tile_ran(gpu, &run)) {
    expect_words(run.kernel, got, want, MK_REGISTER_THREADS, 128);
  }
}

static void test_warps(tile_gpu *gpu) {
  test_sums(gpu);
  test_exp2(gpu);
  test_pack(gpu);
  test_unpack(gpu);
  test_multiply_pairs(gpu);
  test_registers(gpu);
}

/* Small whole numbers: every product and sum is exact. */

static void test_wgmma(tile_gpu *gpu) {
  enum { SIDE = 64, WIDE = 256 };
  static uint16_t in[SIDE * SIDE + SIDE * WIDE];
  static float got[SIDE][WIDE], want[SIDE][WIDE], square[SIDE][SIDE], got_square[SIDE][SIDE];
  static uint32_t quads[32][4], rows[32][4], want_rows[32][4];
  uint64_t seed = 11;
  for (uint32_t i = 0; i < SIDE * SIDE + SIDE * WIDE; i++) {
    in[i] = small_number(&seed);
  }
  for (uint32_t r = 0; r < SIDE; r++) {
    for (uint32_t c = 0; c < WIDE; c++) {
      want[r][c] = 0;
      for (uint32_t k = 0; k < SIDE; k++) {
        float left = mk_bf16_to_float(in[r * SIDE + k]);
        want[r][c] += left * mk_bf16_to_float(in[SIDE * SIDE + k * WIDE + c]);
        if (c < SIDE) {
          square[r][c] = (k == 0 ? 0 : square[r][c]) + 2 * left * mk_bf16_to_float(in[SIDE * SIDE + c * SIDE + k]);
        }
      }
    }
  }
  tile_run run = {"mk_tile_wgmma_transposed", 1, 128, 0, 0, in, sizeof in, got_square, sizeof got_square, NULL, 0};
  if (tile_ran(gpu, &run)) {
    expect_words(run.kernel, got_square, square, SIDE * SIDE, SIDE);
  }
  for (uint32_t left = 0; left < 3; left++) {
    run = (tile_run){"mk_tile_wgmma_rows", 1, 128, left, 0, in, sizeof in, got, sizeof got, NULL, 0};
    if (tile_ran(gpu, &run)) {
      expect_words(run.kernel, got, want, SIDE * WIDE, WIDE);
    }
  }
  for (uint32_t i = 0; i < 128; i++) {
    quads[i / 4][i % 4] = random_word(&seed);
  }
  for (uint32_t i = 0; i < 128; i++) {
    want_rows[i / 4][i % 4] = quads[i / 16 * 4 + i % 4][i / 4 % 4];
  }
  run = (tile_run){"mk_tile_transpose_quad", 1, 32, 0, 0, quads, sizeof quads, rows, sizeof rows, NULL, 0};
  if (tile_ran(gpu, &run)) {
    expect_words(run.kernel, rows, want_rows, 128, 4);
  }
  test_tile_packed(gpu);
}

void test_tiles(bool quick) {
#ifdef MK_TILE_IMAGES
  const bool built = true;
#else
  const bool built = false;
#endif
  static const struct {
    const char *name;
    const unsigned char *image;
    void (*test)(tile_gpu *gpu);
    void (*sweep)(tile_gpu *gpu, bool quick); /* over shapes; of other files */
  } parts[] = {{"tile/barrier", tile_image_barrier, test_barriers, test_pairs_of_warps},
               {"tile/codes", tile_image_codes, NULL, test_codes},
               {"tile/copy", tile_image_copy, test_copies, NULL},
               {"tile/edge", tile_image_edge, test_edges, test_edge_words},
               {"tile/fragment", tile_image_fragment, test_fragments, NULL},
               {"tile/gemm", tile_image_gemm, NULL, test_gemm},
               {"tile/group", tile_image_group, NULL, test_groups},
               {"tile/rows", tile_image_rows, test_tile_rows, NULL},
               {"tile/tensor", tile_image_tensor, NULL, test_tensors},
               {"tile/warp", tile_image_warp, test_warps, test_lanes},
               {"tile/wgmma", tile_image_wgmma, test_wgmma, NULL}};
  tile_gpu gpu = {0};
  mk_cu_device id = 0;
  mk_cu_context_ref context;
  if (!built) {
    printf("tile library: left out, there was no nvcc at build time\n");
    return;
  }
  if (!expect_ok(mk_driver_open(&gpu.cu), "tile library") ||
      !expect_ok(mk_driver_device(gpu.cu, device_index(), &id), "tile library") ||
      !expect_ok(mk_driver_check(gpu.cu, gpu.cu->context_retain(&context, id), "opening the GPU"), "tile library")) {
    return;
  }
  bool entered = expect_ok(mk_driver_check(gpu.cu, gpu.cu->context_set(context), "opening the GPU"), "tile library");
  for (size_t i = 0; i < sizeof parts / sizeof parts[0] && entered && !gpu.dead; i++) {
    if (expect_ok(mk_driver_check(gpu.cu, gpu.cu->module_load(&gpu.module, parts[i].image), "loading the test image"),
                  parts[i].name)) {
      if (parts[i].test != NULL) {
        parts[i].test(&gpu);
      }
      if (parts[i].sweep != NULL) {
        parts[i].sweep(&gpu, quick);
      }
      (void)gpu.cu->module_unload(gpu.module);
    }
  }
  (void)gpu.cu->context_set(NULL);
  (void)gpu.cu->context_release(id);
}
