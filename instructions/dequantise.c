/* See dequantise.h. Eight bits: a table of the 256 numbers, each times its row's scale. Four: a table of the 16 weights
 * that a row can have in a range, which are fewer than its elements there. */
#include "instructions/dequantise.h"

#include <math.h>
#include <string.h>

#include "instructions/reference.h"

enum { LANES = 32, LANE_ELEMENTS = 8, CODES = 256, NIBBLES = 16 };

typedef uint8_t byte8 __attribute__((vector_size(8)));
typedef uint16_t half8 __attribute__((vector_size(16)));
typedef int16_t short8 __attribute__((vector_size(16)));

float mk_e4m3_to_float(uint8_t code) {
  const uint32_t magnitude = code & 0x7fu;
  const float value = magnitude == 0x7f ? NAN
                      : magnitude < 8   ? (float)magnitude * 0x1p-9f
                                        : mk_param_float((magnitude << 20) + (120u << 23));
  return (code & 0x80) != 0 ? -value : value;
}

uint8_t mk_float_to_e4m3(float value) {
  const uint32_t bits = mk_float_param(value), magnitude = bits & 0x7fffffffu;
  const uint8_t sign = (uint8_t)(bits >> 24 & 0x80u);
  if (magnitude > 0x7f800000u) {
    return 0x7f;
  }
  if (magnitude < (121u << 23)) { /* below 2^-6: adding 2^14 rounds to multiples of 2^-9 */
    return (uint8_t)(sign | (mk_float_param(mk_param_float(magnitude) + 0x1p14f) & 0xfu));
  }
  const uint32_t rounded = (magnitude + 0x7ffffu + (magnitude >> 20 & 1) - (120u << 23)) >> 20;
  return (uint8_t)(sign | (rounded < 0x7e ? rounded : 0x7eu));
}

