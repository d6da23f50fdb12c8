// ATTENTION on the device: one split of the decode attention of one KV head; attention.c.
//
// Equation: x_t = q k_t, q scaled to base 2; out = (sum_t p_t v_t, m, sum_t p_t), p_t = 2^(x_t - m), over the tokens of
// each span of the split. Tiles: KV blocks of 64 tokens through the page ring (head_dim 64: K and V in one page; 128: a
// page each). The columns of a product are four query heads (a set). A warp takes a part of 32 tokens
// (attention_part.cuh) for one set and 64 dims of the output. A round is one part for each warp, and ends with a merge.
// Waits: q, k, v (every split); the loader: the step state. Signals: nothing of its own; its readers look at the
// stamps.
//
// The newest token's K and V come in stamped words. They are put into the token's page, and at the end, after all
// copies of this instruction, they are appended to its block in global memory and fenced for the next epoch's copies.
// Where its span is the only one in use, the work of the COMBINEs of these heads is done here, too, if they are fused,
// before K and V are appended.
#pragma once
#include "instructions/attention_part.cuh"
#include "instructions/combine.cuh"

namespace mk {

// All that this instruction stages lies in the activation area; nothing is staged before all warps have met at its
// start.
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
static_assert(ATTENTION_Q_AT + 16 / SET_HEADS * 8 * Q_SET_STEP_BYTES <= ATTENTION_PARTS_AT, "queries have room");

// Which part of the work is this warp's. A head has `halves` times 64 dims; there are 1 << set_bits sets of query
// heads. All else follows from these three numbers, since registers are scarce.
struct attention_shape {
  uint32_t warp, halves, set_bits;

  __device__ uint32_t head_dim() const { return halves * 64; }
  __device__ uint32_t head_bits() const { return 5 + halves; }                  // head_dim is 1 << head_bits
  __device__ uint32_t stride_bits() const { return set_bits + halves - 1; }     // warps from one rank to the next
  __device__ uint32_t set() const { return warp & ((1u << set_bits) - 1); }     // this warp's heads
  __device__ uint32_t half() const { return warp >> set_bits & (halves - 1); }  // and its output dims
  // A rank, here, is a place among the warps of the same set and half, which take parts of different tokens.
  __device__ uint32_t ranks() const { return MK_GPU_CONSUMER_WARPS >> stride_bits(); }
  __device__ uint32_t rank() const { return warp >> stride_bits(); }
};

// Blocks of this split that hold tokens up to the position.
__device__ inline uint32_t blocks_of_split(const mk_instruction_word &in, const mk_gpu_buffer &kv, uint32_t position) {
  uint32_t blocks = position / BLOCK_TOKENS + 1, per_span = kv.span_tokens / BLOCK_TOKENS;
  uint32_t per_round = param(in, MK_PARAM_ATTENTION_splits) * per_span;
  uint32_t rounds = blocks < per_round ? 0 : blocks / per_round;  // a division is 20 instructions
  int32_t left = static_cast<int32_t>(blocks - rounds * per_round - in.parts[MK_PART_ATTENTION_kv].row * per_span);
  return rounds * per_span + min(max(left, 0), static_cast<int32_t>(per_span));
}

// Where block n of a split begins, as a position.
__device__ inline uint32_t block_start(const mk_instruction_word &in, const mk_gpu_buffer &kv, uint32_t n) {
  uint32_t per_span = kv.span_tokens / BLOCK_TOKENS, start = in.parts[MK_PART_ATTENTION_kv].row * kv.span_tokens;
  for (; n >= per_span; n -= per_span) {  // seldom, and a division takes longer
    start += param(in, MK_PARAM_ATTENTION_splits) * kv.span_tokens;
  }
  return start + n * 64;
}

// Writes this warp's sums to shared memory.
__device__ inline void put_part(const consumer &c, const part_sums &sums) {
  uint32_t lane = tile::anew(c.lane), g = tile::lane_row(lane), t = tile::lane_of_quad(lane);  // registers are short
  if (t >= SET_HEADS / 2) {
    return;
  }
  float *part =
      tile::view<float>(c.d.activation() + ATTENTION_PARTS_AT + c.warp * PART_BYTES) + 2 * t * PART_STRIDE + g;
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    part[i * 16] = sums.o[i].value[0];
    part[i * 16 + PART_STRIDE] = sums.o[i].value[1];
    part[i * 16 + 8] = sums.o[i].value[2];
    part[i * 16 + 8 + PART_STRIDE] = sums.o[i].value[3];
  }
  if (g == 0) {
    tile::view<float4>(c.d.activation() + ATTENTION_SCALES_AT)[c.warp * (SET_HEADS / 2) + t] =
        make_float4(sums.top[0], sums.total.value[0], sums.top[1], sums.total.value[1]);
  }
}

