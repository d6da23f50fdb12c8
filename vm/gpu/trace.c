/* The recorder's host side: room for the notes, records made from them, and one time made from the ticks of 132 clocks.
 * See machine.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "vm/gpu/machine_internal.h"

static uint32_t turns(uint32_t notes) { return (notes + MK_GPU_TRACK_TURN - 1) / MK_GPU_TRACK_TURN; }

static size_t track_count(const mk_gpu *gpu) { return gpu->program->queue_count * MK_TRACE_ROLES; }

static uint64_t note_bytes(const mk_gpu *gpu, uint32_t capacity) {
  return (uint64_t)track_count(gpu) * capacity * sizeof(mk_gpu_note);
}

static uint64_t sm_bytes(const mk_gpu *gpu) { return gpu->program->queue_count * sizeof(mk_trace_sm); }

enum { BEACON_BYTES = 2 * sizeof(uint64_t) }; /* after the SMs' part */

mk_status mk_gpu_trace_off(mk_gpu *gpu) {
  MK_TRY(mk_gpu_enter(gpu));
  if (gpu->trace != 0) {
    MK_TRY(mk_gpu_check(gpu, gpu->driver->memory_free(gpu->trace), "freeing the trace's memory"));
  }
  gpu->trace = 0;
  gpu->params.trace = (mk_gpu_trace){0};
  return MK_OK;
}

mk_status mk_gpu_trace_on(mk_gpu *gpu, uint32_t first_step, uint32_t steps, uint32_t capacity) {
  MK_TRY(mk_gpu_trace_off(gpu));
  MK_TRY(mk_gpu_need_recording(gpu));
  capacity = turns(capacity) * MK_GPU_TRACK_TURN;
  MK_TRY(mk_gpu_check(gpu,
                      gpu->driver->memory_new(&gpu->trace, note_bytes(gpu, capacity) + sm_bytes(gpu) + BEACON_BYTES),
                      "allocating the trace"));
  gpu->params.trace =
      (mk_gpu_trace){.notes = (void *)(uintptr_t)gpu->trace,
                     .sms = (void *)(uintptr_t)(gpu->trace + note_bytes(gpu, capacity)),
                     .beacons = (void *)(uintptr_t)(gpu->trace + note_bytes(gpu, capacity) + sm_bytes(gpu)),
                     .capacity = capacity,
                     .stride = (uint32_t)(track_count(gpu) * MK_GPU_TRACK_TURN),
                     .first_epoch = first_step,
                     .epochs = steps};
  return MK_OK;
}

mk_status mk_gpu_trace_prepare(mk_gpu *gpu) {
  const mk_gpu_trace *trace = &gpu->params.trace;
  if (trace->capacity == 0) {
    return MK_OK;
  }
  return mk_gpu_check(
      gpu, gpu->driver->fill_async((mk_cu_address)(uintptr_t)trace->sms, 0, sm_bytes(gpu) + BEACON_BYTES, gpu->stream),
      "preparing the trace");
}

/* Turns a time of an SM's clock into one of block 0's: by the line through both looks at the beacon, or, where there
 * was no second look, by the difference at the first. */
static double to_reference(const mk_trace_sm *sm, uint64_t ticks) {
  double since = (double)(int64_t)(ticks - sm->seen_at[0]), drift = 0;
  if (sm->looks[1] != 0 && sm->seen_at[1] > sm->seen_at[0]) {
    drift = (double)(sm->offset[1] - sm->offset[0]) / (double)(sm->seen_at[1] - sm->seen_at[0]);
  }
  return (double)(int64_t)(sm->seen_at[0] - (uint64_t)sm->offset[0]) + since * (1 - drift);
}

static mk_status nanoseconds_per_tick(const mk_gpu_clocks *clocks, double *rate) {
  if (clocks->ticks[1] <= clocks->ticks[0] || clocks->nanoseconds[1] <= clocks->nanoseconds[0]) {
    return mk_error(MK_ERR_DEVICE, "the kernel left no clock readings for the trace");
  }
  *rate = (double)(clocks->nanoseconds[1] - clocks->nanoseconds[0]) / (double)(clocks->ticks[1] - clocks->ticks[0]);
  return MK_OK;
}

