// The kernel for wide steps of several sequences with quantised weights and the opcodes of sampling.
#define MK_GPU_FAMILIES true
#define MK_GPU_QUANTISED true
#define MK_GPU_SAMPLES true
#define MK_GPU_SLOTS true
#define MK_GPU_WIDE 1
#include "instructions/search_slots.cuh"
#include "vm/gpu/wide.cu"
