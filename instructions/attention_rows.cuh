// ATTENTION of several rows per step on the device: one unit of one KV head, for every slot that has rows; attention.c.
//
// Equation: s_t = scale q k_t; out = (sum_t p_t v_t, max_t s_t, sum_t p_t), p_t = exp(s_t - max), over the tokens up to the line's
// own that lie in the spans of split (u - slot) mod splits.
// Tiles: KV blocks of 64 tokens through the page ring as in attention.cuh; S = K q^T is [16 tokens][8 columns], O = V^T P^T
// [16 dims][8 columns]. The columns (a set) are the query heads of neighbouring lines of a slot: two lines of four heads. q and p are
// two fragments each, rounded to bf16 and what rounding left over.
// Two teams of eight warps take the sets in turn, or, of heads of 128 dims, each takes 64 dims of every set's output. Of a span's sixteen tiles rank r of a team takes tiles r and r + 8; the ranks' parts are
// merged in order when the split is done. So the order of a line's sums depends on its position alone.
// Waits: q of the lines at hand, k and v of the step's tokens where this unit keeps them; the loader: the step state. Signals: nothing.
// K and V of the step's tokens go into the pages, which the loader hands over for them, and into their blocks, fenced for the next
// epoch's copies: so every token comes from a page, and tokens behind a line's own are left out by its limit.
// Between spans of a split the sums wait in the block's scratch memory.
#pragma once
#include "instructions/combine.cuh"
#include "vm/gpu/rows.cuh"
#include "vm/gpu/rows_consumer.cuh"

namespace mk {

enum {
  TEAMS = 2,
  RANKS = MK_GPU_CONSUMER_WARPS / TEAMS,
  TEAM_THREADS = RANKS * 32,
  TEAM_BARRIER = 2,
  SPAN_TILES = 16,
  Q_BYTES = 4096,                                        // of a team: [rounded, rest][step] fragments
  SLICE_DIMS = 32,                                       // that are merged at a time
  ROWS_SCALES_AT = ROWS_ATTENTION_AT + TEAMS * Q_BYTES,  // [warp][column](max, sum of p)
  KEPT_FLOATS = 20,                                      // of a lane between spans: 16 sums, 2 maxima, 2 totals
};
static_assert(MK_GPU_CONSUMER_WARPS * 32 * KEPT_FLOATS == MK_GPU_KEPT_SET_FLOATS, "what launch.h says of it");
static_assert(Q_BYTES * TEAMS + MK_GPU_CONSUMER_WARPS * 8 * 8 <= ROWS_ATTENTION_BYTES, "queries and scales have room");
static_assert(MK_GPU_CONSUMER_WARPS * 8 * SLICE_DIMS * 4 <= ROWS_ATTENTION_AT - ROWS_RESULT_AT,
              "parts have room before the queries");

struct set_sums {          // columns 2 t and 2 t + 1 of lane 4 g + t
  tile::sum_tile o[4];     // 16 dims each, of this team's 64
  float max[2], total[2];  // base 2; the total over this lane's tokens
};

// A unit's work for one slot. What follows from the instruction is looked up each time: registers are short.
struct slot_view {
  const mk_instruction &in;
  const volatile rows_state &state;
  uint32_t slot, split, tasks;  // the split that this unit does of it; sets of the slots before it

