/* What the parts of the server share: server.c starts, stops and loads; routes.c knows the paths; exchange*.c what runs
 * for a request; request_log.c what is told of it. All but what says otherwise belongs to the loop's thread. */
#ifndef MK_SERVER_INTERNAL_H
#define MK_SERVER_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "serve/events.h"
#include "serve/metrics.h"
#include "serve/openai_request.h"
#include "serve/openai_write.h"
#include "serve/server.h"
#include "serve/tokens.h"

enum { MK_REQUEST_ID = 64 };

typedef struct mk_exchange mk_exchange;

/* The engine's thread alone. */
typedef struct mk_engine_side {
  uint64_t step, tokens; /* the last step that was told of, and its tokens so far */
  mk_bytes piece;        /* JSON on its way out */
} mk_engine_side;

struct mk_server {
  mk_server_options options;
  mk_http *http;
  mk_events events; /* from the engine's thread */
  mk_engine_side side;
  mk_metrics metrics;
  int64_t created;
  uint64_t last_id, random; /* of ids that the server makes up */
  size_t exchanges;         /* not freed */
  mk_bytes scratch;         /* JSON on its way out */
  mk_bytes unlogged;        /* lines of the log that nobody takes yet */
  uint64_t lines_lost;      /* for which there was no room */
  mkvm_stats stats;         /* as they were told to the metrics */
  /* Facts of the model; set before `engine` is. */
  mkvm_engine *loaded; /* to be closed */
  mkvm_info info;
  mkvm_sampling sampling;
  mk_token_table tokens;
  mk_openai_tokenizer about; /* what tokenizer_config.json says; the strings are of `config` */
  json_t *config;
  char *chat_template;           /* of a file of its own */
  _Atomic(mkvm_engine *) engine; /* NULL: it is being loaded */
  pthread_t worker;
  bool working;         /* there is such a thread */
  atomic_bool finished; /* it has nothing more to do */
  mk_status status;     /* how it ended, and why */
  char message[1024];
  atomic_int stops; /* calls of mk_server_stop */
  int stops_seen;
};

/* ---- Exchanges: requests that generate, and their replies ---- */

/* A body was parsed; the exchange takes `request` over and is freed when it has ended. On failure *error is filled, and
 * nothing runs. */
mk_status mk_exchange_begin(mk_server *server, mk_http_call *call, mk_openai_request *request, const char *id,
                            mk_serve_error *error);
void mk_exchange_take(const mk_event *event); /* event->to is one of its choices */

/* ---- Replies ---- */

/* JSON, or the object of an error; with the headers that every reply has. */
void mk_reply_json(mk_server *server, mk_http_call *call, const char *id, int status, const mk_bytes *body);
void mk_reply_error(mk_server *server, mk_http_call *call, const char *id, const mk_serve_error *error);
/* Headers that every reply has. */
void mk_reply_headers(mk_server *server, mk_http_call *call, const char *id);

void mk_route(mk_server *server, mk_http_call *call);

/* ---- Log ---- */

typedef struct mk_request_note {         /* of one request; times in nanoseconds, 0: none */
  const char *id, *path, *peer, *reason; /* reason: "stop", "length", ...; NULL: nothing was generated */
  int status;
  uint64_t prompt_tokens, cached_tokens, tokens;
  uint64_t queue_ns, first_ns, total_ns;
  const char *prompt, *answer; /* with log_prompts, else NULL */
  size_t prompt_length, answer_length;
} mk_request_note;

void mk_log_request(mk_server *server, const mk_request_note *note);
/* Writes what is kept of the log, as far as it is taken. */
void mk_log_flush(mk_server *server);

#endif
