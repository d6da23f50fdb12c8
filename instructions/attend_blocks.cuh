// How the kernels for wide steps attend, to the bits of one row: docs/NUMERICS.md has the order of sums.
//
// Tiles: a warpgroup has 64 queries, which it keeps as left operands; blocks of 64 tokens come through the page ring,
// and packers make right operands of the tiles of K and V (vm/gpu/wide_packer.cuh). S [64, 64] = q K^T is of two parts
// of 32 tokens; O [64, dims] = P V of each of them begins from zero, P being a left operand as it lies in the registers
// of S. While a part is multiplied by V the next one's P is computed, and while one warpgroup does that the other one
// multiplies. Parts become spans, and these are added as a tree, whose levels wait in scratch memory.
//
// What a warp's sixteen queries see is a type of the caller's, `queries`: at_hand(c) gives that of the instruction at
// hand; `end`, the position after the last token that any query sees; `own`, that of the warp's first query;
// `group_end`, the one after the last token that the warpgroup sees (0: it has nothing to do); hide(scores, at) hides
// what each query does not see of the tokens from `at` on. `queries` is looked up anew for each block, since registers
// are short. HIDES_BLOCKS: whether a block's scores are hidden all at once, where registers are less short than while a
// part is multiplied.
#pragma once
#include "instructions/attend_part.cuh"
#include "instructions/tile/rows.cuh"
#include "vm/gpu/wide_copies.cuh"
#include "vm/gpu/wide_packer.cuh"

namespace mk {

enum { TREE_LEVELS = MK_WIDE_GPU_LEVELS - 1 };

// Of a thread's two lines.
template <uint32_t steps>
struct attended {
  float o[8 * steps];
  float top[2], total[2];  // what scores are relative to, a whole number in base 2; the sum of p
};

template <uint32_t steps>
__device__ inline void clear(attended<steps> &sums) {
#pragma unroll
  for (uint32_t n = 0; n < 8 * steps; n++) {
    sums.o[n] = 0.0f;
  }
  sums.top[0] = sums.top[1] = NO_TOKENS;
  sums.total[0] = sums.total[1] = 0.0f;
}

// What the two sides of an addition are multiplied by: powers of two.
struct line_factors {
  float kept[2], added[2];
};

// Both sides are relative to the larger top from here on.
__device__ inline line_factors raise_tops(float (&top)[2], const float (&other)[2]) {
  line_factors factors;
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    float before = top[h];
    top[h] = fmaxf(before, other[h]);
    factors.kept[h] = tile::exp2(before - top[h]);
    factors.added[h] = tile::exp2(other[h] - top[h]);
  }
  return factors;
}

__device__ inline void add_totals(float (&to)[2], const float (&other)[2], const line_factors &factors) {
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    to[h] = __fmaf_rn(factors.added[h], other[h], __fmul_rn(factors.kept[h], to[h]));
  }
}

// p of a part, as left operands, and how its sums join those of the span.
struct weighed_part {
  uint32_t p[2][4];
  line_factors factors;
};

// The scores of the 32 tokens from `at` on become weights; what these are relative to, and their sums, join the span.
template <uint32_t steps, typename queries>
__device__ __forceinline__ void weigh(float (&scores)[16], uint32_t at, const queries &of, weighed_part &to,
                                      attended<steps> &span) {
  if (!queries::HIDES_BLOCKS && at + PART_TOKENS > of.own + 1) {
    of.hide(scores, at);
  }
  float top[2], total[2];
  tile::row_max(top, scores, NO_TOKENS);
  top[0] = ceilf(top[0]), top[1] = ceilf(top[1]);
  tile::exp2_below(scores, top);
  to.factors = raise_tops(span.top, top);
  tile::to_left(to.p, scores);
  tile::row_sum(total, to.p);
  add_totals(span.total, total, to.factors);
}

// o = P V: under way when this returns. values: the part's.
template <uint32_t steps>
__device__ __forceinline__ void begin_values(float (&o)[8 * steps], const weighed_part &part, tile::panel values) {
  tile::pin(o);
  tile::products_begin();
  tile::multiply_transposed<false>(o, part.p[0], values);
  tile::multiply_transposed<true>(o, part.p[1], tile::panel_at(values, 32));
  tile::products_commit();
}

// It joins the span.
template <uint32_t steps>
__device__ __forceinline__ void add_values(float (&o)[8 * steps], weighed_part &part, attended<steps> &span) {
  tile::multiply_rows(span.o, part.factors.kept);
  tile::products_wait<0>();
  tile::pin(o);
  tile::pin(part.p[0]);
  tile::pin(part.p[1]);
  tile::add_rows(span.o, o, part.factors.added);
}

