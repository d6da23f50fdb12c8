// instructions/tile/lanes.cuh and view.cuh: numbers of lanes, votes, exchanges, reductions; memory as another type.
#include "instructions/tile/lanes.cuh"

#include "instructions/tile/view.cuh"
#include "instructions/tile/wgmma.cuh"
#include "tests/gpu/tile/tile_test.cuh"

using namespace mk;

// in [count][32] words. out [count][MK_LANES_LOOKS][32], in the order of tile_lanes_gpu.c.
extern "C" __global__ void __launch_bounds__(32) mk_tile_lanes(const mk_tile_params params) {
  const uint32_t lane = tile::lane();
  for (uint32_t i = 0; i < params.count; i++) {
    const uint32_t x = tile::global<const uint32_t>(params.in)[i * 32 + lane];
    const float number = __fmul_rn(static_cast<float>(x & 0xffff), 0.37f);
    const uint64_t wide = static_cast<uint64_t>(x) << 32 | ~x;
    const uint64_t other = tile::from_lane(wide, 31 - lane);
    const uint4 four = tile::from_lane(make_uint4(x, x + 1, x + 2, x + 3), lane / 2);
    const uint32_t looks[MK_LANES_LOOKS] = {
        tile::all_lanes(x % 64 != 0),
        tile::any_lane(x % 64 == 0),
        tile::lanes_where(x % 3 == 0),
        tile::lanes_sharing(x % 5),
        tile::has_lane(x, lane),
        tile::lanes_before(lane),
        tile::from_lane(x, x >> 8),
        static_cast<uint32_t>(other >> 32),
        static_cast<uint32_t>(other),
        four.x ^ four.y << 8 ^ four.z << 16 ^ four.w << 24,
        tile::from_lane_before(x, 3),
        tile::exchange(x, 5),
        tile::largest_of_lanes(x),
        tile::smallest_of_lanes(x),
        tile::sum_lanes(x),
        tile::or_lanes(x & 0x11111111u << lane % 4),
        __float_as_uint(tile::sum_tree<8>(number)),
        __float_as_uint(tile::sum_across<4>(number)),
        __float_as_uint(tile::largest_across<8>(number)),
        tile::group_of_lane<3>(lane) << 8 | tile::place_in_group<3>(lane),
        tile::place_in_group(lane, 5 + i % 3) << 8 | tile::group_of_two<4>(lane),
        tile::lane_row(lane) << 16 | tile::lane_of_quad(lane) << 8 | tile::lane_column(lane),
        tile::thread() << 24 | tile::warp_of_thread(lane * 5) << 16 | tile::lane_of_thread(lane * 5) << 8 |
            tile::thread_of_group(),
        tile::place_in_panel(16 * (i % 4), lane)};
    for (uint32_t k = 0; k < MK_LANES_LOOKS; k++) {
      tile::global<uint32_t>(params.out)[(i * MK_LANES_LOOKS + k) * 32 + lane] = looks[k];
    }
  }
  test::finish(params, true);
}

// in [count][32] times 16 bytes; out the same, by every kind of access in turn.
extern "C" __global__ void __launch_bounds__(32) mk_tile_view(const mk_tile_params params) {
  __shared__ uint4 cells[32];
  for (uint32_t i = 0; i < params.count; i++) {
    const uint32_t *from = tile::global<const uint32_t>(params.in) + (i * 32 + tile::lane()) * 4;
    uint32_t *to = tile::global<uint32_t>(params.out) + (i * 32 + tile::lane()) * 4;
    if (i % 3 == 0) {
      tile::store_l2(to, tile::load_l2<float4>(from));
    } else if (i % 3 == 1) {
      tile::store<uint2>(to, tile::load_constant<uint2>(from));
      tile::store<uint64_t>(to + 2, tile::load<uint64_t>(from + 2));
    } else {
      uint32_t *words = tile::view<uint32_t>(&cells[tile::lane()]);
      const uint16_t *halves = tile::view<uint16_t>(from);
      for (uint32_t k = 0; k < 4; k++) {
        words[k] = halves[2 * k] | static_cast<uint32_t>(halves[2 * k + 1]) << 16;
      }
      tile::store<uint4>(to, cells[tile::lane()]);
    }
  }
  test::finish(params, true);
}
