// ATTENTION of the kernel for prompts, on the device: one split of one KV head, for all lines of the chunk; attention.c.
//
// Equation: x_t = q k_t, q scaled to base 2; out = (sum_t p_t v_t, m, sum_t p_t), p_t = 2^(x_t - m), over the tokens up
// to the line's own that lie in the spans of this split. Tiles: KV blocks of 64 tokens through the page ring as in
// attention.cuh. Here q is the left operand and a tile of K two right ones, whose fragments are the words of K's own: S
// [32 lines][32 tokens] = q K^T, and O [32 lines][dims] = P V, where P is S as it lies. q and p are rounded to bf16. A
// set is 32 lines of one query head; a warp takes every eighth set through all tokens of a span, in order, so nothing
// is left to merge, and a line's sums depend on its position alone. Waits: q of the lines, k and v of the step's tokens
// where this unit keeps them; the loader: the step state. Signals: nothing. K and V of the step's tokens go into the
// pages, which the loader hands over for them, and into their blocks, fenced for the next epoch's copies: so every
// token comes from a page. Between spans of a split the sums wait in the block's scratch memory.
#pragma once
#include "vm/gpu/prompt.cuh"

namespace mk {

enum {
  SET_LINES = 32,
  HALVES = MK_PROMPT_ROWS / SET_LINES,                        // sets of a query head
  PAIR_TOKENS = 32,                                           // two tiles of tokens at a time
  Q_BYTES = MK_GPU_ACTIVATION_BYTES / MK_GPU_CONSUMER_WARPS,  // a warp's: [tile of lines][step] fragments
};

constexpr float SCORE_TO_2 = 1.4426950408889634f;  // scores are kept in base 2

// Lane 4 g + t of a warp: of tile m, rows g (i = 0) and g + 8 (i = 1).
template <uint32_t steps>
struct set_sums {
  tile::sum_tile o[2][2 * steps];  // eight dims each
  float max[2][2], total[2][2];    // the total over this lane's tokens
};

// What follows from instruction and step is looked up each time: registers are short.
template <uint32_t steps>
struct split_view {
  const prompt_consumer &c;

  __device__ const mk_instruction_word &in() const { return instruction_at_hand(c); }
  __device__ uint32_t count() const { return lines_of(c.d).count; }
  __device__ uint32_t first() const { return lines_of(c.d).first; }  // positions of the step
  __device__ uint32_t end() const { return first() + count(); }
  __device__ uint32_t span_tokens() const { return device::slot_of(in()).buffers[MK_PART_ATTENTION_kv].span_tokens; }
  __device__ uint32_t first_span() const { return in().parts[MK_PART_ATTENTION_kv].row * span_tokens(); }
  __device__ uint32_t span_end(uint32_t span) const { return min(end(), span + span_tokens()); }
  __device__ uint32_t stride() const { return param(in(), MK_PARAM_ATTENTION_splits) * span_tokens(); }

