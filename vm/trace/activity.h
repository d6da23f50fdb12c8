/* What the roles of a machine do over time. Shared by C and CUDA; plain data.
 *
 * A role's record says: from `time` on I do `activity` for instruction `uid`. The next record of the same role ends it,
 * so a role's records cover its time without a gap. */
#ifndef MK_ACTIVITY_H
#define MK_ACTIVITY_H

#include <stdint.h>

typedef enum mk_activity {
#define MK_ACTIVITY(NAME, text, kind, edge) MK_ACTIVITY_##NAME,
#include "vm/trace/activities.def"
  MK_ACTIVITY_COUNT,
} mk_activity;

typedef struct mk_trace_record {
  uint64_t time;    /* nanoseconds from the start (at first, of a GPU: ticks of the SM's clock) */
  uint32_t uid;     /* of the instruction at hand; for a dispatch: of the one before */
  uint8_t activity; /* mk_activity */
  uint8_t epoch;    /* the step within the launch, modulo 256 */
  uint16_t edge;    /* counter, buffer or slot: activities.def */
} mk_trace_record;

/* The roles that keep records: those of mk_role, then the controller. The first warp stands for all consumers. */
enum { MK_TRACE_CONTROLLER = 3, MK_TRACE_ROLES = 4 };

/* About one SM: how far its tracks are filled, and how its clock compares with block 0's at the start of the launch [0]
 * and at its end [1], since the SMs' clocks run at slightly different rates. Block 0 keeps writing its time to memory,
 * and the SM compares it with its own. The offset is the smallest difference seen: the clocks' difference plus the
 * shortest way through the L2, which is about the same for all SMs. */
typedef struct mk_trace_sm {
  uint64_t seen_at[2];                                     /* ticks of the SM's clock: when the offset was seen */
  int64_t offset[2];                                       /* ticks */
  uint32_t looks[2];                                       /* times that the offset was looked at; 0: it is not known */
  uint32_t notes[MK_TRACE_ROLES], records[MK_TRACE_ROLES]; /* those for which there was no room included */
} mk_trace_sm;

#endif
