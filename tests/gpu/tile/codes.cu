// instructions/tile/codes.cuh: tiles out of codes of eight and of four bits.
#include "instructions/tile/codes.cuh"

#include "tests/gpu/tile/tile_test.cuh"

using namespace mk;

namespace {

__device__ inline tile::row_scales bf16_scales(uint32_t pair) { return {tile::low_bf16(pair), tile::high_bf16(pair)}; }

__device__ inline tile::weight_tile expand(const uint4 &in, uint32_t way) {
  tile::weight_tile to = {};
  switch (way) {
    case MK_CODES_WAY_E4M3:
      tile::expand_e4m3(to, in.x, in.y, bf16_scales(in.z));
      break;
    case MK_CODES_WAY_E4M3_RAISED: {
      const uint32_t raised = tile::raise_scales(in.z);
      if (tile::are_finite(raised)) {
        tile::expand_e4m3(to, in.x, in.y, tile::raised_scales_of(raised));
      } else {
        tile::expand_e4m3(to, in.x, in.y, bf16_scales(in.z));
      }
      break;
    }
    case MK_CODES_WAY_E4M3_TWICE:
      tile::expand_e4m3(to, in.x, in.y, tile::byte_scales_of(in.z));
      break;
    case MK_CODES_WAY_I8:
      tile::expand_i8(to, in.x, in.y, bf16_scales(in.z));
      break;
    case MK_CODES_WAY_I8_BF16:
      tile::expand_i8(to, in.x, in.y, tile::byte_scales_of(in.z));
      break;
    case MK_CODES_WAY_I8_WHOLE: {
      const uint32_t raised = tile::raise_whole_scales<8>(in.z);
      if (tile::are_finite(raised)) {
        tile::expand_i8(to, in.x, in.y, tile::whole_scales_of<8>(in.z, raised));
      } else {
        tile::expand_i8(to, in.x, in.y, tile::byte_scales_of(in.z));
      }
      break;
    }
    case MK_CODES_WAY_I4_WHOLE: {
      const uint32_t raised = tile::raise_whole_scales<4>(in.z);
      if (tile::are_finite(raised)) {
        tile::expand_i4(to, in.x, tile::whole_scales_of<4>(in.z, raised));
      } else {
        tile::expand_i4<false>(to, in.x, tile::nibble_scales_of<false>(in.z, in.w));
      }
      break;
    }
    case MK_CODES_WAY_I4_BF16:
      tile::expand_i4<false>(to, in.x, tile::nibble_scales_of<false>(in.z, in.w));
      break;
    case MK_CODES_WAY_I4_FP16:
      tile::expand_i4<true>(to, in.x, tile::nibble_scales_of<true>(in.z, in.w));
      break;
    default:
      tile::expand_i4(to, in.x, bf16_scales(in.z), in.w & 0xff, in.w >> 8);
  }
  return to;
}

}  // namespace

// in [count][4]: two words of codes, the scales of two rows (bf16, or fp16), their zeros. out [count][4]: the fragment.
// first: which way.
extern "C" __global__ void __launch_bounds__(256) mk_tile_codes(const mk_tile_params params) {
  for (uint32_t i = blockIdx.x * 256 + threadIdx.x; i < params.count; i += gridDim.x * 256) {
    const tile::weight_tile got = expand(reinterpret_cast<const uint4 *>(params.in)[i], params.first);
    reinterpret_cast<uint4 *>(params.out)[i] = make_uint4(got.word[0], got.word[1], got.word[2], got.word[3]);
  }
  test::finish(params, true);
}
