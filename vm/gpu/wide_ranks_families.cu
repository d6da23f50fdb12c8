// The kernel for wide steps of other families for several GPUs that share a model.
#define MK_GPU_FAMILIES true
#define MK_GPU_RANKS true
#define MK_TILE_SCOPE "sys"
#include "vm/gpu/wide.cu"
