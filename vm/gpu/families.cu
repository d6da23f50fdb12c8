// The persistent kernel for other families than Llama: launched for programs that have what no plain Llama has
// (vm/gpu/refuse.c, mk_gpu_find_parameter). The plain one carries none of it, since what the instruction cache cannot
// hold costs every stage.
#define MK_GPU_FAMILIES true
#include "vm/gpu/kernel.cu"
