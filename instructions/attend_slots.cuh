// ATTEND on the device, of the kernel for wide steps of several sequences: the items of a share of the step's work list
// (vm/program/attend_list.h), one after the other; attend.c, attend_blocks.cuh. An item's queries are its lines with
// its query heads of the KV head, the heads of a line side by side. Up to eight of them, a decoding row's mostly, are
// columns of what one warp multiplies, or two, which have 64 dims of the output each: K and V are left operands as they
// lie in the cache, so nothing is packed. As many of these items as there are such warps pass together, a block of each
// in turn. Up to 64 queries are a warpgroup's alone; these items go to both warpgroups in turn, so that one begins with
// the next item while the other still ends its own. All warps take part in all that the loader hands over, since a wait
// sees nothing but the parity of how often a page has been filled. Waits: q; the loader: the head's
// APPEND. Signals: the counter of the line tile's output.
#pragma once
#include "instructions/attend_blocks.cuh"
#include "instructions/head_norms.cuh"
#include "vm/program/attend_list.h"

namespace mk {

enum { GROUP_QUERIES = 64, FEW_QUERIES = 8 };
static_assert(GROUPS * GROUP_QUERIES == MK_ATTEND_QUERIES, "two warpgroups have all queries of an item");

// The list of the step and line tile at hand: how many items there are, in the place of one, and the items.
__device__ inline const uint32_t *work_list(const device &d, const mk_instruction_word &in) {
  const mk_gpu_buffer &b = whole_buffer(in, MK_WHOLE_ATTEND_work);
  uint32_t line_tiles = (d.params.rows + LINES - 1) / LINES;
  uint64_t list = static_cast<uint64_t>(d.epoch) * line_tiles + in.parts[MK_PART_ATTEND_q].row;
  return tile::global<const uint32_t>(b.address) + list * b.cols;
}

__device__ inline volatile attended_item &item_at_hand(const wide_consumer &c) {
  return wide_shared()->items[tile::anew(c.d.warp)];
}

// What a warp has to do in an item, by positions of tokens: attend_blocks.cuh.
struct attended_queries {
  enum { HIDES_BLOCKS = true };
  uint32_t end, own, group_end;

  __device__ static attended_queries at_hand(const wide_consumer &c) {
    const volatile attended_item &item = item_at_hand(c);
    return {tile::uniform(item.end), tile::uniform(item.own), tile::uniform(item.group_end)};
  }
  template <uint32_t count>
  __device__ void hide(float (&scores)[count], uint32_t at) const {
    tile::hide_from<0>(scores, at, end_of(0));
    tile::hide_from<1>(scores, at, end_of(8));
  }

