// MLA_PART on tensor cores: for every item of the SM's row of the work list (mla.h), o = sum_t p_t v_t, p_t = exp(s_t -
// max), s_t = scale q k_t over the tokens t of its pages that a row sees; out = bf16(o / sum_t p_t), or the slot of the
// item.
//
// Tiles: 64 query rows (those of a block, then rows of no meaning) by pages of 64 tokens. A page is loaded once, as
// nine panels of 64 columns; its first eight panels are the values. The two warpgroups score pages in turn. The one
// that has scored a page hands its weights to the other through shared memory, and each adds up its half of the 512
// columns. Both do the same, half a period apart: while one works on weights, the other multiplies. Stores outputs as
// they are, slots as stamped words. Waits for nothing outside the SM, except where its last item also carries out the
// first reduction of the list (mk_mla_folds): then for the stamps of the other slots of the block.
//
// Rows after the last token of a page may be anything. Their scores are set aside; their values are made zero, since
// zero times NaN is not zero.
#pragma once
#include "instructions/mla_item_end.cuh"
#include "instructions/tile/copy.cuh"
#include "instructions/tile/wgmma.cuh"
#include "vm/gpu/attender.cuh"

namespace mk {

constexpr float MAX_SLACK = 8.0f;  // of a running maximum, in powers of two

enum { SCORES = 32 };  // of a thread: 16 tokens of each of its two rows

// Tokens that the row sees.
__device__ inline uint32_t seen_by(const block_view &v, const mla_entry &item, uint32_t row) {
  uint32_t token = (item.block % v.blocks * v.rows + row) / v.heads;
  uint32_t unseen = token < v.later ? v.later - token : 0;
  return item.length > unseen ? item.length - unseen : 0;
}

// What a warpgroup uses over and over. It scores the pages of the slot that has its own number, and adds up its half of
// the values of the pages in both slots. Keys and queries come in the order in which their panels are filled: the other
// warpgroup's half, the last panel, the own half.
struct page_view {
  tile::panel queries[3], keys[3], own_values, other_values, other_weights;
};

__device__ inline page_view view_of_pages(const attender &a) {
  uint32_t own = tile::shared_address(a.d.page(a.group)), other = tile::shared_address(a.d.page(a.group ^ 1));
  uint32_t half = a.group * HALF_PANELS * MK_GPU_PANEL_BYTES;
  const uint32_t panels[3] = {(a.group ^ 1) * HALF_PANELS, OTHER_KEYS, a.group * HALF_PANELS};
  page_view p;
#pragma unroll
  for (uint32_t i = 0; i < 3; i++) {
    p.queries[i] = tile::panel_of(tile::shared_address(a.d.activation()) + panels[i] * MK_GPU_PANEL_BYTES, 0);
    p.keys[i] = tile::panel_of(own + panels[i] * MK_GPU_PANEL_BYTES, 0);
  }
  p.own_values = tile::panel_of(own + half, MK_GPU_PANEL_BYTES);
  p.other_values = tile::panel_of(other + half, MK_GPU_PANEL_BYTES);
  p.other_weights = tile::panel_of(other + OTHER_KEYS * MK_GPU_PANEL_BYTES, 0);
  return p;
}

// Whether a load of the page in the warpgroup's slot has come: asked before products are issued, and the answer used
// after them, since it takes as long as a product.
__device__ __forceinline__ bool has_come(const attender &a, uint32_t load, uint32_t phase) {
  return tile::test_wait(a.d.barrier(full_barrier(a.group, load)), phase);
}

// scores (+)= queries times the keys of loads [first, end) of the page, as they come: under way when this returns.
template <uint32_t first, uint32_t end>
__device__ __forceinline__ void score_loads(const attender &a, const page_view &p, uint32_t phase, bool come,
                                            float (&scores)[SCORES]) {
  tile::pin(scores);
#pragma unroll
  for (uint32_t load = first; load < end; load++) {
    if (!tile::all_lanes(come)) {
      wait_within(a.d, full_barrier(a.group, load), phase);
    }
    if (load + 1 < end) {
      come = has_come(a, load + 1, phase);
    }
    tile::products_begin();
#pragma unroll
    for (uint32_t i = start_of_load(load); i < start_of_load(load + 1); i++) {
      uint32_t part = i < HALF_PANELS ? 0 : i == HALF_PANELS ? 1 : 2;
      uint32_t at = (part == 0 ? i : part == 1 ? 0 : i - HALF_PANELS - 1) * MK_GPU_PANEL_BYTES;
#pragma unroll
      for (uint32_t k = 0; k < 4; k++) {
        tile::panel left = tile::panel_at(p.queries[part], at + k * 32),
                    right = tile::panel_at(p.keys[part], at + k * 32);
        if (i + k == 0) {
          tile::multiply_transposed<false>(scores, left, right);
        } else {
          tile::multiply_transposed<true>(scores, left, right);
        }
      }
    }
  }
  tile::products_commit();
}

// Makes the values of the tokens from `valid` on zero; done by the warpgroup that scores the page.
__device__ inline void clear_values(const attender &a, uint32_t slot, uint32_t valid) {
  uint8_t *panels = a.d.page(slot);
  uint32_t thread = tile::thread_of_group(), units = (MK_MLA_PAGE_TOKENS - valid) * 8;
#pragma unroll 1
  for (uint32_t p = 0; p < 2 * HALF_PANELS; p++) {
#pragma unroll 1
    for (uint32_t i = thread; i < units; i += 128) {
      tile::store<uint4>(panels + p * MK_GPU_PANEL_BYTES + valid * 128 + i * 16, make_uint4(0, 0, 0, 0));
    }
  }
  tile::fence_shared_for_copies();
  tile::meet_at<128>(a.group + 2);
}

// Sets aside the scores of tokens from limit[i] on.
__device__ inline void mask_scores(const attender &a, const int32_t (&limit)[2], float (&scores)[SCORES]) {
#pragma unroll
  for (uint32_t i = 0; i < SCORES; i++) {
    int32_t token = static_cast<int32_t>(i / 4 * 8 + tile::lane_column(a.lane) + i % 2);
    if (token >= limit[i / 2 % 2]) {
      scores[i] = -INFINITY;
    }
  }
}

// Raises the running maximum to `max`; gives the factor by which the sums and weights so far have to be multiplied.
__device__ inline float raise_max(softmax_rows &r, uint32_t h, float max) {
  float keep = max == r.max[h] ? 1.0f : tile::exp2(r.max[h] - max);
  r.max[h] = max;
  r.total[h] *= keep;
  return keep;
}

// Turns scores [first, end) into weights, bf16 in the form of a left operand; they also go to `panel` of shared memory.
template <uint32_t first, uint32_t end>
__device__ __forceinline__ void weigh_some(float scale, uint32_t panel, const float (&offset)[2],
                                           const float (&scores)[SCORES], float (&total)[2],
                                           uint32_t (&weights)[SCORES / 8][4]) {
#pragma unroll
  for (uint32_t j = first / 2; j < end / 2; j++) {
    float low = tile::exp2(fmaf(scores[2 * j], scale, -offset[j % 2]));
    float high = tile::exp2(fmaf(scores[2 * j + 1], scale, -offset[j % 2]));
    total[j % 2] += low;
    total[j % 2] += high;
    weights[j / 4][j % 4] = tile::pack_bf16(low, high);
    if (j % 4 == 3) {
      tile::store_left(panel ^ j / 4 * 32, weights[j / 4]);
    }
  }
}

// The maximum stays as it is while that of the page is not much larger, so that sums rarely have to be touched: weights
// of up to 2^MAX_SLACK are as good as others. The code assumes that it stays, and checks this beside the first half of
// the exponentials, which would otherwise wait for the check; where the maximum has to rise, they are computed once
// more.
//
// Computes the first half of the weights with the maxima as they are. Gives whether a maximum has to rise, and the
// thread's share of the page's maxima.
__device__ __forceinline__ bool weigh_first_half(float scale, uint32_t panel, const float (&scores)[SCORES],
                                                 const softmax_rows &r, float (&most)[2], float (&offset)[2],
                                                 float (&total)[2], uint32_t (&weights)[SCORES / 8][4]) {
  float other[2];
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    offset[h] = r.max[h] == -INFINITY ? 0.0f : r.max[h];
    total[h] = r.total[h];
    // Minus infinity, but known only once the first exponentials are under way: otherwise the compiler puts the maxima
    // before them.
    most[h] = other[h] = fmaf(tile::exp2(fmaf(scores[2 * h], scale, -offset[h])), 0.0f, -INFINITY);
  }
  weigh_some<0, SCORES / 2>(scale, panel, offset, scores, total, weights);
#pragma unroll
  for (uint32_t i = 0; i < SCORES; i++) {
    float &max = i / 4 % 2 == 0 ? most[i / 2 % 2] : other[i / 2 % 2];
    max = fmaxf(max, scores[i]);
  }
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    most[h] = fmaxf(most[h], other[h]) * scale;
  }
  return tile::uniform(most[0] > r.max[0] + MAX_SLACK || most[1] > r.max[1] + MAX_SLACK);
}

