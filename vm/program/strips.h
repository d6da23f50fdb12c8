/* Quantised weights as a TILES buffer holds them, and a quantised KV cache as a BLOCKS buffer does: what an element is,
 * and where it lies.
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
 * Rows of padding have scale 0 and columns of padding q = zero, or 0: their weights are 0. A scale of E4M3 is NaN where
 * one of its codes stands for NaN: a sum with one of them is NaN, whatever the others are, and a machine need not look
 * at codes.
 *
 * A KV cache of E4M3 has a scale, in bf16, for the K and one for the V of each token and KV head: what is stored of a
 * token never changes. An element is bf16(scale * q), and a scale that a machine writes is 0 or a power of two, so that
 * this is exact (docs/NUMERICS.md). The pair of a block and KV head has, without gaps, for K and then for V
 *   codes   K: sixteen tokens are the codes of a strip of head_dim columns, tokens being rows. V: of 32 tokens, a part
 *           of attention, 16 dims (rows) after the other; so a lane's 16 bytes are the A fragments of one chain of P V
 *   scales  of all tokens of the block. K: sixteen tokens at a time in the order of a strip, as a lane's sums are of
 *           tokens g and g + 8. V: token by token, as the pairs of P are that they are multiplied to
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
MK_HOST_DEVICE static inline uint32_t mk_strip_row(uint32_t row) { return row % 8 * 2 + row / 8 % 2; }

/* Of element (row, col) of a strip: the byte of its codes, and of I4 the lower or upper half of it (0 or 4 bits up). */
MK_HOST_DEVICE static inline uint32_t mk_strip_offset(uint32_t dtype, uint32_t row, uint32_t col, uint32_t *shift) {
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

/* Tokens that a block of a KV cache has a multiple of. */
static inline uint32_t mk_block_unit(const mk_buffer *b) {
  return mk_dtype_is_quantised(b->dtype) ? 2 * (uint32_t)MK_TILE : (uint32_t)MK_TILE;
}

/* Bytes of the K, or the V, of a block of a KV cache and head; of its codes alone, where it is a quantised one; and of
 * the pair. Within 2^52 for any buffer. */
static inline uint64_t mk_half_codes(const mk_buffer *b) { return (uint64_t)b->block_tokens * b->head_dim; }
static inline uint64_t mk_half_bytes(const mk_buffer *b) {
  return mk_dtype_is_quantised(b->dtype) ? mk_half_codes(b) + (uint64_t)b->block_tokens * mk_scale_bytes(b->scale)
                                         : 2 * mk_half_codes(b);
}
static inline uint64_t mk_pair_bytes(const mk_buffer *b) { return 2 * mk_half_bytes(b); }

/* Of a quantised cache, in bytes from the start of the K (which = 0) or V (1), the code of an element; and which of the
 * scales after the codes is that of a token. */
MK_HOST_DEVICE static inline uint32_t mk_kv_code(uint32_t head_dim, uint32_t which, uint32_t token, uint32_t dim) {
  uint32_t shift;
  const uint32_t line = 2 * MK_TILE; /* columns */
  return which == 0
             ? token / MK_TILE * MK_TILE * head_dim + mk_strip_offset(MK_DTYPE_E4M3, token % MK_TILE, dim, &shift)
             : token / line * line * head_dim + dim / MK_TILE * MK_TILE * line +
                   mk_strip_offset(MK_DTYPE_E4M3, dim % MK_TILE, token % line, &shift);
}
MK_HOST_DEVICE static inline uint32_t mk_kv_scale(uint32_t which, uint32_t token) {
  return which == 0 ? token / MK_TILE * MK_TILE + mk_strip_row(token) : token;
}

/* The same of a buffer, both in bytes. */
static inline uint64_t mk_half_code(const mk_buffer *b, uint32_t which, uint32_t token, uint32_t dim) {
  return mk_kv_code(b->head_dim, which, token, dim);
}
static inline uint64_t mk_half_scale(const mk_buffer *b, uint32_t which, uint32_t token) {
  return mk_half_codes(b) + (uint64_t)mk_kv_scale(which, token) * mk_scale_bytes(b->scale);
}

#endif
