// Device code that costs speed in silence. MK_CASE 0 compiles; every other one is refused with the words after its
// #elif.
#include <cstdint>

extern "C" __global__ void __launch_bounds__(128) mk_refused(const float *in, float *out, uint32_t at) {
#if MK_CASE == 0
  out[threadIdx.x] = in[threadIdx.x];
#elif MK_CASE == 1  // bytes stack frame
  float values[64];
  for (uint32_t i = 0; i < 64; i++) {
    values[i] = in[i * 128 + threadIdx.x];
  }
  for (uint32_t i = 0; i < 64; i++) {
    out[i * 128 + threadIdx.x] = values[(i * at) % 64];
  }
#elif MK_CASE == 2  // C7508
  asm volatile("setmaxnreg.dec.sync.aligned.u32 24;");
  float values[64];
#pragma unroll
  for (uint32_t i = 0; i < 64; i++) {
    values[i] = in[i * 128 + threadIdx.x];
  }
#pragma unroll
  for (uint32_t i = 0; i < 64; i++) {
    out[i * 128 + threadIdx.x] = values[63 - i] * values[i];
  }
#endif
}
