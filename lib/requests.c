/* Requests, from what a caller says to the queue, and to their ends. See internal.h. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "lib/internal.h"

void mkvm_request_free(job *r) {
  if (r == NULL) {
    return;
  }
  mk_reply_free(&r->reply);
  mk_tokens_free(&r->prompt);
  mk_free(r->biases);
  for (size_t i = 0; i < r->stop_count; i++) {
    mk_free(r->stops[i]);
  }
  mk_free(r->stops);
  mk_free(r);
}

static mk_status take_ids(const mkvm_engine *e, const mkvm_request *given, mk_tokens *out) {
  const uint32_t vocab = mk_engine_config(e->engine)->vocab;
  if (given->token_count == 0 || given->token_count > e->max_context) {
    return mk_error(given->token_count == 0 ? MK_ERR_USAGE : MK_ERR_TOO_LONG,
                    "the prompt has %zu tokens; the context holds 1 to %u", given->token_count, e->max_context);
  }
  for (size_t i = 0; i < given->token_count; i++) {
    if (given->tokens[i] >= vocab) {
      return mk_error(MK_ERR_USAGE, "prompt token %zu is %u; the vocabulary has %u", i, given->tokens[i], vocab);
    }
  }
  MK_TRY(mk_alloc(given->token_count, sizeof *out->ids, &out->ids));
  memcpy(out->ids, given->tokens, given->token_count * sizeof *out->ids);
  out->count = out->capacity = given->token_count;
  return MK_OK;
}

static mk_status take_prompt(const mkvm_engine *e, const mkvm_request *given, job *r) {
  char *text;
  size_t length;
  if ((given->text != NULL) + (given->turns != NULL) + (given->tokens != NULL) != 1) {
    return mk_error(MK_ERR_USAGE, "mkvm_request: the prompt is one of text, turns and tokens; the others are NULL");
  }
  if (given->tokens != NULL) {
    return take_ids(e, given, &r->prompt);
  }
  if (given->text != NULL) {
    return mkvm_encode(e, given->text, given->text_length, false, &r->prompt);
  }
  r->conversation = true;
  MK_TRY(mkvm_render(e, given->turns, given->turn_count, given->variables, given->variables_length, &text, &length));
  mk_status status = mkvm_encode(e, text, length, true, &r->prompt);
  mk_free(text);
  return status;
}

static mk_status take_stops(const mkvm_request *given, job *r) {
  if (given->stops == NULL && given->stop_count != 0) {
    return mk_error(MK_ERR_USAGE, "mkvm_request: %zu stops at no address", given->stop_count);
  }
  MK_TRY(mk_alloc(given->stop_count, sizeof *r->stops, &r->stops));
  for (size_t i = 0; i < given->stop_count; i++) {
    if (given->stops[i] == NULL || given->stops[i][0] == '\0') {
      return mk_error(MK_ERR_USAGE, "stop text %zu is empty; every text would end before it began", i);
    }
    MK_TRY(mk_strdup(given->stops[i], &r->stops[i]));
    r->stop_count = i + 1;
  }
  return MK_OK;
}

/* What no load and no time would change. A prompt that fills the context is not computed, since no token could come
 * after it, and so nothing would be known of its tokens. */
static mk_status check_room(const mkvm_engine *e, const mkvm_request *given, const job *r) {
  if (given->on_prompt != NULL && r->prompt.count == e->max_context) {
    return mk_error(MK_ERR_TOO_LONG,
                    "the prompt has %zu tokens, as many as the context; for log-probabilities of its tokens it may "
                    "have %u: shorten it",
                    r->prompt.count, e->max_context - 1);
  }
  return r->prompt.count <= e->kv_tokens
             ? MK_OK
             : mk_error(MK_ERR_TOO_LONG, "the prompt has %zu tokens; the KV cache holds %" PRIu64 "; raise kv_tokens",
                        r->prompt.count, e->kv_tokens);
}

static mk_status take_deadline(const char *name, double seconds, double *out) {
  if (!(seconds >= 0)) {
    return mk_error(MK_ERR_USAGE, "mkvm_request: %s is %g; 0, for none, or more is possible", name, seconds);
  }
  *out = seconds;
  return MK_OK;
}