// Where a warp finds its part of a round. This is known before the queries come, and worked out by then.
struct part_place {
  ring_cursor<MK_GPU_RING_PAGES> keys, values;  // the pages of its block
  int32_t tokens;  // from the part's first token up to the position, later parts' included; 0 or less: none
  bool paged;      // its block has tokens
};

// The two parts of a block are those of two ranks. A warp waits for the pages of its own blocks alone: it looks at
// every fourth or eighth page. As a wait sees nothing but the parity of how often a ring slot has been filled, the fill
// before the one that is waited for must have arrived for sure. It has: before page n the warp has seen page
// n - MOST_STRIDE, which the loader issued only when all pages up to n - MOST_STRIDE - MK_GPU_KV_PAGES_UNDER_WAY had
// arrived. Page n - MK_GPU_RING_PAGES, which was in the ring slot of page n before, is one of these. From one
// instruction to the next this is no concern, since all warps meet in between.
constexpr uint32_t RANKS = 64 / PART_TOKENS;                     // ranks that share a block
constexpr uint32_t MOST_STRIDE = MK_GPU_CONSUMER_WARPS / RANKS;  // pages from one look to the next
static_assert(MK_GPU_KV_PAGES_UNDER_WAY + MOST_STRIDE <= MK_GPU_RING_PAGES, "a warp sees every eighth page");

// The pages of block `number` of a round.
__device__ inline void find_block(const consumer &c, const attention_shape &a, uint32_t number, part_place &to) {
  to.keys = c.pages;
  to.keys.advance(number * a.halves);
  to.values = to.keys;
  if (a.halves == 2) {
    to.values.next();
  }
}
__device__ inline void wait_block(const consumer &c, const attention_shape &a, const part_place &of) {
  wait_phase(c.d, PAGE_FULL + of.keys.slot(), of.keys.phase(), MK_ACTIVITY_PAGE_FULL, of.keys.slot());
  if (a.halves == 2) {
    wait_phase(c.d, PAGE_FULL + of.values.slot(), of.values.phase(), MK_ACTIVITY_PAGE_FULL, of.values.slot());
  }
}
__device__ inline uint8_t *keys_of(const consumer &c, const part_place &place) { return c.d.page(place.keys.slot()); }
__device__ inline uint8_t *values_of(const consumer &c, bool codes, const attention_shape &a, const part_place &place) {
  return c.d.page(place.values.slot()) + values_at(codes, a.halves);
}

// The part of this warp in the round that begins with block `first` of the split.
__device__ inline part_place find_part(const consumer &c, const mk_instruction_word &in, const attention_shape &a,
                                       uint32_t first) {
  part_place place = {c.pages, c.pages, 0, false};
  uint32_t number = a.rank() / RANKS,
           start = block_start(in, c.d.buffer(in.parts[MK_PART_ATTENTION_kv]), first + number);
  if (start <= position_of(c)) {
    place.paged = true;
    place.tokens = static_cast<int32_t>(position_of(c) + 1 - start - a.rank() % RANKS * PART_TOKENS);
    find_block(c, a, number, place);
  }
  return place;
}

__device__ inline void release_block(const consumer &c, const attention_shape &a, const part_place &of) {
  release_page(c, of.keys.slot(), a.ranks() / RANKS);
  if (a.halves == 2) {
    release_page(c, of.values.slot(), a.ranks() / RANKS);
  }
}

