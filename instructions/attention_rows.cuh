// ATTENTION of several rows per step on the device: one unit of one KV head, for every slot that has rows; attention.c.
//
// Equation: s_t = scale q k_t; out = (sum_t p_t v_t, max_t s_t, sum_t p_t), p_t = exp(s_t - max), over the tokens up to the line's
// own that lie in the spans of split (u - slot) mod splits. Where that is the only split in use of a line, its output is combined here, and COMBINE has
// nothing to do for it: then no SM waits for another one between attention and what multiplies it.
// Tiles: KV blocks of 64 tokens through the page ring as in attention.cuh; S = K q^T is [16 tokens][8 columns], O = V^T P^T
// [16 dims][8 columns]. The columns (a set) are the query heads of neighbouring lines of a slot: two lines of four heads. q and p are
// two fragments each, rounded to bf16 and what rounding left over; of a set of four columns or fewer (one line of four heads) what is left over of q is
// in columns 4 to 7 of the one fragment, which halves the products and the bits are the same.
// Spans go in pieces of sixteen tiles, the last one first. Warp r takes tile r of each piece. The warps' parts are merged in order when the
// split is done. So the order of a line's sums depends on its position alone.
// Waits: q of the lines at hand, k and v of the step's tokens where this unit keeps them; the loader: the step state. Signals: nothing.
// K and V of the step's tokens go into the pages, which the loader hands over for them, and into their blocks, fenced for the next
// epoch's copies: so every token comes from a page, and tokens behind a line's own are left out by its limit.
// Where a slot has several sets, their sums wait between pieces in the block's scratch memory.
#pragma once
#include "instructions/combine.cuh"
#include "vm/gpu/rows.cuh"
#include "vm/gpu/rows_consumer.cuh"

