/* Who waited for whom: the instruction that ended a wait, and the critical path of a step, which is made of such waits.
 *
 * Ownership: a mk_edges owns its tables and refers to the profile; a mk_path owns its parts (mk_path_free). Immutable
 * once made. Failure: MK_ERR_RUNTIME for memory.
 *
 * The path is walked backwards from the end of the last `next` of the step. Work and waits that nothing explains lead
 * to what the same role did before. A wait leads to the role that ended it: for a value, to whoever published the last
 * of it (the end of its instruction stands for the moment); for sums, to the consumer; for weights, to the loader if it
 * issued the copy only after the wait had begun, else the memory is the reason; for room in a ring, to who empties it;
 * for the step state, to the consumer. Of the consumer's warps the first alone is recorded. Others may still wait for a
 * value and so hold up the storer (sums), the loader (room in the ring) or the first one (a meeting). Where the first
 * one is stuck or further meanwhile, such a wait leads to whoever published last what the instruction reads, if that
 * was in this time. On a serial machine (mk_profile) the path is all that it did in the step. */
#ifndef MK_PATH_H
#define MK_PATH_H

#include "tools/profiler/profile.h"

typedef struct mk_edges mk_edges;

mk_status mk_edges_new(const mk_profile *profile, mk_edges **out);
void mk_edges_free(mk_edges *edges); /* NULL is fine */

/* The execution that published last what an interval at COUNTER or STAMP waited for; NULL when none was recorded.
 * *role: its role. */
const mk_execution *mk_edges_publisher(const mk_edges *edges, const mk_interval *wait, uint32_t *role);

typedef struct mk_path_part {
  uint64_t start, end;
  uint32_t sm, role, step;
  uint32_t instruction; /* that the role was at; for a dispatch: the one before, or none */
  uint32_t from;        /* who published what it, or other warps, waited for; else MK_NO_INSTRUCTION */
  uint16_t edge;
  uint8_t activity;
} mk_path_part;

typedef struct mk_path {
  mk_path_part *parts; /* by time, without gaps */
  size_t count, capacity;
  uint32_t step;
} mk_path;

/* An empty path when nothing of that step was recorded. */
mk_status mk_path_find(const mk_edges *edges, uint32_t step, mk_path *out);
void mk_path_free(mk_path *path);

/* The recorded step whose time, from the first boundary to its last `next`, is the median of all; *us: that time. */
mk_status mk_path_median_step(const mk_profile *profile, uint32_t *step, double *us);

#endif