/* Between two boundaries, which hold the whole time, a note's time is that of the note before and what has passed
 * since. That is less than 2^32 ticks, two seconds, since a wait of that length ends the launch. */
uint32_t mk_gpu_records_of(const mk_gpu_note *notes, size_t stride, uint32_t count, mk_trace_record *records) {
  uint64_t time = 0;
  uint32_t uid = 0, made = 0;
  uint8_t epoch = 0;
  for (uint32_t i = 0; i < count; i++) {
    const mk_gpu_note *note = &notes[i / MK_GPU_TRACK_TURN * stride + i % MK_GPU_TRACK_TURN];
    if (note->activity == MK_ACTIVITY_BOUNDARY) {
      time = (uint64_t)note->since << 32 | note->now;
      epoch = (uint8_t)note->uid;
      uid = 0;
      records[made++] = (mk_trace_record){.time = time, .activity = MK_ACTIVITY_BOUNDARY, .epoch = epoch};
      continue;
    }
    time += note->now - (uint32_t)time;
    uid = note->activity == MK_ACTIVITY_WORK ? note->uid : uid;
    uint32_t waited = note->records == 2 ? note->now - note->since : 0;
    records[made++] = (mk_trace_record){
        .time = time - waited, .uid = uid, .activity = note->activity, .epoch = epoch, .edge = note->edge};
    if (note->records == 2) {
      records[made++] = (mk_trace_record){.time = time, .uid = uid, .activity = MK_ACTIVITY_WORK, .epoch = epoch};
    }
  }
  return made;
}

static uint32_t notes_kept(const mk_gpu *gpu, const mk_trace_sm *sms, size_t track) {
  uint32_t all = sms[track / MK_TRACE_ROLES].notes[track % MK_TRACE_ROLES], capacity = gpu->params.trace.capacity;
  return all < capacity ? all : capacity;
}

/* `notes`: of all tracks, as the GPU has them. */
static mk_status take_track(const mk_gpu *gpu, const mk_trace_sm *sms, size_t at, const mk_gpu_note *notes, double rate,
                            mk_trace_track *track) {
  uint32_t kept = notes_kept(gpu, sms, at);
  const mk_trace_sm *sm = &sms[at / MK_TRACE_ROLES];
  if (kept != 0) {
    MK_TRY(mk_alloc(2 * (size_t)kept, sizeof *track->records, &track->records));
    track->count = mk_gpu_records_of(notes + at * MK_GPU_TRACK_TURN, gpu->params.trace.stride, kept, track->records);
  }
  track->dropped = sm->records[at % MK_TRACE_ROLES] - track->count;
  for (uint32_t i = 0; i < track->count; i++) {
    mk_trace_record *record = &track->records[i];
    double reference = to_reference(sm, record->time) * rate;
    uint64_t time = reference < 0 ? 0 : (uint64_t)llround(reference);
    record->time = i != 0 && time < track->records[i - 1].time ? track->records[i - 1].time : time;
  }
  return MK_OK;
}

/* Copies the notes turn by turn, as far as the longest track goes. */
static mk_status take_notes(const mk_gpu *gpu, const mk_trace_sm *sms, mk_gpu_note **notes) {
  uint32_t most = 0;
  for (size_t t = 0; t < track_count(gpu); t++) {
    uint32_t kept = notes_kept(gpu, sms, t);
    most = kept > most ? kept : most;
  }
  size_t count = (size_t)turns(most) * gpu->params.trace.stride;
  MK_TRY(mk_alloc(count, sizeof **notes, notes));
  return mk_gpu_copy_out(gpu, *notes, (mk_cu_address)(uintptr_t)gpu->params.trace.notes, count * sizeof **notes,
                         "reading the trace");
}

