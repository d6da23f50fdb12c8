// The kernel for wide steps of several sequences with the opcodes of sampling, of 64 and 128 rows: launched for
// programs that use them. The plain one stays small (wide_slots.cu).
#define MK_GPU_SAMPLES true
#define MK_GPU_SLOTS true
#define MK_GPU_WIDE 1
#include "instructions/search_slots.cuh"
#include "vm/gpu/wide.cu"
