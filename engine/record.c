/* See record.h. */
#include "engine/record.h"

uint32_t mk_trace_records(const mk_program *program, uint32_t steps) {
  enum { LEAST = 16384, MOST = 65536, PER_INSTRUCTION = 8, PER_PAGE = 2, MOST_PAGES = 4096 };
  uint64_t most = 0;
  for (size_t q = 0; q < program->queue_count; q++) {
    uint64_t records = 0, pages = 0;
    for (uint32_t i = 0; i < program->queues[q].count; i++) {
      records += PER_INSTRUCTION;
      pages += program->instructions[program->queues[q].first + i].pages;
    }
    /* Pages of KV are stated for the largest position, which few runs are at. */
    records += PER_PAGE * (pages < MOST_PAGES ? pages : MOST_PAGES);
    most = records > most ? records : most;
  }
  most *= steps;
  return most < LEAST ? LEAST : most > MOST ? MOST : (uint32_t)most;
}

static uint32_t steps_kept(const mk_recording *r) { return r->trace == NULL ? 0 : r->trace->steps; }

/* The first step of the window, counted from the launch's first; launch->steps: nothing of this launch is recorded. */
static uint32_t first_recorded(const mk_recording *r, const mk_recorded_launch *launch) {
  const mk_trace_window *w = &r->window;
  const uint32_t have = steps_kept(r);
  if (w->steps == 0) {
    return launch->steps;
  }
  if (w->first == MK_FIRST_GENERATED) {
    const bool more = have < w->steps && launch->steps - launch->chooses > have;
    return more ? launch->chooses : launch->steps;
  }
  const bool here = have == 0 && w->first >= r->steps && w->first - r->steps < launch->steps;
  return here ? (uint32_t)(w->first - r->steps) : launch->steps;
}

mk_status mk_recording_start(const mk_recording *r, const mk_recorded_launch *launch, bool *records) {
  const mk_trace_window *w = &r->window;
  const uint32_t first = first_recorded(r, launch);
  *records = first != launch->steps;
  if (!*records) {
    return MK_OK;
  }
  const uint32_t most = w->records != 0 ? w->records : mk_trace_records(launch->program, w->steps);
  return launch->gpu != NULL ? mk_gpu_trace_on(launch->gpu, first, w->steps, most)
                             : mk_cpu_trace_on(launch->cpu, first, w->steps, most);
}

/* Takes what the launch recorded, and turns the recorder off. */
static mk_status take_recorded(const mk_recorded_launch *launch, mk_trace **trace) {
  if (launch->gpu == NULL) {
    mk_status status = mk_cpu_trace_take(launch->cpu, trace);
    mk_cpu_trace_off(launch->cpu);
    return status;
  }
  mk_status status = mk_gpu_trace_take(launch->gpu, trace), off = mk_gpu_trace_off(launch->gpu);
  return status != MK_OK ? status : off;
}

mk_status mk_recording_stop(mk_recording *r, const mk_recorded_launch *launch, bool records, mk_status status) {
  mk_trace *trace = NULL;
  if (!records) {
    return status;
  }
  if (status != MK_OK) {
    if (launch->cpu != NULL) { /* a lost GPU takes no calls, and mk_gpu_trace_on frees what is left */
      mk_cpu_trace_off(launch->cpu);
    }
    return status;
  }
  status = take_recorded(launch, &trace);
  if (trace != NULL && trace->steps > steps_kept(r)) {
    mk_trace *before = r->trace;
    r->trace = trace;
    trace = before;
  }
  mk_trace_free(trace);
  return status;
}

mk_status mk_recording_take(mk_recording *r, mk_trace **out) {
  const unsigned long long steps = (unsigned long long)r->steps;
  *out = r->trace;
  r->trace = NULL;
  if (*out != NULL) {
    return MK_OK;
  }
  return r->window.first == MK_FIRST_GENERATED
             ? mk_error(MK_ERR_USAGE, "nothing was recorded: of %llu steps none computed a token that was not given",
                        steps)
             : mk_error(MK_ERR_USAGE, "nothing was recorded: of %llu steps none was step %u", steps, r->window.first);
}

void mk_recording_reset(mk_recording *r, const mk_trace_window *window) {
  mk_trace_free(r->trace);
  *r = (mk_recording){.window = window == NULL ? (mk_trace_window){0} : *window};
}
