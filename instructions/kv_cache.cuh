// What the kernels know of the KV cache: where the parts of a block lie in pages, of bf16 and of codes of e4m3
// (vm/program/strips.h), and how K and V of new tokens become such codes.
#pragma once
#include "instructions/attend_part.cuh"
#include "vm/gpu/strips.cuh"

namespace mk {

// Where V begins in the page that has it; how far into both K and V of a block a part of it begins; and how far after
// that its scales are.
__device__ inline uint32_t values_at(bool codes, uint32_t halves) {
  return (2 - halves) * (codes ? 64 * (64 + 2) : MK_GPU_PAGE_BYTES / 2);
}
__device__ inline uint32_t part_offset(bool codes, uint32_t number, uint32_t halves) {
  return number * PART_TILES * halves * (codes ? 1024 : 2048);
}
__device__ inline uint32_t scales_after(uint32_t number, uint32_t halves) {
  return halves * 4096 + number * (PART_TOKENS * 2) - part_offset(true, number, halves);
}

// Two neighbouring values of a head of a new token as a cache of e4m3 has them: their codes, a byte each, and the bits
// of the head's scale in bf16. docs/NUMERICS.md: the smallest power of two with which all of the head's numbers fit.
struct new_codes {
  uint32_t codes, scale;
};
__device__ inline uint32_t size_of_number(float value) {
  uint32_t size = __float_as_uint(value) & 0x7fffffffu;
  return size < 0x7f800000u ? size : 0;
}
__device__ inline float scaled_number(float value, float factor) {
  bool finite = (__float_as_uint(value) & 0x7fffffffu) < 0x7f800000u;
  return finite ? __fmul_rn(value, factor) : __uint_as_float(0x7fffffffu);
}
// The lanes of a warp have all values of the head: `own`, whose codes these are, and `others`.
__device__ inline new_codes quantise_pair(const float2 &own, const float2 &others) {
  uint32_t largest = tile::largest_of_lanes(
      max(max(size_of_number(own.x), size_of_number(own.y)), max(size_of_number(others.x), size_of_number(others.y))));
  // 448 is 1.75 * 2^8: the sum has the next exponent where the fraction is larger than that.
  uint32_t exponent = max((largest + 0x1fffffu) >> 23, 18u) - 8;
  float inverse = largest == 0 ? 0.0f : __uint_as_float((254 - exponent) << 23);
  return {tile::pack_e4m3(scaled_number(own.x, inverse), scaled_number(own.y, inverse)),
          largest == 0 ? 0 : exponent << 7};
}

// Puts codes of dims `dim` and `dim` + 1 of token `token` where they lie in K (which = 0) or V, and with dim 0 the
// token's scale. half, scales: of the block, or of a part and its tokens.
__device__ inline void put_codes(uint8_t *half, uint8_t *scales, uint32_t head_dim, uint32_t which, uint32_t token,
                                 uint32_t dim, const new_codes &of) {
  uint8_t *at = half + mk_kv_code(head_dim, which, token, dim);
  at[0] = static_cast<uint8_t>(of.codes);
  at[which == 0 ? 2 : 64] = static_cast<uint8_t>(of.codes >> 8);  // beside it, or in the next row
  if (dim == 0) {
    tile::store<uint16_t>(scales + mk_kv_scale(which, token) * 2, static_cast<uint16_t>(of.scale));
  }
}

__device__ inline void put_codes(const mk_gpu_buffer &kv, uint8_t *pair, uint32_t which, uint32_t token, uint32_t dim,
                                 const new_codes &of) {
  uint8_t *half = pair + which * code_half_bytes(kv);
  put_codes(half, half + BLOCK_TOKENS * kv.head_dim, kv.head_dim, which, token, dim, of);
}

}  // namespace mk
