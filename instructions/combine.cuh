// COMBINE on the device: the spans in use become the attention output of some query heads, or of some columns of one;
// combine.c. Consumers only: a warp has 32 neighbouring output values, and sixteen spans at a time. With one span in
// use, its ATTENTION has done this work, where it is fused. Waits: the parts in use, by their stamps. Signals: the
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

// A lane's sums of some spans: of two pairs of output values of one head, which share what scores are relative to and
// the sum of p. Adding them takes half of the instructions that two merged_units take, to the same bits.
struct merged_pairs {
  float value[4] = {}, top = NO_TOKENS, total = 0.0f;

  __device__ void add(const merged_pairs &part) {
    float above = fmaxf(top, part.top);
    float keep = tile::exp2(top - above), factor = tile::exp2(part.top - above);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      value[i] = __fmaf_rn(factor, part.value[i], keep * value[i]);
    }
    total = __fmaf_rn(factor, part.total, keep * total);
    top = above;
  }
  // Adds those of the lane `away` of it.
  __device__ void add_lane(uint32_t away) {
    merged_pairs other;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      other.value[i] = tile::exchange(value[i], away);
    }
    other.top = tile::exchange(top, away);
    other.total = tile::exchange(total, away);
    add(other);
  }
};

// Blocks of sixteen pairs of a head: 1 << block_bits_of.
__device__ inline uint32_t block_bits_of(const mk_gpu_buffer &parts) { return parts.tile_cols == 66 ? 1 : 2; }

// A warp has sixteen pairs, lane l pairs l / 4 and l / 4 + 8 of them, of four neighbouring spans.
enum {
  COMBINE_LANES = 4,
  COMBINE_PAIRS = 16,
  COMBINE_TREE = COMBINE_LANES * GROUP_SPANS,
  TREE_SUMS = 32 / COMBINE_LANES,
};
static_assert((MK_GPU_CONSUMER_WARPS + 1) * TREE_SUMS * sizeof(merged_pairs) <= MK_GPU_ACTIVATION_BYTES,
              "a tree of each warp, and their sum, have room");
static_assert(2 * COMBINE_PAIRS == MK_COMBINE_COLS, "a warp has the columns of the narrowest COMBINE");

// Sums number `tree` in shared memory, of the lane's group.
__device__ inline merged_pairs *tree_sum(const consumer &c, uint32_t tree) {
  // Kernels for several ranks have no register to keep this in meanwhile; one that records has none to make it anew.
  uint32_t lane = MK_GPU_RANKS ? tile::anew(c.lane) : c.lane;
  return tile::view<merged_pairs>(c.d.activation()) + tree * TREE_SUMS + tile::group_of_lane<COMBINE_LANES>(lane);
}

// Where the parts of a head lie: span s is that of split s mod splits. For the division of whole numbers there are no
// registers. This one is exact: a half more is at least 1 / 256 away from the next whole number, there are fewer than
// 2^16 spans (mk_program's tiles), and the reciprocal is off by 2^-22 of itself.
struct span_view {
  const uint64_t *words;
  uint32_t splits, row_words, stride;

  __device__ const uint64_t *at(uint32_t span) const {
    uint32_t round =
        static_cast<uint32_t>((static_cast<float>(span) + 0.5f) * reciprocal_of(static_cast<float>(splits)));
    return words + ((span - round * splits) * row_words + round * stride);
  }
};

