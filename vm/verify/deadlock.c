/* What a stuck run waits for. See run.h; rule D01. */
#include <stdarg.h>
#include <stdio.h>

#include "vm/verify/run.h"

/* The cycle as text: who waits for what in full, and where there is no room for that the uids alone. */
enum { FULL_TEXT = 1800, ALL_TEXT = 3300 };

typedef struct mk_cycle_text {
  char text[ALL_TEXT];
  size_t used;
  uint32_t left_out;
} mk_cycle_text;

__attribute__((format(printf, 2, 3))) static void add(mk_cycle_text *t, const char *format, ...) {
  va_list args;
  va_start(args, format);
  int more = vsnprintf(t->text + t->used, sizeof t->text - t->used, format, args);
  va_end(args);
  if (more < 0 || (size_t)more >= sizeof t->text - t->used) {
    t->text[t->used] = '\0';
    t->left_out++;
  } else {
    t->used += (size_t)more;
  }
}

static void add_wait(mk_cycle_text *t, const mk_run *run, const mk_lane *lane, uint32_t index, uint32_t epoch,
                     uint32_t awaited) {
  const mk_verifier *v = run->v;
  bool counter = lane->wait_counter != MK_NONE_INDEX, was_full = t->used < FULL_TEXT;
  if (was_full) {
    add(t, "%s%s waits for %s %s, which %s%s %s", t->used == 0 ? "" : "; ", mk_place_of(v, index).text,
        counter ? "counter" : "the stamps of",
        counter ? v->program->counters[lane->wait_counter].name
                : v->program->buffers[v->groups[lane->wait_group].where.buffer].name,
        awaited == MK_NONE_INDEX ? "nobody" : mk_place_of(v, awaited).text, epoch == 0 ? "" : " of the next epoch",
        counter ? "signals" : "writes");
  } else {
    add(t, " #%u", mk_at(v, index)->uid);
  }
  if (was_full && t->used >= FULL_TEXT) {
    add(t, "; and so on, each waiting for the next:");
  }
}

/* Deadlock: follow what every queue waits for until a queue comes up a second time. */

static uint32_t missing_signaller(const mk_run *run, uint32_t counter, uint32_t epoch) {
  for (uint32_t i = run->first_signal[counter]; i < run->first_signal[counter + 1]; i++) {
    uint32_t index = run->signals[i].instruction, queue = run->v->queue_of[index];
    const mk_queue *q = &run->v->program->queues[queue];
    if (run->lanes[run->v->lane_of[queue]].done <= epoch * q->count + (index - q->first)) {
      return index;
    }
  }
  return MK_NONE_INDEX;
}

static uint32_t missing_writer(const mk_run *run, uint32_t group, uint32_t epoch) {
  for (uint32_t i = 0; i < run->v->write_count; i++) {
    const mk_write *w = &run->v->writes[i];
    for (uint32_t t = 0; t < w->group_count; t++) {
      uint32_t queue = run->v->queue_of[w->instruction];
      const mk_queue *q = &run->v->program->queues[queue];
      if (run->v->targets[w->first_group + t].group == group &&
          run->lanes[run->v->lane_of[queue]].done <= epoch * q->count + (w->instruction - q->first)) {
        return w->instruction;
      }
    }
  }
  return MK_NONE_INDEX;
}

mk_status mk_report_deadlock(mk_run *run) {
  mk_verifier *v = run->v;
  uint32_t lane = 0, index, epoch, *seen;
  while (run->lanes[lane].done == MK_EPOCHS * v->program->queues[run->lanes[lane].queue].count) {
    lane++;
  }
  MK_TRY(mk_alloc(v->lanes, sizeof *seen, &seen));
  /* First into the cycle, then once around it for the message. */
  uint32_t start = MK_NONE_INDEX;
  mk_cycle_text text = {.used = 0};
  for (bool telling = false;;) {
    head_of(run, lane, &index, &epoch);
    const mk_lane *l = &run->lanes[lane];
    uint32_t awaited = l->wait_counter != MK_NONE_INDEX ? missing_signaller(run, l->wait_counter, epoch)
                                                        : missing_writer(run, l->wait_group, epoch);
    if (telling) {
      add_wait(&text, run, l, index, epoch, awaited);
    }
    if (awaited == MK_NONE_INDEX) {
      break;
    }
    lane = v->lane_of[v->queue_of[awaited]];
    if (telling && lane == start) {
      break;
    }
    if (!telling && seen[lane]++ != 0) {
      telling = true;
      start = lane;
    }
  }
  mk_free(seen);
  head_of(run, lane, &index, &epoch);
  if (text.left_out != 0) {
    return mk_reject(v, "D01", index, "deadlock: %s, and %u more", text.text, text.left_out);
  }
  return mk_reject(v, "D01", index, "deadlock: %s", text.text);
}
