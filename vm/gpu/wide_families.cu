// The kernel for wide steps of other families than Llama: biases of q, k and v, and norms of heads.
#define MK_GPU_FAMILIES true
#include "vm/gpu/wide.cu"
