// The kernel for wide steps that several sequences share, of 64 to 512 rows; from the same source as that for prompts.
#define MK_GPU_SLOTS true
#include "vm/gpu/wide.cu"
