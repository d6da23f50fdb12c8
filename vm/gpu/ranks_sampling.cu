// The persistent kernel of one row for several GPUs with the opcodes of sampling: ranks.cu and sampling.cu.
#define MK_GPU_SAMPLES true
#include "vm/gpu/ranks.cu"
