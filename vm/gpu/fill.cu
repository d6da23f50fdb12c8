// Hash weights, packed where they are used: element (row, col) of a tiled buffer is value(key, source row * cols + col)
// of the tensor that packed row comes from, and zero where the padding is. models/synth.h defines the hash,
// vm/program/program.h the tiles, models/graph.h the order of the rows. One thread per lane of a tile: eight elements,
// one 16-byte store.
#include "instructions/tile/lanes.cuh"
#include "instructions/tile/view.cuh"
#include "vm/gpu/fill.h"

namespace tile = mk::tile;

namespace {

__device__ uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

__device__ uint32_t value(const mk_gpu_fill_source &source, uint64_t index) {
  uint64_t z = mix(source.key + index * 0x9E3779B97F4A7C15ull);
  float f = source.offset + static_cast<float>(static_cast<int32_t>(z >> 48) - 32768) * source.scale;
  uint32_t bits = __float_as_uint(f);
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

// Finds the source of a packed row; false: it is padding.
__device__ bool find_row(const mk_gpu_fill &fill, uint32_t row, uint32_t &source, uint32_t &source_row) {
  uint32_t half = row % 16 / 8, lane = row % 8;
  if (fill.order == MK_GPU_FILL_GLU) {
    source = half;
    source_row = row / 16 * 8 + lane;
    bool there = source_row < (half == 0 ? fill.sources[0].rows : fill.sources[1].rows);
    source_row += half == 0 ? fill.sources[0].first : fill.sources[1].first;
    return there;
  }
  if (fill.order == MK_GPU_FILL_ROPE && row < fill.sources[0].rows + fill.sources[1].rows) {
    uint32_t pair = row % fill.head_dim / 16 * 8 + lane, rotated = (fill.rotary != 0 ? fill.rotary : fill.head_dim) / 2;
    uint32_t dim = pair < rotated ? pair + half * rotated : pair + rotated + half * (fill.head_dim / 2 - rotated);
    row = row / fill.head_dim * fill.head_dim + dim;
  }
#pragma unroll
  for (uint32_t s = 0; s < MK_GPU_FILL_SOURCES; s++) {
    if (s < fill.source_count) {
      if (row < fill.sources[s].rows) {
        source = s;
        source_row = fill.sources[s].first + row;
        return true;
      }
      row -= fill.sources[s].rows;
    }
  }
  return false;
}

__device__ uint32_t element(const mk_gpu_fill &fill, uint32_t row, uint32_t col) {
  uint32_t source, source_row;
  if (col >= fill.cols || !find_row(fill, row, source, source_row)) {
    return 0;
  }
  uint64_t index = static_cast<uint64_t>(source_row) * fill.cols + col;
  return source == 0   ? value(fill.sources[0], index)
         : source == 1 ? value(fill.sources[1], index)
                       : value(fill.sources[2], index);
}

}  // namespace

extern "C" __global__ void __launch_bounds__(MK_GPU_FILL_THREADS)
    mk_fill_hash(const __grid_constant__ mk_gpu_fill fill) {
  uint64_t stride = static_cast<uint64_t>(gridDim.x) * blockDim.x;
  for (uint64_t i = fill.first + static_cast<uint64_t>(blockIdx.x) * blockDim.x + tile::thread(); i < fill.units;
       i += stride) {
    if (fill.order == MK_GPU_FILL_VECTOR) {
      tile::global<uint16_t>(fill.address)[i] = static_cast<uint16_t>(value(fill.sources[0], i));
      continue;
    }
    uint64_t step = i / 32;
    uint32_t lane = static_cast<uint32_t>(i % 32);
    uint32_t row = static_cast<uint32_t>(step / fill.grid_cols) * 16 + tile::lane_row(lane);
    uint32_t col = static_cast<uint32_t>(step % fill.grid_cols) * 16 + tile::lane_column(lane);
    uint32_t words[4];
#pragma unroll
    for (uint32_t w = 0; w < 4; w++) {  // the A fragment: rows +0, +8, +0, +8, columns +0, +0, +8, +8
      uint32_t r = row + w % 2 * 8, c = col + w / 2 * 8;
      words[w] = element(fill, r, c) | element(fill, r, c + 1) << 16;
    }
    tile::global<uint4>(fill.address)[i] = make_uint4(words[0], words[1], words[2], words[3]);
  }
}
