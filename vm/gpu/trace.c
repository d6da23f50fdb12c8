/* The recorder's host side: room for the notes, records made from them, and one time made from the ticks of 132 clocks.
 * See machine.h. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "vm/gpu/group_internal.h"

static uint32_t turns(uint32_t notes) { return (notes + MK_GPU_TRACK_TURN - 1) / MK_GPU_TRACK_TURN; }

/* Of a rank, as all that follows but what callers have. */
static size_t track_count(const mk_gpu *gpu) { return (size_t)gpu->queues * MK_TRACE_ROLES; }

static uint64_t note_bytes(const mk_gpu *gpu, uint32_t capacity) {
  return (uint64_t)track_count(gpu) * capacity * sizeof(mk_gpu_note);
}

static uint64_t sm_bytes(const mk_gpu *gpu) { return gpu->queues * sizeof(mk_trace_sm); }

/* After the SMs' part: beacons, and how the rank's clock compares with rank 0's. */
enum { OFFSET_AT = 2 * sizeof(uint64_t), BEACON_BYTES = OFFSET_AT + sizeof(mk_gpu_clock_offset) };
MK_STATIC_ASSERT(offsetof(mk_gpu_control, abort) + MK_GPU_CLOCK_WORDS_AFTER == MK_GPU_CONTROL_STRIDE &&
                     sizeof(mk_gpu_clock_words) <= MK_GPU_CONTROL_STRIDE,
                 "the words of several ranks have the place of the second control");

static mk_status turn_off(mk_gpu *gpu) {
  MK_TRY(mk_gpu_enter(gpu));
  if (gpu->trace != 0) {
    MK_TRY(mk_gpu_check(gpu, gpu->driver->memory_free(gpu->trace), "freeing the trace's memory"));
  }
  gpu->trace = 0;
  gpu->params.trace = (mk_gpu_trace){0};
  return MK_OK;
}

mk_status mk_gpu_trace_off(mk_gpu *gpu) {
  for (uint32_t r = 0; r < gpu->here; r++) {
    MK_TRY(mk_gpu_of_rank(gpu->of_rank[r], turn_off(gpu->of_rank[r])));
  }
  return MK_OK;
}

