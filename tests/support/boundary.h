/* The token boundary of a sampling program by itself: SCORE, SIFT, DRAW and NEXT on given logits, without a model.
 *
 * test_boundary_start compiles a program of one small layer and allocates all of its buffers but the weights; test_boundary_stop
 * releases them. Failure fails the running test. One thread. */
#ifndef MK_TEST_BOUNDARY_H
#define MK_TEST_BOUNDARY_H

#include "instructions/reference.h"
#include "instructions/sampling_host.h"

typedef struct test_boundary {
  mk_program *program;
  uint32_t vocab, sms, generation;
  uint8_t **memory;
  float *scratch;
  mk_step_state *states; /* by SM */
  uint32_t *at;          /* by SM: the next instruction behind its HEAD */
  uint64_t seed;         /* 0: SM by SM and stage by stage; else in a random order that waits allow */
  uint32_t scanned;      /* of the last draw: DRAWs that went on over all scores */
  uint32_t rounds;       /* and SIFTs that looked at other SMs' rounds */
} test_boundary;

void test_boundary_start(test_boundary *b, uint32_t vocab, uint32_t sms);
void test_boundary_stop(test_boundary *b);
/* For the draws that follow; no token has been seen. */
void test_boundary_sampling(test_boundary *b, const mk_sampling *sampling);
/* The token that is chosen after `token`, which stands at `position`, as every SM sees it; MK_CANDIDATE_NONE inside the
 * prompt. */
uint32_t test_boundary_draw(test_boundary *b, const float *logits, uint32_t token, uint32_t position,
                            uint32_t prompt_length);
/* Of the last draw: logits were NaN. */
bool test_boundary_failed(const test_boundary *b);
/* A buffer of the program. */
void *test_boundary_memory(const test_boundary *b, const char *name);

#endif
