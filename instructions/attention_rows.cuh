// ATTENTION of several rows per step on the device: one unit of one KV head, for every slot that has rows; attention.c.
//
// Equation: that of attention.cuh, over the tokens up to the line's own that lie in the spans of split (u - slot) mod
// splits. Where that is the only split in use of a line, its output is combined here, and COMBINE has nothing to do for
// it: then no SM waits for another one between attention and what multiplies it.
//
// Tiles: KV blocks of 64 tokens through the page ring as in attention.cuh. The columns of a product (a set) are the
// query heads of neighbouring lines of a slot: two lines of four heads. A round is eight pages: a part of 32 tokens and
// 64 dims of the output for each warp. It ends with a merge: its parts become sums over the spans of one row, which
// have 256 tokens. Four of these sums are what a unit publishes for a span of several rows; until the last round they
// lie in the block's scratch memory.
//
// Waits: q of the lines at hand, k and v of the step's tokens where this unit keeps them; the loader: the step state.
// Signals: nothing. K and V of the step's tokens go into the pages, which the loader hands over for them, and into
// their blocks, fenced for the next epoch's copies: so every token comes from a page, and a line's limit leaves out the
// tokens after its own.
#pragma once
#include "instructions/attention_rows_merge.cuh"

namespace mk {

// The fragments of a set's queries. All warps have met since they read those of the set before.
__device__ inline uint32_t *queries() { return tile::view<uint32_t>(shared_memory + ROWS_ATTENTION_AT); }
__device__ inline uint32_t *newest_token() { return tile::view<uint32_t>(shared_memory + ROWS_NEWEST_AT); }

// Writes a set's q times scale as fragments. Afterwards all warps meet.
__device__ inline void stage_queries(const consumer &c, const slot_view &v, uint32_t set) {
  const mk_operand &q = v.in.parts[MK_PART_ATTENTION_q];
  const mk_gpu_buffer &b = device::slot_of(v.in).buffers[MK_PART_ATTENTION_q];
  float scale = __uint_as_float(param(v.in, MK_PARAM_ATTENTION_scale)) * BASE_E_TO_2;
  uint32_t i = c.warp % 8, pair = c.warp / 8 * 32 + c.lane;  // a warp's column, and pairs of it
  if (c.warp / 8 >= v.halves() || (v.few(set) && i >= 4)) {
    return;
  }
  column of = column_of(v, set, i);
  const uint64_t *line = stamped_row(c.d, q) + static_cast<uint64_t>(of.line) * b.row_words;
  float2 two;
  if (norms_heads(v.in)) {
    two = wait_normed_pair(c.d, v.in, q.buffer, line + of.head * (v.steps() * MK_SQUARED_TILE), v.head_dim(), pair,
                           true, of.used);
  } else {
    tile::stamped_pair words;
    wait_pair(c.d, line + of.head * v.head_dim() + pair * 2, of.used, q.buffer, words);
    two = floats(words);
  }
  queries()[((pair / 8) * 32 + i * 4 + pair % 4) * 2 + pair / 4 % 2] =
      tile::pack_bf16(__fmul_rn(two.x, scale), __fmul_rn(two.y, scale));
}

// The cursor of page `number` of the round at hand.
__device__ inline ring_cursor<MK_GPU_RING_PAGES> round_page(const consumer &c, uint32_t number) {
  ring_cursor<MK_GPU_RING_PAGES> at = c.pages;
  at.advance(number);
  return at;
}
__device__ inline void wait_round_page(const consumer &c, uint32_t number) {
  ring_cursor<MK_GPU_RING_PAGES> at = round_page(c, number);
  wait_phase(c.d, PAGE_FULL + at.slot(), at.phase(), MK_ACTIVITY_PAGE_FULL, at.slot());
}

// Puts K and V of the step's tokens in [from, to), all of the round, into their pages and blocks. The warps that have
// no query to stage do this as far as it goes. Afterwards all warps meet.
__device__ inline void put_new_tokens(consumer &c, const slot_view &v, uint32_t round, uint32_t from, uint32_t to) {
  const mk_operand &operand = v.in.parts[MK_PART_ATTENTION_kv];
  const mk_gpu_buffer *buffers = device::slot_of(v.in).buffers;
  const mk_gpu_buffer &kv = v.kv(), &table = buffers[whole_at(MK_WHOLE_ATTENTION_table)];
  uint32_t head_dim = v.head_dim(), pair_bits = head_dim == 64 ? 5 : 6, units = (to - from) << (pair_bits + 1);
#pragma unroll 1
  for (uint32_t base = (c.warp ^ 4) * 32; base < units; base += MK_GPU_CONSUMER_WARPS * 32) {
    uint32_t unit = base + c.lane, dim = (unit & ((1u << pair_bits) - 1)) * 2, which = unit >> pair_bits & 1;
    uint32_t position = from + (unit >> pair_bits) / 2, line = v.line(position - v.first);
    uint64_t block = tile::global<const uint32_t>(table.address)[v.slot() * table.cols + position / BLOCK_TOKENS];
    const mk_operand &source = v.in.parts[which == 0 ? MK_PART_ATTENTION_k : MK_PART_ATTENTION_v];
    const uint64_t *head =
        stamped_row(c.d, source) + static_cast<uint64_t>(line) * buffers[MK_PART_ATTENTION_k].row_words;
    if (keeps_codes(kv)) {
      const new_codes codes = wait_codes(c.d, v.in, source.buffer, head, head_dim, dim / 2, which == 0);
      if (v.single()) {
        keep_codes(newest_token(), which, dim / 2, codes);
      } else {
        uint32_t first = (position - round) / BLOCK_TOKENS * v.halves(), page = first + (v.halves() == 2 ? which : 0);
        wait_round_page(c, page);
        uint8_t *at = c.d.page(round_page(c, page).slot());
        at += which * values_at(true, v.halves());
        put_codes(at, at + BLOCK_TOKENS * head_dim, head_dim, which, position % BLOCK_TOKENS, dim, codes);
      }
      put_codes(kv, code_pair(kv, block, operand.col), which, position % BLOCK_TOKENS, dim, codes);
      continue;
    }
    float2 two;
    if (norms_heads(v.in)) {
      two = wait_normed_pair(c.d, v.in, source.buffer, head, head_dim, dim / 2, which == 0, true);
    } else {
      tile::stamped_pair pair;
      wait_pair(c.d, head + dim, true, source.buffer, pair);
      two = floats(pair);
    }
    uint32_t data = tile::pack_bf16(two.x, two.y);
    // Bytes from the start of the head's pair in the block; the next dim lies beside it in K, in the next row of a step
    // in V.
    uint32_t at =
        static_cast<uint32_t>(mk_block_offset(BLOCK_TOKENS, head_dim, which, position % BLOCK_TOKENS, dim)) * 2;
    uint8_t *staged = tile::view<uint8_t>(newest_token() + ((which << pair_bits) + dim / 2));
    if (!v.single()) {
      uint32_t page = (position - round) / BLOCK_TOKENS * v.halves() + at / MK_GPU_PAGE_BYTES;
      wait_round_page(c, page);
      staged = c.d.page(round_page(c, page).slot()) + at % MK_GPU_PAGE_BYTES;
    }
    uint8_t *kept = tile::global<uint8_t>(kv.address) + (block * kv.cols + operand.col) * 256 * head_dim + at;
    if (which == 0 || v.single()) {
      tile::store<uint32_t>(staged, data);
    } else {
      tile::store<uint16_t>(staged, static_cast<uint16_t>(data));
      tile::store<uint16_t>(staged + 64, static_cast<uint16_t>(data >> 16));
    }
    if (which == 0) {
      tile::store<uint32_t>(kept, data);
    } else {
      tile::store<uint16_t>(kept, static_cast<uint16_t>(data));
      tile::store<uint16_t>(kept + 64, static_cast<uint16_t>(data >> 16));
    }
  }
}

// Computes part `warp` of a round. The round begins at position `round`, its first page is `ahead` pages after the one
// at hand, and it has `pages` pages. The warp waits for its pages also where they hold no token. `releases`: nobody
// needs the pages again. All warps meet before an instruction and after it, when every page has been taken.
__device__ inline void attend_round(const consumer &c, const slot_view &v, uint32_t warp, uint32_t set, uint32_t round,
                                    uint32_t ahead, uint32_t pages, bool releases, part_sums &sums) {
  uint32_t pages_per_block = v.halves(), page = v.rank(warp) / 2 * pages_per_block;
  if (tile::uniform(page >= pages)) {
    return;
  }
  ring_cursor<MK_GPU_RING_PAGES> first = round_page(c, ahead + page),
                                 second = round_page(c, ahead + page + pages_per_block - 1);
  wait_phase(c.d, PAGE_FULL + first.slot(), first.phase(), MK_ACTIVITY_PAGE_FULL, first.slot());
  wait_phase(c.d, PAGE_FULL + second.slot(), second.phase(), MK_ACTIVITY_PAGE_FULL, second.slot());
  const bool codes = keeps_codes(v.kv());
  uint32_t at = part_offset(codes, v.rank(warp) % 2, pages_per_block);
  uint8_t *keys = c.d.page(first.slot()) + at;
  uint8_t *values = c.d.page(second.slot()) + values_at(codes, pages_per_block) + at;
  const uint32_t scales = scales_after(v.rank(warp) % 2, pages_per_block);  // of codes
  uint32_t start = round + v.rank(warp) * PART_TOKENS;
  if (start < v.end && (c.d.params.left_out & MK_GPU_PART_WORK) == 0) {
    if (tile::uniform(v.single() && v.first - start < PART_TOKENS)) {
      put_newest(newest_token(), pages_per_block, keys, values, codes, scales, v.first - start, c.lane);
    }
    uint32_t limits[2];
#pragma unroll
    for (uint32_t j = 0; j < 2; j++) {
      uint32_t limit = limit_of(v, set, tile::lane_column(c.lane) + j);
      limits[j] = limit > start ? limit - start : 0;
    }
    const uint2 *q = tile::view<uint2>(queries()) + c.lane;
    auto fragment = [&](uint32_t step) { return q[step * 32]; };
    if (codes) {
      attend_part<false, true>(keys, values + v.half(warp) * 2048, fragment, c.lane, pages_per_block, limits,
                               v.end - start, sums, {scales, scales - v.half(warp) * 2048});
    } else {
      attend_part<false>(keys, values + v.half(warp) * 2048, fragment, c.lane, pages_per_block, limits, v.end - start,
                         sums);
    }
  }
  if (releases) {
    __syncwarp();
    if (c.lane == 0) {
      tile::arrive(c.d.barrier(PAGE_EMPTY + first.slot()), ROUND_PAGES / pages_per_block);
      if (pages_per_block != 1) {
        tile::arrive(c.d.barrier(PAGE_EMPTY + second.slot()), ROUND_PAGES / pages_per_block);
      }
    }
  }
}

// The compiler works out anew from here on what follows from these: with 32 sums there are no registers to keep it.
__device__ inline void forget_all(consumer &c, slot_view &v) {
  tile::forget(c.lane);
  tile::forget(c.warp);
  tile::forget(v.first);
  tile::forget(v.end);
  tile::forget(v.packed);
}

__device__ inline void attend_slot(consumer &c, slot_view v) {
  uint32_t sets = v.sets();
  round_view r = {v.first_span(), 0, 0};
  bool first = true;
#pragma unroll 1
  while (r.start < v.end) {
#pragma unroll 1
    for (r.set = 0; r.set < sets; r.set++) {
      forget_all(c, v);
      r.look_up(v);
      if (first || sets > 1) {
        stage_queries(c, v, r.set);
      }
      if (tile::uniform(r.set == 0 && (v.single() ? first : v.first < r.end(v)))) {
        put_new_tokens(c, v, r.start, max(v.first, r.start), v.single() ? v.end : r.end(v));
      }
      // Here the memory of the parts has been read. A later round of the same queries may begin before that.
      bool meets = tile::uniform(first || sets > 1 || !v.single());
      if (meets) {
        consumers_meet(c);
      }
      part_sums sums;
#pragma unroll 1
      for (bool joins = false;; joins = true) {
        uint32_t warp = joins ? c.warp - MERGE_WARPS : c.warp;
        forget_all(c, v);
        clear(sums);  // without it their registers would stay taken from one instruction to the next
        attend_round(c, v, warp, r.set, joins ? r.next(v) : r.start, joins ? r.pages() : 0,
                     joins ? ROUND_PAGES / 2 : r.pages(), r.set + 1 == sets, sums);
        forget_all(c, v);
        if (joins) {
          put_joining(c, warp, sums);
          consumers_meet(c);  // who merges takes the last round's parts last
          break;
        }
        if (!meets) {
          consumers_meet(c);
        }
        merge_round(c, v, r, sums);
        if (tile::uniform(c.warp < MERGE_WARPS || !r.is_joined())) {
          break;  // else who does not merge has the last round to do meanwhile
        }
      }
    }
    first = false;
    bool joined = tile::uniform(r.is_joined());
    c.pages.advance(r.pages());
    c.pages.advance(joined ? ROUND_PAGES / 2 : 0);
    r.start = joined ? v.end : r.next(v);
  }
}

__device__ inline void consume_ATTENTION(rows_consumer &c, const mk_instruction_word &in) {
  const volatile rows_state &state = rows_of(c.d);
  const mk_operand &kv = in.parts[MK_PART_ATTENTION_kv];
  // Each lane looks whether there is something to do for its slot.
  uint32_t slot = tile::place_in_group<MK_MAX_ROWS>(c.lane), count = state.slot_count[slot];
  auto split = [&](uint32_t of) {  // looked up each time: registers are short
    return mk_split_of(kv.row, of, static_cast<const volatile uint32_t &>(param(in, MK_PARAM_ATTENTION_splits)));
  };
  bool works = count != 0 && split(slot) * device::slot_of(in).buffers[MK_PART_ATTENTION_kv].span_tokens <
                                 state.slot_first[slot] + count;
  // Parts and queries lie where results of linear instructions do. And when all warps have seen the pages of what came
  // before, the storers have taken all results.
  wait_for_storers(c);
#pragma unroll 1
  for (uint32_t slots = tile::lanes_where(works) & 0xffffu; slots != 0; slots &= slots - 1) {
    uint32_t next = __ffs(static_cast<int>(slots)) - 1;
    const mk_gpu_buffer &b = device::slot_of(in).buffers[MK_PART_ATTENTION_kv];
    uint32_t begin = tile::uniform(state.slot_first[next]);
    attend_slot(c, {in, state, begin, begin + tile::uniform(state.slot_count[next]),
                    tile::uniform(slot_view::pack(next, split(next), static_cast<uint32_t>(b.head_dim)))});
  }
  tile::fence_global_for_copies();  // of what was appended, for the next epoch's copies
  consumers_meet(c);                // before anybody stages something else, or waits for another group's page
}

}  // namespace mk
