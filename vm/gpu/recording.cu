// The persistent kernel that records what it does and takes the fault point of delays: launched in place of the plain
// one, which carries none of that code, since what the instruction cache cannot hold costs every stage
// (docs/results/decode.md). The other kernels that have it: sampling_recording.cu, rows_recording.cu,
// wide_recording.cu, wide_slots_recording.cu.
#define MK_GPU_RECORDS true
#include "vm/gpu/kernel.cu"
