// The same for quantised weights.
#define MK_GPU_QUANTISED true
#include "vm/gpu/rows_ranks_families_sampling.cu"
