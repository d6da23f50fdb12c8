/* Weights made on the GPU from the hash of models/synth.h: how one packed buffer comes from its source tensors.
 * Shared by C (vm/gpu/extra.c) and CUDA (vm/gpu/fill.cu). Plain data without ownership. */
#ifndef MK_GPU_FILL_H
#define MK_GPU_FILL_H

#include <stdint.h>

/* The orders of models/graph.h: mk_pack, as far as weights have sources. */
typedef enum mk_gpu_fill_order {
  MK_GPU_FILL_ROWS,
  MK_GPU_FILL_ROPE,
  MK_GPU_FILL_GLU,
  MK_GPU_FILL_VECTOR, /* not tiled: cols elements of source 0 */
} mk_gpu_fill_order;

enum { MK_GPU_FILL_SOURCES = 3, MK_GPU_FILL_THREADS = 256 };

typedef struct mk_gpu_fill_source {
  uint64_t key;
  uint32_t rows, first; /* of them in the tensor (models/graph.h) */
  float offset, scale;
} mk_gpu_fill_source;

typedef struct mk_gpu_fill {
  uint64_t address;                           /* device; the C side fills it in, as it does the next two */
  uint64_t first, units;                      /* tiled: 16-byte lanes of 8 elements; VECTOR: elements. [first, units)
                                                 are filled, where number 0 would lie at `address` */
  uint32_t order;                             /* mk_gpu_fill_order */
  uint32_t cols, grid_cols, head_dim, rotary; /* rotary: as in pack.h */
  uint32_t source_count;
  mk_gpu_fill_source sources[MK_GPU_FILL_SOURCES];
} mk_gpu_fill;

#endif
