// ATTENTION on the device: one split of the decode attention of one KV head; attention.c.
//
// Equation: s_t = scale q k_t; out = (sum_t p_t v_t, max_t s_t, sum_t p_t), p_t = exp(s_t - max), over the split's tokens.
// Tiles: KV blocks of 64 tokens through the page ring (head_dim 64: K and V in one page; 128: a page each), 16 x 16 tiles in fragment
// order: S = K q^T is [16 tokens][8 columns], O = V^T P^T is [16 dims][8 columns]. The columns are four query heads (a set)
// rounded to bf16 and what that rounding left over, so that q and p lose nothing that matters. A warp takes every ranks-th tile of 16 tokens for one
// set and 64 dims of the output, and keeps a running maximum; the warps' parts are merged once at the end in a fixed order.
// Waits: q, k, v (every split); the loader: the step state. Signals: nothing of its own; its readers look at the stamps.
// The newest token takes part as a tile of one token. Its K and V are appended last, behind all copies of this instruction, and
// fenced for the next epoch's. Where this split is the only one in use, the COMBINE behind it is done here, before that.
#pragma once
#include "instructions/combine.cuh"

namespace mk {

// Everything this instruction stages lies in the activation area, behind all warps' meeting at its start.
enum {
  SET_HEADS = 4,
  PART_STRIDE = 72,  // floats from head to head of a part: 64 dims, and 8 so that heads lie in different banks
  PART_BYTES = SET_HEADS * PART_STRIDE * 4,
  ATTENTION_NEWEST_AT = 0,                                  // k, then v of the newest token, bf16
  ATTENTION_SCALES_AT = ATTENTION_NEWEST_AT + 2 * 128 * 2,  // [warp][head](max, sum of p)
  ATTENTION_Q_AT = ATTENTION_SCALES_AT + MK_GPU_CONSUMER_WARPS * SET_HEADS * 2 * 4,   // [set][step] fragments
  ATTENTION_PARTS_AT = MK_GPU_ACTIVATION_BYTES - MK_GPU_CONSUMER_WARPS * PART_BYTES,  // [warp][head]
  Q_SET_STEP_BYTES = 32 * 8,
};
static_assert(ATTENTION_PARTS_AT >= ATTENTION_Q_AT, "parts have room");

struct attention_shape {
  uint32_t head_dim, halves;     // of 64 dims
  uint32_t set_bits, set, half;  // sets of query heads: a power of two; of them, and of the output dims, this warp's
  uint32_t ranks, rank;          // among the warps of the same set and half

  __device__ uint32_t head_bits() const { return 5 + halves; }               // of head_dim
  __device__ uint32_t stride_bits() const { return set_bits + halves - 1; }  // warps from rank to rank
};

struct attention_sums {    // columns 2 t and 2 t + 1 of lane 4 g + t: heads 2 (t % 2) and 2 (t % 2) + 1 of the set
  tile::sum_tile o[4];     // 16 dims each; the remainders' columns apart
  float max[2], total[2];  // base 2; the total over this lane's tokens
};

// q times scale as fragments of both kinds of columns, k and v of the newest token as bf16.
__device__ inline void stage_attention(consumer &c, const mk_instruction &in, const attention_shape &a) {
  const mk_operand &q = in.operands[MK_SLOT_ATTENTION_q], &k = in.operands[MK_SLOT_ATTENTION_k],
                   &v = in.operands[MK_SLOT_ATTENTION_v];
  uint32_t pairs = a.head_dim / 2, q_pairs = (SET_HEADS * pairs) << a.set_bits;
  float scale = __uint_as_float(in.params[MK_PARAM_ATTENTION_scale]) * BASE_E_TO_2;
  uint32_t *newest = reinterpret_cast<uint32_t *>(c.d.activation() + ATTENTION_NEWEST_AT);
  uint32_t *fragments = reinterpret_cast<uint32_t *>(c.d.activation() + ATTENTION_Q_AT);
#pragma unroll 1
  for (uint32_t base = c.warp * 32; base < q_pairs + 2 * pairs; base += MK_GPU_CONSUMER_WARPS * 32) {
    uint32_t unit = base + c.lane, at = unit;  // pairs of q, then of k, then of v: each warp fetches its own at once
    const mk_operand *operand = base < q_pairs ? &q : base < q_pairs + pairs ? &k : &v;
    bool is_q = base < q_pairs;
    at -= is_q ? 0 : base < q_pairs + pairs ? q_pairs : q_pairs + pairs;
    tile::stamped_pair pair;
    wait_stamped_pair(c.d, stamped_row(c.d, *operand) + 2 * at,
                      !is_q || at < in.params[MK_PARAM_ATTENTION_group] * pairs, operand->buffer, pair);
    float low = __uint_as_float(tile::stamp_data(pair.low)), high = __uint_as_float(tile::stamp_data(pair.high));
    if (!is_q) {
      newest[unit - q_pairs] = tile::pack_bf16(low, high);
      continue;
    }
    uint32_t head = 2 * at >> a.head_bits(), dim = 2 * at & (a.head_dim - 1), column = head % SET_HEADS;
    uint32_t step = head / SET_HEADS * (a.halves * 4) + dim / 16, t = dim % 8 / 2, b = dim % 16 / 8;
    low *= scale, high *= scale;
    uint32_t rounded = tile::pack_bf16(low, high);
    uint32_t *to = fragments + (step * 32 + column * 4 + t) * 2 + b;
    to[0] = rounded;
    to[SET_HEADS * 4 * 2] = tile::pack_bf16(low - tile::low_bf16(rounded), high - tile::high_bf16(rounded));
  }
  consumers_meet(c);
}

// Four K tiles, or V tiles, of one token tile; of the newest token, a tile whose other tokens do not count.
__device__ inline void load_tiles(tile::weight_tile (&to)[4], const uint8_t *from) {
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    tile::load(to[i], from + i * 512);
  }
}

