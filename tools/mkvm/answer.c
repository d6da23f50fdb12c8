/* See answer.h. */
#include "tools/mkvm/answer.h"

#include <string.h>

#include "lib/prompt.h"
#include "tools/mkvm/command.h"
#include "tools/mkvm/loading.h"
#include "tools/mkvm/signals.h"

mk_status mk_answer_encode(const mk_tokenizer *tokenizer, const mk_config *config, const char *text, size_t length,
                           bool chat, uint32_t context, mk_tokens *tokens) {
  const mk_prompt_limits limits = {
      .context = context, .raisable = context < config->max_position, .raise = "raise --ctx-size"};
  const mk_status status = mk_prompt_encode(tokenizer, text, length, chat, &limits, tokens);
  return status == MK_ERR_TOO_LONG ? MK_ERR_USAGE : status; /* to a command it is an argument that is wrong */
}

mk_answer mk_answer_of(const mk_run_option *options, const mk_config *config) {
  return (mk_answer){.options = options,
                     .reply = {.config = config,
                               .ignore_eos = options->ignore_eos,
                               .stop = {.strings = options->stops, .count = options->stop_count}},
                     .report = {.logprob_count = options->sampling.logprob_count}};
}

mk_status mk_answer_begin(mk_answer *r, const mk_tokenizer *tokenizer, const mk_tokens *prompt) {
  return mk_reply_begin(&r->reply, tokenizer, r->options->chat ? NULL : prompt);
}

void mk_answer_start(mk_answer *r) {
  r->report.finish_reason = "length";
  r->start = r->first = r->end = mk_seconds();
}

mk_status mk_answer_show(mk_answer *r, const char *text, size_t length) {
  if (length == 0) {
    return MK_OK;
  }
  r->last = text[length - 1];
  if (r->options->json || r->kept || mk_run_is_interactive(r->options)) {
    MK_TRY(mk_report_text(&r->report, text, length));
  }
  return r->options->json || r->kept ? MK_OK : mk_print(text, length);
}

static mk_status take_token(mk_answer *r, uint32_t token, const float *logits, bool *go_on) {
  const char *text;
  size_t length;
  *go_on = false;
  MK_TRY(mk_report_token(&r->report, token));
  if (r->options->sampling.logprobs) {
    MK_TRY(mk_report_logprobs(&r->report, logits, r->reply.config->vocab));
  }
  MK_TRY(mk_reply_token(&r->reply, token, logits, &text, &length));
  if (r->npy != NULL) {
    MK_TRY(mk_npy_row(r->npy, logits));
  }
  MK_TRY(mk_answer_show(r, text, length));
  if (r->reply.ended) {
    r->report.finish_reason = "stop";
  } else if (mk_interrupted) {
    r->report.finish_reason = "interrupted";
  } else {
    *go_on = true;
  }
  return MK_OK;
}

bool mk_answer_token(void *user, uint32_t token, const float *logits) {
  mk_answer *r = user;
  bool go_on;
  r->end = mk_seconds();
  mk_clear_prompt();
  if (r->report.tokens.count == 0) {
    r->first = r->end;
  }
  r->status = take_token(r, token, logits, &go_on);
  return r->status == MK_OK && go_on;
}

mk_status mk_answer_finish(mk_answer *r) {
  const char *text;
  size_t length;
  mk_clear_prompt();
  if (mk_interrupted && strcmp(r->report.finish_reason, "length") == 0) {
    r->report.finish_reason = "interrupted"; /* inside the prompt, or in the step at hand: no token came with it */
  }
  r->report.prompt_seconds = r->first - r->start;
  r->report.generate_seconds = r->end - r->first;
  MK_TRY(mk_reply_finish(&r->reply, &text, &length));
  MK_TRY(mk_answer_show(r, text, length));
  return r->options->json || r->kept || r->last == '\n' ? MK_OK : mk_print("\n", 1);
}

void mk_answer_end(mk_answer *r) {
  mk_reply_free(&r->reply);
  mk_report_free(&r->report);
}
