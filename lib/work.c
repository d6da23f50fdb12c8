/* The work of an engine: what has arrived goes to the engine below, which is made to work until it has come to its end.
 * The engine below calls mkvm_look at the boundary of every step. See internal.h. */
#include <sys/eventfd.h>
#include <time.h>

#include "lib/internal.h"
#include "scheduler/compile.h"

/* ---- What the engine below tells ---- */

/* What is told of a token, and the place for what it points to. */
typedef struct telling {
  mkvm_token token;
  mkvm_logprob top[MKVM_MOST_LOGPROBS];
} telling;

static void add_logprobs(const job *r, telling *t) {
  const mk_ranking *ranking = &r->ranking;
  t->token.logprob = ranking->logprob;
  t->token.rank = ranking->rank;
  for (uint32_t i = 0; i < ranking->count; i++) {
    t->top[i] = (mkvm_logprob){.token = ranking->top[i].token, .logprob = ranking->top[i].logprob};
  }
  t->token.top = t->top;
  t->token.top_count = ranking->count;
}

static void on_prompt(void *user, size_t sequence, uint32_t position, const float *logits) {
  job *r = user;
  telling t = {
      .token = {.request = r->id, .token = r->prompt.ids[position + 1], .text = "", .prompt_tokens = r->prompt.count}};
  (void)sequence;
  (void)logits;
  if (!atomic_load(&r->cancelled)) {
    add_logprobs(r, &t);
    r->on_prompt(r->user, &t.token);
  }
}

static uint64_t steps_so_far(const job *r) {
  mk_batch_counters now;
  mk_engine_count(r->engine->engine, &now);
  return now.steps;
}

static void take_token(job *r, uint32_t token, const float *logits) {
  telling t = {.token = {.request = r->id, .token = token, .prompt_tokens = r->prompt.count, .step = steps_so_far(r)}};
  mkvm_token *told = &t.token;
  r->last = mkvm_clock();
  r->first = r->first != 0 ? r->first : r->last;
  r->status = mk_reply_token(&r->reply, token, logits, &told->text, &told->length);
  if (r->status == MK_OK && r->logprobs) {
    add_logprobs(r, &t);
  }
  if (r->status == MK_OK && r->on_token != NULL && r->on_token(r->user, told) != 0) {
    atomic_store(&r->cancelled, true);
  }
}

/* false: no more. */
static bool on_token(void *user, size_t sequence, uint32_t token, const float *logits) {
  job *r = user;
  (void)sequence;
  if (!atomic_load(&r->cancelled)) {
    take_token(r, token, logits);
  }
  return r->status == MK_OK && !r->reply.ended && !atomic_load(&r->cancelled);
}

static void on_ended(void *user, size_t sequence, mk_status status) {
  (void)sequence;
  mkvm_finish(user, status);
}

/* ---- What comes from outside ---- */

static mk_status hand_over(job *r) {
  const mk_sequence sequence = {.prompt = r->prompt.ids,
                                .prompt_count = r->prompt.count,
                                .n_predict = r->max_tokens,
                                .sampling = &r->sampling,
                                .report = &r->report,
                                .ranking = r->logprobs || r->on_prompt != NULL ? &r->ranking : NULL,
                                .prompt_logits = r->on_prompt != NULL,
                                .priority = r->priority,
                                .begin_by = r->queue_seconds == 0 ? 0 : r->submitted + r->queue_seconds,
                                .end_by = r->total_seconds == 0 ? 0 : r->submitted + r->total_seconds};
  const mk_sequence_calls calls = {.token = on_token, .prompt = on_prompt, .ended = on_ended, .user = r};
  return mk_engine_submit(r->engine->engine, &sequence, &calls, 0, &r->sequence);
}