static mk_status take_request(const mkvm_engine *e, const mkvm_request *given, job *r) {
  mkvm_request own;
  mkvm_request_init(&own);
  MK_TRY(mkvm_take_struct("mkvm_request", given, offsetof(mkvm_request, user) + sizeof own.user, &own, sizeof own));
  MK_TRY(take_deadline("queue_seconds", own.queue_seconds, &r->queue_seconds));
  MK_TRY(take_deadline("total_seconds", own.total_seconds, &r->total_seconds));
  if (own.top_logprobs > MKVM_MOST_LOGPROBS) {
    return mk_error(MK_ERR_USAGE, "mkvm_request: top_logprobs is %u; at most %d are possible", own.top_logprobs,
                    MKVM_MOST_LOGPROBS);
  }
  MK_TRY(take_prompt(e, &own, r));
  MK_TRY(check_room(e, &own, r));
  MK_TRY(take_stops(&own, r));
  MK_TRY(mkvm_take_sampling(e, own.sampling, &r->sampling, &r->biases));
  r->priority = own.priority;
  const size_t usual = e->generation.max_new_tokens == 0 ? SIZE_MAX : e->generation.max_new_tokens;
  r->max_tokens = own.max_tokens == 0 ? usual : own.max_tokens;
  r->logprobs = own.logprobs != 0;
  r->ranking.most = own.top_logprobs;
  r->on_token = own.on_token;
  r->on_prompt = own.on_prompt;
  r->on_end = own.on_end;
  r->user = own.user;
  atomic_init(&r->cancelled, false);
  r->reply = (mk_reply){.config = mk_engine_config(e->engine),
                        .ignore_eos = own.ignore_end != 0,
                        .stop = {.strings = (const char *const *)r->stops, .count = r->stop_count}};
  return mk_reply_begin(&r->reply, e->tokenizer, r->conversation ? NULL : &r->prompt);
}

/* At the end of the list, if there is room; with the lock held. */
static mk_status add(mkvm_engine *e, job *r) {
  job **at = &e->jobs;
  if (e->shut) {
    return mk_error(MK_ERR_USAGE, "mkvm_submit: the engine is being closed, or was shut down");
  }
  if (e->stats.waiting >= e->max_waiting) {
    e->stats.refused++;
    return mk_error(MK_ERR_BUSY, "mkvm_submit: %u requests wait already; try again later, or raise max_waiting",
                    e->max_waiting);
  }
  while (*at != NULL) {
    at = &(*at)->next;
  }
  *at = r;
  r->id = ++e->last_id;
  e->arrived = e->arrived == NULL ? r : e->arrived;
  e->arrivals++;
  e->stats.submitted++;
  e->stats.waiting++;
  return MK_OK;
}

static mk_status queue_up(mkvm_engine *e, job *r, uint64_t *id) {
  r->engine = e;
  r->submitted = mkvm_clock();
  pthread_mutex_lock(&e->lock);
  mk_status status = add(e, r);
  if (status == MK_OK) {
    if (id != NULL) {
      *id = r->id; /* by now, since it may end at once */
    }
    atomic_store(&e->news, true);
    mkvm_set_event(e);
    pthread_cond_signal(&e->wake);
  }
  pthread_mutex_unlock(&e->lock);
  return status;
}

mkvm_status mkvm_submit(mkvm_engine *e, const mkvm_request *given, uint64_t *id) {
  job *r;
  if (e == NULL || given == NULL) {
    return mkvm_status_of(mk_error(MK_ERR_USAGE, "mkvm_submit: the engine or the request is missing"));
  }
  mk_status status = mk_alloc(1, sizeof *r, &r);
  if (status == MK_OK) {
    status = take_request(e, given, r);
  }
  if (status == MK_OK) {
    status = queue_up(e, r, id);
  }
  if (status != MK_OK) {
    mkvm_request_free(r);
  }
  return mkvm_status_of(status);
}

static void cancel(mkvm_engine *e, job *r) {
  atomic_store(&r->cancelled, true);
  atomic_store(&e->news, true);
}

void mkvm_cancel_all(mkvm_engine *e) {
  for (job *r = e->jobs; r != NULL; r = r->next) {
    cancel(e, r);
  }
}

