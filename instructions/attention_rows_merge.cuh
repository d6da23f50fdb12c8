// What a unit of several rows per step works on (attention_rows.cuh), and how its parts become sums: the parts of a
// round are merged over the spans of one row, these over a span of several, and with its last round that is published.
#pragma once
#include "instructions/attention_part.cuh"
#include "instructions/combine.cuh"
#include "vm/gpu/rows.cuh"
#include "vm/gpu/rows_consumer.cuh"

namespace mk {

enum {
  PAGE_DIMS = 64,         // of a head: so many more are one page of a block more
  ROUND_PAGES = 8,        // of which two warps have one, or of 128 dims four warps two
  Q_BYTES = 8 * 256,      // of a set: [step] fragments
  PART_FLOATS = 256,      // of a warp, that are merged at a time: 8 columns of 32 dims or 4 of 64
  CLASSES = GROUP_SPANS,  // spans of one row in one of several
  MERGE_THREADS = 256,    // each of which adds the parts of a span
  MERGE_WARPS = MERGE_THREADS / 32,
  JOINING_PARTS = 2,  // of 64 dims, of the last round, that the one before it can take
  ROWS_SCALES_AT =
      ROWS_ATTENTION_AT + Q_BYTES,  // [warp][column](top, sum of p); of parts that join columns 4 to 7 of a warp
  ROWS_JOINING_AT = ROWS_SCALES_AT + MK_GPU_CONSUMER_WARPS * 8 * 8,
  ROWS_KEPT_AT = ROWS_JOINING_AT + JOINING_PARTS * PART_FLOATS * 4,  // [thread] a merged_unit of the rounds before
  ROWS_NEWEST_AT = ROWS_KEPT_AT + MERGE_THREADS * 16,                // K, then V of a slot's only new token
};

// A warp that waits for a page must know that the slot's previous page, which came twelve pages earlier, has arrived: a
// barrier tells phases apart by their parity alone, and the wait would take that page's phase for this one's. When the
// instruction begins, all pages from before it have arrived (wait_for_storers); when warps have met to merge a round,
// all pages of that round have.
static_assert(ROUND_PAGES <= MK_GPU_RING_PAGES, "a round has slots of its own");
static_assert(CLASSES * 4 * 8 * 64 == MK_GPU_KEPT_SET_FLOATS, "what launch.h says of it");
static_assert(ROWS_NEWEST_AT + 2 * 128 * 2 <= ROWS_ATTENTION_AT + ROWS_ATTENTION_BYTES,
              "what attention keeps in shared memory has room");
static_assert(MK_GPU_CONSUMER_WARPS * PART_FLOATS * 4 <= ROWS_ATTENTION_AT - ROWS_RESULT_AT,
              "parts have room before the queries");

// A unit's work for one slot. What every piece needs is in registers, the rest is looked up.
struct slot_view {
  const mk_instruction_word &in;
  const volatile rows_state &state;
  uint32_t first, end;  // of the slot's rows in this step: the position of the first one, and the one after the last
  uint32_t packed;      // slot, pages of a block, the split that this unit does of the slot

