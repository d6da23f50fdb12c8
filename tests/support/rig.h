/* A test rig for one instruction: a program of that instruction alone, memory for its buffers, the numbers in them in
 * double precision, and checks that hold for every opcode.
 *
 * test_rig_start allocates, test_rig_stop releases all of it. Memory and scratch have exactly the size that is asked
 * for, so that AddressSanitizer sees an access outside. Failure fails the running test. One thread. */
#ifndef MK_TEST_RIG_H
#define MK_TEST_RIG_H

#include "instructions/reference.h"

enum { RIG_BUFFERS = 8 };

typedef struct test_rig {
  mk_program *program;
  uint8_t *memory[RIG_BUFFERS];
  double *values[RIG_BUFFERS]; /* [rows][cols] as last filled; NULL: never filled */
  mk_instruction *instruction;
  mk_step_state state;
  uint32_t generation, publish;
  uint64_t seed;
  uint16_t rows_used[MK_MAX_OPERANDS]; /* of the last run */
} test_rig;

void test_rig_start(test_rig *rig, mk_opcode opcode, uint64_t seed);
void test_rig_stop(test_rig *rig);

/* A vector buffer of 1 x tile tiles, or a weight. */
uint16_t test_rig_vector(test_rig *rig, mk_dtype dtype, mk_store store, uint32_t rows, uint32_t cols, uint32_t tile);
uint16_t test_rig_weight(test_rig *rig, uint32_t rows, uint32_t cols);
uint16_t test_rig_add(test_rig *rig, const mk_buffer *buffer);
void test_rig_operand(test_rig *rig, uint32_t slot, uint16_t buffer, uint32_t row, uint32_t rows, uint32_t col,
                      uint32_t cols);
void test_rig_whole(test_rig *rig, uint32_t slot, uint16_t buffer);
/* The row of the step's token of a weight, column tiles [col, col + cols). */
void test_rig_token_row(test_rig *rig, uint32_t slot, uint16_t weight, uint32_t col, uint32_t cols);

/* Random numbers in [-scale, scale), as the dtype rounds them; stamped words get the generation. */
void test_rig_fill(test_rig *rig, uint16_t buffer, float scale);
void test_rig_set(test_rig *rig, uint16_t buffer, uint32_t row, uint32_t col, float value);
double test_rig_value(const test_rig *rig, uint16_t buffer, uint32_t row, uint32_t col);
/* The number in memory; the test fails when a stamped word does not carry rig->publish. */
double test_rig_read(const test_rig *rig, uint16_t buffer, uint32_t row, uint32_t col);
uint64_t *test_rig_word(test_rig *rig, uint16_t buffer, uint32_t row, uint32_t col);

/* Runs the instruction; the test fails when memory outside of the written operands changes (BLOCKS are not looked
 * at). */
mk_reference_result test_rig_run(test_rig *rig);
void test_rig_expect_done(test_rig *rig);
/* Spoils the stamp of single words of every stamped input: each time the instruction must wait and change nothing. Rows
 * from `used` on of the input in slot 0 are not looked at. */
void test_rig_expect_waits(test_rig *rig, uint32_t used);

/* sum_k W[row][k] x[k] g[k] over columns [first, first + count) of a weight; x and gain (NULL: ones) begin at that
 * column. */
double test_rig_product(const test_rig *rig, uint16_t weight, uint32_t row, uint32_t first, uint32_t count,
                        const double *x, const double *gain);
/* 1 / sqrt(mean(x^2) + eps). */
double test_rig_norm(const double *x, uint32_t width, double eps);

#endif
