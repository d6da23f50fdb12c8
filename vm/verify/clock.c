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

static void forget_sums(mk_times *times) { memset(times->sums, 0, sizeof times->sums); }

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
  (*out)->version = ++clocks->version;
  (*out)->fed = (mk_seen){.times = NULL};
  forget_sums(*out);
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

void mk_clocks_free(mk_clocks *clocks) {
  while (clocks->all != NULL) {
    mk_times *next = clocks->all->next;
    mk_free(clocks->all);
    clocks->all = next;
  }
  mk_free(clocks->spare);
}

static mk_status join(mk_clocks *clocks, mk_times **into, mk_times *from) {
  mk_times *left = *into, *sum;
  if (from == NULL || from == left) {
    return MK_OK;
  }
  if (left == NULL) {
    replace(clocks, into, from);
    return MK_OK;
  }
  for (uint32_t i = 0; i < MK_SUMS; i++) {
    if (mk_is_seen(left->sums[i].with, from) && mk_is_seen(left->sums[i].is, left->sums[i].is.times)) {
      replace(clocks, into, left->sums[i].is.times);
      return MK_OK;
    }
  }
  MK_TRY(take(clocks, &sum));
  const uint32_t which = larger(sum->of, left->of, from->of, clocks->threads);
  if (which != 0) {
    drop(clocks, sum);
    sum = (which & OF_LEFT) != 0 ? left : from;
    sum->users++;
  }
  left->sums[left->turn % MK_SUMS].with = mk_seen_now(from);
  left->sums[left->turn++ % MK_SUMS].is = mk_seen_now(sum);
  drop(clocks, left);
  *into = sum;
  return MK_OK;
}

/* Makes *times an array that no other clock shares. */
static mk_status make_own(mk_clocks *clocks, mk_times **times) {
  mk_times *old = *times, *copy;
  if (old != NULL && old->users == 1) {
    old->version = ++clocks->version;
    forget_sums(old);
    return MK_OK;
  }
  MK_TRY(take(clocks, &copy));
  if (old != NULL) {
    memcpy(copy->of, old->of, clocks->threads * sizeof *copy->of);
    copy->fed = mk_seen_now(old);
  } else {
    memset(copy->of, 0, clocks->threads * sizeof *copy->of);
  }
  drop(clocks, old);
  *times = copy;
  return MK_OK;
}

void mk_clock_copy(mk_clocks *clocks, mk_clock *to, const mk_clock *from) {
  replace(clocks, &to->shared, from->shared);
  to->lane = from->lane;
  memcpy(to->own, from->own, sizeof to->own);
}

void mk_clock_drop(mk_clocks *clocks, mk_clock *clock) { replace(clocks, &clock->shared, NULL); }

mk_status mk_clock_join(mk_clocks *clocks, mk_clock *into, const mk_clock *from) {
  for (uint32_t i = 0; i < 2; i++) {
    into->own[i] = into->own[i] > from->own[i] ? into->own[i] : from->own[i];
  }
  return join(clocks, &into->shared, from->shared);
}

mk_status mk_clock_join_view(mk_clocks *clocks, mk_clock *into, mk_times *view) {
  return join(clocks, &into->shared, view);
}

mk_status mk_clock_limit(mk_clocks *clocks, mk_clock *clock, uint32_t thread, uint32_t time) {
  uint32_t *own = &clock->own[thread % 2];
  *own = *own < time ? *own : time;
  if (clock->shared != NULL && clock->shared->of[thread] > time) {
    MK_TRY(make_own(clocks, &clock->shared));
    clock->shared->of[thread] = time;
    clock->shared->fed = (mk_seen){.times = NULL};
  }
  return MK_OK;
}

mk_status mk_view_feed(mk_clocks *clocks, mk_times **view, const mk_clock *from) {
  if (from->shared != NULL && (*view == NULL || !mk_is_seen((*view)->fed, from->shared))) {
    MK_TRY(join(clocks, view, from->shared));
  }
  const uint32_t first = 2 * from->lane;
  if (*view == NULL || (*view)->of[first] < from->own[0] || (*view)->of[first + 1] < from->own[1]) {
    MK_TRY(make_own(clocks, view));
    for (uint32_t i = 0; i < 2; i++) {
      uint32_t *known = &(*view)->of[first + i];
      *known = *known > from->own[i] ? *known : from->own[i];
    }
  }
  if (from->shared != NULL && *view != from->shared) {
    (*view)->fed = mk_seen_now(from->shared);
  }
  return MK_OK;
}

void mk_view_drop(mk_clocks *clocks, mk_times **view) { replace(clocks, view, NULL); }