namespace mk {

enum {
  PIECE_TILES = MK_GPU_PIECE_TOKENS / 16,
  PAGE_DIMS = 64,     // of a head: so many more are one page of a block more
  Q_BYTES = 4096,     // of a set: [rounded, rest][step] fragments; the next set's go beside them
  PART_FLOATS = 256,  // of a warp, that are merged at a time: 8 columns of 32 dims or 4 of 64
  ROWS_SCALES_AT = ROWS_ATTENTION_AT + 2 * Q_BYTES,  // [warp][column](max, sum of p)
  KEPT_FLOATS = 36,                                  // of a lane between pieces: 32 sums, 2 maxima, 2 totals
};
static_assert(MK_GPU_CONSUMER_WARPS == PIECE_TILES, "a tile of a piece for each warp");
// Who waits for a page has to know that the one before it in its slot, twelve before, is there: else that one's phase is taken for the page's. Pages from
// before the instruction are there for all warps when it begins (wait_for_storers), those of a slot that has been merged when the warps have met. Between the pieces of
// a slot they need not meet: but of the piece before, of eight pages, a warp has seen its own last one, and the loader before that all but the last ones under way.
// And where the step's tokens lie in two pieces, those of the earlier one go into its last block, whose slots had pages from before the instruction.
static_assert(2 * PIECE_BLOCKS + MK_GPU_ROWS_PAGES_UNDER_WAY <= MK_GPU_RING_PAGES + 1, "each warp's own pages");
static_assert(MK_GPU_CONSUMER_WARPS * 32 * KEPT_FLOATS == MK_GPU_KEPT_SET_FLOATS, "what launch.h says of it");
static_assert(2 * Q_BYTES + MK_GPU_CONSUMER_WARPS * 8 * 8 <= ROWS_ATTENTION_BYTES, "queries and scales have room");
static_assert(MK_GPU_CONSUMER_WARPS * PART_FLOATS * 4 <= ROWS_ATTENTION_AT - ROWS_RESULT_AT,
              "parts have room before the queries");

struct set_sums {          // columns 2 t and 2 t + 1 of lane 4 g + t
  tile::sum_tile o[8];     // 16 dims each
  float max[2], total[2];  // base 2; the total over this lane's tokens
};

// A unit's work for one slot. What every piece needs is in registers, the rest is looked up.
struct slot_view {
  const mk_instruction_word &in;
  const volatile rows_state &state;
  uint32_t first, end;  // of the slot's rows in this step: the first position, and behind the last one
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

// The first position that does not count for a column.
__device__ inline uint32_t limit_of(const slot_view &v, uint32_t set, uint32_t i) {
  uint32_t at = set * 8 + i, row = at >> v.head_bits();
  return row < v.end - v.first && (at & ((1u << v.head_bits()) - 1)) < v.group() ? v.first + row + 1 : 0;
}

// Fragments of a set; the next one's go to the other place, so that one meeting between two sets is enough.
__device__ inline uint32_t *queries_at(uint32_t place) {
  return reinterpret_cast<uint32_t *>(shared_memory + ROWS_ATTENTION_AT + place * Q_BYTES);
}

// A set's q times scale to fragments. Afterwards all meet.
__device__ inline void stage_queries(const consumer &c, const slot_view &v, uint32_t set, uint32_t place) {
  const mk_operand &q = v.in.parts[MK_PART_ATTENTION_q];
  const mk_gpu_buffer &b = device::slot_of(v.in).buffers[MK_PART_ATTENTION_q];
  float scale = __uint_as_float(param(v.in, MK_PARAM_ATTENTION_scale)) * BASE_E_TO_2;
  uint32_t i = c.warp % 8, pair = c.warp / 8 * 32 + c.lane;  // a warp's column, and pairs of it
  bool few = v.few(set);
  if (c.warp / 8 >= v.halves() || (few && i >= 4)) {
    return;
  }
  column of = column_of(v, set, i);
  tile::stamped_pair words;
  wait_pair(c.d, stamped_row(c.d, q) + static_cast<uint64_t>(of.line) * b.row_words + of.head * v.head_dim() + pair * 2,
            of.used, q.buffer, words);
  float low = __uint_as_float(tile::stamp_data(words.low)) * scale,
        high = __uint_as_float(tile::stamp_data(words.high)) * scale;
  uint32_t rounded = tile::pack_bf16(low, high);
  uint32_t *to = queries_at(place) + ((pair / 8) * 32 + i * 4 + pair % 4) * 2 + pair / 4 % 2;
  to[0] = rounded;
  to[few ? 4 * 8 : Q_BYTES / 8] = tile::pack_bf16(low - tile::low_bf16(rounded), high - tile::high_bf16(rounded));
}

// Folds the tile of the tokens from `first` on into the sums. limits: of the lane's columns, the first position that does not count.
__device__ inline void attend_rows_tile(const consumer &c, const slot_view &v, uint32_t place, bool few,
                                        const uint8_t *keys, const uint8_t *values, uint32_t first,
                                        const uint32_t (&limits)[2], set_sums &sums) {
  const uint2 *q = reinterpret_cast<const uint2 *>(queries_at(place)) + c.lane;
  uint32_t g = c.lane / 4, t = c.lane % 4;
  tile::sum_tile s[2];
  tile::zero(s[0]);
  tile::zero(s[1]);
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    if (h * 4 < v.steps()) {
      tile::weight_tile k[4];
#pragma unroll
      for (uint32_t i = 0; i < 4; i++) {
        tile::load(k[i], keys + (h * 4 + i) * 512);
        uint2 words = q[(h * 4 + i) * 32];
        tile::multiply_add(s[0], k[i], tile::vector_tile{{words.x, words.y}});
      }
      if (!few) {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
          uint2 rest = q[(h * 4 + i) * 32 + Q_BYTES / 16];
          tile::multiply_add(s[1], k[i], tile::vector_tile{{rest.x, rest.y}});
        }
      }
    }
  }
  if (few) {  // columns 4 to 7 are what is left over of columns 0 to 3
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      s[1].value[i] = __shfl_xor_sync(0xffffffffu, s[0].value[i], 2);
    }
  }
  float p[4];  // tokens g, g, g + 8, g + 8 of the lane's two columns
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    p[i] = first + g + i / 2 * 8 < limits[i % 2] ? s[0].value[i] + s[1].value[i] : -INFINITY;
  }
  float keep[2];  // of the sums so far