static mk_status turn_on(mk_gpu *gpu, uint32_t first_step, uint32_t steps, uint32_t capacity) {
  MK_TRY(mk_gpu_enter(gpu));
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

mk_status mk_gpu_trace_on(mk_gpu *gpu, uint32_t first_step, uint32_t steps, uint32_t capacity) {
  mk_status status = mk_gpu_trace_off(gpu);
  for (uint32_t r = 0; r < gpu->here && status == MK_OK; r++) {
    status = mk_gpu_of_rank(gpu->of_rank[r], turn_on(gpu->of_rank[r], first_step, steps, capacity));
  }
  if (status != MK_OK) {
    const mk_group_kept kept = mk_group_keep_message();
    (void)mk_gpu_trace_off(gpu);
    return mk_error(status, "%s", kept.text);
  }
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

/* How far a clock is ahead of another one, at the start of a launch and at its end. */
typedef struct clock_line {
  uint64_t seen_at[2];
  int64_t offset[2];
  bool known[2];
} clock_line;

static clock_line line_of_sm(const mk_trace_sm *sm) {
  return (clock_line){.seen_at = {sm->seen_at[0], sm->seen_at[1]},
                      .offset = {sm->offset[0], sm->offset[1]},
                      .known = {sm->looks[0] != 0, sm->looks[1] != 0}};
}

static clock_line line_of_rank(const mk_gpu_clock_offset *rank) {
  return (clock_line){.seen_at = {rank->seen_at[0], rank->seen_at[1]},
                      .offset = {rank->offset[0], rank->offset[1]},
                      .known = {rank->round[0] != 0, rank->round[1] != 0}};
}

/* Turns a time of the first clock into one of the other: by the line through both looks, or, where there was no second
 * look, by the difference at the first. */
static double to_reference(const clock_line *line, double ticks) {
  double since = ticks - (double)line->seen_at[0], drift = 0;
  if (line->known[1] && line->seen_at[1] > line->seen_at[0]) {
    drift = (double)(line->offset[1] - line->offset[0]) / (double)(line->seen_at[1] - line->seen_at[0]);
  }
  return (double)(int64_t)(line->seen_at[0] - (uint64_t)line->offset[0]) + since * (1 - drift);
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

/* What a rank leaves; `rate` is of rank 0's clock. */
typedef struct taken {
  mk_trace_sm *sms;
  mk_gpu_note *notes; /* of all its tracks, as the GPU has them */
  mk_gpu_clock_offset offset;
  double rate;
} taken;

static mk_status take_track(const mk_gpu *gpu, const taken *from, size_t at, mk_trace_track *track) {
  uint32_t kept = notes_kept(gpu, from->sms, at);
  const mk_trace_sm *sm = &from->sms[at / MK_TRACE_ROLES];
  const clock_line own = line_of_sm(sm), rank = line_of_rank(&from->offset);
  if (kept != 0) {
    MK_TRY(mk_alloc(2 * (size_t)kept, sizeof *track->records, &track->records));
    track->count =
        mk_gpu_records_of(from->notes + at * MK_GPU_TRACK_TURN, gpu->params.trace.stride, kept, track->records);
  }
  track->dropped = sm->records[at % MK_TRACE_ROLES] - track->count;
  for (uint32_t i = 0; i < track->count; i++) {
    mk_trace_record *record = &track->records[i];
    double reference = to_reference(&own, (double)record->time);
    reference = (gpu->rank == 0 ? reference : to_reference(&rank, reference)) * from->rate;
    uint64_t time = reference < 0 ? 0 : (uint64_t)llround(reference);
    record->time = i != 0 && time < track->records[i - 1].time ? track->records[i - 1].time : time;
  }
  return MK_OK;
}

/* Copies the notes turn by turn, as far as the longest track goes. */
static mk_status take_notes(const mk_gpu *gpu, taken *from) {
  uint32_t most = 0;
  for (size_t t = 0; t < track_count(gpu); t++) {
    uint32_t kept = notes_kept(gpu, from->sms, t);
    most = kept > most ? kept : most;
  }
  size_t count = (size_t)turns(most) * gpu->params.trace.stride;
  MK_TRY(mk_alloc(count, sizeof *from->notes, &from->notes));
  return mk_gpu_copy_out(gpu, from->notes, (mk_cu_address)(uintptr_t)gpu->params.trace.notes,
                         count * sizeof *from->notes, "reading the trace");
}

static mk_status take_tracks(const mk_gpu *gpu, const taken *from, mk_trace *trace) {
  const size_t first = (size_t)gpu->rank * gpu->queues;
  for (size_t t = 0; t < track_count(gpu); t++) {
    const size_t sm = t / MK_TRACE_ROLES;
    if (gpu->program->queues[first + sm].count != 0 && from->sms[sm].looks[0] == 0) {
      return mk_error(MK_ERR_DEVICE, "SM %zu never saw the beacon that its clock is set by", sm);
    }
    MK_TRY(take_track(gpu, from, t, &trace->tracks[first * MK_TRACE_ROLES + t]));
  }
  return MK_OK;
}

/* *apart: nanoseconds within which this rank's clock was seen to agree with rank 0's. */
static mk_status take_rank(const mk_gpu *gpu, taken *from, mk_trace *trace, double *apart) {
  const mk_cu_address sms = (mk_cu_address)(uintptr_t)gpu->params.trace.sms;
  MK_TRY(mk_gpu_enter(gpu));
  MK_TRY(mk_alloc(gpu->queues, sizeof *from->sms, &from->sms));
  MK_TRY(mk_gpu_copy_out(gpu, from->sms, sms, sm_bytes(gpu), "reading the trace"));
  MK_TRY(
      mk_gpu_copy_out(gpu, &from->offset, sms + sm_bytes(gpu) + OFFSET_AT, sizeof from->offset, "reading the trace"));
  if (gpu->rank != 0 && from->offset.round[0] == 0) {
    return mk_error(MK_ERR_DEVICE, "rank 0 never told its time, by which this rank's clock is set");
  }
  *apart = fmax(*apart, (double)from->offset.round[0] / 2 * from->rate);
  MK_TRY(take_notes(gpu, from));
  return take_tracks(gpu, from, trace);
}

static mk_status take_ranks(mk_gpu *gpu, mk_trace *trace, double *apart) {
  double rate = 0;
  *apart = 0;
  MK_TRY(nanoseconds_per_tick(&gpu->ended.clocks, &rate));
  for (uint32_t r = 0; r < gpu->here; r++) {
    taken from = {.rate = rate};
    const mk_status status = mk_gpu_of_rank(gpu->of_rank[r], take_rank(gpu->of_rank[r], &from, trace, apart));
    mk_free(from.sms);
    mk_free(from.notes);
    MK_TRY(status);
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

/* All SMs of a rank pass a boundary together; those of another one when the last candidate has come to them, too, which
 * takes no longer than half the way there and back. */
static mk_status take(mk_gpu *gpu, mk_trace *trace) {
  double apart;
  MK_TRY(take_ranks(gpu, trace, &apart));
  trace->first_step = gpu->params.trace.first_epoch;
  trace->steps = gpu->params.trace.epochs;
  if (trace->first_step + trace->steps > gpu->steps) {
    trace->steps = gpu->steps > trace->first_step ? gpu->steps - trace->first_step : 0;
  }
  MK_TRY(align_at_boundaries(trace, &trace->alignment_ns));
  trace->alignment_ns += apart;
  start_at_zero(trace);
  trace->first_position = gpu->last_position + trace->first_step;
  trace->milliseconds = gpu->time_ms;
  trace->launch_steps = gpu->steps;
  return MK_OK;
}

mk_status mk_gpu_trace_take(mk_gpu *gpu, mk_trace **out) {
  mk_trace *trace = NULL;
  *out = NULL;
  if (gpu->params.trace.capacity == 0) {
    return mk_error(MK_ERR_USAGE, "the recorder is off");
  }
  MK_TRY(mk_trace_new(gpu->program, (uint32_t)gpu->program->queue_count, &trace));
  const mk_status status = take(gpu, trace);
  if (status != MK_OK) {
    mk_trace_free(trace);
    return status;
  }
  *out = trace;
  return MK_OK;
}
