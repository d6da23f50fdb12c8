/* y = W x over weight tiles: the loop all linear opcodes share.
 *
 * A step of 512 bytes holds a 16 x 16 tile in fragment order (program.h). The 16 words of two bf16 that belong to row
 * pair g lie side by side; words 4 t and 4 t + 2 are of row g, words 4 t + 1 and 4 t + 3 of row g + 8. A shift gives
 * the even elements of all words as fp32, a mask the odd ones; x is expanded once to match. Each of the 32 sums of a
 * row pair and vector runs over a chain of MK_CHAIN_COLS columns in order; they are added in a fixed order at its end,
 * and the chains of a row one after the other. No fused multiply-add (-ffp-contract=off).
 *
 * So how the loops are blocked decides nothing but speed, and the same bits come out of every vector width and every
 * number of vectors. One vector: a step is read once, from end to end, by sums of all eight row pairs, since memory
 * gives no more than that. Several: a chunk of steps stays in the first-level cache while vectors pass over it, and
 * what is made of a word of weights is used for four of them. */
#include "instructions/matvec.h"

#include <string.h>

#include "instructions/dequantise.h"

typedef float float4 __attribute__((vector_size(16)));
typedef float float8 __attribute__((vector_size(32)));
typedef float float16 __attribute__((vector_size(64)));
typedef uint32_t word8 __attribute__((vector_size(32)));
typedef word8 loose8 __attribute__((aligned(2), may_alias)); /* where weights lie */
typedef uint32_t word16 __attribute__((vector_size(64)));

enum {
  PAIRS = MK_TILE / 2,
  CHAIN_STEPS = MK_CHAIN_COLS / MK_TILE,
  STEPS_PER_CHUNK = 4 * CHAIN_STEPS, /* whole chains: 16 KiB of weights, and 4 KiB of each vector */
  MOST_VECTORS = 4,                  /* that pass over a chunk at the same time */
  /* Bytes that weights are fetched ahead: past the page at hand, where the CPU's own prefetching ends; and the next
   * chunk. */
  AHEAD = 4096,
  CHUNK_AHEAD = STEPS_PER_CHUNK * MK_TILE_STEP_ELEMENTS * 2,
};

typedef float4 tile_sums[PAIRS / 2]; /* of a row tile and a vector: rows g, g + 8, g + 1, g + 9 for each even g */

typedef struct block { /* some steps of one row tile, and vectors to multiply them with */
  const uint16_t *weight;
  const float16 *x; /* of the first vector, [steps][even, odd] */
  size_t x_stride;  /* from vector to vector */
  uint32_t steps;   /* from the beginning of a chain on, to the end of one or of K */
  tile_sums *sums;  /* by vector */
} block;

/* A chain's sums of two row pairs, of even and of odd elements: for each row (even + odd of word 4 t) + (the same of
 * word 4 t + 2, or of 4 t + 1 and 4 t + 3), and these by t from 0 on, beginning from zero. */