mkvm_status mkvm_cancel(mkvm_engine *e, uint64_t id) {
  if (e == NULL) {
    return mkvm_status_of(mk_error(MK_ERR_USAGE, "mkvm_cancel: the engine is missing"));
  }
  pthread_mutex_lock(&e->lock);
  const uint64_t last = e->last_id;
  for (job *r = e->jobs; r != NULL && r->id <= id; r = r->next) {
    if (r->id == id) {
      cancel(e, r);
    }
  }
  pthread_mutex_unlock(&e->lock);
  return id != 0 && id <= last ? MKVM_OK
                               : mkvm_status_of(mk_error(MK_ERR_USAGE, "mkvm_cancel: no request has the number %llu",
                                                         (unsigned long long)id));
}

static mkvm_end_reason reason_of(const job *r, mk_status status) {
  return status != MK_OK                  ? MKVM_END_ERROR
         : r->reply.ended                 ? MKVM_END_STOP
         : r->report.how == MK_ENDED_LATE ? MKVM_END_LATE
         : atomic_load(&r->cancelled)     ? MKVM_END_CANCELLED
                                          : MKVM_END_LENGTH;
}

/* Text that was held back. */
static mk_status tell_rest(job *r) {
  mkvm_token rest = {.request = r->id, .token = MKVM_NO_TOKEN, .prompt_tokens = r->prompt.count};
  MK_TRY(mk_reply_finish(&r->reply, &rest.text, &rest.length));
  if (rest.length != 0 && r->on_token != NULL) {
    (void)r->on_token(r->user, &rest);
  }
  return MK_OK;
}

/* It is in the list no more. */
static void take_away(mkvm_engine *e, const job *r, mkvm_end_reason reason) {
  pthread_mutex_lock(&e->lock);
  mkvm_stats *s = &e->stats;
  job **at = &e->jobs;
  while (*at != r) {
    at = &(*at)->next;
  }
  *at = r->next;
  *(reason == MKVM_END_STOP        ? &s->stopped
    : reason == MKVM_END_LENGTH    ? &s->full
    : reason == MKVM_END_CANCELLED ? &s->cancelled
    : reason == MKVM_END_LATE      ? &s->late
                                   : &s->failed) += 1;
  s->prompt_tokens += r->report.begun ? r->prompt.count : 0;
  s->tokens += r->reply.tokens;
  pthread_mutex_unlock(&e->lock);
}

static mkvm_end end_of(const job *r, mk_status status, const char *message) {
  const double now = mkvm_clock(), begun = r->report.begun ? r->report.begun_at : now;
  const double first = r->first != 0 ? r->first : now;
  return (mkvm_end){.request = r->id,
                    .reason = reason_of(r, status),
                    .status = mkvm_status_of(status),
                    .message = message,
                    .prompt_tokens = r->prompt.count,
                    .tokens = r->reply.tokens,
                    .queue_seconds = begun - r->submitted,
                    .prompt_seconds = r->report.begun ? first - begun : 0,
                    .generate_seconds = r->first != 0 ? r->last - r->first : 0,
                    .cached_tokens = r->report.cached,
                    .preemptions = r->report.preemptions};
}

void mkvm_finish(job *r, mk_status status) {
  enum { MESSAGE = 4096 };
  char message[MESSAGE] = "";
  if (status == MK_OK) {
    status = r->status;
  }
  if (status == MK_OK && !atomic_load(&r->cancelled)) {
    status = tell_rest(r);
  }
  if (status != MK_OK) { /* a callback that calls us may leave another message */
    snprintf(message, sizeof message, "%s", mk_error_message());
  }
  const mkvm_end end = end_of(r, status, message);
  take_away(r->engine, r, end.reason);
  mkvm_count(r->engine);
  if (r->on_end != NULL) {
    r->on_end(r->user, &end);
  }
  mkvm_request_free(r);
}

mkvm_status mkvm_get_stats_size(mkvm_engine *e, mkvm_stats *out, size_t size) {
  if (e == NULL || out == NULL || size < sizeof out->size) {
    return mkvm_status_of(mk_error(MK_ERR_USAGE, "mkvm_get_stats: the engine or the place is missing"));
  }
  pthread_mutex_lock(&e->lock);
  const mkvm_stats stats = e->stats;
  pthread_mutex_unlock(&e->lock);
  mkvm_give_struct(&stats, sizeof stats, out, size);
  return MKVM_OK;
}