  enum { DIMS = steps * 16, PAGES_PER_BLOCK = DIMS / 64, V_AT = DIMS == 64 ? MK_GPU_PAGE_BYTES / 2 : 0 };
  static_assert(2 * steps * 512 <= Q_BYTES, "the queries of a set have room");
};

__device__ inline uint32_t span_of(const prompt_consumer &c) { return words_of(c).span; }
__device__ inline void set_span(const prompt_consumer &c, uint32_t span) { put_word(words_of(c).span, span); }

__device__ inline const uint8_t *wait_page(const prompt_consumer &c, const page_cursor &at) {
  wait_phase(c.d, PAGE_FULL + at.slot(), at.phase(), MK_ACTIVITY_PAGE_FULL, at.slot());
  return c.d.page(at.slot());
}
__device__ inline const uint8_t *wait_span_page(const prompt_consumer &c, uint32_t number) {
  return wait_page(c, page_ahead(c, number));
}

// q of a set times scale, as A fragments.
template <uint32_t steps>
__device__ inline void stage_queries(const prompt_consumer &c, const split_view<steps> &v) {
  enum { BATCH = 4 };  // fragments that are fetched together
  const mk_operand &q = v.in().parts[MK_PART_ATTENTION_q];
  const mk_gpu_buffer &b = c.d.buffer(q);
  float scale = __uint_as_float(param(v.in(), MK_PARAM_ATTENTION_scale)) * SCORE_TO_2;
  uint32_t count = v.count(), line = words_of(c).set % HALVES * SET_LINES + tile::lane() / 4;
  const uint64_t *words = stamped_line(c.d, q) + static_cast<uint64_t>(line) * b.row_words +
                          words_of(c).set / HALVES * split_view<steps>::DIMS + tile::lane() % 4 * 2;
  uint4 *fragments =
      reinterpret_cast<uint4 *>(shared_memory + MK_GPU_ACTIVATION_AT + c.d.warp * Q_BYTES) + tile::lane();
  __syncwarp();
#pragma unroll 1
  for (uint32_t batch = 0; batch < 2 * steps; batch += BATCH) {
    // Fragment n is of lines 16 m and elements 16 k on; its word i of rows g + i % 2 * 8 and elements 2 t + i / 2 * 8.
    tile::stamped_pair pairs[BATCH * 4];
    auto row = [&](uint32_t n) { return (batch + n / 4) / steps * 16 + n % 2 * 8; };
    auto at = [&](uint32_t n) {
      return words + static_cast<uint64_t>(row(n)) * b.row_words + (batch + n / 4) % steps * 16 + n / 2 % 2 * 8;
    };
    auto has = [&](uint32_t n) { return line + row(n) < count; };
    wait_stamped_pairs<BATCH * 4>(c.d, q.buffer, at, has, pairs);
#pragma unroll
    for (uint32_t f = 0; f < BATCH; f++) {
      uint32_t word[4];
#pragma unroll
      for (uint32_t i = 0; i < 4; i++) {
        const tile::stamped_pair &pair = pairs[f * 4 + i];
        word[i] = tile::pack_bf16(__uint_as_float(tile::stamp_data(pair.low)) * scale,
                                  __uint_as_float(tile::stamp_data(pair.high)) * scale);
      }
      fragments[(batch + f) * 32] = make_uint4(word[0], word[1], word[2], word[3]);
    }
  }
  __syncwarp();
}

// The words of a tile of K or V are the right operands of its first eight rows, and of the other eight.
__device__ inline tile::vector_tile half_of(const tile::weight_tile &tile, uint32_t half) {
  return {{tile.word[half], tile.word[half + 2]}};
}

// Folds the 32 tokens from `at` on into the sums. limit: attend_set.
template <uint32_t steps>
__device__ inline void attend_pair(const prompt_consumer &c, const uint8_t *keys, const uint8_t *values, uint32_t at,
                                   uint32_t limit, set_sums<steps> &sums) {
  const uint8_t *q = shared_memory + MK_GPU_ACTIVATION_AT + c.d.warp * Q_BYTES;
  tile::sum_tile s[2][4];
#pragma unroll
  for (uint32_t n = 0; n < 8; n++) {
    tile::zero(s[n / 4][n % 4]);
  }
#pragma unroll 4
  for (uint32_t k = 0; k < steps; k++) {
    tile::weight_tile left[2];
    tile::load(left[0], q + k * 512);
    tile::load(left[1], q + (steps + k) * 512);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
      tile::weight_tile tokens;
      tile::load(tokens, keys + (i * steps + k) * 512);
#pragma unroll
      for (uint32_t m = 0; m < 2; m++) {
        tile::multiply_add(s[m][2 * i], left[m], half_of(tokens, 0));
        tile::multiply_add(s[m][2 * i + 1], left[m], half_of(tokens, 1));
      }
    }
  }
  bool grows = false;
  float keep[2][2];
  uint32_t first = at + tile::lane() % 4 * 2;
  if (__any_sync(0xffffffffu, at + PAIR_TOKENS > limit)) {  // some tokens are behind some line
#pragma unroll
    for (uint32_t n = 0; n < 32; n++) {
      uint32_t m = n / 16, h = n / 8 % 2, i = n % 8;
      float &value = s[m][i / 2].value[2 * h + i % 2];
      bool counts = first + i / 2 * 8 + i % 2 < limit + m * 16 + h * 8;
      value = counts ? value : -INFINITY;
    }
  }
#pragma unroll
  for (uint32_t m = 0; m < 2; m++) {
#pragma unroll
    for (uint32_t h = 0; h < 2; h++) {
      float top = -INFINITY;
#pragma unroll
      for (uint32_t n = 0; n < 8; n++) {
        top = fmaxf(top, s[m][n / 2].value[2 * h + n % 2]);
      }
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      top =
          ceilf(fmaxf(sums.max[m][h], top));  // whole, as everywhere: whoever merges parts multiplies by powers of two
      float base = top == -INFINITY ? 0.0f : top;  // a line whose tokens all lie elsewhere
      keep[m][h] = tile::exp2(sums.max[m][h] - base);
      grows = grows || top != sums.max[m][h];
      sums.max[m][h] = top;
      float total = 0.0f;
#pragma unroll
      for (uint32_t n = 0; n < 8; n++) {
        float &value = s[m][n / 2].value[2 * h + n % 2];
        value = tile::exp2(value - base);
        total += value;
      }
      sums.total[m][h] = sums.total[m][h] * keep[m][h] + total;
    }
  }
  if (__any_sync(0xffffffffu, grows)) {  // else all factors are 1
#pragma unroll
    for (uint32_t n = 0; n < 4 * steps; n++) {
      tile::sum_tile &o = sums.o[n / (2 * steps)][n % (2 * steps)];
#pragma unroll
      for (uint32_t i = 0; i < 4; i++) {
        o.value[i] *= keep[n / (2 * steps)][i / 2];
      }
    }
  }
  tile::weight_tile p[2][2];
#pragma unroll
  for (uint32_t m = 0; m < 2; m++) {
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
#pragma unroll
      for (uint32_t w = 0; w < 4; w++) {
        const tile::sum_tile &from = s[m][2 * i + w / 2];
        p[m][i].word[w] = tile::pack_bf16(from.value[w % 2 * 2], from.value[w % 2 * 2 + 1]);
      }
    }
  }
