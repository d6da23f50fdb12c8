// ATTENTION on the device: one split of the decode attention of one KV head; attention.c.
//
// Equation: s_t = scale q k_t; out = (sum_t p_t v_t, max_t s_t, sum_t p_t), p_t = exp(s_t - max), over the split's tokens.
// Tiles: KV blocks of 64 tokens through the page ring (head_dim 64: K and V in one page; 128: a page each), q, k, v of the newest
// token staged as fp32. head_dim / 8 lanes share a token, 8 dims each. Warps are dealt to sets of up to SET_HEADS query heads, and within
// a set to tokens; every group of lanes keeps its own running (sum, max, total), merged once at the end in a fixed order.
// Waits: q, k, v (every split); the loader: the step state. Signals: nothing of its own; its readers look at the stamps.
// The newest token's K and V are appended last, behind all copies of this instruction, and fenced for the next epoch's.
#pragma once
#include "vm/gpu/consumer.cuh"
#include "vm/gpu/storer.cuh"

namespace mk {

// Everything this instruction stages lies in the activation area, behind all warps' meeting at its start.
enum {
  SET_HEADS = 2,               // query heads per set: what the registers of a warp hold without spilling
  ATTENTION_MERGE_AT = 10240,  // behind q, k and v: at most 18 vectors of 128
  ATTENTION_MERGE_WARPS = 8,
};

struct attention_shape {
  uint32_t head_dim, lanes;  // of lanes that share a token, 8 dims each
  uint32_t group, split, splits;
  uint32_t newest;     // span of the newest token
  uint32_t sets, set;  // of query heads; this warp's
  uint32_t heads;      // of this warp's set
  uint32_t token_warps, token_warp;
  float scale;  // times log2(e): scores are kept in base 2
};

struct attention_sums {  // of up to SET_HEADS heads, 8 dims of this lane
  float o[SET_HEADS][8], max[SET_HEADS], total[SET_HEADS];
};

// One token: k is in registers, load_v fetches v once the scores are known (both at once would not fit the registers).
template <typename load>
__device__ inline void attend(const attention_shape &a, const float (&q)[SET_HEADS][8], const float (&k)[8],
                              load load_v, bool valid, attention_sums &sums) {
  float p[SET_HEADS];
#pragma unroll
  for (uint32_t h = 0; h < SET_HEADS; h++) {
    float score = 0.0f;
#pragma unroll
    for (uint32_t j = 0; j < 8; j++) {
      score += q[h][j] * k[j];
    }
    p[h] = tile::sum_group(score, a.lanes) * a.scale;
  }
  if (!valid) {
    return;
  }
  float v[8];
  load_v(v);
#pragma unroll
  for (uint32_t h = 0; h < SET_HEADS; h++) {  // heads beyond the group's last have q = 0 and are not published
    float top = p[h] > sums.max[h] || isnan(p[h]) ? p[h] : sums.max[h];
    float keep = exp2f(sums.max[h] - top), factor = exp2f(p[h] - top);
    sums.max[h] = top;
    sums.total[h] = sums.total[h] * keep + factor;
#pragma unroll
    for (uint32_t j = 0; j < 8; j++) {
      sums.o[h][j] = sums.o[h][j] * keep + factor * v[j];
    }
  }
}

// Folds (max, total, o[8]) of another part into this one.
__device__ inline void merge_part(float &max, float &total, float (&o)[8], float other_max, float other_total,
                                  const float (&other)[8]) {
  float top = other_max > max || isnan(other_max) ? other_max : max;
  float keep = max == -INFINITY ? 0.0f : exp2f(max - top);
  float factor = other_max == -INFINITY ? 0.0f : exp2f(other_max - top);
  max = top;
  total = total * keep + other_total * factor;
#pragma unroll
  for (uint32_t j = 0; j < 8; j++) {
    o[j] = o[j] * keep + other[j] * factor;
  }
}

__device__ inline void load_8(const uint8_t *from, float (&to)[8]) {
  const uint4 raw = *reinterpret_cast<const uint4 *>(from);
  to[0] = tile::low_bf16(raw.x), to[1] = tile::high_bf16(raw.x);
  to[2] = tile::low_bf16(raw.y), to[3] = tile::high_bf16(raw.y);
  to[4] = tile::low_bf16(raw.z), to[5] = tile::high_bf16(raw.z);
  to[6] = tile::low_bf16(raw.w), to[7] = tile::high_bf16(raw.w);
}

// q [group * head_dim], k [head_dim], v [head_dim] as fp32 in the activation area.
__device__ inline void stage_attention(consumer &c, const mk_instruction &in) {
  float *staged = reinterpret_cast<float *>(c.d.activation());
  const mk_operand &q = in.operands[MK_SLOT_ATTENTION_q], &k = in.operands[MK_SLOT_ATTENTION_k],
                   &v = in.operands[MK_SLOT_ATTENTION_v];
  uint32_t tile_pairs = c.d.buffer(q).tile_cols / 2, q_pairs = q.cols * tile_pairs, k_pairs = k.cols * tile_pairs;
  for (uint32_t base = c.warp * 32; base < q_pairs + 2 * k_pairs; base += MK_GPU_CONSUMER_WARPS * 32) {
    uint32_t unit = base + c.lane, at = unit;  // pairs of q, then of k, then of v: each warp fetches its own at once
    const mk_operand *operand = &q;
    if (unit >= q_pairs + k_pairs) {
      operand = &v;
      at = unit - q_pairs - k_pairs;
    } else if (unit >= q_pairs) {
      operand = &k;
      at = unit - q_pairs;
    }
    bool active = unit < q_pairs + 2 * k_pairs;
    tile::stamped_pair pair;
    wait_stamped_pair(c.d, stamped_row(c.d, *operand) + 2 * at, active, operand->buffer, pair);
    if (active) {
      staged[2 * unit] = __uint_as_float(tile::stamp_data(pair.low));
      staged[2 * unit + 1] = __uint_as_float(tile::stamp_data(pair.high));
    }
  }
  consumers_meet(c);
}

// The blocks of this split, oldest first, as the loader streams them.
__device__ inline void attend_blocks(consumer &c, const attention_shape &a, const mk_gpu_buffer &kv,
                                     const float (&q)[SET_HEADS][8], attention_sums &sums) {
  const uint32_t head_dim = a.head_dim, lanes = a.lanes, tokens = lanes == 8 ? 4 : 2, pages = head_dim == 64 ? 1 : 2;
  uint32_t group = (lanes == 8 ? c.lane / 8 : c.lane / 16), dims = (c.lane & (lanes - 1)), position = c.state.position;
  for (uint32_t span = a.split; span * kv.span_tokens < position; span += a.splits) {
    for (uint32_t first = span * kv.span_tokens; first < (span + 1) * kv.span_tokens && first < position; first += 64) {
      uint32_t k_slot = c.pages.slot(), v_slot = k_slot;
      for (uint32_t p = 0; p < pages; p++) {
        v_slot = c.pages.slot();
        wait_phase(c.d, PAGE_FULL + c.pages.slot(), c.pages.phase(), MK_ACTIVITY_PAGE_FULL, c.pages.slot());
        c.pages.next();
      }
      const uint8_t *keys = c.d.page(k_slot), *values = pages == 1 ? keys + 64 * head_dim * 2 : c.d.page(v_slot);
#pragma unroll 1
      for (uint32_t round = 0; round < 64; round += a.token_warps * tokens) {
        uint32_t t = round + a.token_warp * tokens + group;
        bool valid = t < 64 && first + t < position;
        uint32_t row = t < 64 ? t : 0;
        float k[8];
        load_8(keys + (row * lanes + dims) * 16, k);
        auto load_v = [=](float(&v)[8]) { load_8(values + (row * lanes + dims) * 16, v); };
        attend(a, q, k, load_v, valid, sums);
      }
      release_page(c, k_slot, 1);
      if (pages == 2) {
        release_page(c, v_slot, 1);
      }
    }
  }
}

// Lanes, then warps, in a fixed order; the result is published by all threads.
__device__ inline void merge_attention(consumer &c, const attention_shape &a, attention_sums &sums,
                                       const mk_operand &out) {
  const uint32_t head_dim = a.head_dim, lanes = a.lanes;
  float *parts = reinterpret_cast<float *>(c.d.activation() + ATTENTION_MERGE_AT);  // [8 warps][SET_HEADS][head_dim]
  float *scales = parts + ATTENTION_MERGE_WARPS * SET_HEADS * head_dim;             // [8 warps][SET_HEADS][max, total]
#pragma unroll
  for (uint32_t h = 0; h < SET_HEADS; h++) {
#pragma unroll
    for (uint32_t offset = 8; offset < 32; offset *= 2) {
      if (offset < lanes) {
        continue;
      }
      float other[8];
#pragma unroll
      for (uint32_t j = 0; j < 8; j++) {
        other[j] = __shfl_xor_sync(0xffffffffu, sums.o[h][j], offset);
      }
      float other_max = __shfl_xor_sync(0xffffffffu, sums.max[h], offset);
      float other_total = __shfl_xor_sync(0xffffffffu, sums.total[h], offset);
      merge_part(sums.max[h], sums.total[h], sums.o[h], other_max, other_total, other);
    }
  }
  for (uint32_t round = 0; round < 2; round++) {  // warps 8 to 15 into 0 to 7, then those into memory
    bool writes = round == 0 ? c.warp >= 8 : c.warp < 8;
    uint32_t at = c.warp % 8;
    if (writes && c.lane < lanes) {
#pragma unroll
      for (uint32_t h = 0; h < SET_HEADS; h++) {
#pragma unroll
        for (uint32_t j = 0; j < 8; j++) {
          parts[(at * SET_HEADS + h) * head_dim + c.lane * 8 + j] = sums.o[h][j];
        }
        if (c.lane == 0) {
          scales[(at * SET_HEADS + h) * 2] = sums.max[h];
          scales[(at * SET_HEADS + h) * 2 + 1] = sums.total[h];
        }
      }
    }
    consumers_meet(c);
    if (round == 0 && c.warp < 8) {
#pragma unroll
      for (uint32_t h = 0; h < SET_HEADS; h++) {
        float other[8];
#pragma unroll
        for (uint32_t j = 0; j < 8; j++) {
          other[j] = parts[(at * SET_HEADS + h) * head_dim + (c.lane & (lanes - 1)) * 8 + j];
        }
        merge_part(sums.max[h], sums.total[h], sums.o[h], scales[(at * SET_HEADS + h) * 2],
                   scales[(at * SET_HEADS + h) * 2 + 1], other);
      }
    }
    if (round == 0) {
      consumers_meet(c);
    }
  }
  uint64_t *row = stamped_row(c.d, out);
  float *kept =
      reinterpret_cast<float *>(c.d.activation());  // where q was: what a combine of this split alone would give
  if (c.warp == 0 && c.lane == 0) {
    volatile shared_words *words = c.d.words();
    words->kept[0] = c.d.generation(), words->kept[1] = out.buffer, words->kept[2] = out.row, words->kept[3] = out.col;
  }
  for (uint32_t i = c.warp * 32 + c.lane; i < a.group * head_dim; i += MK_GPU_CONSUMER_WARPS * 32) {
    uint32_t head = head_dim == 64 ? i / 64 : i / 128, dim = i - head * head_dim, set = head / SET_HEADS,
             h = head % SET_HEADS;
    float max = -INFINITY, total = 0.0f, o = 0.0f;
    for (uint32_t w = set; w < ATTENTION_MERGE_WARPS; w += a.sets) {
      max = fmaxf(max, scales[(w * SET_HEADS + h) * 2]);
    }
    for (uint32_t w = set; w < ATTENTION_MERGE_WARPS; w += a.sets) {
      float factor = scales[(w * SET_HEADS + h) * 2] == -INFINITY ? 0.0f : exp2f(scales[(w * SET_HEADS + h) * 2] - max);
      total += factor * scales[(w * SET_HEADS + h) * 2 + 1];
      o += factor * parts[(w * SET_HEADS + h) * head_dim + dim];
    }
    kept[i] = o / total;
    uint64_t *words = row + head * (head_dim + 2);
    if (!publishes(c.d)) {
      continue;
    }
    tile::store_stamped(words + dim, __float_as_uint(o), c.d.generation());
    if (dim < 2) {  // scores leave in base e
      float scale = dim == 0 ? max * 0.69314718055994531f : total;
      tile::store_stamped(words + head_dim + dim, __float_as_uint(scale), c.d.generation());
    }
  }
}

// Writes the newest token's K and V (as bf16) into its block.
__device__ inline void append_newest(consumer &c, const mk_instruction &in, const mk_gpu_buffer &kv, const float *k,
                                     const float *v) {
  uint32_t head_dim = kv.head_dim, i = c.warp * 32 + c.lane;
  if (i >= head_dim) {
    return;
  }
  const uint32_t *table = reinterpret_cast<const uint32_t *>(c.d.buffer(in.operands[MK_SLOT_ATTENTION_table]).address);
  uint32_t position = c.state.position, which = i < head_dim / 2 ? 0 : 1, pair = i - which * (head_dim / 2);
  uint64_t block = table[position / kv.block_tokens];
  uint64_t row = ((block * kv.cols + in.operands[MK_SLOT_ATTENTION_kv].col) * 2 + which) * kv.block_tokens +
                 position % kv.block_tokens;
  const float *from = which == 0 ? k : v;
  reinterpret_cast<uint32_t *>(kv.address)[row * (head_dim / 2) + pair] =
      tile::pack_bf16(from[2 * pair], from[2 * pair + 1]);
  tile::fence_global_for_copies();
}

__device__ inline void consume_attention(consumer &c, const mk_instruction &in, attention_shape &a) {
  const uint32_t head_dim = a.head_dim, lanes = a.lanes;
  const mk_gpu_buffer &kv = c.d.buffer(in.operands[MK_SLOT_ATTENTION_kv]);
  const float *staged = reinterpret_cast<const float *>(c.d.activation());
  const float *k_new = staged + a.group * head_dim, *v_new = k_new + head_dim;
  uint32_t dims = (c.lane & (lanes - 1));
  bool owner = a.newest % a.splits == a.split;
  float q[SET_HEADS][8];
  attention_sums sums;
#pragma unroll
  for (uint32_t h = 0; h < SET_HEADS; h++) {
#pragma unroll
    for (uint32_t j = 0; j < 8; j++) {
      q[h][j] = a.set * SET_HEADS + h < a.group ? staged[(a.set * SET_HEADS + h) * head_dim + dims * 8 + j] : 0.0f;
      sums.o[h][j] = 0.0f;
    }
    sums.max[h] = -INFINITY;
    sums.total[h] = 0.0f;
  }
  attend_blocks(c, a, kv, q, sums);
  if (owner && a.token_warp == 0) {
    auto load_rounded = [=](const float *from, float(&to)[8]) {
#pragma unroll
      for (uint32_t j = 0; j < 8; j++) {
        to[j] = __bfloat162float(__float2bfloat16_rn(from[dims * 8 + j]));
      }
    };
    float k[8];
    load_rounded(k_new, k);
    auto load_v = [=](float(&v)[8]) { load_rounded(v_new, v); };
    attend(a, q, k, load_v, c.lane < lanes, sums);
  }
  merge_attention(c, a, sums, in.operands[MK_SLOT_ATTENTION_out]);
  if (owner) {
    append_newest(c, in, kv, k_new, v_new);
  }
  consumers_meet(c);  // before anybody stages something else
}

__device__ inline void consume_ATTENTION(consumer &c, const mk_instruction &in) {
  const mk_operand &kv_operand = in.operands[MK_SLOT_ATTENTION_kv];
  const mk_gpu_buffer &kv = c.d.buffer(kv_operand);
  consumers_meet(c);
  stage_attention(c, in);
  attention_shape a;
  a.head_dim = kv.head_dim;
  a.lanes = kv.head_dim / 8;
  a.group = in.params[MK_PARAM_ATTENTION_group];
  a.splits = in.params[MK_PARAM_ATTENTION_splits];
  a.split = kv_operand.row;
  a.newest = c.state.position / kv.span_tokens;
  if (a.split > a.newest) {
    consumers_meet(c);
    return;
  }
  a.sets = 1;
  while (a.sets * SET_HEADS < a.group) {
    a.sets *= 2;
  }
  a.set = c.warp % a.sets;
  a.token_warps = MK_GPU_CONSUMER_WARPS / a.sets;
  a.token_warp = c.warp / a.sets;
  a.scale = __uint_as_float(in.params[MK_PARAM_ATTENTION_scale]) * 1.4426950408889634f;
  consume_attention(c, in, a);
}

}  // namespace mk
