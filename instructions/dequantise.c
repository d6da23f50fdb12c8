/* See dequantise.h. Eight bits: a table of the 256 numbers, each times its row's scale. Four: a table of the 16 weights
 * that a row can have in a range, which are fewer than its elements there. */
#include "instructions/dequantise.h"

#include <math.h>
#include <string.h>

#include "instructions/reference.h"

enum { LANES = 32, LANE_ELEMENTS = 8, CODES = 256, NIBBLES = 16 };

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

void mk_dequantise_tokens(const mk_buffer *buffer, const uint8_t *half, uint32_t which, uint32_t token, uint16_t *out) {
  const uint32_t steps = buffer->head_dim / MK_TILE;
  const uint8_t *scales = half + mk_half_codes(buffer) + (size_t)token * mk_scale_bytes(buffer->scale);
  float numbers[CODES];
  range r;
  list_numbers(buffer->dtype, numbers);
  for (uint32_t i = 0; i < MK_TILE; i++) {
    r.scales[i] = load_scale(scales, buffer->scale, i);
  }
  if (which == 0) {
    expand_bytes(half + (size_t)token * buffer->head_dim, numbers, &r, 0, steps, out);
    return;
  }
  const uint8_t *lines = half + mk_half_code(buffer, 1, token, 0);
  for (size_t lane = 0; lane < (size_t)steps * LANES; lane++, out += LANE_ELEMENTS) {
    for (size_t pair = 0; pair < LANE_ELEMENTS / 2; pair++) { /* of neighbouring columns, which are tokens here */
      const float *own = &r.scales[lane % 4 * 2 + pair / 2 * 8];
      const uint8_t *two = lines + lane * 16 + pair / 2 * 4 + pair % 2;
      out[2 * pair] = round_weight(own[0] * numbers[two[0]]);
      out[2 * pair + 1] = round_weight(own[1] * numbers[two[2]]);
    }
  }
}