static inline __attribute__((always_inline)) float4 add_up(const float16 *first, const float16 *second) {
  const float16 a = first[0] + first[1], b = second[0] + second[1];
  const float16 by_word = __builtin_shufflevector(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
                          __builtin_shufflevector(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
  float4 sum = {0};
  sum += __builtin_shufflevector(by_word, by_word, 0, 1, 2, 3);
  sum += __builtin_shufflevector(by_word, by_word, 4, 5, 6, 7);
  sum += __builtin_shufflevector(by_word, by_word, 8, 9, 10, 11);
  return sum + __builtin_shufflevector(by_word, by_word, 12, 13, 14, 15);
}

/* Adds the products of `pairs` row pairs (an even number) from the first one on with `vectors` vectors; both are
 * constants where this is inlined. */
static inline __attribute__((always_inline)) void add_pairs(const block *b, uint32_t first, const uint32_t pairs,
                                                            const uint32_t vectors) {
  const uint16_t *w = b->weight + (size_t)first * MK_TILE_STEP_ELEMENTS / PAIRS;
  const float16 *x = b->x;
  for (uint32_t chain = 0; chain < b->steps; chain += CHAIN_STEPS) {
    float16 sums[PAIRS * MOST_VECTORS][2]; /* [vector][pair] */
#pragma GCC unroll 32
    for (uint32_t i = 0; i < pairs * vectors; i++) {
      sums[i][0] = sums[i][1] = (float16){0};
    }
    uint32_t steps = b->steps - chain < CHAIN_STEPS ? b->steps - chain : CHAIN_STEPS;
#pragma GCC unroll 1 /* else gcc, where it has no vectors of 64 bytes, leaves the sums in memory */
    for (uint32_t step = 0; step < steps; step++, w += MK_TILE_STEP_ELEMENTS, x += 2) {
#pragma GCC unroll 8
      for (uint32_t g = 0; g < pairs; g++) {
        word16 raw, low, high;
        float16 even, odd;
        const uint16_t *words = w + (size_t)g * MK_TILE_STEP_ELEMENTS / PAIRS;
        if (vectors == 1) {
          __builtin_prefetch((const void *)((uintptr_t)words + AHEAD), 0, 3);
        } else {
          __builtin_prefetch((const void *)((uintptr_t)words + CHUNK_AHEAD), 0, 2);
        }
        memcpy(&raw, words, sizeof raw);
        low = raw << 16;
        high = raw & 0xffff0000u;
        memcpy(&even, &low, sizeof even);
        memcpy(&odd, &high, sizeof odd);
#pragma GCC unroll 4
        for (uint32_t v = 0; v < vectors; v++) {
          sums[v * pairs + g][0] += even * x[v * b->x_stride];
          sums[v * pairs + g][1] += odd * x[v * b->x_stride + 1];
        }
      }
    }
#pragma GCC unroll 32
    for (uint32_t i = 0; i < pairs * vectors; i += 2) {
      b->sums[i / pairs][(first + i % pairs) / 2] += add_up(sums[i], sums[i + 1]);
    }
  }
}

/* A vector unit with 32 registers of 64 bytes: sixteen of them hold sums. */
static inline __attribute__((always_inline)) void add_wide(const block *b, uint32_t vectors) {
  if (vectors == 1) {
    add_pairs(b, 0, PAIRS, 1);
  } else if (vectors == 2) {
    for (uint32_t g = 0; g < PAIRS; g += 4) {
      add_pairs(b, g, 4, 2);
    }
  } else if (vectors == 3) {
    for (uint32_t g = 0; g < PAIRS; g += 2) {
      add_pairs(b, g, 2, 3);
    }
  } else {
    for (uint32_t g = 0; g < PAIRS; g += 2) {
      add_pairs(b, g, 2, 4);
    }
  }
}

/* ---- Vector units with 16 registers of 32 bytes, or fewer ----
 * Eight of them hold sums. Each is a variable by itself: under sanitizers gcc leaves arrays in memory. */

enum { HALVES = 2, HALF_WORDS = MK_TILE / HALVES }; /* of the words of a row pair */

/* Sums of a half, of even and of odd elements, for each of two row pairs. */
#define HALF_SUMS(type, name) type name##_even, type name##_odd, type name##_next_even, type name##_next_odd

/* add_up of one half, which begins with an even t: onto the sum of those before it. */
static inline __attribute__((always_inline)) void add_up_half(HALF_SUMS(const float8 *, s), float4 *sum) {
  const float8 a = *s_even + *s_odd, b = *s_next_even + *s_next_odd;
  const float8 by_word = __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13) +
                         __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
  *sum += __builtin_shufflevector(by_word, by_word, 0, 1, 2, 3);
  *sum += __builtin_shufflevector(by_word, by_word, 4, 5, 6, 7);
}

/* Adds the products of a half of a step with a vector. */
static inline __attribute__((always_inline)) void add_half(HALF_SUMS(float8 *, s), const uint16_t *words,
                                                           const float8 *x) {
  const word8 first = *(const loose8 *)words, second = *(const loose8 *)(words + MK_TILE_STEP_ELEMENTS / PAIRS);
  *s_even += (float8)(first << 16) * x[0];
  *s_odd += (float8)(first & 0xffff0000u) * x[HALVES];
  *s_next_even += (float8)(second << 16) * x[0];
  *s_next_odd += (float8)(second & 0xffff0000u) * x[HALVES];
}

/* As add_pairs, of two row pairs: both halves together for one vector, one half after the other for two. */
static inline __attribute__((always_inline)) void add_two_pairs(const block *b, uint32_t first,
                                                                const uint32_t vectors) {
  const uint16_t *pairs = b->weight + (size_t)first * MK_TILE_STEP_ELEMENTS / PAIRS;
  const float8 *x = (const float8 *)b->x;
  const size_t next_words = vectors == 1 ? 2 * HALF_WORDS : 0, next_x = vectors == 1 ? 1 : b->x_stride * HALVES;
  for (uint32_t chain = 0; chain < b->steps; chain += CHAIN_STEPS) {
    const uint32_t steps = b->steps - chain < CHAIN_STEPS ? b->steps - chain : CHAIN_STEPS;
    float4 sum = {0}, other_sum = {0};
    for (uint32_t half = 0; half < HALVES; half += HALVES / vectors) {
      const uint16_t *words = pairs + (size_t)chain * MK_TILE_STEP_ELEMENTS + (size_t)half * 2 * HALF_WORDS;
      const float8 *with = x + (size_t)chain * 2 * HALVES + half;
      float8 e0 = {0}, o0 = {0}, e1 = {0}, o1 = {0}, e2 = {0}, o2 = {0}, e3 = {0}, o3 = {0};
      for (uint32_t step = 0; step < steps; step++, words += MK_TILE_STEP_ELEMENTS, with += 2 * (size_t)HALVES) {
        __builtin_prefetch((const void *)((uintptr_t)words + (vectors == 1 ? AHEAD : CHUNK_AHEAD)), 0, 3);
        add_half(&e0, &o0, &e1, &o1, words, with);
        add_half(&e2, &o2, &e3, &o3, words + next_words, with + next_x);
      }
      add_up_half(&e0, &o0, &e1, &o1, &sum);
      add_up_half(&e2, &o2, &e3, &o3, vectors == 1 ? &sum : &other_sum);
    }
    b->sums[0][first / 2] += sum;
    if (vectors != 1) {
      b->sums[1][first / 2] += other_sum;
    }
  }
}

static inline __attribute__((always_inline)) void add_narrow(const block *b, uint32_t vectors) {
  for (uint32_t v = 0; v < vectors; v += 2) {
    block some = *b;
    some.x += v * b->x_stride;
    some.sums += v;
    for (uint32_t g = 0; g < PAIRS; g += 2) {
      if (vectors - v == 1) {
        add_two_pairs(&some, g, 1);
      } else {
        add_two_pairs(&some, g, 2);
      }
    }
  }
}

#ifdef __x86_64__
__attribute__((target("avx512f"))) static void add_avx512(const block *b, uint32_t vectors) { add_wide(b, vectors); }
__attribute__((target("avx2"))) static void add_avx2(const block *b, uint32_t vectors) { add_narrow(b, vectors); }
#endif
static void add_plain(const block *b, uint32_t vectors) { add_narrow(b, vectors); }

mk_vector_width mk_vector_widest(void) {
#ifdef __x86_64__
  return __builtin_cpu_supports("avx512f") ? MK_VECTOR_AVX512
         : __builtin_cpu_supports("avx2")  ? MK_VECTOR_AVX2
                                           : MK_VECTOR_PLAIN;
#else
  return MK_VECTOR_PLAIN;
#endif
}

static void add(mk_vector_width width, const block *b, uint32_t vectors) {
#ifdef __x86_64__
  if (width == MK_VECTOR_AVX512) {
    add_avx512(b, vectors);
    return;
  }
  if (width == MK_VECTOR_AVX2) {
    add_avx2(b, vectors);
    return;
  }
#endif
  (void)width;
  add_plain(b, vectors);
}

/* Words 4 t to 4 t + 3 meet elements 2 t, 2 t, 2 t + 8, 2 t + 8 of a step (even) and the ones after those (odd). */
static void expand(const float *x, uint32_t steps, float *out) {
  for (const float *end = x + (size_t)steps * MK_TILE; x < end; x += MK_TILE, out += (size_t)2 * MK_TILE) {
    for (uint32_t t = 0; t < 4; t += 2) {
      float4 a, b;
      memcpy(&a, x + (size_t)2 * t, sizeof a);
      memcpy(&b, x + (size_t)2 * t + 8, sizeof b);
      const float4 expanded[2][2] = {
          {__builtin_shufflevector(a, b, 0, 0, 4, 4), __builtin_shufflevector(a, b, 2, 2, 6, 6)},
          {__builtin_shufflevector(a, b, 1, 1, 5, 5), __builtin_shufflevector(a, b, 3, 3, 7, 7)}};
      memcpy(out + (size_t)4 * t, expanded[0], sizeof expanded[0]);
      memcpy(out + (size_t)4 * t + MK_TILE, expanded[1], sizeof expanded[1]);
    }
  }
}

/* The sums of row tile `row` with `count` expanded vectors. Quantised weights become bf16 a chunk at a time. */
static void multiply_tile(mk_vector_width width, const mk_span *weight, uint32_t row, uint32_t count, const float16 *x,
                          tile_sums *sums) {
  uint16_t weights[STEPS_PER_CHUNK * MK_TILE_STEP_ELEMENTS];
  const bool quantised = mk_dtype_is_quantised(weight->buffer->dtype);
  const uint32_t steps = (weight->cols + MK_TILE - 1) / MK_TILE, first = weight->col / MK_TILE;
  const uint32_t chunk = count == 1 && !quantised ? steps : STEPS_PER_CHUNK;
  const uint8_t *tile =
      weight->memory + row * mk_tiles_bytes(weight->buffer, 1, 0, mk_buffer_grid_cols(weight->buffer));
  memset(sums, 0, count * sizeof *sums);
  for (uint32_t start = 0; start < steps; start += chunk) {
    const uint32_t now = start + chunk < steps ? chunk : steps - start;
    const uint16_t *from = (const uint16_t *)(const void *)tile + (size_t)(first + start) * MK_TILE_STEP_ELEMENTS;
    if (quantised) {
      mk_dequantise(weight->buffer, tile, first + start, now, weights);
      from = weights;
    }
    for (uint32_t v = 0; v < count; v += MOST_VECTORS) {
      block b = {.weight = from,
                 .x = x + ((size_t)v * steps + start) * 2,
                 .x_stride = (size_t)steps * 2,
                 .steps = now,
                 .sums = sums + v};
      add(width, &b, count - v < MOST_VECTORS ? count - v : MOST_VECTORS);
    }
  }
}

void mk_matvec_at(mk_vector_width width, const mk_span *weight, uint32_t count, const float *x, float *scratch,
                  float *y) {
  tile_sums sums[MK_MOST_ROWS];
  uint32_t steps = (weight->cols + MK_TILE - 1) / MK_TILE;
  float *expanded = (float *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63);
  for (uint32_t i = 0; i < count; i++) {
    expand(x + (size_t)i * steps * MK_TILE, steps, expanded + (size_t)i * steps * 2 * MK_TILE);
  }
  for (uint32_t row = 0; row < weight->rows; row += MK_TILE) {
    multiply_tile(width, weight, (weight->row + row) / MK_TILE, count, (const float16 *)(const void *)expanded, sums);
    for (uint32_t i = 0; i < count * PAIRS; i++) {
      float *to = y + (size_t)(i / PAIRS) * weight->rows + row + i % PAIRS;
      const float4 *from = &sums[i / PAIRS][i % PAIRS / 2];
      to[0] = (*from)[i % 2 * 2];
      to[PAIRS] = (*from)[i % 2 * 2 + 1];
    }
  }
}

void mk_matvec(const mk_span *weight, uint32_t count, const float *x, float *scratch, float *y) {
  mk_matvec_at(mk_vector_widest(), weight, count, x, scratch, y);
}
