// COMBINE on the device: the spans in use become the attention output of some query heads, or of some columns of one;
// combine.c. Consumers only: a warp has sixteen neighbouring output values, and sixteen spans at a time. With one span
// in use, its ATTENTION has done this work, where it is fused. Waits: the parts in use, by their stamps. Signals: the
// counter of its value.
#pragma once
#include "instructions/attention_part.cuh"
#include "vm/gpu/storer.cuh"

namespace mk {

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

// A warp has a block of eight pairs of output values, one for each group of four lanes, and sixteen neighbouring spans,
// four for each lane of a group.
enum {
  COMBINE_LANES = 4,
  BLOCK_PAIRS = 32 / COMBINE_LANES,
  BLOCK_COLS = 2 * BLOCK_PAIRS,
  COMBINE_TREE = COMBINE_LANES * GROUP_SPANS,
  TREE_BYTES = BLOCK_PAIRS * sizeof(float4),
};
static_assert(64 == MK_COMBINE_SLICES * BLOCK_COLS, "the smallest slice of a head is a block");
static_assert((MK_GPU_CONSUMER_WARPS + 2) * TREE_BYTES <= MK_GPU_ACTIVATION_BYTES,
              "a tree of each warp, and the sums of two blocks, have room");

// Blocks of a head: 1 << block_bits_of.
__device__ inline uint32_t block_bits_of(const mk_gpu_buffer &parts) { return parts.tile_cols == 66 ? 2 : 3; }

// Where tree number `tree` has the sum of the lane's group, in shared memory.
__device__ inline uint8_t *tree_sum(const consumer &c, uint32_t tree) {
  // Kernels for several ranks have no register to keep this in meanwhile; one that records has none to make it anew.
  uint32_t lane = MK_GPU_RANKS ? tile::anew(c.lane) : c.lane;
  return c.d.activation() + tree * TREE_BYTES + tile::group_of_lane<COMBINE_LANES>(lane) * sizeof(float4);
}

// Where the parts of four neighbouring spans of a head lie, in words after those of its first one: span s is that of
// split s mod splits. For the division of whole numbers there are no registers. This one is exact: a half more is at
// least 1 / 256 away from the next whole number, there are fewer than 2^16 spans (mk_program's tiles), and the
// reciprocal is off by 2^-22 of itself. A span that is not in use has the place of the first one.
struct span_places {
  uint32_t at[GROUP_SPANS];