__device__ inline void rescale(bool raised, const float (&keep)[2], float (&sums)[SUMS]) {
  if (raised) {
#pragma unroll
    for (uint32_t i = 0; i < SUMS; i++) {
      sums[i] *= keep[i / 2 % 2];
    }
  }
}

struct exchange {  // between the warpgroups
  float max[MK_GPU_RING_PAGES][64];
  uint32_t raised[MK_GPU_RING_PAGES][MK_GPU_CONSUMER_WARPS / 2];  // whether one of those did rise, by warp: 16 rows
  float total[2][2][64];                                          // by parity of the item, by warpgroup
};
static_assert(sizeof(exchange) <= MK_GPU_EXCHANGE_BYTES, "the warpgroups' words");

__device__ inline exchange &words_between() { return *tile::view<exchange>(shared_memory + MK_GPU_EXCHANGE_AT); }

// A page's weights lie where its last panel of keys was. Gives where this thread stores the first of its own.
__device__ inline uint32_t own_weights(const attender &a) {
  return tile::shared_address(a.d.page(a.group)) + OTHER_KEYS * MK_GPU_PANEL_BYTES +
         tile::place_in_panel(a.warp % 4 * 16, a.lane);
}

__device__ inline void release(const attender &a, uint32_t barrier) {
  if (a.lane == 0) {
    tile::arrive(a.d.barrier(barrier));
  }
}

