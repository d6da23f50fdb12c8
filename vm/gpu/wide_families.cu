// The kernel for wide steps of other families than Llama: biases, norms of heads and of sums, and factors.
#define MK_GPU_FAMILIES true
#include "vm/gpu/wide.cu"
