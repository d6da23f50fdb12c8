/* From a prompt's text to ids that fit: how long a context is, and what a prompt may not be.
 *
 * Nothing is kept; ids are appended to the caller's. Any thread may call. Failure: MK_ERR_USAGE, naming the number at
 * fault; what is said below; that of mk_tokenizer_encode. */
#ifndef MK_PROMPT_H
#define MK_PROMPT_H

#include "models/config.h"
#include "text/tokenizer.h"

/* Tokens of context when `asked` are asked for; 0: the model's own limit, but at most 4096. MK_ERR_USAGE for more than
 * that limit. */
mk_status mk_context_size(uint64_t asked, const mk_config *config, uint32_t *out);

typedef struct mk_prompt_limits {
  uint32_t context;  /* tokens that a prompt may have */
  bool raisable;     /* the model could have more */
  const char *raise; /* how a user would ask for that: "raise --ctx-size" */
} mk_prompt_limits;

/* MK_ERR_USAGE when there are no tokens, MK_ERR_TOO_LONG for more than the context holds. conversation: the text is
 * that of a chat template, which has written the special tokens. */
mk_status mk_prompt_encode(const mk_tokenizer *tokenizer, const char *text, size_t length, bool conversation,
                           const mk_prompt_limits *limits, mk_tokens *tokens);

#endif