__device__ inline void newest_keys(const consumer &c, tile::weight_tile (&to)[4], const uint32_t *pairs) {
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    to[i].word[0] = to[i].word[1] = pairs[i * 8 + c.lane % 4];
    to[i].word[2] = to[i].word[3] = pairs[i * 8 + 4 + c.lane % 4];
  }
}

__device__ inline void newest_values(const consumer &c, tile::weight_tile (&to)[4], const uint16_t *values) {
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    to[i].word[0] = values[i * 16 + c.lane / 4];
    to[i].word[1] = values[i * 16 + 8 + c.lane / 4];
    to[i].word[2] = to[i].word[3] = 0;
  }
}

__device__ inline float largest_over_tokens(float value) {
#pragma unroll
  for (uint32_t offset = 4; offset < 32; offset *= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  return value;
}

// Folds the first `valid` tokens of a tile into the sums. keys and values: nullptr for the newest token.
__device__ inline void attend_tile(const consumer &c, const attention_shape &a, const uint8_t *keys,
                                   const uint8_t *values, uint32_t valid, attention_sums &sums) {
  const uint2 *q =
      reinterpret_cast<const uint2 *>(c.d.activation() + ATTENTION_Q_AT) + a.set * (a.halves * 128) + c.lane;
  const uint8_t *newest = c.d.activation() + ATTENTION_NEWEST_AT;
  tile::sum_tile s[2];
  tile::zero(s[0]);
  tile::zero(s[1]);
  tile::weight_tile tiles[4];
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    if (h < a.halves) {
      if (keys == nullptr) {
        newest_keys(c, tiles, reinterpret_cast<const uint32_t *>(newest) + h * 32);
      } else {
        load_tiles(tiles, keys + h * 2048);
      }
#pragma unroll
      for (uint32_t i = 0; i < 4; i++) {
        uint2 words = q[(h * 4 + i) * 32];
        tile::multiply_add(s[i % 2], tiles[i], tile::vector_tile{{words.x, words.y}});
      }
    }
  }
  if (values == nullptr) {
    newest_values(c, tiles, reinterpret_cast<const uint16_t *>(newest) + a.head_dim + a.half * 64);
  } else {
    load_tiles(tiles, values + a.half * 2048);
  }
  uint32_t g = c.lane / 4, t = c.lane % 4;
  float p[4];  // tokens g, g, g + 8, g + 8 of the lane's two heads
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    float part = s[0].value[i] + s[1].value[i];
    part += __shfl_xor_sync(0xffffffffu, part, 2);  // the remainders' column
    p[i] = g + i / 2 * 8 < valid ? part : -INFINITY;
  }
