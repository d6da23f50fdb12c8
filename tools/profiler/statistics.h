/* Where the time of a trace went: per role and activity, per opcode and role, per stage.
 *
 * Ownership: a mk_statistics owns its arrays; the profile it was made of may be freed. Immutable once made. Failure:
 * MK_ERR_RUNTIME for memory. Times are in microseconds. */
#ifndef MK_STATISTICS_H
#define MK_STATISTICS_H

#include "tools/profiler/profile.h"

/* One role's parts of all instructions of an opcode: all SMs, all steps. */
typedef struct mk_opcode_time {
  uint32_t opcode, role;
  uint64_t count;
  double total, p50, p99;
  double by_kind[MK_ACTIVITY_KIND_COUNT]; /* of the total */
} mk_opcode_time;

/* The instructions of one layer that make the same value: what the SMs do at the same time. A part starts once it waits
 * for no other SM. Means over the steps. */
typedef struct mk_stage_time {
  uint32_t opcode, layer;       /* MK_NO_LAYER: of none */
  char value[48];               /* mk_value_name */
  uint32_t parts;               /* instructions */
  double begin;                 /* of the first part, from the first boundary of the step */
  double length;                /* from the first part's start to the last part's end */
  double start_skew, end_skew;  /* from the first SM's start (end) to the last one's */
  double ring_empty, ring_full; /* a consumer waits for weights, a loader for room: mean of the SMs that take part */
  double bytes;
} mk_stage_time;

typedef struct mk_statistics {
  double by_activity[MK_TRACE_ROLES][MK_ACTIVITY_COUNT]; /* per step, mean of the SMs */
  double bytes;                                          /* that all loaders read in a step, mean */
  double opcode_bytes[MK_OP_COUNT];                      /* the same per opcode */
  double opcode_us[MK_OP_COUNT]; /* a consumer's time per step, mean of the SMs; serial: their sum */
  mk_opcode_time *opcodes;       /* by opcode, then role; those that were recorded */
  mk_stage_time *stages;         /* by begin */
  size_t opcode_count, stage_count;
} mk_statistics;

mk_status mk_statistics_new(const mk_profile *profile, mk_statistics **out);
void mk_statistics_free(mk_statistics *statistics); /* NULL is fine */

/* "attention mid"; returns text. */
const char *mk_stage_label(const mk_stage_time *stage, char text[MK_LABEL_SIZE]);

/* The smallest of `count` sorted values that `part` of them do not exceed. */
double mk_sorted_quantile(const double *values, size_t count, double part);

#endif