#pragma unroll
  for (uint32_t j = 0; j < 2; j++) {
    float top = fmaxf(p[j], p[j + 2]);
#pragma unroll
    for (uint32_t offset = 4; offset < 32; offset *= 2) {
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, offset));
    }
    top = fmaxf(sums.max[j], top);
    float base = top == -INFINITY ? 0.0f : top;  // a line whose tokens all lie elsewhere
    keep[j] = tile::exp2(sums.max[j] - base);
    sums.max[j] = top;
    p[j] = tile::exp2(p[j] - base);
    p[j + 2] = tile::exp2(p[j + 2] - base);
    sums.total[j] = sums.total[j] * keep[j] + (p[j] + p[j + 2]);
  }
  uint32_t low = tile::pack_bf16(p[0], p[1]), high = tile::pack_bf16(p[2], p[3]);
  tile::vector_tile rounded = {{tile::transpose(low), tile::transpose(high)}};
  low = tile::pack_bf16(p[0] - tile::low_bf16(low), p[1] - tile::high_bf16(low));
  high = tile::pack_bf16(p[2] - tile::low_bf16(high), p[3] - tile::high_bf16(high));
  tile::vector_tile rest = {{tile::transpose(low), tile::transpose(high)}};
  // What memory holds beyond the last token need not be a number.
  uint32_t valid = v.end - first;
  uint32_t early = (2 * t < valid ? 0xffffu : 0u) | (2 * t + 1 < valid ? 0xffff0000u : 0u);
  uint32_t late = (2 * t + 8 < valid ? 0xffffu : 0u) | (2 * t + 9 < valid ? 0xffff0000u : 0u);
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    if (h * 4 < v.steps()) {
#pragma unroll
      for (uint32_t i = h * 4; i < h * 4 + 4; i++) {
        tile::weight_tile tokens;
        tile::load(tokens, values + i * 512);
        tokens.word[0] &= early, tokens.word[1] &= early;
        tokens.word[2] &= late, tokens.word[3] &= late;
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
          sums.o[i].value[j] *= keep[j % 2];
        }
        tile::multiply_add(sums.o[i], tokens, rounded);
        tile::multiply_add(sums.o[i], tokens, rest);
      }
    }
  }
}

// The page `number` from the first one of the piece at hand on.
__device__ inline ring_cursor<MK_GPU_RING_PAGES> piece_page(const consumer &c, uint32_t number) {
  ring_cursor<MK_GPU_RING_PAGES> at = c.pages;
  at.advance(number);
  return at;
}
__device__ inline void wait_piece_page(const consumer &c, uint32_t number) {
  ring_cursor<MK_GPU_RING_PAGES> at = piece_page(c, number);
  wait_phase(c.d, PAGE_FULL + at.slot(), at.phase(), MK_ACTIVITY_PAGE_FULL, at.slot());
}

