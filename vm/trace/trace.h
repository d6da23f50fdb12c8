/* A trace: what every role of every SM did in some steps of a launch, with the program that it did it for.
 *
 * Ownership: a mk_trace owns all of it, the program included, until mk_trace_free. One thread at a time.
 * Failure: MK_ERR_FILE for a file that is not a complete trace of this version, with the place; MK_ERR_RUNTIME for
 * memory and I/O. docs/TRACE.md states the format of the file. */
#ifndef MK_TRACE_H
#define MK_TRACE_H

#include "vm/program/program.h"
#include "vm/trace/activity.h"

typedef struct mk_trace_track {
  mk_trace_record *records; /* by time; each lasts to the next, the last one is a BOUNDARY and lasts for nothing */
  uint32_t count, dropped;  /* dropped: came when the track was full */
} mk_trace_track;

/* Where and from what a trace was made; texts are UTF-8 and may be empty. */
typedef struct mk_trace_facts {
  char model[96], device[96], driver[32], version[48], command[512];
} mk_trace_facts;

typedef struct mk_trace {
  mk_trace_facts facts;
  mk_program *program;
  uint32_t sms;
  uint32_t first_position;    /* of the first recorded step */
  uint32_t first_step, steps; /* recorded steps of the launch */
  double alignment_ns;        /* measured: the most that one SM's clock drifts against the others in a step */
  double milliseconds;        /* of the whole launch, by events around it; its steps: */
  uint32_t launch_steps;
  mk_trace_track *tracks; /* [sms][MK_TRACE_ROLES] */
} mk_trace;

/* An empty trace of that many SMs with a copy of the program. */
mk_status mk_trace_new(const mk_program *program, uint32_t sms, mk_trace **out);
void mk_trace_free(mk_trace *trace); /* NULL is fine */

static inline mk_trace_track *mk_trace_track_of(const mk_trace *trace, uint32_t sm, uint32_t role) {
  return &trace->tracks[(size_t)sm * MK_TRACE_ROLES + role];
}

/* The kinds of vm/trace/activities.def, which says what they mean. */
typedef enum mk_activity_kind {
  MK_ACTIVITY_KIND_WORK,
  MK_ACTIVITY_KIND_WAIT,
  MK_ACTIVITY_KIND_FEED,
  MK_ACTIVITY_KIND_RING,
  MK_ACTIVITY_KIND_HAND,
  MK_ACTIVITY_KIND_IDLE,
  MK_ACTIVITY_KIND_COUNT
} mk_activity_kind;

/* "work", "wait for a value", ...; "?" for a number that is none. */
const char *mk_activity_text(uint32_t activity);
/* Of an activity below MK_ACTIVITY_COUNT: "WORK", "STAMP", ...; what its edge names, as activities.def states it; its
 * kind. */
const char *mk_activity_name(uint32_t activity);
const char *mk_activity_edge(uint32_t activity);
mk_activity_kind mk_activity_kind_of(uint32_t activity);
/* "loader", "consumer", "storer", "controller". */
const char *mk_trace_role_name(uint32_t role);

/* The .mktrace file. Save writes a temporary file and renames it; parse takes any bytes. */
mk_status mk_trace_save(const mk_trace *trace, const char *path);
mk_status mk_trace_load(const char *path, mk_trace **out);
mk_status mk_trace_parse(const void *data, size_t length, mk_trace **out);
mk_status mk_trace_serialize(const mk_trace *trace, void **data, size_t *length); /* mk_free(*data) */

#endif
