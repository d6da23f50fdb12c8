/* Quantised weights as a TILES buffer holds them: what an element is, and where it lies.
 *
 * A weight is bf16(scale * (q - zero)): the product in fp32, rounded to nearest even (docs/NUMERICS.md). Of E4M3 q is
 * the number that the code stands for, of I8 the code in two's complement, and neither has zeros; of I4 q is 0 to 15,
 * and zero 8 where the buffer has no zeros.
 *
 * A row tile is a run of *strips*, one per 128 columns (a chain of sums), the last one padded; so a K range of whole
 * strips is one contiguous piece of memory, as it is of bf16. A strip has, without gaps,
 *   codes   in lines of 512 bytes, each of 32 lanes of 16 bytes. A lane of a line has its A fragments of mma.m16n8k16
 *           (program.h: a step of 16 columns, 8 elements, in pairs 0 to 3 of neighbouring columns) of
 *             8 bits  two steps, one after the other. Four bytes are elements 0, 2, 1, 3, the next four 4, 6, 5, 7:
 *                     bytes i and i + 2 are a pair, so that a mask and a shift bring it into two halves of a register
 *             4 bits  four steps, a word each. Its nibbles from the lowest are elements 0, 2, 4, 6, 1, 3, 5, 7: nibbles
 *                     i and i + 4 are a pair
 *   scales  of each range of `scale_cols` columns, one after the other: 16 of them, in rows 0, 8, 1, 9, ... 7, 15, so
 *           that the two rows of a lane lie side by side; fp32, bf16 or fp16, as the checkpoint has them
 *   zeros   where there are any: of each range a byte for each of these rows, 0 to 15
 * Rows of padding have scale 0 and columns of padding q = zero, or 0: their weights are 0.
 *
 * Pure functions: any thread may call. */
#ifndef MK_STRIPS_H
#define MK_STRIPS_H

#include "vm/program/program.h"

enum {
  MK_STRIP_COLS = MK_CHAIN_COLS,
  MK_STRIP_STEPS = MK_STRIP_COLS / MK_TILE,
  MK_PLAIN_ZERO = 8, /* of I4 without zeros */
};

static inline bool mk_dtype_is_quantised(uint32_t dtype) { return dtype >= MK_DTYPE_E4M3 && dtype <= MK_DTYPE_I4; }
static inline uint32_t mk_code_bits(uint32_t dtype) { return dtype == MK_DTYPE_I4 ? 4 : 8; }
static inline uint32_t mk_scale_bytes(uint32_t scale) { return scale == MK_SCALE_F32 ? 4 : 2; }

/* Bytes of the codes of a strip; of its scales; of all of it. The buffer is a quantised one, and sound. */
static inline uint32_t mk_strip_codes(const mk_buffer *b) {
  return MK_TILE * MK_STRIP_COLS * mk_code_bits(b->dtype) / 8;
}
static inline uint32_t mk_strip_ranges(const mk_buffer *b) { return MK_STRIP_COLS / b->scale_cols; }
static inline uint32_t mk_strip_scales(const mk_buffer *b) {
  return mk_strip_ranges(b) * MK_TILE * mk_scale_bytes(b->scale);
}
static inline uint32_t mk_strip_bytes(const mk_buffer *b) {
  return mk_strip_codes(b) + mk_strip_scales(b) + (b->zeros != 0 ? mk_strip_ranges(b) * MK_TILE : 0);
}

/* Where the scale and the zero of a row lie among the sixteen of a range. */
static inline uint32_t mk_strip_row(uint32_t row) { return row % 8 * 2 + row / 8 % 2; }

/* Of element (row, col) of a strip: the byte of its codes, and of I4 the lower or upper half of it (0 or 4 bits up). */
static inline uint32_t mk_strip_offset(uint32_t dtype, uint32_t row, uint32_t col, uint32_t *shift) {
  const uint32_t element = mk_step_offset(row, col) % 8, lane = mk_step_offset(row, col) / 8, step = col / MK_TILE;
  const uint32_t in_four = element % 4 / 2 + element % 2 * 2;
  if (dtype == MK_DTYPE_I4) {
    const uint32_t nibble = element / 2 + element % 2 * 4;
    *shift = nibble % 2 * 4;
    return step / 4 * 512 + lane * 16 + step % 4 * 4 + nibble / 2;
  }
  *shift = 0;
  return step / 2 * 512 + lane * 16 + step % 2 * 8 + element / 4 * 4 + in_four;
}

#endif
