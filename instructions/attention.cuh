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

struct attention_shape {            // kept small: registers are short
  uint32_t warp, halves, set_bits;  // halves: of 64 dims; sets of query heads: a power of two

  __device__ uint32_t head_dim() const { return halves * 64; }
  __device__ uint32_t head_bits() const { return 5 + halves; }                  // of head_dim
  __device__ uint32_t stride_bits() const { return set_bits + halves - 1; }     // warps from rank to rank
  __device__ uint32_t set() const { return warp & ((1u << set_bits) - 1); }     // this warp's heads
  __device__ uint32_t half() const { return warp >> set_bits & (halves - 1); }  // and output dims
  __device__ uint32_t ranks() const { return MK_GPU_CONSUMER_WARPS >> stride_bits(); }
  __device__ uint32_t rank() const { return warp >> stride_bits(); }  // among the warps of the same set and half
};

struct attention_sums {    // columns 2 t and 2 t + 1 of lane 4 g + t: heads 2 (t % 2) and 2 (t % 2) + 1 of the set
  tile::sum_tile o[4];     // 16 dims each; the remainders' columns apart
  float max[2], total[2];  // base 2; the total over this lane's tokens
};

// q times scale as fragments of both kinds of columns, k and v of the newest token as bf16. What comes first is fetched before the warps
// meet, since where they stage it a slower warp may still read its x.
__device__ inline void stage_attention(consumer &c, const mk_instruction_word &in, const attention_shape &a) {
  const mk_operand &q = in.parts[MK_PART_ATTENTION_q], &k = in.parts[MK_PART_ATTENTION_k],
                   &v = in.parts[MK_PART_ATTENTION_v];
  uint32_t pairs = a.head_dim() / 2, q_pairs = (SET_HEADS * pairs) << a.set_bits;
  float scale = __uint_as_float(param(in, MK_PARAM_ATTENTION_scale)) * BASE_E_TO_2;
  uint32_t *newest = reinterpret_cast<uint32_t *>(c.d.activation() + ATTENTION_NEWEST_AT);
  uint32_t *fragments = reinterpret_cast<uint32_t *>(c.d.activation() + ATTENTION_Q_AT);
#pragma unroll 1
  for (uint32_t base = c.warp * 32; base < q_pairs + 2 * pairs || base < MK_GPU_CONSUMER_WARPS * 32;
       base += MK_GPU_CONSUMER_WARPS * 32) {
    uint32_t unit = base + c.lane, at = unit;  // pairs of q, then of k, then of v: each warp fetches its own at once
    const mk_operand *operand = base < q_pairs ? &q : base < q_pairs + pairs ? &k : &v;
    bool is_q = base < q_pairs, is_v = base >= q_pairs + pairs;
    at -= is_q ? 0 : is_v ? q_pairs + pairs : q_pairs;
    tile::stamped_pair pair;
    wait_stamped_pair(c.d, stamped_row(c.d, *operand) + 2 * at,
                      is_q ? at < param(in, MK_PARAM_ATTENTION_group) * pairs : at < pairs, operand->buffer, pair);
    if (base < MK_GPU_CONSUMER_WARPS * 32) {
      consumers_meet_with_values(c);
    }
    float low = __uint_as_float(tile::stamp_data(pair.low)), high = __uint_as_float(tile::stamp_data(pair.high));
    if (!is_q) {
      if (at < pairs) {
        newest[unit - q_pairs] = tile::pack_bf16(low, high);
      }
      continue;
    }
    uint32_t head = 2 * at >> a.head_bits(), dim = 2 * at & (a.head_dim() - 1), column = head % SET_HEADS;
    uint32_t step = head / SET_HEADS * (a.halves * 4) + dim / 16, t = dim % 8 / 2, b = dim % 16 / 8;
    low *= scale, high *= scale;
    uint32_t rounded = tile::pack_bf16(low, high);
    uint32_t *to = fragments + (step * 32 + column * 4 + t) * 2 + b;
    to[0] = rounded;
    to[SET_HEADS * 4 * 2] = tile::pack_bf16(low - tile::low_bf16(rounded), high - tile::high_bf16(rounded));
  }
  consumers_meet(c);
}

