// The same for other families than Llama.
#define MK_GPU_FAMILIES true
#include "vm/gpu/rows_ranks_sampling.cu"
