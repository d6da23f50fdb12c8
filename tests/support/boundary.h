/* The token boundary of a sampling program by itself: SCORE, SIFT, DRAW and NEXT on given logits, without a model.
 *
 * test_boundary_start compiles a program of one small layer and allocates all of its buffers but the weights;
 * test_boundary_stop releases them. Programs of several rows have their functions: a slot's sampling, and a step of all
 * rows. Failure fails the running test. One thread. */
#ifndef MK_TEST_BOUNDARY_H
#define MK_TEST_BOUNDARY_H

#include "instructions/reference.h"
#include "instructions/sampling_host.h"

/* A fault that is planted: instructions of that opcode find the line of the next slot or row in the place of each line
 * of that operand. */
typedef struct test_boundary_fault {
  mk_opcode opcode; /* MK_OP_NONE: no fault */
  uint32_t operand;
} test_boundary_fault;

typedef struct test_boundary {
  mk_program *program;
  uint32_t vocab, sms, rows, generation;
  uint8_t **memory;
  float *scratch;
  mk_step_state *states; /* by SM */
  uint32_t *at;          /* by SM: the next instruction after its HEAD */
  uint64_t seed;         /* 0: SM by SM and stage by stage; else in a random order that waits allow */
  uint32_t scanned;      /* of the last draw: DRAWs that went on over all scores */
  uint32_t rounds;       /* and SIFTs that looked at other SMs' rounds */
  test_boundary_fault fault;
} test_boundary;

/* With one row per step. */
void test_boundary_start(test_boundary *b, uint32_t vocab, uint32_t sms);
void test_boundary_start_rows(test_boundary *b, uint32_t vocab, uint32_t sms, uint32_t rows);
void test_boundary_stop(test_boundary *b);
/* For the draws of slot 0, or of any slot, that follow; no token of it has been seen. */
void test_boundary_sampling(test_boundary *b, const mk_sampling *sampling);
void test_boundary_slot_sampling(test_boundary *b, uint32_t slot, const mk_sampling *sampling);
/* A step of `plan` [rows] on logits [rows][vocab]: what rows choose is in states[0].results, as every SM sees it. */
void test_boundary_step(test_boundary *b, const mk_step_row *plan, const float *logits);
/* The token that is chosen after `token`, which stands at `position`, as every SM sees it; MK_CANDIDATE_NONE inside the
 * prompt. */
uint32_t test_boundary_draw(test_boundary *b, const float *logits, uint32_t token, uint32_t position,
                            uint32_t prompt_length);
/* Of the last draw: logits were NaN. */
bool test_boundary_failed(const test_boundary *b);
/* Words of a slot or line in a buffer [rows][vocab] that is not stamped. */
void *test_boundary_line(const test_boundary *b, const char *name, uint32_t line);
/* A buffer of the program. */
void *test_boundary_memory(const test_boundary *b, const char *name);

#endif
