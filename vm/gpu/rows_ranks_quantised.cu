// The persistent kernel of several rows per step for several GPUs and quantised weights of any family: rows_ranks.cu
// and rows_quantised.cu.
#define MK_GPU_QUANTISED true
#include "vm/gpu/rows_ranks_families.cu"
