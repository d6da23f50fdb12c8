/* The work of an engine: what waits is taken, and brought to its end. See internal.h.
 *
 * A batch of the engine below is fixed when it begins, so a step is a whole one. With one row per step it is a
 * request, which may draw its tokens; with several it is all that wait. */
#include <stdio.h>

#include "lib/internal.h"

static void take_token(job *r, uint32_t token, const float *logits) {
  mkvm_token told = {.request = r->id, .token = token};
  r->last = mkvm_clock();
  r->first = r->first != 0 ? r->first : r->last;
  r->status = mk_reply_token(&r->reply, token, logits, &told.text, &told.length);
  if (r->status == MK_OK && r->on_token != NULL && r->on_token(r->user, &told) != 0) {
    atomic_store(&r->cancelled, true);
  }
}

/* A token of the engine below; false: no more. */
static bool next_token(job *r, uint32_t token, const float *logits) {
  if (!atomic_load(&r->cancelled)) {
    take_token(r, token, logits);
  }
  return r->status == MK_OK && !r->reply.ended && !atomic_load(&r->cancelled);
}

/* ---- One request alone ---- */

static bool on_token(void *user, uint32_t token, const float *logits) { return next_token(user, token, logits); }

static mk_status generate(mkvm_engine *e, job *r) {
  MK_TRY(mk_engine_set_sampling(e->engine, &r->sampling));
  return mk_engine_generate(e->engine, r->prompt.ids, r->prompt.count, r->max_tokens, on_token, r);
}

/* ---- Several side by side ---- */

typedef struct batch {
  mkvm_engine *engine;
  job **requests;
} batch;

static bool on_batch_token(void *user, size_t sequence, uint32_t token, const float *logits) {
  batch *b = user;
  return next_token(b->requests[sequence], token, logits);
}

static void on_batch_end(void *user, size_t sequence, mk_status status) {
  batch *b = user;
  mkvm_finish(b->engine, b->requests[sequence], status);
}

static size_t count_of(const job *list) {
  size_t count = 0;
  for (; list != NULL; list = list->next) {
    count++;
  }
  return count;
}

static mk_status generate_all(mkvm_engine *e) {
  batch b = {.engine = e};
  mk_sequence *sequences = NULL;
  const size_t count = count_of(e->working);
  const mk_sequence_calls calls = {.token = on_batch_token, .ended = on_batch_end, .user = &b};
  mk_status status;
  size_t i = 0;
  MK_TRY_GOTO(mk_alloc(count, sizeof(job *), &b.requests), done);
  MK_TRY_GOTO(mk_alloc(count, sizeof *sequences, &sequences), done);
  for (job *r = e->working; r != NULL; r = r->next, i++) {
    b.requests[i] = r;
    sequences[i] = (mk_sequence){.prompt = r->prompt.ids, .prompt_count = r->prompt.count, .n_predict = r->max_tokens};
  }
  status = mk_engine_generate_all(e->engine, sequences, count, &calls);
done:
  mk_free(sequences);
  mk_free(b.requests);
  return status;
}

/* ---- A step ---- */

/* From the queue: those that are cancelled end here; one, or all, are then at work. */
static void take_work(mkvm_engine *e) {
  job *cancelled = NULL, **end = &cancelled, **to = &e->working;
  const double now = mkvm_clock();
  pthread_mutex_lock(&e->lock);
  for (job **at = &e->waiting; *at != NULL;) {
    job *r = *at;
    const bool gone = atomic_load(&r->cancelled);
    if (!gone && e->max_batch == 1 && e->working != NULL) {
      at = &r->next;
      continue;
    }
    *at = r->next;
    r->next = NULL;
    job ***last = gone ? &end : &to;
    **last = r;
    *last = &r->next;
    if (!gone) {
      r->begun = now;
      e->stats.waiting--;
      e->stats.running++;
    }
  }
  pthread_mutex_unlock(&e->lock);
  while (cancelled != NULL) {
    job *r = cancelled;
    cancelled = r->next;
    mkvm_finish(e, r, MK_OK);
    mkvm_request_free(r);
  }
}

/* The message of a failure is the caller's in the end, whatever callbacks do in between. */
static mk_status end_work(mkvm_engine *e, mk_status status) {
  enum { MESSAGE = 4096 };
  char message[MESSAGE];
  snprintf(message, sizeof message, "%s", mk_error_message());
  for (job *r = e->working; r != NULL; r = r->next) {
    if (!r->ended) {
      mkvm_finish(e, r, status == MK_OK ? MK_OK : mk_error(status, "%s", message));
    }
  }
  pthread_mutex_lock(&e->lock);
  job *list = e->working;
  e->working = NULL;
  pthread_mutex_unlock(&e->lock);
  while (list != NULL) {
    job *r = list;
    list = r->next;
    mkvm_request_free(r);
  }
  return status == MK_OK ? MK_OK : mk_error(status, "%s", message);
}

static mk_status step(mkvm_engine *e) {
  take_work(e);
  if (e->working == NULL) {
    return MK_OK;
  }
  e->stop = 0;
  if (e->max_batch > 1) {
    return end_work(e, generate_all(e));
  }
  mk_status status = generate(e, e->working);
  if (status == MK_ERR_USAGE || status == MK_ERR_RUNTIME) { /* this request's own */
    mkvm_finish(e, e->working, status);
    status = MK_OK;
  }
  return end_work(e, status);
}

/* ---- Who may ---- */

static mk_status begin_work(mkvm_engine *e, const char *what) {
  pthread_mutex_lock(&e->lock);
  const bool busy = e->busy, ours = busy && pthread_equal(e->worker, pthread_self());
  if (!busy) {
    e->busy = true;
    e->worker = pthread_self();
  }
  pthread_mutex_unlock(&e->lock);
  return !busy  ? MK_OK
         : ours ? mk_error(MK_ERR_USAGE, "%s: a callback of the engine may not make it work; return first", what)
                : mk_error(MK_ERR_USAGE, "%s: another thread makes this engine work; one at a time may", what);
}

static size_t stop_work(mkvm_engine *e, double start) {
  pthread_mutex_lock(&e->lock);
  e->busy = false;
  e->stats.busy_seconds += mkvm_clock() - start;
  const size_t left = (size_t)e->stats.waiting;
  pthread_mutex_unlock(&e->lock);
  return left;
}

static bool any_waits(mkvm_engine *e) {
  pthread_mutex_lock(&e->lock);
  const bool any = e->waiting != NULL;
  pthread_mutex_unlock(&e->lock);
  return any;
}

mkvm_status mkvm_step(mkvm_engine *e, size_t *left) {
  const double start = mkvm_clock();
  if (e == NULL) {
    return mkvm_status_of(mk_error(MK_ERR_USAGE, "mkvm_step: the engine is missing"));
  }
  mk_status status = begin_work(e, "mkvm_step");
  if (status != MK_OK) {
    return mkvm_status_of(status);
  }
  status = step(e);
  const size_t still = stop_work(e, start);
  if (left != NULL) {
    *left = still;
  }
  return mkvm_status_of(status);
}

mkvm_status mkvm_run(mkvm_engine *e) {
  const double start = mkvm_clock();
  if (e == NULL) {
    return mkvm_status_of(mk_error(MK_ERR_USAGE, "mkvm_run: the engine is missing"));
  }
  mk_status status = begin_work(e, "mkvm_run");
  if (status != MK_OK) {
    return mkvm_status_of(status);
  }
  while (status == MK_OK && any_waits(e)) {
    status = step(e);
  }
  (void)stop_work(e, start);
  return mkvm_status_of(status);
}