#pragma unroll
  for (uint32_t j = 0; j < 2; j++) {
    float top = fmaxf(sums.max[j], largest_over_tokens(fmaxf(p[j], p[j + 2])));
    float keep = tile::exp2(sums.max[j] - top);
    sums.max[j] = top;
    p[j] = tile::exp2(p[j] - top);
    p[j + 2] = tile::exp2(p[j + 2] - top);
    sums.total[j] = sums.total[j] * keep + (p[j] + p[j + 2]);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      sums.o[i].value[j] *= keep;
      sums.o[i].value[j + 2] *= keep;
    }
  }
  uint32_t low = tile::pack_bf16(p[0], p[1]), high = tile::pack_bf16(p[2], p[3]);
  if (t >= 2) {
    low = tile::pack_bf16(p[0] - tile::low_bf16(low), p[1] - tile::high_bf16(low));
    high = tile::pack_bf16(p[2] - tile::low_bf16(high), p[3] - tile::high_bf16(high));
  }
  tile::vector_tile columns = {{tile::transpose(low), tile::transpose(high)}};
  if (valid < 16) {  // what memory holds beyond the last token need not be a number
    uint32_t first = (2 * t < valid ? 0xffffu : 0u) | (2 * t + 1 < valid ? 0xffff0000u : 0u);
    uint32_t second = (2 * t + 8 < valid ? 0xffffu : 0u) | (2 * t + 9 < valid ? 0xffff0000u : 0u);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      tiles[i].word[0] &= first, tiles[i].word[1] &= first;
      tiles[i].word[2] &= second, tiles[i].word[3] &= second;
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    tile::multiply_add(sums.o[i], tiles[i], columns);
  }
}

// Blocks of this split that hold tokens before the position.
__device__ inline uint32_t blocks_of_split(const mk_instruction &in, const mk_gpu_buffer &kv, uint32_t position) {
  uint32_t blocks = (position + 63) / 64, per_span = kv.span_tokens / 64;
  uint32_t per_round = in.params[MK_PARAM_ATTENTION_splits] * per_span, rounds = blocks / per_round;
  int32_t left = static_cast<int32_t>(blocks - rounds * per_round - in.operands[MK_SLOT_ATTENTION_kv].row * per_span);
  return rounds * per_span + min(max(left, 0), static_cast<int32_t>(per_span));
}

// The newest token, then this warp's tiles of the split's blocks, oldest first. Four ranks share a block; they look at every fourth or
// second block alone. That they see no filling of the pages between is safe: all warps have met since the last instruction, and a page
// that is waited for is so near the last one that was seen that the filling before it has arrived (MK_GPU_PAGES_UNDER_WAY).
static_assert(MK_GPU_PAGES_UNDER_WAY + GROUPS <= MK_GPU_RING_PAGES, "a warp sees every fourth page");
__device__ inline void attend(consumer &c, const mk_instruction &in, const attention_shape &a, bool newest,
                              attention_sums &sums) {
  const mk_gpu_buffer &kv = c.d.buffer(in.operands[MK_SLOT_ATTENTION_kv]);
  uint32_t position = c.position, stride = max(a.ranks / 4, 1u), at_span = a.rank / 4;  // in blocks
  uint32_t span = in.operands[MK_SLOT_ATTENTION_kv].row * kv.span_tokens;
  ring_cursor<MK_GPU_RING_PAGES> page = c.pages;
  page.advance(at_span * a.halves);
  for (;;) {
    while (at_span * 64 >= kv.span_tokens) {
      at_span -= kv.span_tokens / 64;
      span += in.params[MK_PARAM_ATTENTION_splits] * kv.span_tokens;
    }
    uint32_t first = span + at_span * 64, i = newest ? 0 : a.rank % 4, end = newest ? 1 : 4;
    ring_cursor<MK_GPU_RING_PAGES> second = page;
    if (!newest) {
      if (first >= position) {
        break;
      }
      wait_phase(c.d, PAGE_FULL + page.slot(), page.phase(), MK_ACTIVITY_PAGE_FULL, page.slot());
      if (a.halves == 2) {
        second.next();
        wait_phase(c.d, PAGE_FULL + second.slot(), second.phase(), MK_ACTIVITY_PAGE_FULL, second.slot());
      }
    }
    const uint8_t *keys = c.d.page(page.slot()),
                  *values = c.d.page(second.slot()) + (2 - a.halves) * (MK_GPU_PAGE_BYTES / 2);
#pragma unroll 1
    for (; i < end && (newest || first + i * 16 < position) && (c.d.params.left_out & MK_GPU_PART_WORK) == 0;
         i += min(a.ranks, 4u)) {
      uint32_t offset = i * a.halves * 2048;
      attend_tile(c, a, newest ? nullptr : keys + offset, newest ? nullptr : values + offset,
                  newest ? 1 : min(position - first - i * 16, 16u), sums);
    }
    if (!newest) {
      release_page(c, page.slot(), stride);
      if (a.halves == 2) {
        release_page(c, second.slot(), stride);
      }
      page.advance(stride * a.halves);
      at_span += stride;
    }
    newest = false;
  }
  advance_pages(c, blocks_of_split(in, kv, position) * a.halves);
}

