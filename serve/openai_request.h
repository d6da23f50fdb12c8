/* What the body of a request asks for, checked: OpenAI's chat completions and completions, and the tokenizer's two
 * endpoints. docs/SERVING.md has the table of fields.
 *
 * A parser takes (pointer, length), opens nothing and never crashes, whatever the bytes are. What it fills owns all it
 * points to until the function that frees it; the body may go before. When it fails, nothing is to be freed. Any thread
 * may call. Failure: MK_ERR_USAGE when the client is at fault, always with HTTP status 400, and MK_ERR_RUNTIME (500)
 * when there is no memory; *error says it all.
 *
 * The JSON: duplicate keys are refused, since a proxy that reads the first of two and a server that reads the last
 * do not see the same request, and no client writes them. Unknown fields are ignored; null means the same as an absent
 * field. Limits below are checked before the text is made into values. */
#ifndef MK_OPENAI_REQUEST_H
#define MK_OPENAI_REQUEST_H

#include <jansson.h>

#include "include/mkvm.h"
#include "serve/openai_error.h"

enum {
  MK_OPENAI_DEPTH = 32,        /* arrays and objects within each other, the body itself counted */
  MK_OPENAI_VALUES = 1 << 18,  /* members and elements of a body */
  MK_OPENAI_STOPS = 16,        /* stop texts */
  MK_OPENAI_STOP_BYTES = 1024, /* of one */
  MK_OPENAI_BIASES = 1024,
  MK_OPENAI_PROMPTS = 1024, /* of one request; also choices: prompts times n */
  MK_OPENAI_N = 128,
  MK_OPENAI_CHAT_TOP = 20,
  MK_OPENAI_TEXT_TOP = 5,
  MK_OPENAI_TEXT_TOKENS = 16, /* max_tokens of a completion that does not say */
};

/* What a request may leave open, and what it is checked against. */
typedef struct mk_openai_model {
  const mkvm_sampling *sampling; /* for what the request does not say; without biases */
  uint32_t vocabulary;           /* ids of prompts and of logit_bias are below it */
} mk_openai_model;

typedef struct mk_openai_prompt { /* one of the two */
  const char *text;               /* NULL: ids; may be empty, and has no NUL inside */
  size_t length;
  const uint32_t *tokens;
  size_t token_count; /* at least 1 */
} mk_openai_prompt;

typedef struct mk_openai_request {
  bool chat;
  const char *model; /* NULL: it does not say */
  /* Chat: the conversation. A list of text parts has become one text, with a newline between two; "developer", as newer
   * clients call it, has become "system". */
  mkvm_turn *turns;
  size_t turn_count;
  char *variables; /* chat_template_kwargs, an object in JSON; NULL: not given */
  /* Completions: each prompt is answered n times; the choice of answer j to prompt i has index i * n + j. */
  mk_openai_prompt *prompts;
  size_t prompt_count;
  uint32_t n;
  bool has_max_tokens; /* else what libmkvm takes */
  size_t max_tokens;   /* 0 only with echo: nothing is generated */
  mkvm_sampling sampling;
  bool has_seed;
  const char **stops; /* each of 1 to MK_OPENAI_STOP_BYTES bytes */
  size_t stop_count;
  bool ignore_eos, echo;
  bool logprobs;
  uint32_t top_logprobs; /* with logprobs */
  bool stream, include_usage, continuous_usage;
  int32_t priority; /* lower first */
  /* Of /tokenize: with the tokens around a text, such as a BOS. Not given: true for `prompt`, false for the others. */
  bool add_special;
  /* What it owns besides the arrays above. */
  json_t *body;
  mkvm_bias *biases;
  uint32_t *ids;
  char **joined; /* [turn_count] or NULL */
} mk_openai_request;

mk_status mk_openai_chat_parse(const char *body, size_t length, const mk_openai_model *model, mk_openai_request *out,
                               mk_serve_error *error);
mk_status mk_openai_completion_parse(const char *body, size_t length, const mk_openai_model *model,
                                     mk_openai_request *out, mk_serve_error *error);
/* {prompt, add_special_tokens} as vLLM has it or {content, add_special} as llama.cpp has it: prompts[0].text; or
 * {messages}: turns, for the text that the chat template makes of them. */
mk_status mk_openai_tokenize_parse(const char *body, size_t length, mk_openai_request *out, mk_serve_error *error);
/* {tokens}: prompts[0].tokens, possibly none at all. */
mk_status mk_openai_detokenize_parse(const char *body, size_t length, const mk_openai_model *model,
                                     mk_openai_request *out, mk_serve_error *error);

/* Frees all that a parser has filled, and leaves it empty; one that is zeroed is fine. */
void mk_openai_request_free(mk_openai_request *request);

#endif