 private:
  __device__ static uint32_t end_of(uint32_t away) {
    uint32_t thread = tile::thread_anew();
    return wide_shared()->items[tile::warp_of_thread(thread)].ends[tile::lane_row(tile::lane_of_thread(thread)) + away];
  }
};

__device__ inline const uint4 *item_words(const uint32_t *list, uint32_t number) {
  return tile::view<uint4>(list + (number + 1) * MK_ATTEND_ITEM_WORDS);
}

// Items of a share that have few queries and pass together.
struct items_together {
  uint32_t count;         // 0: the first one has more queries, and passes by itself
  uint32_t slot, tokens;  // of the lane's item, where there is one: whose tokens they are, and how many
};

// Of the share's items from `number` on.
__device__ inline items_together look_together(const uint32_t *list, uint32_t number, uint32_t shares,
                                               uint32_t head_dim) {
  uint32_t own = number + tile::lane() * shares, most = MK_GPU_CONSUMER_WARPS * 64 / head_dim;
  items_together items = {};
  bool few = false;
  if (tile::lane() < most && own < __ldg(list)) {
    const uint4 *from = item_words(list, own);
    const uint4 first = __ldg(from), second = __ldg(from + 1);
    few = first.y * second.y <= FEW_QUERIES;
    items.slot = first.z;
    items.tokens = first.w + first.y;
  }
  items.count = __ffs(~tile::lanes_where(few)) - 1;
  return items;
}

// The warp's next item, of its share, or the next ones that pass together, of which it has one or none; false: the
// share has no more.
__device__ inline bool take_item(const wide_consumer &c) {
  const mk_instruction_word &in = instruction_at_hand(c);
  volatile attended_item &to = item_at_hand(c);
  const uint32_t *list = work_list(c.d, in);
  uint32_t shares = param(in, MK_PARAM_ATTEND_shares), head_dim = c.d.buffer(in.parts[MK_PART_ATTEND_kv]).head_dim;
  uint32_t turn = to.turn, number = param(in, MK_PARAM_ATTEND_share) + turn * shares, team = c.d.warp * 64 / head_dim;
  if (!tile::uniform(number < __ldg(list))) {
    return false;
  }
  const items_together together = look_together(list, number, shares, head_dim);
  const uint4 *from = item_words(list, number + (team < together.count ? team * shares : 0));
  const uint4 first = __ldg(from), second = __ldg(from + 1);
  uint32_t lines = first.y, position = first.w, heads = second.y, queries = lines * heads;
  bool alone = queries <= GROUP_QUERIES;
  uint32_t group_first = alone ? 0 : c.group() * GROUP_QUERIES, group_end = min(queries, group_first + GROUP_QUERIES);
  bool works = alone ? turn % GROUPS == c.group() : group_first < queries;
  uint32_t query = group_first + c.d.warp % 4 * WARP_QUERIES;
  if (together.count != 0) {
    works = team < together.count;
    query = 0;
  }
  __syncwarp();
  if (tile::lane() == 0) {
    to.of.first = first.x;
    to.of.position = position;
    to.of.head = second.x;
    to.of.heads = heads;
    to.turn = turn + max(together.count, 1u);
    to.together = together.count;
    to.query = query;
    to.queries = works && query < queries ? min(queries - query, static_cast<uint32_t>(WARP_QUERIES)) : 0;
    to.end = position + lines;
    to.own = position + query / heads;
    to.group_end = works ? position + (group_end - 1) / heads + 1 : 0;
  }
  if (tile::lane() < together.count) {
    to.tokens[tile::lane()] = together.tokens;
  }
  if (tile::lane() < WARP_QUERIES) {
    uint32_t own = query + tile::lane();
    to.ends[tile::lane()] = position + own / heads + 1;
  }
  __syncwarp();
  return true;
}

// Where the thread's two queries lie in a value that has a row for each line; nullptr: there is none.
template <typename element>
struct query_rows {
  element *at[2];
};
template <typename element>
__device__ inline query_rows<element> rows_of_queries(const wide_consumer &c, const mk_operand &operand,
                                                      uint32_t head_dim) {
  const volatile attended_item &item = item_at_hand(c);
  element *first = plain_lines<element>(c.d, operand);
  uint32_t cols = c.d.buffer(operand).cols, heads = item.of.heads;
  head_dim = head_columns(c.d.buffer(operand), head_dim);
  query_rows<element> rows;
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    uint32_t own = tile::lane_row(tile::lane()) + h * 8, query = item.query + own;
    rows.at[h] = own < item.queries ? first + static_cast<uint64_t>(item.of.first + query / heads) * cols +
                                          (item.of.head + query % heads) * head_dim
                                    : nullptr;
  }
  return rows;
}

template <uint32_t steps>
__device__ __forceinline__ void attend_item(wide_consumer &c) {
  enum { DIMS = steps * 16 };
  attended<steps> span;
  clear(span);
  take_room(c, tile::uniform(item_at_hand(c).end));
  {
    const mk_instruction_word &in = instruction_at_hand(c);
    const query_rows<const float> from = rows_of_queries<const float>(c, in.parts[MK_PART_ATTEND_q], DIMS);
    uint32_t q[steps][4];
    load_queries(q, in, from.at);
    attend_blocks<attended_queries>(c, q, span);
  }
  uint32_t group_end = tile::uniform(item_at_hand(c).group_end);
  if (group_end != 0) {
    add_tree(c, (group_end - 1) / SPAN_TOKENS, span);
  }
  give_back_room(c);
  if (group_end == 0) {
    return;
  }
  const query_rows<uint16_t> to = rows_of_queries<uint16_t>(c, instruction_at_hand(c).parts[MK_PART_ATTEND_out], DIMS);
  const float factors[2] = {__fdividef(1.0f, span.total[0]), __fdividef(1.0f, span.total[1])};
  tile::store_rows<steps / 2>(to.at, span.o, factors);
}

