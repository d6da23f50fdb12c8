/* What the host knows of the kernels for wide steps (vm/gpu/wide.cu, wide_slots.cu): of 128 to 1,024 rows of a prompt,
 * or 64 to 512 of several sequences. Shared by C and CUDA; plain data. */
#ifndef MK_GPU_WIDE_LAUNCH_H
#define MK_GPU_WIDE_LAUNCH_H

#include "vm/program/program.h"

enum {
  MK_WIDE_GPU_THREADS = 384,
  MK_WIDE_GPU_SHARED_BYTES = 227 * 1024, /* all that a block may have */
  MK_WIDE_GPU_WARPS = 8,                 /* that consume */
  MK_WIDE_GPU_RING_PAGES = 12,
  MK_WIDE_GPU_UNIT_TILES = 8,   /* row tiles of a weight that an instruction multiplies at most, but for HEAD */
  MK_WIDE_GPU_LINES = 128,      /* of a value, that it computes */
  MK_WIDE_GPU_PANEL_COLS = 64,  /* of a value that is multiplied, in a page */
  MK_WIDE_GPU_MOST_ROWS = 1024, /* of a step */
  /* What a warp keeps of sixteen lines of a head while spans are added up as a tree: at each level, for each lane, 16
   * tiles of four sums, two maxima and two totals. The first level is in shared memory. */
  MK_WIDE_GPU_LEVELS = 5,
  MK_WIDE_GPU_KEPT_FLOATS = 32 * (16 * 4 + 4),
  MK_WIDE_GPU_SCRATCH_FLOATS = MK_WIDE_GPU_WARPS * (MK_WIDE_GPU_LEVELS - 1) * MK_WIDE_GPU_KEPT_FLOATS, /* of a block */
};

/* Pieces that a tensor map has of a strip of 128 columns (vm/program/strips.h): the steps of bf16, of which an operand
 * may begin with any. A piece has at most 256 words of eight bytes. */
MK_HOST_DEVICE static inline uint32_t mk_wide_gpu_pieces(uint32_t dtype) {
  return dtype == MK_DTYPE_BF16 ? MK_CHAIN_COLS / MK_TILE : dtype == MK_DTYPE_I4 ? 1 : 2;
}

#endif
