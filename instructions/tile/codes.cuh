// Register tiles out of codes of eight and of four bits: what a lane holds of a step (fragment.cuh: pairs 0 to 3 of
// neighbouring columns; pairs 0 and 2 are of row g, 1 and 3 of row g + 8) becomes bf16(scale * (code - zero)), rounded
// once where the product is one of fp32 without rounding, else twice, first to fp32. The order of codes in a word is
// made for this: what belongs to one register lies sixteen bits apart (vm/program/strips.h).
#pragma once
#include <cstdint>

#include "instructions/tile/fragment.cuh"
#include "instructions/tile/warp.cuh"

namespace mk::tile {

// Scales of a lane's two rows, g and g + 8.
struct row_scales {
  float low, high;
};

// The bits of a mask out of a word, and those of a third word.
template <uint32_t mask>
__device__ inline uint32_t bits_and(uint32_t word, uint32_t others) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(result) : "r"(word), "n"(mask), "r"(others));
  return result;
}

// The same, those of the third word being turned over.
template <uint32_t mask>
__device__ inline uint32_t bits_xor(uint32_t word, uint32_t others) {
  uint32_t result;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(result) : "r"(word), "n"(mask), "r"(others));
  return result;
}

// Two e4m3 of the lower half of a word as fp16, which has all of them.
__device__ inline uint32_t half_pair_of_e4m3(uint32_t word) {
  uint32_t result;
  asm("{\n .reg .b16 two, rest;\n mov.b32 {two, rest}, %1;\n cvt.rn.f16x2.e4m3x2 %0, two;\n}"
      : "=r"(result)
      : "r"(word));
  return result;
}

// Bytes 0 to 3 of either word: elements 0, 2, 1, 3 of its four.
__device__ inline void expand_e4m3(weight_tile &to, uint32_t first, uint32_t second, const row_scales &scale) {
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    uint32_t word = i == 0 ? first : second;
    float2 even = unpack_half(half_pair_of_e4m3(word)), odd = unpack_half(half_pair_of_e4m3(word >> 16));
    to.word[2 * i] = pack_bf16(__fmul_rn(even.x, scale.low), __fmul_rn(odd.x, scale.low));
    to.word[2 * i + 1] = pack_bf16(__fmul_rn(even.y, scale.high), __fmul_rn(odd.y, scale.high));
  }
}

// The same by fewer instructions, where no code stands for NaN and scales are of bf16. The bits of a code below its
// sign, four places further up, are the bf16 of 2^-120 of its number, also where that is subnormal; so `by` has the
// lane's two scales times 2^120, each twice. PTX ISA, "mul", has subnormal bf16. Only scales of at least 2^8 have no
// such thing.
struct raised_scales {
  uint32_t by[2];
};

__device__ inline uint32_t raise_scales(uint32_t pair) { return multiply_bf16(pair, 0x7b807b80u); }
// Whether both of a pair of bf16 are numbers: below infinity half of a register has room for another unit of exponent.
__device__ inline bool are_finite(uint32_t pair) { return (((pair & 0x7fff7fffu) + 0x00800080u) & 0x80008000u) == 0; }
__device__ inline uint32_t twice_first(uint32_t pair) {
  uint32_t result;
  asm("{\n .reg .b16 first, second;\n mov.b32 {first, second}, %1;\n mov.b32 %0, {first, first};\n}"
      : "=r"(result)
      : "r"(pair));
  return result;
}
__device__ inline uint32_t twice_second(uint32_t pair) {
  uint32_t result;
  asm("{\n .reg .b16 first, second;\n mov.b32 {first, second}, %1;\n mov.b32 %0, {second, second};\n}"
      : "=r"(result)
      : "r"(pair));
  return result;
}
__device__ inline raised_scales raised_scales_of(uint32_t raised) {
  return {{twice_first(raised), twice_second(raised)}};
}

// Bytes i and i + 2, codes of e4m3, as these bf16. The byte permutation puts copies of the sign before each of them,
// so that one shift and one mask bring sign and number to their places. PTX ISA, "prmt".
template <uint32_t i>
__device__ inline uint32_t lowered_pair_of_e4m3(uint32_t word) {
  uint32_t extended;
  asm("prmt.b32 %0, %1, 0, %2;" : "=r"(extended) : "r"(word), "n"(0xa280 + 0x1111 * i));
  return extended << 4 & 0x87f087f0u;
}

__device__ inline void expand_e4m3(weight_tile &to, uint32_t first, uint32_t second, const raised_scales &scales) {
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    uint32_t word = i == 0 ? first : second;
    to.word[2 * i] = multiply_bf16(lowered_pair_of_e4m3<0>(word), scales.by[0]);
    to.word[2 * i + 1] = multiply_bf16(lowered_pair_of_e4m3<1>(word), scales.by[1]);
  }
}

