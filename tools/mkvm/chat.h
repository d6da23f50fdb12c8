/* mkvm run --chat: the conversation, from the user's lines to the text that a model continues.
 *
 * A conversation owns its template and its messages until mk_conversation_end. One thread. Failure: that of the
 * template, of reading standard input, or of the callback. */
#ifndef MK_CHAT_H
#define MK_CHAT_H

#include "text/template_chat.h"

typedef struct mk_conversation {
  mk_chat *chat;
  json_t *messages;
  json_t *variables; /* further ones of the template, or NULL */
  struct tm now;     /* what the template takes for the date */
} mk_conversation;

/* Loads the directory's template; without one, an error says what to do. `system` is the system prompt, or NULL; `date`
 * is YYYY-MM-DD, or NULL: today; `variables` is JSON for mk_chat_variables, or NULL. */
mk_status mk_conversation_begin(const char *directory, const char *system, const char *date, const char *variables,
                                mk_conversation *out);
void mk_conversation_end(mk_conversation *conversation);

/* Adds what the user says; *text is the prompt for the answer, the caller's (mk_free). */
mk_status mk_conversation_ask(mk_conversation *conversation, const char *said, size_t length, char **text,
                              size_t *text_length);
mk_status mk_conversation_answered(mk_conversation *conversation, const char *answer, size_t length);

/* Answers the prompt text[0, length), shows the answer and hands it out, valid until the next call. mk_interrupted ends
 * it. */
typedef mk_status (*mk_answer_fn)(void *user, const char *text, size_t length, const char **answer,
                                  size_t *answer_length);

/* Takes turns until standard input ends (Ctrl-D) or Ctrl-C comes twice; one Ctrl-C ends the answer at hand. Lines are
 * edited, with a history, where standard input and output are terminals, and read as they come otherwise; empty ones
 * are skipped. */
mk_status mk_conversation_run(mk_conversation *conversation, mk_answer_fn answer, void *user);

#endif