// Tiles of 16 tokens that a warp folds together: the maximum and what follows from it are found once for both.
constexpr uint32_t TILES = 2;

// Four K tiles, or V tiles, of each token tile; token tiles lie `stride` bytes apart.
__device__ inline void load_tiles(tile::weight_tile (&to)[TILES][4], const uint8_t *from, uint32_t stride) {
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
#pragma unroll
    for (uint32_t j = 0; j < TILES; j++) {
      tile::load(to[j][i], from + j * stride + i * 512);
    }
  }
}

// Of the newest token, a tile whose other tokens do not count; the other tiles are empty.
__device__ inline void newest_keys(const consumer &c, tile::weight_tile (&to)[TILES][4], const uint32_t *pairs) {
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    to[0][i].word[0] = to[0][i].word[1] = pairs[i * 8 + c.lane % 4];
    to[0][i].word[2] = to[0][i].word[3] = pairs[i * 8 + 4 + c.lane % 4];
    tile::zero(to[1][i]);
  }
}

__device__ inline void newest_values(const consumer &c, tile::weight_tile (&to)[TILES][4], const uint16_t *values) {
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    to[0][i].word[0] = values[i * 16 + c.lane / 4];
    to[0][i].word[1] = values[i * 16 + 8 + c.lane / 4];
    to[0][i].word[2] = to[0][i].word[3] = 0;
    tile::zero(to[1][i]);
  }
}

