/* What the parts of the public library share: model.c opens and closes, structs.c, sampling.c and text.c turn what
 * callers say into what the engine takes, requests.c keeps the queue and work.c works it off.
 * Rules as in include/mkvm.h. */
#ifndef MKVM_INTERNAL_H
#define MKVM_INTERNAL_H

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "engine/engine.h"
#include "include/mkvm.h"
#include "lib/reply.h"
#include "models/generation.h"
#include "text/template_chat.h"

typedef struct job job;
struct job { /* a request, from mkvm_submit to its end */
  job *next; /* in the queue, or in the batch at work */
  uint64_t id;
  mk_tokens prompt;
  bool conversation; /* its answer is a text of its own */
  size_t max_tokens;
  mk_sampling sampling;
  mk_logit_bias *biases;
  char **stops;
  size_t stop_count;
  int (*on_token)(void *user, const mkvm_token *token);
  void (*on_end)(void *user, const mkvm_end *end);
  void *user;
  atomic_bool cancelled;
  /* Of the thread that works. */
  mk_reply reply;
  mk_status status;                     /* of a token callback of the engine, which cannot return one */
  bool ended;                           /* on_end has been called */
  double submitted, begun, first, last; /* times; first and last: of tokens */
};

struct mkvm_engine {
  mk_engine *engine;
  mk_tokenizer *tokenizer;
  mk_chat *chat;      /* NULL: none */
  char *chat_problem; /* why a template that is there cannot be used; NULL: none is there, or it can */
  mk_generation generation;
  uint32_t max_context, max_batch;
  double load_seconds;
  mk_memory_plan memory;
  /* As in the options. */
  void (*on_log)(void *user, mkvm_log_level level, const char *line);
  int (*on_progress)(void *user, uint64_t done, uint64_t total);
  void *user;
  volatile sig_atomic_t stop; /* the engine's `cancel`; read and written by the thread that opens or works alone */

  pthread_mutex_t lock; /* of all that follows */
  job *waiting, *working;
  bool busy; /* a thread is in mkvm_step, or in mkvm_close */
  bool closing;
  pthread_t worker;
  uint64_t last_id;
  mkvm_stats stats;
};

static inline mkvm_status mkvm_status_of(mk_status status) { return (mkvm_status)status; }

/* Seconds on a clock that never goes back. */
double mkvm_clock(void);

/* Copies a caller's struct of `size` bytes, which states its own size first, over the defaults in own[own_size]:
 * `least` bytes at least (the struct's size when the soname began), and nothing but zeros where it is longer than
 * ours. `name` names it in messages. */
mk_status mkvm_take_struct(const char *name, const void *given, size_t least, void *own, size_t own_size);
/* The other way: as much of our own as a caller's struct of `size` bytes has room for, zeros beyond, and its size. */
void mkvm_give_struct(const void *own, size_t own_size, void *out, size_t size);

/* A caller's parameters, checked; *biases is what sampling->biases points to, the caller's to free. NULL is greedy. */
mk_status mkvm_take_sampling(const mkvm_engine *engine, const mkvm_sampling *given, mk_sampling *sampling,
                             mk_logit_bias **biases);

/* The ids of a text that fit the context, and the text of a conversation (mk_free). */
mk_status mkvm_encode(const mkvm_engine *engine, const char *text, size_t length, bool conversation, mk_tokens *out);
mk_status mkvm_render(const mkvm_engine *engine, const mkvm_turn *turns, size_t count, char **text, size_t *length);

void mkvm_request_free(job *request); /* NULL is fine */
/* Tells of a request that has ended, once. status: of the engine below. */
void mkvm_finish(mkvm_engine *engine, job *request, mk_status status);

#endif
