/* The read probe: what one launch of mk_read_bandwidth is told, and its shape. Shared by C and CUDA. */
#ifndef MK_GPU_BANDWIDTH_H
#define MK_GPU_BANDWIDTH_H

#include <stdint.h>

enum {
  MK_BANDWIDTH_CHUNK = 16384, /* bytes of one bulk copy */
  MK_BANDWIDTH_SLOTS = 8,     /* copies in flight per SM */
  MK_BANDWIDTH_SHARED = MK_BANDWIDTH_CHUNK * MK_BANDWIDTH_SLOTS,
};

typedef struct mk_bandwidth_params {
  uint64_t address;
  uint64_t chunks;
} mk_bandwidth_params;

#endif
