/* Quantised weights, and K and V of a quantised cache, as bf16: what every machine multiplies with
 * (vm/program/strips.h, docs/NUMERICS.md). And how K and V become codes.
 *
 * Pure functions: any thread may call. */
#ifndef MK_DEQUANTISE_H
#define MK_DEQUANTISE_H

#include "vm/program/strips.h"

/* The number that a code of fp8 stands for. */
float mk_e4m3_to_float(uint8_t code);

/* And the code of the number next to a value, ties to even; beyond 448 that of 448. Of a NaN 0x7f. */
uint8_t mk_float_to_e4m3(float value);

/* Steps [first, first + steps) of a row tile of a quantised buffer, as a bf16 buffer has them: 256 elements each. */
void mk_dequantise(const mk_buffer *buffer, const uint8_t *row_tile, uint32_t first, uint32_t steps, uint16_t *out);

/* How a head of K or V of one token is stored in a quantised cache: the scale, in bf16, is 0 where all finite elements
 * are 0, else the smallest power of two from 2^-117 to 2^120 by which none of them exceeds 448; codes[count] are those
 * of x / scale. What is not finite becomes a NaN. */
uint16_t mk_quantise_head(const float *x, uint32_t count, uint8_t *codes);
/* What is read of it: bf16(scale * q). */
uint16_t mk_dequantise_element(uint16_t scale, uint8_t code);

/* Sixteen tokens of the K (which = 0) or V (1) of a block and KV head, from `token` on, as a bf16 buffer has them
 * (mk_block_offset): 16 * head_dim elements. half: where the K or V begins. */
void mk_dequantise_tokens(const mk_buffer *buffer, const uint8_t *half, uint32_t which, uint32_t token, uint16_t *out);

#endif