#pragma unroll
  for (uint32_t d = 0; d < steps; d++) {
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
      tile::weight_tile dims;
      tile::load(dims, values + (i * steps + d) * 512);
#pragma unroll
      for (uint32_t m = 0; m < 2; m++) {
        tile::multiply_add(sums.o[m][2 * d], p[m][i], half_of(dims, 0));
        tile::multiply_add(sums.o[m][2 * d + 1], p[m][i], half_of(dims, 1));
      }
    }
  }
}

// K and V of the step's tokens in [from, to), all of the span that begins at `span`: into their pages and blocks; zeros for V behind
// the last one, as what a page holds there need not be a number. All warps meet here.
template <uint32_t steps>
__device__ inline void put_new_tokens(const prompt_consumer &c, const split_view<steps> &v, uint32_t span,
                                      uint32_t from, uint32_t to) {
  using view = split_view<steps>;
  enum { BATCH = 8, PAIRS = view::DIMS / 2, THREADS = MK_GPU_CONSUMER_WARPS * 32 };
  const mk_operand &operand = v.in().parts[MK_PART_ATTENTION_kv];
  const mk_gpu_buffer *buffers = device::slot_of(v.in()).buffers;
  const mk_gpu_buffer &kv = buffers[MK_PART_ATTENTION_kv], &table = buffers[whole_at(MK_WHOLE_ATTENTION_table)];
  uint32_t whole = (to + PAIR_TOKENS - 1) / PAIR_TOKENS * PAIR_TOKENS;
  uint32_t dim = (c.d.warp * 32 + tile::lane()) % PAIRS * 2, rank = (c.d.warp * 32 + tile::lane()) / PAIRS;
  enum { RANKS = THREADS / PAIRS };  // a rank of threads has a token's K or V, and takes every so many-th
  const uint64_t *keys = stamped_line(c.d, v.in().parts[MK_PART_ATTENTION_k]) + dim;
  const uint64_t *values = stamped_line(c.d, v.in().parts[MK_PART_ATTENTION_v]) + dim;
  uint32_t row_words = buffers[MK_PART_ATTENTION_k].row_words;
#pragma unroll 1
  for (uint32_t base = rank; base < (whole - from) * 2; base += RANKS * BATCH) {
    tile::stamped_pair pairs[BATCH];
    auto position = [&](uint32_t i) { return from + (base + i * RANKS) / 2; };
    auto at = [&](uint32_t i) {
      return ((base + i * RANKS) % 2 == 0 ? keys : values) + static_cast<uint64_t>(position(i) - v.first()) * row_words;
    };
    auto has = [&](uint32_t i) { return position(i) < to; };
    wait_stamped_pairs<BATCH>(c.d, v.in().parts[MK_PART_ATTENTION_k].buffer, at, has, pairs);
#pragma unroll
    for (uint32_t i = 0; i < BATCH; i++) {
      uint32_t token = position(i), which = (base + i * RANKS) % 2;
      if (token >= whole) {
        continue;
      }
      uint32_t data = tile::pack_bf16(__uint_as_float(tile::stamp_data(pairs[i].low)),
                                      __uint_as_float(tile::stamp_data(pairs[i].high)));
      // Bytes from the start of the head's pair in the block; the next dim lies beside it in K, in the next row of a step in V.
      uint32_t offset = static_cast<uint32_t>(mk_block_offset(64, view::DIMS, which, token % 64, dim)) * 2;
      uint32_t page = (token - span) / 64 * view::PAGES_PER_BLOCK + offset / MK_GPU_PAGE_BYTES;
      wait_span_page(c, page);
      uint8_t *staged = c.d.page(page_ahead(c, page).slot()) + offset % MK_GPU_PAGE_BYTES;
      uint64_t block = __ldg(reinterpret_cast<const uint32_t *>(table.address) + token / 64);
      uint8_t *kept =
          reinterpret_cast<uint8_t *>(kv.address) + (block * kv.cols + operand.col) * 256 * view::DIMS + offset;
      if (which == 0) {
        *reinterpret_cast<uint32_t *>(staged) = data;
        if (token < to) {
          *reinterpret_cast<uint32_t *>(kept) = data;
        }
      } else {
        *reinterpret_cast<uint16_t *>(staged) = static_cast<uint16_t>(data);
        *reinterpret_cast<uint16_t *>(staged + 64) = static_cast<uint16_t>(data >> 16);
        if (token < to) {
          *reinterpret_cast<uint16_t *>(kept) = static_cast<uint16_t>(data);
          *reinterpret_cast<uint16_t *>(kept + 64) = static_cast<uint16_t>(data >> 16);
        }
      }
    }
  }
  consumers_meet();
}

