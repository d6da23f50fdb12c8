/* How long a batch of MLA decode takes on a GPU, and how long it must. One thread. Failure: as mk_gpu_repeat. */
#ifndef MK_MLA_TIME_H
#define MK_MLA_TIME_H

#include "tools/lib/mla.h"

/* The bytes that have to be moved (the tokens of all sequences, queries, output), each once, the arithmetic, and the longer time of both on an H200: at
 * 4.67 TB/s and 790 TFLOP/s, as measured for plain reads and for matrix products by cuBLAS. */
typedef struct mk_mla_floor {
  double bytes, flops, us;
} mk_mla_floor;

mk_mla_floor mk_mla_session_floor(const mk_mla_session *session);

typedef enum mk_mla_timing {
  MK_MLA_WARM,    /* one of twenty launches behind each other: each begins on SMs that the one before it has left */
  MK_MLA_ALONE,   /* a launch between two events */
  MK_MLA_FLUSHED, /* the same behind an L2 that was read full of something else */
  MK_MLA_WRITTEN, /* the same behind an L2 that was written full: the launch also waits for that to be written back */
} mk_mla_timing;

/* Microseconds of a call, the median of 31. With launch and reduction, without scheduling. The list is that of the last run. `warm_up`: seconds
 * of launches before, since an idle GPU's clocks take that long. */
mk_status mk_mla_session_time(const mk_mla_session *session, double warm_up, mk_mla_timing timing, double *us);

/* Measures the constants of the cost model (scheduler/mla_cost.h), from launches with lists made for it: differences of two that differ in
 * one thing. Some seconds. */
mk_status mk_mla_measure_costs(const mk_gpu_options *options, mk_mla_costs *out);

#endif
