/* See clock.h. */
#include "vm/verify/clock.h"

#include <string.h>

#include "vm/widest.h"

enum { OF_LEFT = 1, OF_RIGHT = 2 }; /* the larger of two clocks is equal to the left one, or to the right one */

/* into = the larger of both, element by element. Returns which of the two it is equal to. */
MK_WIDEST static uint32_t larger(uint32_t *restrict into, const uint32_t *restrict left, const uint32_t *restrict right,
                                 uint32_t count) {
  uint32_t less_left = 0, less_right = 0;
  for (uint32_t i = 0; i < count; i++) {
    less_left |= left[i] < right[i];
    less_right |= right[i] < left[i];
    into[i] = left[i] > right[i] ? left[i] : right[i];
  }
  return (less_left == 0 ? (uint32_t)OF_LEFT : 0) | (less_right == 0 ? (uint32_t)OF_RIGHT : 0);
}

mk_status mk_clocks_init(mk_clocks *clocks, uint32_t threads) {
  *clocks = (mk_clocks){.threads = threads};
  return mk_alloc(MK_JOINS, sizeof *clocks->joins, &clocks->joins);
}

void mk_clocks_free(mk_clocks *clocks) {
  while (clocks->all != NULL) {
    mk_times *next = clocks->all->next;
    mk_free(clocks->all);
    clocks->all = next;
  }
  mk_free(clocks->spare);
  mk_free(clocks->joins);
}

static mk_status take(mk_clocks *clocks, mk_times **out) {
  if (clocks->spare_count != 0) {
    *out = clocks->spare[--clocks->spare_count];
  } else {
    MK_TRY(mk_alloc(1, sizeof **out + clocks->threads * sizeof *(*out)->of, out));
    (*out)->next = clocks->all;
    clocks->all = *out;
    /* The list of spare ones has room for all that there are, so that giving one back cannot fail. */
    MK_TRY(mk_grow(&clocks->spare, &clocks->spare_capacity, ++clocks->count, sizeof(mk_times *)));
  }
  (*out)->users = 1;
  (*out)->own = false;
  (*out)->version = ++clocks->version;
  memset((*out)->parts, 0, sizeof(*out)->parts);
  return MK_OK;
}

static void drop(mk_clocks *clocks, mk_times *times) {
  if (times != NULL && --times->users == 0) {
    times->version = ++clocks->version;
    clocks->spare[clocks->spare_count++] = times;
  }
}

static void replace(mk_clocks *clocks, mk_times **old, mk_times *by) {
  if (by != NULL) {
    by->users++;
  }
  drop(clocks, *old);
  *old = by;
}

static void add_part(mk_times *times, mk_times *part) {
  if (!mk_holds(times, mk_seen_now(part))) {
    times->parts[times->turn++ % MK_PARTS_KNOWN] = mk_seen_now(part);
  }
}

static bool is_open(const mk_times *times) { return times->own && times->users == 1; }

/* The join of two vectors of which nothing is known. That of an open one is open, and has its parts. */
static mk_status compare(mk_clocks *clocks, mk_times **into, mk_times *from) {
  mk_times *left = *into, *sum;
  MK_TRY(take(clocks, &sum));
  const uint32_t which = larger(sum->of, left->of, from->of, clocks->threads);
  if (which != 0) {
    drop(clocks, sum);
  }
  if ((which & OF_LEFT) != 0) {
    add_part(left, from);
  } else if ((which & OF_RIGHT) != 0) {
    add_part(from, left);
    replace(clocks, into, from);
  } else {
    sum->own = is_open(left);
    if (sum->own) {
      memcpy(sum->parts, left->parts, sizeof sum->parts);
      sum->turn = left->turn;
    } else {
      add_part(sum, left);
    }
    add_part(sum, from);
    drop(clocks, left);
    *into = sum;
  }
  return MK_OK;
}

static bool uses_sum(const mk_joined *joined) {
  const mk_seen *sum = &joined->sum;
  return sum->times != NULL && sum->version != joined->low && sum->version != joined->high;
}

static mk_status join(mk_clocks *clocks, mk_times **into, mk_times *from) {
  mk_times *left = *into;
  if (from == NULL || from == left) {
    return MK_OK;
  }
  if (left == NULL || mk_holds(from, mk_seen_now(left))) {
    replace(clocks, into, from);
    return MK_OK;
  }
  if (mk_holds(left, mk_seen_now(from))) {
    return MK_OK;
  }
  if (is_open(left)) {
    return compare(clocks, into, from);
  }
  const uint64_t low = left->version < from->version ? left->version : from->version;
  const uint64_t high = left->version ^ from->version ^ low;
  mk_joined *joined = &clocks->joins[(low * 0x9e3779b97f4a7c15 + high * 0xc2b2ae3d27d4eb4f) >> 54];
  _Static_assert(MK_JOINS == 1 << (64 - 54), "ten bits choose among them");
  if (joined->low == low && joined->high == high && mk_is_seen(joined->sum, joined->sum.times)) {
    replace(clocks, into, joined->sum.times);
    return MK_OK;
  }
  MK_TRY(compare(clocks, into, from));
  if (uses_sum(joined)) {
    drop(clocks, joined->sum.times);
  }
  *joined = (mk_joined){.low = low, .high = high, .sum = mk_seen_now(*into)};
  (*into)->users += uses_sum(joined);
  return MK_OK;
}

