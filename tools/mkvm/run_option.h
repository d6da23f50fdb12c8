/* The options of mkvm run, as they are given. What contradicts itself ends the process with a usage error, as argp
 * does. A mk_run_option owns what its sampling does, until mk_run_option_free; texts are argv's. One thread. */
#ifndef MK_RUN_OPTION_H
#define MK_RUN_OPTION_H

#include "engine/engine.h"
#include "tools/mkvm/process_option.h"
#include "tools/mkvm/sampling_option.h"
#include "tools/mkvm/trace_option.h"

enum { MK_RUN_STOPS = 64, MK_RUN_PROMPTS = 64 };

typedef struct mk_run_option {
  const char *model, *file, *logits, *program;
  const char *prompts[MK_RUN_PROMPTS];
  size_t prompt_count;
  uint32_t rows; /* 0: what suits */
  const char *stops[MK_RUN_STOPS];
  size_t stop_count;
  size_t n_predict;
  uint64_t ctx_size;
  bool json, echo, ignore_eos, compare;
  bool chat, limited; /* limited: --n-predict was given */
  const char *system, *date, *variables;
  mk_engine_options engine;
  mk_trace_option trace;
  mk_sampling_option sampling;
  mk_process_option process;
} mk_run_option;

void mk_run_option_parse(int argc, char **argv, mk_run_option *option);
/* A conversation with the user, rather than one turn. */
bool mk_run_is_interactive(const mk_run_option *option);
void mk_run_option_free(mk_run_option *option);

#endif
