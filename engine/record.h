/* The recorder of machines at work: which of their launches is recorded, and what is kept of it. An engine has a
 * mk_recording for all of its machines (mk_engine_trace); who has a machine without an engine makes one of his own.
 *
 * Ownership: a mk_recording owns the trace that it keeps until that is taken. One thread. Failure: that of the machine,
 * and MK_ERR_USAGE where no launch came to the window. */
#ifndef MK_ENGINE_RECORD_H
#define MK_ENGINE_RECORD_H

#include "vm/cpu/machine.h"
#include "vm/gpu/machine.h"

#define MK_FIRST_GENERATED UINT32_MAX

/* Which steps are recorded. All belong to one launch, the one in which the first of them is. */
typedef struct mk_trace_window {
  /* From 0, counted through all launches from the first on that the recording was told of; MK_FIRST_GENERATED: the
   * first of a launch that computes a generated token, in the first launch that has all `steps` from there, or else
   * most of them. */
  uint32_t first;
  uint32_t steps;   /* at most; 0: the recorder is off */
  uint32_t records; /* how many a role of an SM may keep; 0: mk_trace_records */
} mk_trace_window;

/* How many records a role may make in `steps` steps of this program: a generous estimate, within what memory allows. */
uint32_t mk_trace_records(const mk_program *program, uint32_t steps);

typedef struct mk_recording {
  mk_trace_window window;
  uint64_t steps;  /* of all launches so far: whoever makes them counts */
  mk_trace *trace; /* NULL: none of these launches had the first step of the window */
} mk_recording;

/* A launch that is to begin. */
typedef struct mk_recorded_launch {
  const mk_program *program;
  mk_cpu *cpu; /* the machine is this one or `gpu`; the other is NULL */
  mk_gpu *gpu;
  uint32_t steps;
  uint32_t chooses; /* the first step of it that computes a generated token; `steps`: none does */
} mk_recorded_launch;

/* Before a launch: turns the machine's recorder on where the window is in it. *records: it was. */
mk_status mk_recording_start(const mk_recording *r, const mk_recorded_launch *launch, bool *records);
/* After the launch, of which `status` came: if it was recorded, turns the recorder off, and keeps what it recorded
 * where that is more than what was kept before. Returns the launch's failure, or else its own. */
mk_status mk_recording_stop(mk_recording *r, const mk_recorded_launch *launch, bool records, mk_status status);
/* What was recorded, now the caller's, without the facts that no machine knows (mk_trace.facts). */
mk_status mk_recording_take(mk_recording *r, mk_trace **out);
/* Forgets what was recorded; later launches are counted from 0. window NULL: the recorder is off. */
void mk_recording_reset(mk_recording *r, const mk_trace_window *window);

#endif
