/* What stands out in a trace: instructions that work longer than their peers, and waits with whoever ended them, and by
 * how long a hop.
 *
 * The caller frees arrays of outliers with mk_free. One thread. Failure: MK_ERR_RUNTIME for memory. Times are in
 * microseconds. */
#ifndef MK_FINDINGS_H
#define MK_FINDINGS_H

#include "tools/profiler/path.h"

/* A role's part of an instruction that works longer than those it should be like: instructions of its opcode with as
 * many pages. The peers' figure is the larger of two medians: over all of those, and over those that make the same
 * value. */
typedef struct mk_outlier {
  uint32_t instruction, role;
  bool once;          /* in some steps, but not in most */
  double work, peers; /* median of the steps */
  double worst;       /* in one step: */
  uint32_t worst_step;
} mk_outlier;

/* Finds the instructions whose work exceeds their peers' by more than half of theirs and by 0.3 % of a step. Those that
 * do so in every step come first, then those that do so now and then, each by the excess, largest first. */
mk_status mk_outliers_find(const mk_profile *profile, mk_outlier **out, size_t *count);

/* All waits that one instruction ended, in all steps. */
typedef struct mk_long_wait {
  uint32_t publisher, publisher_role; /* an instruction */
  uint32_t waits;
  double longest, total;
  mk_interval example; /* the longest: of this SM and role, */
  uint32_t sm, role;
  double published; /* and when what it waited for was there, from the start of the trace */
} mk_long_wait;

typedef enum mk_hop_kind {
  MK_HOP_LOCAL,  /* the publisher is on the waiter's rank, be it on another SM or on the same one */
  MK_HOP_REMOTE, /* on another rank */
  MK_HOP_KINDS
} mk_hop_kind;

typedef struct mk_hop_time {
  uint64_t count;
  double p50, p90;
} mk_hop_time;

/* Hops: from when the instruction that published last what a role waited for was done to the end of the wait. Only
 * waits that had begun by then count, since else the value may have been there. Clocks differ by the trace's alignment:
 * a hop may so seem shorter than it is, even below zero by that much, and who was done later still ended no wait. */
typedef struct mk_opcode_hops {
  uint32_t opcode; /* of the waiting instruction; 0: of any */
  mk_hop_time of[MK_HOP_KINDS];
} mk_opcode_hops;

typedef struct mk_waits {
  mk_long_wait *longest; /* by their longest wait, largest first */
  size_t count;
  mk_opcode_hops *hops; /* of any opcode, then by opcode, of those that have some; none where there is no hop */
  size_t hop_count;
} mk_waits;

/* Finds all waits of a trace with whoever ended them. The caller frees them; after a failure there are none. */
mk_status mk_waits_find(const mk_edges *edges, const mk_profile *profile, mk_waits *out);
void mk_waits_free(mk_waits *waits);

#endif