/* Makes *times a vector that nobody else has, and that is about to be changed. */
static mk_status make_own(mk_clocks *clocks, mk_times **times) {
  mk_times *old = *times, *copy;
  if (old != NULL && is_open(old)) {
    old->version = ++clocks->version;
    return MK_OK;
  }
  MK_TRY(take(clocks, &copy));
  copy->own = true;
  if (old != NULL) {
    memcpy(copy->of, old->of, clocks->threads * sizeof *copy->of);
    memcpy(copy->parts, old->parts, sizeof copy->parts);
    add_part(copy, old);
  } else {
    memset(copy->of, 0, clocks->threads * sizeof *copy->of);
  }
  drop(clocks, old);
  *times = copy;
  return MK_OK;
}

static void put(mk_times *times, uint32_t thread, uint32_t time) {
  times->of[thread] = times->of[thread] > time ? times->of[thread] : time;
}

/* Adds one time: to the vector where it is nobody else's, else to the list, as long as that has room. */
static mk_status add(mk_clocks *clocks, mk_known *known, uint32_t thread, uint32_t time) {
  if (time == 0 || (known->shared != NULL && known->shared->of[thread] >= time)) {
    return MK_OK;
  }
  const bool open = known->shared != NULL && is_open(known->shared);
  for (uint32_t i = 0; i < known->count && !open; i++) {
    if (known->later[i].thread == thread) {
      known->later[i].time = known->later[i].time > time ? known->later[i].time : time;
      return MK_OK;
    }
  }
  if (!open && known->count < MK_LATER) {
    known->later[known->count].thread = thread;
    known->later[known->count++].time = time;
    return MK_OK;
  }
  MK_TRY(make_own(clocks, &known->shared));
  put(known->shared, thread, time);
  for (uint32_t i = 0; i < known->count; i++) {
    put(known->shared, known->later[i].thread, known->later[i].time);
  }
  known->count = 0;
  return MK_OK;
}

/* Takes off the list what the vector knows by now. */
static void shorten(mk_known *known) {
  uint32_t kept = 0;
  for (uint32_t i = 0; i < known->count; i++) {
    if (known->shared->of[known->later[i].thread] < known->later[i].time) {
      known->later[kept++] = known->later[i];
    }
  }
  known->count = kept;
}

static mk_status learn(mk_clocks *clocks, mk_known *into, const mk_known *from) {
  const mk_times *before = into->shared;
  MK_TRY(join(clocks, &into->shared, from->shared));
  if (into->count != 0 && into->shared != before) {
    shorten(into);
  }
  for (uint32_t i = 0; i < from->count; i++) {
    MK_TRY(add(clocks, into, from->later[i].thread, from->later[i].time));
  }
  return MK_OK;
}

void mk_known_copy(mk_clocks *clocks, mk_known *to, const mk_known *from) {
  replace(clocks, &to->shared, from->shared);
  to->count = from->count;
  memcpy(to->later, from->later, from->count * sizeof *from->later);
}

bool mk_clock_same(const mk_clock *a, const mk_clock *b) {
  return a->known.shared == b->known.shared && a->known.count == b->known.count && a->lane == b->lane &&
         memcmp(a->own, b->own, sizeof a->own) == 0 &&
         memcmp(a->known.later, b->known.later, a->known.count * sizeof *a->known.later) == 0;
}

void mk_clock_copy(mk_clocks *clocks, mk_clock *to, const mk_clock *from) {
  mk_known_copy(clocks, &to->known, &from->known);
  to->lane = from->lane;
  memcpy(to->own, from->own, sizeof to->own);
}

void mk_clock_drop(mk_clocks *clocks, mk_clock *clock) { mk_known_drop(clocks, &clock->known); }

mk_status mk_clock_join(mk_clocks *clocks, mk_clock *into, const mk_clock *from) {
  for (uint32_t i = 0; i < 2; i++) {
    into->own[i] = into->own[i] > from->own[i] ? into->own[i] : from->own[i];
  }
  return learn(clocks, &into->known, &from->known);
}

mk_status mk_clock_learn(mk_clocks *clocks, mk_clock *clock, const mk_known *known) {
  return learn(clocks, &clock->known, known);
}

mk_status mk_clock_limit(mk_clocks *clocks, mk_clock *clock, uint32_t thread, uint32_t time) {
  mk_known *known = &clock->known;
  uint32_t *own = &clock->own[thread % 2];
  *own = *own < time ? *own : time;
  for (uint32_t i = 0; i < known->count; i++) {
    if (known->later[i].thread == thread && known->later[i].time > time) {
      known->later[i].time = time;
    }
  }
  if (known->shared != NULL && known->shared->of[thread] > time) {
    MK_TRY(make_own(clocks, &known->shared));
    known->shared->of[thread] = time;
    memset(known->shared->parts, 0, sizeof known->shared->parts);
  }
  return MK_OK;
}

mk_status mk_known_feed(mk_clocks *clocks, mk_known *known, const mk_clock *from) {
  MK_TRY(learn(clocks, known, &from->known));
  for (uint32_t i = 0; i < 2; i++) {
    MK_TRY(add(clocks, known, 2 * from->lane + i, from->own[i]));
  }
  return MK_OK;
}

void mk_known_drop(mk_clocks *clocks, mk_known *known) {
  replace(clocks, &known->shared, NULL);
  known->count = 0;
}
