// COMBINE on the device: the splits in use become the attention output of some query heads; combine.c.
// Consumers only: up to four lanes per two output values, each with every so many-th split. With one split in use, the ATTENTION before it in the
// queue has done its work already. Waits: the parts in use, by their stamps. Signals: the counter of its value.
#pragma once
#include "vm/gpu/consumer.cuh"
#include "vm/gpu/storer.cuh"

namespace mk {

// Scores are in base 2 inside an SM, so that exponentials are one instruction, and in base e in memory.
constexpr float BASE_E_TO_2 = 1.4426950408889634f;

// How many lanes share a unit of two output values, of so many units; as a power of two.
__device__ inline uint32_t merge_lane_bits(uint32_t units) {
  return units * 4 <= MK_GPU_CONSUMER_WARPS * 32 ? 2 : units * 2 <= MK_GPU_CONSUMER_WARPS * 32 ? 1 : 0;
}

__device__ inline uint32_t splits_in_use(const consumer &c, const mk_instruction_word &combine) {
  return min(position_of(c) / param(combine, MK_PARAM_COMBINE_span) + 1,
             static_cast<uint32_t>(combine.parts[MK_PART_COMBINE_parts].rows));
}

// The instruction in the ring's next slot, if it is there.
__device__ inline const mk_instruction_word *next_instruction(const consumer &c) {
  instruction_cursor next = at_hand(c);
  next.next();
  return &c.d.slot(next.slot())->instruction;
}

// The uid of the instruction next in the queue if it is marked as fused, and so a COMBINE of the parts at hand, and no other split is in use: then
// ATTENTION does its work, which saves a stage. 0: there is none, or it has not been fetched yet.
__device__ inline uint32_t fused_combine(const consumer &c) {
  instruction_cursor next = at_hand(c);
  next.next();
  const mk_instruction_word *in = next_instruction(c);
  if ((c.d.slot(at_hand(c).slot())->flags & SLOT_IS_LAST) != 0 ||
      !tile::test_wait(c.d.barrier(INSTRUCTION_FULL + next.slot()), next.phase()) || (in->flags & MK_FUSED) == 0) {
    return 0;
  }
  bool tested = in->uid == c.d.params.skip_signal_uid || (MK_GPU_RECORDS && in->uid == c.d.params.delay_uid);
  return splits_in_use(c, *in) == 1 && !tested ? in->uid : 0;
}

struct merged_unit {  // two neighbouring output values of a head: sums of p v, the largest score, the sum of p
  float low = 0.0f, high = 0.0f, max = -INFINITY, total = 0.0f;
};

// Parts (max, total) and their two values. A part without tokens has total 0.
template <uint32_t count>
__device__ inline void fold_parts(merged_unit &sum, const float2 (&scale)[count], const float2 (&value)[count]) {
  float top = sum.max;
#pragma unroll
  for (uint32_t j = 0; j < count; j++) {
    top = fmaxf(top, scale[j].x);
  }
  float keep = sum.total != 0.0f ? tile::exp2(sum.max - top) : 0.0f;
  sum.max = top;
  sum.total *= keep, sum.low *= keep, sum.high *= keep;
#pragma unroll
  for (uint32_t j = 0; j < count; j++) {
    float factor = scale[j].y != 0.0f ? tile::exp2(scale[j].x - top) : 0.0f;
    sum.total += factor * scale[j].y;
    sum.low += factor * value[j].x;
    sum.high += factor * value[j].y;
  }
}

__device__ inline float2 floats(const tile::stamped_pair &pair) {
  return make_float2(__uint_as_float(tile::stamp_data(pair.low)), __uint_as_float(tile::stamp_data(pair.high)));
}

// Waits for `count` splits of a unit and folds them in: pairs 2 j and 2 j + 1 are two values of split j, then its maximum and sum.
template <uint32_t count, typename address, typename presence>
__device__ inline void fold_splits(const consumer &c, uint32_t buffer, address at, presence has, merged_unit &sum) {
  tile::stamped_pair pairs[2 * count];
  wait_stamped_pairs<2 * count>(c.d, buffer, at, has, pairs);
  float2 scale[count], o[count];
#pragma unroll
  for (uint32_t j = 0; j < count; j++) {
    o[j] = floats(pairs[2 * j]);
    scale[j] = floats(pairs[2 * j + 1]);
    scale[j].x = has(2 * j) ? scale[j].x * BASE_E_TO_2 : -INFINITY;
  }
  fold_parts(sum, scale, o);
}

// Over the lanes that share a unit, of which some may have had no part.
__device__ inline void fold_lanes(merged_unit &sum, uint32_t lanes) {
  float top = sum.max;
#pragma unroll 1
  for (uint32_t offset = 1; offset < lanes; offset *= 2) {
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
  }
  float factor = sum.total != 0.0f ? tile::exp2(sum.max - top) : 0.0f;
  sum.max = top;
  sum.total *= factor, sum.low *= factor, sum.high *= factor;
#pragma unroll 1
  for (uint32_t offset = 1; offset < lanes; offset *= 2) {
    sum.total += __shfl_xor_sync(0xffffffffu, sum.total, offset);
    sum.low += __shfl_xor_sync(0xffffffffu, sum.low, offset);
    sum.high += __shfl_xor_sync(0xffffffffu, sum.high, offset);
  }
}

// Output values 2 unit and 2 unit + 1.
__device__ inline void publish_combined(const consumer &c, const mk_instruction_word &in, uint32_t unit,
                                        const merged_unit &sum) {
  float scale = 1.0f / sum.total;
  tile::store_stamped(stamped_row(c.d, in.parts[MK_PART_COMBINE_out]) + unit,
                      tile::pack_bf16(sum.low * scale, sum.high * scale), c.d.generation());
}

__device__ inline void consume_COMBINE(consumer &c, const mk_instruction_word &in) {
  enum { BATCH = 4 };  // splits that a lane fetches together
  if (c.d.words()->combined == in.uid) {
    return;
  }
  const mk_operand &parts = in.parts[MK_PART_COMBINE_parts];
  const mk_gpu_buffer &b = c.d.buffer(parts);
  uint32_t stride = b.tile_cols, pair_bits = stride == 66 ? 5 : 6, in_use = splits_in_use(c, in);
  const uint64_t *rows = reinterpret_cast<const uint64_t *>(b.address);
  uint32_t units = parts.cols << pair_bits, lane_bits = merge_lane_bits(units), lanes = 1u << lane_bits;
  for (uint32_t start = c.warp * 32; start < units << lane_bits; start += MK_GPU_CONSUMER_WARPS * 32) {
    uint32_t i = start + c.lane, unit = i >> lane_bits, head = unit >> pair_bits, pair = unit & ((1u << pair_bits) - 1);
    const uint64_t *words = rows + static_cast<uint64_t>(parts.row) * b.row_words + (parts.col + head) * stride;
    merged_unit sum;
    for (uint32_t base = 0; base < in_use; base += BATCH << lane_bits) {
      uint32_t first = base + (i & (lanes - 1));
      auto at = [&](uint32_t j) {
        return words + static_cast<uint64_t>(first + (j / 2 << lane_bits)) * b.row_words +
               (j % 2 == 0 ? 2 * pair : stride - 2);
      };
      auto has = [&](uint32_t j) { return first + (j / 2 << lane_bits) < in_use; };
      fold_splits<BATCH>(c, parts.buffer, at, has, sum);
    }
    fold_lanes(sum, lanes);
    if ((i & (lanes - 1)) == 0 && publishes(c.d)) {
      publish_combined(c, in, unit, sum);
    }
  }
}

}  // namespace mk
