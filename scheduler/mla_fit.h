/* The constants of the cost model from measured times of whole lists.
 *
 * Costs are there to tell which of a batch's lists is the fastest, so what counts is how its lists compare: the spread
 * of simulated to measured time within each batch. How far off a batch is as a whole counts a tenth.
 *
 * Failure: MK_ERR_USAGE without samples, MK_ERR_RUNTIME for memory. Any thread. */
#ifndef MK_MLA_FIT_H
#define MK_MLA_FIT_H

#include "scheduler/mla_cost.h"

typedef struct mk_mla_sample {
  const mk_mla_geometry *geometry;
  const uint32_t *work, *lengths; /* as mk_mla_simulate takes them */
  uint32_t batch;                 /* samples of one batch stand side by side */
  double us;                      /* measured, the launch included */
} mk_mla_sample;

/* Changes *costs, which the search begins from, to constants that fit; `reduction` stays as it is. `launch_us`: the
 * measured time of a launch with nothing to do. */
mk_status mk_mla_fit(const mk_mla_sample *samples, size_t count, double launch_us, mk_mla_costs *costs);

#endif
