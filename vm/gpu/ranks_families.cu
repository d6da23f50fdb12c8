// The persistent kernel of one row for several GPUs and other families than Llama: ranks.cu and families.cu.
#define MK_GPU_FAMILIES true
#include "vm/gpu/ranks.cu"
