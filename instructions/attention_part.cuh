// How the kernels of one row and of several attend by parts of 32 tokens (attend_part.cuh), and how the sums of parts
// become those of spans: docs/NUMERICS.md has the canon.
#pragma once
#include "instructions/attend_part.cuh"
#include "instructions/kv_cache.cuh"
#include "vm/gpu/consumer.cuh"

namespace mk {

__device__ inline float2 floats(const tile::stamped_pair &pair) {
  return make_float2(__uint_as_float(tile::stamp_data(pair.low)), __uint_as_float(tile::stamp_data(pair.high)));
}

// The sums of a warp that has no part.
__device__ inline void clear(part_sums &sums) {
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    tile::zero(sums.o[i]);
  }
  tile::zero(sums.total);
  sums.top[0] = sums.top[1] = NO_TOKENS;
}

// Where pair `pair` of a new token's K, and two values of its V, lie in pages. keys, values: the token's tiles there;
// `at`: its number among their tokens.
struct newest_place {
  uint32_t *keys;
  uint16_t *values;

  __device__ newest_place(uint32_t halves, uint8_t *keys_at, uint8_t *values_at, uint32_t at, uint32_t pair) {
    uint32_t step = (at / 16 * halves * 4 + pair / 8) * MK_TILE_STEP_ELEMENTS;
    keys = tile::view<uint32_t>(keys_at) + (step + mk_step_offset(at, pair * 2)) / 2;
    values = tile::view<uint16_t>(values_at) + step + mk_step_offset(pair * 2, at);
  }
  __device__ void put_value(uint32_t pair) const {
    values[0] = static_cast<uint16_t>(pair);
    values[32] = static_cast<uint16_t>(pair >> 16);  // the next row of the step
  }
};

// Two neighbouring output values of a column: sums of p v, what scores are relative to, the sum of p.
struct merged_unit {
  float low = 0.0f, high = 0.0f, top = NO_TOKENS, total = 0.0f;
};

// sum + part. Products by powers of two are exact, so this rounds as one addition, and it does not matter which of them
// is `sum`.
__device__ inline void add_unit(merged_unit &sum, const merged_unit &part) {
  float top = fmaxf(sum.top, part.top);
  float keep = tile::exp2(sum.top - top), factor = tile::exp2(part.top - top);  // of whole numbers: exact
  sum.low = __fmaf_rn(factor, part.low, keep * sum.low);
  sum.high = __fmaf_rn(factor, part.high, keep * sum.high);
  sum.total = __fmaf_rn(factor, part.total, keep * sum.total);
  sum.top = top;
}

// Whether tiles of q, k and v have the sum of their squares after their values, and heads of q and k are to be normed.
__device__ inline bool norms_heads(const mk_instruction_word &in) {
  return MK_GPU_FAMILIES && param(in, MK_PARAM_ATTENTION_eps) != 0;
}

// Two neighbouring values of a head that comes so, in the first of whose words `head` is; all lanes are of one head.
// norms: it is of q or k. here: there is such a head.
__device__ inline float2 wait_normed_pair(const device &d, const mk_instruction_word &in, uint32_t buffer,
                                          const uint64_t *head, uint32_t head_dim, uint32_t pair, bool norms,
                                          bool here) {
  uint32_t tile = tile::place_in_group<8>(tile::lane()), tiles = norms && here ? head_dim / MK_TILE : 0;
  tile::stamped_pair words[2];
  wait_stamped_pairs<2>(
      d, buffer,
      [&](uint32_t i) {
        return head + (i == 0 ? pair / 8 * MK_SQUARED_TILE + pair % 8 * 2 : tile * MK_SQUARED_TILE + MK_TILE);
      },
      [&](uint32_t i) { return i == 0 ? here : tile < tiles; }, words);
  float squares = tile < tiles ? __uint_as_float(tile::stamp_data(words[1].low)) : 0.0f;
  squares = tile::sum_tree<8>(squares);  // of eight tiles
  float scale = norms ? norm_scale(squares, reciprocal_of(static_cast<float>(head_dim)),
                                   __uint_as_float(param(in, MK_PARAM_ATTENTION_eps)))
                      : 1.0f;
  return make_float2(__fmul_rn(__uint_as_float(tile::stamp_data(words[0].low)), scale),
                     __fmul_rn(__uint_as_float(tile::stamp_data(words[0].high)), scale));
}

// Waits for values 2 pair and 2 pair + 1 of a head of K (`norms`: which may be to be normed) or V, whose first word
// `head` is; all lanes are of the same 64 values of one head.
__device__ inline new_codes wait_codes(const device &d, const mk_instruction_word &in, uint32_t buffer,
                                       const uint64_t *head, uint32_t head_dim, uint32_t pair, bool norms) {
  const bool more = head_dim > 64;
  if (norms_heads(in)) {
    float2 own = wait_normed_pair(d, in, buffer, head, head_dim, pair, norms, true), others = own;
    if (more) {
      others = wait_normed_pair(d, in, buffer, head, head_dim, pair ^ 32, norms, true);
    }
    return quantise_pair(own, others);
  }
  tile::stamped_pair words[2];
  wait_stamped_pairs<2>(
      d, buffer, [&](uint32_t i) { return head + 2 * (i == 0 ? pair : pair ^ 32); },
      [&](uint32_t i) { return i == 0 || more; }, words);
  return quantise_pair(floats(words[0]), floats(words[1]));
}

