// The same for other families than Llama.
#define MK_GPU_FAMILIES true
#include "vm/gpu/ranks_sampling.cu"