// Where a lane keeps its sums of a set between spans: keeps them, or gets them back.
template <uint32_t steps, bool keeps>
__device__ inline void move_set(const prompt_consumer &c, set_sums<steps> &sums) {
  float *at = c.d.params.scratch + static_cast<uint64_t>(blockIdx.x) * c.d.params.scratch_floats +
              words_of(c).set * MK_PROMPT_GPU_KEPT_SET_FLOATS + tile::lane();
  auto move = [&](uint32_t i, float &value) {
    if (keeps) {
      __stcg(at + i * 32, value);
    } else {
      value = __ldcg(at + i * 32);
    }
  };
#pragma unroll
  for (uint32_t i = 0; i < 16 * steps; i++) {
    move(i, sums.o[i / (8 * steps)][i / 4 % (2 * steps)].value[i % 4]);
  }
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    move(16 * steps + i, sums.max[i / 2][i % 2]);
    move(16 * steps + 4 + i, sums.total[i / 2][i % 2]);
  }
}

// The sums of a set become parts, published.
template <uint32_t steps>
__device__ inline void publish_set(const prompt_consumer &c, const split_view<steps> &v, set_sums<steps> &sums) {
  const mk_operand &out = v.in().parts[MK_PART_ATTENTION_out];
  const mk_gpu_buffer &b = c.d.buffer(out);
  uint32_t t = tile::lane() % 4, count = v.count();
#pragma unroll
  for (uint32_t r = 0; r < 4; r++) {
    uint32_t m = r / 2, h = r % 2, line = words_of(c).set % HALVES * SET_LINES + m * 16 + h * 8 + tile::lane() / 4;
    float total = tile::sum_group<4>(sums.total[m][h]);
    if (line >= count || v.first() + line < v.first_span() || !publishes(c.d)) {
      continue;
    }
    uint64_t *words = stamped_line(c.d, out) + static_cast<uint64_t>(line) * b.row_words +
                      words_of(c).set / HALVES * (split_view<steps>::DIMS + 2);
#pragma unroll
    for (uint32_t n = 0; n < 2 * steps; n++) {
      tile::store_stamped_pair(words + n * 8 + t * 2, __float_as_uint(sums.o[m][n].value[2 * h]),
                               __float_as_uint(sums.o[m][n].value[2 * h + 1]), c.d.generation());
    }
    if (t == 0) {
      tile::store_stamped_pair(words + split_view<steps>::DIMS, __float_as_uint(sums.max[m][h]), __float_as_uint(total),
                               c.d.generation());
    }
  }
}