// A new token's codes of K and of V, 128 each, and after them both scales, in shared memory, until they are put into a
// page (put_newest).
enum { NEWEST_SCALES_AT = 2 * 128 };
__device__ inline void keep_codes(uint32_t *newest, uint32_t which, uint32_t pair, const new_codes &of) {
  uint8_t *bytes = tile::view<uint8_t>(newest);
  tile::store<uint16_t>(bytes + which * 128 + pair * 2, static_cast<uint16_t>(of.codes));
  if (pair == 0) {
    tile::store<uint16_t>(bytes + NEWEST_SCALES_AT + which * 2, static_cast<uint16_t>(of.scale));
  }
}
__device__ inline new_codes kept_codes(const void *newest, uint32_t which, uint32_t pair) {
  const uint8_t *bytes = tile::view<uint8_t>(newest);
  return {tile::load<uint16_t>(bytes + which * 128 + pair * 2),
          tile::load<uint16_t>(bytes + NEWEST_SCALES_AT + which * 2)};
}
// Puts K and V of the newest token, which is token `at` of a warp's part, from `newest` into its page. Each warp that
// attends to the token does this, and all of them write the same.
__device__ inline void put_newest(const uint32_t *newest, uint32_t halves, uint8_t *keys, uint8_t *values, bool codes,
                                  uint32_t scales, uint32_t at, uint32_t lane) {
  uint32_t pairs = halves * 32;
#pragma unroll 1
  for (uint32_t first = 0; first < pairs; first += 32) {
    uint32_t pair = first + tile::anew(lane);
    if (codes) {
      put_codes(keys, keys + scales, halves * 64, 0, at, pair * 2, kept_codes(newest, 0, pair));
      put_codes(values, values + scales, halves * 64, 1, at, pair * 2, kept_codes(newest, 1, pair));
      continue;
    }
    newest_place to(halves, keys, values, at, pair);
    *to.keys = newest[pair];
    to.put_value(newest[pairs + pair]);
  }
  __syncwarp();
}

// Adds parts (top, total) and their two values, one after the other. A part that is not there is (NO_TOKENS, 0) and
// zeros.
__device__ inline void add_parts(merged_unit &sum, const float2 (&scale)[BATCH_PARTS],
                                 const float2 (&value)[BATCH_PARTS]) {
  float top = fmaxf(fmaxf(fmaxf(scale[0].x, scale[1].x), fmaxf(scale[2].x, scale[3].x)), sum.top);
  float keep = tile::exp2(sum.top - top);
  sum.total *= keep, sum.low *= keep, sum.high *= keep;
  sum.top = top;
#pragma unroll
  for (uint32_t j = 0; j < BATCH_PARTS; j++) {
    float factor = tile::exp2(scale[j].x - top);
    sum.total = __fmaf_rn(factor, scale[j].y, sum.total);
    sum.low = __fmaf_rn(factor, value[j].x, sum.low);
    sum.high = __fmaf_rn(factor, value[j].y, sum.high);
  }
}

// (a + b) + (c + d) of units get(0) to get(3).
template <typename getter>
__device__ inline merged_unit tree_of_four(getter get) {
  merged_unit of[GROUP_SPANS] = {get(0), get(1), get(2), get(3)}, sum;
  sum.top = fmaxf(fmaxf(of[0].top, of[1].top), fmaxf(of[2].top, of[3].top));
  float factor[GROUP_SPANS];  // powers of two: their products are exact
#pragma unroll
  for (uint32_t j = 0; j < GROUP_SPANS; j++) {
    factor[j] = tile::exp2(of[j].top - sum.top);
  }
  auto add = [&](float merged_unit::*value) {
    return __fadd_rn(__fmaf_rn(factor[1], of[1].*value, __fmul_rn(factor[0], of[0].*value)),
                     __fmaf_rn(factor[3], of[3].*value, __fmul_rn(factor[2], of[2].*value)));
  };
  sum.low = add(&merged_unit::low), sum.high = add(&merged_unit::high), sum.total = add(&merged_unit::total);
  return sum;
}

// Adds to the lane's own unit that of the lane `away` of it.
__device__ inline void add_lane(merged_unit &sum, uint32_t away) {
  add_unit(sum, {tile::exchange(sum.low, away), tile::exchange(sum.high, away), tile::exchange(sum.top, away),
                 tile::exchange(sum.total, away)});
}

__device__ inline float4 floats(const merged_unit &unit) {
  return make_float4(unit.low, unit.high, unit.top, unit.total);
}
__device__ inline merged_unit unit_of(const float4 &floats) { return {floats.x, floats.y, floats.z, floats.w}; }

// What rounds have summed up lies in the block's scratch memory until the next round.
__device__ inline float *scratch_of(const consumer &c) {
  return c.d.params.scratch + static_cast<uint64_t>(blockIdx.x) * c.d.params.scratch_floats;
}
__device__ inline void keep_unit(float *to, const merged_unit &unit) { tile::store_l2(to, floats(unit)); }
__device__ inline merged_unit get_unit(const float *from) { return unit_of(tile::load_l2<float4>(from)); }

}  // namespace mk
