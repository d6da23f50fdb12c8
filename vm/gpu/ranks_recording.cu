// The persistent kernel of one row for several GPUs that records what it does (recording.cu, ranks.cu).
#define MK_GPU_RECORDS true
#include "vm/gpu/ranks.cu"