// Tells the other warpgroup that half of a page's weights is in its panel.
__device__ inline void hand_over(const attender &a, uint32_t half) {
  tile::fence_shared_for_copies();
  __syncwarp();
  release(a, weights_barrier(a.group, half));
}

// The same for the first half, with word of whether maxima have risen, and of which.
__device__ inline void hand_over_first(const attender &a, const softmax_rows &r, bool raised) {
  if (raised && tile::lane_of_quad(a.lane) == 0) {
    words_between().max[a.group][a.row()] = r.max[0];
    words_between().max[a.group][a.row() + 8] = r.max[1];
  }
  if (a.lane == 0) {
    words_between().raised[a.group][a.warp % 4] = raised;
  }
  hand_over(a, 0);
}

// Waits for the first half of the weights of a page that the other warpgroup scores. Gives whether sums have to be
// multiplied by `keep`: both warpgroups have the same maxima so far, so they have to where the other one has raised
// some of the block's maxima.
__device__ __forceinline__ bool take_weights(const attender &a, uint32_t phase, softmax_rows &r, float (&keep)[2]) {
  uint32_t slot = a.group ^ 1;
  wait_within(a.d, weights_barrier(slot, 0), phase);
  bool raised = tile::uniform(words_between().raised[slot][a.warp % 4] != 0);
  if (raised) {
    keep[0] = raise_max(r, 0, words_between().max[slot][a.row()]);
    keep[1] = raise_max(r, 1, words_between().max[slot][a.row() + 8]);
  }
  return raised;
}

// Multiplies the page's values by these weights, and by those of the second half when they come: under way when this
// returns, until added_others().
__device__ __forceinline__ void add_others(const attender &a, const page_view &p, uint32_t phase, float (&sums)[SUMS]) {
  bool come = tile::test_wait(a.d.barrier(weights_barrier(a.group ^ 1, 1)), phase);
  tile::products_begin();
#pragma unroll
  for (uint32_t k = 0; k < SCORES / 8; k++) {
    if (k == SCORES / 16) {
      if (!tile::all_lanes(come)) {
        wait_within(a.d, weights_barrier(a.group ^ 1, 1), phase);
      }
      tile::products_begin();
    }
    tile::multiply_by_rows<true>(sums, tile::panel_at(p.other_weights, k * 32),
                                 tile::panel_at(p.other_values, k * 2048));
  }
  tile::products_commit();
}

__device__ __forceinline__ void added_others(const attender &a, float (&sums)[SUMS]) {
  tile::products_wait<0>();
  tile::pin(sums);
  release(a, empty_barrier(a.group ^ 1, a.group));
}

