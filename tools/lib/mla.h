/* A batch of MLA decode on either machine: a program, verified, a batch of hash numbers in scrambled pages, its work
 * list, scheduled and checked, and how far the output is from a reference in double precision.
 *
 * Everything that no sequence uses is NaN: other pages, and the rows after the last token of a last page.
 *
 * Ownership: a mk_mla_session owns all it points to. One thread. Failure: as the parts it calls: MK_ERR_USAGE for a
 * shape or a batch that does not fit, MK_ERR_REJECTED for a list that the checker refuses. */
#ifndef MK_MLA_SESSION_H
#define MK_MLA_SESSION_H

#include "engine/record.h"
#include "scheduler/mla_schedule.h"
#include "vm/cpu/machine.h"
#include "vm/gpu/machine.h"
#include "vm/verify/mla_check.h"

typedef struct mk_mla_session {
  mk_mla_shape shape;
  mk_mla_geometry geometry;
  mk_program *program;
  mk_cpu *cpu;     /* NULL on a GPU */
  mk_gpu *gpu;     /* NULL on the CPU */
  void *inputs[6]; /* on a GPU: the host's copies, by buffer; else NULL */
  mk_mla_scheduler *scheduler;
  mk_mla_checker *checker;
  uint32_t *lengths; /* of the batch at hand */
  uint32_t sequences;
  uint32_t *batch, *work; /* the machine's memory of those inputs */
} mk_mla_session;

mk_status mk_mla_session_new(const mk_mla_shape *shape, uint32_t sms, const mk_cpu_options *options,
                             mk_mla_session **out);
/* On a GPU, for all its SMs. */
mk_status mk_mla_session_new_gpu(const mk_mla_shape *shape, const mk_gpu_options *options, mk_mla_session **out);
void mk_mla_session_free(mk_mla_session *session); /* NULL is fine */

/* The sequences of a batch, tokens and queries, from `seed`. Lengths may be zero. */
mk_status mk_mla_session_load(mk_mla_session *session, const uint32_t *lengths, uint32_t sequences, uint64_t seed);
/* The sequences become so much longer: new tokens after the old ones, in new pages where the last one is full. The
 * list stays. */
mk_status mk_mla_session_grow(mk_mla_session *session, uint32_t tokens);

/* The costs that lists are scheduled by from now on. */
mk_status mk_mla_session_set_costs(mk_mla_session *session, const mk_mla_costs *costs);
/* Schedules and checks; summary may be NULL. */
mk_status mk_mla_session_schedule(mk_mla_session *session, mk_mla_placement placement, mk_mla_summary *summary);
/* One epoch over the list as it is, after the checks; the output is spoiled before. */
mk_status mk_mla_session_run(mk_mla_session *session);
/* The same, recorded where the recording's window begins with this launch; on a GPU MK_ERR_USAGE, for now. */
mk_status mk_mla_session_record(mk_mla_session *session, mk_recording *recording);

/* The largest relative error (L2 over a row of 512) of every `stride`-th row of all; INFINITY for what is not a number,
 * and where zeros are due and something else stands. */
double mk_mla_session_error(const mk_mla_session *session, uint32_t stride);
/* The largest error as above, and the error over all these rows together: the size of the difference divided by that
 * of the reference. */
void mk_mla_session_errors(const mk_mla_session *session, uint32_t stride, double *whole, double *worst);
/* The output of the batch, bf16: a copy on the host of what the last run left. */
const uint16_t *mk_mla_session_output(const mk_mla_session *session, size_t *bytes);

#endif
