// The persistent kernel for weights of eight and four bits, of any family (strips.cuh). The others carry none of it,
// since their pages are the four strips of bf16 that their warps share out without looking.
#define MK_GPU_FAMILIES true
#define MK_GPU_QUANTISED true
#include "vm/gpu/kernel.cu"
