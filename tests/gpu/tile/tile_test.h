/* What one launch of a tile test is told. Shared by C and CUDA. */
#ifndef MK_TILE_TEST_H
#define MK_TILE_TEST_H

#include <stdint.h>

enum {
  MK_TILE_DONE = 1, /* in every word of `status` (one per block) after a good run */
  MK_TILE_LATE = 2, /* a wait outlived its deadline */
  MK_TILE_MAX_BLOCKS = 4,

  MK_BARRIER_ARRIVALS = 3, /* of mk_tile_barrier_phases */
  MK_BARRIER_ROUNDS = 24,  /* 8 phases of each of the ring's barriers */
  MK_BARRIER_SLOTS = 3,
  MK_BARRIER_WARPS = 4,
  MK_BARRIER_MEET = 96, /* threads of a block of 128 */

  MK_CODES_WAY_E4M3 = 0, /* of mk_tile_codes */
  MK_CODES_WAY_E4M3_RAISED = 1,
  MK_CODES_WAY_E4M3_TWICE = 2,
  MK_CODES_WAY_I8 = 3,
  MK_CODES_WAY_I8_BF16 = 4,
  MK_CODES_WAY_I8_WHOLE = 5,
  MK_CODES_WAY_I4_BF16 = 6,
  MK_CODES_WAY_I4_FP16 = 7,
  MK_CODES_WAY_I4 = 8,
  MK_CODES_WAY_I4_WHOLE = 9, /* without zeros */
  MK_CODES_WAYS,

  MK_COPY_SLOT_BYTES = 16384,
  MK_COPY_SLOTS = 2,
  MK_COPY_CONSUMERS = 128,
  MK_COPY_FIXED_BYTES = 4096, /* of the copies whose size the compiler knows */

  MK_EDGE_WORDS = 64, /* two per lane */
  MK_EDGE_AMOUNT = 3, /* added to a counter per round */

  MK_FRAGMENT_STEPS = 8, /* of 16 columns, staged together */

  MK_EDGE_LOOKS = 26, /* words of mk_tile_edge_vectors for each four that go in */
  MK_EDGE_TRIPLES = 32 * 3,

  MK_GROUP_STEPS = 8, /* of a chain */
  MK_GROUP_LINES = 128,
  MK_GROUP_ROWS = 64,

  MK_TENSOR_ROOM = 16384, /* of the largest box, in bytes */
  MK_TENSOR_MAP_BYTES = 128,

  MK_WARP_WIDTHS = 7, /* lanes, groups of 1, 2, .. 32 */
  MK_REGISTER_THREADS = 384,
};

typedef struct mk_tile_params {
  uint64_t in, out, work,
      status;     /* device addresses; `work` starts as the host says, `out` and `status` as 0xff bytes */
  uint32_t count; /* what to do so many times */
  uint32_t first; /* a number to start from */
} mk_tile_params;

/* One bulk copy of copy.cu: `bytes` from in + from to to + the slot's start, in `pieces` equal copies on one barrier.
 */
typedef struct mk_tile_copy {
  uint32_t from, to, bytes, pieces;
} mk_tile_copy;

/* Where a box of tensor.cu begins, the innermost dimension first. */
typedef struct mk_tile_box {
  uint32_t at[4];
} mk_tile_box;

/* What the slots hold before a copy: which bytes a copy leaves alone shows. */
static inline
#ifdef __CUDACC__
    __device__
#endif
        uint32_t
        mk_tile_pattern(uint32_t copy, uint32_t word) {
  return 0xa5000000u ^ copy << 16 ^ word;
}

#endif
