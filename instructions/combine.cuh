// COMBINE on the device: the splits in use become the attention output of some query heads; combine.c.
// Consumers only: a thread per two output values. With one split in use whose attention ran last on this SM, the result is taken
// from shared memory instead (the same bits). Waits: the parts in use, by their stamps. Signals: the counter of its value.
#pragma once
#include "vm/gpu/consumer.cuh"
#include "vm/gpu/storer.cuh"

namespace mk {

__device__ inline void consume_COMBINE(consumer &c, const mk_instruction &in) {
  enum { BATCH = 2 };  // splits fetched together
  const mk_operand &parts = in.operands[MK_SLOT_COMBINE_parts];
  const mk_gpu_buffer &b = c.d.buffer(parts);
  uint32_t stride = b.tile_cols, head_dim = stride - 2;
  uint32_t in_use = c.state.position / in.params[MK_PARAM_COMBINE_span] + 1;
  in_use = in_use < parts.rows ? in_use : parts.rows;
  const uint64_t *rows = reinterpret_cast<const uint64_t *>(b.address);
  uint64_t *out = stamped_row(c.d, in.operands[MK_SLOT_COMBINE_out]);
  const volatile shared_words *shared = c.d.words();
  if (in_use == 1 && shared->kept[0] == c.d.generation() && shared->kept[1] == parts.buffer &&
      shared->kept[2] == parts.row && shared->kept[3] == parts.col) {
    const float *kept = reinterpret_cast<const float *>(c.d.activation());
    for (uint32_t unit = c.warp * 32 + c.lane; publishes(c.d) && unit < parts.cols * head_dim / 2;
         unit += MK_GPU_CONSUMER_WARPS * 32) {
      tile::store_stamped(out + unit, tile::pack_bf16(kept[2 * unit], kept[2 * unit + 1]), c.d.generation());
    }
    consumers_meet(c);  // before anybody stages something else
    return;
  }
  for (uint32_t base = c.warp * 32; base < parts.cols * head_dim / 2; base += MK_GPU_CONSUMER_WARPS * 32) {
    uint32_t unit = base + c.lane, head = unit / (head_dim / 2), pair = unit % (head_dim / 2);
    const uint64_t *words = rows + (parts.col + head) * stride;
    float max = -INFINITY, total = 0.0f, low = 0.0f, high = 0.0f;
    for (uint32_t first = 0; first < in_use; first += BATCH) {
      tile::stamped_pair pairs[2 * BATCH];  // of split j of the batch: two values, then maximum and sum
      auto at = [&](uint32_t i) {
        uint32_t s = first + i / 2 < in_use ? first + i / 2 : first;
        return words + static_cast<uint64_t>(parts.row + s) * b.row_words + (i % 2 == 0 ? 2 * pair : head_dim);
      };
      wait_stamped_pairs<2 * BATCH>(
          c.d, parts.buffer, at, [](uint32_t) { return true; }, pairs);
#pragma unroll
      for (uint32_t j = 0; j < BATCH; j++) {
        const tile::stamped_pair &o = pairs[2 * j], &scale = pairs[2 * j + 1];
        if (first + j < in_use) {
          float m = __uint_as_float(tile::stamp_data(scale.low));
          float l = __uint_as_float(tile::stamp_data(scale.high));
          float top = m > max || isnan(m) ? m : max;
          float keep = expf(max - top), factor = expf(m - top);
          max = top;
          total = total * keep + l * factor;
          low = low * keep + __uint_as_float(tile::stamp_data(o.low)) * factor;
          high = high * keep + __uint_as_float(tile::stamp_data(o.high)) * factor;
        }
      }
    }
    if (publishes(c.d)) {
      tile::store_stamped(out + unit, tile::pack_bf16(low / total, high / total), c.d.generation());
    }
  }
}

}  // namespace mk