  __device__ uint32_t first() const { return state.slot_first[slot]; }  // positions of the slot's rows in this step
  __device__ uint32_t end() const { return first() + state.slot_count[slot]; }
  __device__ uint32_t line(uint32_t row) const { return state.order[state.slot_start[slot] + row]; }
  __device__ uint32_t head_dim() const { return device::slot_of(in).buffers[MK_SLOT_ATTENTION_kv].head_dim; }
  __device__ uint32_t steps() const { return head_dim() / 16; }
  __device__ uint32_t pages_per_block() const { return head_dim() / 64; }
  __device__ uint32_t half(uint32_t team) const { return head_dim() == 64 ? 0 : team; }  // of the output's dims
  __device__ uint32_t first_set(uint32_t team) const { return head_dim() == 64 ? (tasks + team) % TEAMS : 0; }
  __device__ uint32_t set_stride() const { return head_dim() == 64 ? TEAMS : 1; }
  __device__ uint32_t span_tokens() const { return device::slot_of(in).buffers[MK_SLOT_ATTENTION_kv].span_tokens; }
  __device__ uint32_t group() const { return in.params[MK_PARAM_ATTENTION_group]; }
  __device__ uint32_t head_bits() const {
    return 32 - __clz(static_cast<int>(group() - 1));
  }  // padded to a power of two
  __device__ uint32_t sets() const { return ((state.slot_count[slot] << head_bits()) + 7) / 8; }
  __device__ uint32_t splits() const { return in.params[MK_PARAM_ATTENTION_splits]; }
  __device__ uint32_t first_span() const { return split * span_tokens(); }
};

__device__ inline uint32_t team_of(const consumer &c) { return c.warp / RANKS; }
__device__ inline uint32_t rank_in_team(const consumer &c) { return c.warp % RANKS; }

struct column {
  bool used;
  uint32_t line, head, position;
};

__device__ inline column column_of(const consumer &c, const slot_view &v, uint32_t set, uint32_t i) {
  uint32_t at = set * 8 + i, row = at >> v.head_bits(), head = at & ((1u << v.head_bits()) - 1);
  bool used = row < v.end() - v.first() && head < v.group();
  return {used, used ? v.line(row) : 0, head, v.first() + row};
}

// A set's q times scale to this team's fragments.
__device__ inline void stage_queries(const consumer &c, const slot_view &v, uint32_t set) {
  const mk_operand &q = v.in.operands[MK_SLOT_ATTENTION_q];
  const mk_gpu_buffer &b = c.d.buffer(q);
  float scale = __uint_as_float(v.in.params[MK_PARAM_ATTENTION_scale]) * BASE_E_TO_2;
  const uint64_t *words = stamped_row(c.d, q);
  uint32_t *fragments = reinterpret_cast<uint32_t *>(shared_memory + ROWS_ATTENTION_AT + team_of(c) * Q_BYTES);
  uint32_t i = rank_in_team(c);  // a warp's column
  column of = column_of(c, v, set, i);
  tile::stamped_pair pairs[2];
  auto at = [&](uint32_t n) {
    return words + static_cast<uint64_t>(of.line) * b.row_words + of.head * v.head_dim() + (n * 32 + c.lane) * 2;
  };
  auto has = [&](uint32_t n) { return of.used && (n * 32 + c.lane) * 2 < v.head_dim(); };
  wait_stamped_pairs<2>(c.d, q.buffer, at, has, pairs);
  tile::meet_at<TEAM_THREADS>(TEAM_BARRIER + team_of(c));  // the last set is done with
#pragma unroll
  for (uint32_t n = 0; n < 2; n++) {
    uint32_t pair = n * 32 + c.lane;
    if (pair * 2 < v.head_dim()) {
      float low = __uint_as_float(tile::stamp_data(pairs[n].low)) * scale,
            high = __uint_as_float(tile::stamp_data(pairs[n].high)) * scale;
      uint32_t rounded = tile::pack_bf16(low, high);
      uint32_t *to = fragments + ((pair / 8) * 32 + i * 4 + pair % 4) * 2 + pair / 4 % 2;
      to[0] = rounded;
      to[Q_BYTES / 8] = tile::pack_bf16(low - tile::low_bf16(rounded), high - tile::high_bf16(rounded));
    }
  }
  tile::meet_at<TEAM_THREADS>(TEAM_BARRIER + team_of(c));
}

// Folds the tile of the tokens from `first` on into the sums. limits: of the lane's columns, the first position that does not count.
__device__ inline void attend_rows_tile(const consumer &c, const slot_view &v, const uint8_t *keys,
                                        const uint8_t *values, uint32_t first, const uint32_t (&limits)[2],
                                        set_sums &sums) {
  const uint2 *q = reinterpret_cast<const uint2 *>(shared_memory + ROWS_ATTENTION_AT + team_of(c) * Q_BYTES) + c.lane;
  uint32_t g = c.lane / 4, t = c.lane % 4;
  tile::sum_tile s[2];
  tile::zero(s[0]);
  tile::zero(s[1]);
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    if (h * 4 < v.steps()) {
#pragma unroll
      for (uint32_t i = h * 4; i < h * 4 + 4; i++) {
        tile::weight_tile k;
        tile::load(k, keys + i * 512);
        uint2 rounded = q[i * 32], rest = q[i * 32 + Q_BYTES / 16];
        tile::multiply_add(s[0], k, tile::vector_tile{{rounded.x, rounded.y}});
        tile::multiply_add(s[1], k, tile::vector_tile{{rest.x, rest.y}});
      }
    }
  }
  float p[4];  // tokens g, g, g + 8, g + 8 of the lane's two columns
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    p[i] = first + g + i / 2 * 8 < limits[i % 2] ? s[0].value[i] + s[1].value[i] : -INFINITY;
  }
