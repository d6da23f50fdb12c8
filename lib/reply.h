/* What is made of generated tokens: their text as it can be shown, up to where the model or a stop text ends it.
 *
 * A reply owns its decoder and what it holds back until mk_reply_free; configuration, tokenizer and stop texts are the
 * caller's and outlive it. One thread. Failure: MK_ERR_RUNTIME for memory, and for logits that are not numbers. */
#ifndef MK_REPLY_H
#define MK_REPLY_H

#include "engine/stop.h"
#include "models/config.h"
#include "text/tokenizer.h"

typedef struct mk_reply { /* begins zeroed, but for these */
  const mk_config *config;
  bool ignore_eos; /* goes on after an end-of-text token */
  mk_stop stop;    /* .strings, .count */
  mk_decoder *decoder;
  size_t tokens; /* taken, an end-of-text token included */
  bool ended;    /* by such a token or a stop text; nothing may follow but mk_reply_finish */
} mk_reply;

/* prompt: the reply's text goes on with that of these tokens; NULL: it is a text of its own, as in a conversation. */
mk_status mk_reply_begin(mk_reply *reply, const mk_tokenizer *tokenizer, const mk_tokens *prompt);
/* *text: what can be shown now, *length bytes in whole characters, valid until the next call. logits: those that chose
 * the token, or NULL. */
mk_status mk_reply_token(mk_reply *reply, uint32_t token, const float *logits, const char **text, size_t *length);
/* What was held back: an incomplete character, the beginning of a stop text. */
mk_status mk_reply_finish(mk_reply *reply, const char **text, size_t *length);
void mk_reply_free(mk_reply *reply);

#endif
