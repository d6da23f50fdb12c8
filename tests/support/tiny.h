/* Programs of a few instructions on one or two SMs, written by hand for tests of the CPU machine.
 *
 * test_tiny_start allocates the program, test_tiny_stop releases it. Instructions are added SM by SM, and everything is
 * a vector of 16 elements or a weight of 16 columns unless said otherwise. Failure fails the running test. One
 * thread. */
#ifndef MK_TEST_TINY_H
#define MK_TEST_TINY_H

#include "tests/support/sequence.h"

enum { TINY_VOCAB = 32, TINY_CONTEXT = 64, TINY_BLOCK = 16, TINY_SPAN = 32 };

typedef struct test_tiny {
  mk_program *program;
  uint16_t embedding, gain, square, wide, frequencies; /* weights: [32, 16], [16], [16, 16], [48, 16], [16] */
  uint16_t plan, ring, table, candidates, logits;
} test_tiny;

void test_tiny_start(test_tiny *tiny, uint32_t sms);
void test_tiny_stop(test_tiny *tiny);

/* Buffers: stamped fp32, stamped bf16, plain fp32. */
uint16_t test_tiny_floats(test_tiny *tiny, const char *name, uint32_t cols, uint32_t tile);
uint16_t test_tiny_halves(test_tiny *tiny, const char *name);
uint16_t test_tiny_plain(test_tiny *tiny, const char *name);
uint16_t test_tiny_cache(test_tiny *tiny, const char *name);
uint16_t test_tiny_counter(test_tiny *tiny, const char *name, mk_counter_kind kind);

/* Instructions; the pointer is good until the next one is added. MK_NONE_BUFFER as a residual: the embedding row. */
enum { MK_NONE_BUFFER = 0xffff };
mk_instruction *test_tiny_qkv(test_tiny *tiny, uint32_t sm, uint16_t out);       /* out = W norm(embedding row) */
mk_instruction *test_tiny_qkv_heads(test_tiny *tiny, uint32_t sm, uint16_t out); /* 48 elements: q, k and v */
mk_instruction *test_tiny_reduce(test_tiny *tiny, uint32_t sm, uint16_t parts, uint16_t residual_in,
                                 uint16_t residual_out, uint16_t out);
mk_instruction *test_tiny_part(test_tiny *tiny, uint32_t sm, uint16_t x, uint16_t out);
mk_instruction *test_tiny_attention(test_tiny *tiny, uint32_t sm, uint16_t qkv, uint16_t cache, uint16_t parts);
mk_instruction *test_tiny_combine(test_tiny *tiny, uint32_t sm, uint16_t parts, uint16_t out);
/* HEAD of row tile `sm` and NEXT; the latter reads the candidates of the first `sms` SMs. */
void test_tiny_boundary(test_tiny *tiny, uint32_t sm, uint16_t x, uint32_t sms);

/* A token loop on two SMs. SM 0: q0 -> s0, and q1 of SM 1 -> s2 -> head; SM 1: q1, t1 = W s0, head of s2. Nine
 * instructions, uids from 101, those of SM 1 from 106. SM 0 reads the candidates of `sms` SMs: it must be 2 for s0 to
 * be reused safely. */
void test_tiny_loop(test_tiny *tiny, uint32_t sms);

void test_tiny_wait(mk_instruction *in, uint16_t counter, uint32_t threshold);
void test_tiny_signal(test_tiny *tiny, mk_instruction *in, uint16_t counter);

/* An instruction of that opcode that a file can hold, sound or not: what is in the table is arbitrary, WHOLE operands
 * are some buffer of the program or absent. */
mk_instruction test_any_instruction(const mk_program *program, uint32_t opcode, uint64_t *seed);

/* A sequence from position 0 with the prompt 1, 2, 3. */
test_sequence test_tiny_sequence(void);
/* A machine with random weights and a scrambled block table, which does not look at plans before it runs them. */
mk_cpu *test_tiny_machine(const test_tiny *tiny, const mk_cpu_options *options);
/* Makes a machine, runs `epochs` epochs from position 0 with a prompt of 3 tokens, and frees it. */
mk_status test_tiny_run(const test_tiny *tiny, const mk_cpu_options *options, uint64_t epochs);

#endif