#pragma unroll
  for (uint32_t j = 0; j < 2; j++) {
    float top = fmaxf(p[j], p[j + 2]);
#pragma unroll
    for (uint32_t offset = 4; offset < 32; offset *= 2) {
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
    }
    top = fmaxf(sums.max[j], top);
    float base = top == -INFINITY ? 0.0f : top;  // a line whose tokens all lie elsewhere
    float keep = tile::exp2(sums.max[j] - base);
    sums.max[j] = top;
    p[j] = tile::exp2(p[j] - base);
    p[j + 2] = tile::exp2(p[j + 2] - base);
    sums.total[j] = sums.total[j] * keep + (p[j] + p[j + 2]);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      sums.o[i].value[j] *= keep;
      sums.o[i].value[j + 2] *= keep;
    }
  }
  uint32_t low = tile::pack_bf16(p[0], p[1]), high = tile::pack_bf16(p[2], p[3]);
  tile::vector_tile rounded = {{tile::transpose(low), tile::transpose(high)}};
  low = tile::pack_bf16(p[0] - tile::low_bf16(low), p[1] - tile::high_bf16(low));
  high = tile::pack_bf16(p[2] - tile::low_bf16(high), p[3] - tile::high_bf16(high));
  tile::vector_tile rest = {{tile::transpose(low), tile::transpose(high)}};
  // What memory holds beyond the last token need not be a number.
  uint32_t valid = v.end() - first;
  uint32_t early = (2 * t < valid ? 0xffffu : 0u) | (2 * t + 1 < valid ? 0xffff0000u : 0u);
  uint32_t late = (2 * t + 8 < valid ? 0xffffu : 0u) | (2 * t + 9 < valid ? 0xffff0000u : 0u);
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    tile::weight_tile tokens;
    tile::load(tokens, values + i * 512);
    tokens.word[0] &= early, tokens.word[1] &= early;
    tokens.word[2] &= late, tokens.word[3] &= late;
    tile::multiply_add(sums.o[i], tokens, rounded);
    tile::multiply_add(sums.o[i], tokens, rest);
  }
}

// The page `number` from the first one of the span at hand on.
__device__ inline ring_cursor<MK_GPU_RING_PAGES> span_page(const consumer &c, uint32_t number) {
  ring_cursor<MK_GPU_RING_PAGES> at = c.pages;
  at.advance(number);
  return at;
}
__device__ inline void wait_span_page(const consumer &c, uint32_t number) {
  ring_cursor<MK_GPU_RING_PAGES> at = span_page(c, number);
  wait_phase(c.d, PAGE_FULL + at.slot(), at.phase(), MK_ACTIVITY_PAGE_FULL, at.slot());
}

