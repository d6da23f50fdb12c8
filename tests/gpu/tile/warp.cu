// instructions/tile/warp.cuh: powers of two, pairs of bf16 and of fp16, whole loads, stores that stay, registers given
// and taken; and of lanes.cuh warps and lanes, sums and the largest over lanes, what is the same in all of them.
#include "instructions/tile/warp.cuh"

#include "tests/gpu/tile/tile_test.cuh"

using namespace mk;

// in [count][128]: one value per thread of four warps. out [count][MK_WARP_WIDTHS][128]; then, in `work`, each thread's
// lane, and 256 more where it is elected.
extern "C" __global__ void __launch_bounds__(128) mk_tile_warp_sums(const mk_tile_params params) {
  for (uint32_t i = 0; i < params.count; i++) {
    const float value = reinterpret_cast<const float *>(params.in)[i * 128 + threadIdx.x];
    float *out = reinterpret_cast<float *>(params.out) + i * MK_WARP_WIDTHS * 128 + threadIdx.x;
    out[0 * 128] = tile::sum_lanes(value);
    out[1 * 128] = tile::sum_group<1>(value);
    out[2 * 128] = tile::sum_group<2>(value);
    out[3 * 128] = tile::sum_group<4>(value);
    out[4 * 128] = tile::sum_group<8>(value);
    out[5 * 128] = tile::sum_group<16>(value);
    out[6 * 128] = tile::sum_group<32>(value);
  }
  reinterpret_cast<uint32_t *>(params.work)[threadIdx.x] = tile::lane() + (tile::elect() ? 256 : 0);
  test::finish(params, true);
}

// in [count] fp32. out [count]: 2^in, computed by the warps in turn, with its number in `work`; each value goes through
// shared memory by fours.
extern "C" __global__ void __launch_bounds__(128) mk_tile_warp_exp2(const mk_tile_params params) {
  __shared__ uint4 cells[128];
  const float *in = reinterpret_cast<const float *>(params.in);
  for (uint32_t i = threadIdx.x * 4; i < params.count; i += 128 * 4) {
    uint4 values;
    values.x = __float_as_uint(tile::exp2(in[i]));
    values.y = __float_as_uint(tile::exp2(in[i + 1]));
    values.z = __float_as_uint(tile::exp2(in[i + 2]));
    values.w = __float_as_uint(tile::exp2(in[i + 3]));
    tile::store_whole(cells[threadIdx.x], values);
    reinterpret_cast<uint4 *>(params.out)[i / 4] = tile::load_whole(cells[threadIdx.x]);
  }
  reinterpret_cast<uint32_t *>(params.work)[threadIdx.x] = tile::warp();
  test::finish(params, true);
}

// in [count] fp32 as bits. out [count]: in[i] low and in[count - 1 - i] high.
extern "C" __global__ void __launch_bounds__(256) mk_tile_warp_pack(const mk_tile_params params) {
  const float *in = reinterpret_cast<const float *>(params.in);
  uint32_t *out = reinterpret_cast<uint32_t *>(params.out);
  for (uint32_t i = blockIdx.x * 256 + threadIdx.x; i < params.count; i += gridDim.x * 256) {
    out[i] = tile::pack_bf16(in[i], in[params.count - 1 - i]);
  }
  test::finish(params, true);
}

// in [count] words. out [count][2]: the bits of the low and of the high half as fp32.
extern "C" __global__ void __launch_bounds__(256) mk_tile_warp_unpack(const mk_tile_params params) {
  const uint32_t *in = reinterpret_cast<const uint32_t *>(params.in);
  uint32_t *out = reinterpret_cast<uint32_t *>(params.out);
  for (uint32_t i = blockIdx.x * 256 + threadIdx.x; i < params.count; i += gridDim.x * 256) {
    out[2 * i] = __float_as_uint(tile::low_bf16(in[i]));
    out[2 * i + 1] = __float_as_uint(tile::high_bf16(in[i]));
  }
  test::finish(params, true);
}

// in [count] pairs of bf16. out [count]: in[i] times in[count - 1 - i].
extern "C" __global__ void __launch_bounds__(256) mk_tile_warp_multiply(const mk_tile_params params) {
  const uint32_t *in = reinterpret_cast<const uint32_t *>(params.in);
  uint32_t *out = reinterpret_cast<uint32_t *>(params.out);
  for (uint32_t i = blockIdx.x * 256 + threadIdx.x; i < params.count; i += gridDim.x * 256) {
    out[i] = tile::multiply_bf16(in[i], in[params.count - 1 - i]);
  }
  test::finish(params, true);
}

