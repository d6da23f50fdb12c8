// The kernel for wide steps of several sequences for several GPUs that records what it does (recording.cu).
#define MK_GPU_RECORDS true
#include "vm/gpu/wide_slots_ranks.cu"