// K and V of the step's tokens in [from, to), all of the piece: into their pages and blocks. The warps that have no query to stage do the work
// as far as it goes. Afterwards all meet.
__device__ inline void put_new_tokens(consumer &c, const slot_view &v, uint32_t piece, uint32_t from, uint32_t to) {
  const mk_operand &operand = v.in.parts[MK_PART_ATTENTION_kv];
  const mk_gpu_buffer *buffers = device::slot_of(v.in).buffers;
  const mk_gpu_buffer &kv = v.kv(), &table = buffers[whole_at(MK_WHOLE_ATTENTION_table)];
  uint32_t head_dim = v.head_dim(), pair_bits = head_dim == 64 ? 5 : 6, units = (to - from) << (pair_bits + 1);
#pragma unroll 1
  for (uint32_t base = (c.warp ^ 4) * 32; base < units; base += MK_GPU_CONSUMER_WARPS * 32) {
    uint32_t unit = base + c.lane, dim = (unit & ((1u << pair_bits) - 1)) * 2, which = unit >> pair_bits & 1;
    uint32_t position = from + (unit >> pair_bits) / 2, line = v.line(position - v.first);
    uint64_t block = reinterpret_cast<const uint32_t *>(table.address)[v.slot() * table.cols + position / BLOCK_TOKENS];
    const mk_operand &source = v.in.parts[which == 0 ? MK_PART_ATTENTION_k : MK_PART_ATTENTION_v];
    tile::stamped_pair pair;
    wait_pair(c.d,
              stamped_row(c.d, source) + static_cast<uint64_t>(line) * buffers[MK_PART_ATTENTION_k].row_words + dim,
              true, source.buffer, pair);
    uint32_t data =
        tile::pack_bf16(__uint_as_float(tile::stamp_data(pair.low)), __uint_as_float(tile::stamp_data(pair.high)));
    // Bytes from the start of the head's pair in the block; the next dim lies beside it in K, in the next row of a step in V.
    uint32_t at =
        static_cast<uint32_t>(mk_block_offset(BLOCK_TOKENS, head_dim, which, position % BLOCK_TOKENS, dim)) * 2;
    uint32_t page = (position - piece) / BLOCK_TOKENS * v.halves() + at / MK_GPU_PAGE_BYTES;
    wait_piece_page(c, page);
    uint8_t *staged = c.d.page(piece_page(c, page).slot()) + at % MK_GPU_PAGE_BYTES;
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
}

// Where a lane keeps its sums of a set between pieces.
__device__ inline float *kept_set(const consumer &c, uint32_t set) {
  float *scratch = c.d.params.scratch + static_cast<uint64_t>(blockIdx.x) * c.d.params.scratch_floats;
  return scratch + ((set * MK_GPU_CONSUMER_WARPS + c.warp) * KEPT_FLOATS) * 32 + c.lane;
}
__device__ inline void keep_set(float *to, const set_sums &sums) {
#pragma unroll
  for (uint32_t i = 0; i < 32; i++) {
    __stcg(to + i * 32, sums.o[i / 4].value[i % 4]);
  }
#pragma unroll
  for (uint32_t j = 0; j < 2; j++) {
    __stcg(to + (32 + j) * 32, sums.max[j]);
    __stcg(to + (34 + j) * 32, sums.total[j]);
  }
}
__device__ inline void get_set(const float *from, set_sums &sums) {
#pragma unroll
  for (uint32_t i = 0; i < 32; i++) {
    sums.o[i / 4].value[i % 4] = __ldcg(from + i * 32);
  }
#pragma unroll
  for (uint32_t j = 0; j < 2; j++) {
    sums.max[j] = __ldcg(from + (32 + j) * 32);
    sums.total[j] = __ldcg(from + (34 + j) * 32);
  }
}
__device__ inline void clear_set(set_sums &sums) {
#pragma unroll
  for (uint32_t i = 0; i < 8; i++) {
    tile::zero(sums.o[i]);
  }
#pragma unroll
  for (uint32_t j = 0; j < 2; j++) {
    sums.max[j] = -INFINITY;
    sums.total[j] = 0.0f;
  }
}

// How a set's columns are merged: by 64 dims few of them, by 32 dims many. A column's dims are turned, so that lanes meet different banks.
struct merge_shape {
  uint32_t dims;  // at a time, by dims / 2 lanes

  __device__ uint32_t place(uint32_t warp, uint32_t column, uint32_t dim) const {
    return warp * PART_FLOATS + column * dims + (dim ^ (column / 2 * 8) ^ (warp / 4 % 2 * 16));
  }
};

// Two neighbouring output values of a column from all warps, each lane those of four of them: lanes 8 apart have the same values of others.
__device__ inline merged_unit merge_warps(const consumer &c, const merge_shape &shape, uint32_t column, uint32_t dim) {
  uint32_t first = c.lane / 8 * 4;
  const float2 *scales = reinterpret_cast<const float2 *>(shared_memory + ROWS_SCALES_AT) + first * 8 + column;
  const float *parts =
      reinterpret_cast<const float *>(shared_memory + ROWS_RESULT_AT) + shape.place(first, column, dim);
  merged_unit sum;
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    sum.max = fmaxf(sum.max, scales[i * 8].x);
  }
#pragma unroll
  for (uint32_t offset = 8; offset < 32; offset *= 2) {
    sum.max = fmaxf(sum.max, __shfl_xor_sync(0xffffffffu, sum.max, offset));
  }
  float base = sum.max == -INFINITY ? 0.0f : sum.max;
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    float2 scale = scales[i * 8], value = *reinterpret_cast<const float2 *>(parts + i * PART_FLOATS);
    float factor = tile::exp2(scale.x - base);
    sum.total += factor * scale.y;
    sum.low += factor * value.x;
    sum.high += factor * value.y;
  }
#pragma unroll
  for (uint32_t offset = 8; offset < 32; offset *= 2) {
    sum.total += __shfl_xor_sync(0xffffffffu, sum.total, offset);
    sum.low += __shfl_xor_sync(0xffffffffu, sum.low, offset);
    sum.high += __shfl_xor_sync(0xffffffffu, sum.high, offset);
  }
  return sum;
}

