/* See reply.h. */
#include "lib/reply.h"

#include <math.h>

/* What follows continues the prompt's text: some tokenizers drop the first space of a text, and this is not its
 * beginning. */
static mk_status pass_over(mk_decoder *decoder, const mk_tokens *prompt) {
  for (size_t i = 0; i < prompt->count; i++) {
    const char *text;
    size_t length;
    MK_TRY(mk_decoder_push(decoder, prompt->ids[i], &text, &length));
  }
  return MK_OK;
}

mk_status mk_reply_begin(mk_reply *reply, const mk_tokenizer *tokenizer, const mk_tokens *prompt) {
  MK_TRY(mk_decoder_new(tokenizer, &reply->decoder));
  return prompt == NULL ? MK_OK : pass_over(reply->decoder, prompt);
}

static bool is_eos(const mk_config *config, uint32_t token) {
  for (uint32_t i = 0; i < config->eos_count; i++) {
    if (config->eos[i] == token) {
      return true;
    }
  }
  return false;
}

mk_status mk_reply_token(mk_reply *reply, uint32_t token, const float *logits, const char **text, size_t *length) {
  *text = "";
  *length = 0;
  reply->tokens++;
  if (logits != NULL && isnan(logits[token])) {
    return mk_error(MK_ERR_RUNTIME, "token %zu: its logits are not numbers; the weights hold NaN or overflow",
                    reply->tokens);
  }
  if (!reply->ignore_eos && is_eos(reply->config, token)) {
    reply->ended = true;
    return MK_OK;
  }
  MK_TRY(mk_decoder_push(reply->decoder, token, text, length));
  MK_TRY(mk_stop_push(&reply->stop, *text, *length, text, length));
  reply->ended = reply->stop.hit;
  return MK_OK;
}

mk_status mk_reply_finish(mk_reply *reply, const char **text, size_t *length) {
  MK_TRY(mk_decoder_finish(reply->decoder, text, length));
  return mk_stop_finish(&reply->stop, *text, *length, text, length);
}

void mk_reply_free(mk_reply *reply) {
  mk_decoder_free(reply->decoder);
  reply->decoder = NULL;
  mk_stop_free(&reply->stop);
}
