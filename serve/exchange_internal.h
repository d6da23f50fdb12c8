/* What the parts of an exchange share: exchange_begin.c submits, exchange_engine.c hears of it in the engine's thread,
 * exchange_parts.c says it in OpenAI's words, exchange.c sends that and ends, exchange_notes.c counts and logs.
 *
 * Whose an exchange is. It is the loop's, and so are its choices, but for what exchange_engine.c may write of a stream:
 * while the loop has seen all that was told of it (`told` is 0) and has lent the reply (`lent`), tokens belong to the
 * engine's thread. The loop changes nothing then but what is said to be the loop's alone. So each of the two sees what
 * the other has done before: `told` is counted up by the engine's thread alone, and down by the loop when it is
 * done. */
#ifndef MK_EXCHANGE_INTERNAL_H
#define MK_EXCHANGE_INTERNAL_H

#include "serve/server_internal.h"

/* A prompt that is echoed: its text, and its ids. */
typedef struct mk_echo {
  const char *text;
  char *own_text; /* NULL: the text is the request's */
  size_t length;
  uint32_t *tokens;
  size_t count;
} mk_echo;

/* One answer: a request of libmkvm. */
typedef struct mk_choice {
  mk_exchange *exchange;
  uint32_t index;
  uint64_t id; /* libmkvm's id of the request; only the loop's thread reads it, and `reason` */
  const char *reason;
  bool begun;                                        /* a part of it was sent, or its echo taken in */
  uint64_t prompt_tokens, tokens, first_ns, last_ns; /* prompt_tokens: known from the first token on */
  uint64_t offset;                                   /* characters of the tokens told */
  mk_bytes text;
  /* With log-probabilities: the tokens of the prompt until they are sent, or all tokens when the reply is one piece. */
  mk_openai_token *kept;
  size_t kept_count, kept_capacity;
} mk_choice;

struct mk_exchange {
  mk_server *server;
  mk_openai_request request;
  mk_openai_reply reply;
  char id[MK_REQUEST_ID], reply_id[MK_REQUEST_ID + 16], peer[64];
  mk_echo *echoes; /* [prompt_count], of a request with echo */
  mk_choice *choices;
  size_t count;
  uint64_t start_ns, first_ns;
  _Atomic uint64_t told; /* events that the loop has not taken yet, and one until all is submitted */
  mk_http_call *lent;    /* NULL: the engine's thread may not write */
  /* Only the loop's thread uses these. */
  mk_http_call *call; /* NULL: nobody listens any more */
  mk_http_call *owed; /* the call whose client has gone */
  size_t running;     /* requests of libmkvm without an end yet */
  mk_openai_usage usage;
  bool begun; /* the reply is a stream; its head may still be held (mk_http_take_back) */
  int status;
  const char *reason;
  uint64_t queue_ns;
};

/* ---- exchange.c ---- */

/* Frees an exchange of which nothing runs. */
void mk_exchange_free(mk_exchange *exchange);
/* Cancels whatever of the exchange runs. */
void mk_exchange_cancel(mk_exchange *exchange);
/* For mk_http_watch: the exchange's client has gone. */
void mk_exchange_gone(void *exchange, mk_http_call *call);
/* All requests of it are submitted: from now on the engine's thread may write, from the first token of a stream on. */
void mk_exchange_listen(mk_exchange *exchange);

/* ---- exchange_engine.c: callbacks of libmkvm; `choice` is a mk_choice ---- */

int mk_choice_on_token(void *choice, const mkvm_token *token);
void mk_choice_on_prompt(void *choice, const mkvm_token *token);
void mk_choice_on_end(void *choice, const mkvm_end *end);

/* ---- exchange_parts.c: of a stream what is new is appended to *out; failure: memory ---- */

/* Whether the exchange generates nothing, as max_tokens 0 asks: the one token that libmkvm gives is then dropped. */
bool mk_exchange_only_echoes(const mk_exchange *exchange);
const mk_echo *mk_choice_echo(const mk_choice *choice); /* NULL: none */
mk_status mk_choice_keep(mk_choice *choice, const mkvm_token *token);
/* Takes a token of the choice, and counts it. */
mk_status mk_choice_take_token(mk_choice *choice, const mkvm_token *token, uint64_t time_ns, mk_bytes *out);
mk_status mk_choice_put_end(mk_choice *choice, mk_bytes *out);
void mk_choice_free(mk_choice *choice); /* what it points to */
/* Appends the whole reply. */
mk_status mk_exchange_put_response(const mk_exchange *exchange, mk_bytes *out);

/* ---- exchange_notes.c ---- */

void mk_choice_note_token(mk_choice *choice, uint64_t time_ns);
void mk_choice_note_end(mk_choice *choice, const mkvm_end *end);
void mk_exchange_log(const mk_exchange *exchange);

#endif