__device__ inline float largest_over_tokens(float value) {
#pragma unroll
  for (uint32_t offset = 4; offset < 32; offset *= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  return value;
}

// Folds the first `valid` tokens of neighbouring tiles into the sums. keys and values: nullptr for the newest token.
__device__ inline void attend_tiles(const consumer &c, const attention_shape &a, const uint8_t *keys,
                                    const uint8_t *values, uint32_t valid, attention_sums &sums) {
  const uint2 *q =
      reinterpret_cast<const uint2 *>(c.d.activation() + ATTENTION_Q_AT) + a.set() * (a.halves * 128) + c.lane;
  const uint8_t *newest = c.d.activation() + ATTENTION_NEWEST_AT;
  tile::sum_tile s[TILES];
  tile::weight_tile tiles[TILES][4];
#pragma unroll
  for (uint32_t j = 0; j < TILES; j++) {
    tile::zero(s[j]);
  }
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    if (h < a.halves) {
      if (keys == nullptr) {
        newest_keys(c, tiles, reinterpret_cast<const uint32_t *>(newest) + h * 32);
      } else {
        load_tiles(tiles, keys + h * 2048, a.halves * 2048);
      }
#pragma unroll
      for (uint32_t i = 0; i < 4; i++) {
        uint2 words = q[(h * 4 + i) * 32];
#pragma unroll
        for (uint32_t j = 0; j < TILES; j++) {
          tile::multiply_add(s[j], tiles[j][i], tile::vector_tile{{words.x, words.y}});
        }
      }
    }
  }
  if (values == nullptr) {
    newest_values(c, tiles, reinterpret_cast<const uint16_t *>(newest) + a.head_dim() + a.half() * 64);
  } else {
    load_tiles(tiles, values + a.half() * 2048, a.halves * 2048);
  }
  uint32_t g = c.lane / 4, t = c.lane % 4;
  uint32_t token = tile::anew(g);
  float p[TILES][4];  // of each tile tokens g, g, g + 8, g + 8 of the lane's two heads
#pragma unroll
  for (uint32_t j = 0; j < TILES; j++) {
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      float part = s[j].value[i] + __shfl_xor_sync(0xffffffffu, s[j].value[i], 2);  // and the remainders' column
      p[j][i] = j * 16 + token + i / 2 * 8 < valid ? part : -INFINITY;
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    float top = fmaxf(fmaxf(p[0][i], p[0][i + 2]), fmaxf(p[1][i], p[1][i + 2]));
    top = fmaxf(sums.max[i], largest_over_tokens(top));
    float keep = tile::exp2(sums.max[i] - top);
    sums.max[i] = top;
    sums.total[i] *= keep;
#pragma unroll
    for (uint32_t j = 0; j < TILES; j++) {
      p[j][i] = tile::exp2(p[j][i] - top);
      p[j][i + 2] = tile::exp2(p[j][i + 2] - top);
      sums.total[i] += p[j][i] + p[j][i + 2];
    }
#pragma unroll
    for (uint32_t o = 0; o < 4; o++) {
      sums.o[o].value[i] *= keep;
      sums.o[o].value[i + 2] *= keep;
    }
  }
#pragma unroll
  for (uint32_t j = 0; j < TILES; j++) {
    uint32_t low = tile::pack_bf16(p[j][0], p[j][1]), high = tile::pack_bf16(p[j][2], p[j][3]);
    if (t >= 2) {
      low = tile::pack_bf16(p[j][0] - tile::low_bf16(low), p[j][1] - tile::high_bf16(low));
      high = tile::pack_bf16(p[j][2] - tile::low_bf16(high), p[j][3] - tile::high_bf16(high));
    }
    tile::vector_tile columns = {{tile::transpose(low), tile::transpose(high)}};
    if (valid < TILES * 16) {  // what memory holds beyond the last token need not be a number
      uint32_t at = j * 16 + 2 * tile::anew(t);
      uint32_t first = (at < valid ? 0xffffu : 0u) | (at + 1 < valid ? 0xffff0000u : 0u);
      uint32_t second = (at + 8 < valid ? 0xffffu : 0u) | (at + 9 < valid ? 0xffff0000u : 0u);
#pragma unroll
      for (uint32_t i = 0; i < 4; i++) {
        tiles[j][i].word[0] &= first, tiles[j][i].word[1] &= first;
        tiles[j][i].word[2] &= second, tiles[j][i].word[3] &= second;
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      tile::multiply_add(sums.o[i], tiles[j][i], columns);
    }
  }
}

// Blocks of this split that hold tokens before the position.
__device__ inline uint32_t blocks_of_split(const mk_instruction_word &in, const mk_gpu_buffer &kv, uint32_t position) {
  uint32_t blocks = (position + 63) / 64, per_span = kv.span_tokens / 64;
  uint32_t per_round = param(in, MK_PARAM_ATTENTION_splits) * per_span, rounds = blocks / per_round;
  int32_t left = static_cast<int32_t>(blocks - rounds * per_round - in.parts[MK_PART_ATTENTION_kv].row * per_span);
  return rounds * per_span + min(max(left, 0), static_cast<int32_t>(per_span));
}

// The newest token, then this warp's tiles of the split's blocks, oldest first. Two ranks share a block; they look at every eighth or
// fourth block alone. That they see no filling of the pages between is safe: all warps have met since the last instruction, and a page
// that is waited for is so near the last one that was seen that the filling before it has arrived (MK_GPU_KV_PAGES_UNDER_WAY).
constexpr uint32_t RANKS = 4 / TILES;                            // that share a block
constexpr uint32_t MOST_STRIDE = MK_GPU_CONSUMER_WARPS / RANKS;  // pages from one look to the next
static_assert(MK_GPU_KV_PAGES_UNDER_WAY + MOST_STRIDE <= MK_GPU_RING_PAGES, "a warp sees every eighth page");
__device__ inline void attend(consumer &c, const mk_instruction_word &in, const attention_shape &a, bool newest,
                              attention_sums &sums) {
  uint32_t span_tokens = c.d.buffer(in.parts[MK_PART_ATTENTION_kv]).span_tokens;
  uint32_t to_next = (param(in, MK_PARAM_ATTENTION_splits) - 1) * span_tokens;  // between this split's spans
  uint32_t first = in.parts[MK_PART_ATTENTION_kv].row * span_tokens,
           end = first + span_tokens;  // of the span at hand
  ring_cursor<MK_GPU_RING_PAGES> page = c.pages;
  page.advance(a.rank() / RANKS * a.halves);
  first += a.rank() / RANKS * 64;
  for (;;) {
    while (first >= end) {
      first += to_next;
      end += to_next + span_tokens;
    }
    uint32_t i = newest ? 0 : a.rank() % RANKS;
    ring_cursor<MK_GPU_RING_PAGES> second = page;
    if (!newest) {
      if (first >= position_of(c)) {
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
    for (; i < (newest ? 1 : RANKS) && (newest || first + i * (TILES * 16) < position_of(c)) &&
           (c.d.params.left_out & MK_GPU_PART_WORK) == 0;
         i += min(a.ranks(), RANKS)) {
      uint32_t offset = i * TILES * a.halves * 2048;
      attend_tiles(c, a, newest ? nullptr : keys + offset, newest ? nullptr : values + offset,
                   newest ? 1 : min(position_of(c) - first - i * (TILES * 16), TILES * 16), sums);
    }
    if (!newest) {
      uint32_t stride = max(a.ranks() / RANKS, 1u);  // in blocks
      release_page(c, page.slot(), stride);
      if (a.halves == 2) {
        release_page(c, second.slot(), stride);
      }
      page.advance(stride * a.halves);
      first += stride * 64;
    }
    newest = false;
  }
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
    // Of its two heads a lane keeps one, and gets the other column of that from the lane that keeps the other head.
    const float(&o)[4] = sums.o[i].value;
    float low = t < 2 ? o[0] : o[1], high = t < 2 ? o[2] : o[3];
    low += __shfl_xor_sync(0xffffffffu, t < 2 ? o[1] : o[0], 2);
    high += __shfl_xor_sync(0xffffffffu, t < 2 ? o[3] : o[2], 2);
    part[head * PART_STRIDE + i * 16 + g] = low;
    part[head * PART_STRIDE + i * 16 + 8 + g] = high;
  }
}

// All warps' parts become the result, published by all threads: first, where there is one, as the output of the COMBINE behind.
__device__ inline void merge_parts(consumer &c, const mk_instruction_word &in, const attention_shape &a,
                                   const mk_instruction_word *combine) {
  const float *parts = reinterpret_cast<const float *>(c.d.activation() + ATTENTION_PARTS_AT);
  const float *scales = reinterpret_cast<const float *>(c.d.activation() + ATTENTION_SCALES_AT);
  enum { BATCH = 4 };  // parts that a lane folds together
  uint64_t *row = stamped_row(c.d, in.parts[MK_PART_ATTENTION_out]);
  uint32_t units = param(in, MK_PARAM_ATTENTION_group) * a.head_dim() / 2;
  // Few warps: what one of them executes, the three others of its scheduler wait for.
  uint32_t lane_bits = units * 4 <= MK_GPU_CONSUMER_WARPS * 32 ? 1 : 0, lanes = 1u << lane_bits;
  for (uint32_t start = c.warp * 32; start < units << lane_bits; start += MK_GPU_CONSUMER_WARPS * 32) {
    uint32_t i = start + c.lane, unit = i >> lane_bits, head = 2 * unit >> a.head_bits(),
             dim = 2 * unit & (a.head_dim() - 1);
    uint32_t first = (dim / 64 << a.set_bits) + head / SET_HEADS, column = head % SET_HEADS;
    merged_unit sum;
#pragma unroll 1
    for (uint32_t r = i & (lanes - 1); r < a.ranks(); r += BATCH * lanes) {
      float2 scale[BATCH], o[BATCH];
#pragma unroll
      for (uint32_t j = 0; j < BATCH; j++) {
        uint32_t rank = r + (j << lane_bits), warp = first + (rank << a.stride_bits());
        scale[j] = make_float2(-INFINITY, 0.0f);
        o[j] = make_float2(0.0f, 0.0f);
        if (rank < a.ranks()) {
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
      uint64_t *words = row + head * (a.head_dim() + 2);
      tile::store_stamped(words + dim, __float_as_uint(sum.low), c.d.generation());
      tile::store_stamped(words + dim + 1, __float_as_uint(sum.high), c.d.generation());
      if (dim == 0) {  // scores leave in base e
        words += a.head_dim();
        tile::store_stamped(words, __float_as_uint(sum.max / BASE_E_TO_2), c.d.generation());
        tile::store_stamped(words + 1, __float_as_uint(sum.total), c.d.generation());
      }
    }
  }
}

// Writes the newest token's K and V into its block, by the last warps: the first ones have more to publish.
__device__ inline void append_newest(consumer &c, const mk_instruction_word &in, const mk_gpu_buffer &kv) {
  uint32_t head_dim = kv.head_dim, dim = (MK_GPU_CONSUMER_WARPS - 1 - c.warp) * 32 + c.lane;
  if (dim >= head_dim) {
    return;
  }
  const uint16_t *newest = reinterpret_cast<const uint16_t *>(c.d.activation() + ATTENTION_NEWEST_AT);
  const uint32_t *table = reinterpret_cast<const uint32_t *>(whole_buffer(in, MK_WHOLE_ATTENTION_table).address);
  uint32_t token = position_of(c) % kv.block_tokens;
  uint64_t block = table[position_of(c) / kv.block_tokens];
  if (!index_fits(c.d, MK_GPU_FAULT_BLOCK, static_cast<uint32_t>(block), kv.blocks)) {
    return;
  }
  uint16_t *pair = reinterpret_cast<uint16_t *>(kv.address) +
                   (block * kv.cols + in.parts[MK_PART_ATTENTION_kv].col) * 2 * kv.block_tokens * head_dim;
  for (uint32_t which = 0; which < 2; which++) {
    pair[mk_block_offset(kv.block_tokens, head_dim, which, token, dim)] = newest[which * head_dim + dim];
  }
  tile::fence_global_for_copies();
}

// Whether this split, which has tokens, has the newest one.
__device__ inline bool owns_newest(const consumer &c, const mk_instruction_word &in, const mk_gpu_buffer &kv) {
  uint32_t round = param(in, MK_PARAM_ATTENTION_splits) * kv.span_tokens;
  return (position_of(c) - in.parts[MK_PART_ATTENTION_kv].row * kv.span_tokens) % round < kv.span_tokens;
}

__device__ inline void consume_ATTENTION(consumer &c, const mk_instruction_word &in) {
  const mk_operand &kv_operand = in.parts[MK_PART_ATTENTION_kv];
  const mk_gpu_buffer &kv = c.d.buffer(kv_operand);
  attention_shape a = {c.warp, kv.head_dim / 64u, 0};
  while (SET_HEADS << a.set_bits < param(in, MK_PARAM_ATTENTION_group)) {
    a.set_bits++;
  }
  // The last warps, which have the least to stage, look up what all need later.
  if (c.warp == MK_GPU_CONSUMER_WARPS - 1 && c.lane == 0) {
    c.d.words()->combined = fused_combine(c);
  }
  if (c.warp == MK_GPU_CONSUMER_WARPS - 2 && c.lane == 0) {
    c.d.words()->owns_newest = owns_newest(c, in, kv) ? 1 : 0;
    c.d.words()->kv_pages = blocks_of_split(in, kv, position_of(c)) * a.halves;
  }
  stage_attention(c, in, a);
  if (kv_operand.row * kv.span_tokens <= position_of(c)) {
    attention_sums sums;
#pragma unroll
    for (uint32_t j = 0; j < 4; j++) {
      tile::zero(sums.o[j]);
      sums.max[j % 2] = -INFINITY;
      sums.total[j % 2] = 0.0f;
    }
    attend(c, in, a, a.rank() == a.ranks() - 1 && c.d.words()->owns_newest != 0, sums);
    const mk_instruction_word &again = instruction_at_hand(c);  // registers are short
    if (a.head_dim() * 16 << a.set_bits > ATTENTION_PARTS_AT - ATTENTION_Q_AT) {
      consumers_meet(c);  // the parts lie where q was
    }
    put_part(c, sums);
    consumers_meet(c);
    merge_parts(c, again, a, c.d.words()->combined == 0 ? nullptr : next_instruction(c));
    if (c.d.words()->owns_newest != 0) {
      append_newest(c, again, c.d.buffer(again.parts[MK_PART_ATTENTION_kv]));
    }
    advance_pages(c, tile::uniform(c.d.words()->kv_pages));
  }
  consumers_meet(c);  // before anybody stages something else
}

}  // namespace mk