// S = q K^T of 64 tokens.
template <uint32_t steps>
__device__ __forceinline__ void score(float (&scores)[32], uint32_t (&q)[steps][4], tile::panel keys) {
  constexpr uint32_t ROWS = tile::rows_apart(steps * 256);
  tile::pin(scores);
  tile::products_begin();
  tile::multiply_transposed<false, ROWS>(scores, q[0], keys);
#pragma unroll
  for (uint32_t k = 1; k < steps; k++) {
    tile::multiply_transposed<true, ROWS>(scores, q[k], tile::panel_at(keys, k / 4 * 1024 + k % 4 * 32));
  }
  tile::products_commit();
  tile::products_wait<0>();
  tile::pin(scores);
}

// Folds the 64 tokens from `at` on into the span. keys, values: packed.
template <uint32_t steps, typename queries>
__device__ __forceinline__ void attend_block(tile::panel keys, tile::panel values, uint32_t (&q)[steps][4], uint32_t at,
                                             const queries &of, attended<steps> &span) {
  float scores[32], o[8 * steps];
  weighed_part first, second;
  score(scores, q, keys);
  if (queries::HIDES_BLOCKS && at + BLOCK_TOKENS > of.own + 1) {
    of.hide(scores, at);
  }
  weigh(tile::columns_32<0>(scores), at, of, first, span);
  begin_values<steps>(o, first, values);
  weigh(tile::columns_32<1>(scores), at + PART_TOKENS, of, second, span);
  add_values(o, first, span);
  begin_values<steps>(o, second, tile::panel_at(values, 64));
  add_values(o, second, span);
}

// Where the sums of a level of the tree wait, of this thread: element i is at i * 32. The first level, which has half
// of what waits, is in the stage that is kept for it (tops and totals are after the page ring), the others in global
// memory. Where no stage is kept (attend_slots.cuh: items of few queries, which have a quarter of the sums), the first
// level lies in the second one's other half.
struct kept_sums {
  float *scales, *o;
};
__device__ inline kept_sums kept_level(const wide_consumer &c, uint32_t level) {
  enum { SCALES = 4 * 32, SUMS = MK_WIDE_GPU_KEPT_FLOATS - SCALES };
  static_assert(SUMS * 4 * MK_GPU_CONSUMER_WARPS <= MK_GPU_PAGE_BYTES * MK_GPU_STAGE_PAGES, "a stage has room");
  static_assert(SCALES * 4 * MK_GPU_CONSUMER_WARPS <= MK_GPU_ACTIVATION_BYTES, "and so has the area after the ring");
  enum { HALF = MK_WIDE_GPU_KEPT_FLOATS / 2 };
  if (level == 0 && (!MK_GPU_SLOTS || next_stage(c).keeps())) {
    float *stage = tile::view<float>(c.d.page(next_stage(c).kept() * MK_GPU_STAGE_PAGES));
    float *scales = tile::view<float>(c.d.activation());
    return {scales + c.d.warp * SCALES + tile::lane(), stage + c.d.warp * SUMS + tile::lane()};
  }
  uint32_t at = (c.d.warp * (MK_WIDE_GPU_LEVELS - 1) + level - 1) * MK_WIDE_GPU_KEPT_FLOATS;
  if (MK_GPU_SLOTS && level == 0) {
    at = c.d.warp * (MK_WIDE_GPU_LEVELS - 1) * MK_WIDE_GPU_KEPT_FLOATS + HALF;
  }
  float *to = c.d.params.scratch + static_cast<uint64_t>(blockIdx.x) * c.d.params.scratch_floats + at + tile::lane();
  return {to, to + SCALES};
}

template <uint32_t steps>
__device__ inline void keep_level(const wide_consumer &c, uint32_t level, const attended<steps> &sums) {
  const kept_sums to = kept_level(c, level);
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    to.scales[h * 32] = sums.top[h];
    to.scales[(2 + h) * 32] = sums.total[h];
  }
#pragma unroll
  for (uint32_t n = 0; n < 8 * steps; n++) {
    to.o[n * 32] = sums.o[n];
  }
}

// sums += what waits there.
template <uint32_t steps>
__device__ inline void add_level(const wide_consumer &c, uint32_t level, attended<steps> &sums) {
  const kept_sums from = kept_level(c, level);
  float top[2], total[2], o[8 * steps];
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    top[h] = from.scales[h * 32];
    total[h] = from.scales[(2 + h) * 32];
  }
