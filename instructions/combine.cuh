// COMBINE on the device: the splits in use become the attention output of some query heads; combine.c. Consumers only:
// a warp has 32 neighbouring output values, and sixteen splits at a time. With one split in use, that split's ATTENTION
// has done its work, where it is fused. Waits: the parts in use, by their stamps. Signals: the counter of its value.
#pragma once
#include "instructions/attention_part.cuh"
#include "vm/gpu/storer.cuh"

namespace mk {

// Whether a line's first split is the only one that it has in use.
__device__ inline bool alone_in_use(uint32_t position, uint32_t span, uint32_t splits) {
  return position < span || splits == 1;
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

// A lane's sums of some splits: of two pairs of output values of one head, which share what scores are relative to and
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

// A warp has sixteen pairs, lane l pairs l / 4 and l / 4 + 8 of them, of four neighbouring splits.
enum {
  COMBINE_LANES = 4,
  COMBINE_PAIRS = 16,
  COMBINE_TREE = COMBINE_LANES * GROUP_SPANS,
};

// Waits for the lane's four splits of those from `base` on, and adds them as a tree. Lane i fetches what scores of
// split base + i are relative to, and its sum of p, for the others.
__device__ inline merged_pairs four_of_head(const consumer &c, uint32_t block, uint32_t base, uint32_t in_use) {
  enum { BOTH = 2 * GROUP_SPANS };
  const mk_operand &parts = instruction_at_hand(c).parts[MK_PART_COMBINE_parts];  // registers are short
  const mk_gpu_buffer &b = c.d.buffer(parts);
  uint32_t stride = b.tile_cols, row_words = b.row_words, block_bits = block_bits_of(b);
  uint32_t pair = (block & ((1u << block_bits) - 1)) * COMBINE_PAIRS + tile::group_of_lane<COMBINE_LANES>(c.lane);
  const uint64_t *words = tile::global<const uint64_t>(b.address) + (parts.col + (block >> block_bits)) * stride;
  uint32_t place = tile::place_in_group<COMBINE_LANES>(c.lane), first = base + place * GROUP_SPANS;
  uint32_t own = base + tile::place_in_group<COMBINE_TREE>(c.lane);
  auto has = [&](uint32_t j) { return first + j < in_use; };
  // For a split that is not in use the first one's words are fetched, and left out.
  tile::stamped_pair pairs[BOTH + 1];
  wait_all_pairs<BOTH + 1>(
      c.d, parts.buffer,
      [&](uint32_t j) {
        uint32_t split = j == BOTH ? (own < in_use ? own : 0) : has(j % GROUP_SPANS) ? first + j % GROUP_SPANS : 0;
        return words + (split * row_words + (j == BOTH ? stride - 2 : 2 * (pair + j / GROUP_SPANS * 8)));
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

__device__ inline void consume_COMBINE(consumer &c, const mk_instruction_word &in) {
  const mk_operand &parts = in.parts[MK_PART_COMBINE_parts];
  uint32_t span = param(in, MK_PARAM_COMBINE_span), splits = parts.rows;
  if (tile::uniform(combined_address(c.d.buffer(parts)) != 0 && alone_in_use(position_of(c), span, splits))) {
    return;
  }
  uint32_t in_use = tile::uniform(min(position_of(c) / span + 1, splits));
  uint32_t blocks = tile::uniform(static_cast<uint32_t>(parts.cols) << block_bits_of(c.d.buffer(parts)));
#pragma unroll 1
  for (uint32_t block = tile::uniform(c.warp); block < blocks; block += MK_GPU_CONSUMER_WARPS) {
    merged_pairs sum;
#pragma unroll 1
    for (uint32_t base = 0; base < in_use; base += COMBINE_TREE) {
      merged_pairs tree = four_of_head(c, block, base, in_use);
      if (in_use - base > GROUP_SPANS) {
        tree.add_lane(1);
        tree.add_lane(2);
      }
      sum.add(tree);
    }
    if (tile::place_in_group<COMBINE_LANES>(c.lane) == 0 && publishes(c.d)) {
      const mk_operand &out = instruction_at_hand(c).parts[MK_PART_COMBINE_out];
      uint32_t unit = block * COMBINE_PAIRS + tile::group_of_lane<COMBINE_LANES>(c.lane);
      uint64_t *to = stamped_row(c.d, out);
      publish_combined(c, readers_of(out), to, unit, {sum.value[0], sum.value[1], sum.top, sum.total});
      publish_combined(c, readers_of(out), to, unit + 8, {sum.value[2], sum.value[3], sum.top, sum.total});
    }
  }
}

}  // namespace mk