  __device__ static uint32_t pack(uint32_t slot, uint32_t split, uint32_t head_dim) {
    return slot | head_dim / PAGE_DIMS << 4 | split << 6;
  }
  __device__ uint32_t slot() const { return packed % MK_MAX_ROWS; }
  __device__ uint32_t halves() const { return packed >> 4 & 3; }  // of the output's dims, and pages of a block
  __device__ uint32_t split() const { return packed >> 6; }
  __device__ uint32_t head_dim() const { return halves() * PAGE_DIMS; }
  __device__ uint32_t line(uint32_t row) const { return state.order[state.slot_start[slot()] + row]; }
  __device__ const mk_gpu_buffer &kv() const { return device::slot_of(in).buffers[MK_PART_ATTENTION_kv]; }
  __device__ uint32_t steps() const { return head_dim() / 16; }
  __device__ uint32_t span_tokens() const { return kv().span_tokens; }
  __device__ uint32_t group() const { return param(in, MK_PARAM_ATTENTION_group); }
  __device__ uint32_t head_bits() const {
    return 32 - __clz(static_cast<int>(group() - 1));
  }  // padded to a power of two
  __device__ uint32_t sets() const { return (((end - first) << head_bits()) + 7) / 8; }
  // Whether a set has four columns at most.
  __device__ bool few(uint32_t set) const { return ((end - first) << head_bits()) - set * 8 <= 4; }
  __device__ uint32_t splits() const { return param(in, MK_PARAM_ATTENTION_splits); }
  __device__ uint32_t first_span() const { return split() * span_tokens(); }
  // Whether the slot's only new token is of the unit's first span: then it is fetched once, and put into its page
  // later.
  __device__ bool single() const { return end - first == 1 && first - first_span() < span_tokens(); }
  __device__ uint32_t round_tokens() const { return min(ROUND_PAGES * BLOCK_TOKENS >> (halves() - 1), span_tokens()); }
  // A warp's part of a round, and its dims.
  __device__ uint32_t rank(uint32_t warp) const { return warp >> (halves() - 1); }
  __device__ uint32_t half(uint32_t warp) const { return warp & (halves() - 1); }
};

struct column {
  bool used;
  uint32_t line, head, position;
};

__device__ inline column column_of(const slot_view &v, uint32_t set, uint32_t i) {
  uint32_t at = set * 8 + i, row = at >> v.head_bits(), head = at & ((1u << v.head_bits()) - 1);
  bool used = row < v.end - v.first && head < v.group();
  return {used, used ? v.line(row) : 0, head, v.first + row};
}

// The first position that a column does not see.
__device__ inline uint32_t limit_of(const slot_view &v, uint32_t set, uint32_t i) {
  uint32_t at = set * 8 + i, row = at >> v.head_bits();
  return row < v.end - v.first && (at & ((1u << v.head_bits()) - 1)) < v.group() ? v.first + row + 1 : 0;
}

// How a set's columns are merged: by 64 dims few of them, by 32 dims many. A column's dims are turned, so that lanes
// meet different banks.
struct merge_shape {
  uint32_t dims;  // at a time, by dims / 2 lanes

