/* Made-up traces, as a GPU would leave them: every role of every SM takes fixed times and waits for what the program
 * says.
 *
 * The caller frees the trace. Failure fails the running test. One thread. */
#ifndef MK_TEST_TRACED_H
#define MK_TEST_TRACED_H

#include "tools/profiler/summary.h"
#include "vm/trace/trace.h"

/* Microseconds are about those of a GPU: an instruction works for half of one. */
typedef struct test_traced {
  uint32_t steps;
  uint32_t delay_uid, delay_ns; /* the consumer of this instruction stands still at its start, in every step; 0: none */
  uint32_t remote_ns;           /* a value takes so much longer to another rank */
} test_traced;

enum { TEST_TRACED_HOP = 300 }; /* nanoseconds that a value takes within a rank */

mk_trace *test_traced_make(const mk_program *program, const test_traced *options);

/* Adds a record to a track of a trace that is made record by record, up to 16 a track: from that time on the role does
 * this for the instruction, on the SM that has it. Boundaries begin and end the only step. */
void test_traced_record(mk_trace *trace, uint32_t instruction, uint32_t role, uint64_t time, mk_activity activity,
                        uint32_t edge);
/* A whole track: the role works at the instruction from 100 ns on, but for one wait, if `wait` is before `until`. */
void test_traced_record_part(mk_trace *trace, uint32_t instruction, uint32_t role, uint64_t wait, uint64_t until,
                             uint64_t finish, mk_activity activity, uint32_t edge);
uint32_t test_traced_sm(const mk_program *program, uint32_t instruction);

/* The program of a small model on that many SMs, or on so many of each rank; the caller frees it. */
mk_program *test_traced_program(uint32_t sms);
mk_program *test_traced_program_of_ranks(uint32_t ranks, uint32_t sms);

/* What a print function of tools/profiler/summary.h writes; the caller frees it with free. */
char *test_traced_text(const mk_summary *summary, void (*print)(const mk_summary *, FILE *));

#endif
