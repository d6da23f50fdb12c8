/* The chat template of a model directory: additional_chat_templates/default.jinja, else chat_template.jinja, else
 * "chat_template" of tokenizer_config.json (a text, or named ones of which "default" is taken), with the special tokens
 * that template_tokens.h finds.
 *
 * Immutable once loaded: any thread may render. Failure: that of mk_template_compile and mk_template_render, with the
 * file in front; MK_ERR_FILE for a file that is malformed, and for a chat_template.json alone, which processors of
 * transformers read and tokenizers do not. */
#ifndef MK_TEMPLATE_CHAT_H
#define MK_TEMPLATE_CHAT_H

#include "text/template.h"

typedef struct mk_chat mk_chat;

/* *out is NULL when the directory has no template. */
mk_status mk_chat_load(const char *directory, mk_chat **out);
void mk_chat_free(mk_chat *chat); /* NULL is fine */
/* The file that the template came from, as long-lived as the chat. */
const char *mk_chat_source(const mk_chat *chat);

/* Adds {"role": role, "content": content} to the array `messages`; bytes that are not UTF-8 become U+FFFD. */
mk_status mk_chat_add(json_t *messages, const char *role, const char *content, size_t length);

/* Further variables of a template, such as {"enable_thinking": false}, from JSON; NULL or no text: *out is NULL.
 * MK_ERR_USAGE when it is no object, or has a name that is not the caller's to choose: messages, tools, documents and
 * the like. *out is the caller's. */
mk_status mk_chat_variables(const char *text, size_t length, json_t **out);

/* The conversation as the text that the model continues with its answer: apply_chat_template with
 * add_generation_prompt, no tools, no documents, and `more`, which mk_chat_variables gave, as its further arguments.
 * Encode it without adding special tokens, since the template writes them. *text is the caller's (mk_free). */
mk_status mk_chat_render(const mk_chat *chat, json_t *messages, const json_t *more, const struct tm *now, char **text,
                         size_t *length);

#endif