  __device__ uint32_t place(uint32_t warp, uint32_t column, uint32_t dim) const {
    return warp * PART_FLOATS + column * dims + (dim ^ (column / 2 * 8) ^ (warp / 4 % 2 * 16));
  }
};

// Two neighbouring output values of a column, of a span: of `count` parts, which lie `stride` warps apart. tokens: of
// the longest span of a lane.
__device__ inline merged_unit merge_span(const merge_shape &shape, const float2 *scales, const float *parts,
                                         uint32_t first, uint32_t stride, uint32_t tokens, uint32_t count,
                                         uint32_t column, uint32_t dim) {
  merged_unit sum;
#pragma unroll 1
  for (uint32_t r = 0; r * PART_TOKENS < tokens; r += BATCH_PARTS) {
    float2 scale[BATCH_PARTS], value[BATCH_PARTS];
#pragma unroll
    for (uint32_t i = 0; i < BATCH_PARTS; i++) {
      uint32_t warp = first + (r + i) * stride;
      scale[i] = make_float2(NO_TOKENS, 0.0f), value[i] = make_float2(0.0f, 0.0f);
      if (r + i < count) {
        scale[i] = scales[warp * 8 + column];
        value[i] = tile::load<float2>(parts + shape.place(warp, column, dim));
      }
    }
    add_parts(sum, scale, value);
  }
  return sum;
}

// Where two neighbouring output values of a column go.
struct destination {
  uint64_t *words;     // of the parts; nullptr: nowhere
  uint32_t *combined;  // nullptr: COMBINE does that
};

// Where values `dim` and dim + 1 of the span from token `start` on go. Found out before the sums are there, since this
// takes as long as to merge them.
__device__ inline destination destination_of(const consumer &c, const slot_view &v, const column &of, uint32_t start,
                                             uint32_t dim) {
  const mk_operand &out = v.in.parts[MK_PART_ATTENTION_out];
  const mk_gpu_buffer &b = device::slot_of(v.in).buffers[MK_PART_ATTENTION_out];
  destination to = {nullptr, nullptr};
  if (!of.used || start > of.position || !publishes(c.d)) {
    return to;
  }
  if (of.position < v.span_tokens()) {
    uint32_t head = v.in.parts[MK_PART_ATTENTION_kv].col * v.group() + of.head;
    to.combined =
        combined_value(b, c.d.generation()).word(of.line, (head * v.head_dim() + dim) / 2, has_few_lines(c.d));
  }
  uint32_t turn = v.splits() * v.span_tokens(), round = start < turn ? 0 : start / turn;
  to.words = stamped_row(c.d, out) + static_cast<uint64_t>(of.line) * b.row_words +
             (of.head * b.spans + round) * (v.head_dim() + 2) + dim;
  return to;
}

// The same as publish_column with several ranks, all of which read what COMBINE would write (vm/gpu/refuse.c).
__device__ inline void publish_to_ranks(const consumer &c, const slot_view &v, const destination &to, uint64_t *totals,
                                        const merged_unit &sum) {
  uint32_t readers = readers_of(v.in.parts[MK_PART_ATTENTION_out]);
  if (to.words == nullptr) {
    return;
  }
  if (to.combined != nullptr) {
    float scale = reciprocal_of(sum.total);
    to_readers(all_readers(c.d), to.combined,
               [=](uint32_t *copy) { tile::store_relaxed(copy, tile::pack_bf16(sum.low * scale, sum.high * scale)); });
  }
  to_readers(readers, to.words, [&](uint64_t *copy) {
    tile::store_stamped_pair(copy, __float_as_uint(sum.low), __float_as_uint(sum.high), c.d.generation());
  });
  if (totals != nullptr) {
    to_readers(readers, totals, [&](uint64_t *copy) {
      tile::store_stamped_pair(copy, __float_as_uint(sum.top), __float_as_uint(sum.total), c.d.generation());
    });
  }
}

// totals: where the column's top and total go, beside its values; nullptr: another lane has them.
__device__ inline void publish_column(const consumer &c, const destination &to, uint64_t *totals,
                                      const merged_unit &sum) {
  if (to.words == nullptr) {
    return;
  }
  if (to.combined != nullptr) {
    float scale = reciprocal_of(sum.total);
    tile::store_relaxed(to.combined, tile::pack_bf16(sum.low * scale, sum.high * scale));
  }
  tile::store_stamped_pair(to.words, __float_as_uint(sum.low), __float_as_uint(sum.high), c.d.generation());
  if (totals != nullptr) {
    tile::store_stamped_pair(totals, __float_as_uint(sum.top), __float_as_uint(sum.total), c.d.generation());
  }
}

enum round_fact { ROUND_LAST = 1, ROUND_SHORT = 2, ROUND_JOINED = 4, ROUND_FEW = 8, ROUND_WHOLE = 16 };

// A round's work: the tokens from position `start` on, of one set.
struct round_view {
  uint32_t start, set;
  uint32_t facts;  // round_fact: looked up before q is there

  // The round is the last one of its span that begins before the end.
  __device__ bool is_last() const { return (facts & ROUND_LAST) != 0; }
  // Of the only set of a unit: what waits has room in shared memory.
  __device__ bool is_short() const { return (facts & ROUND_SHORT) != 0; }
  // Whether the round after this one is the last one and so small that its parts are merged with those of this one. It
  // is not where the step has more than one token of the slot: some of these would have to be put into the pages of
  // both rounds.
  __device__ bool is_joined() const { return (facts & ROUND_JOINED) != 0; }
  __device__ bool is_few() const { return (facts & ROUND_FEW) != 0; }  // columns
  // Pages come by fours, and for 64 dims by pieces; the pages after the last token are empty.
  __device__ uint32_t pages() const { return (facts & ROUND_WHOLE) != 0 ? ROUND_PAGES : ROUND_PAGES / 2 + 0; }
  __device__ uint32_t next(const slot_view &v) const {
    uint32_t after = start + v.round_tokens(), span = v.span_tokens();
    return after + ((after & (span - 1)) == 0 ? (v.splits() - 1) * span : 0);
  }
  __device__ uint32_t end(const slot_view &v) const { return min(v.end, start + v.round_tokens()); }
  __device__ uint32_t span_start(const slot_view &v) const { return start & ~(v.span_tokens() - 1); }

