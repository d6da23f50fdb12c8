// The same that records what it does.
#define MK_GPU_FAMILIES true
#define MK_GPU_RECORDS true
#include "vm/gpu/wide.cu"
