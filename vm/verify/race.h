/* What the verifier's run (order.c) keeps, and the checks it makes at every access (race.c).
 *
 * Two relations on events (instruction, role, epoch), each as a vector clock per thread:
 *   HB   queue order, consumer -> storer inside an instruction, release counters: earlier writes are visible;
 *   DEP  HB and stamps: earlier reads are over.
 * Threads are the consumers and storers of the queues that have instructions. A loader is no thread: what it loads of a
 * cache is ordered after the previous epoch's `next` of its queue, and after counters for which it waits itself, and it
 * is over before its instruction's consumer begins. */
#ifndef MK_VERIFY_RACE_H
#define MK_VERIFY_RACE_H

#include "vm/verify/clock.h"
#include "vm/verify/internal.h"

typedef struct mk_past { /* an access */
  uint32_t thread, time, instruction;
} mk_past;

typedef struct mk_pasts { /* most have one or none, and there are many of these lists */
  mk_past *list;
  uint32_t count, capacity;
} mk_pasts;

typedef struct mk_team_past { /* past writes to words that the shares of a team write */
  uint32_t team, epoch;       /* the team of the last writers, and when; 0: the last writer was in no team */
  mk_pasts shares;            /* writes by shares of that team, so far */
  mk_pasts before;            /* writes before the team's: each of its shares comes after all of them */
} mk_team_past;

/* What is remembered of the segment cuts[i]..cuts[i + 1]. A team is all shares of attention that write the same
 * rectangle (shares.c). Which words of it a share writes is data, but the shares of a step write different words: so
 * each share has to be ordered with all accesses but those of the other shares. */
typedef struct mk_segment {
  bool written;
  uint16_t rank;      /* of a buffer that is dealt: 1 + the rank of all instructions that touch it; 0: none has */
  mk_past writer;     /* the last write, where that was by no team */
  mk_team_past *team; /* NULL: no team has written here */
} mk_segment;

/* What is remembered of a span. Many read the same one, and mostly they know the same: so it is remembered, too, which
 * vector was enough to come after all writers, and which one to come after all readers. */
typedef struct mk_span_past {
  /* At least the last read of each thread. Those that came before a write to a segment are over where that write is, so
   * that the next writer, which comes after it, comes after them. */
  mk_pasts readers;
  mk_seen after_writers, after_readers;
  uint64_t checked; /* writes of the shadow when after_writers was */
  bool written;     /* all of it has been */
  uint32_t rank;    /* as of its segments */
} mk_span_past;

typedef struct mk_actor { /* who makes an access: its place in the order and its view of the past */
  uint32_t instruction, slot;
  uint32_t thread, time; /* when it is made: later accesses ask whether their clocks have come so far */
  const mk_clock *clock;
  bool is_known;  /* it is known to come after all writes so far */
  uint32_t lines; /* the one tile of lines that has active rows; MK_ALL_LINES: all tiles have */
  uint32_t epoch;
} mk_actor;

typedef struct mk_shadow {
  mk_segment *segments;
  uint64_t *written_by; /* segment: the number of its last write */
  uint64_t writes;
  mk_span_past *spans;
  size_t count, span_count;
} mk_shadow;

mk_status mk_shadow_init(mk_verifier *v, mk_shadow *shadow);
void mk_shadow_free(mk_shadow *shadow);
/* Rules R01; R02 and R03. */
mk_status mk_shadow_read(mk_verifier *v, mk_shadow *shadow, const mk_actor *actor);
mk_status mk_shadow_write(mk_verifier *v, mk_shadow *shadow, const mk_actor *actor);

#endif
