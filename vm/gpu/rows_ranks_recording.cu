// The persistent kernel of several rows per step for several GPUs that records what it does
// (recording.cu, rows_ranks.cu).
#define MK_GPU_RECORDS true
#include "vm/gpu/rows_ranks.cu"
