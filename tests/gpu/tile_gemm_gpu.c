/* A product by the tile library alone (tests/gpu/tile/gemm.cu), against plain C: small whole numbers, whose sums are
 * exact. And how fast it is, which is told and not judged (docs/TILES.md). */
#include <stdio.h>
#include <stdlib.h>

#include "instructions/reference.h"
#include "tests/gpu/gpu_test.h"
#include "tests/gpu/tile/gemm.h"
#include "tests/gpu/tile/tile_test.h"
#include "tests/gpu/tile_run.h"

enum { LAUNCHES = 20 };

typedef struct gemm {
  tile_gpu *gpu;
  uint32_t rows, cols, lines, blocks;
  mk_cu_address weight, x, out, status;
  mk_cu_function_ref function;
  mk_gemm_params params;
} gemm;

static mk_status encode(const gemm *g, const char *what, mk_gpu_tensor_map *to, int type, int swizzle, uint32_t rank,
                        mk_cu_address tensor, const uint64_t *sizes, const uint64_t *strides, const uint32_t *box) {
  static const uint32_t steps[] = {1, 1, 1};
  const mk_driver *cu = g->gpu->cu;
  return mk_driver_check(cu,
                         cu->tensor_map(to, type, rank, (void *)(uintptr_t)tensor, sizes, strides, box, steps, 0,
                                        swizzle, MK_CU_TENSOR_PROMOTE_NONE, 0),
                         what);
}

static mk_status new_memory(const gemm *g, mk_cu_address *address, size_t bytes) {
  return mk_driver_check(g->gpu->cu, g->gpu->cu->memory_new(address, bytes), "allocating memory");
}

/* weight: as it lies in memory; x [lines][cols]. Free with end_gemm. */
static mk_status begin_gemm(gemm *g, const uint16_t *weight, const uint16_t *x) {
  const mk_driver *cu = g->gpu->cu;
  const size_t weight_bytes = (size_t)g->rows * g->cols * 2, x_bytes = (size_t)g->lines * g->cols * 2;
  int sms = 0;
  mk_cu_device id = 0;
  MK_TRY(mk_driver_device(cu, device_index(), &id));
  MK_TRY(mk_driver_check(cu, cu->device_attribute(&sms, MK_CU_ATTRIBUTE_SMS, id), "counting SMs"));
  const uint32_t tiles = g->rows / 128 * (g->lines / 128);
  g->blocks = tiles < (uint32_t)sms ? tiles : (uint32_t)sms;
  MK_TRY(mk_driver_check(cu, cu->module_function(&g->function, g->gpu->module, "mk_tile_gemm"), "mk_tile_gemm"));
  MK_TRY(mk_driver_check(cu, cu->function_set(g->function, MK_CU_FUNCTION_DYNAMIC_SHARED, MK_GEMM_SHARED_BYTES),
                         "asking for shared memory"));
  MK_TRY(new_memory(g, &g->weight, weight_bytes));
  MK_TRY(new_memory(g, &g->x, x_bytes));
  MK_TRY(new_memory(g, &g->out, (size_t)g->lines * g->rows * 2));
  MK_TRY(new_memory(g, &g->status, g->blocks * sizeof(uint32_t)));
  MK_TRY(mk_driver_check(cu, cu->upload_async(g->weight, weight, weight_bytes, NULL), "sending inputs"));
  MK_TRY(mk_driver_check(cu, cu->upload_async(g->x, x, x_bytes, NULL), "sending inputs"));
  MK_TRY(mk_driver_check(cu, cu->fill_async(g->status, 0xff, g->blocks * sizeof(uint32_t), NULL), "filling memory"));
  MK_TRY(encode(g, "the weight's map", &g->params.weight, MK_CU_TENSOR_U64, MK_CU_TENSOR_SWIZZLE_NONE, 3, g->weight,
                (const uint64_t[]){64, g->cols / 16, g->rows / 16},
                (const uint64_t[]){512, g->cols / 16 * UINT64_C(512)}, (const uint32_t[]){64, 8, 4}));
  MK_TRY(encode(g, "the lines' map", &g->params.x, MK_CU_TENSOR_BF16, MK_CU_TENSOR_SWIZZLE_128, 2, g->x,
                (const uint64_t[]){g->cols, g->lines}, (const uint64_t[]){g->cols * UINT64_C(2)},
                (const uint32_t[]){64, 128}));
  g->params.out = g->out, g->params.status = g->status;
  g->params.rows = g->rows, g->params.cols = g->cols, g->params.lines = g->lines;
  return MK_OK;
}

static void end_gemm(gemm *g) {
  const mk_driver *cu = g->gpu->cu;
  (void)cu->memory_free(g->weight);
  (void)cu->memory_free(g->x);
  (void)cu->memory_free(g->out);
  (void)cu->memory_free(g->status);
}

static mk_status launch(gemm *g) {
  void *arguments[] = {&g->params};
  return mk_driver_check(g->gpu->cu,
                         g->gpu->cu->launch(g->function, g->blocks, 1, 1, MK_GEMM_THREADS, 1, 1, MK_GEMM_SHARED_BYTES,
                                            NULL, arguments, NULL),
                         "mk_tile_gemm");
}

/* What is to be compared: out, and that no block was late. */
static mk_status fetch(gemm *g, uint16_t *out, uint32_t *states) {
  const mk_driver *cu = g->gpu->cu;
  MK_TRY(mk_driver_check(cu, cu->download_async(out, g->out, (size_t)g->lines * g->rows * 2, NULL), "mk_tile_gemm"));
  MK_TRY(mk_driver_check(cu, cu->download_async(states, g->status, g->blocks * sizeof *states, NULL), "mk_tile_gemm"));
  return mk_driver_check(cu, cu->stream_wait(NULL), "mk_tile_gemm");
}

