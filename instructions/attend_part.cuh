// Attention over a part of 32 tokens, which is one warp's work; docs/NUMERICS.md has the canon. The kernels of one row
// and of several attend with this, and so does that of wide steps where an item has few queries.
//
// S = K q^T is [32 tokens][8 columns], O = V^T P^T [64 dims][8 columns], and the sum of p is one more row of it. Tokens
// are relative to the largest score of their part, rounded up to a whole number, in base 2: so whoever merges parts
// multiplies by powers of two, which changes no bit.
#pragma once
#include "instructions/canon.cuh"
#include "instructions/tile/codes.cuh"
#include "instructions/tile/fragment.cuh"
#include "vm/program/program.h"

namespace mk {

constexpr float BASE_E_TO_2 = 1.4426950408889634f;
constexpr float NO_TOKENS = -3e38f;  // what no token's score is relative to; a number, so that differences are

enum {
  PART_TILES = 2,  // of sixteen tokens
  PART_TOKENS = 32,
  SPAN_PARTS = 8,  // that are added one after the other
  SPAN_TOKENS = SPAN_PARTS * PART_TOKENS,
  GROUP_SPANS = 4,  // whose sums are added as a tree
  BATCH_PARTS = 4,  // that a lane fetches together
};

struct part_sums {       // columns 2 t and 2 t + 1 of lane 4 g + t
  tile::sum_tile o[4];   // 16 dims each
  tile::sum_tile total;  // the same in all rows
  float top[2];          // base 2, a whole number
};

// Four K tiles, or V tiles, of each tile of tokens; these lie `stride` bytes apart.
__device__ inline void load_tiles(tile::weight_tile (&to)[PART_TILES][4], const uint8_t *from, uint32_t stride) {
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
#pragma unroll
    for (uint32_t j = 0; j < PART_TILES; j++) {
      tile::load(to[j][i], from + j * stride + i * 512);
    }
  }
}

// Where the scales of a part lie whose K and V are codes of e4m3 (vm/program/strips.h): so many bytes after its K, and
// after its V of the dims at hand.
struct code_scales {
  uint32_t keys = 0, values = 0;
};

// sums += K of 64 dims times q(0) to q(3), out of codes; from one tile of tokens to the next these lie `stride` bytes
// apart. Tiles are made where they are multiplied: so they take fewer registers than those of bf16.
template <typename fragment>
__device__ inline void multiply_keys(tile::sum_tile (&sums)[PART_TILES], const uint8_t *from, uint32_t stride,
                                     const uint8_t *scales, uint32_t lane, fragment q) {
  lane = tile::anew(lane);  // registers are short
#pragma unroll
  for (uint32_t line = 0; line < 2; line++) {
    uint2 first = q(line * 2), second = q(line * 2 + 1);
#pragma unroll
    for (uint32_t j = 0; j < PART_TILES; j++) {
      uint32_t pair = tile::load<uint32_t>(scales + j * 32 + tile::lane_row(lane) * 4);
      const tile::row_scales by = {tile::low_bf16(pair), tile::high_bf16(pair)};
      uint4 four = tile::load<uint4>(from + j * stride + line * 512 + lane * 16);
      tile::weight_tile keys;
      tile::expand_e4m3(keys, four.x, four.y, by);
      tile::multiply_add(sums[j], keys, tile::vector_tile{{first.x, first.y}});
      tile::expand_e4m3(keys, four.z, four.w, by);
      tile::multiply_add(sums[j], keys, tile::vector_tile{{second.x, second.y}});
    }
  }
}

// Clears V of tokens that need not be numbers, from token `valid` on; `at`: the lane's first token.
__device__ inline void mask_tokens(tile::weight_tile &v, uint32_t at, uint32_t valid) {
  uint32_t first = (at < valid ? 0xffffu : 0u) | (at + 1 < valid ? 0xffff0000u : 0u);
  uint32_t second = (at + 8 < valid ? 0xffffu : 0u) | (at + 9 < valid ? 0xffff0000u : 0u);
  v.word[0] &= first, v.word[1] &= first;
  v.word[2] &= second, v.word[3] &= second;
}

// A tile of V of sixteen tokens out of the codes of 32, of which it is the earlier or the later half.
__device__ inline void expand_values(tile::weight_tile &to, const tile::weight_tile &codes, bool later,
                                     const uint8_t *scales, uint32_t lane) {
  scales += tile::lane_column(tile::anew(lane)) * 2 + (later ? 32 : 0);
  tile::expand_e4m3_columns(to, codes.word[later ? 2 : 0], codes.word[later ? 3 : 1], tile::load<uint32_t>(scales),
                            tile::load<uint32_t>(scales + 16));
}

