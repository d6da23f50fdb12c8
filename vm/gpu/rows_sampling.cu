// The kernel of several rows per step with the opcodes of sampling: launched for programs that use them. The plain one
// stays small (rows.cu).
#define MK_GPU_ROWS true
#define MK_GPU_SAMPLES true
#include "vm/gpu/kernel.cu"
