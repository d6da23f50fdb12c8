// The persistent kernel of several rows per step for several GPUs with the opcodes of sampling: rows_ranks.cu and
// rows_sampling.cu.
#define MK_GPU_SAMPLES true
#include "vm/gpu/rows_ranks.cu"
