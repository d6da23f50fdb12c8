// The persistent kernel for programs of several rows per step. What moves data and orders it (controller, loader,
// waits) is the plain kernel's; products have a column for each row (rows.cuh).
#define MK_GPU_ROWS true
#include "vm/gpu/kernel.cu"
