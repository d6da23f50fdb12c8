// The persistent kernel for other families than Llama that records what it does (recording.cu).
#define MK_GPU_FAMILIES true
#define MK_GPU_RECORDS true
#include "vm/gpu/kernel.cu"
