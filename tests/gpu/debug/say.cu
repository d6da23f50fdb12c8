// The kernel of one row as MK_DEVICE_DEBUG compiles it, and a role that says something in it: docs/DEBUGGING.md.
#include "vm/gpu/kernel.cu"

extern "C" __global__ void say(const __grid_constant__ mk_gpu_params params) {
  mk::device d{params, threadIdx.x / 32, 0};
  MK_SAY(d, ROLE_CONSUMER, 8675, "nothing");
  MK_SAY(d, ROLE_STORER, 8675, "row %u: %f", 12u, 0.25f);
}
