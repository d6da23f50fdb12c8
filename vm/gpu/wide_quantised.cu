// The kernel for wide steps with quantised weights (strips.cuh): what a warp has of a chain becomes bf16 in registers.
#define MK_GPU_FAMILIES true
#define MK_GPU_QUANTISED true
#include "vm/gpu/wide.cu"