// K and V of the step's tokens in [from, to), all of one span that begins at `span`: into their pages and blocks. All warps meet here; the
// team that has no query to stage does the work as far as it goes.
__device__ inline void put_new_tokens(consumer &c, const slot_view &v, uint32_t span, uint32_t from, uint32_t to) {
  const mk_operand &operand = v.in.operands[MK_SLOT_ATTENTION_kv];
  const mk_gpu_buffer *buffers = device::slot_of(v.in).buffers;
  const mk_gpu_buffer &kv = buffers[MK_SLOT_ATTENTION_kv], &table = buffers[MK_SLOT_ATTENTION_table];
  uint32_t head_dim = v.head_dim(), pair_bits = head_dim == 64 ? 5 : 6;
  uint32_t worker = c.warp ^ (v.tasks % TEAMS == 0 ? RANKS : 0), units = (to - from) << (pair_bits + 1);
#pragma unroll 1
  for (uint32_t base = worker * 32; base < units; base += MK_GPU_CONSUMER_WARPS * 32) {
    uint32_t unit = base + c.lane, dim = (unit & ((1u << pair_bits) - 1)) * 2, which = unit >> pair_bits & 1;
    uint32_t position = from + (unit >> pair_bits) / 2, line = v.line(position - v.first());
    uint64_t block = reinterpret_cast<const uint32_t *>(table.address)[v.slot * table.cols + position / 64];
    const mk_operand &source = v.in.operands[which == 0 ? MK_SLOT_ATTENTION_k : MK_SLOT_ATTENTION_v];
    tile::stamped_pair pair;
    wait_stamped_pair(
        c.d, stamped_row(c.d, source) + static_cast<uint64_t>(line) * buffers[MK_SLOT_ATTENTION_k].row_words + dim,
        true, source.buffer, pair);
    uint32_t data =
        tile::pack_bf16(__uint_as_float(tile::stamp_data(pair.low)), __uint_as_float(tile::stamp_data(pair.high)));
    // Bytes from the start of the head's pair in the block; the next dim lies beside it in K, in the next row of a step in V.
    uint32_t at = static_cast<uint32_t>(mk_block_offset(64, head_dim, which, position % 64, dim)) * 2;
    uint32_t page = (position - span) / 64 * v.pages_per_block() + at / MK_GPU_PAGE_BYTES;
    wait_span_page(c, page);
    uint8_t *staged = c.d.page(span_page(c, page).slot()) + at % MK_GPU_PAGE_BYTES;
    uint8_t *kept = reinterpret_cast<uint8_t *>(kv.address) + (block * kv.cols + operand.col) * 256 * head_dim + at;
    if (which == 0) {
      *reinterpret_cast<uint32_t *>(staged) = data;
      *reinterpret_cast<uint32_t *>(kept) = data;
    } else {
      *reinterpret_cast<uint16_t *>(staged) = static_cast<uint16_t>(data);
      *reinterpret_cast<uint16_t *>(staged + 64) = static_cast<uint16_t>(data >> 16);
      *reinterpret_cast<uint16_t *>(kept) = static_cast<uint16_t>(data);
      *reinterpret_cast<uint16_t *>(kept + 64) = static_cast<uint16_t>(data >> 16);
    }
  }
  consumers_meet(c);
}

// Where a lane keeps its sums of a set between spans.
__device__ inline float *kept_set(const consumer &c, uint32_t set) {
  float *scratch = c.d.params.scratch + static_cast<uint64_t>(blockIdx.x) * c.d.params.scratch_floats;
  return scratch + ((set * MK_GPU_CONSUMER_WARPS + c.warp) * KEPT_FLOATS) * 32 + c.lane;
}
__device__ inline void keep_set(float *to, const set_sums &sums) {
#pragma unroll
  for (uint32_t i = 0; i < 16; i++) {
    __stcg(to + i * 32, sums.o[i / 4].value[i % 4]);
  }
#pragma unroll
  for (uint32_t j = 0; j < 2; j++) {
    __stcg(to + (16 + j) * 32, sums.max[j]);
    __stcg(to + (18 + j) * 32, sums.total[j]);
  }
}
__device__ inline void get_set(const float *from, set_sums &sums) {
#pragma unroll
  for (uint32_t i = 0; i < 16; i++) {
    sums.o[i / 4].value[i % 4] = __ldcg(from + i * 32);
  }
#pragma unroll
  for (uint32_t j = 0; j < 2; j++) {
    sums.max[j] = __ldcg(from + (16 + j) * 32);
    sums.total[j] = __ldcg(from + (18 + j) * 32);
  }
}

