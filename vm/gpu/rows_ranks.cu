// The persistent kernel of several rows per step for several GPUs that share a model: rows.cu and ranks.cu.
#define MK_GPU_ROWS true
#define MK_GPU_RANKS true
#define MK_TILE_SCOPE "sys"
#include "vm/gpu/kernel.cu"
