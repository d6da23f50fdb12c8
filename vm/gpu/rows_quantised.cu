// The persistent kernel for several rows per step with quantised weights.
#define MK_GPU_FAMILIES true
#define MK_GPU_QUANTISED true
#define MK_GPU_ROWS true
#include "vm/gpu/kernel.cu"
