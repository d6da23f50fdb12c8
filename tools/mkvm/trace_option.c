/* See trace_option.h. */
#include "tools/mkvm/trace_option.h"

#include <stdio.h>

#include "mk_version.h"
#include "tools/mkvm/command.h"

enum { KEY_TRACE = 512, KEY_STEPS, KEY_FROM, KEY_RECORDS, DEFAULT_STEPS = 8, MOST_RECORDS = 1 << 22 };

static const struct argp_option option_table[] = {
    {"trace", KEY_TRACE, "FILE", 0, "Record what every role of every SM does into FILE; `mkvm trace' reads it", 0},
    {"trace-steps", KEY_STEPS, "N", 0, "Steps to record (8)", 0},
    {"trace-from", KEY_FROM, "STEP", 0,
     "First step to record, from 0 (the first that gives a generated token, of the launch that has N from there, or "
     "most); all are of one launch",
     0},
    {"trace-records", KEY_RECORDS, "N", 0,
     "Most records per role and SM; more are counted and dropped (by the program)", 0},
    {0}};

static void keep_command(mk_trace_option *o, int argc, char **argv) {
  size_t used = 0;
  for (int i = 0; i < argc && used < sizeof o->command - 1; i++) {
    int length = snprintf(o->command + used, sizeof o->command - used, "%s%s", i == 0 ? "" : " ", argv[i]);
    used += length < 0 ? 0 : (size_t)length;
  }
}

static error_t parse(int key, char *text, struct argp_state *state) {
  mk_trace_option *o = state->input;
  switch (key) {
    case ARGP_KEY_INIT:
      o->first = MK_FIRST_GENERATED;
      o->steps = DEFAULT_STEPS;
      keep_command(o, state->argc, state->argv);
      return 0;
    case KEY_TRACE:
      o->path = text;
      return 0;
    case KEY_STEPS:
      o->steps = (uint32_t)mk_number(state, "--trace-steps", text, 1, 100000);
      o->refined = true;
      return 0;
    case KEY_FROM:
      o->first = (uint32_t)mk_number(state, "--trace-from", text, 0, 1 << 30);
      o->refined = true;
      return 0;
    case KEY_RECORDS:
      o->records = (uint32_t)mk_number(state, "--trace-records", text, 16, MOST_RECORDS);
      o->refined = true;
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

static const struct argp options = {.options = option_table, .parser = parse};
const struct argp_child mk_traced_options[] = {{&mk_common_argp, 0, NULL, -1}, {&options, 0, "Trace:", 7}, {0}};

mk_trace_window mk_trace_option_window(const mk_trace_option *option) {
  return (mk_trace_window){.first = option->first, .steps = option->steps, .records = option->records};
}

void mk_trace_option_check(const mk_trace_option *option, struct argp_state *state) {
  if (option->path == NULL && option->refined) {
    argp_error(state, "--trace-steps, --trace-from and --trace-records need --trace FILE");
  }
}

void mk_trace_option_begin(const mk_trace_option *option, mk_engine *engine) {
  if (option->path != NULL) {
    mk_trace_window window = mk_trace_option_window(option);
    mk_engine_trace(engine, &window);
  }
}

void mk_trace_option_facts(const mk_trace_option *option, mk_trace *trace) {
  snprintf(trace->facts.version, sizeof trace->facts.version, "%s", MK_VERSION_FULL);
  snprintf(trace->facts.command, sizeof trace->facts.command, "%s", option->command);
  if (mk_is_cuda(trace->facts.device)) {
    mk_driver_version(trace->facts.driver, sizeof trace->facts.driver);
  }
}

mk_status mk_trace_option_save(const mk_trace_option *option, const mk_trace *trace) {
  uint64_t records = 0, dropped = 0;
  for (size_t t = 0; t < (size_t)trace->sms * MK_TRACE_ROLES; t++) {
    records += trace->tracks[t].count;
    dropped += trace->tracks[t].dropped;
  }
  MK_TRY(mk_trace_save(trace, option->path));
  fprintf(stderr, "trace: steps %u to %u, %llu records, %llu dropped: %s\n", trace->first_step,
          trace->first_step + trace->steps - 1, (unsigned long long)records, (unsigned long long)dropped, option->path);
  return MK_OK;
}

/* `taken`: whether there is a trace, which is freed. */
static mk_status end(const mk_trace_option *option, mk_status taken, mk_trace *trace) {
  if (taken != MK_OK) {
    return mk_error_prefix(taken, "--trace");
  }
  mk_trace_option_facts(option, trace);
  mk_status status = mk_trace_option_save(option, trace);
  mk_trace_free(trace);
  return status;
}

mk_status mk_trace_option_end(const mk_trace_option *option, mk_engine *engine) {
  mk_trace *trace = NULL;
  if (option->path == NULL) {
    return MK_OK;
  }
  mk_status taken = mk_engine_trace_take(engine, &trace);
  return end(option, taken, trace);
}

mk_status mk_trace_option_end_recording(const mk_trace_option *option, mk_recording *recording,
                                        const mk_program *program) {
  mk_trace *trace = NULL;
  if (option->path == NULL) {
    return MK_OK;
  }
  mk_status taken = mk_recording_take(recording, &trace);
  if (taken == MK_OK) {
    snprintf(trace->facts.device, sizeof trace->facts.device, "cpu");
    snprintf(trace->facts.model, sizeof trace->facts.model, "%s", program->model);
  }
  return end(option, taken, trace);
}
