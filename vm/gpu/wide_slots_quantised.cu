// The kernel for wide steps of several sequences with quantised weights.
#define MK_GPU_FAMILIES true
#define MK_GPU_QUANTISED true
#define MK_GPU_SLOTS true
#include "vm/gpu/wide.cu"
