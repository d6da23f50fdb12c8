/* What is made of generated tokens: their text, up to where the model or a stop text ends it, shown as it comes or
 * kept.
 *
 * The text is lib/reply.h's; here it is printed or reported, with the log-probabilities and times that a run shows.
 * A mk_answer begins as mk_answer_of makes it; mk_answer_end releases reply and report. One thread. Failure:
 * MK_ERR_RUNTIME (memory, standard output, logits that are not numbers). */
#ifndef MK_ANSWER_H
#define MK_ANSWER_H

#include "lib/reply.h"
#include "tools/lib/npy.h"
#include "tools/mkvm/report.h"
#include "tools/mkvm/run_option.h"

typedef struct mk_answer {
  const mk_run_option *options;
  mk_reply reply;
  mk_npy *npy;
  mk_run_report report;
  bool kept; /* the text is one of several, and goes to the report */
  char last; /* character shown last, for the closing line end */
  double start, first, end;
  mk_status status; /* of mk_answer_token, which cannot return one */
} mk_answer;

/* Encodes a prompt (lib/prompt.h). */
mk_status mk_answer_encode(const mk_tokenizer *tokenizer, const mk_config *config, const char *text, size_t length,
                           bool chat, uint32_t context, mk_tokens *tokens);

/* options and config are the caller's and outlive it. */
mk_answer mk_answer_of(const mk_run_option *options, const mk_config *config);
/* Makes the decoder; without a chat the text goes on with the prompt's. */
mk_status mk_answer_begin(mk_answer *answer, const mk_tokenizer *tokenizer, const mk_tokens *prompt);
/* Starts the clock. */
void mk_answer_start(mk_answer *answer);
mk_status mk_answer_show(mk_answer *answer, const char *text, size_t length);
/* A mk_token_fn whose user is the answer. */
bool mk_answer_token(void *user, uint32_t token, const float *logits);
/* Ends the answer: adds text that was held back (an incomplete character, the beginning of a stop text), and the
 * report's times. */
mk_status mk_answer_finish(mk_answer *answer);
void mk_answer_end(mk_answer *answer);

#endif
