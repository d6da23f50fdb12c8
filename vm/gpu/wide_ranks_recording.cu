// The kernel for wide steps for several GPUs that records what it does (recording.cu, wide_ranks.cu).
#define MK_GPU_RECORDS true
#include "vm/gpu/wide_ranks.cu"
