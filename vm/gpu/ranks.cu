// The persistent kernel of one row for several GPUs that share a model (docs/RANKS.md): words that other GPUs read are
// also stored to their copies (copies.cuh), and all words between SMs have the scope of the system.
#define MK_GPU_RANKS true
#define MK_TILE_SCOPE "sys"
#include "vm/gpu/kernel.cu"
