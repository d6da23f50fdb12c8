/* What the host knows of the kernel for the chunks of a prompt (vm/gpu/prompt.cu). Shared by C and CUDA; plain data. */
#ifndef MK_GPU_PROMPT_LAUNCH_H
#define MK_GPU_PROMPT_LAUNCH_H

enum {
  MK_PROMPT_GPU_THREADS = 384,
  MK_PROMPT_GPU_SHARED_BYTES = 227 * 1024, /* all that a block may have */
  MK_PROMPT_GPU_WARPS = 8,                 /* that consume */
  MK_PROMPT_GPU_RING_PAGES = 8,
  MK_PROMPT_GPU_CHUNK_STEPS = 64, /* of K, 512 bytes of a row tile each: sums wait between chunks */
  /* Of 32 queries of attention, between spans: for each lane 2 x 16 tiles of four sums, four maxima and four totals. */
  MK_PROMPT_GPU_KEPT_SET_FLOATS = 32 * (2 * 16 * 4 + 8),
};

#endif