// Sums of a thread: of columns 2 t and 2 t + 1 of lane 4 g + t, the first column's dims g and g + 8 of each tile of 16,
// then the second one's.
typedef attended<2> few_sums;

// The 32 tokens from `at` on of an item, whose keys and values (of the warp's 64 dims) these are, join the span.
template <uint32_t halves>
__device__ __forceinline__ void add_part(const wide_consumer &c, const uint8_t *keys, const uint8_t *values,
                                         const uint32_t (&q)[halves * 4][4], uint32_t at, few_sums &span) {
  const volatile attended_item &item = item_at_hand(c);
  uint32_t limits[2];
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    uint32_t end = item.ends[tile::lane_column(tile::lane()) + h];
    limits[h] = end > at ? end - at : 0;
  }
  part_sums part;
  auto fragment = [&](uint32_t step) { return make_uint2(q[step][0], q[step][2]); };
  uint32_t tokens = tile::uniform(item.end) - at;
  if (attends_codes(c)) {
    uint32_t scales = scales_after(at / PART_TOKENS % 2, halves);
    attend_part<false, true>(keys, values, fragment, tile::lane(), halves, limits, tokens, part,
                             {scales, scales - c.d.warp % halves * 2048});
  } else {
    attend_part<false>(keys, values, fragment, tile::lane(), halves, limits, tokens, part);
  }
  const line_factors factors = raise_tops(span.top, part.top);
  const float total[2] = {part.total.value[0], part.total.value[1]};
  add_totals(span.total, total, factors);
  tile::multiply_rows(span.o, factors.kept);
  float o[16];
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    o[4 * i] = part.o[i].value[0], o[4 * i + 1] = part.o[i].value[2];
    o[4 * i + 2] = part.o[i].value[1], o[4 * i + 3] = part.o[i].value[3];
  }
  tile::add_rows(span.o, o, factors.added);
}

// A block of the warp's own item, of which it is at token `at`.
template <uint32_t halves>
__device__ __forceinline__ void attend_few_block(const wide_consumer &c, const uint8_t *keys, const uint8_t *values,
                                                 const uint32_t (&q)[halves * 4][4], uint32_t at, few_sums &span) {
  uint32_t end = tile::uniform(item_at_hand(c).end);
  if (at % SPAN_TOKENS == 0 && at != 0) {
    keep_span(c, at / SPAN_TOKENS - 1, span);
    clear(span);
  }
#pragma unroll 1
  for (uint32_t part = 0; part < BLOCK_TOKENS && at + part < end; part += PART_TOKENS) {
    uint32_t offset = part_offset(attends_codes(c), part / PART_TOKENS, halves);
    add_part<halves>(c, keys + offset, values + offset, q, at + part, span);
  }
  tile::fence_shared_for_copies();
}

// All blocks of the cache that queries of the items together see: the first of each item, then the second, and so on.
// They are multiplied by the warps whose item it is, and pass by the others.
template <uint32_t halves>
__device__ __forceinline__ void attend_few_blocks(wide_consumer &c, const uint32_t (&q)[halves * 4][4],
                                                  few_sums &span) {
  stage_cursor stage{tile::uniform(next_stage(c).at)};
  uint32_t page = 0, at = 0;  // of the stage; of all items
  auto pass = [&] {
    page = (page + 1) % MK_GPU_STAGE_PAGES;
    if (page == 0) {
      stage.next();
    }
  };
#pragma unroll 1
  for (bool more = true; more; at += BLOCK_TOKENS) {
    more = false;
#pragma unroll 1
    for (uint32_t i = 0; i < tile::uniform(item_at_hand(c).together); i++) {
      if (at >= tile::uniform(item_at_hand(c).tokens[i])) {
        continue;
      }
      more = true;
      const uint8_t *keys = wait_page(c, stage, page), *values = keys + values_at(attends_codes(c), 1);
      if (halves == 2) {
        values = wait_page(c, stage, page + 1) + c.d.warp % 2 * (MK_GPU_PAGE_BYTES / 8);
      }
      if (tile::uniform(c.d.warp / halves) == i) {
        attend_few_block<halves>(c, keys, values, q, at, span);
      }
#pragma unroll
      for (uint32_t h = 0; h < halves; h++) {
        release_page(c, stage, page, 1);
        pass();
      }
    }
  }
#pragma unroll 1
  while (page != 0) {  // what is left of the stage has nothing
    wait_page(c, stage, page);
    release_page(c, stage, page, 1);
    pass();
  }
  put_next_stage(c, stage);
}

