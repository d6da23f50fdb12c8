// The kernel for wide steps of several sequences that samples and records what it does (recording.cu).
#define MK_GPU_RECORDS true
#include "vm/gpu/wide_slots_sampling.cu"