// The team's sums of a set become parts, published.
__device__ inline void merge_set(consumer &c, const slot_view &v, uint32_t set, set_sums &sums) {
  const mk_operand &out = v.in.operands[MK_SLOT_ATTENTION_out];
  const mk_gpu_buffer &b = c.d.buffer(out);
  uint32_t g = c.lane / 4, t = c.lane % 4, team = team_of(c), i = rank_in_team(c);
  float2 *scales = reinterpret_cast<float2 *>(shared_memory + ROWS_SCALES_AT);
  float *parts = reinterpret_cast<float *>(shared_memory + ROWS_RESULT_AT);  // [warp][column][dim of the slice]
#pragma unroll
  for (uint32_t j = 0; j < 2; j++) {
#pragma unroll
    for (uint32_t offset = 4; offset < 32; offset *= 2) {
      sums.total[j] += __shfl_xor_sync(0xffffffffu, sums.total[j], offset);
    }
    if (g == 0) {
      scales[c.warp * 8 + 2 * t + j] = make_float2(sums.max[j], sums.total[j]);
    }
  }
  column of = column_of(c, v, set, i);
  uint64_t *words = stamped_row(c.d, out) + static_cast<uint64_t>(of.line) * b.row_words + of.head * (v.head_dim() + 2);
  bool writes = of.used && v.first_span() <= of.position && publishes(c.d);
#pragma unroll
  for (uint32_t slice = 0; slice < 2; slice++) {
    {
      float *part = parts + c.warp * 8 * SLICE_DIMS;
#pragma unroll
      for (uint32_t n = 0; n < 8; n++) {  // dims are turned by the column, so that lanes meet different banks
        uint32_t dim = n / 4 * 16 + n % 4 / 2 * 8 + g;
        part[(2 * t + n % 2) * SLICE_DIMS + (dim ^ t * 8)] = sums.o[slice * 2 + n / 4].value[n % 4];
      }
      tile::meet_at<TEAM_THREADS>(TEAM_BARRIER + team);
      float top = -INFINITY, total = 0.0f, sum = 0.0f;
#pragma unroll
      for (uint32_t r = 0; r < RANKS; r++) {
        top = fmaxf(top, scales[(team * RANKS + r) * 8 + i].x);
      }
      float base = top == -INFINITY ? 0.0f : top;
#pragma unroll
      for (uint32_t r = 0; r < RANKS; r++) {
        float2 scale = scales[(team * RANKS + r) * 8 + i];
        float factor = tile::exp2(scale.x - base);
        total += factor * scale.y;
        sum += factor * parts[((team * RANKS + r) * 8 + i) * SLICE_DIMS + (c.lane ^ i / 2 * 8)];
      }
      if (writes) {
        tile::store_stamped(words + v.half(team) * 64 + slice * SLICE_DIMS + c.lane, __float_as_uint(sum),
                            c.d.generation());
        if (slice == 0 && c.lane == 0 && v.half(team) == 0) {  // scores leave in base e
          tile::store_stamped(words + v.head_dim(), __float_as_uint(top * (1.0f / BASE_E_TO_2)), c.d.generation());
          tile::store_stamped(words + v.head_dim() + 1, __float_as_uint(total), c.d.generation());
        }
      }
      tile::meet_at<TEAM_THREADS>(TEAM_BARRIER + team);
    }
  }
}

// One set of a slot over the span that begins at `span`, the `last` one of the split or not.
__device__ inline void attend_set(consumer &c, const slot_view &v, uint32_t set, uint32_t span, bool last) {
  set_sums sums;
  uint32_t t = c.lane % 4, limits[2];
#pragma unroll
  for (uint32_t j = 0; j < 2; j++) {
    column of = column_of(c, v, set, 2 * t + j);
    limits[j] = of.used ? of.position + 1 : 0;
  }
  if (span == v.first_span()) {
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      tile::zero(sums.o[i]);
    }
#pragma unroll
    for (uint32_t j = 0; j < 2; j++) {
      sums.max[j] = -INFINITY;
      sums.total[j] = 0.0f;
    }
  } else {
    get_set(kept_set(c, set), sums);
  }
  uint32_t pages_per_block = v.pages_per_block();
