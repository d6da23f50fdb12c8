/* What a run produced, as one JSON object or as a line of timings.
 * A report owns its tokens and its text until mk_report_free; everything else stays the caller's. One thread.
 * Failure: MK_ERR_RUNTIME (memory, standard output). */
#ifndef MK_REPORT_H
#define MK_REPORT_H

#include "text/tokenizer.h"
#include "tools/mkvm/sampling_option.h"

typedef struct mk_run_report {
  const char *model, *device, *finish_reason;
  const char *error; /* NULL: none */
  const mk_tokens *prompt;
  mk_tokens tokens; /* generated, an end-of-text token included */
  char *text;
  size_t text_length, text_capacity;
  const mk_sampling_option *sampling;
  uint32_t logprob_count; /* alternatives per token */
  double *logprobs;       /* of the tokens; NULL: not asked for */
  mk_logprob *top;        /* logprob_count per token */
  size_t logprobs_capacity, top_capacity;
  double load_seconds;
  double prompt_seconds;   /* up to the first generated token */
  double generate_seconds; /* from the first generated token to the last */
} mk_run_report;

mk_status mk_report_token(mk_run_report *report, uint32_t token);
/* Adds the log-probabilities of the last token, from the logits that chose it. */
mk_status mk_report_logprobs(mk_run_report *report, const float *logits, uint32_t vocab);
mk_status mk_report_text(mk_run_report *report, const char *text, size_t length);
mk_status mk_report_json(const mk_run_report *report);
/* {"sequences": [...]}, each as mk_report_json prints it. */
mk_status mk_report_json_all(const mk_run_report *const *reports, size_t count);
/* Prints a line per token, if the report has log-probabilities. */
mk_status mk_report_print_logprobs(const mk_run_report *report);
/* Prints times on standard error. */
void mk_report_timings(const mk_run_report *report);
void mk_report_free(mk_run_report *report);

#endif
