// REDUCE_ADD on the device. y = residual_in + (parts[0] + parts[1] + ...); residual_out = y; out = bf16(y);
// reduce_add.c. Consumer warp p fetches part p of a row tile; the storer adds the parts one after the other, as it adds
// chains. At most 16 parts.
// Waits: the parts (consumers). Signals: the counter of its value. No pages.
#pragma once
#include "vm/gpu/consumer.cuh"

namespace mk {

__device__ inline void consume_REDUCE_ADD(consumer &c, const mk_instruction_word &in) {
  const mk_operand &parts = in.parts[MK_PART_REDUCE_ADD_parts];
  const mk_gpu_buffer &b = c.d.buffer(parts);
  const uint64_t *row = tile::global<const uint64_t>(b.address) +
                        static_cast<uint64_t>(parts.row + c.warp) * b.row_words + parts.col * 16;
  for (uint32_t tile = 0; tile < parts.cols; tile++) {
    float low = 0.0f, high = 0.0f;
    if (c.warp < parts.rows) {
      tile::stamped_pair pair;
      wait_pair(c.d, row + tile * 16 + 2 * c.lane, c.lane < 8, parts.buffer, pair);
      float even = __uint_as_float(tile::stamp_data(pair.low)), odd = __uint_as_float(tile::stamp_data(pair.high));
      uint32_t g = tile::lane_row(c.lane);
      float low_even = tile::from_lane(even, g / 2), low_odd = tile::from_lane(odd, g / 2);
      float high_even = tile::from_lane(even, g / 2 + 4), high_odd = tile::from_lane(odd, g / 2 + 4);
      low = g % 2 == 0 ? low_even : low_odd;
      high = g % 2 == 0 ? high_even : high_odd;
    }
    put_result(c, low, high, 0.0f, c.warp);
  }
}

}  // namespace mk