// Computes this warp's part of a round, and writes it to shared memory.
__device__ inline void attend_round(const consumer &c, const mk_instruction_word &in, const attention_shape &a,
                                    const part_place &place) {
  if (!place.paged) {
    return;
  }
  wait_block(c, a, place);
  if (place.tokens > 0 && (c.d.params.left_out & MK_GPU_PART_WORK) == 0) {
    const bool codes = keeps_codes(c.d.buffer(in.parts[MK_PART_ATTENTION_kv]));
    uint32_t offset = part_offset(codes, a.rank() % RANKS, a.halves), tokens = static_cast<uint32_t>(place.tokens);
    uint8_t *keys = keys_of(c, place) + offset, *values = values_of(c, codes, a, place) + offset;
    const uint32_t scales = scales_after(a.rank() % RANKS, a.halves);  // of codes
    if (tokens <= PART_TOKENS && c.d.words()->newest_put == 0) {
      put_newest(tile::view<uint32_t>(c.d.activation() + ATTENTION_NEWEST_AT), a.halves, keys, values, codes, scales,
                 tokens - 1, c.lane);
    }
    const uint2 *q =
        tile::view<uint2>(c.d.activation() + ATTENTION_Q_AT) + a.set() * (a.halves * 128) + tile::anew(c.lane);
    part_sums sums;
    const uint32_t limits[2] = {tokens, tokens};
    auto fragment = [&](uint32_t step) { return q[step * 32]; };
    if (codes) {
      attend_part<true, true>(keys, values + a.half() * 2048, fragment, c.lane, a.halves, limits, tokens, sums,
                              {scales, scales - a.half() * 2048});
    } else {
      attend_part<true>(keys, values + a.half() * 2048, fragment, c.lane, a.halves, limits, tokens, sums);
    }
    release_block(c, a, place);
    put_part(c, sums);
  } else {
    release_block(c, a, place);
  }
}

