// The kernel for wide steps that several sequences share, for several GPUs that share a model (docs/RANKS.md): what an
// SM writes for other GPUs goes to their copies (copies.cuh), and so do its signals.
#define MK_GPU_RANKS true
#define MK_GPU_SLOTS true
#define MK_TILE_SCOPE "sys"
#include "vm/gpu/wide.cu"
