/* Made-up traces, as a GPU would leave them: every role of every SM takes fixed times and waits for what the program
 * says.
 *
 * The caller frees the trace. Failure fails the running test. One thread. */
#ifndef MK_TEST_TRACED_H
#define MK_TEST_TRACED_H

#include "vm/trace/trace.h"

/* Microseconds are about those of a GPU: an instruction works for half of one. */
typedef struct test_traced {
  uint32_t steps;
  uint32_t delay_uid, delay_ns; /* the consumer of this instruction stands still at its start, in every step; 0: none */
} test_traced;

mk_trace *test_traced_make(const mk_program *program, const test_traced *options);

/* The program of a small model on that many SMs; the caller frees it. */
mk_program *test_traced_program(uint32_t sms);

#endif
