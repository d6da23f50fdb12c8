/* See prompt.h. */
#include "lib/prompt.h"

#include <inttypes.h>

mk_status mk_context_size(uint64_t asked, const mk_config *config, uint32_t *out) {
  enum { USUAL_CONTEXT = 4096 };
  const uint32_t max_position = config->max_position;
  if (asked > max_position) {
    return mk_error(MK_ERR_USAGE, "a context of %" PRIu64 " tokens is asked for; this model has at most %u%s", asked,
                    max_position,
                    config->rope_type == MK_ROPE_DYNAMIC
                        ? ", its max_position_embeddings: beyond it rope type \"dynamic\" turns into another rotation, "
                          "which is not supported"
                        : "");
  }
  *out = asked != 0 ? (uint32_t)asked : max_position < USUAL_CONTEXT ? max_position : USUAL_CONTEXT;
  return MK_OK;
}

mk_status mk_prompt_encode(const mk_tokenizer *tokenizer, const char *text, size_t length, bool conversation,
                           const mk_prompt_limits *limits, mk_tokens *tokens) {
  MK_TRY(mk_tokenizer_encode(tokenizer, text, length, !conversation, tokens));
  if (tokens->count == 0) {
    return mk_error(MK_ERR_USAGE, "the prompt is empty and this tokenizer puts no token before it; give a text");
  }
  if (tokens->count > limits->context) {
    return mk_error(MK_ERR_TOO_LONG, "the %s has %zu tokens, the context %u%s; %s%s%s",
                    conversation ? "conversation" : "prompt", tokens->count, limits->context,
                    limits->raisable ? "" : ", which is the model's limit",
                    conversation ? "begin a new one" : "shorten it", limits->raisable ? " or " : "",
                    limits->raisable ? limits->raise : "");
  }
  return MK_OK;
}
