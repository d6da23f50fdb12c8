// The persistent kernel for quantised weights with the opcodes of sampling that records what it does (recording.cu).
#define MK_GPU_FAMILIES true
#define MK_GPU_QUANTISED true
#define MK_GPU_SAMPLES true
#define MK_GPU_RECORDS true
#include "vm/gpu/kernel.cu"
