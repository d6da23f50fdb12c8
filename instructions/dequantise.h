/* Quantised weights as bf16: what every machine multiplies with (vm/program/strips.h, docs/NUMERICS.md).
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

#endif
