/* A CUDA driver without a GPU, for tests of the GPU machine's host side: a shared library that comes in the place of
 * libcuda.so.1.
 *
 * Device memory is memory. What is put into a stream waits there, in order, until somebody waits for the stream, or
 * asks for an event in it, or does so with another stream that waits for such an event. The kernel of a launch is the
 * test's: one step of it for each time that its stream is looked at. Weights are packed as a GPU packs them. Copies
 * outside of streams are not to be had. One thread. */
#ifndef MK_FAKE_CUDA_H
#define MK_FAKE_CUDA_H

#include "vm/gpu/launch.h"
#include "vm/gpu/rank.h"

enum {
  FAKE_CUDA_SMS = 8,
  FAKE_CUDA_NO_MEMORY = 4096, /* below this address there is none of a GPU */
};

/* A tensor map, in the place of the driver's own words: as it was asked for. */
enum { FAKE_MAP_RANK = 4 };
typedef struct fake_map {
  void *address;
  int type, rank;
  uint64_t sizes[FAKE_MAP_RANK], strides[FAKE_MAP_RANK - 1];
  uint32_t box[FAKE_MAP_RANK];
} fake_map;

typedef struct fake_cuda {
  bool (*kernel)(void *user, const mk_gpu_params *params, uint32_t step); /* true: that was the last step */
  /* mk_rank_logits of so many rows, at once: what it is about has been waited for. NULL: it does nothing. */
  void (*rank)(void *user, const mk_gpu_rank *params, uint32_t rows);
  void *user;
  const void *ranks; /* that kernel, as the driver names it */
  uint32_t calls;    /* so far, to what can fail: everything but what frees */
  uint32_t fail_at;  /* the call of that number gives CUDA_ERROR_OUT_OF_MEMORY; 0: none */
  bool broken;       /* every such call gives CUDA_ERROR_ILLEGAL_ADDRESS */
  uint32_t live;     /* contexts, modules, streams, events and memory that have not been freed */
  /* What it tells of itself and its GPUs; at first one that mkvm takes. */
  int start, version, devices, major, cooperative, blocks_per_sm;
  size_t memory;       /* bytes that it says it has free */
  uint8_t uuid;        /* of these GPUs, besides their index */
  bool no_peers;       /* its GPUs do not reach each other's memory */
  uint32_t peer_calls; /* so far, that let a GPU reach another's */
} fake_cuda;

/* FAKE_CUDA_STATE in the library. */
typedef fake_cuda *fake_cuda_state_fn(void);
#define FAKE_CUDA_STATE "fake_cuda_state"

#endif
