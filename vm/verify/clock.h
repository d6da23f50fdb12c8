/* Vector clocks of the verifier's run (order.c): a thread's clock has, for each thread, the time up to which everything
 * there has happened before.
 *
 * Nearly all SMs of a stage know the same, except for what they have done themselves. Therefore a clock consists of a
 * vector that it shares with other clocks, and beside it the times of its own lane's two threads. The join of two
 * vectors is remembered, so that the same join need not be computed again. That way a program of 8 x 132 SMs takes a
 * few vectors for each stage, and not one for each SM.
 *
 * A mk_clocks owns all vectors; mk_clocks_free releases them. One thread. Failure: MK_ERR_RUNTIME for memory. */
#ifndef MK_VERIFY_CLOCK_H
#define MK_VERIFY_CLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vm/status.h"

typedef struct mk_times mk_times;
typedef struct mk_seen { /* a vector as it was at some time: its version tells whether it has changed since */
  mk_times *times;
  uint64_t version;
} mk_seen;

enum { MK_SUMS = 4 };

struct mk_times {
  uint32_t users;   /* clocks and views that share it; one with several users is not changed */
  uint32_t turn;    /* which entry of sums is overwritten next */
  uint64_t version; /* changes with the vector, to a number that no vector has had */
  struct {
    mk_seen with, is;
  } sums[MK_SUMS]; /* the last joins: the other vector, and the result */
  mk_seen fed;     /* the last vector of which it is known that nothing in it is later than here */
  mk_times *next;  /* in the list of all vectors */
  uint32_t of[];   /* times, by thread */
};

/* A vector's memory is used again for other vectors, but not freed before the end: so its version can always be read,
 * and tells whether it is still the vector that was seen. */
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
/* Sets the time of one of the two threads of the clock's own lane; it is never set back. */
static inline void mk_clock_set(mk_clock *c, uint32_t thread, uint32_t time) { c->own[thread % 2] = time; }

/* `to` becomes what `from` is. */
void mk_clock_copy(mk_clocks *clocks, mk_clock *to, const mk_clock *from);
void mk_clock_drop(mk_clocks *clocks, mk_clock *clock);
/* `into` comes to know also what `from` knows, a clock of the same lane; or what a view knows (NULL: nothing). */
mk_status mk_clock_join(mk_clocks *clocks, mk_clock *into, const mk_clock *from);
mk_status mk_clock_join_view(mk_clocks *clocks, mk_clock *into, mk_times *view);
/* The clock forgets what it knows of a thread of its own lane after `time`. */
mk_status mk_clock_limit(mk_clocks *clocks, mk_clock *clock, uint32_t thread, uint32_t time);
/* The view (NULL: of nothing) comes to know what the clock knows. */
mk_status mk_view_feed(mk_clocks *clocks, mk_times **view, const mk_clock *from);
void mk_view_drop(mk_clocks *clocks, mk_times **view);

#endif
