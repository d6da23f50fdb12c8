/* See recorder.h. */
#include "vm/cpu/recorder.h"

#include <string.h>
#include <time.h>

struct mk_recorder {
  const mk_program *program;
  uint32_t first, steps, capacity;
  mk_trace_track *tracks; /* [queues][MK_TRACE_ROLES] */
  mk_trace_record *records;
  uint64_t begun, ended; /* of the run, nanoseconds */
  uint64_t run_steps;
  uint32_t position;
  bool roles_apart;
};

uint64_t mk_recorder_now(const mk_recorder *recorder) {
  struct timespec now;
  if (recorder == NULL) {
    return 0;
  }
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

mk_status mk_recorder_new(const mk_program *program, uint32_t first_step, uint32_t steps, uint32_t capacity,
                          mk_recorder **out) {
  size_t tracks = program->queue_count * MK_TRACE_ROLES;
  MK_TRY(mk_alloc(1, sizeof **out, out));
  mk_recorder *r = *out;
  *r = (mk_recorder){.program = program, .first = first_step, .steps = steps, .capacity = capacity};
  mk_status status = mk_alloc(tracks, sizeof *r->tracks, &r->tracks);
  if (status == MK_OK) {
    status = mk_alloc(tracks, capacity * sizeof *r->records, &r->records);
  }
  if (status != MK_OK) {
    mk_recorder_free(r);
    *out = NULL;
    return status;
  }
  for (size_t t = 0; t < tracks; t++) {
    r->tracks[t].records = r->records + t * capacity;
  }
  return MK_OK;
}

void mk_recorder_free(mk_recorder *recorder) {
  if (recorder != NULL) {
    mk_free(recorder->tracks);
    mk_free(recorder->records);
    mk_free(recorder);
  }
}

static void put(mk_recorder *r, uint32_t sm, uint32_t role, const mk_trace_record *record) {
  mk_trace_track *track = &r->tracks[(size_t)sm * MK_TRACE_ROLES + role];
  const mk_trace_record *last = track->count == 0 ? NULL : &track->records[track->count - 1];
  if (last != NULL && last->activity == record->activity && last->uid == record->uid && last->edge == record->edge &&
      last->epoch == record->epoch) {
    return;
  }
  if (track->count == r->capacity) {
    track->dropped++;
    return;
  }
  /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): every track has its records from the beginning */
  track->records[track->count++] = *record;
}

bool mk_recorder_wants(const mk_recorder *recorder, uint64_t step) {
  return recorder != NULL && step >= recorder->first && step - recorder->first < recorder->steps;
}

static void add(mk_recorder *r, uint32_t sm, uint32_t role, uint64_t step, uint64_t time, mk_trace_record record) {
  record.time = time - r->begun;
  record.epoch = (uint8_t)step;
  put(r, sm, role, &record);
}

void mk_recorder_work(mk_recorder *recorder, uint32_t sm, uint32_t role, uint64_t step, uint64_t since, uint32_t uid) {
  if (mk_recorder_wants(recorder, step)) {
    add(recorder, sm, role, step, since, (mk_trace_record){.uid = uid, .activity = MK_ACTIVITY_WORK});
  }
}

void mk_recorder_rest(mk_recorder *recorder, uint32_t sm, uint32_t role, uint64_t step) {
  if (mk_recorder_wants(recorder, step)) {
    add(recorder, sm, role, step, mk_recorder_now(recorder), (mk_trace_record){.activity = MK_ACTIVITY_BOUNDARY});
  }
}

