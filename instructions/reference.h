/* The plain C references of the opcodes: what the CPU machine runs and what the GPU is compared with.
 *
 * One function per opcode, named mk_reference_<NAME> after its line in opcodes.def. It first stages every input; when a
 * stamped word does not carry this epoch's generation yet it returns MK_REFERENCE_WAIT and has changed nothing. Then it
 * computes in fp32, in an order that depends on shapes and positions alone, and writes its outputs. With several rows
 * it does so for every active line, each by the very arithmetic of a program of one row.
 *
 * What data say about places is checked before it is used: tokens, positions, slots and blocks, places in plan and
 * ring. If one lies outside, the result is MK_REFERENCE_FAULT, with mk_error set (MK_ERR_DEVICE), and nothing outside
 * of a buffer has been touched. The same comes, where a record of writes is kept (written.h), of an input that nobody
 * has written in this epoch. What a program says about places (rectangles, parameters) is not checked again: that is
 * the verifier's part.
 *
 * A mk_reference belongs to one thread. Memory and scratch belong to the machine. */
#ifndef MK_REFERENCE_H
#define MK_REFERENCE_H

#include <math.h>

#include "instructions/written.h"
#include "vm/program/plan.h"
#include "vm/program/spans.h"

typedef enum mk_reference_result { MK_REFERENCE_DONE, MK_REFERENCE_WAIT, MK_REFERENCE_FAULT } mk_reference_result;

enum {
  MK_PART_WORDS = MK_MAX_UNITS / 64,
  MK_NEW_TILES = MK_MOST_ROWS / MK_TILE + 1, /* a slot's rows of one step touch no more tiles than these */
};

typedef struct mk_line { /* an active row of the step */
  mk_step_row row;
  uint32_t line; /* its place among the rows of the program, or in the tile of lines that the instruction computes */
} mk_line;

/* The step state of one SM: mk_step_begin. */
typedef struct mk_step_state {
  uint32_t step;                  /* the step of the launch that is to be computed */
  mk_step_row rows[MK_MOST_ROWS]; /* the rows of that step, tokens as they are */
  uint32_t choices[MK_MOST_ROWS]; /* by slot: the last token that was chosen */
  /* Of the step before, by row: what it chose, with MK_RESULT_NAN where logits were NaN; MK_CANDIDATE_NONE where it did
   * not choose. */
  uint32_t results[MK_MOST_ROWS];
  mk_line lines[MK_MOST_ROWS]; /* the active lines of the instruction that runs */
} mk_step_state;
/* The state before the first step of a launch, whose rows are `first`; NULL: rows without anything. */
void mk_step_begin(mk_step_state *state, const mk_program *program, const mk_step_row *first);

/* The copies of a program of several ranks: what an instruction writes of MK_RANK_EACH goes to those that have readers,
 * with the stamp `publish`. */
typedef struct mk_copies {
  uint8_t *const *memory;  /* [ranks][buffers] */
  const uint64_t *readers; /* of the instruction, by slot: a bit for each rank */
  bool plain_later;        /* of plain data the machine sees to that */
} mk_copies;

typedef struct mk_reference {
  const mk_program *program;
  uint8_t *const *memory;              /* the address of each buffer; of MK_RANK_EACH that of this rank's copy */
  uint32_t rank;                       /* the rank whose SM executes */
  const mk_copies *copies;             /* NULL: there are none */
  mk_step_state *state;                /* the state of the SM that executes */
  uint32_t generation;                 /* the stamps to wait for */
  uint32_t publish;                    /* the stamps to write: the generation, or 0 when the machine publishes later */
  float *scratch;                      /* mk_reference_scratch(program) floats, 64-byte aligned */
  uint32_t sm;                         /* for messages: the queue */
  mk_written *written;                 /* NULL: reads are not checked */
  uint16_t rows_used[MK_MAX_OPERANDS]; /* result: row tiles of each operand that were touched, from its first one on */
  /* Result of a COMBINE of several rows, whose parts lie anywhere: a bit for each row tile that was touched. */
  uint64_t parts_used[MK_PART_WORDS];
  uint32_t line_count;   /* active rows */
  uint32_t first_line;   /* of the tile of lines that the instruction computes */
  uint32_t active_tiles; /* of lines, that have an active one: a bit for each */
  mk_line *lines;
  const mk_instruction *instruction; /* the one that runs */
  bool fault;                        /* a fault was found, and mk_error is set: the result is MK_REFERENCE_FAULT */
} mk_reference;

