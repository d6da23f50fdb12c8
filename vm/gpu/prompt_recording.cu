// The kernel for prompts that records what it does (recording.cu).
#define MK_GPU_RECORDS true
#include "vm/gpu/prompt.cu"