/* The next that the engine below does not have; NULL: it has all. */
static job *next_arrival(mkvm_engine *e) {
  pthread_mutex_lock(&e->lock);
  job *r = e->arrived;
  if (r != NULL) {
    e->arrived = r->next;
    e->arrivals--;
  }
  pthread_mutex_unlock(&e->lock);
  return r;
}

static void take_arrivals(mkvm_engine *e) {
  for (job *r = next_arrival(e); r != NULL; r = next_arrival(e)) {
    mk_status status = atomic_load(&r->cancelled) ? MK_OK : hand_over(r);
    if (r->sequence == 0) {
      mkvm_finish(r, status);
    }
  }
}

/* The one after `r`, or the first (NULL), of those that the engine below has. */
static job *next_handed(mkvm_engine *e, const job *r) {
  pthread_mutex_lock(&e->lock);
  job *next = r == NULL ? e->jobs : r->next;
  next = next == e->arrived ? NULL : next;
  pthread_mutex_unlock(&e->lock);
  return next;
}

/* Nobody but this thread takes one from the list, so the next one stays. */
static void take_cancellations(mkvm_engine *e) {
  for (job *r = next_handed(e, NULL), *next; r != NULL; r = next) {
    next = next_handed(e, r);
    if (atomic_load(&r->cancelled)) {
      (void)mk_engine_cancel(e->engine, r->sequence);
    }
  }
}

void mkvm_look(void *user) {
  mkvm_engine *e = user;
  if (atomic_exchange(&e->news, false)) {
    take_arrivals(e);
    take_cancellations(e);
  }
  mkvm_count(e);
}

void mkvm_count(mkvm_engine *e) {
  mk_batch_counters now;
  mk_engine_count(e->engine, &now);
  pthread_mutex_lock(&e->lock);
  mkvm_stats *s = &e->stats;
  s->waiting = now.waiting + e->arrivals;
  s->running = now.running;
  s->launches = now.launches;
  s->steps = now.steps;
  s->preemptions = now.preemptions;
  s->asked_tokens = now.asked_tokens;
  s->cached_tokens = now.cached_tokens;
  s->kv_tokens = (uint64_t)now.blocks * MK_BLOCK_TOKENS;
  s->kv_tokens_used = (uint64_t)now.blocks_in_use * MK_BLOCK_TOKENS;
  s->kv_tokens_kept = (uint64_t)now.blocks_kept * MK_BLOCK_TOKENS;
  pthread_mutex_unlock(&e->lock);
}

/* ---- Who may ---- */

void mkvm_set_event(mkvm_engine *e) {
  const bool set = e->jobs != NULL && !e->busy;
  eventfd_t value;
  if (set != e->event_set) {
    (void)(set ? eventfd_write(e->event, 1) : eventfd_read(e->event, &value)); /* neither can block, nor fail then */
    e->event_set = set;
  }
}

int mkvm_event_fd(const mkvm_engine *e) { return e == NULL ? -1 : e->event; }

static mk_status begin_work(mkvm_engine *e, const char *what) {
  if (e == NULL) {
    return mk_error(MK_ERR_USAGE, "%s: the engine is missing", what);
  }
  pthread_mutex_lock(&e->lock);
  const bool busy = e->busy, ours = busy && pthread_equal(e->worker, pthread_self());
  if (!busy) {
    e->busy = true;
    e->worker = pthread_self();
    mkvm_set_event(e);
  }
  pthread_mutex_unlock(&e->lock);
  return !busy  ? MK_OK
         : ours ? mk_error(MK_ERR_USAGE, "%s: a callback of the engine may not make it work; return first", what)
                : mk_error(MK_ERR_USAGE, "%s: another thread makes this engine work; one at a time may", what);
}

/* Requests that have not ended. */
static size_t stop_work(mkvm_engine *e) {
  size_t left = 0;
  pthread_mutex_lock(&e->lock);
  e->busy = false;
  mkvm_set_event(e);
  for (const job *r = e->jobs; r != NULL; r = r->next) {
    left++;
  }
  pthread_mutex_unlock(&e->lock);
  return left;
}

