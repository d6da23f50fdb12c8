// The kernel for wide steps of several sequences of other families.
#define MK_GPU_FAMILIES true
#define MK_GPU_SLOTS true
#include "vm/gpu/wide.cu"
