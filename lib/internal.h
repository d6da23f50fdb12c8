/* What the parts of the public library share: model.c opens and closes, structs.c, sampling.c and text.c turn what
 * callers say into what the engine takes, requests.c keeps the requests from arrival to end, work.c makes the engine
 * work. Rules as in include/mkvm.h. */
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
  job *next; /* in the order of arrival */
  mkvm_engine *engine;
  uint64_t id;
  mk_tokens prompt;
  bool conversation; /* its answer is a text of its own */
  size_t max_tokens;
  mk_sampling sampling;
  mk_logit_bias *biases;
  char **stops;
  size_t stop_count;
  int32_t priority;
  double queue_seconds, total_seconds;
  bool logprobs;
  int (*on_token)(void *user, const mkvm_token *token);
  void (*on_prompt)(void *user, const mkvm_token *token);
  void (*on_end)(void *user, const mkvm_end *end);
  void *user;
  atomic_bool cancelled;
  double submitted;
  /* Of the thread that works. */
  uint64_t sequence; /* its number in the engine below; 0: it is not there */
  mk_sequence_report report;
  mk_ranking ranking; /* of the token that is told of */
  mk_reply reply;
  mk_status status;   /* of a token callback of the engine, which cannot return one */
  double first, last; /* times of tokens; 0: none */
};

struct mkvm_engine {
  mk_engine *engine;
  mk_tokenizer *tokenizer;
  mk_chat *chat;      /* NULL: none */
  char *chat_problem; /* why a template that is there cannot be used; NULL: none is there, or it can */
  mk_generation generation;
  uint32_t max_context, max_batch, max_waiting;
  uint64_t kv_tokens;
  double load_seconds;
  mk_memory_plan memory;
  /* As in the options. */
  void (*on_log)(void *user, mkvm_log_level level, const char *line);
  int (*on_progress)(void *user, uint64_t done, uint64_t total);
  void *user;
  bool others;                /* ranks that are processes follow this one */
  volatile sig_atomic_t stop; /* the engine's `cancel`, of the thread that opens */
  int event;                  /* mkvm_event_fd; -1: none yet */
  atomic_bool news;           /* there are arrivals or cancellations that the thread that works has not seen */

  pthread_mutex_t lock; /* of all that follows; held in no callback */
  pthread_cond_t wake;  /* mkvm_serve: there is something to do, or never will be */
  job *jobs;            /* all that have not ended. Any thread adds at the end, the one that works alone takes away */
  job *arrived;         /* the first that the engine below does not have; NULL: it has all */
  size_t arrivals;      /* from there on */
  bool busy;            /* a thread is in mkvm_step, mkvm_run, mkvm_serve or mkvm_close */
  bool shut;            /* no more requests */
  bool event_set;
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
mk_status mkvm_render(const mkvm_engine *engine, const mkvm_turn *turns, size_t count, const char *variables,
                      size_t variables_length, char **text, size_t *length);

void mkvm_request_free(job *request); /* NULL is fine */
/* Its end: it is told, and gone. status: of the engine below. */
void mkvm_finish(job *request, mk_status status);

/* What has come from outside goes to the engine below (its `poll`): arrivals, and the ends of those that are cancelled.
 * By the thread that works. */
void mkvm_look(void *engine);
/* Copies the counters of the engine below. By the thread that works. */
void mkvm_count(mkvm_engine *engine);
/* With the lock held: all that there are are cancelled; and the event's state follows from jobs and busy. */
void mkvm_cancel_all(mkvm_engine *engine);
void mkvm_set_event(mkvm_engine *engine);

#endif
