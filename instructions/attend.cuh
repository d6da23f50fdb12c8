// ATTEND on the device, of the kernel for wide steps: out = bf16(softmax(scale q k) v) of one query head and a line tile, over all tokens of the
// sequence up to each line's own; attend.c.
//
// Tiles: a warp has sixteen lines, whose q it keeps as left operands; blocks of 64 tokens come through the page ring, and each tile of K and V is two right
// operands as it lies. A part of 32 tokens is S [16, 32] = q K^T and O [16, dims] = P V, P being S as it lies; parts become spans, and these are added
// as a tree, whose levels wait in scratch memory: docs/NUMERICS.md has the order, which is that of all kernels. Waits: q; the loader: the
// head's APPEND. Signals: the counter of the line tile's output.
#pragma once
#include "instructions/tile/fragment.cuh"
#include "vm/gpu/wide.cuh"

namespace mk {

constexpr float SCORES_TO_2 = 1.4426950408889634f;  // scores are kept in base 2
constexpr float NO_SCORE = -3e38f;  // what no token's score is relative to; a number, so that differences are

enum { PART_TOKENS = 32, SPAN_TOKENS = 256, BLOCK_TOKENS = 64, TREE_LEVELS = MK_WIDE_GPU_LEVELS - 1 };

// Of lane 4 g + t: lines g (i = 0) and g + 8 (i = 1).
template <uint32_t steps>
struct attended {
  tile::sum_tile o[2 * steps];  // eight dims each
  float top[2], total[2];       // what scores are relative to, a whole number in base 2; the sum of p
};

template <uint32_t steps>
__device__ inline void clear(attended<steps> &sums) {
#pragma unroll
  for (uint32_t n = 0; n < 2 * steps; n++) {
    tile::zero(sums.o[n]);
  }
  sums.top[0] = sums.top[1] = NO_SCORE;
  sums.total[0] = sums.total[1] = 0.0f;
}

// The words of a tile of K or V are the right operands of its first eight rows, and of the other eight.
__device__ inline tile::vector_tile half_of(const tile::weight_tile &tile, uint32_t half) {
  return {{tile.word[half], tile.word[half + 2]}};
}

// Both are relative to the larger one from here on; gives what to multiply them by, powers of two.
struct two_factors {
  float keep, factor;
};
__device__ inline two_factors raise_top(float &top, float other) {
  float before = top;
  top = fmaxf(top, other);
  return {tile::exp2(before - top), tile::exp2(other - top)};
}

// Folds the 32 tokens from `at` on into the span. keys, values: the part's first tiles. limit: of the lane's first line, the first token that
// does not count; masked: some token does not for some line.
template <uint32_t steps>
__device__ __forceinline__ void attend_part(const uint8_t *keys, const uint8_t *values,
                                            const tile::weight_tile (&q)[steps], uint32_t at, uint32_t limit,
                                            bool masked, attended<steps> &span) {
  tile::sum_tile s[4];
#pragma unroll
  for (uint32_t n = 0; n < 4; n++) {
    tile::zero(s[n]);
  }
#pragma unroll
  for (uint32_t k = 0; k < steps; k++) {
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
      tile::weight_tile tokens;
      tile::load(tokens, keys + (i * steps + k) * 512);
      tile::multiply_add(s[2 * i], q[k], half_of(tokens, 0));
      tile::multiply_add(s[2 * i + 1], q[k], half_of(tokens, 1));
    }
  }
  if (masked) {
    uint32_t first = at + tile::lane() % 4 * 2;
#pragma unroll
    for (uint32_t n = 0; n < 16; n++) {
      float &value = s[n / 4].value[n % 4];
      value = first + n / 4 * 8 + n % 2 < limit + n % 4 / 2 * 8 ? value : -INFINITY;
    }
  }
  two_factors merge[2];
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    float top = NO_SCORE;
#pragma unroll
    for (uint32_t n = 0; n < 8; n++) {
      top = fmaxf(top, s[n / 2].value[2 * h + n % 2]);
    }
    top = ceilf(tile::largest_of_group<4>(top));
#pragma unroll
    for (uint32_t n = 0; n < 8; n++) {
      float &value = s[n / 2].value[2 * h + n % 2];
      value = tile::exp2(value - top);
    }
    merge[h] = raise_top(span.top[h], top);
  }
  tile::weight_tile p[2];
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
#pragma unroll
    for (uint32_t w = 0; w < 4; w++) {
      const tile::sum_tile &from = s[2 * i + w / 2];
      p[i].word[w] = tile::pack_bf16(from.value[w % 2 * 2], from.value[w % 2 * 2 + 1]);
    }
  }
  constexpr tile::vector_tile ones = {{0x3f803f80u, 0x3f803f80u}};
  tile::sum_tile total;
  tile::zero(total);
  tile::multiply_add(total, p[0], ones);
  tile::multiply_add(total, p[1], ones);
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    span.total[h] = __fmaf_rn(merge[h].factor, total.value[2 * h], __fmul_rn(merge[h].keep, span.total[h]));
  }
  if (__any_sync(0xffffffffu, merge[0].keep != 1.0f || merge[1].keep != 1.0f)) {
#pragma unroll
    for (uint32_t n = 0; n < 8 * steps; n++) {
      float &value = span.o[n / 4].value[n % 4];
      value = __fmul_rn(value, merge[n % 4 / 2].keep);
    }
  }
