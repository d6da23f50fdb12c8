// The persistent kernel for quantised weights with the opcodes of sampling.
#define MK_GPU_FAMILIES true
#define MK_GPU_QUANTISED true
#define MK_GPU_SAMPLES true
#include "vm/gpu/kernel.cu"
