/* How long a batch of MLA decode takes on a GPU, and how long it must. One thread. Failure: as mk_gpu_repeat. */
#ifndef MK_MLA_TIME_H
#define MK_MLA_TIME_H

#include "tools/lib/mla.h"

/* The bytes that have to be moved (the tokens of all sequences, queries, output), each once, the arithmetic, and the
 * longer time of both on an H200: at 4.67 TB/s and 790 TFLOP/s, as measured for plain reads and for matrix products by
 * cuBLAS. */
typedef struct mk_mla_floor {
  double bytes, flops, us;
} mk_mla_floor;

mk_mla_floor mk_mla_session_floor(const mk_mla_session *session);

typedef enum mk_mla_timing {
  MK_MLA_WARM, /* launches one after another, each of which begins on SMs that the one before it has left; the first 20
                  ms after the GPU was idle for half a second, all but 3 of them */
  MK_MLA_SUSTAINED, /* the same after 150 ms: by then a GPU may have reached what it may draw, and its clocks be
                       lower */
  MK_MLA_ALONE,     /* a launch between two events */
  MK_MLA_FLUSHED,   /* the same after the L2 was read full of something else */
  MK_MLA_WRITTEN,   /* the same after the L2 was written full: the launch also waits until that is written back */
  MK_MLA_EMPTY,     /* as FLUSHED, with a kernel that has nothing to do: what launch and events take */
  MK_MLA_TIMINGS,
} mk_mla_timing;

typedef struct mk_mla_time {
  double us;  /* of a call, with launch and reduction, without scheduling */
  double mhz; /* the SMs' clock meanwhile; 0: not told */
} mk_mla_time;

/* Medians: WARM of `repeats` times, each after its own half second of idleness and the median of groups of 20
 * launches; SUSTAINED of such groups; others of 31 launches after half a second of idleness. `repeats` 0: once, after
 * whatever the GPU did before. The list is that of the last run. */
mk_status mk_mla_session_time(const mk_mla_session *session, mk_mla_timing timing, uint32_t repeats, mk_mla_time *out);

/* Measures the constants of the cost model (scheduler/mla_cost.h): those by which lists of many batches compare as
 * their measured times do (scheduler/mla_fit.h). Some ten seconds; `progress` is told of every batch. */
mk_status mk_mla_measure_costs(const mk_gpu_options *options, void (*progress)(uint32_t done, uint32_t total),
                               mk_mla_costs *out);

#endif