/* fp32 to bf16, to nearest even; a NaN stays one. */
static inline uint16_t round_weight(float value) {
  const uint32_t bits = mk_float_param(value);
  return (uint16_t)((bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40u
                                                       : (bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}

static float load_scale(const uint8_t *at, uint32_t scale, uint32_t index) {
  uint32_t word = 0;
  memcpy(&word, at + (size_t)index * mk_scale_bytes(scale), mk_scale_bytes(scale));
  return scale == MK_SCALE_F32    ? mk_param_float(word)
         : scale == MK_SCALE_BF16 ? mk_bf16_to_float((uint16_t)word)
                                  : mk_half_to_float((uint16_t)word);
}

typedef struct range { /* of columns that share their scales */
  float scales[MK_TILE];
  float zeros[MK_TILE];
} range;

static void load_range(const mk_buffer *b, const uint8_t *strip, uint32_t index, range *out) {
  const uint8_t *scales = strip + mk_strip_codes(b), *zeros = scales + mk_strip_scales(b);
  for (uint32_t i = 0; i < MK_TILE; i++) {
    out->scales[i] = load_scale(scales, b->scale, index * MK_TILE + i);
    out->zeros[i] = b->zeros != 0 ? zeros[index * MK_TILE + i] : MK_PLAIN_ZERO;
  }
}

static void expand_nibbles(const uint8_t *strip, const range *r, size_t step, size_t end, uint16_t *out) {
  uint16_t weights[MK_TILE][NIBBLES];
  for (uint32_t i = 0; i < MK_TILE; i++) {
    for (uint32_t q = 0; q < NIBBLES; q++) {
      weights[i][q] = round_weight(r->scales[i] * ((float)q - r->zeros[i]));
    }
  }
  for (; step < end; step++) {
    for (size_t lane = 0; lane < LANES; lane++, out += LANE_ELEMENTS) {
      const uint16_t(*own)[NIBBLES] = &weights[lane / 4 * 2];
      uint32_t word;
      memcpy(&word, strip + step / 4 * 512 + lane * 16 + step % 4 * 4, sizeof word);
      for (size_t pair = 0; pair < LANE_ELEMENTS / 2; pair++) {
        out[2 * pair] = own[pair % 2][word >> 4 * pair & 15];
        out[2 * pair + 1] = own[pair % 2][word >> 4 * (pair + 4) & 15];
      }
    }
  }
}

static void expand_bytes(const uint8_t *strip, const float numbers[CODES], const range *r, size_t step, size_t end,
                         uint16_t *out) {
  for (; step < end; step++) {
    for (size_t lane = 0; lane < LANES; lane++, out += LANE_ELEMENTS) {
      const float *own = &r->scales[lane / 4 * 2];
      const uint8_t *codes = strip + step / 2 * 512 + lane * 16 + step % 2 * 8;
      for (size_t pair = 0; pair < LANE_ELEMENTS / 2; pair++) {
        const uint8_t *two = codes + pair / 2 * 4 + pair % 2;
        out[2 * pair] = round_weight(own[pair % 2] * numbers[two[0]]);
        out[2 * pair + 1] = round_weight(own[pair % 2] * numbers[two[2]]);
      }
    }
  }
}

static void list_numbers(uint32_t dtype, float numbers[CODES]) {
  for (uint32_t code = 0; code < CODES; code++) {
    numbers[code] = dtype == MK_DTYPE_I8 ? (float)(int8_t)code : mk_e4m3_to_float((uint8_t)code);
  }
}

void mk_dequantise(const mk_buffer *buffer, const uint8_t *row_tile, uint32_t first, uint32_t steps, uint16_t *out) {
  const uint32_t range_steps = buffer->scale_cols / MK_TILE, end = first + steps;
  const bool nibbles = buffer->dtype == MK_DTYPE_I4;
  float numbers[CODES];
  if (!nibbles) {
    list_numbers(buffer->dtype, numbers);
  }
  for (uint32_t step = first; step < end;) {
    const uint8_t *strip = row_tile + (size_t)(step / MK_STRIP_STEPS) * mk_strip_bytes(buffer);
    const uint32_t within = step % MK_STRIP_STEPS, rest = range_steps - within % range_steps;
    const uint32_t count = rest < end - step ? rest : end - step;
    range r;
    load_range(buffer, strip, within / range_steps, &r);
    if (nibbles) {
      expand_nibbles(strip, &r, within, within + count, out);
    } else {
      expand_bytes(strip, numbers, &r, within, within + count, out);
    }
    out += (size_t)count * MK_TILE_STEP_ELEMENTS;
    step += count;
  }
}

uint16_t mk_quantise_head(const float *x, uint32_t count, uint8_t *codes) {
  enum { LEAST = 10, MOST = 247, BIAS = 127 }; /* exponents of 2^-117 and 2^120, as bf16 has them */
  const uint32_t infinite = 0x7f800000u, fraction = 0x7fffffu, of_448 = 0x600000u;
  uint32_t largest = 0;
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t size = mk_float_param(x[i]) & 0x7fffffffu;
    largest = size < infinite && size > largest ? size : largest;
  }
  /* 448 = 1.75 * 2^8 */
  const int32_t fits = (int32_t)(largest >> 23) - ((largest & fraction) <= of_448 ? 8 : 7);
  const uint32_t exponent = fits < LEAST ? LEAST : fits > MOST ? MOST : (uint32_t)fits;
  const float inverse = largest == 0 ? 0 : mk_param_float((uint32_t)(2 * BIAS - exponent) << 23);
  for (uint32_t i = 0; i < count; i++) {
    const uint32_t size = mk_float_param(x[i]) & 0x7fffffffu;
    codes[i] = size < infinite ? mk_float_to_e4m3(x[i] * inverse) : mk_float_to_e4m3(NAN);
  }
  return largest == 0 ? 0 : (uint16_t)(exponent << 7);
}

uint16_t mk_dequantise_element(uint16_t scale, uint8_t code) {
  return round_weight(mk_bf16_to_float(scale) * mk_e4m3_to_float(code));
}

/* Eight codes of a lane, in the order of bytes, become its elements, where all scales are powers of two: these are
 * added to the exponents of bf16. add: of each byte's scale, in the places of bf16's exponent. */
static inline __attribute__((always_inline)) void expand_lane(const uint8_t *codes, const half8 *add, uint16_t *out) {
  byte8 bytes;
  memcpy(&bytes, codes, sizeof bytes);
  const half8 words = __builtin_convertvector(bytes, half8), m = words & 0x7f;
  /* Below 2^-6 these are 0 to 7 times 2^-9. */
  const half8 four = (half8)((short8)m > 3), two = (half8)((short8)m > 1) & ~four, one = (half8)(m == 1);
  const half8 small = (four & (0x3c00 + ((m - 4) << 5))) | (two & (0x3b80 + ((m - 2) << 6))) | (one & 0x3b00);
  const half8 below = (half8)((short8)m < 8), none = (half8)(m == 0x7f);
  const half8 sizes = (half8)(m != 0) & (((below & small) | (~below & ((m << 4) + (120 << 7)))) + *add);
  const half8 halves = (none & 0x7fc0) | (~none & sizes) | (words & 0x80) << 8;
  const half8 elements = __builtin_shufflevector(halves, halves, 0, 2, 1, 3, 4, 6, 5, 7);
  memcpy(out, &elements, sizeof elements);
}

/* Whether these sixteen scales are powers of two by which no code becomes subnormal or infinite, as nearly all are. */
static bool are_powers(const uint16_t scales[MK_TILE], uint16_t add[MK_TILE]) {
  enum { LEAST = 10, MOST = 246, BIAS = 127 };
  bool all = true;
  for (uint32_t i = 0; i < MK_TILE; i++) {
    all = all && (scales[i] & 0x807f) == 0 && scales[i] >> 7 >= LEAST && scales[i] >> 7 <= MOST;
    add[i] = (uint16_t)(scales[i] - (BIAS << 7));
  }
  return all;
}

static void expand_powers(const uint8_t *lines, uint32_t which, const uint16_t a[MK_TILE], uint32_t steps,
                          uint16_t *out) {
  half8 add[LANES / 4];
  for (uint32_t i = 0; i < LANES / 4; i++) { /* of K, of lanes 4 i to 4 i + 3; of V, whose columns are tokens, i < 4 */
    const uint16_t *k = a + (size_t)2 * i, *v = a + (size_t)2 * (i % 4);
    add[i] = which == 0 ? (half8){k[0], k[1], k[0], k[1], k[0], k[1], k[0], k[1]}
                        : (half8){v[0], v[0], v[1], v[1], v[8], v[8], v[9], v[9]};
  }
  for (size_t step = 0; step < steps; step++) {
    const uint8_t *codes = which == 0 ? lines + step / 2 * 512 + step % 2 * 8 : lines + step * 512;
    for (size_t lane = 0; lane < LANES; lane++, out += LANE_ELEMENTS) {
      expand_lane(codes + lane * 16, &add[which == 0 ? lane / 4 : lane % 4], out);
    }
  }
}

void mk_dequantise_tokens(const mk_buffer *buffer, const uint8_t *half, uint32_t which, uint32_t token, uint16_t *out) {
  const uint32_t steps = buffer->head_dim / MK_TILE;
  const uint8_t *scales = half + mk_half_codes(buffer) + (size_t)token * mk_scale_bytes(buffer->scale);
  const uint8_t *lines = half + mk_half_code(buffer, which, token, 0);
  uint16_t bits[MK_TILE], add[MK_TILE];
  memcpy(bits, scales, sizeof bits);
  if (are_powers(bits, add)) {
    expand_powers(lines, which, add, steps, out);
    return;
  }
  float numbers[CODES];
  range r;
  list_numbers(buffer->dtype, numbers);
  for (uint32_t i = 0; i < MK_TILE; i++) {
    r.scales[i] = mk_bf16_to_float(bits[i]);
  }
  if (which == 0) {
    expand_bytes(lines, numbers, &r, 0, steps, out);
    return;
  }
  for (size_t lane = 0; lane < (size_t)steps * LANES; lane++, out += LANE_ELEMENTS) {
    for (size_t pair = 0; pair < LANE_ELEMENTS / 2; pair++) { /* of neighbouring columns, which are tokens here */
      const float *own = &r.scales[lane % 4 * 2 + pair / 2 * 8];
      const uint8_t *two = lines + lane * 16 + pair / 2 * 4 + pair % 2;
      out[2 * pair] = round_weight(own[0] * numbers[two[0]]);
      out[2 * pair + 1] = round_weight(own[1] * numbers[two[2]]);
    }
  }
}