void mk_recorder_wait(mk_recorder *recorder, uint32_t sm, uint32_t role, uint64_t step, uint64_t since,
                      mk_activity activity, uint32_t uid, uint32_t edge) {
  if (!mk_recorder_wants(recorder, step)) {
    return;
  }
  const mk_trace_track *track = &recorder->tracks[(size_t)sm * MK_TRACE_ROLES + role];
  const mk_trace_record *last = track->count < 2 ? NULL : &track->records[track->count - 2];
  bool again = last != NULL && last[1].activity == MK_ACTIVITY_BOUNDARY && last->activity == activity &&
               last->uid == uid && last->edge == edge && last->epoch == (uint8_t)step;
  if (!again) {
    add(recorder, sm, role, step, since,
        (mk_trace_record){.uid = uid, .activity = (uint8_t)activity, .edge = (uint16_t)edge});
    mk_recorder_rest(recorder, sm, role, step);
  }
}

void mk_recorder_leave(mk_recorder *recorder, uint32_t sm, uint32_t role, uint64_t step, bool begins) {
  bool ends = begins && step != 0 && mk_recorder_wants(recorder, step - 1);
  if (ends || (mk_recorder_wants(recorder, step) && (begins || recorder->roles_apart))) {
    add(recorder, sm, role, step, mk_recorder_now(recorder), (mk_trace_record){.activity = MK_ACTIVITY_BOUNDARY});
  }
}

uint32_t mk_recorder_first(const mk_recorder *recorder) { return recorder == NULL ? 0 : recorder->first; }

void mk_recorder_begin(mk_recorder *recorder, uint32_t position, bool roles_apart) {
  if (recorder == NULL) {
    return;
  }
  recorder->position = position;
  recorder->begun = recorder->ended = mk_recorder_now(recorder);
  recorder->run_steps = 0;
  recorder->roles_apart = roles_apart;
  for (uint32_t q = 0; q < recorder->program->queue_count; q++) {
    for (uint32_t role = 0; role < MK_TRACE_ROLES; role++) {
      mk_trace_track *track = &recorder->tracks[(size_t)q * MK_TRACE_ROLES + role];
      track->count = track->dropped = 0;
      if (recorder->program->queues[q].count != 0 && role != MK_TRACE_CONTROLLER &&
          (roles_apart || role == MK_ROLE_CONSUMER)) {
        mk_recorder_leave(recorder, q, role, 0, true);
      }
    }
  }
}

void mk_recorder_end(mk_recorder *recorder, uint64_t steps) {
  if (recorder != NULL) {
    recorder->ended = mk_recorder_now(recorder);
    recorder->run_steps = steps;
  }
}

mk_status mk_recorder_take(const mk_recorder *recorder, mk_trace **out) {
  mk_trace *trace;
  uint32_t sms = (uint32_t)recorder->program->queue_count, done = (uint32_t)recorder->run_steps;
  MK_TRY(mk_trace_new(recorder->program, sms, &trace));
  uint64_t start = UINT64_MAX;
  mk_status status = MK_OK;
  for (size_t t = 0; t < (size_t)sms * MK_TRACE_ROLES && status == MK_OK; t++) {
    const mk_trace_track *from = &recorder->tracks[t];
    mk_trace_track *to = &trace->tracks[t];
    status = mk_alloc(from->count, sizeof *to->records, &to->records);
    if (status == MK_OK && from->count != 0) {
      to->count = from->count;
      memcpy(to->records, from->records, from->count * sizeof *to->records);
      start = to->records[0].time < start ? to->records[0].time : start;
    }
    to->dropped = from->dropped;
  }
  if (status != MK_OK) {
    mk_trace_free(trace);
    return status;
  }
  for (size_t t = 0; t < (size_t)sms * MK_TRACE_ROLES; t++) {
    for (uint32_t i = 0; i < trace->tracks[t].count; i++) {
      trace->tracks[t].records[i].time -= start;
    }
  }
  trace->first_step = recorder->first < done ? recorder->first : done;
  trace->steps = done - trace->first_step < recorder->steps ? done - trace->first_step : recorder->steps;
  trace->first_position = recorder->position;
  trace->milliseconds = (double)(recorder->ended - recorder->begun) * 1e-6;
  trace->launch_steps = done;
  *out = trace;
  return MK_OK;
}