  __device__ span_places(uint32_t first, uint32_t in_use, uint32_t splits, uint32_t row_words, uint32_t stride) {
    const uint32_t round =
        static_cast<uint32_t>((static_cast<float>(first) + 0.5f) * reciprocal_of(static_cast<float>(splits)));
    const uint32_t next_round = stride - (splits - 1) * row_words;
    uint32_t split = first - round * splits, place = split * row_words + round * stride;
#pragma unroll
    for (uint32_t j = 0; j < GROUP_SPANS; j++) {
      at[j] = first + j < in_use ? place : 0;
      const bool last = split + 1 == splits;
      split = last ? 0 : split + 1;
      place += last ? next_round : row_words;
    }
  }
};

// Waits for the lane's four spans of those from `base` on, and adds them as a tree. What is fetched for a span that is
// not in use are numbers of the first one, which is, and they weigh nothing; or the lane has none that is in use, and
// whoever adds its sum gives it no weight.
__device__ inline merged_unit four_of_head(const consumer &c, uint32_t block, uint32_t base, uint32_t in_use) {
  const mk_operand &parts = instruction_at_hand(c).parts[MK_PART_COMBINE_parts];  // registers are short
  const mk_gpu_buffer &b = c.d.buffer(parts);
  const uint32_t stride = b.tile_cols, block_bits = block_bits_of(b), lane = tile::anew(c.lane);
  const uint32_t first = base + tile::place_in_group<COMBINE_LANES>(lane) * GROUP_SPANS;
  const uint32_t head = (block >> block_bits) * b.spans * stride, scale = head + stride - 2;
  const uint32_t pair = (block & ((1u << block_bits) - 1)) * BLOCK_PAIRS + tile::group_of_lane<COMBINE_LANES>(lane);
  const uint32_t value = head + 2 * pair;
  const uint64_t *words = tile::global<const uint64_t>(b.address);
  const span_places places(first, in_use, parts.rows, b.row_words, stride);
  tile::stamped_pair have[2 * GROUP_SPANS];  // two values of each span, then its top and total
  wait_all_pairs<2 * GROUP_SPANS>(
      c.d, parts.buffer,
      [&](uint32_t i) { return words + ((i < GROUP_SPANS ? value : scale) + places.at[i % GROUP_SPANS]); }, have);
  return tree_of_four([&](uint32_t j) -> merged_unit {
    const float2 values = floats(have[j]), scales = floats(have[GROUP_SPANS + j]);
    return {values.x, values.y, first + j < in_use ? scales.x : NO_TOKENS, scales.y};
  });
}

// The tree of sixteen spans from `base` on, in the first lane of each group.
__device__ inline merged_unit tree_of_head(const consumer &c, uint32_t block, uint32_t base, uint32_t in_use) {
  merged_unit tree = four_of_head(c, block, base, in_use);
  if (in_use - base > GROUP_SPANS) {
    add_lane(tree, 1);
    add_lane(tree, 2);
  }
  return tree;
}

// Publishes the sums of a block, which the first lane of each group has.
__device__ inline void publish_block(const consumer &c, uint32_t block, const merged_unit &sum) {
  if (tile::place_in_group<COMBINE_LANES>(tile::anew(c.lane)) == 0 && publishes(c.d)) {
    const mk_operand &out = instruction_at_hand(c).parts[MK_PART_COMBINE_out];
    const uint32_t unit = block * BLOCK_PAIRS + tile::group_of_lane<COMBINE_LANES>(tile::anew(c.lane));
    publish_combined(c, readers_of(out), tile::global<uint64_t>(c.d.buffer(out).address), unit, sum);
  }
}

// Of more than sixteen spans each warp has put down a tree. A block's first warp adds so many of them, from number
// `first` on, in order to those of the passes before, whose sum it keeps at `kept`: registers are short. All lanes have
// the largest top first, which makes additions of all that follows: products by powers of two are exact, so this rounds
// as adding tree by tree does.
__device__ inline merged_unit add_trees(const consumer &c, uint32_t first, uint32_t trees, uint32_t kept, bool begins) {
  merged_unit sum = begins ? merged_unit() : unit_of(tile::load<float4>(tree_sum(c, kept)));
  const uint8_t *from = tree_sum(c, first), *end = from + trees * TREE_BYTES;
  float top = sum.top;
#pragma unroll 4
  for (const uint8_t *tree = from; tree != end; tree += TREE_BYTES) {
    top = fmaxf(top, tile::load<float4>(tree).z);
  }
  const float keep = tile::exp2(sum.top - top);
  sum = {keep * sum.low, keep * sum.high, top, keep * sum.total};
#pragma unroll 4
  for (const uint8_t *tree = from; tree != end; tree += TREE_BYTES) {
    const merged_unit part = unit_of(tile::load<float4>(tree));
    const float factor = tile::exp2(part.top - top);
    sum.low = __fmaf_rn(factor, part.low, sum.low);
    sum.high = __fmaf_rn(factor, part.high, sum.high);
    sum.total = __fmaf_rn(factor, part.total, sum.total);
  }
  __syncwarp();
  tile::store(tree_sum(c, kept), floats(sum));
  return sum;
}

__device__ inline void consume_COMBINE(consumer &c, const mk_instruction_word &in) {
  const mk_operand &parts = in.parts[MK_PART_COMBINE_parts], &out = in.parts[MK_PART_COMBINE_out];
  const mk_gpu_buffer &from = c.d.buffer(parts), &to = c.d.buffer(out);
  uint32_t span = param(in, MK_PARAM_COMBINE_span);
  if (tile::uniform(combined_address(from) != 0 && position_of(c) < span)) {
    return;
  }
  uint32_t in_use = tile::uniform(min(position_of(c) / span + 1, parts.rows * from.spans));
  // Blocks of the whole output. Of one tree each warp has a block of its own; of several trees they share one, or two.
  const bool several = tile::uniform(in_use > COMBINE_TREE);
  uint32_t block = tile::uniform(out.col * to.tile_cols / BLOCK_COLS), base = 0;
  const uint32_t end = tile::uniform((out.col + out.cols) * to.tile_cols / BLOCK_COLS);
  const uint32_t warp_bits = !several ? 0 : end - block > 1 ? 3 : 4;  // of how many share one
  static_assert(MK_GPU_CONSUMER_WARPS == 1 << 4, "they are sixteen");
  // A warp's own, looked up again: registers are short.
  auto own_tree = [&] { return tile::anew(c.warp) & ((1u << warp_bits) - 1); };
  auto own_block = [&] { return tile::anew(c.warp) >> warp_bits; };
#pragma unroll 1
  while (block < end) {
    const uint32_t own = tile::uniform(base + own_tree() * COMBINE_TREE), next = base + (COMBINE_TREE << warp_bits);
    if (several) {
      consumers_meet(c);  // nobody reads what lies there any more
    }
    merged_unit sum;
    if (tile::uniform(block + own_block() < end && own < in_use)) {
      add_unit(sum, tree_of_head(c, block + own_block(), own, in_use));
    }
    if (several) {
      if (tile::place_in_group<COMBINE_LANES>(tile::anew(c.lane)) == 0) {
        tile::store(tree_sum(c, c.warp), floats(sum));
      }
      consumers_meet(c);
      if (tile::uniform(own_tree() == 0)) {
        const uint32_t trees = (min(in_use, next) - base + COMBINE_TREE - 1) / COMBINE_TREE;
        sum = add_trees(c, c.warp, trees, MK_GPU_CONSUMER_WARPS + own_block(), base == 0);
      }
    }
    if (tile::uniform(next >= in_use && own_tree() == 0 && block + own_block() < end)) {
      publish_block(c, block + own_block(), sum);
    }
    block += next >= in_use ? MK_GPU_CONSUMER_WARPS >> warp_bits : 0;
    base = next >= in_use ? 0 : next;
  }
  if (several) {
    consumers_meet(c);  // before anybody stages something else
  }
}

}  // namespace mk
