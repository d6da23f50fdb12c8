// The kernel for wide steps of several sequences with quantised weights that records what it does.
#define MK_GPU_FAMILIES true
#define MK_GPU_QUANTISED true
#define MK_GPU_RECORDS true
#define MK_GPU_SLOTS true
#include "vm/gpu/wide.cu"
