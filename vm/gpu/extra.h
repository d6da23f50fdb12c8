/* Beside running programs: weights made on the GPU, and how fast the GPU reads its memory. Ownership, threads and failure as in
 * machine.h. */
#ifndef MK_GPU_EXTRA_H
#define MK_GPU_EXTRA_H

#include "vm/gpu/fill.h"
#include "vm/gpu/machine.h"

/* Writes the whole of a weight buffer (TILES, or a bf16 vector for MK_GPU_FILL_VECTOR) from the hash. `address` and `units` of
 * *fill are ignored. MK_ERR_USAGE when order and buffer do not go together. */
mk_status mk_gpu_fill_hash(mk_gpu *gpu, size_t buffer, const mk_gpu_fill *fill);

/* Reads `bytes` (0: 8 GiB) of fresh memory by bulk copies from all SMs; the best of three, in bytes per second by events. Takes half of
 * the free memory when there is less than twice as much; MK_ERR_RUNTIME below 1 GiB. */
mk_status mk_gpu_read_bandwidth(mk_gpu *gpu, uint64_t bytes, double *bytes_per_second);

#endif
