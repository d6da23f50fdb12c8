/* Vector clocks of the verifier's run (order.c): a thread's clock has, for each thread, the time up to which everything
 * there has happened before.
 *
 * Nearly all SMs of a stage know the same, except for what a few of them have done themselves. Therefore what a clock
 * knows (mk_known) consists of a vector that it shares with others, and of later times of a few single threads; and a
 * clock has the times of its own lane's two threads beside that. Vectors are joined by what is known of them: one that
 * was made of another one is no earlier than that; and the join of two vectors is remembered. So a program of 8 x 132
 * SMs takes a few vectors for each stage, and not one for each SM.
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

enum { MK_PARTS_KNOWN = 4, MK_LATER = 8, MK_JOINS = 1 << 10 };

struct mk_times {
  uint32_t users;                /* those who share it; one with several users is not changed */
  bool own;                      /* made for one user, who may change it while it has no other */
  uint32_t turn;                 /* which entry of parts is overwritten next */
  uint64_t version;              /* changes with the vector, to a number that no vector has had */
  mk_seen parts[MK_PARTS_KNOWN]; /* vectors of which it is known that nothing in them is later than here */
  mk_times *next;                /* in the list of all vectors */
  uint32_t of[];                 /* times, by thread */
};

/* A vector's memory is used again for other vectors, but not freed before the end: so its version can always be read,
 * and tells whether it is still the vector that was seen. */
static inline mk_seen mk_seen_now(mk_times *times) { return (mk_seen){times, times->version}; }
static inline bool mk_is_seen(mk_seen seen, const mk_times *times) {
  return times != NULL && seen.times == times && seen.version == times->version;
}

/* Whether the vector, as it was when it was seen, is this one or a part of it. */
static inline bool mk_holds(const mk_times *times, mk_seen seen) {
  bool holds = mk_is_seen(seen, times);
  for (uint32_t i = 0; times != NULL && seen.times != NULL && i < MK_PARTS_KNOWN && !holds; i++) {
    holds = times->parts[i].times == seen.times && times->parts[i].version == seen.version;
  }
  return holds;
}

typedef struct mk_joined { /* the join of two vectors of these versions */
  uint64_t low, high;
  mk_seen sum; /* where it is neither of the two this is one of its users: else it may be gone by the next time */
} mk_joined;

typedef struct mk_clocks {
  uint32_t threads;
  mk_times *all;
  mk_times **spare;
  size_t count, spare_count, spare_capacity;
  uint64_t version;
  mk_joined *joins; /* MK_JOINS of the last ones, by their versions */
} mk_clocks;

typedef struct mk_known {
  mk_times *shared; /* NULL: nothing is known but what stands in `later` */
  uint32_t count;
  struct mk_later { /* what is known beyond `shared`: of each thread one time at most */
    uint32_t thread, time;
  } later[MK_LATER];
} mk_known;

typedef struct mk_clock {
  mk_known known;
  uint32_t lane, own[2];
} mk_clock;

mk_status mk_clocks_init(mk_clocks *clocks, uint32_t threads);
void mk_clocks_free(mk_clocks *clocks);

static inline uint32_t mk_clock_at(const mk_clock *c, uint32_t thread) {
  uint32_t time = c->known.shared == NULL ? 0 : c->known.shared->of[thread];
  for (uint32_t i = 0; i < c->known.count; i++) {
    time = c->known.later[i].thread == thread && c->known.later[i].time > time ? c->known.later[i].time : time;
  }
  return thread / 2 == c->lane && c->own[thread % 2] > time ? c->own[thread % 2] : time;
}
/* Sets the time of one of the two threads of the clock's own lane; it is never set back. */
static inline void mk_clock_set(mk_clock *c, uint32_t thread, uint32_t time) { c->own[thread % 2] = time; }

/* Whether two clocks are seen at once to know the same. */
bool mk_clock_same(const mk_clock *a, const mk_clock *b);
/* `to` becomes what `from` is. */
void mk_clock_copy(mk_clocks *clocks, mk_clock *to, const mk_clock *from);
void mk_clock_drop(mk_clocks *clocks, mk_clock *clock);
/* `into` comes to know also what `from` knows, a clock of the same lane. */
mk_status mk_clock_join(mk_clocks *clocks, mk_clock *into, const mk_clock *from);
/* The clock forgets what it knows of a thread of its own lane after `time`. */
mk_status mk_clock_limit(mk_clocks *clocks, mk_clock *clock, uint32_t thread, uint32_t time);
/* What is known to several: zeroed it is nothing. It comes to know what a clock knows; the clock, what it knows. */
mk_status mk_known_feed(mk_clocks *clocks, mk_known *known, const mk_clock *from);
mk_status mk_clock_learn(mk_clocks *clocks, mk_clock *clock, const mk_known *known);
void mk_known_copy(mk_clocks *clocks, mk_known *to, const mk_known *from);
void mk_known_drop(mk_clocks *clocks, mk_known *known);

#endif
