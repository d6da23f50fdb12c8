/* What there is to ask of GPUs beside running programs: which GPUs there are, weights made on the GPU, and how fast the
 * GPU reads its memory. Ownership, threads and failure as in machine.h. */
#ifndef MK_GPU_EXTRA_H
#define MK_GPU_EXTRA_H

#include "vm/gpu/fill.h"
#include "vm/gpu/machine.h"

/* Writes the whole of a weight buffer (TILES, or a bf16 vector for MK_GPU_FILL_VECTOR) from the hash. `address` and
 * `units` of *fill are ignored. MK_ERR_USAGE when order and buffer do not go together. */
mk_status mk_gpu_fill_hash(mk_gpu *gpu, size_t buffer, const mk_gpu_fill *fill);

/* Reads `bytes` (0: 8 GiB) of fresh memory by bulk copies from all SMs; the best of three, in bytes per second by
 * events; of several ranks all of them
 * together. Takes half of the free memory when there is less than twice as much; MK_ERR_RUNTIME below 1 GiB. */
mk_status mk_gpu_read_bandwidth(mk_gpu *gpu, uint64_t bytes, double *bytes_per_second);

/* What the driver tells of a GPU; 0 where it tells nothing. */
typedef struct mk_gpu_description {
  char name[128];
  int major, minor; /* compute capability */
  int sms;
  int sm_khz, memory_khz; /* the highest clocks, not those of the moment */
  uint64_t memory_bytes, free_bytes;
} mk_gpu_description;

/* GPUs that the driver shows, whether a device image runs on them or not; *cuda_version (1000 major + 10 minor) is the
 * newest CUDA that the driver runs. */
mk_status mk_gpu_count(uint32_t *count, int *cuda_version);
/* Opens the GPU for a moment to ask for its memory. */
mk_status mk_gpu_describe(uint32_t device, mk_gpu_description *out);
/* MK_OK when mkvm runs on that GPU; else the error says why not. */
mk_status mk_gpu_usable(uint32_t device);

#endif
