/* Log-probabilities of tokens, in the shapes of the two endpoints. Part of openai_write.h, whose rules hold. */
#ifndef MK_OPENAI_LOGPROBS_H
#define MK_OPENAI_LOGPROBS_H

#include "serve/json_write.h"
#include "serve/openai_write.h"

void mk_put_chat_logprobs(mk_json_writer *w, const mk_openai_choice *choice);
void mk_put_text_logprobs(mk_json_writer *w, const mk_openai_choice *choice);

#endif
