// The same of several rows per step.
#define MK_GPU_FAMILIES true
#include "vm/gpu/rows_ranks.cu"