static mk_status take_tracks(const mk_gpu *gpu, const mk_trace_sm *sms, const mk_gpu_note *notes, mk_trace *trace) {
  double rate = 0;
  MK_TRY(nanoseconds_per_tick(&gpu->ended.clocks, &rate));
  for (size_t t = 0; t < track_count(gpu); t++) {
    if (gpu->program->queues[t / MK_TRACE_ROLES].count != 0 && sms[t / MK_TRACE_ROLES].looks[0] == 0) {
      return mk_error(MK_ERR_DEVICE, "SM %zu never saw the beacon that its clock is set by", t / MK_TRACE_ROLES);
    }
    MK_TRY(take_track(gpu, sms, t, notes, rate, &trace->tracks[t]));
  }
  return MK_OK;
}

/* Makes the time of the first record of all 0. */
static void start_at_zero(mk_trace *trace) {
  uint64_t first = UINT64_MAX;
  size_t tracks = (size_t)trace->sms * MK_TRACE_ROLES;
  for (size_t t = 0; t < tracks; t++) {
    if (trace->tracks[t].count != 0 && trace->tracks[t].records[0].time < first) {
      first = trace->tracks[t].records[0].time;
    }
  }
  for (size_t t = 0; t < tracks; t++) {
    for (uint32_t i = 0; i < trace->tracks[t].count; i++) {
      trace->tracks[t].records[i].time -= first;
    }
  }
}

/* The line through two looks is off by some microseconds, since the clocks' rates wander. All SMs pass a token boundary
 * together, after the last candidate, so their times of it are moved to the median SM's; between two boundaries the
 * shift changes evenly. */
typedef struct boundaries {
  uint32_t count;   /* of each SM that takes part */
  uint64_t *times;  /* [SMs][count]; all 0 for an SM without a queue */
  double *shifts;   /* [SMs][count] */
  uint64_t *sorted; /* [SMs] */
} boundaries;

static void free_boundaries(boundaries *b) {
  mk_free(b->times);
  mk_free(b->shifts);
  mk_free(b->sorted);
}

static uint32_t find_boundaries(const mk_trace_track *track, uint64_t *times, uint32_t most) {
  uint32_t count = 0;
  for (uint32_t i = 0; i < track->count && count < most; i++) {
    if (track->records[i].activity == MK_ACTIVITY_BOUNDARY) {
      times[count++] = track->records[i].time;
    }
  }
  return count;
}

static int by_time(const void *a, const void *b) {
  uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
  return (x > y) - (x < y);
}

/* *drift: the most that an SM's shift changes in one step. */
static void measure_shifts(const mk_trace *trace, boundaries *b, double *drift) {
  *drift = 0;
  for (uint32_t k = 0; k < b->count; k++) {
    uint32_t used = 0;
    for (uint32_t sm = 0; sm < trace->sms; sm++) {
      if (mk_trace_track_of(trace, sm, MK_ROLE_CONSUMER)->count != 0) {
        b->sorted[used++] = b->times[(size_t)sm * b->count + k];
      }
    }
    qsort(b->sorted, used, sizeof *b->sorted, by_time);
    for (uint32_t sm = 0; used != 0 && sm < trace->sms; sm++) {
      uint64_t median = b->sorted[used / 2];
      double *shift = &b->shifts[(size_t)sm * b->count + k];
      *shift = (double)median - (double)b->times[(size_t)sm * b->count + k];
      if (k != 0 && mk_trace_track_of(trace, sm, MK_ROLE_CONSUMER)->count != 0) {
        *drift = fmax(*drift, fabs(*shift - shift[-1]));
      }
    }
  }
}

static double shift_at(const boundaries *b, uint32_t sm, uint64_t time) {
  const uint64_t *times = b->times + (size_t)sm * b->count;
  const double *shifts = b->shifts + (size_t)sm * b->count;
  uint32_t k = 0;
  while (k + 1 < b->count && times[k + 1] <= time) {
    k++;
  }
  if (time <= times[0] || k + 1 == b->count || times[k + 1] == times[k]) {
    return shifts[time <= times[0] ? 0 : k];
  }
  double part = (double)(time - times[k]) / (double)(times[k + 1] - times[k]);
  return shifts[k] + part * (shifts[k + 1] - shifts[k]);
}