// One set over the span at hand.
template <uint32_t steps>
__device__ inline void attend_set(const prompt_consumer &c, const split_view<steps> &v) {
  using view = split_view<steps>;
  set_sums<steps> sums;
  // Of the lane's first row, the first position that does not count; that of a row behind the last line is of no consequence.
  uint32_t limit = v.first() + words_of(c).set % HALVES * SET_LINES + tile::lane() / 4 + 1;
  if (span_of(c) == v.first_span()) {
#pragma unroll
    for (uint32_t n = 0; n < 4 * steps; n++) {
      tile::zero(sums.o[n / (2 * steps)][n % (2 * steps)]);
    }
#pragma unroll
    for (uint32_t r = 0; r < 4; r++) {
      sums.max[r / 2][r % 2] = -INFINITY;
      sums.total[r / 2][r % 2] = 0.0f;
    }
  } else {
    move_set<steps, false>(c, sums);
  }
  uint32_t end =
      min(v.span_end(span_of(c)),
          v.first() + (words_of(c).set % HALVES + 1) * SET_LINES);  // behind the set's last line nothing counts
  page_cursor pages{words_of(c).pages};
#pragma unroll 1
  for (uint32_t at = span_of(c); at < end; at += PAIR_TOKENS) {
    uint32_t tiles = at % 64 / 16 * steps * 512;
    page_cursor last = pages;  // of the block
    last.advance(view::PAGES_PER_BLOCK - 1);
    const uint8_t *keys = wait_page(c, pages) + tiles;
    const uint8_t *values = wait_page(c, last) + view::V_AT + tiles;
    if (at % 64 != 0) {
      pages = last;
      pages.next();
    }
    attend_pair<steps>(c, keys, values, at, limit, sums);
  }
  if (span_of(c) + v.stride() >= v.end()) {
    publish_set(c, v, sums);
  } else {
    move_set<steps, true>(c, sums);
  }
}

template <uint32_t steps>
__device__ __forceinline__ void attend_split(prompt_consumer &c) {
  using view = split_view<steps>;
  const view v{c};
  for (set_span(c, v.first_span()); span_of(c) < v.end(); set_span(c, span_of(c) + v.stride())) {
    if (v.first() < v.span_end(span_of(c))) {
      put_new_tokens(c, v, span_of(c), max(v.first(), span_of(c)), v.span_end(span_of(c)));
    }
#pragma unroll 1
    for (put_word(words_of(c).set, c.d.warp); words_of(c).set < param(v.in(), MK_PARAM_ATTENTION_group) * HALVES;
         put_word(words_of(c).set, words_of(c).set + MK_GPU_CONSUMER_WARPS)) {
      if (words_of(c).set % HALVES * SET_LINES < v.count()) {
        stage_queries(c, v);
        attend_set(c, v);
      }
    }
    uint32_t pages = (v.span_end(span_of(c)) - span_of(c) + 63) / 64 * view::PAGES_PER_BLOCK;
#pragma unroll 1
    for (uint32_t page = 0; page < pages; page++) {
      wait_span_page(c, page);  // also of a warp without a set: so it never runs a round ahead
      release_page(c, page_ahead(c, page).slot(), 1);
    }
    pass_pages(c, pages);
  }
}

__device__ inline void consume_ATTENTION(prompt_consumer &c, const mk_instruction_word &in) {
  const mk_gpu_buffer &b = device::slot_of(in).buffers[MK_PART_ATTENTION_kv];
  const volatile prompt_state &state = lines_of(c.d);
  if (in.parts[MK_PART_ATTENTION_kv].row * b.span_tokens >= state.first + state.count) {
    return;
  }
  consumers_meet();  // everybody has taken the last sums from where queries lie now
  if (b.head_dim == 64) {
    attend_split<4>(c);
  } else {
    attend_split<8>(c);
  }
  tile::fence_global_for_copies();  // of what was appended, for the next epoch's copies
  consumers_meet();
}

}  // namespace mk
