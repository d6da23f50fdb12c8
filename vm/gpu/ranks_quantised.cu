// The persistent kernel of one row for several GPUs and quantised weights of any family: ranks.cu and quantised.cu.
#define MK_GPU_QUANTISED true
#include "vm/gpu/ranks_families.cu"
