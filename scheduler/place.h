/* Placement: which SM computes which units of a stage. A unit is a row tile (times a part of K).
 * A mk_placer belongs to one compilation and one thread; mk_placer_free releases it. */
#ifndef MK_PLACE_H
#define MK_PLACE_H

#include "scheduler/compile.h"

static inline uint32_t mk_divide_up(uint32_t n, uint32_t by) { return (n + by - 1) / by; }

typedef struct mk_share { /* units [first, first + count) of a stage */
  uint32_t first, count;
} mk_share;

typedef struct mk_placer {
  mk_placement policy;
  uint32_t sms;
  uint64_t *bytes;  /* per SM: streamed so far in this program */
  uint32_t *order;  /* scratch */
  mk_share *shares; /* per SM: result of the last mk_place */
} mk_placer;

mk_status mk_placer_init(mk_placer *placer, mk_placement policy, uint32_t sms);
void mk_placer_free(mk_placer *placer);

/* Divides `units` of `unit_bytes` each into one contiguous share per SM, in SM order, sizes differing by at most one; the
 * policy says who gets the larger ones. The result is in placer->shares until the next call. */
void mk_place(mk_placer *placer, uint32_t units, uint64_t unit_bytes);

#endif