// Scales of bf16.
struct byte_scales {
  uint32_t by[2];  // the lane's two scales, each twice
  uint32_t unit;   // 128 twice, in a register
};
__device__ inline byte_scales byte_scales_of(uint32_t pair) {
  return {{twice_first(pair), twice_second(pair)}, anew(0x43004300u)};
}

// The same by two multiplications, the first of which is exact, so that scales may be any.
__device__ inline void expand_e4m3(weight_tile &to, uint32_t first, uint32_t second, const byte_scales &scales) {
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    uint32_t word = i < 2 ? first : second;
    uint32_t code = i % 2 == 0 ? lowered_pair_of_e4m3<0>(word) : lowered_pair_of_e4m3<1>(word);
    to.word[i] = multiply_bf16(multiply_bf16(code, 0x7b807b80u), scales.by[i % 2]);
  }
}

// The same where scales are of columns: of elements 0 and 1 of the first four, and of those of the second four, two
// bf16 each.
__device__ inline void expand_e4m3_columns(weight_tile &to, uint32_t first, uint32_t second, uint32_t first_scales,
                                           uint32_t second_scales) {
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    uint32_t word = i == 0 ? first : second, scales = i == 0 ? first_scales : second_scales;
    float2 even = unpack_half(half_pair_of_e4m3(word)), odd = unpack_half(half_pair_of_e4m3(word >> 16));
    float low = low_bf16(scales), high = high_bf16(scales);
    to.word[2 * i] = pack_bf16(__fmul_rn(even.x, low), __fmul_rn(odd.x, high));
    to.word[2 * i + 1] = pack_bf16(__fmul_rn(even.y, low), __fmul_rn(odd.y, high));
  }
}

// Two e4m3, rounded to nearest even, the first one low; 448 at most. A NaN is 0x7f.
__device__ inline uint32_t pack_e4m3(float low, float high) {
  uint16_t result;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(result) : "f"(high), "f"(low));
  return result;
}

// Byte i of a word, to whose bytes 128 has been added, as the number of -128 to 127 that it was before.
template <uint32_t i>
__device__ inline float signed_byte(uint32_t word) {
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440 + i)) - (8388608.0f + 128.0f);
}

// The same of int8.
__device__ inline void expand_i8(weight_tile &to, uint32_t first, uint32_t second, const row_scales &scale) {
#pragma unroll
  for (uint32_t i = 0; i < 2; i++) {
    uint32_t word = (i == 0 ? first : second) ^ 0x80808080u;
    to.word[2 * i] = pack_bf16(__fmul_rn(signed_byte<0>(word), scale.low), __fmul_rn(signed_byte<2>(word), scale.low));
    to.word[2 * i + 1] =
        pack_bf16(__fmul_rn(signed_byte<1>(word), scale.high), __fmul_rn(signed_byte<3>(word), scale.high));
  }
}

// The same by fewer instructions, where scales are of bf16. 128 + the lower seven bits is the bf16 with those in its
// lowest bits, and 128 + 128 times the sign is the one with that: their difference is exact.
__device__ inline uint32_t subtract_bf16(uint32_t a, uint32_t b) {
  uint32_t result;
  asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  return result;
}
__device__ inline void expand_i8(weight_tile &to, uint32_t first, uint32_t second, const byte_scales &scales) {
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    uint32_t word = (i < 2 ? first : second) >> i % 2 * 8;
    uint32_t code = subtract_bf16(bits_and<0x007f007fu>(word, scales.unit), bits_and<0x00800080u>(word, scales.unit));
    to.word[i] = multiply_bf16(code, scales.by[i % 2]);
  }
}

// What codes of four bits are multiplied by: scale = head + rest in bf16, and 128 + zero, each twice in a word, of row
// g and of row g + 8. A scale of bf16 has no rest; of one of fp16 both are exact.
struct nibble_scales {
  uint32_t head[2], rest[2], zero[2];
  uint32_t unit;  // 128 twice: in a register, so that a code and it become a number by one instruction
};

