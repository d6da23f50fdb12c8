// COMBINE on the device: the splits in use become the attention output of some query heads; combine.c. Consumers only:
// four lanes per two output values, each with four neighbouring splits. With one split in use, the ATTENTION before it
// in the queue has done its work already. Waits: the parts in use, by their stamps. Signals: the counter of its value.
#pragma once
#include "instructions/attention_part.cuh"
#include "vm/gpu/storer.cuh"

namespace mk {

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

// The uid of the next instruction in the queue, where that is marked as fused (and so it is the COMBINE of the parts at
// hand) and no other split is in use: then ATTENTION does its work, which saves a stage. 0: there is none, or it has
// not been fetched yet.
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

// Waits for four neighbouring splits of a unit, as far as they are in use, and adds them as a tree: pairs 2 j and 2 j +
// 1 are two values of split j, then what its scores are relative to and its sum of p.
template <typename address, typename presence>
__device__ inline merged_unit four_splits(const consumer &c, uint32_t buffer, address at, presence has) {
  tile::stamped_pair pairs[2 * GROUP_SPANS];
  wait_stamped_pairs<2 * GROUP_SPANS>(c.d, buffer, at, has, pairs);
  return tree_of_four([&](uint32_t j) -> merged_unit {
    float2 value = floats(pairs[2 * j]), scale = floats(pairs[2 * j + 1]);
    return has(2 * j) ? merged_unit{value.x, value.y, scale.x, scale.y} : merged_unit();
  });
}

// Output values 2 unit and 2 unit + 1 of the output `out`, for the ranks that read them.
__device__ inline void publish_combined(const consumer &c, uint32_t readers, uint64_t *out, uint32_t unit,
                                        const merged_unit &sum) {
  float scale = reciprocal_of(sum.total);
  if constexpr (MK_GPU_RANKS) {
    to_readers(readers, out + unit, [=](uint64_t *to) {
      tile::store_stamped(to, tile::pack_bf16(sum.low * scale, sum.high * scale), c.d.generation());
    });
  } else {
    tile::store_stamped(out + unit, tile::pack_bf16(sum.low * scale, sum.high * scale), c.d.generation());
  }
}

__device__ inline void consume_COMBINE(consumer &c, const mk_instruction_word &in) {
  enum { LANES = 4, UNITS = 32 / LANES };  // of a unit; of a warp
  if (c.d.words()->combined == in.uid) {
    return;
  }
  const mk_operand &parts = in.parts[MK_PART_COMBINE_parts];
  const mk_gpu_buffer &b = c.d.buffer(parts);
  uint32_t stride = b.tile_cols, pair_bits = stride == 66 ? 5 : 6, in_use = tile::uniform(splits_in_use(c, in));
  const uint64_t *rows = tile::global<const uint64_t>(b.address);
  uint32_t units = tile::uniform(static_cast<uint32_t>(parts.cols) << pair_bits);
#pragma unroll 1
  for (uint32_t start = c.warp * UNITS; start < units; start += MK_GPU_CONSUMER_WARPS * UNITS) {
    uint32_t unit = start + tile::group_of_lane<LANES>(c.lane), head = unit >> pair_bits,
             pair = unit & ((1u << pair_bits) - 1);
    const uint64_t *words = rows + static_cast<uint64_t>(parts.row) * b.row_words + (parts.col + head) * stride;
    merged_unit sum;
#pragma unroll 1
    for (uint32_t base = 0; base < in_use; base += LANES * GROUP_SPANS) {
      uint32_t first = base + tile::place_in_group<LANES>(c.lane) * GROUP_SPANS;
      auto at = [&](uint32_t j) {
        return words + static_cast<uint64_t>(first + j / 2) * b.row_words + (j % 2 == 0 ? 2 * pair : stride - 2);
      };
      auto has = [&](uint32_t j) { return first + j / 2 < in_use; };
      merged_unit four = four_splits(c, parts.buffer, at, has);
      add_lane(four, 1);
      add_lane(four, 2);
      add_unit(sum, four);
    }
    if (tile::place_in_group<LANES>(c.lane) == 0 && publishes(c.d)) {
      const mk_operand &out = in.parts[MK_PART_COMBINE_out];
      publish_combined(c, readers_of(out), stamped_row(c.d, out), unit, sum);
    }
  }
}

}  // namespace mk
