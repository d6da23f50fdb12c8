// Raw rows of a checkpoint tensor into tiles; vm/gpu/pack.h says how. A block takes a row at a time, a thread a pair of
// its columns: reads are whole lines, writes are words 16 bytes apart that the L2 cache joins. The bus that brings the
// rows is far slower.
#include "instructions/tile/lanes.cuh"
#include "vm/gpu/pack.h"

extern "C" __global__ void __launch_bounds__(MK_GPU_PACK_THREADS)
    mk_pack_rows(const __grid_constant__ mk_gpu_pack pack) {
  uint32_t pairs = pack.cols / 2 + pack.cols % 2;
  for (uint32_t row = blockIdx.x; row < pack.rows; row += gridDim.x) {
    for (uint32_t pair = mk::tile::thread(); pair < pairs; pair += blockDim.x) {
      mk_gpu_pack_pair(&pack, row, pair);
    }
  }
}