// All of that for one page, where there is nothing else to do meanwhile.
__device__ __forceinline__ void follow(const attender &a, const page_view &p, uint32_t phase, softmax_rows &r,
                                       float (&sums)[SUMS]) {
  float keep[2];
  bool raised = take_weights(a, phase, r, keep);
  rescale(raised, keep, sums);
  tile::pin(sums);
  add_others(a, p, phase, sums);
  added_others(a, sums);
}

// Adds the own half of a page's values, weighted, for the tokens of one half of the weights: under way when this
// returns, until added_own().
template <uint32_t half>
__device__ __forceinline__ void add_own(const page_view &p, const uint32_t (&weights)[SCORES / 8][4],
                                        float (&sums)[SUMS]) {
  tile::products_begin();
#pragma unroll
  for (uint32_t k = half * SCORES / 16; k < (half + 1) * SCORES / 16; k++) {
    tile::multiply_by_rows<true>(sums, weights[k], tile::panel_at(p.own_values, k * 2048));
  }
  tile::products_commit();
}

// The scores of page i of the item are there. They become weights, which multiply the warpgroup's own values: those of
// the first half while the second half is worked on. The products are under way when this returns. Each half of the
// weights goes to the other warpgroup after these products have been issued: if it went before, the tensor cores would
// have nothing to do meanwhile. Pages from `whole` on have tokens that some row does not see.
__device__ __forceinline__ void weigh_and_add_own(const attender &a, const block_view &v, const mla_entry &item,
                                                  const page_view &p, int32_t whole, uint32_t i,
                                                  float (&scores)[SCORES], softmax_rows &r,
                                                  uint32_t (&weights)[SCORES / 8][4], float (&sums)[SUMS]) {
  if (static_cast<int32_t>(i) >= whole) {
    int32_t start = static_cast<int32_t>((item.first + i) * MK_MLA_PAGE_TOKENS);
    int32_t valid = static_cast<int32_t>(item.length) - start;
    const int32_t limit[2] = {static_cast<int32_t>(seen_by(v, item, a.row())) - start,
                              static_cast<int32_t>(seen_by(v, item, a.row() + 8)) - start};
    mask_scores(a, limit, scores);
    if (valid < MK_MLA_PAGE_TOKENS) {
      clear_values(a, a.group, valid);
    }
  }
  uint32_t panel = own_weights(a);
  float most[2], offset[2], total[2];
  bool raised = weigh_first_half(v.scale, panel, scores, r, most, offset, total, weights);
  if (raised) {
    float keep[2];
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
      float max = tile::largest_tree<4>(most[h]);
      keep[h] = raise_max(r, h, max > r.max[h] + MAX_SLACK ? max : r.max[h]);
    }
    (void)weigh_first_half(v.scale, panel, scores, r, most, offset, total, weights);
    rescale(true, keep, sums);
  }
  tile::pin(sums);
  add_own<0>(p, weights, sums);
  if (i + 2 >= item.pages) {
    release(a, QUERIES_EMPTY);
  }
  hand_over_first(a, r, raised);
  weigh_some<SCORES / 2, SCORES>(v.scale, panel, offset, scores, total, weights);
  add_own<1>(p, weights, sums);
  hand_over(a, 1);
  r.total[0] = total[0];
  r.total[1] = total[1];
  tile::pin(r.total);  // added up by now, and not between the products that follow
}

__device__ __forceinline__ void added_own(const attender &a, float (&sums)[SUMS]) {
  tile::products_wait<0>();
  tile::pin(sums);
  release(a, empty_barrier(a.group, a.group));
}

// First the values of the page that the other warpgroup has weighed, then the scores of this one's next page.
__device__ __forceinline__ void follow_and_score(const attender &a, const page_view &p, uint32_t own_phase,
                                                 uint32_t other_phase, float (&scores)[SCORES], softmax_rows &r,
                                                 float (&sums)[SUMS]) {
  float keep[2];
  bool raised = take_weights(a, other_phase, r, keep);
  rescale(raised, keep, sums);
  tile::pin(sums);
  bool come = has_come(a, 0, own_phase);
  add_others(a, p, other_phase, sums);
  score_loads<0, 1>(a, p, own_phase, come, scores);
  come = has_come(a, 1, own_phase);
  // The part of the other warpgroup's page is given back here, and not after all scores: a warp issues products only a
  // few ahead of what is being multiplied, so it would come to that only when the scores are nearly done.
  tile::products_wait<1>();
  release(a, empty_barrier(a.group ^ 1, a.group));
  score_loads<1, PAGE_LOADS>(a, p, own_phase, come, scores);
  tile::products_wait<0>();
  tile::pin(scores);
  tile::pin(sums);
}

