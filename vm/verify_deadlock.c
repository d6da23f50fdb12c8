/* What a stuck run waits for. See verify_run.h; rule D01. */
#include <stdio.h>

#include "vm/verify_run.h"

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
  char text[600];
  size_t used = 0;
  text[0] = '\0';
  for (bool telling = false;;) {
    head_of(run, lane, &index, &epoch);
    const mk_lane *l = &run->lanes[lane];
    uint32_t behind = l->wait_counter != MK_NONE_INDEX ? missing_signaller(run, l->wait_counter, epoch)
                                                       : missing_writer(run, l->wait_group, epoch);
    if (telling && used < sizeof text) {
      bool counter = l->wait_counter != MK_NONE_INDEX;
      int more = snprintf(text + used, sizeof text - used, "%s%s waits for %s %s, which %s%s %s", used == 0 ? "" : "; ",
                          mk_place_of(v, index).text, counter ? "counter" : "the stamps of",
                          counter ? v->program->counters[l->wait_counter].name
                                  : v->program->buffers[v->groups[l->wait_group].where.buffer].name,
                          behind == MK_NONE_INDEX ? "nobody" : mk_place_of(v, behind).text,
                          epoch == 0 ? "" : " of the next epoch", counter ? "signals" : "writes");
      used += more < 0 ? 0 : (size_t)more;
    }
    if (behind == MK_NONE_INDEX) {
      break;
    }
    lane = v->lane_of[v->queue_of[behind]];
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
  return mk_reject(v, "D01", index, "deadlock: %s%s", text, used >= sizeof text ? " ..." : "");
}
