// The persistent kernel for several rows per step with quantised weights and the opcodes of sampling.
#define MK_GPU_FAMILIES true
#define MK_GPU_QUANTISED true
#define MK_GPU_ROWS true
#define MK_GPU_SAMPLES true
#include "vm/gpu/kernel.cu"
