// The persistent kernel for several rows per step of other families than Llama.
#define MK_GPU_FAMILIES true
#define MK_GPU_ROWS true
#include "vm/gpu/kernel.cu"
