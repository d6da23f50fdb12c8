/* The inside of generate.h: what its files share. generate.c has the stages, generate_residual.c the order of the
 * residual, generate_write.c buffers, counters and instructions, generate_boundary.c the token boundary,
 * generate_wide.c what wide programs have. */
#ifndef MK_TEST_GENERATE_INTERNAL_H
#define MK_TEST_GENERATE_INTERNAL_H

#include "tests/support/generate.h"

enum {
  MAX_SMS = 4,
  MAX_QUEUE = 160,
  MAX_TILES = 8,
  MAX_VECTORS = 32,
  MAX_FENCES = 3,
  HEAD_DIM = 64,
  HEAD_TILES = HEAD_DIM / MK_TILE,
  CONTEXT = 128,
  BLOCK = 16,
  SPAN = 32,
  PLAN_STEPS = 4,
  NONE = 0xffff
};

typedef struct place { /* an instruction */
  uint32_t sm, at;
} place;

typedef struct chunk { /* consecutive tiles of a stage that one SM computes */
  uint32_t sm, first, count;
} chunk;

typedef struct vector { /* stamped: any instruction may read it; `hint` is a counter of its writers, or NONE */
  uint16_t buffer, hint;
} vector;

typedef struct residual { /* plain: one SM at a time, in order */
  uint16_t buffer;        /* NONE: the embedding row */
  uint16_t counter;
  chunk chunks[MAX_TILES];
  place writers[MAX_TILES];
  uint32_t amounts[MAX_TILES];
  uint32_t count;
  uint32_t owner[MAX_TILES]; /* per tile: the SM that writes it first in an epoch */
} residual;

typedef struct generator {
  mk_program *p;
  mk_status status;
  uint64_t seed;
  test_recipe recipe;
  uint32_t sms, stateful; /* SMs from `stateful` on have no step state */
  uint32_t headed;        /* SMs from `headed` on have no head */
  uint32_t lines, slots;  /* rows of a step; sequences */
  uint32_t hidden, tiles, heads, kv_heads;
  uint32_t context, span, block;
  bool fp8; /* caches, else bf16 */
  uint32_t names;
  mk_instruction queues[MAX_SMS][MAX_QUEUE];
  uint32_t counts[MAX_SMS];
  uint32_t heads_end[MAX_SMS]; /* instructions before the late stages */
  vector vectors[MAX_VECTORS];
  uint32_t vector_count;
  residual residual;
  uint16_t acknowledged; /* release counter of all who touch another SM's residual, or NONE */
  bool must_wait[MAX_SMS];
  uint16_t headed_hint; /* counter of the heads, or NONE */
  uint16_t embedding, gain, frequencies, table, plan, ring, logits, candidates;
} generator;

/* Writing. */

uint32_t test_below(generator *g, uint32_t n);
/* What a valid program never does: once in n in a bold one. */
bool test_slips(generator *g, uint32_t n);
uint16_t test_add_buffer(generator *g, const char *name, mk_buffer buffer);
/* `vectors` values of a step, each with a line for each of its rows. */
uint16_t test_add_value(generator *g, const char *name, mk_dtype dtype, mk_store store, uint32_t vectors, uint32_t cols,
                        uint32_t tile);
uint16_t test_add_plain(generator *g, const char *name, mk_buffer_kind kind, mk_dtype dtype, uint32_t rows,
                        uint32_t cols, uint32_t tile);
uint16_t test_add_weight(generator *g, uint32_t rows, uint32_t cols);
uint16_t test_add_cache(generator *g, uint32_t splits);
uint16_t test_add_counter(generator *g, mk_counter_kind kind);

mk_operand test_tiles(uint16_t buffer, uint32_t row, uint32_t rows, uint32_t col, uint32_t cols);
mk_operand test_whole(const generator *g, uint16_t buffer);
mk_operand test_token_row(const generator *g, uint32_t col, uint32_t cols);
mk_instruction *test_push(generator *g, uint32_t sm, mk_opcode opcode);
void test_signal(generator *g, mk_instruction *in, uint16_t counter, uint32_t amount);
void test_wait(mk_instruction *in, uint16_t counter, uint32_t threshold);
/* Writers of a new stamped value may tell their readers through a counter of either kind, or not at all. */
uint16_t test_new_hint(generator *g);
void test_hint_signal(generator *g, mk_instruction *in, uint16_t hint);
void test_hint_wait(generator *g, mk_instruction *in, uint16_t hint);
void test_set_norm(const generator *g, mk_instruction *in, uint32_t eps, uint32_t width);
vector test_any_vector(generator *g);

/* Stages. x = NULL: the embedding row. */

vector test_push_qkv(generator *g, const vector *x, uint32_t rows, uint32_t rope_tiles, uint32_t unit, uint32_t extras);

/* What NORM makes of a vector, stamped, or plain for readers on its own SM. */
typedef struct wide_norm {
  bool there, one_sm;
  uint32_t sm;
  uint16_t out, squares;
  uint16_t counter; /* of a plain one, or NONE */
} wide_norm;
/* Nothing is there where it is not wanted, or the vector does not fit. */
wide_norm test_push_norm(generator *g, vector x, bool wanted);
/* Waits for all signals of a counter; NONE: there is none. */
void test_hint_wait_all(const generator *g, mk_instruction *in, uint16_t counter);
/* q, k and v, all heads appended, and attended to: of one row a step. */
vector test_push_attend(generator *g, vector x);

/* The residual. The chunk's instruction reads tiles of it that other SMs may have written: release counters order it
 * after them. */

void test_order_residual(generator *g, residual *r, mk_instruction *in, const chunk *c);
/* And it tells that it is done, or lets them know later. */
void test_acknowledge(generator *g, const residual *r, mk_instruction *in, const chunk *c);

/* The token boundary: heads (and scores, rounds and draws) of all SMs; their `next`s. */

void test_push_heads(generator *g);
void test_push_nexts(generator *g);

#endif