// Output values `dim` and dim + 1 of a column.
__device__ inline void publish_column(const consumer &c, const slot_view &v, const column &of, uint32_t dim,
                                      const merged_unit &sum) {
  const mk_operand &out = v.in.parts[MK_PART_ATTENTION_out];
  const mk_gpu_buffer &b = device::slot_of(v.in).buffers[MK_PART_ATTENTION_out];
  if (!of.used || v.first_span() > of.position || !publishes(c.d)) {
    return;
  }
  if (alone_in_use(of.position, v.span_tokens(), v.splits())) {
    float scale = __fdividef(1.0f, sum.total);
    uint32_t pair = ((out.col + of.head) * v.head_dim() + dim) / 2;
    tile::store_relaxed(combined_value(b, c.d.generation()).word(of.line, pair),
                        tile::pack_bf16(sum.low * scale, sum.high * scale));
  }
  uint64_t *words = stamped_row(c.d, out) + static_cast<uint64_t>(of.line) * b.row_words + of.head * (v.head_dim() + 2);
  tile::store_stamped_pair(words + dim, __float_as_uint(sum.low), __float_as_uint(sum.high), c.d.generation());
  if (dim == 0) {  // scores leave in base e
    tile::store_stamped_pair(words + v.head_dim(), __float_as_uint(sum.max * (1.0f / BASE_E_TO_2)),
                             __float_as_uint(sum.total), c.d.generation());
  }
}

