// COMBINE on the device: the splits in use become the attention output of some query heads; combine.c.
// Consumers only: a thread per two output values. With one split in use whose attention ran last on this SM, the result is taken
// from shared memory instead (the same bits). Waits: the parts in use, by their stamps. Signals: the counter of its value.
#pragma once
#include "vm/gpu/consumer.cuh"
#include "vm/gpu/storer.cuh"

namespace mk {

__device__ inline bool consume_COMBINE(consumer &c, const mk_instruction &in) {
  enum { BATCH = 4 };  // splits fetched together
  const mk_operand &parts = in.operands[MK_SLOT_COMBINE_parts];
  const mk_gpu_buffer &b = c.d.buffer(parts);
  uint32_t stride = b.tile_cols, head_dim = stride - 2;
  uint32_t in_use = c.state.position / in.params[MK_PARAM_COMBINE_span] + 1;
  in_use = in_use < parts.rows ? in_use : parts.rows;
  const uint64_t *rows = reinterpret_cast<const uint64_t *>(b.address);
  uint64_t *out = stamped_row(c.d, in.operands[MK_SLOT_COMBINE_out]);
  if (!consumers_wait(c, in)) {
    return false;
  }
  const volatile shared_words *shared = c.d.words();
  if (in_use == 1 && shared->kept[0] == c.d.generation() && shared->kept[1] == parts.buffer &&
      shared->kept[2] == parts.row && shared->kept[3] == parts.col) {
    const float *kept = reinterpret_cast<const float *>(c.d.activation());
    for (uint32_t unit = c.warp * 32 + c.lane; publishes(c.d) && unit < parts.cols * head_dim / 2;
         unit += MK_GPU_CONSUMER_WARPS * 32) {
      tile::store_stamped(out + unit, tile::pack_bf16(kept[2 * unit], kept[2 * unit + 1]), c.d.generation());
    }
    return consumers_signal(c, in) && consumers_meet(c);  // before anybody stages something else
  }
  for (uint32_t base = c.warp * 32; base < parts.cols * head_dim / 2; base += MK_GPU_CONSUMER_WARPS * 32) {
    uint32_t unit = base + c.lane, head = unit / (head_dim / 2), pair = unit % (head_dim / 2);
    const uint64_t *words = rows + (parts.col + head) * stride;
    float max = -INFINITY, total = 0.0f, low = 0.0f, high = 0.0f;
    for (uint32_t first = 0; first < in_use; first += BATCH) {
      tile::stamped_pair o[BATCH], scale[BATCH];
#pragma unroll
      for (uint32_t j = 0; j < BATCH; j++) {  // all loads first; stale ones are fetched again below
        uint32_t s = first + j < in_use ? first + j : first;
        const uint64_t *row = words + static_cast<uint64_t>(parts.row + s) * b.row_words;
        o[j] = tile::load_stamped_pair(row + 2 * pair);
        scale[j] = tile::load_stamped_pair(row + head_dim);
      }
#pragma unroll
      for (uint32_t j = 0; j < BATCH; j++) {
        uint32_t s = first + j < in_use ? first + j : first;
        const uint64_t *row = words + static_cast<uint64_t>(parts.row + s) * b.row_words;
        uint32_t want = c.d.generation();
        bool late = tile::stamp_generation(o[j].low) != want || tile::stamp_generation(o[j].high) != want ||
                    tile::stamp_generation(scale[j].low) != want || tile::stamp_generation(scale[j].high) != want;
        if (__any_sync(0xffffffffu, late) && (!wait_stamped_pair(c.d, row + 2 * pair, true, parts.buffer, o[j]) ||
                                              !wait_stamped_pair(c.d, row + head_dim, true, parts.buffer, scale[j]))) {
          return false;
        }
        if (first + j < in_use) {
          float m = __uint_as_float(tile::stamp_data(scale[j].low));
          float l = __uint_as_float(tile::stamp_data(scale[j].high));
          float top = m > max || isnan(m) ? m : max;
          float keep = expf(max - top), factor = expf(m - top);
          max = top;
          total = total * keep + l * factor;
          low = low * keep + __uint_as_float(tile::stamp_data(o[j].low)) * factor;
          high = high * keep + __uint_as_float(tile::stamp_data(o[j].high)) * factor;
        }
      }
    }
    if (publishes(c.d)) {
      tile::store_stamped(out + unit, tile::pack_bf16(low / total, high / total), c.d.generation());
    }
  }
  return consumers_signal(c, in);
}

__device__ inline bool store_COMBINE(storer &, const mk_instruction &) { return true; }

}  // namespace mk