enum {
  MK_MAX_HEAD_DIM = 256,
  MK_FOLD_TOKENS = 32, /* tokens of a part of attention, whose sums are one chain; it begins at a multiple of this */
  MK_SPAN_PIECES = 4,  /* the most pieces that a span of several rows has */
  MK_TREE_PIECES = 16, /* so many pieces COMBINE adds up as a tree, whatever number of them a split has */
};

/* Floats of scratch that the largest instruction of the program needs. */
size_t mk_reference_scratch(const mk_program *program);

mk_reference_result mk_reference_run(mk_reference *machine, const mk_instruction *instruction);

#define MK_OPCODE(NAME, text, state, semantics) \
  mk_reference_result mk_reference_##NAME(mk_reference *machine, const mk_instruction *instruction);
#include "vm/program/opcodes.def"

/* Reads a stamped word: SMs of other threads may write it meanwhile without a lock, and stamp and data come
 * together. */
static inline uint64_t mk_word_load(const uint64_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }
static inline void mk_word_store(uint64_t *word, uint32_t stamp, uint32_t data) {
  __atomic_store_n(word, (uint64_t)stamp << 32 | data, __ATOMIC_RELAXED);
}

/* exp, exp2, sin and cos in double precision, rounded: the C library's functions of single precision have other last
 * bits where the CPU has fused multiply-adds than where it has none, these do not (all 2^32 arguments of exp and exp2,
 * and those of up to 1e7 of the others, with glibc 2.36). */
static inline float mk_exp(float x) { return (float)exp((double)x); }
static inline float mk_exp2(float x) { return (float)exp2((double)x); } /* exact for whole numbers */
static inline float mk_sin(float x) { return (float)sin((double)x); }
static inline float mk_cos(float x) { return (float)cos((double)x); }

/* Shared by the opcodes' files. Elements of a rectangle are [rows][cols] in row-major order. */

static inline float mk_bf16_to_float(uint16_t bits) { return mk_param_float((uint32_t)bits << 16); }
/* Round to nearest, ties to even; NaN stays NaN. */
uint16_t mk_float_to_bf16(float value);

/* IEEE binary16, in the same way; values beyond its range become infinite. */
uint16_t mk_float_to_half(float value);
float mk_half_to_float(uint16_t bits);

typedef struct mk_span { /* an operand in elements of its buffer */
  const mk_buffer *buffer;
  uint8_t *memory;
  uint32_t row, rows, col, cols; /* clipped to the buffer */
  uint32_t slot;                 /* of the operand */
} mk_span;
mk_span mk_operand_span(const mk_reference *machine, const mk_instruction *instruction, uint32_t slot);

/* A fault of the instruction that runs: sets the message (SM, uid and opcode, and then the rest) unless there is one
 * already. */
