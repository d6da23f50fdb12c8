// The kernel for wide steps of several sequences with quantised weights for several GPUs that share a model.
#define MK_GPU_FAMILIES true
#define MK_GPU_QUANTISED true
#define MK_GPU_RANKS true
#define MK_GPU_SLOTS true
#define MK_TILE_SCOPE "sys"
#include "vm/gpu/wide.cu"
