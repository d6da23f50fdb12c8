// The persistent kernel for several rows per step of other families than Llama with the opcodes of sampling.
#define MK_GPU_FAMILIES true
#define MK_GPU_ROWS true
#define MK_GPU_SAMPLES true
#include "vm/gpu/kernel.cu"