#pragma unroll 1
  for (uint32_t i = rank_in_team(c); i < SPAN_TILES && span + i * 16 < v.end(); i += RANKS) {
    uint32_t page = i / 4 * pages_per_block;
    wait_span_page(c, page);
    wait_span_page(c, page + pages_per_block - 1);
    const uint8_t *keys = c.d.page(span_page(c, page).slot()) + i % 4 * v.steps() * 512;
    const uint8_t *values = c.d.page(span_page(c, page + pages_per_block - 1).slot()) +
                            (2 - pages_per_block) * (MK_GPU_PAGE_BYTES / 2) +
                            (i % 4 * v.steps() + v.half(team_of(c)) * 4) * 512;
    if ((c.d.params.left_out & MK_GPU_PART_WORK) == 0) {
      attend_rows_tile(c, v, keys, values, span + i * 16, limits, sums);
    }
  }
  if (!last) {
    keep_set(kept_set(c, set), sums);
    return;
  }
  merge_set(c, v, set, sums);
}

__device__ inline void attend_slot(consumer &c, const slot_view &v) {
#pragma unroll 1
  for (uint32_t span = v.first_span(); span < v.end(); span += v.splits() * v.span_tokens()) {
    uint32_t end = min(v.end(), span + v.span_tokens()), set = v.first_set(team_of(c));
    if (set < v.sets()) {
      stage_queries(c, v, set);
    }
    if (v.first() < end) {
      put_new_tokens(c, v, span, max(v.first(), span), end);
    }
#pragma unroll 1
    while (set < v.sets()) {
      attend_set(c, v, set, span, span + v.splits() * v.span_tokens() >= v.end());
      set += v.set_stride();
      if (set < v.sets()) {
        stage_queries(c, v, set);
      }
    }
    uint32_t pages = (end - span + 63) / 64 * v.pages_per_block();
    for (uint32_t page = 0; page < pages; page++) {
      wait_span_page(c, page);  // also of a team without a set: so it never runs a round ahead
      release_page(c, span_page(c, page).slot(), 1);
    }
    c.pages.advance(pages);
  }
}

__device__ inline void consume_ATTENTION(rows_consumer &c, const mk_instruction &in) {
  const volatile rows_state &state = rows_of(c.d);
  const mk_operand &kv = in.operands[MK_SLOT_ATTENTION_kv];
  // Parts lie where results do: the storers have taken all of them.
  results_cursor at = results_of(c);
#pragma unroll 1
  for (uint32_t i = 0; i < ROWS_RESULT_SLOTS; i++, at.next()) {
    wait_phase(c.d, RESULT_EMPTY + at.slot(), at.phase() ^ 1, MK_ACTIVITY_RESULT_EMPTY, at.slot());
  }
  consumers_meet(c);
  // Each lane looks whether there is something to do for its slot.
  uint32_t slot = c.lane % MK_MAX_ROWS, splits = in.params[MK_PARAM_ATTENTION_splits];
  uint32_t split = (kv.row + splits - slot % splits) % splits, count = state.slot_count[slot];
  bool works = count != 0 &&
               split * device::slot_of(in).buffers[MK_SLOT_ATTENTION_kv].span_tokens < state.slot_first[slot] + count;
  uint32_t tasks = 0;
#pragma unroll 1
  for (uint32_t slots = __ballot_sync(0xffffffffu, works) & 0xffffu; slots != 0; slots &= slots - 1) {
    uint32_t next = __ffs(static_cast<int>(slots)) - 1;
    slot_view v{in, state, next, __shfl_sync(0xffffffffu, split, static_cast<int>(next)), tasks};
    attend_slot(c, v);
    tasks += v.sets();
  }
#pragma unroll 1
  while (c.pages.slot() % CHUNK_PAGES != 0) {
    wait_span_page(c, 0);
    release_page(c, c.pages.slot(), 1);
    c.pages.next();
  }
  tile::fence_global_for_copies();  // of what was appended, for the next epoch's copies
  consumers_meet(c);                // before anybody stages something else, or waits for another group's page
}

}  // namespace mk