// This warp's sums to shared memory; of a warp that had no token the scales alone.
__device__ inline void put_part(const consumer &c, attention_sums &sums) {
  uint32_t g = c.lane / 4, t = c.lane % 4, head = 2 * (t % 2) + t / 2;
  float *part = reinterpret_cast<float *>(c.d.activation() + ATTENTION_PARTS_AT + c.warp * PART_BYTES);
  float *scales = reinterpret_cast<float *>(c.d.activation() + ATTENTION_SCALES_AT) + c.warp * SET_HEADS * 2;
#pragma unroll
  for (uint32_t j = 0; j < 2; j++) {
#pragma unroll
    for (uint32_t offset = 4; offset < 32; offset *= 2) {
      sums.total[j] += __shfl_xor_sync(0xffffffffu, sums.total[j], offset);
    }
    if (g == 0 && t < 2) {
      scales[(2 * t + j) * 2] = sums.max[j];
      scales[(2 * t + j) * 2 + 1] = sums.total[j];
    }
  }
  if (__all_sync(0xffffffffu, sums.total[0] == 0.0f)) {
    return;
  }
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    float value[4];
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
      value[j] = sums.o[i].value[j] + __shfl_xor_sync(0xffffffffu, sums.o[i].value[j], 2);
    }
    part[head * PART_STRIDE + i * 16 + g] = t < 2 ? value[0] : value[1];
    part[head * PART_STRIDE + i * 16 + 8 + g] = t < 2 ? value[2] : value[3];
  }
}

// All warps' parts become the result, published by all threads: first, where there is one, as the output of the COMBINE behind.
__device__ inline void merge_parts(consumer &c, const mk_instruction &in, const attention_shape &a,
                                   const mk_instruction *combine) {
  const float *parts = reinterpret_cast<const float *>(c.d.activation() + ATTENTION_PARTS_AT);
  const float *scales = reinterpret_cast<const float *>(c.d.activation() + ATTENTION_SCALES_AT);
  enum { BATCH = 4 };  // parts that a lane folds together
  uint64_t *row = stamped_row(c.d, in.operands[MK_SLOT_ATTENTION_out]);
  uint32_t units = in.params[MK_PARAM_ATTENTION_group] * a.head_dim / 2, lane_bits = merge_lane_bits(units),
           lanes = 1u << lane_bits;
  for (uint32_t i = c.warp * 32 + c.lane; i < units << lane_bits; i += MK_GPU_CONSUMER_WARPS * 32) {
    uint32_t unit = i >> lane_bits, head = 2 * unit >> a.head_bits(), dim = 2 * unit & (a.head_dim - 1);
    uint32_t first = (dim / 64 << a.set_bits) + head / SET_HEADS, column = head % SET_HEADS;
    merged_unit sum;
#pragma unroll 1
    for (uint32_t r = i & (lanes - 1); r < a.ranks; r += BATCH * lanes) {
      float2 scale[BATCH], o[BATCH];
#pragma unroll
      for (uint32_t j = 0; j < BATCH; j++) {
        uint32_t rank = r + (j << lane_bits), warp = first + (rank << a.stride_bits());
        scale[j] = make_float2(-INFINITY, 0.0f);
        o[j] = make_float2(0.0f, 0.0f);
        if (rank < a.ranks) {
          scale[j] = *reinterpret_cast<const float2 *>(scales + (warp * SET_HEADS + column) * 2);
        }
        if (scale[j].y != 0.0f) {
          o[j] = *reinterpret_cast<const float2 *>(parts + warp * (PART_BYTES / 4) + column * PART_STRIDE + dim % 64);
        }
      }
      fold_parts(sum, scale, o);
    }
    fold_lanes(sum, lanes);
    if ((i & (lanes - 1)) != 0) {
      continue;
    }
    if (combine != nullptr) {
      publish_combined(c, *combine, unit, sum);
    }
    if (publishes(c.d)) {
      uint64_t *words = row + head * (a.head_dim + 2);
      tile::store_stamped(words + dim, __float_as_uint(sum.low), c.d.generation());
      tile::store_stamped(words + dim + 1, __float_as_uint(sum.high), c.d.generation());
      if (dim == 0) {  // scores leave in base e
        words += a.head_dim;
        tile::store_stamped(words, __float_as_uint(sum.max / BASE_E_TO_2), c.d.generation());
        tile::store_stamped(words + 1, __float_as_uint(sum.total), c.d.generation());
      }
    }
  }
}