mk_reference_result mk_reference_fault(mk_reference *machine, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/* Whether the program declares such a token; if not, that is a fault. */
bool mk_check_token(mk_reference *machine, const char *whose, uint32_t token);
bool mk_check_slot(mk_reference *machine, uint32_t line, uint32_t slot);

/* Tells the record of writes that elements [first, first + count) of row span->row + row are read, or written. Staging
 * and publishing do so by themselves. */
void mk_note_read(mk_reference *machine, const mk_span *span, uint32_t row, uint32_t first, uint32_t count);
void mk_note_write(const mk_reference *machine, const mk_span *span, uint32_t row, uint32_t first, uint32_t count);

/* Copies `rows` rows of a span to out; false when a word of a STAMPED one is not of this generation. */
bool mk_stage_rows(mk_reference *machine, const mk_span *span, uint32_t rows, float *out);
/* Stages line `line` of every row tile of the span, one after the other. */
bool mk_stage_line(mk_reference *machine, const mk_span *span, uint32_t line, float *out);
/* Stages the active lines of row tile `tile` of the span, `stride` floats apart. */
bool mk_stage_lines(mk_reference *machine, const mk_span *span, uint32_t tile, float *out, size_t stride);
/* An input vector of `cols` elements for each active line: a value, or the row of a TILES buffer that the line's
 * token names. */
bool mk_stage_vector(mk_reference *machine, const mk_instruction *instruction, uint32_t slot, float *out,
                     size_t stride);
/* Writes count elements (fp32 or u32 words as their bits; bf16 rounds) from element `first` of row span->row + row. */
void mk_publish_floats(const mk_reference *machine, const mk_span *span, uint32_t row, uint32_t first, uint32_t count,
                       const float *values);
void mk_publish_words(const mk_reference *machine, const mk_span *span, uint32_t row, uint32_t first, uint32_t count,
                      const uint32_t *values);

/* A part of attention, of one query head over some tokens: (sum_t p_t v_t [head_dim], m, sum_t p_t), p_t = 2^(x_t - m),
 * x_t being the score in base 2 and m the smallest whole number that none of them exceeds: so to change m is to
 * multiply by a power of two, which is exact. A cleared part has no tokens. The sum of two parts has the larger m of
 * both. */
void mk_part_clear(float *part, uint32_t head_dim);
void mk_part_add(float *part, const float *other, uint32_t head_dim);

/* Floats of scratch that attention over such a cache needs beside its inputs. */
size_t mk_attention_scratch(const mk_buffer *kv, uint32_t group);

/* y[16 t + r] = sum_k W[row tile t][r][k] x[k] over the weight operand's rectangle, for `count` vectors x. These lie
 * one after the other, each padded with zeros to whole tiles; y has weight->rows floats for each. scratch:
 * MK_MATVEC_SCRATCH(padded width) floats for each. Chains of MK_CHAIN_COLS columns, from the rectangle's first on, are
 * summed from zero by themselves and then added one after the other. The bits of a vector's y do not depend on the
 * others. */
#define MK_MATVEC_SCRATCH(padded) (2 * (padded) + 16)
void mk_matvec(const mk_span *weight, uint32_t count, const float *x, float *scratch, float *y);

/* The sum of the squares of `cols` elements, in the order of docs/NUMERICS.md; that of the first chain of them; and
 * from those of all chains the whole. */
float mk_sum_squares(const float *x, uint32_t cols);
float mk_chain_squares(const float *x, uint32_t cols);
float mk_sum_chain_squares(const float *chains, uint32_t count);
/* Of the squares of `count` tiles (MK_SQUARED_TILE), by eights as a tree, and these one after the other. */
float mk_sum_tile_squares(const float *tiles, uint32_t count);

/* x [cols] becomes bf16(x * (plus + gain)), as far as there are `gains`, then zeros up to `padded`. */
void mk_scale_by_gain(float *x, uint32_t cols, uint32_t padded, const uint16_t *gain, uint32_t gains, float plus);

typedef struct mk_norm { /* of an opcode: the slots of its operands, and the indices of its parameters */
  uint32_t x, gain, squares, eps, width, plus;
} mk_norm;
#define MK_NORM_OF(NAME)                                                                                 \
  ((mk_norm){MK_SLOT_##NAME##_x, MK_SLOT_##NAME##_gain, MK_SLOT_##NAME##_squares, MK_PARAM_##NAME##_eps, \
             MK_PARAM_##NAME##_width, MK_PARAM_##NAME##_plus})

/* Stages x of every active line (padded to whole tiles), multiplies it by the gain, rounded to bf16, and gives 1 /
 * sqrt(mean(x^2) + eps) in scales[line]; false: wait. Where the instruction has squares, x has been multiplied already,
 * a gain is there for its biases alone, and the squares give the scales; where it has neither gain nor squares, x stays
 * as it is and the scales are 1. After `out` there is scratch for as many floats. */
bool mk_stage_normed(mk_reference *machine, const mk_instruction *instruction, const mk_norm *norm, float *out,
                     float *scales);

/* The product of a weight with such an x, for the active lines one after the other, in the machine's scratch memory;
 * still to be multiplied by scales[line]. NULL: wait. */
float *mk_normed_product(mk_reference *machine, const mk_instruction *instruction, const mk_norm *norm,
                         const mk_span *weight, float *scales);

/* The elements of a span of `count` parts, added one after the other, for each active line: span->cols floats in sums,
 * which has room for those of all parts. false: wait. */
bool mk_stage_sums(mk_reference *machine, const mk_span *parts, uint32_t count, float *sums);

/* y += residual; residual_out = y; out = bf16(y), as additions to the residual end. y: `stride` floats for each active
 * line. */
void mk_residual_epilogue(mk_reference *machine, const mk_instruction *instruction, uint32_t residual_in,
                          uint32_t residual_out, uint32_t out, float *y, size_t stride, float *scratch);

#endif
