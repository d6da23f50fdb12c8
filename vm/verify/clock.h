/* Vector clocks of the verifier's run (order.c): what a thread knows of every other one.
 *
 * Of the SMs of a stage nearly all know the same, but for what they do themselves. So a clock is a vector that it
 * shares with others, and the times of its own lane's two threads beside it; and what comes of two vectors is looked
 * up where it has been asked for before. A program of 8 x 132 SMs so takes a few vectors a stage, and not one for
 * each SM.
 *
 * A mk_clocks owns all vectors; mk_clocks_free releases them. One thread. Failure: MK_ERR_RUNTIME for memory. */
#ifndef MK_VERIFY_CLOCK_H
#define MK_VERIFY_CLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vm/status.h"

typedef struct mk_times mk_times;
typedef struct mk_seen { /* a vector as it was then */
  mk_times *times;
  uint64_t version;
} mk_seen;

enum { MK_SUMS = 4 };

struct mk_times {
  uint32_t users;   /* clocks, and views; nobody changes what has several */
  uint32_t turn;    /* of the sums */
  uint64_t version; /* another one after each change, and never one that any vector has had */
  struct {
    mk_seen with, is;
  } sums[MK_SUMS]; /* the last ones that were joined to it, and what came of that */
  mk_seen fed;     /* the last vector that is known to lie below it */
  mk_times *next;  /* of all that there are */
  uint32_t of[];   /* by thread */
};

/* Vectors are used again, and never given back before the end: so the version tells whether it is the same. */
static inline mk_seen mk_seen_now(mk_times *times) { return (mk_seen){times, times->version}; }
static inline bool mk_is_seen(mk_seen seen, const mk_times *times) {
  return times != NULL && seen.times == times && seen.version == times->version;
}

typedef struct mk_clocks {
  uint32_t threads;
  mk_times *all;
  mk_times **spare;
  size_t count, spare_count, spare_capacity;
  uint64_t version;
} mk_clocks;

typedef struct mk_clock {
  mk_times *shared; /* NULL: nothing is known */
  uint32_t lane, own[2];
} mk_clock;

void mk_clocks_free(mk_clocks *clocks);

static inline uint32_t mk_clock_at(const mk_clock *c, uint32_t thread) {
  const uint32_t known = c->shared == NULL ? 0 : c->shared->of[thread];
  return thread / 2 == c->lane && c->own[thread % 2] > known ? c->own[thread % 2] : known;
}
/* The time of one of its lane's threads, which does not fall. */
static inline void mk_clock_set(mk_clock *c, uint32_t thread, uint32_t time) { c->own[thread % 2] = time; }

/* `to` becomes what `from` is. */
void mk_clock_copy(mk_clocks *clocks, mk_clock *to, const mk_clock *from);
void mk_clock_drop(mk_clocks *clocks, mk_clock *clock);
/* Comes to know what `from`, of the same lane, knows; and what a view knows (NULL: nothing). */
mk_status mk_clock_join(mk_clocks *clocks, mk_clock *into, const mk_clock *from);
mk_status mk_clock_join_view(mk_clocks *clocks, mk_clock *into, mk_times *view);
/* At most so much is known of this thread of its lane. */
mk_status mk_clock_limit(mk_clocks *clocks, mk_clock *clock, uint32_t thread, uint32_t time);
/* The view (NULL: of nothing) comes to know what the clock knows. */
mk_status mk_view_feed(mk_clocks *clocks, mk_times **view, const mk_clock *from);
void mk_view_drop(mk_clocks *clocks, mk_times **view);

#endif