// The sums of a part, for 64 dims of the output. keys: K of all dims; values: V from those 64 dims on; from one tile of
// tokens to the next both are `halves` x 2 KiB apart (K as codes: 1 KiB; a line of V as codes has both tiles). q(i):
// this lane's fragment of the columns, of step i of 16 dims. limits: for each of the lane's columns, the first token
// that does not count; valid: the first token whose V need not be a number. whole: each column has a token. codes: K
// and V are codes, with these scales.
template <bool whole, bool codes = false, typename fragment>
__device__ inline void attend_part(const uint8_t *keys, const uint8_t *values, fragment q, uint32_t lane,
                                   uint32_t halves, const uint32_t (&limits)[2], uint32_t valid, part_sums &sums,
                                   const code_scales &scales = {}) {
  tile::sum_tile s[PART_TILES];
  tile::weight_tile tiles[PART_TILES][4];
#pragma unroll
  for (uint32_t j = 0; j < PART_TILES; j++) {
    tile::zero(s[j]);
  }
#pragma unroll
  for (uint32_t h = 0; h < 2; h++) {
    if (h < halves) {
      if constexpr (codes) {
        multiply_keys(s, keys + h * 1024, halves * 1024, keys + scales.keys, lane,
                      [&](uint32_t i) { return q(h * 4 + i); });
        continue;
      }
      load_tiles(tiles, keys + h * 2048, halves * 2048);
#pragma unroll
      for (uint32_t i = 0; i < 4; i++) {
        uint2 words = q(h * 4 + i);
#pragma unroll
        for (uint32_t j = 0; j < PART_TILES; j++) {
          tile::multiply_add(s[j], tiles[j][i], tile::vector_tile{{words.x, words.y}});
        }
      }
    }
  }
  if constexpr (codes) {
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      tile::load(tiles[0][i], values + i * 512);  // both tiles of tokens
    }
  } else {
    load_tiles(tiles, values, halves * 2048);
  }
  uint32_t token = tile::lane_row(tile::anew(lane));
  float p[PART_TILES][4];  // of each tile tokens g, g, g + 8, g + 8 of the lane's two columns
#pragma unroll
  for (uint32_t j = 0; j < PART_TILES; j++) {
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
      p[j][i] = j * 16 + token + i / 2 * 8 < limits[i % 2] ? s[j].value[i] : -INFINITY;
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    float top = fmaxf(fmaxf(p[0][i], p[0][i + 2]), fmaxf(p[1][i], p[1][i + 2]));
    top = ceilf(tile::largest_across<4>(whole ? top : fmaxf(top, NO_TOKENS)));
    sums.top[i] = top;
#pragma unroll
    for (uint32_t j = 0; j < PART_TILES; j++) {
      p[j][i] = tile::exp2(p[j][i] - top);
      p[j][i + 2] = tile::exp2(p[j][i + 2] - top);
    }
  }
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    tile::zero(sums.o[i]);
  }
  tile::zero(sums.total);
  constexpr tile::weight_tile ones = {{0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u}};
#pragma unroll
  for (uint32_t j = 0; j < PART_TILES; j++) {
    tile::vector_tile columns = {
        {tile::transpose(tile::pack_bf16(p[j][0], p[j][1])), tile::transpose(tile::pack_bf16(p[j][2], p[j][3]))}};
    if constexpr (codes) {
#pragma unroll
      for (uint32_t i = 0; i < 4; i++) {
        tile::weight_tile v;
        expand_values(v, tiles[0][i], j != 0, values + scales.values, lane);
        if (valid < PART_TOKENS) {
          mask_tokens(v, j * 16 + tile::lane_column(tile::anew(lane)), valid);
        }
        tile::multiply_add(sums.o[i], v, columns);
      }
    } else {
      if (valid < PART_TOKENS) {
        uint32_t at = j * 16 + tile::lane_column(tile::anew(lane));
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
          mask_tokens(tiles[j][i], at, valid);
        }
      }
#pragma unroll
      for (uint32_t i = 0; i < 4; i++) {
        tile::multiply_add(sums.o[i], tiles[j][i], columns);
      }
    }
    tile::multiply_add(sums.total, ones, columns);
  }
}

}  // namespace mk