// The warps' sums of a set become parts, published.
__device__ inline void merge_set(const consumer &c, const slot_view &v, uint32_t set, set_sums &sums) {
  uint32_t g = c.lane / 4, t = c.lane % 4;
  float2 *scales = reinterpret_cast<float2 *>(shared_memory + ROWS_SCALES_AT);
  float *parts = reinterpret_cast<float *>(shared_memory + ROWS_RESULT_AT);
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
  bool few = v.few(set);
  merge_shape shape = {few ? 64u : 32u};
  // A warp has eight places of each half of a head's dims, of few columns, or of a quarter.
  uint32_t unit = c.warp * 8 + c.lane % 8, column = few ? unit / 32 : unit / 16, dim = unit * 2 & (shape.dims - 1);
#pragma unroll 1
  for (uint32_t from = 0; from < v.head_dim(); from += shape.dims) {
    if (from != 0) {
      consumers_meet(c);
    }
    if (!few || t < 2) {
#pragma unroll
      for (uint32_t k = 0; k < 4; k++) {  // by eight dims, of columns 2 t and 2 t + 1
        float *to = parts + shape.place(c.warp, 2 * t, k * 8 + g);
        to[0] = sums.o[k / 2].value[k % 2 * 2];
        to[shape.dims] = sums.o[k / 2].value[k % 2 * 2 + 1];
        if (few) {
          to[32] = sums.o[2 + k / 2].value[k % 2 * 2];
          to[32 + shape.dims] = sums.o[2 + k / 2].value[k % 2 * 2 + 1];
        }
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < 6; i++) {  // the next ones come first
      sums.o[i] = few && i < 4 ? sums.o[i + 4] : sums.o[i + 2];
    }
    consumers_meet(c);
    merged_unit sum = merge_warps(c, shape, column, dim);
    if (c.lane < 8) {
      publish_column(c, v, column_of(v, set, column), from + dim, sum);
    }
  }
}

// This warp's tile of a piece, if it has one. limits: as above. The warp waits for its pages also where they hold no token. `releases`:
// nobody needs the warp's tile again. All warps meet before and behind an instruction, when every page has been taken.
__device__ inline void attend_piece(const consumer &c, const slot_view &v, uint32_t place, bool few, uint32_t piece,
                                    const uint32_t (&limits)[2], bool releases, set_sums &sums) {
  uint32_t pages_per_block = v.halves(), page = c.warp / 4 * pages_per_block;
  if (page >= piece_pages(piece, v.end, pages_per_block)) {
    return;
  }
  ring_cursor<MK_GPU_RING_PAGES> first = piece_page(c, page), second = piece_page(c, page + pages_per_block - 1);
  wait_phase(c.d, PAGE_FULL + first.slot(), first.phase(), MK_ACTIVITY_PAGE_FULL, first.slot());
  wait_phase(c.d, PAGE_FULL + second.slot(), second.phase(), MK_ACTIVITY_PAGE_FULL, second.slot());
  uint32_t start = c.warp % 4 * v.steps() * 512;
  const uint8_t *keys = c.d.page(first.slot()) + start;
  const uint8_t *values = c.d.page(second.slot()) + (2 - pages_per_block) * (MK_GPU_PAGE_BYTES / 2) + start;
  if (piece + c.warp * 16 < v.end && (c.d.params.left_out & MK_GPU_PART_WORK) == 0) {
    attend_rows_tile(c, v, place, few, keys, values, piece + c.warp * 16, limits, sums);
  }
  if (releases) {
    __syncwarp();
    if (c.lane == 0) {
      tile::arrive(c.d.barrier(PAGE_EMPTY + first.slot()), PAGE_RELEASES);
      if (pages_per_block != 1) {
        tile::arrive(c.d.barrier(PAGE_EMPTY + second.slot()), PAGE_RELEASES);
      }
    }
  }
}

// What follows from these is worked out anew from here on: with 32 sums no registers are left for it.
__device__ inline void forget_all(consumer &c, slot_view &v) {
  forget(c.lane);
  forget(c.warp);
  forget(v.first);
  forget(v.end);
  forget(v.packed);
}

__device__ inline void attend_slot(consumer &c, slot_view v) {
  uint32_t sets = v.sets();
  bool several = sets > 1;
  uint32_t place = 0;  // of the fragments of the set at hand
  uint32_t start = last_piece(v.end, v.split(), v.span_tokens(), v.splits());
  set_sums sums;
  clear_set(sums);  // without it their registers would stay taken from one instruction to the next
#pragma unroll 1
  for (uint32_t piece = start;; piece = piece_before(piece, v.span_tokens(), v.splits())) {
    bool first = piece == start, last = piece == v.first_span(), is_new = v.first < piece + MK_GPU_PIECE_TOKENS;
#pragma unroll 1
    for (uint32_t set = 0; set < sets; set++) {
      forget_all(c, v);
      if (first || several) {
        place ^= 1;  // others may still read the last set's
        stage_queries(c, v, set, place);
      }
      if (is_new && set == 0) {
        put_new_tokens(c, v, piece, max(v.first, piece), min(v.end, piece + MK_GPU_PIECE_TOKENS));
      }
      if (first || several || is_new) {
        consumers_meet(c);
      }
      if (several && first) {
        clear_set(sums);
      } else if (several) {
        get_set(kept_set(c, set), sums);
      }
      forget_all(c, v);
      uint32_t limits[2];
#pragma unroll
      for (uint32_t j = 0; j < 2; j++) {
        limits[j] = limit_of(v, set, 2 * (c.lane % 4) + j);
      }
      attend_piece(c, v, place, v.few(set), piece, limits, set + 1 == sets, sums);
      forget_all(c, v);
      if (last) {
        merge_set(c, v, set, sums);
      } else if (several) {
        keep_set(kept_set(c, set), sums);
      }
    }
    c.pages.advance(piece_pages(piece, v.end, v.halves()));
    if (last) {
      return;
    }
  }
}

__device__ inline void consume_ATTENTION(rows_consumer &c, const mk_instruction_word &in) {
  const volatile rows_state &state = rows_of(c.d);
  const mk_operand &kv = in.parts[MK_PART_ATTENTION_kv];
  // Each lane looks whether there is something to do for its slot.
  uint32_t slot = c.lane % MK_MAX_ROWS, count = state.slot_count[slot];
  auto split_of = [&](uint32_t of) {  // looked up each time: registers are short
    uint32_t splits = static_cast<const volatile uint32_t &>(param(in, MK_PARAM_ATTENTION_splits));
    return (kv.row + splits - of % splits) % splits;
  };
  bool works = count != 0 && split_of(slot) * device::slot_of(in).buffers[MK_PART_ATTENTION_kv].span_tokens <
                                 state.slot_first[slot] + count;
  // Parts and queries lie where results do. And the storers have all results when all warps have seen the pages of what came before.
  wait_for_storers(c);
#pragma unroll 1
  for (uint32_t slots = __ballot_sync(0xffffffffu, works) & 0xffffu; slots != 0; slots &= slots - 1) {
    uint32_t next = __ffs(static_cast<int>(slots)) - 1;
    const mk_gpu_buffer &b = device::slot_of(in).buffers[MK_PART_ATTENTION_kv];
    uint32_t begin = tile::uniform(state.slot_first[next]);
    attend_slot(c, {in, state, begin, begin + tile::uniform(state.slot_count[next]),
                    tile::uniform(slot_view::pack(next, split_of(next), static_cast<uint32_t>(b.head_dim)))});
  }
  tile::fence_global_for_copies();  // of what was appended, for the next epoch's copies
  consumers_meet(c);                // before anybody stages something else, or waits for another group's page
}

}  // namespace mk