  __device__ void look_up(const slot_view &v) {
    uint32_t after = start + v.round_tokens();
    bool few = v.few(set), fits = v.sets() == 1 && (few || v.halves() == 1);
    bool ends = (after & (v.span_tokens() - 1)) == 0;  // the span
    bool joined = fits && few && v.single() && !ends && v.end > after &&
                  v.end - after <= JOINING_PARTS * PART_TOKENS >> (v.halves() - 1);
    bool whole = (end(v) - start) * v.halves() > ROUND_PAGES / 2 * BLOCK_TOKENS;
    facts = tile::uniform((ends || after >= v.end ? ROUND_LAST + 0u : 0u) | (fits ? ROUND_SHORT : 0) |
                          (joined ? ROUND_JOINED : 0) | (few ? ROUND_FEW : 0) | (whole ? ROUND_WHOLE : 0));
  }
};

// The scratch memory that holds a unit's sums of class `number`, of four.
__device__ inline float *kept_class(const consumer &c, uint32_t set, uint32_t slice, uint32_t number, uint32_t unit) {
  return scratch_of(c) + (((set * 2 + slice) * MERGE_THREADS + unit) * CLASSES + number) * 4;
}

// Keeps the sum of one row's span, whose class this lane has. With the last round all classes become the span's sum.
__device__ inline bool merge_classes(const consumer &c, const slot_view &v, const round_view &r, uint32_t slice,
                                     uint32_t unit, uint32_t number, merged_unit &sum) {
  keep_unit(kept_class(c, r.set, slice, number, unit), sum);
  if (!r.is_last()) {
    return false;
  }
  __syncwarp();
  uint32_t there = (min(v.end - r.span_start(v), v.span_tokens()) + SPAN_TOKENS - 1) / SPAN_TOKENS;
  float *kept = kept_class(c, r.set, slice, 0, unit);
  sum = tree_of_four([&](uint32_t j) { return j < there ? get_unit(kept + j * 4) : merged_unit(); });
  return true;
}

// The same where the unit is short: (S0 + S1) + (S2 + S3), whatever number of rounds these come in, two or one of them
// each. joining: the sum of the span that follows, where the last round joins this one. Gives whether the sum is that
// of the whole span.
__device__ inline bool merge_short(const consumer &c, const slot_view &v, const round_view &r, uint32_t slice,
                                   uint32_t unit, uint32_t number, bool joined, const merged_unit &joining,
                                   merged_unit &sum) {
  bool two = v.halves() == 1, last = joined || r.is_last();
  float4 *kept = tile::view<float4>(shared_memory + ROWS_KEPT_AT) + slice * (MERGE_THREADS / 2) + unit;
  float *third = kept_class(c, 0, slice, 0, unit);
  if (two) {
    add_lane(sum, 1);
  } else if (number == 3) {
    add_unit(sum, get_unit(third));
  }
  if (number == 2 && !two && !last) {
    keep_unit(third, sum);
    return false;
  }
  if (joined && number % 2 == 0) {  // of its pair, or where rounds are pairs the other pair
    add_unit(sum, joining);
  }
  if (number != 0) {
    float4 before = *kept;
    add_unit(sum, {before.x, before.y, before.z, before.w});
  }
  if (joined && number % 2 != 0) {
    add_unit(sum, joining);
  }
  if (!last) {
    *kept = make_float4(sum.low, sum.high, sum.top, sum.total);
  }
  return last;
}

// Writes a warp's sums to shared memory: 32 dims of eight columns, or 64 dims of few.
__device__ inline void put_rows_part(const merge_shape &shape, float *parts, uint32_t slot, uint32_t lane,
                                     const part_sums &sums) {
  uint32_t g = tile::lane_row(lane), t = tile::lane_of_quad(lane);
  bool few = shape.dims == 64;
  if (few && t >= 2) {
    return;
  }
#pragma unroll
  for (uint32_t k = 0; k < 4; k++) {  // by eight dims, of columns 2 t and 2 t + 1
    float *to = parts + shape.place(slot, 2 * t, k * 8 + g);
    to[0] = sums.o[k / 2].value[k % 2 * 2];
    to[shape.dims] = sums.o[k / 2].value[k % 2 * 2 + 1];
    if (few) {
      to[32] = sums.o[2 + k / 2].value[k % 2 * 2];
      to[32 + shape.dims] = sums.o[2 + k / 2].value[k % 2 * 2 + 1];
    }
  }
}
__device__ inline float2 *rows_scales() { return tile::view<float2>(shared_memory + ROWS_SCALES_AT); }
__device__ inline void put_rows_scales(float2 *to, uint32_t lane, const part_sums &sums) {
  if (lane < 4) {
    tile::view<float4>(to)[lane] = make_float4(sums.top[0], sums.total.value[0], sums.top[1], sums.total.value[1]);
  }
}

// Writes part `warp` of the last round, which joins the round before it.
__device__ inline void put_joining(const consumer &c, uint32_t warp, const part_sums &sums) {
  if (tile::uniform(warp < JOINING_PARTS)) {
    put_rows_part({64u}, tile::view<float>(shared_memory + ROWS_JOINING_AT), warp, c.lane, sums);
    if (c.lane < 2) {
      put_rows_scales(rows_scales() + warp * 8 + 4, c.lane, sums);
    }
  }
}

// The warps' parts of a round become sums of spans, and with the last one these are published.
__device__ inline void merge_round(const consumer &c, const slot_view &v, const round_view &r, part_sums &sums) {
  bool few = r.is_few();
  merge_shape shape = {few ? 64u : 32u};
  if (c.lane < (few ? 2 : 4)) {
    put_rows_scales(rows_scales() + c.warp * 8, c.lane, sums);
  }
  uint32_t spans_bits = 2 - v.halves();  // of a round
  // What a thread merges: of a slice, a unit of two values, and one of the round's spans.
  uint32_t number = c.warp * 32 + c.lane, unit = number >> spans_bits, pair_bits = few ? 5 : 4;
  uint32_t dim = (unit & ((1u << pair_bits) - 1)) * 2, half = unit >> pair_bits & (v.halves() - 1),
           column = unit >> (pair_bits + v.halves() - 1), span = tile::place_in_group(c.lane, 1u << spans_bits);
#pragma unroll 1
  for (uint32_t from = 0; from < PAGE_DIMS; from += shape.dims) {
    if (from != 0) {
      consumers_meet(c);
    }
    put_rows_part(shape, tile::view<float>(shared_memory + ROWS_RESULT_AT), c.warp, c.lane, sums);
    sums.o[0] = sums.o[2], sums.o[1] = sums.o[3];  // the next ones come first
    // What follows from the round is looked up before the others are there.
    bool joined = tile::uniform(r.is_joined()), merges = tile::uniform(c.warp < MERGE_WARPS);
    uint32_t whole = r.end(v) - r.start, rest = v.end - r.start - v.round_tokens();
    uint32_t number = (r.start & (v.span_tokens() - 1)) / SPAN_TOKENS;
    destination to = {nullptr, nullptr};
    if (merges && span == 0 && (joined || r.is_last())) {
      to = destination_of(c, v, column_of(v, r.set, column), r.span_start(v), half * PAGE_DIMS + from + dim);
    }
    consumers_meet(c);
    if (!merges) {
      continue;
    }
    merged_unit sum, joining;
#pragma unroll 1
    for (bool joins = false;; joins = true) {  // the parts that join come last
      uint32_t tokens = joins ? rest : whole;
      uint32_t before = joins ? 0 : span * SPAN_TOKENS, here = tokens > before ? tokens - before : 0;
      joining = merge_span(shape, rows_scales() + (joins ? 4 : 0),
                           tile::view<float>(shared_memory + (joins ? ROWS_JOINING_AT : ROWS_RESULT_AT)),
                           (before / PART_TOKENS << (v.halves() - 1)) + half, v.halves(),
                           tile::uniform(min(tokens, SPAN_TOKENS + 0u)),
                           min((here + PART_TOKENS - 1) / PART_TOKENS, SPAN_PARTS + 0u), column, dim);
      if (joins) {
        break;
      }
      sum = joining;
      if (!joined) {
        break;
      }
      consumers_meet(c);
    }
    if (tile::uniform(r.is_short()) ? merge_short(c, v, r, from / 32, unit, number, joined, joining, sum)
                                    : merge_classes(c, v, r, from / 32, unit, number + span, sum)) {
      uint64_t *totals = half + from + dim == 0 ? to.words + v.head_dim() : nullptr;
      if constexpr (MK_GPU_RANKS) {
        publish_to_ranks(c, v, to, totals, sum);
      } else {
        publish_column(c, to, totals, sum);
      }
    }
  }
}

}  // namespace mk