static void shift_track(const boundaries *b, uint32_t sm, mk_trace_track *track) {
  uint64_t last = 0;
  for (uint32_t i = 0; i < track->count; i++) {
    double time = (double)track->records[i].time + shift_at(b, sm, track->records[i].time);
    uint64_t moved = time < 0 ? 0 : (uint64_t)llround(time);
    last = moved > last ? moved : last;
    track->records[i].time = last;
  }
}

/* Gives the drift within a step, which bounds how far apart two clocks can still be; 0 when no track holds all
 * boundaries. */
static mk_status align_at_boundaries(mk_trace *trace, double *drift) {
  boundaries b = {.count = trace->steps + 1};
  bool whole = true;
  *drift = 0;
  mk_status status = mk_alloc((size_t)trace->sms * b.count, sizeof *b.times, &b.times);
  status = status != MK_OK ? status : mk_alloc((size_t)trace->sms * b.count, sizeof *b.shifts, &b.shifts);
  status = status != MK_OK ? status : mk_alloc(trace->sms, sizeof *b.sorted, &b.sorted);
  if (status == MK_OK) {
    for (uint32_t sm = 0; sm < trace->sms; sm++) {
      const mk_trace_track *track = mk_trace_track_of(trace, sm, MK_ROLE_CONSUMER);
      whole &= track->count == 0 || find_boundaries(track, b.times + (size_t)sm * b.count, b.count) == b.count;
    }
    if (whole) {
      measure_shifts(trace, &b, drift);
      for (uint32_t t = 0; t < trace->sms * MK_TRACE_ROLES; t++) {
        shift_track(&b, t / MK_TRACE_ROLES, &trace->tracks[t]);
      }
    }
  }
  free_boundaries(&b);
  return status;
}

static mk_status take(mk_gpu *gpu, mk_trace *trace, const mk_trace_sm *sms) {
  mk_gpu_note *notes = NULL;
  mk_status status = take_notes(gpu, sms, &notes);
  status = status != MK_OK ? status : take_tracks(gpu, sms, notes, trace);
  mk_free(notes);
  MK_TRY(status);
  trace->first_step = gpu->params.trace.first_epoch;
  trace->steps = gpu->params.trace.epochs;
  if (trace->first_step + trace->steps > gpu->steps) {
    trace->steps = gpu->steps > trace->first_step ? gpu->steps - trace->first_step : 0;
  }
  MK_TRY(align_at_boundaries(trace, &trace->alignment_ns));
  start_at_zero(trace);
  trace->first_position = gpu->last_position + trace->first_step;
  trace->milliseconds = gpu->time_ms;
  trace->launch_steps = gpu->steps;
  return MK_OK;
}

mk_status mk_gpu_trace_take(mk_gpu *gpu, mk_trace **out) {
  *out = NULL;
  if (gpu->params.trace.capacity == 0) {
    return mk_error(MK_ERR_USAGE, "the recorder is off");
  }
  MK_TRY(mk_gpu_enter(gpu));
  mk_trace_sm *sms;
  mk_trace *trace = NULL;
  MK_TRY(mk_alloc(gpu->program->queue_count, sizeof *sms, &sms));
  mk_status status =
      mk_gpu_copy_out(gpu, sms, (mk_cu_address)(uintptr_t)gpu->params.trace.sms, sm_bytes(gpu), "reading the trace");
  if (status == MK_OK) {
    status = mk_trace_new(gpu->program, (uint32_t)gpu->program->queue_count, &trace);
  }
  if (status == MK_OK) {
    status = take(gpu, trace, sms);
  }
  mk_free(sms);
  if (status != MK_OK) {
    mk_trace_free(trace);
    return status;
  }
  *out = trace;
  return MK_OK;
}