__device__ inline uint32_t twice_high(float value) { return __byte_perm(__float_as_uint(value), 0, 0x3232); }
// pair: the scales of two rows, of fp16 (`rests`) or bf16. zeros: theirs, a byte each.
template <bool rests>
__device__ inline nibble_scales nibble_scales_of(uint32_t pair, uint32_t zeros) {
  nibble_scales result;
  result.unit = anew(0x43004300u);
  result.zero[0] = (zeros & 0xffu) * 0x10001u + 0x43004300u;
  result.zero[1] = (zeros >> 8) * 0x10001u + 0x43004300u;
  if constexpr (rests) {
    float2 halves = unpack_half(pair);
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
      float value = i == 0 ? halves.x : halves.y;
      result.head[i] = twice_high(value);
      result.rest[i] = twice_high(value - high_bf16(__float_as_uint(value)));
    }
  } else {
    result.head[0] = twice_first(pair);
    result.head[1] = twice_second(pair);
  }
  return result;
}

__device__ inline uint32_t multiply_add_bf16(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t result;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(result) : "r"(a), "r"(b), "r"(c));
  return result;
}

// Whole numbers by one fused multiply-add, where scales are of bf16. Below 256 the bits of a whole number n are those
// of the bf16 n * 2^-133: subnormal below 128, and with the same distance between neighbours from there to 255. So n *
// (scale * 2^133) - zero * scale is the weight, rounded once, where the second product is exact: int8 is n - 128 once
// its highest bit has been turned over, int4 without zeros n - 8. In the upper four bits of a byte n counts sixteen
// times as much. PTX ISA, "fma", has subnormal bf16. `by` and `less`: the two factors of each of a lane's rows, twice
// in a word.
struct whole_scales {
  uint32_t by[2], less[2];
  uint32_t highest;  // bit of int8, twice: in a register, so that one instruction masks a code and turns the bit over
};

// Scales of two rows times 2^133, or, of int4 in the second row, 2^129. They are numbers (are_finite) where the scale
// is below 2^-5, or 2^-1.
template <uint32_t bits>
__device__ inline uint32_t raise_whole_scales(uint32_t pair) {
  static_assert(bits == 8 || bits == 4, "of a code");
  return multiply_bf16(multiply_bf16(pair, 0x60806080u), bits == 8 ? 0x61006100u : 0x5f006100u);
}
template <uint32_t bits>
__device__ inline whole_scales whole_scales_of(uint32_t pair, uint32_t raised) {
  const uint32_t less = multiply_bf16(pair, bits == 8 ? 0xc300c300u : 0xc100c100u);  // -128, -8
  return {{twice_first(raised), twice_second(raised)},
          {twice_first(less), twice_second(less)},
          bits == 8 ? anew(0x00800080u) : 0};
}

__device__ inline void expand_i8(weight_tile &to, uint32_t first, uint32_t second, const whole_scales &scales) {
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    uint32_t code = bits_xor<0x00ff00ffu>((i < 2 ? first : second) >> i % 2 * 8, scales.highest);
    to.word[i] = multiply_add_bf16(code, scales.by[i % 2], scales.less[i % 2]);
  }
}

__device__ inline void expand_i4(weight_tile &to, uint32_t word, const whole_scales &scales) {
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    uint32_t code = word >> i / 2 * 8 & (i % 2 == 0 ? 0x000f000fu : 0x00f000f0u);
    to.word[i] = multiply_add_bf16(code, scales.by[i % 2], scales.less[i % 2]);
  }
}

// Nibbles i and i + 4 are pair i. 128 + code is the bf16 with the code in its lowest bits; code - zero is exact then,
// and so is its product with a rest, which has three bits: so head and rest are added by the one rounding.
template <bool rests>
__device__ inline void expand_i4(weight_tile &to, uint32_t word, const nibble_scales &scale) {
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    uint32_t code = subtract_bf16(bits_and<0x000f000fu>(word >> 4 * i, scale.unit), scale.zero[i % 2]);
    if constexpr (rests) {
      to.word[i] = multiply_add_bf16(code, scale.head[i % 2], multiply_bf16(code, scale.rest[i % 2]));
    } else {
      to.word[i] = multiply_bf16(code, scale.head[i % 2]);
    }
  }
}

// The same with scales of fp32, whose products are rounded twice.
__device__ inline void expand_i4(weight_tile &to, uint32_t word, const row_scales &scale, uint32_t zero_low,
                                 uint32_t zero_high) {
#pragma unroll
  for (uint32_t i = 0; i < 4; i++) {
    uint32_t code = (word >> 4 * i & 0x000f000fu) | 0x43004300u;
    float zero = 128.0f + static_cast<float>(i % 2 == 0 ? zero_low : zero_high);
    float factor = i % 2 == 0 ? scale.low : scale.high;
    to.word[i] = pack_bf16(__fmul_rn(low_bf16(code) - zero, factor), __fmul_rn(high_bf16(code) - zero, factor));
  }
}

}  // namespace mk::tile
