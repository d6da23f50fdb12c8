/* What a GPU of several that share a model knows of the others. Shared by C (vm/gpu/peers.c) and CUDA
 * (vm/gpu/copies.cuh). Plain data; all addresses are device addresses of the GPU that is told. */
#ifndef MK_GPU_PEERS_H
#define MK_GPU_PEERS_H

#include <stdint.h>

enum { MK_GPU_MOST_RANKS = 8 };

typedef struct mk_gpu_peers {
  uint32_t rank, ranks;
  uint64_t away[MK_GPU_MOST_RANKS];   /* added to an address in this rank's work arena: the same place in the other's */
  uint64_t aborts[MK_GPU_MOST_RANKS]; /* where the abort flags are */
  /* Of wide steps: added to the address of a release counter, its copy on the other rank; which ranks wait for it, a
   * bit for each, by counter; and the tensor maps, by buffer (mk_gpu_params). */
  uint64_t counters[MK_GPU_MOST_RANKS];
  uint64_t waiters, maps;
} mk_gpu_peers;

#endif
