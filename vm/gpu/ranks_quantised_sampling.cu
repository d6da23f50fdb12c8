// The same for quantised weights.
#define MK_GPU_QUANTISED true
#include "vm/gpu/ranks_families_sampling.cu"
