// The arithmetic of docs/NUMERICS.md that every kernel computes alike, to the bit: each operation rounds by itself, or
// as a fused multiply-add where one is written, whatever the compiler makes of the code around it.
#pragma once
#include "instructions/tile/warp.cuh"

namespace mk {

// The sum of the squares of two neighbouring elements.
__device__ inline float square_of_pair(float low, float high) {
  return __fadd_rn(__fmul_rn(low, low), __fmul_rn(high, high));
}
__device__ inline float square_of_pair(uint32_t pair) {
  return square_of_pair(tile::low_bf16(pair), tile::high_bf16(pair));
}

// The sum of the squares of a chain, of which each lane has neighbouring pairs 2 j and 2 j + 1 of the step of its quad,
// j being its place in the quad, with the sums a and b of their squares: docs/NUMERICS.md has the order.
__device__ inline float chain_squares(float a, float b) {
#pragma unroll
  for (uint32_t away = 4; away < 32; away *= 2) {  // steps
    a += tile::exchange(a, away);
    b += tile::exchange(b, away);
  }
#pragma unroll
  for (uint32_t away = 2; away > 0; away /= 2) {  // pairs k and k + 4, then k and k + 2
    a += tile::exchange(a, away);
    b += tile::exchange(b, away);
  }
  return a + b;
}
__device__ inline float chain_squares(const uint2 &pairs) {
  return chain_squares(square_of_pair(pairs.x), square_of_pair(pairs.y));
}
__device__ inline float chain_squares(const float (&quad)[4]) {
  return chain_squares(square_of_pair(quad[0], quad[1]), square_of_pair(quad[2], quad[3]));
}

// The sum of eight squares that lie side by side.
__device__ inline float sum_of_eight(const float (&q)[8]) {
  return ((q[0] + q[1]) + (q[2] + q[3])) + ((q[4] + q[5]) + (q[6] + q[7]));
}

// Of a tile of sixteen elements, of which lanes p, p + 8 and so on have neighbouring ones, pair p.
__device__ inline float tile_squares(float even, float odd) {
  return tile::sum_group<8>(square_of_pair(even, odd));  // pairs k and k + 4, k and k + 2, the last two
}

// The same of a tile of which lane 4 g + t has elements g and g + 8, of column t.
__device__ inline float tile_squares_of_rows(float first, float second) {
  float low = __fmul_rn(first, first), high = __fmul_rn(second, second);
  low = __fadd_rn(low, tile::exchange(low, 4));  // of a pair
  high = __fadd_rn(high, tile::exchange(high, 4));
  float sum = __fadd_rn(low, high);
  sum = __fadd_rn(sum, tile::exchange(sum, 16));
  return __fadd_rn(sum, tile::exchange(sum, 8));
}

// 1 / rms of a vector: `part` is 1 / width, by reciprocal_of.
__device__ inline float norm_scale(float squares, float part, float eps) {
  return rsqrtf(__fmaf_rn(squares, part, eps));
}
// 1 / width by one instruction, within one unit of the last place.
__device__ inline float reciprocal_of(float width) { return __fdividef(1.0f, width); }

// SiLU(gate) * up by the approximate exponential and division: within a few units of the last place of fp32, for a
// result in bf16.
__device__ inline float gated(float gate, float up) {
  return __fmul_rn(__fdividef(gate, __fadd_rn(1.0f, tile::exp2(__fmul_rn(gate, -1.4426950408889634f)))), up);
}

struct angle {
  float cosine, sine;
};
// The angle in fp32 as transformers computes it; reduced in fp64 so that the fast sine is exact enough.
__device__ inline angle angle_of(uint32_t position, float frequency) {
  float radians = __fmul_rn(static_cast<float>(position), frequency);
  double turns = static_cast<double>(radians) * 0.15915494309189533577;
  float reduced = static_cast<float>((turns - rint(turns)) * 6.283185307179586476925);
  angle result;
  __sincosf(reduced, &result.sine, &result.cosine);
  return result;
}

// One element of a rotated pair; `sine` is negative for the first one.
__device__ inline float rotated(float own, float other, float cosine, float sine) {
  return __fmaf_rn(own, cosine, __fmul_rn(other, sine));
}

}  // namespace mk