// Stages q times scale as fragments, and k and v of the newest token as bf16. Where the newest token's page belongs to
// the first round, its k and v go into that page, too. What follows from the instruction alone is worked out before the
// values are waited for.
__device__ inline void stage_attention(consumer &c, const mk_instruction_word &in, const attention_shape &a) {
  const mk_operand &q = in.parts[MK_PART_ATTENTION_q], &k = in.parts[MK_PART_ATTENTION_k],
                   &v = in.parts[MK_PART_ATTENTION_v];
  uint32_t pairs = a.head_dim() / 2, q_pairs = (SET_HEADS * pairs) << a.set_bits;
  float scale = __uint_as_float(param(in, MK_PARAM_ATTENTION_scale)) * BASE_E_TO_2;
  uint32_t *newest = tile::view<uint32_t>(c.d.activation() + ATTENTION_NEWEST_AT);
  uint32_t *fragments = tile::view<uint32_t>(c.d.activation() + ATTENTION_Q_AT);
#pragma unroll 1
  for (uint32_t base = c.warp * 32; base < q_pairs + 2 * pairs; base += MK_GPU_CONSUMER_WARPS * 32) {
    uint32_t unit = base + c.lane, at = unit;  // pairs of q, then of k, then of v: each warp fetches its own at once
    const mk_operand *operand = base < q_pairs ? &q : base < q_pairs + pairs ? &k : &v;
    bool is_q = base < q_pairs, is_v = base >= q_pairs + pairs;
    at -= is_q ? 0 : is_v ? q_pairs + pairs : q_pairs;
    uint32_t head = 2 * at >> a.head_bits(), dim = 2 * at & (a.head_dim() - 1), column = head % SET_HEADS;
    uint32_t step = head / SET_HEADS * (a.halves * 4) + dim / 16, t = dim % 8 / 2, b = dim % 16 / 8;
    uint32_t *to = is_q ? fragments + (step * 32 + column * 4 + t) * 2 + b : newest + (unit - q_pairs);
    // The newest token's block, counted in the split's blocks and within the first round.
    uint32_t past =
        position_of(c) - in.parts[MK_PART_ATTENTION_kv].row * c.d.buffer(in.parts[MK_PART_ATTENTION_kv]).span_tokens;
    bool direct =
        !is_q && past < c.d.buffer(in.parts[MK_PART_ATTENTION_kv]).span_tokens && past / 64 < a.ranks() / RANKS;
    part_place block = {c.pages, c.pages, 0, false};
    if (direct) {
      find_block(c, a, past / 64, block);
      wait_block(c, a, block);
    }
    if (!is_q && keeps_codes(c.d.buffer(in.parts[MK_PART_ATTENTION_kv]))) {
      const new_codes codes = wait_codes(c.d, in, operand->buffer, stamped_row(c.d, *operand), a.head_dim(), at, !is_v);
      keep_codes(newest, is_v ? 1 : 0, at, codes);
      if (direct) {
        uint8_t *half = is_v ? values_of(c, true, a, block) : keys_of(c, block);
        put_codes(half, half + a.halves * 4096, a.head_dim(), is_v ? 1 : 0, past % 64, at * 2, codes);
      }
      continue;
    }
    newest_place page(a.halves, keys_of(c, block), values_of(c, false, a, block), past % 64, at);
    float low, high;
    if (norms_heads(in)) {
      bool here = is_q ? at < param(in, MK_PARAM_ATTENTION_group) * pairs : at < pairs;
      const uint64_t *heads = stamped_row(c.d, *operand);
      float2 two = wait_normed_pair(c.d, in, operand->buffer,
                                    heads + (at >> (a.head_bits() - 1)) * (a.head_dim() / MK_TILE * MK_SQUARED_TILE),
                                    a.head_dim(), at & (pairs - 1), !is_v, here);
      low = two.x, high = two.y;
    } else {
      tile::stamped_pair pair;
      wait_pair(c.d, stamped_row(c.d, *operand) + 2 * at,
                is_q ? at < param(in, MK_PARAM_ATTENTION_group) * pairs : at < pairs, operand->buffer, pair);
      low = __uint_as_float(tile::stamp_data(pair.low)), high = __uint_as_float(tile::stamp_data(pair.high));
    }
    float factor = is_q ? scale : 1.0f;
    uint32_t rounded = tile::pack_bf16(__fmul_rn(low, factor), __fmul_rn(high, factor));
    if (is_q || at < pairs) {
      *to = rounded;
    }
    if (direct && at < pairs) {
      if (is_v) {
        page.put_value(rounded);
      } else {
        *page.keys = rounded;
      }
    }
  }
}

// Publishes the sums of a unit as a part of the context: `dim` is its first dim.
__device__ inline void put_unit(const consumer &c, uint32_t head_dim, uint64_t *to, uint32_t dim,
                                const merged_unit &sum) {
  tile::store_stamped_pair(to, __float_as_uint(sum.low), __float_as_uint(sum.high), c.d.generation());
  if (dim == 0) {
    tile::store_stamped_pair(to + head_dim, __float_as_uint(sum.top), __float_as_uint(sum.total), c.d.generation());
  }
}

// Publishes the sums of a unit, of span number `span` of the split.
__device__ inline void publish_span(const consumer &c, const attention_shape &a, uint32_t span, uint32_t unit,
                                    const merged_unit &sum) {
  const mk_instruction_word &in = instruction_at_hand(c);  // registers are short
  const mk_operand &parts_out = in.parts[MK_PART_ATTENTION_out];
  uint32_t head = 2 * unit >> a.head_bits(), dim = 2 * unit & (a.head_dim() - 1);
  if (c.d.words()->combines != 0) {
    uint64_t *out = tile::global<uint64_t>(combined_address(c.d.buffer(parts_out)));
    uint32_t heads = in.parts[MK_PART_ATTENTION_kv].col * param(in, MK_PARAM_ATTENTION_group);
    publish_combined(c, all_readers(c.d), out + (heads * a.head_dim() >> 1), unit, sum);
  }
  if (publishes(c.d)) {
    uint32_t part = head * c.d.buffer(parts_out).spans + span;
    uint64_t *words = stamped_row(c.d, parts_out) + (part * (a.head_dim() + 2) + dim);
    if constexpr (MK_GPU_RANKS) {
      to_readers(readers_of(parts_out), words, [=](uint64_t *copy) { put_unit(c, a.head_dim(), copy, dim, sum); });
    } else {
      put_unit(c, a.head_dim(), words, dim, sum);
    }
  }
}

