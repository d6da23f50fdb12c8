/* What the host hands to the kernel of MLA programs (vm/gpu/mla.cu) beside what every kernel gets. Shared by C and
 * CUDA; plain data. */
#ifndef MK_GPU_MLA_LAUNCH_H
#define MK_GPU_MLA_LAUNCH_H

#include <stdint.h>

enum {
  MK_MLA_GPU_THREADS = 384,
  MK_MLA_GPU_SHARED_BYTES = 227 * 1024, /* all that a block may have */
  MK_MLA_GPU_MOST_INSTRUCTIONS = 2,     /* of a queue: they are handed out at once */
  MK_MLA_GPU_MOST_BUFFERS = 8,
  MK_MLA_GPU_PANEL_COLUMNS = 64, /* of a copy by a tensor map: 128 bytes */
};

/* An opaque tensor map of the driver: the rows of q by block, or of kv by page, in panels of 64 columns. One copy takes
 * one panel. */
typedef struct mk_gpu_tensor_map {
#ifdef __CUDACC__
  alignas(64)
#else
  _Alignas(64)
#endif
      uint64_t words[16];
} mk_gpu_tensor_map;

/* Where the loader finds its row of the work list, lengths and block tables before it has an instruction: in the
 * buffers that the operands of every mla_part name (rules L01 and L03: the same buffers on all SMs, each SM with its
 * own row). */
typedef struct mk_gpu_mla_inputs {
  uint64_t work, sequences;
  uint32_t list_words, sequence_words; /* of a row */
  uint32_t entries;                    /* how many a row of the list has room for */
  uint32_t rows, blocks, last_block;   /* rows of a block, blocks of a sequence, the last block of the largest batch */
} mk_gpu_mla_inputs;

#endif
