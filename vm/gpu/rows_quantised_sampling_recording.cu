// The persistent kernel for several rows per step with quantised weights and the opcodes of sampling that records what
// it does (recording.cu).
#define MK_GPU_FAMILIES true
#define MK_GPU_QUANTISED true
#define MK_GPU_ROWS true
#define MK_GPU_SAMPLES true
#define MK_GPU_RECORDS true
#include "vm/gpu/kernel.cu"