// A warpgroup scores every other page of an item, `own` (0 or 1) being its first one. Sums take pages in order, its own
// and the other's in turn, so that both have the same maxima.
__device__ __forceinline__ void attend_turns(const attender &a, const block_view &v, const mla_entry &item,
                                             const page_view &p, uint32_t own, uint32_t own_phase, uint32_t other_phase,
                                             softmax_rows &r, float (&sums)[SUMS]) {
  float scores[SCORES];
  int32_t whole = static_cast<int32_t>(item.length - v.later) / MK_MLA_PAGE_TOKENS - static_cast<int32_t>(item.first);
  uint32_t weights[SCORES / 8][4];
  score_loads<0, PAGE_LOADS>(a, p, own_phase, has_come(a, 0, own_phase), scores);
  tile::products_wait<0>();
  tile::pin(scores);
  if (own != 0) {
    follow(a, p, other_phase, r, sums);
    other_phase ^= 1;
  }
#pragma unroll 1
  for (uint32_t i = own;; i += 2) {
    weigh_and_add_own(a, v, item, p, whole, i, scores, r, weights, sums);
    if (i + 2 >= item.pages) {
      break;
    }
    added_own(a, sums);
    own_phase ^= 1;
    follow_and_score(a, p, own_phase, other_phase, scores, r, sums);
    other_phase ^= 1;
  }
  added_own(a, sums);
}

// Warpgroup 0 scores the pages in slot 0 of the ring, warpgroup 1 those in slot 1; which of them has the item's first
// page depends on where in the ring the item begins.
__device__ __forceinline__ void attend_pages(attender &a, const block_view &v, const mla_entry &item, softmax_rows &r,
                                             float (&sums)[SUMS]) {
  uint32_t own = a.pages.slot() ^ a.group;
  ring_cursor<MK_GPU_RING_PAGES> at = a.pages, other = a.pages;
  at.advance(own);
  other.advance(own ^ 1);
  page_view p = view_of_pages(a);
  wait_within(a.d, QUERIES_FULL, a.queries & 1);
  if (own >= item.pages) {
    release(a, QUERIES_EMPTY);
  }
  if (own < item.pages) {
    attend_turns(a, v, item, p, own, at.phase(), other.phase(), r, sums);
  }
  if (item.pages % 2 == own) {  // the last page is the other warpgroup's
    follow(a, p, other.phase() ^ ((item.pages - 1) / 2 & 1), r, sums);
  }
  uint32_t steps = a.pages.slot() + item.pages;
  a.pages.at = steps % 2 | ((a.pages.phase() + steps / 2) & 1) << 31;
  a.queries++;
}

// Each warpgroup has the totals of the weights of its own pages. Adds them up, for all threads of a row. All consumers
// meet here once an item.
__device__ inline void add_totals(const attender &a, softmax_rows &r) {
  float(&totals)[2][64] = words_between().total[a.queries % 2];
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    r.total[h] = tile::sum_tree<4>(r.total[h]);
    if (tile::lane_of_quad(a.lane) == 0) {
      totals[a.group][a.row() + 8 * h] = r.total[h];
    }
  }
  tile::meet<MK_GPU_CONSUMER_WARPS * 32>();
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    r.total[h] = totals[0][a.row() + 8 * h] + totals[1][a.row() + 8 * h];
  }
}

// Carries out the items. True: there are reductions to do.
__device__ __forceinline__ bool consume_MLA_PART(attender &a, const mk_instruction_word &in) {
  block_view v = view_of(a.d, in);
  // The loop has no exit in its middle: otherwise the compiler assumes that lanes may part, and names panels lane by
  // lane.
  mla_entry item = take_entry(a);
  for (; item.kind == ENTRY_ITEM; item = take_entry(a)) {
    softmax_rows r = {{-INFINITY, -INFINITY}, {0.0f, 0.0f}};
    float sums[SUMS];
#pragma unroll
    for (uint32_t i = 0; i < SUMS; i++) {
      sums[i] = 0.0f;
    }
    if (item.pages != 0) {
      attend_pages(a, v, item, r, sums);
      add_totals(a, r);
    }
    tile::wait_for_launch_before();  // whose reductions may still read what is written now
    end_item(a, v, in, item, r, sums);
  }
  return item.reductions != 0;
}

}  // namespace mk