// The columns of the warp's 64 dims, divided by their sums of p.
template <uint32_t halves>
__device__ inline void store_columns(const wide_consumer &c, const few_sums &sums) {
  const query_rows<uint16_t> rows =
      rows_of_queries<uint16_t>(c, instruction_at_hand(c).parts[MK_PART_ATTEND_out], halves * 64);
  const float factors[2] = {__fdividef(1.0f, sums.total[0]), __fdividef(1.0f, sums.total[1])};
  uint16_t *to = rows.at[0] + c.d.warp % halves * 64 + tile::lane_column(tile::lane());
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) {  // eight dims each
    uint32_t at = i / 2 * 4 + i % 2,
             words = tile::rows_of_line(__fmul_rn(sums.o[at], factors[0]), __fmul_rn(sums.o[at + 2], factors[1]));
    if (rows.at[0] != nullptr) {
      tile::store<uint32_t>(to + i * 8, words);
    }
  }
}

template <uint32_t halves>
__device__ __forceinline__ void attend_few(wide_consumer &c) {
  few_sums span;
  clear(span);
  {
    const mk_instruction_word &in = instruction_at_hand(c);
    const query_rows<const float> from = rows_of_queries<const float>(c, in.parts[MK_PART_ATTEND_q], halves * 64);
    uint32_t q[halves * 4][4];  // of which the second row of left operands is zero
    load_queries(q, in, from.at);
    attend_few_blocks<halves>(c, q, span);
  }
  if (tile::uniform(item_at_hand(c).queries != 0)) {
    add_tree(c, (tile::uniform(item_at_hand(c).end) - 1) / SPAN_TOKENS, span);
    store_columns<halves>(c, span);
  }
}

// Of several ranks: what the share's items have put down in the SM's own copy goes on to those of the other readers. A
// warp has small items by itself, of which it takes every eighth one; all warps have the others together.
__device__ inline void push_items(const wide_consumer &c) {
  enum { WARP_PIECES = 32 * PUSHED_TOGETHER };
  const mk_instruction_word &in = instruction_at_hand(c);
  const mk_operand &out = in.parts[MK_PART_ATTEND_out];
  const uint32_t *list = work_list(c.d, in);
  const uint32_t head_dim = c.d.buffer(in.parts[MK_PART_ATTEND_kv]).head_dim, cols = c.d.buffer(out).cols;
  const uint32_t shares = param(in, MK_PARAM_ATTEND_shares), items = __ldg(list), others = other_readers(c, out);
  uint32_t turn = c.d.warp;
  consumers_meet();
#pragma unroll 1
  for (uint32_t number = param(in, MK_PARAM_ATTEND_share); number < items; number += shares) {
    const uint4 *from = item_words(list, number);
    const uint4 first = __ldg(from), second = __ldg(from + 1);
    const uint32_t pieces = second.y * head_dim * 2 / 16, count = first.y * pieces;
    const bool small = count <= WARP_PIECES;
    if (!small || turn++ % MK_GPU_CONSUMER_WARPS == 0) {
      uint16_t *own = plain_lines<uint16_t>(c.d, out) + static_cast<uint64_t>(first.x) * cols + second.x * head_dim;
      push_pieces(others, tile::view<uint8_t>(own), count, pieces, cols * 2, small ? tile::lane() : tile::thread_anew(),
                  small ? 32 : MK_GPU_CONSUMER_WARPS * 32);
    }
  }
}

__device__ __forceinline__ void consume_ATTEND(wide_consumer &c, const mk_instruction_word &in) {
  consumers_wait(c, in);
  item_at_hand(c).turn = 0;
  __syncwarp();
#pragma unroll 1
  while (take_item(c)) {
    bool few = tile::uniform(item_at_hand(c).together != 0);
    if (c.d.buffer(instruction_at_hand(c).parts[MK_PART_ATTEND_kv]).head_dim == 64) {
      few ? attend_few<1>(c) : attend_item<4>(c);
    } else {
      few ? attend_few<2>(c) : attend_item<8>(c);
    }
  }
  if constexpr (MK_GPU_RANKS) {
    push_items(c);
  }
  consumers_signal(c, instruction_at_hand(c));
}

}  // namespace mk
