/* Placement: which SM computes which units of a stage. A unit is what is dealt as a whole: a row tile of a weight, or,
 * where K is split, one part of K of a row tile. Each SM gets neighbouring units, as evenly as their number allows.
 * A mk_placer belongs to one compilation and one thread; mk_placer_free releases it. */
#ifndef MK_PLACE_H
#define MK_PLACE_H

#include "scheduler/compile.h"

static inline uint32_t mk_divide_up(uint32_t n, uint32_t by) { return (n + by - 1) / by; }

typedef struct mk_share { /* units [first, first + count) of a stage */
  uint32_t first, count;
} mk_share;

/* Which row tiles of a weight, and of the value that the weight makes, a rank has. That follows from the shape alone,
 * so that two programs of one model on the same ranks hold the same tiles and can share them. Where whole chains of
 * MK_CHAIN_COLS rows can be dealt evenly, or nearly so, a rank has whole chains, since the norm of a residual is begun
 * chain by chain, and each chain on one SM. */
mk_share mk_rank_tiles(uint32_t tiles, uint32_t ranks, uint32_t rank);

typedef struct mk_placer {
  mk_placement policy;
  uint32_t ranks, sms; /* sms: those of all ranks together; the SMs of a rank follow each other */
  uint64_t *bytes;     /* per SM: streamed so far in this program */
  uint32_t *order;     /* scratch: a rank's SMs, in the order in which they get one unit more than the others */
  mk_share *shares;    /* per SM: result of the last mk_place */
} mk_placer;

mk_status mk_placer_init(mk_placer *placer, mk_placement policy, uint32_t ranks, uint32_t sms_of_rank);
void mk_placer_free(mk_placer *placer);

/* Divides row tiles of `tile_bytes` each into one contiguous share per SM, in SM order: each rank's tiles
 * (mk_rank_tiles) over its SMs. The sizes of a rank's shares differ by one at most; the policy says which SMs get the
 * larger ones. The result is in placer->shares until the next call. */
void mk_place(mk_placer *placer, uint32_t tiles, uint64_t tile_bytes);
/* The same for units, counted from 0, of one rank alone; shares of other ranks' SMs are left as they were. */
void mk_place_in(mk_placer *placer, uint32_t rank, uint32_t units, uint64_t unit_bytes);

#endif