#pragma unroll
  for (uint32_t d = 0; d < steps; d++) {
    tile::sum_tile o[2];
    tile::zero(o[0]);
    tile::zero(o[1]);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
      tile::weight_tile dims;
      tile::load(dims, values + (i * steps + d) * 512);
      tile::multiply_add(o[0], p[i], half_of(dims, 0));
      tile::multiply_add(o[1], p[i], half_of(dims, 1));
    }
#pragma unroll
    for (uint32_t n = 0; n < 8; n++) {
      float &sum = span.o[2 * d + n / 4].value[n % 4];
      sum = __fmaf_rn(merge[n % 4 / 2].factor, o[n / 4].value[n % 4], sum);
    }
  }
}

// Where this lane's sums of a level of the tree wait: element i is at i * 32.
__device__ inline float *kept_level(const wide_consumer &c, uint32_t level) {
  return c.d.params.scratch + static_cast<uint64_t>(blockIdx.x) * c.d.params.scratch_floats +
         (c.d.warp * MK_WIDE_GPU_LEVELS + level) * MK_WIDE_GPU_KEPT_FLOATS + tile::lane();
}

template <uint32_t steps>
__device__ inline void keep_level(const wide_consumer &c, uint32_t level, const attended<steps> &sums) {
  float *to = kept_level(c, level);
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    __stcg(to + h * 32, sums.top[h]);
    __stcg(to + (2 + h) * 32, sums.total[h]);
  }
#pragma unroll
  for (uint32_t n = 0; n < 8 * steps; n++) {
    __stcg(to + (4 + n) * 32, sums.o[n / 4].value[n % 4]);
  }
}

// sums += what waits there.
template <uint32_t steps>
__device__ inline void add_level(const wide_consumer &c, uint32_t level, attended<steps> &sums) {
  const float *from = kept_level(c, level);
  two_factors merge[2];
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    merge[h] = raise_top(sums.top[h], __ldcg(from + h * 32));
    sums.total[h] = __fmaf_rn(merge[h].factor, __ldcg(from + (2 + h) * 32), __fmul_rn(merge[h].keep, sums.total[h]));
  }
#pragma unroll
  for (uint32_t n = 0; n < 8 * steps; n++) {
    float &value = sums.o[n / 4].value[n % 4];
    value = __fmaf_rn(merge[n % 4 / 2].factor, __ldcg(from + (4 + n) * 32), __fmul_rn(merge[n % 4 / 2].keep, value));
  }
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

// q of the warp's lines times scale, rounded.
template <uint32_t steps>
__device__ inline void take_queries(const wide_consumer &c, const mk_instruction_word &in, uint32_t lines,
                                    tile::weight_tile (&to)[steps]) {
  const mk_operand &q = in.parts[MK_PART_ATTEND_q];
  float scale = __fmul_rn(__uint_as_float(param(in, MK_PARAM_ATTEND_scale)), SCORES_TO_2);
  uint32_t cols = c.d.buffer(q).cols, line = c.d.warp * 16 + tile::lane() / 4;
  const float *from = plain_lines<float>(c.d, q) + static_cast<uint64_t>(line) * cols + tile::lane() % 4 * 2;
#pragma unroll
  for (uint32_t k = 0; k < steps; k++) {
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      float2 pair = make_float2(0.0f, 0.0f);
      if (line + i % 2 * 8 < lines) {
        pair = __ldcg(
            reinterpret_cast<const float2 *>(from + static_cast<uint64_t>(i % 2 * 8) * cols + k * 16 + i / 2 * 8));
      }
      to[k].word[i] = tile::pack_bf16(__fmul_rn(pair.x, scale), __fmul_rn(pair.y, scale));
    }
  }
}