// Waits for the lane's four spans of those from `base` on, and adds them as a tree. Lane i fetches what scores of span
// base + i are relative to, and its sum of p, for the others.
__device__ inline merged_pairs four_of_head(const consumer &c, uint32_t block, uint32_t base, uint32_t in_use) {
  enum { BOTH = 2 * GROUP_SPANS };
  const mk_operand &parts = instruction_at_hand(c).parts[MK_PART_COMBINE_parts];  // registers are short
  const mk_gpu_buffer &b = c.d.buffer(parts);
  uint32_t stride = b.tile_cols, block_bits = block_bits_of(b);
  uint32_t lane = tile::anew(c.lane);
  uint32_t pair = (block & ((1u << block_bits) - 1)) * COMBINE_PAIRS + tile::group_of_lane<COMBINE_LANES>(lane);
  span_view spans = {tile::global<const uint64_t>(b.address) + (block >> block_bits) * b.spans * stride, parts.rows,
                     b.row_words, stride};
  uint32_t place = tile::place_in_group<COMBINE_LANES>(lane), first = base + place * GROUP_SPANS;
  uint32_t own = base + tile::place_in_group<COMBINE_TREE>(lane);
  auto has = [&](uint32_t j) { return first + j < in_use; };
  // For a span that is not in use the first one's words are fetched, and left out.
  tile::stamped_pair pairs[BOTH + 1];
  wait_all_pairs<BOTH + 1>(
      c.d, parts.buffer,
      [&](uint32_t j) {
        uint32_t span = j == BOTH ? (own < in_use ? own : 0) : has(j % GROUP_SPANS) ? first + j % GROUP_SPANS : 0;
        return spans.at(span) + (j == BOTH ? stride - 2 : 2 * (pair + j / GROUP_SPANS * 8));
      },
      pairs);
  float2 scale = floats(pairs[BOTH]);
  float top[GROUP_SPANS], factor[GROUP_SPANS], total[GROUP_SPANS];
  merged_pairs sum;
#pragma unroll
  for (uint32_t j = 0; j < GROUP_SPANS; j++) {
    float its = tile::from_lane(scale.x, place * GROUP_SPANS + j);
    float p = tile::from_lane(scale.y, place * GROUP_SPANS + j);
    top[j] = has(j) ? its : NO_TOKENS;
    total[j] = has(j) ? p : 0.0f;
  }
  sum.top = fmaxf(fmaxf(top[0], top[1]), fmaxf(top[2], top[3]));
#pragma unroll
  for (uint32_t j = 0; j < GROUP_SPANS; j++) {
    factor[j] = tile::exp2(top[j] - sum.top);
  }
  auto add = [&](float a, float b, float c, float d) {
    return __fadd_rn(__fmaf_rn(factor[1], b, __fmul_rn(factor[0], a)),
                     __fmaf_rn(factor[3], d, __fmul_rn(factor[2], c)));
  };
  sum.total = add(total[0], total[1], total[2], total[3]);
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    float x[GROUP_SPANS];
#pragma unroll
    for (uint32_t j = 0; j < GROUP_SPANS; j++) {
      float2 value = floats(pairs[i / 2 * GROUP_SPANS + j]);
      x[j] = has(j) ? (i % 2 == 0 ? value.x : value.y) : 0.0f;
    }
    sum.value[i] = add(x[0], x[1], x[2], x[3]);
  }
  return sum;
}

// The tree of sixteen spans from `base` on.
__device__ inline merged_pairs tree_of_head(const consumer &c, uint32_t block, uint32_t base, uint32_t in_use) {
  merged_pairs tree = four_of_head(c, block, base, in_use);
  if (in_use - base > GROUP_SPANS) {
    tree.add_lane(1);
    tree.add_lane(2);
  }
  return tree;
}

// Publishes the sums of a block's pairs, of which the first lane of each group has two.
__device__ inline void publish_block(const consumer &c, uint32_t block, const merged_pairs &sum) {
  if (tile::place_in_group<COMBINE_LANES>(tile::anew(c.lane)) == 0 && publishes(c.d)) {
    const mk_operand &out = instruction_at_hand(c).parts[MK_PART_COMBINE_out];
    const mk_gpu_buffer &to = c.d.buffer(out);
    uint32_t unit = block * COMBINE_PAIRS + tile::group_of_lane<COMBINE_LANES>(tile::anew(c.lane));
    uint64_t *words = tile::global<uint64_t>(to.address);
    publish_combined(c, readers_of(out), words, unit, {sum.value[0], sum.value[1], sum.top, sum.total});
    publish_combined(c, readers_of(out), words, unit + 8, {sum.value[2], sum.value[3], sum.top, sum.total});
  }
}

