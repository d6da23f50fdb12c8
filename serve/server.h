/* OpenAI's endpoints for one model: HTTP on one thread, the engine on another (docs/SERVING.md).
 *
 * A mk_server owns both until mk_server_free. One thread opens, runs and frees it, and makes the HTTP side work in
 * mk_server_run; mk_server_stop may be called from any thread and from a signal handler. SIGPIPE has to be ignored.
 * Failure: that of the model directory or machine (MK_ERR_FILE, MK_ERR_DEVICE, ...), MK_ERR_USAGE for options,
 * MK_ERR_RUNTIME for sockets. */
#ifndef MK_SERVER_H
#define MK_SERVER_H

#include <stdio.h>

#include "include/mkvm.h"
#include "serve/http.h"
#include "serve/keys.h"

typedef struct mk_server_options {
  const char *directory;
  mkvm_options engine;      /* callbacks are the server's */
  mk_http_options http;     /* callbacks are the server's */
  const char *const *names; /* under which the model answers; at least one, the first is told to clients */
  size_t name_count;
  const mk_keys *keys; /* without any, everybody may ask; kept by the caller */
  const char *origin;  /* CORS: pages from there may ask, "*" from anywhere; NULL: none */
  bool page;           /* at / */
  double shutdown_seconds, queue_seconds, total_seconds; /* of a drain; of a request, 0: none */
  FILE *log;                                             /* one line of JSON for each request; NULL: none */
  bool log_prompts;                                      /* with prompts and answers */
  /* What to tell the user, without the end of a line, from any thread; `loading`: bytes of weights. */
  void (*on_line)(const char *line);
  void (*on_loading)(uint64_t done, uint64_t total);
} mk_server_options;

typedef struct mk_server mk_server;

/* Everything but directory, names and callbacks. */
void mk_server_defaults(mk_server_options *options);
/* Listens when it returns; the model is not there yet. What options point to has to outlive the server. */
mk_status mk_server_open(const mk_server_options *options, mk_server **out);
uint16_t mk_server_port(const mk_server *server);
/* Loads the model, serves until mk_server_stop, and returns when what ran has ended. */
mk_status mk_server_run(mk_server *server);
/* The first call: no more requests; those that there are come to their ends, or are cut off after shutdown_seconds. The
 * second one cuts them off at once. */
void mk_server_stop(mk_server *server);
void mk_server_free(mk_server *server); /* NULL is fine */
/* Whether a line of usual length can be written there without a wait for whoever reads it. */
bool mk_server_may_say(FILE *log);

#endif