// Three warpgroups start with 168 registers a thread (the launch bounds; 64,512 in all). The first gives, the others
// take, then the other way round, with work in between. out [MK_REGISTER_THREADS]: count steps of a generator, from
// each thread's index on.
extern "C" __global__ void __launch_bounds__(MK_REGISTER_THREADS, 1)
    mk_tile_warp_registers(const mk_tile_params params) {
  uint32_t x = threadIdx.x;
  auto work = [&] {
    for (uint32_t i = 0; i < params.count; i++) {
      x = x * 1664525u + 1013904223u;
    }
  };
  if (threadIdx.x < 128) {
    tile::give_registers<40>();
    work();
  } else {
    tile::take_registers<232>();
    work();
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    tile::take_registers<232>();
    work();
  } else {
    tile::give_registers<104>();
    work();
  }
  reinterpret_cast<uint32_t *>(params.out)[threadIdx.x] = x;
  test::finish(params, true);
}

// in [count][128]. out [count][MK_WARP_WIDTHS - 1][128]: the largest of groups of 1, 2, .. 32 lanes.
extern "C" __global__ void __launch_bounds__(128) mk_tile_warp_largest(const mk_tile_params params) {
  for (uint32_t i = 0; i < params.count; i++) {
    const float value = reinterpret_cast<const float *>(params.in)[i * 128 + threadIdx.x];
    float *out = reinterpret_cast<float *>(params.out) + i * (MK_WARP_WIDTHS - 1) * 128 + threadIdx.x;
    out[0 * 128] = tile::largest_of_group<1>(value);
    out[1 * 128] = tile::largest_of_group<2>(value);
    out[2 * 128] = tile::largest_of_group<4>(value);
    out[3 * 128] = tile::largest_of_group<8>(value);
    out[4 * 128] = tile::largest_of_group<16>(value);
    out[5 * 128] = tile::largest_of_group<32>(value);
  }
  test::finish(params, true);
}

// in [count][128] words. out [count][4][128]: the warp's largest, whether one of them is odd, the word itself, the
// thread.
extern "C" __global__ void __launch_bounds__(128) mk_tile_warp_same(const mk_tile_params params) {
  for (uint32_t i = 0; i < params.count; i++) {
    const uint32_t word = reinterpret_cast<const uint32_t *>(params.in)[i * 128 + threadIdx.x];
    uint32_t *out = reinterpret_cast<uint32_t *>(params.out) + i * 4 * 128 + threadIdx.x;
    out[0 * 128] = tile::uniform(word);
    out[1 * 128] = tile::uniform(word % 2 != 0) ? 1 : 0;
    out[2 * 128] = tile::anew(word);
    out[3 * 128] = tile::thread_anew();
  }
  test::finish(params, true);
}

// in [count] fp32 as bits. out [count][3]: in[i] low and in[count - 1 - i] high as fp16, and both unpacked again.
extern "C" __global__ void __launch_bounds__(256) mk_tile_warp_half(const mk_tile_params params) {
  const float *in = reinterpret_cast<const float *>(params.in);
  uint32_t *out = reinterpret_cast<uint32_t *>(params.out);
  for (uint32_t i = blockIdx.x * 256 + threadIdx.x; i < params.count; i += gridDim.x * 256) {
    const uint32_t pair = tile::pack_half(in[i], in[params.count - 1 - i]);
    const float2 both = tile::unpack_half(pair);
    out[3 * i] = pair;
    out[3 * i + 1] = __float_as_uint(both.x);
    out[3 * i + 2] = __float_as_uint(both.y);
  }
  test::finish(params, true);
}

// in [count][32] times 16 bytes; out the same.
extern "C" __global__ void __launch_bounds__(32) mk_tile_warp_stay(const mk_tile_params params) {
  for (uint32_t i = threadIdx.x; i < params.count * 32; i += 32) {
    tile::store_to_stay(reinterpret_cast<float4 *>(params.out) + i, reinterpret_cast<const float4 *>(params.in)[i]);
  }
  test::finish(params, true);
}

// in [count] words. out [count][4]: the word, wrapped once at params.first, with the count of that beside it; the same
// with a phase.
extern "C" __global__ void __launch_bounds__(256) mk_tile_warp_wrap(const mk_tile_params params) {
  const uint32_t *in = reinterpret_cast<const uint32_t *>(params.in);
  for (uint32_t i = blockIdx.x * 256 + threadIdx.x; i < params.count; i += gridDim.x * 256) {
    uint32_t value = in[i], count = i, other = in[i], phase = i % 2;
    tile::wrap(value, params.first, count);
    tile::wrap_phase(other, params.first, phase);
    reinterpret_cast<uint4 *>(params.out)[i] = make_uint4(value, count, other, phase);
  }
  test::finish(params, true);
}
