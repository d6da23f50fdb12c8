/* The options --trace, --trace-steps, --trace-from and --trace-records that run and bench share: an argp child, and
 * what it takes to record with them and save, with an engine or without one. One thread. Failure: MK_ERR_USAGE, or that
 * of the machine and the file. */
#ifndef MK_TRACE_OPTION_H
#define MK_TRACE_OPTION_H

#include <argp.h>

#include "engine/engine.h"

typedef struct mk_trace_option {
  const char *path; /* NULL: no trace is asked for */
  uint32_t first, steps, records;
  bool refined; /* one of the other three flags was given */
  char command[512];
} mk_trace_option;

/* -h, --help and the trace options: the children of an argp whose ARGP_KEY_INIT sets child_inputs[1] to a zeroed
 * mk_trace_option. */
extern const struct argp_child mk_traced_options[];

mk_trace_window mk_trace_option_window(const mk_trace_option *option);
/* Ends the command where one of the other three is given without --trace. */
void mk_trace_option_check(const mk_trace_option *option, struct argp_state *state);
/* Turns the engine's recorder on when a trace is asked for. */
void mk_trace_option_begin(const mk_trace_option *option, mk_engine *engine);
/* Then: takes what was recorded and writes the file, with a line on standard error. */
mk_status mk_trace_option_end(const mk_trace_option *option, mk_engine *engine);
/* The same where a CPU machine has run this program without an engine. */
mk_status mk_trace_option_end_recording(const mk_trace_option *option, mk_recording *recording,
                                        const mk_program *program);

/* What a trace does not know by itself: command, version, driver. */
void mk_trace_option_facts(const mk_trace_option *option, mk_trace *trace);
/* Writes the file, with a line on standard error. */
mk_status mk_trace_option_save(const mk_trace_option *option, const mk_trace *trace);

#endif
