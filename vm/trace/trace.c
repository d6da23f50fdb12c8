/* See trace.h; the file is in trace_file.c. */
#include "vm/trace/trace.h"

mk_status mk_trace_new(const mk_program *program, uint32_t sms, mk_trace **out) {
  mk_trace *trace;
  void *bytes;
  size_t length;
  *out = NULL;
  MK_TRY(mk_alloc(1, sizeof *trace, &trace));
  trace->sms = sms;
  mk_status status = mk_alloc((size_t)sms * MK_TRACE_ROLES, sizeof *trace->tracks, &trace->tracks);
  if (status == MK_OK) {
    status = mk_program_serialize(program, &bytes, &length);
    if (status == MK_OK) {
      status = mk_program_parse(bytes, length, &trace->program);
      mk_free(bytes);
    }
  }
  if (status != MK_OK) {
    mk_trace_free(trace);
    return status;
  }
  *out = trace;
  return MK_OK;
}

void mk_trace_free(mk_trace *trace) {
  if (trace == NULL) {
    return;
  }
  for (size_t i = 0; trace->tracks != NULL && i < (size_t)trace->sms * MK_TRACE_ROLES; i++) {
    mk_free(trace->tracks[i].records);
  }
  mk_free(trace->tracks);
  mk_program_free(trace->program);
  mk_free(trace);
}

const char *mk_activity_text(uint32_t activity) {
  static const char *const texts[] = {
#define MK_ACTIVITY(NAME, text, kind, edge) [MK_ACTIVITY_##NAME] = (text),
#include "vm/trace/activities.def"
  };
  return activity < MK_ACTIVITY_COUNT ? texts[activity] : "?";
}

const char *mk_activity_name(uint32_t activity) {
  static const char *const names[] = {
#define MK_ACTIVITY(NAME, text, kind, edge) [MK_ACTIVITY_##NAME] = #NAME,
#include "vm/trace/activities.def"
  };
  return names[activity];
}

const char *mk_activity_edge(uint32_t activity) {
  static const char *const edges[] = {
#define MK_ACTIVITY(NAME, text, kind, edge) [MK_ACTIVITY_##NAME] = (edge),
#include "vm/trace/activities.def"
  };
  return edges[activity];
}

mk_activity_kind mk_activity_kind_of(uint32_t activity) {
  static const mk_activity_kind kinds[] = {
#define MK_ACTIVITY(NAME, text, kind, edge) [MK_ACTIVITY_##NAME] = MK_ACTIVITY_KIND_##kind,
#include "vm/trace/activities.def"
  };
  return kinds[activity];
}

const char *mk_trace_role_name(uint32_t role) {
  return role == MK_TRACE_CONTROLLER ? "controller" : mk_role_name(role);
}