// All warps meet. Then the parts of a round, which begins with block `first` of the split, are added up to sums of
// spans, and these published; a span that goes on in the next round is kept until then. Where the work of a COMBINE is
// done here, the sum becomes the COMBINE's output, too. Units of this work, of the first span of the round and of the
// second, are dealt from the last warp on: in short contexts the last warps have no part to compute, so they have all
// else at hand when the parts are ready.
static_assert(MK_GPU_CONSUMER_WARPS <= 2 * SPAN_PARTS, "a round has two spans at most");
__device__ inline void merge_round(const consumer &c, const attention_shape &a, uint32_t first) {
  const mk_instruction_word &in = instruction_at_hand(c);
  uint32_t units = param(in, MK_PARAM_ATTENTION_group) * a.head_dim() / 2, before = first * RANKS;
  uint32_t here = min(c.d.words()->kv_parts - before, a.ranks());
  bool meets = true;
#pragma unroll 1
  for (uint32_t start = (MK_GPU_CONSUMER_WARPS - 1 - c.warp) * 32;; start += MK_GPU_CONSUMER_WARPS * 32) {
    const uint32_t from = tile::uniform(start < units ? 0u : SPAN_PARTS + 0u);
    uint32_t unit = start - (from != 0 ? units : 0) + tile::anew(c.lane);
    uint32_t head = 2 * unit >> a.head_bits(), dim = 2 * unit & (a.head_dim() - 1);
    uint32_t rank = (dim / 64 << a.set_bits) + head / SET_HEADS + (from << a.stride_bits()), column = head % SET_HEADS;
    uint32_t scales = tile::anew(ATTENTION_SCALES_AT + (rank * SET_HEADS + column) * 8);
    uint32_t parts = tile::anew(ATTENTION_PARTS_AT + rank * PART_BYTES + (column * PART_STRIDE + dim % 64) * 4);
    if (meets) {
      consumers_meet(c);
      meets = false;
    }
    if (from >= here || start >= 2 * units) {
      break;
    }
    merged_unit sum;
    if (before % SPAN_PARTS != 0) {
      sum = get_unit(scratch_of(c) + unit * 4);
    }
    const uint32_t end = min(here, from + SPAN_PARTS);
#pragma unroll 1
    for (uint32_t r = from; r < end; r += BATCH_PARTS) {
      float2 scale[BATCH_PARTS], o[BATCH_PARTS];
#pragma unroll
      for (uint32_t j = 0; j < BATCH_PARTS; j++) {
        scale[j] = make_float2(NO_TOKENS, 0.0f);
        o[j] = make_float2(0.0f, 0.0f);
        if (r + j < end) {
          scale[j] = tile::load<float2>(c.d.activation() + scales);
          o[j] = tile::load<float2>(c.d.activation() + parts);
        }
        scales += SET_HEADS * 8 << a.stride_bits();
        parts += PART_BYTES << a.stride_bits();
      }
      add_parts(sum, scale, o);
    }
    if ((before + end) % SPAN_PARTS == 0 || before + end == c.d.words()->kv_parts) {
      publish_span(c, a, (before + from) / SPAN_PARTS, unit, sum);
    } else {
      keep_unit(scratch_of(c) + unit * 4, sum);
    }
  }
}