/* ---- The work ---- */

static mk_status launch(mkvm_engine *e) {
  const double start = mkvm_clock();
  size_t left;
  mk_status status = mk_engine_step(e->engine, &left);
  mkvm_count(e);
  pthread_mutex_lock(&e->lock);
  e->stats.busy_seconds += mkvm_clock() - start;
  pthread_mutex_unlock(&e->lock);
  return status;
}

mkvm_status mkvm_step(mkvm_engine *e, size_t *left) {
  mk_status status = begin_work(e, "mkvm_step");
  if (status != MK_OK) {
    return mkvm_status_of(status);
  }
  status = launch(e);
  const size_t still = stop_work(e);
  if (left != NULL) {
    *left = still;
  }
  return mkvm_status_of(status);
}

static bool has_work(mkvm_engine *e) {
  pthread_mutex_lock(&e->lock);
  const bool any = e->jobs != NULL;
  pthread_mutex_unlock(&e->lock);
  return any;
}

/* With the lock held: until there is something to do, or never will be; with other ranks for a second at most. */
static void sleep_until_called(mkvm_engine *e) {
  struct timespec until;
  if (!e->others) {
    pthread_cond_wait(&e->wake, &e->lock);
    return;
  }
  clock_gettime(CLOCK_REALTIME, &until); /* the clock of conditions */
  until.tv_sec++;
  (void)pthread_cond_timedwait(&e->wake, &e->lock, &until);
}

/* *any: there is something to do; else nothing will come any more. Fails when another rank is gone. */
static mk_status wait_for_work(mkvm_engine *e, bool *any) {
  for (bool over = false; !over;) {
    pthread_mutex_lock(&e->lock);
    if (e->jobs == NULL && !e->shut) {
      sleep_until_called(e);
    }
    *any = e->jobs != NULL;
    over = *any || e->shut;
    pthread_mutex_unlock(&e->lock);
    MK_TRY(over ? MK_OK : mk_engine_watch(e->engine));
  }
  return MK_OK;
}

mkvm_status mkvm_run(mkvm_engine *e) {
  mk_status status = begin_work(e, "mkvm_run");
  if (status != MK_OK) {
    return mkvm_status_of(status);
  }
  while (status == MK_OK && has_work(e)) {
    status = launch(e);
  }
  (void)stop_work(e);
  return mkvm_status_of(status);
}

mkvm_status mkvm_serve(mkvm_engine *e) {
  uint64_t steps_at_failure = UINT64_MAX;
  mk_status status = begin_work(e, "mkvm_serve");
  if (status != MK_OK) {
    return mkvm_status_of(status);
  }
  for (bool any; (status = wait_for_work(e, &any)) == MK_OK && any;) {
    status = launch(e);
    const bool again = e->stats.steps == steps_at_failure; /* this thread alone writes them */
    if (status != MK_OK && (again || mk_engine_lost(e->engine))) {
      break;
    }
    steps_at_failure = status != MK_OK ? e->stats.steps : steps_at_failure;
  }
  (void)stop_work(e);
  return mkvm_status_of(status);
}

mkvm_status mkvm_shutdown(mkvm_engine *e, mkvm_shutdown_way way) {
  if (e == NULL || (way != MKVM_DRAIN && way != MKVM_ABORT)) {
    return mkvm_status_of(mk_error(MK_ERR_USAGE, "mkvm_shutdown: %s",
                                   e == NULL ? "the engine is missing" : "the way is MKVM_DRAIN or MKVM_ABORT"));
  }
  pthread_mutex_lock(&e->lock);
  e->shut = true;
  if (way == MKVM_ABORT) {
    mkvm_cancel_all(e);
  }
  pthread_cond_broadcast(&e->wake);
  pthread_mutex_unlock(&e->lock);
  return MKVM_OK;
}
