// The persistent kernel with the opcodes of sampling: launched for programs that use them. The plain one stays small
// (recording.cu).
#define MK_GPU_SAMPLES true
#include "vm/gpu/kernel.cu"