// Writes the newest token's K and V into its block, by the first warps: the last ones have more to publish.
__device__ inline void append_newest(consumer &c, const mk_instruction_word &in, const mk_gpu_buffer &kv) {
  uint32_t head_dim = kv.head_dim, dim = c.warp * 32 + c.lane;
  if (dim >= head_dim) {
    return;
  }
  const uint16_t *newest = tile::view<uint16_t>(c.d.activation() + ATTENTION_NEWEST_AT);
  const uint32_t *table = tile::global<const uint32_t>(whole_buffer(in, MK_WHOLE_ATTENTION_table).address);
  uint32_t token = position_of(c) % BLOCK_TOKENS;
  uint64_t block = table[position_of(c) / BLOCK_TOKENS];
  if (!index_fits(c.d, MK_GPU_FAULT_BLOCK, static_cast<uint32_t>(block), kv.blocks)) {
    return;
  }
  if (keeps_codes(kv)) {
    uint8_t *pair = code_pair(kv, block, in.parts[MK_PART_ATTENTION_kv].col);
    for (uint32_t which = 0; which < 2 && dim % 2 == 0; which++) {
      put_codes(kv, pair, which, token, dim, kept_codes(newest, which, dim / 2));
    }
    tile::fence_global_for_copies();
    return;
  }
  uint16_t *pair = tile::global<uint16_t>(kv.address) +
                   (block * kv.cols + in.parts[MK_PART_ATTENTION_kv].col) * 2 * BLOCK_TOKENS * head_dim;
  for (uint32_t which = 0; which < 2; which++) {
    pair[mk_block_offset(BLOCK_TOKENS, head_dim, which, token, dim)] = newest[which * head_dim + dim];
  }
  tile::fence_global_for_copies();
}

// Whether this split, which has tokens, has the newest one.
__device__ inline bool owns_newest(const consumer &c, const mk_instruction_word &in, const mk_gpu_buffer &kv) {
  uint32_t round = param(in, MK_PARAM_ATTENTION_splits) * kv.span_tokens;
  uint32_t after = position_of(c) - in.parts[MK_PART_ATTENTION_kv].row * kv.span_tokens;
  return (after < round ? after : after % round) < kv.span_tokens;
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
    bool alone = position_of(c) < kv.span_tokens;
    bool fused = combined_address(c.d.buffer(in.parts[MK_PART_ATTENTION_out])) != 0;
    c.d.words()->combines = alone && fused ? 1 : 0;
  }
  if (c.warp == MK_GPU_CONSUMER_WARPS - 2 && c.lane == 0) {
    uint32_t blocks = blocks_of_split(in, kv, position_of(c));
    bool owns = owns_newest(c, in, kv);
    c.d.words()->owns_newest = owns ? 1 : 0;
    c.d.words()->newest_put =
        position_of(c) - kv_operand.row * kv.span_tokens < kv.span_tokens && blocks <= a.ranks() / RANKS ? 1 : 0;
    c.d.words()->kv_blocks = blocks;
    c.d.words()->kv_parts = blocks * RANKS - (owns && position_of(c) % 64 < PART_TOKENS ? 1 : 0);
  }
  part_place place = find_part(c, in, a, 0);
  consumers_meet(c);  // until here a slower warp may have read the last instruction's input where values are staged
  stage_attention(c, in, a);
  consumers_meet_with_values(c);
  if (kv_operand.row * kv.span_tokens <= position_of(c)) {
    uint32_t first = 0;
#pragma unroll 1
    for (;;) {
      attend_round(c, instruction_at_hand(c), a, place);
      merge_round(c, a, first);
      uint32_t blocks = c.d.words()->kv_blocks, done = min(a.ranks() / RANKS, blocks - first);
      advance_pages(c, done * a.halves);
      first += done;
      if (first == blocks) {
        break;
      }
      place = find_part(c, instruction_at_hand(c), a, first);
      consumers_meet(c);  // all have read this round's parts, so the next round's may take their places
    }
    if (c.d.words()->owns_newest != 0) {
      const mk_instruction_word &again = instruction_at_hand(c);  // registers are short
      append_newest(c, again, c.d.buffer(again.parts[MK_PART_ATTENTION_kv]));
    }
  }
  consumers_meet(c);  // before anybody stages something else
}

}  // namespace mk