#pragma unroll
  for (uint32_t n = 0; n < 8 * steps; n++) {
    o[n] = from.o[n * 32];
  }
  const line_factors factors = raise_tops(sums.top, top);
  add_totals(sums.total, total, factors);
  tile::multiply_rows(sums.o, factors.kept);
  tile::add_rows(sums.o, o, factors.added);
}

// Span number `number` joins the tree: with what neighbours it, up to 4,096 tokens, and these one after the other.
template <uint32_t steps>
__device__ inline void keep_span(const wide_consumer &c, uint32_t number, attended<steps> &sums) {
  uint32_t level = 0;
#pragma unroll 1
  for (; level < TREE_LEVELS && (number >> level & 1) != 0; level++) {
    add_level(c, level, sums);
  }
  if (level == TREE_LEVELS && number >> TREE_LEVELS != 0) {
    add_level(c, TREE_LEVELS, sums);
  }
  keep_level(c, level, sums);
}

// sums, the last span or less, += all that waits, of `number` spans.
template <uint32_t steps>
__device__ inline void add_tree(const wide_consumer &c, uint32_t number, attended<steps> &sums) {
#pragma unroll 1
  for (uint32_t level = 0; level <= TREE_LEVELS; level++) {
    if (level < TREE_LEVELS ? (number >> level & 1) != 0 : number >> TREE_LEVELS != 0) {
      add_level(c, level, sums);
    }
  }
}

// Whether the instruction at hand attends to a cache of codes.
__device__ inline bool attends_codes(const wide_consumer &c) {
  return MK_GPU_QUANTISED && tile::uniform(keeps_codes(c.d.buffer(instruction_at_hand(c).parts[MK_PART_ATTEND_kv])));
}

// All blocks of the cache that some query sees.
template <typename queries, uint32_t steps>
__device__ __forceinline__ void attend_blocks(wide_consumer &c, uint32_t (&q)[steps][4], attended<steps> &span) {
  enum {
    DIMS = steps * 16,
    BLOCK_PAGES = DIMS / 64,
    VALUES_AT = DIMS == 64 ? MK_GPU_PAGE_BYTES / 2 : 0,  // in the block's last page
  };
  stage_cursor stage{tile::uniform(next_stage(c).at)};
  uint32_t at = 0;
  // Of codes every other page has panels. Computed anew, since registers are short.
  auto each = [&] { return attends_codes(c) ? 2u : 1u; };
  auto page_at_hand = [&] { return tile::anew(at) / BLOCK_TOKENS * (BLOCK_PAGES * each()) % MK_GPU_STAGE_PAGES; };
#pragma unroll 1
  do {
    uint32_t page = page_at_hand() + each() - 1;
    tile::panel keys = wait_packed(c, stage, page);
    tile::panel values = tile::panel_at(wait_packed(c, stage, page + (BLOCK_PAGES - 1) * each()), VALUES_AT);
    const queries of = queries::at_hand(c);
    if (at < of.group_end) {
      if (at % SPAN_TOKENS == 0 && at != 0) {
        keep_span(c, at / SPAN_TOKENS - 1, span);
        clear(span);
      }
      attend_block<steps>(keys, values, q, at, of, span);
    }
    if (each() == 2) {
#pragma unroll 1
      for (uint32_t i = 0; i < 2 * BLOCK_PAGES; i++) {
        release_page(c, stage, page_at_hand() + i, 1);
      }
    } else {
#pragma unroll
      for (uint32_t i = 0; i < BLOCK_PAGES; i++) {
        release_page(c, stage, page_at_hand() + i, 1);
      }
    }
    at += BLOCK_TOKENS;
    if (page_at_hand() == 0) {
      stage.next_packed();
    }
  } while (page_at_hand() != 0 || at < queries::at_hand(c).end);
  put_next_stage(c, stage);
}

// The stage for sums, where there is more than a span. end: the position after the last token.
__device__ inline void take_room(const wide_consumer &c, uint32_t end) {
  static_assert(ATTENDED_ALONE == SPAN_TOKENS, "nothing waits of a single span");
  if (end > ATTENDED_ALONE) {
    stage_cursor stage = next_stage(c);
#pragma unroll 1
    for (uint32_t page = 0; page < MK_GPU_STAGE_PAGES; page++) {
      wait_page(c, stage, page);
    }
    stage.keep();
    put_next_stage(c, stage);
  }
}
__device__ inline void give_back_room(const wide_consumer &c) {
  stage_cursor stage = next_stage(c);
  if (stage.keeps()) {
    tile::fence_shared_for_copies();
    __syncwarp();
    release_stage(c, stage.kept());
    stage.forget();
    put_next_stage(c, stage);
  }
}

}  // namespace mk