// Of more than sixteen spans each warp has put down a tree; the first warp adds so many of them in order to those of
// the passes before. The sum lies after them, so that no warp keeps it in registers. Lane i of a group has value i, and
// all lanes have the largest top first, which makes additions of all that follows: products by powers of two are exact,
// so this rounds as adding tree by tree does.
__device__ inline void add_trees(const consumer &c, uint32_t trees, bool begins) {
  const uint32_t place = tile::place_in_group<COMBINE_LANES>(tile::anew(c.lane));
  merged_pairs *sum = tree_sum(c, MK_GPU_CONSUMER_WARPS);
  float top = begins ? NO_TOKENS : sum->top, value = 0.0f, total = 0.0f;
#pragma unroll 4
  for (uint32_t i = 0; i < trees; i++) {
    top = fmaxf(top, tree_sum(c, i)->top);
  }
  if (!begins) {
    const float keep = tile::exp2(sum->top - top);
    value = keep * sum->value[place], total = keep * sum->total;
  }
#pragma unroll 4
  for (uint32_t i = 0; i < trees; i++) {
    const merged_pairs *tree = tree_sum(c, i);
    const float factor = tile::exp2(tree->top - top);
    value = __fmaf_rn(factor, tree->value[place], value);
    total = __fmaf_rn(factor, tree->total, total);
  }
  __syncwarp();
  sum->value[place] = value;
  if (place == 0) {
    sum->top = top, sum->total = total;
  }
  __syncwarp();
}

__device__ inline void consume_COMBINE(consumer &c, const mk_instruction_word &in) {
  const mk_operand &parts = in.parts[MK_PART_COMBINE_parts], &out = in.parts[MK_PART_COMBINE_out];
  const mk_gpu_buffer &from = c.d.buffer(parts), &to = c.d.buffer(out);
  uint32_t span = param(in, MK_PARAM_COMBINE_span);
  if (tile::uniform(combined_address(from) != 0 && position_of(c) < span)) {
    return;
  }
  uint32_t in_use = tile::uniform(min(position_of(c) / span + 1, parts.rows * from.spans));
  // Blocks of the whole output. Of one tree each warp has a block of its own, of several a tree of the block at hand.
  const bool several = tile::uniform(in_use > COMBINE_TREE);
  uint32_t block = tile::uniform(out.col * to.tile_cols / (2 * COMBINE_PAIRS) + (several ? 0 : c.warp));
  uint32_t end = tile::uniform((out.col + out.cols) * to.tile_cols / (2 * COMBINE_PAIRS)), base = 0;
#pragma unroll 1
  while (block < end) {
    uint32_t own = tile::uniform(base + (several ? c.warp * COMBINE_TREE : 0));
    if (several) {
      consumers_meet(c);  // nobody reads what lies there any more
    }
    merged_pairs sum;
    if (own < in_use) {
      sum.add(tree_of_head(c, block, own, in_use));
    }
    if (!several) {
      publish_block(c, block, sum);
      block += MK_GPU_CONSUMER_WARPS;
      continue;
    }
    if (tile::place_in_group<COMBINE_LANES>(tile::anew(c.lane)) == 0) {
      *tree_sum(c, c.warp) = sum;
    }
    consumers_meet(c);
    uint32_t trees = min((in_use - base + COMBINE_TREE - 1) / COMBINE_TREE, MK_GPU_CONSUMER_WARPS + 0u);
    bool last = base + MK_GPU_CONSUMER_WARPS * COMBINE_TREE >= in_use;
    if (tile::uniform(c.warp == 0)) {
      add_trees(c, trees, base == 0);
      if (last) {
        publish_block(c, block, *tree_sum(c, MK_GPU_CONSUMER_WARPS));
      }
    }
    base = last ? 0 : base + MK_GPU_CONSUMER_WARPS * COMBINE_TREE;
    block += last ? 1 : 0;
  }
  if (several) {
    consumers_meet(c);  // before anybody stages something else
  }
}

}  // namespace mk