// Writes the newest token's K and V into its block, by the last warps: the first ones have more to publish.
__device__ inline void append_newest(consumer &c, const mk_instruction &in, const mk_gpu_buffer &kv) {
  uint32_t head_dim = kv.head_dim, dim = (MK_GPU_CONSUMER_WARPS - 1 - c.warp) * 32 + c.lane;
  if (dim >= head_dim) {
    return;
  }
  const uint16_t *newest = reinterpret_cast<const uint16_t *>(c.d.activation() + ATTENTION_NEWEST_AT);
  const uint32_t *table = reinterpret_cast<const uint32_t *>(c.d.buffer(in.operands[MK_SLOT_ATTENTION_table]).address);
  uint32_t token = c.position % kv.block_tokens;
  uint64_t block = table[c.position / kv.block_tokens];
  uint16_t *pair = reinterpret_cast<uint16_t *>(kv.address) +
                   (block * kv.cols + in.operands[MK_SLOT_ATTENTION_kv].col) * 2 * kv.block_tokens * head_dim;
  for (uint32_t which = 0; which < 2; which++) {
    pair[mk_block_offset(kv.block_tokens, head_dim, which, token, dim)] = newest[which * head_dim + dim];
  }
  tile::fence_global_for_copies();
}

__device__ inline void consume_ATTENTION(consumer &c, const mk_instruction &in) {
  const mk_operand &kv_operand = in.operands[MK_SLOT_ATTENTION_kv];
  const mk_gpu_buffer &kv = c.d.buffer(kv_operand);
  attention_shape a;
  a.head_dim = kv.head_dim;
  a.halves = kv.head_dim / 64;
  a.set_bits = 0;
  while (SET_HEADS << a.set_bits < in.params[MK_PARAM_ATTENTION_group]) {
    a.set_bits++;
  }
  a.set = c.warp & ((1u << a.set_bits) - 1);
  a.half = (c.warp >> a.set_bits) & (a.halves - 1);
  a.ranks = MK_GPU_CONSUMER_WARPS >> a.stride_bits();
  a.rank = c.warp >> a.stride_bits();
  consumers_meet(c);
  stage_attention(c, in, a);
  uint32_t newest = c.position / kv.span_tokens;
  if (kv_operand.row <= newest) {
    bool owner = newest % in.params[MK_PARAM_ATTENTION_splits] == kv_operand.row;
    attention_sums sums;
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
      tile::zero(sums.o[j]);
      sums.max[j % 2] = -INFINITY;
      sums.total[j % 2] = 0.0f;
    }
    attend(c, in, a, owner && a.rank == a.ranks - 1, sums);
    if (c.warp == 0 && c.lane == 0) {
      c.d.words()->combined = combine_behind(c, in.operands[MK_SLOT_ATTENTION_out]);
    }
    if (a.head_dim * 16 << a.set_bits > ATTENTION_PARTS_AT - ATTENTION_Q_AT) {
      consumers_meet(c);  // the parts lie where q was
    }
    put_part(c, sums);
    consumers_meet(c);
    merge_parts(c, in, a, c.d.words()->combined == 0 ? nullptr : next_instruction(c));
    if (owner) {
      append_newest(c, in, kv);
    }
  }
  consumers_meet(c);  // before anybody stages something else
}

}  // namespace mk