static size_t weight_place(uint32_t cols, uint32_t row, uint32_t col) {
  return ((size_t)(row / 16) * (cols / 16) + col / 16) * MK_TILE_STEP_ELEMENTS + mk_step_offset(row, col);
}

static void test_product(tile_gpu *gpu, uint32_t rows, uint32_t cols, uint32_t lines) {
  gemm g = {.gpu = gpu, .rows = rows, .cols = cols, .lines = lines};
  uint16_t *weight = new_bytes((size_t)rows * cols * 2), *x = new_bytes((size_t)lines * cols * 2);
  uint16_t *got = new_bytes((size_t)lines * rows * 2), *want = new_bytes((size_t)lines * rows * 2);
  uint32_t *states = new_bytes((size_t)rows / 128 * (lines / 128) * sizeof *states);
  uint64_t seed = 31;
  for (size_t i = 0; i < (size_t)rows * cols; i++) {
    weight[i] = small_number(&seed);
  }
  for (size_t i = 0; i < (size_t)lines * cols; i++) {
    x[i] = small_number(&seed);
  }
  for (uint32_t line = 0; line < lines; line++) {
    for (uint32_t row = 0; row < rows; row++) {
      float sum = 0.0f;
      for (uint32_t col = 0; col < cols; col++) {
        sum += mk_bf16_to_float(weight[weight_place(cols, row, col)]) * mk_bf16_to_float(x[(size_t)line * cols + col]);
      }
      want[(size_t)line * rows + row] = mk_float_to_bf16(sum);
    }
  }
  mk_status status = begin_gemm(&g, weight, x);
  status = status == MK_OK ? launch(&g) : status;
  status = status == MK_OK ? fetch(&g, got, states) : status;
  if (expect_ok(status, "mk_tile_gemm")) {
    bool done = true;
    for (uint32_t i = 0; i < g.blocks; i++) {
      done = done && states[i] == MK_TILE_DONE;
    }
    expect(done, "mk_tile_gemm", "a wait outlived its deadline");
    expect_words("mk_tile_gemm", got, want, (size_t)lines * rows / 2, rows / 2);
  } else {
    gpu->dead = true;
  }
  end_gemm(&g);
  free(weight);
  free(x);
  free(got);
  free(want);
  free(states);
}

/* Random numbers between -1 and 1: what a product costs depends on the bits that change (docs/results/wide.md). */
static mk_status time_product(gemm *g, float *milliseconds) {
  const mk_driver *cu = g->gpu->cu;
  uint32_t *weight = random_words((size_t)g->rows * g->cols / 2, 5);
  uint32_t *x = random_words((size_t)g->lines * g->cols / 2, 6);
  mk_cu_event_ref start = NULL, end = NULL;
  mk_status status = MK_OK;
  for (size_t i = 0; i < (size_t)g->rows * g->cols / 2; i++) {
    weight[i] = (weight[i] & 0x83ff83ffu) | 0x3c003c00u;
  }
  for (size_t i = 0; i < (size_t)g->lines * g->cols / 2; i++) {
    x[i] = (x[i] & 0x83ff83ffu) | 0x3c003c00u;
  }
  MK_TRY_GOTO(begin_gemm(g, (const uint16_t *)weight, (const uint16_t *)x), done);
  MK_TRY_GOTO(mk_driver_check(cu, cu->event_new(&start, 0), "making an event"), done);
  MK_TRY_GOTO(mk_driver_check(cu, cu->event_new(&end, 0), "making an event"), done);
  for (uint32_t i = 0; i <= LAUNCHES; i++) {
    if (i == 1) { /* the first one warms up */
      MK_TRY_GOTO(mk_driver_check(cu, cu->event_record(start, NULL), "timing"), done);
    }
    MK_TRY_GOTO(launch(g), done);
  }
  MK_TRY_GOTO(mk_driver_check(cu, cu->event_record(end, NULL), "timing"), done);
  MK_TRY_GOTO(mk_driver_check(cu, cu->event_wait(end), "timing"), done);
  MK_TRY_GOTO(mk_driver_check(cu, cu->event_elapsed(milliseconds, start, end), "timing"), done);
  *milliseconds /= LAUNCHES;
done:
  (void)cu->event_free(start);
  (void)cu->event_free(end);
  end_gemm(g);
  free(weight);
  free(x);
  return status;
}

void test_gemm(tile_gpu *gpu, bool quick) {
  static const uint32_t timed[][3] = {{28672, 4096, 1024}, {16384, 2048, 1024}};
  test_product(gpu, 128, 128, 128);
  test_product(gpu, 384, 640, 256);
  for (uint32_t i = 0; i < sizeof timed / sizeof timed[0] && !quick && !gpu->dead; i++) {
    gemm g = {.gpu = gpu, .rows = timed[i][0], .cols = timed[i][1], .lines = timed[i][2]};
    float milliseconds = 0;
    if (expect_ok(time_product(&g, &milliseconds), "mk_tile_gemm")) {
      printf("a product of %u x %u x %u by the tile library alone: %.1f us, %.0f TFLOP/s\n", g.rows, g.cols, g.lines,
             (double)milliseconds * 1e3, 2e-9 * g.rows * g.cols * g.lines / (double)milliseconds);
    }
  }
}
