/* What the product by the tile library alone (gemm.cu) is told. Shared by C and CUDA. */
#ifndef MK_TESTS_TILE_GEMM_H
#define MK_TESTS_TILE_GEMM_H

#include <stdint.h>

#include "vm/gpu/mla_launch.h"

enum {
  MK_GEMM_THREADS = 3 * 128,            /* two warpgroups that multiply, and one of which a warp copies */
  MK_GEMM_SHARED_BYTES = 3 * 4 * 16384, /* three stages */
};

typedef struct mk_gemm_params {
  mk_gpu_tensor_map weight, x; /* boxes of four row tiles by eight steps, and of 128 lines by 64 columns */
  uint64_t out, status;        /* [lines][rows] bf16; a word a block */
  uint32_t rows, cols, lines;
} mk_gemm_params;

#endif
