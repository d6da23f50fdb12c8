// instructions/tile/copy.cuh: copies by tensor maps of two, three and four dimensions, with what lies beyond the
// tensor. `in` is the tensor. work: its map, then mk_tile_box [count], `first` bytes each. out [count][MK_TENSOR_ROOM]:
// shared memory after each copy, which begins as a pattern.
#include "instructions/tile/copy.cuh"
#include "tests/gpu/tile/tile_test.cuh"

using namespace mk;

// load(to, map, box, barrier): by one thread.
template <typename load_function>
__device__ inline void copy_boxes(const mk_tile_params &params, load_function load) {
  __shared__ __align__(1024) uint32_t to[MK_TENSOR_ROOM / 4];
  __shared__ uint64_t storage;
  const uint8_t *map = reinterpret_cast<const uint8_t *>(params.work);
  const mk_tile_box *boxes = reinterpret_cast<const mk_tile_box *>(map + MK_TENSOR_MAP_BYTES);
  const uint32_t barrier = tile::shared_address(&storage), words = MK_TENSOR_ROOM / 4;
  if (threadIdx.x == 0) {
    tile::prefetch_tensor_map(map);  // of these two nothing is to be seen but that they do no harm
    tile::prefetch(reinterpret_cast<const void *>(params.in), 64);
    tile::barrier_init(barrier, 1);
    tile::fence_barriers();
  }
  __syncthreads();
  bool good = true;
  for (uint32_t c = 0; c < params.count && good; c++) {
    for (uint32_t i = threadIdx.x; i < words; i += 128) {
      to[i] = mk_tile_pattern(c, i);
    }
    tile::fence_shared_for_copies();
    __syncthreads();
    if (threadIdx.x == 0) {
      tile::arrive_expect(barrier, params.first);
      load(tile::shared_address(to), map, boxes[c], barrier);
    }
    good = __syncthreads_and(test::wait_phase(barrier, c & 1)) != 0;
    for (uint32_t i = threadIdx.x; i < words && good; i += 128) {
      reinterpret_cast<uint32_t *>(params.out)[c * words + i] = to[i];
    }
    __syncthreads();
  }
  test::finish(params, good);
}

extern "C" __global__ void __launch_bounds__(128) mk_tile_tensor_matrix(const mk_tile_params params) {
  copy_boxes(params, [](uint32_t to, const void *map, const mk_tile_box &box, uint32_t barrier) {
    tile::matrix_load(to, map, box.at[0], box.at[1], barrier);
  });
}

extern "C" __global__ void __launch_bounds__(128) mk_tile_tensor_solid(const mk_tile_params params) {
  copy_boxes(params, [](uint32_t to, const void *map, const mk_tile_box &box, uint32_t barrier) {
    tile::solid_load(to, map, box.at[0], box.at[1], box.at[2], barrier);
  });
}

extern "C" __global__ void __launch_bounds__(128) mk_tile_tensor_panels(const mk_tile_params params) {
  copy_boxes(params, [](uint32_t to, const void *map, const mk_tile_box &box, uint32_t barrier) {
    tile::tensor_load(to, map, box.at[2], box.at[3], barrier);  // the first two are zero
  });
}
