/* Packing on the GPU: rows of one checkpoint tensor, as raw bytes, become rows of a packed weight
 * (vm/program/program.h: tiles; models/graph.h: the order of the rows). Shared by C (vm/gpu/upload.c) and CUDA
 * (vm/gpu/pack.cu). The work of one thread is a plain function of both languages, so that a test on the host runs the
 * very code. Plain data without ownership; nothing here fails. */
#ifndef MK_GPU_PACK_H
#define MK_GPU_PACK_H

#include <stdint.h>
#include <string.h>

#include "vm/gpu/fill.h"

#ifdef __CUDACC__
#define MK_PACK_FUNCTION static inline __host__ __device__
#else
#define MK_PACK_FUNCTION static inline
#endif

/* In the order of models/checkpoint.h: mk_tensor_dtype. */
typedef enum mk_gpu_pack_dtype { MK_GPU_PACK_BF16, MK_GPU_PACK_F16, MK_GPU_PACK_F32 } mk_gpu_pack_dtype;

enum { MK_GPU_PACK_THREADS = 256 };

typedef struct mk_gpu_pack {
  /* vm/gpu/upload.c fills in these four: */
  uint64_t to;              /* the packed weight; zero where its padding is */
  uint64_t from;            /* the source rows, row-major */
  uint32_t grid_cols;       /* of the packed weight */
  uint32_t packed_rows;     /* of it: nothing is written beyond */
  uint32_t order;           /* mk_gpu_fill_order */
  uint32_t dtype;           /* mk_gpu_pack_dtype of the source */
  uint32_t source;          /* which of the sources these rows belong to; VECTOR: 0 */
  uint32_t first_row, rows; /* of that source; VECTOR: 0 and 1 */
  uint32_t cols, head_dim;
  uint32_t rotary; /* ROPE: the first dims of a head, which pair up among themselves, as the others do; 0: all */
  uint32_t source_rows[MK_GPU_FILL_SOURCES]; /* of every source; 0: there is none */
} mk_gpu_pack;

MK_PACK_FUNCTION uint64_t mk_gpu_pack_unit(uint32_t dtype) { return dtype == MK_GPU_PACK_F32 ? 4 : 2; }

/* Where row `row` of source pack->source lies in the packed weight: models/graph.h, mk_weight_row, the other way
 * round. */
MK_PACK_FUNCTION uint32_t mk_gpu_pack_row(const mk_gpu_pack *pack, uint32_t row) {
  if (pack->order == MK_GPU_FILL_GLU) {
    return row / 8 * 16 + pack->source * 8 + row % 8;
  }
  if (pack->source > 0) {
    row += pack->source_rows[0];
  }
  if (pack->source > 1) {
    row += pack->source_rows[1];
  }
  if (pack->order != MK_GPU_FILL_ROPE || pack->source > 1) {
    return row;
  }
  /* Pairs (d, d + rotary / 2) of the rotated dims, then pairs of the others, in the same way. */
  uint32_t dim = row % pack->head_dim, half = pack->head_dim / 2;
  uint32_t rotated = pack->rotary != 0 ? pack->rotary / 2 : half;
  uint32_t second = dim < 2 * rotated ? dim >= rotated : dim >= half + rotated;
  uint32_t pair = dim - (dim < 2 * rotated ? second * rotated : second != 0 ? half : rotated);
  return row - dim + pair / 8 * 16 + second * 8 + pair % 8;
}

/* fp16 as fp32, bit for bit; every value of fp16 is one of fp32. */
MK_PACK_FUNCTION uint32_t mk_gpu_pack_wide(uint32_t half) {
  uint32_t sign = (half & 0x8000u) << 16, magnitude = half & 0x7fffu, bits;
  if (magnitude >= 0x7c00u) {
    return sign | 0x7f800000u | (magnitude & 0x3ffu) << 13;
  }
  if (magnitude >= 0x400u) {
    return sign | ((magnitude << 13) + 0x38000000u);
  }
  float value = (float)magnitude * (1.0f / 16777216.0f);
  memcpy(&bits, &value, sizeof bits);
  return sign | bits;
}

/* fp32 bits to bf16, round to nearest even; a NaN stays one. */
MK_PACK_FUNCTION uint32_t mk_gpu_pack_round(uint32_t bits) {
  return (bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16 | 0x40u) : (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

MK_PACK_FUNCTION uint32_t mk_gpu_pack_element(const mk_gpu_pack *pack, uint64_t index) {
  if (pack->dtype == MK_GPU_PACK_F32) {
    return mk_gpu_pack_round(((const uint32_t *)(uintptr_t)pack->from)[index]);
  }
  uint32_t bits = ((const uint16_t *)(uintptr_t)pack->from)[index];
  return pack->dtype == MK_GPU_PACK_F16 ? mk_gpu_pack_round(mk_gpu_pack_wide(bits)) : bits;
}

/* Elements 2 pair and 2 pair + 1 of row `row` (0 .. rows - 1) of the source rows at hand: one word of the packed
 * weight. */
MK_PACK_FUNCTION void mk_gpu_pack_pair(const mk_gpu_pack *pack, uint32_t row, uint32_t pair) {
  uint32_t col = 2 * pair;
  uint64_t index = (uint64_t)row * pack->cols + col;
  uint32_t low = mk_gpu_pack_element(pack, index);
  uint32_t high = col + 1 < pack->cols ? mk_gpu_pack_element(pack, index + 1) : 0;
  if (pack->order == MK_GPU_FILL_VECTOR) {
    uint16_t *to = (uint16_t *)(uintptr_t)pack->to;
    to[col] = (uint16_t)low;
    if (col + 1 < pack->cols) {
      to[col + 1] = (uint16_t)high;
    }
    return;
  }
  uint32_t at = mk_gpu_pack_row(pack, pack->first_row + row);
  if (at >= pack->packed_rows) {
    return;
  }
  uint64_t step = (uint64_t)(at / 16) * pack->grid_cols + col / 16;
  uint32_t lane = at % 8 * 4 + col % 8 / 2, word = at % 16 / 8 + col % 16 / 8 * 2;
  ((uint32_t *)(uintptr_t)pack->to)[step * 128 + (lane * 4 + word)] = low | high << 16;
}

#endif
