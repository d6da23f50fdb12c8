/* Runs a kernel of tests/gpu/tile/ and compares what it writes. One thread; memory is the caller's; what fails is a
 * failed check, or exits where there is no memory. */
#ifndef MK_TESTS_TILE_RUN_H
#define MK_TESTS_TILE_RUN_H

#include "vm/gpu/driver.h"

typedef struct tile_gpu {
  const mk_driver *cu;
  const char *part;
  mk_cu_module_ref module;
  bool dead; /* a launch failed: nothing after it would run */
} tile_gpu;

/* Of the tensor that `in` is: dimensions with the innermost first, and bytes from one to the next of each but that. */
typedef struct tile_map {
  int type, swizzle; /* MK_CU_TENSOR_... */
  uint32_t rank;
  uint64_t sizes[4], strides[3];
  uint32_t box[4];
} tile_map;

typedef struct tile_run {
  const char *kernel;
  uint32_t blocks, threads, count, first;
  const void *in;
  size_t in_bytes;
  void *out;
  size_t out_bytes;
  uint32_t *work; /* before and after; NULL: zeros, not wanted back */
  size_t work_bytes;
} tile_run;

/* True when the kernel ran and no wait in it was late: its outputs can be compared. */
bool tile_ran(tile_gpu *gpu, const tile_run *run);
/* The same with a map of `in`, as `work` begins: MK_TENSOR_MAP_BYTES of it. */
bool tile_ran_mapped(tile_gpu *gpu, const tile_run *run, const tile_map *map);

/* One check of all 4-byte words; the message names the first that differs, as an index into rows of `columns`. */
void expect_words(const char *kernel, const void *got, const void *want, size_t count, size_t columns);

/* A kernel whose outputs are its inputs, in rows of `columns` words; `first` and `work` as of a run. */
void test_same(tile_gpu *gpu, const char *kernel, uint32_t blocks, uint32_t rows, uint32_t columns, uint32_t first,
               uint32_t *work, size_t work_bytes);

/* What tile_gpu.c runs of the other files; quick: fewer shapes and rounds. */
void test_gemm(tile_gpu *gpu, bool quick);           /* tile_gemm_gpu.c: tile/gemm.cu */
void test_groups(tile_gpu *gpu, bool quick);         /* tile_group_gpu.c: tile/group.cu */
void test_tensors(tile_gpu *gpu, bool quick);        /* tile_tensor_gpu.c: tile/tensor.cu */
void test_edge_words(tile_gpu *gpu, bool quick);     /* tile_words_gpu.c: of tile/edge.cu, */
void test_lanes(tile_gpu *gpu, bool quick);          /* of tile/warp.cu, */
void test_codes(tile_gpu *gpu, bool quick);          /* of tile/codes.cu, */
void test_pairs_of_warps(tile_gpu *gpu, bool quick); /* and of tile/barrier.cu */

/* Zeros; the caller frees them. */
void *new_bytes(size_t bytes);
uint32_t random_word(uint64_t *seed);
uint16_t small_number(uint64_t *seed);               /* bf16, whole, -8 to 8 */
uint32_t *random_words(size_t count, uint64_t seed); /* the caller frees them */

/* Of tile_rows.c: with the modules of tile/rows.cu and tile/wgmma.cu loaded. */
void test_tile_rows(tile_gpu *gpu);
void test_tile_packed(tile_gpu *gpu);

#endif
