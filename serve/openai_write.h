/* What the endpoints answer, as bytes: OpenAI's responses, the events of its streams, and the small ones.
 *
 * Each function appends to *out, which is the caller's (mk_free(out->bytes)), and keeps no pointer. Any thread may
 * call, one at a time per buffer. Failure: MK_ERR_RUNTIME for memory; *out is then as before. All texts are bytes of
 * any kind: what is not UTF-8 comes out as U+FFFD. */
#ifndef MK_OPENAI_WRITE_H
#define MK_OPENAI_WRITE_H

#include "serve/openai_error.h"
#include "text/bytes.h"

/* What is the same in all that answers one request. */
typedef struct mk_openai_reply {
  bool chat;
  const char *id; /* one for the whole stream */
  int64_t created;
  const char *model;
  bool logprobs;      /* were asked for */
  bool include_usage; /* of streams: an event without a number of tokens says null */
} mk_openai_reply;

typedef struct mk_openai_candidate {
  uint32_t token;
  const char *text; /* of the token; may be part of a character */
  size_t length;
  float logprob; /* what is not a number, or below -9999, is written as -9999.0, as OpenAI does */
} mk_openai_candidate;

typedef struct mk_openai_token {
  mk_openai_candidate chosen;
  const mk_openai_candidate *top; /* [top_count], the most probable first */
  size_t top_count;
  bool unknown; /* the first of an echoed prompt: its log-probabilities are null */
  bool unseen;  /* a special token, whose text is not part of the choice's text */
} mk_openai_token;

typedef struct mk_openai_usage {
  uint64_t prompt_tokens, cached_tokens, completion_tokens;
} mk_openai_usage;

/* One answer, or what is new of it in a stream. */
typedef struct mk_openai_choice {
  uint32_t index;
  bool first;       /* chat streams: an event with the role comes before the others */
  const char *text; /* NULL in a stream: no event for it; an empty one has an event */
  size_t length;
  const mk_openai_token *tokens; /* with reply.logprobs */
  size_t token_count;
  uint64_t offset;              /* completions: characters that lie before these tokens */
  const char *finish_reason;    /* NULL: it goes on */
  const mk_openai_usage *usage; /* continuous_usage_stats: so far; else NULL */
} mk_openai_choice;

/* Characters in the text of tokens: what mk_openai_choice.offset advances by. A character counts where it begins. */
uint64_t mk_openai_characters(const mk_openai_token *tokens, size_t count);

/* A whole response. */
mk_status mk_openai_write_response(mk_bytes *out, const mk_openai_reply *reply, const mk_openai_choice *choices,
                                   size_t count, const mk_openai_usage *usage);

/* Streams, as server-sent events. Of a chat up to three: role, text, end; with `first` set, the role goes with the
 * first token. Of a completion one. */
mk_status mk_openai_write_chunk(mk_bytes *out, const mk_openai_reply *reply, const mk_openai_choice *choice);
/* include_usage: the last one before the end. */
mk_status mk_openai_write_usage(mk_bytes *out, const mk_openai_reply *reply, const mk_openai_usage *usage);
mk_status mk_openai_write_done(mk_bytes *out);
/* An error in the middle of a stream, in place of the rest. */
mk_status mk_openai_write_error_event(mk_bytes *out, const mk_serve_error *error);

mk_status mk_openai_write_error(mk_bytes *out, const mk_serve_error *error);

typedef struct mk_openai_served { /* a name under which the model answers */
  const char *id;
  const char *root; /* the model itself: its directory or first name */
  int64_t created;
  uint32_t max_context;
} mk_openai_served;

mk_status mk_openai_write_model(mk_bytes *out, const mk_openai_served *model);
mk_status mk_openai_write_models(mk_bytes *out, const mk_openai_served *models, size_t count);

mk_status mk_openai_write_tokens(mk_bytes *out, const uint32_t *tokens, size_t count, uint32_t max_context);
mk_status mk_openai_write_detokenized(mk_bytes *out, const char *text, size_t length);
mk_status mk_openai_write_version(mk_bytes *out, const char *version);

typedef struct mk_openai_tokenizer { /* what tokenizer_config.json would say; NULL: null */
  const char *tokenizer_class, *bos_token, *eos_token, *chat_template;
  const uint32_t *eos_ids;
  size_t eos_count;
  uint32_t vocabulary, max_context;
} mk_openai_tokenizer;

mk_status mk_openai_write_tokenizer(mk_bytes *out, const mk_openai_tokenizer *tokenizer);

#endif
