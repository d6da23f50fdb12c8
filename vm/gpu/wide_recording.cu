// The kernel for wide steps that records what it does (recording.cu).
#define MK_GPU_RECORDS true
#include "vm/gpu/wide.cu"
