/* See answer.h. */
#include "tools/mkvm/answer.h"

#include <math.h>
#include <string.h>

#include "tools/mkvm/command.h"
#include "tools/mkvm/loading.h"
#include "tools/mkvm/signals.h"

mk_status mk_answer_encode(const mk_tokenizer *tokenizer, const mk_config *config, const char *text, size_t length,
                           bool chat, uint32_t context, mk_tokens *tokens) {
  MK_TRY(mk_tokenizer_encode(tokenizer, text, length, !chat, tokens));
  if (tokens->count == 0) {
    return mk_error(MK_ERR_USAGE, "the prompt is empty and this tokenizer puts no token before it; give --prompt TEXT");
  }
  if (tokens->count > context) {
    return mk_error(MK_ERR_USAGE, "the %s has %zu tokens, the context %u%s; %s%s", chat ? "conversation" : "prompt",
                    tokens->count, context, context < config->max_position ? "" : ", which is the model's limit",
                    chat ? "begin a new one" : "shorten it",
                    context < config->max_position ? " or raise --ctx-size" : "");
  }
  return MK_OK;
}

/* What follows continues the prompt's text: some tokenizers drop the first space of a text, and this is not its beginning. */
static mk_status pass_over(mk_decoder *decoder, const mk_tokens *prompt) {
  for (size_t i = 0; i < prompt->count; i++) {
    const char *text;
    size_t length;
    MK_TRY(mk_decoder_push(decoder, prompt->ids[i], &text, &length));
  }
  return MK_OK;
}

mk_status mk_answer_begin(mk_answer *r, const mk_tokenizer *tokenizer, const mk_tokens *prompt) {
  MK_TRY(mk_decoder_new(tokenizer, &r->decoder));
  return r->options->chat ? MK_OK : pass_over(r->decoder, prompt);
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

static bool is_eos(const mk_config *config, uint32_t token) {
  for (uint32_t i = 0; i < config->eos_count; i++) {
    if (config->eos[i] == token) {
      return true;
    }
  }
  return false;
}

static mk_status take_token(mk_answer *r, uint32_t token, const float *logits, bool *go_on) {
  const char *text;
  size_t length;
  *go_on = false;
  MK_TRY(mk_report_token(&r->report, token));
  if (r->options->sampling.logprobs) {
    MK_TRY(mk_report_logprobs(&r->report, logits, r->config->vocab));
  }
  if (logits != NULL && isnan(logits[token])) {
    return mk_error(MK_ERR_RUNTIME, "token %zu: its logits are not numbers; the weights hold NaN or overflow",
                    r->report.tokens.count);
  }
  if (r->npy != NULL) {
    MK_TRY(mk_npy_row(r->npy, logits));
  }
  if (!r->options->ignore_eos && is_eos(r->config, token)) {
    r->report.finish_reason = "stop";
    return MK_OK;
  }
  MK_TRY(mk_decoder_push(r->decoder, token, &text, &length));
  MK_TRY(mk_stop_push(&r->stop, text, length, &text, &length));
  MK_TRY(mk_answer_show(r, text, length));
  if (r->stop.hit) {
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
  MK_TRY(mk_decoder_finish(r->decoder, &text, &length));
  MK_TRY(mk_stop_push(&r->stop, text, length, &text, &length));
  MK_TRY(mk_answer_show(r, text, length));
  mk_stop_finish(&r->stop, &text, &length);
  MK_TRY(mk_answer_show(r, text, length));
  return r->options->json || r->kept || r->last == '\n' ? MK_OK : mk_print("\n", 1);
}

void mk_answer_end(mk_answer *r) {
  mk_decoder_free(r->decoder);
  mk_stop_free(&r->stop);
  mk_report_free(&r->report);
}