template <uint32_t steps>
__device__ __forceinline__ void attend_lines(wide_consumer &c, const mk_instruction_word &in, uint32_t lines) {
  enum {
    DIMS = steps * 16,
    BLOCK_PAGES = DIMS / 64,
    STAGE_BLOCKS = MK_GPU_STAGE_PAGES / BLOCK_PAGES,
    VALUES_AT = DIMS == 64 ? MK_GPU_PAGE_BYTES / 2 : 0,  // in the block's last page
  };
  const mk_operand &out = in.parts[MK_PART_ATTEND_out];
  uint32_t first = lines_of(c.d).first + out.row * LINES, own = first + c.d.warp * 16;  // positions
  uint32_t end = first + lines, own_end = c.d.warp * 16 < lines ? min(end, own + 16) : 0;
  tile::weight_tile q[steps];
  attended<steps> span;
  take_queries(c, in, lines, q);
  clear(span);
  stage_cursor stage = next_stage(c);
#pragma unroll 1
  for (uint32_t at = 0; at < end; at += STAGE_BLOCKS * BLOCK_TOKENS, stage.next()) {
#pragma unroll 1
    for (uint32_t block = 0; block < STAGE_BLOCKS; block++) {
      const uint8_t *keys = wait_page(c, stage, block * BLOCK_PAGES);
      const uint8_t *values = wait_page(c, stage, (block + 1) * BLOCK_PAGES - 1) + VALUES_AT;
#pragma unroll 1
      for (uint32_t part = 0; part < BLOCK_TOKENS; part += PART_TOKENS) {
        uint32_t token = at + block * BLOCK_TOKENS + part;
        if (token < own_end) {
          if (token % SPAN_TOKENS == 0 && token != 0) {
            keep_span(c, token / SPAN_TOKENS - 1, span);
            clear(span);
          }
          uint32_t tiles = part / 16 * steps * 512;
          attend_part<steps>(keys + tiles, values + tiles, q, token, own + tile::lane() / 4 + 1,
                             token + PART_TOKENS > own + 1, span);
        }
      }
      tile::fence_shared_for_copies();
#pragma unroll
      for (uint32_t page = 0; page < BLOCK_PAGES; page++) {
        release_page(c, stage, block * BLOCK_PAGES + page, 1);
      }
    }
  }
  put_next_stage(c, stage);
  if (own_end == 0) {
    return;
  }
  add_tree(c, (own_end - 1) / SPAN_TOKENS, span);
  uint32_t cols = c.d.buffer(out).cols, line = c.d.warp * 16 + tile::lane() / 4;
  uint16_t *to = plain_lines<uint16_t>(c.d, out) + static_cast<uint64_t>(line) * cols + tile::lane() % 4 * 2;
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    float scale = __fdividef(1.0f, span.total[h]);
    if (line + h * 8 < lines) {
#pragma unroll
      for (uint32_t n = 0; n < 2 * steps; n++) {
        *reinterpret_cast<uint32_t *>(to + static_cast<uint64_t>(h * 8) * cols + n * 8) =
            tile::pack_bf16(__fmul_rn(span.o[n].value[2 * h], scale), __fmul_rn(span.o[n].value[2 * h + 1], scale));
      }
    }
  }
}

__device__ inline void consume_ATTEND(wide_consumer &c, const mk_instruction_word &in) {
  uint32_t lines = active_lines(c.d, in.parts[MK_PART_ATTEND_q].row);
  consumers_wait(c, in);
  if (lines != 0) {
    if (c.d.buffer(in.parts[MK_PART_ATTEND_kv]).head_dim == 64) {
      attend_lines<4>(c, in, lines);
    } else {
      attend_lines<8>(c, in, lines);
    }
  }
  consumers_signal(c, in);
}

}  // namespace mk
