// The same that records what it does.
#define MK_GPU_FAMILIES true
#define MK_GPU_RECORDS true
#define MK_GPU_SLOTS true
#include "vm/gpu/wide.cu"
