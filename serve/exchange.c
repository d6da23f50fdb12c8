/* What runs for a request: the loop's part, which takes what the engine's thread tells, and ends the reply. See
 * server_internal.h and exchange_internal.h. */
#include "serve/exchange_internal.h"

void mk_exchange_free(mk_exchange *a) {
  for (size_t i = 0; i < a->count; i++) {
    mk_choice_free(&a->choices[i]);
  }
  for (size_t i = 0; a->echoes != NULL && i < a->request.prompt_count; i++) {
    mk_free(a->echoes[i].own_text);
    mkvm_free(a->echoes[i].tokens);
  }
  mk_free(a->echoes);
  mk_free(a->choices);
  mk_openai_request_free(&a->request);
  a->server->exchanges--;
  mk_free(a);
}

void mk_exchange_cancel(mk_exchange *a) {
  mkvm_engine *engine = atomic_load(&a->server->engine);
  for (size_t i = 0; i < a->count; i++) {
    if (a->choices[i].id != 0 && a->choices[i].reason == NULL) {
      (void)mkvm_cancel(engine, a->choices[i].id);
    }
  }
}

void mk_exchange_gone(void *user, mk_http_call *call) {
  mk_exchange *a = user;
  enum { CLIENT_GONE = 499 }; /* as nginx logs it */
  a->owed = call;
  a->call = NULL;
  a->status = CLIENT_GONE;
  a->reason = "abort";
  mk_exchange_cancel(a);
}

/* ---- The reply ---- */

static void begin_stream(mk_exchange *a) {
  if (!a->begun) {
    a->begun = true;
    mk_reply_headers(a->server, a->call, a->id);
    (void)mk_http_add_header(a->call, "Cache-Control", "no-cache");
    mk_http_begin(a->call, 200, "text/event-stream");
  }
}

/* Sends what is new in a stream; false: there is nothing new, or nobody listens. */
static bool send_scratch(mk_exchange *a) {
  const mk_bytes *out = &a->server->scratch;
  if (a->call == NULL || out->length == 0) {
    return false;
  }
  begin_stream(a);
  mk_http_send(a->call, out->bytes, out->length);
  return true;
}

static void end_call(mk_exchange *a) {
  mk_http_call *call = a->call;
  a->call = NULL;
  if (call != NULL) {
    mk_http_end(call, true);
  }
}

/* Ends the reply with an error, and cancels what still runs for it. */
static void fail(mk_exchange *a, const mk_serve_error *error) {
  mk_http_call *call = a->call;
  a->status = error->http_status;
  a->reason = "error";
  mk_exchange_cancel(a);
  if (call != NULL && (!a->begun || mk_http_take_back(call))) {
    a->call = NULL;
    mk_reply_error(a->server, call, a->id, error);
    return;
  }
  a->server->scratch.length = 0;
  if (mk_openai_write_error_event(&a->server->scratch, error) == MK_OK) {
    (void)send_scratch(a);
  }
  end_call(a);
}

static void fail_for_memory(mk_exchange *a) {
  mk_serve_error error;
  (void)mk_serve_fail(&error, 500, NULL, NULL, "%s", mk_error_message());
  fail(a, &error);
}

static void fail_by_end(mk_exchange *a, const mkvm_end *end) {
  mk_serve_error error;
  if (end->reason == MKVM_END_LATE) {
    (void)mk_serve_fail(&error, 503, NULL, "timeout", "The time that this server gives a request was over.");
  } else if (end->reason == MKVM_END_CANCELLED && atomic_load(&a->server->stops) == 0 &&
             !atomic_load(&a->server->finished)) { /* mk_choice_on_token has cancelled it */
    (void)mk_serve_fail(&error, 500, NULL, NULL, "The server has no memory for this answer; try again later.");
  } else if (end->reason == MKVM_END_CANCELLED) {
    (void)mk_serve_fail(&error, 503, NULL, "shutting_down", "The server is shutting down.");
  } else {
    (void)mk_serve_fail(&error, 500, NULL, NULL, "%s", end->message);
  }
  fail(a, &error);
}

static mk_status put_end(const mk_exchange *a, mk_bytes *out) {
  if (!a->request.stream) {
    return mk_exchange_put_response(a, out);
  }
  MK_TRY(a->request.include_usage ? mk_openai_write_usage(out, &a->reply, &a->usage) : MK_OK);
  return mk_openai_write_done(out);
}

/* Ends the reply when all choices have ended. */
static void finish(mk_exchange *a) {
  mk_bytes *out = &a->server->scratch;
  mk_http_call *call = a->call;
  out->length = 0;
  if (call != NULL && put_end(a, out) != MK_OK) {
    fail_for_memory(a);
  } else if (call != NULL && a->request.stream) {
    (void)send_scratch(a);
    end_call(a);
  } else if (call != NULL) {
    a->call = NULL;
    mk_reply_json(a->server, call, a->id, 200, out);
  }
  if (a->owed != NULL) {
    mk_http_end(a->owed, false);
  }
  mk_exchange_log(a);
  mk_exchange_free(a);
}

/* ---- Events ---- */

static void take_token(mk_choice *c, const mk_event *event) {
  mk_exchange *a = c->exchange;
  a->server->scratch.length = 0;
  if (mk_choice_take_token(c, &event->token, event->time_ns, &a->server->scratch) != MK_OK) {
    fail_for_memory(a);
  } else if (send_scratch(a)) {
    mk_metrics_observe(&a->server->metrics, MK_TOKEN_WRITE, mk_now_ns() - event->time_ns);
  }
}

static void take_end(mk_choice *c, const mkvm_end *end) {
  mk_exchange *a = c->exchange;
  const bool whole = end->reason == MKVM_END_STOP || end->reason == MKVM_END_LENGTH;
  mk_choice_note_end(c, end);
  c->prompt_tokens = end->prompt_tokens;
  c->reason = end->reason == MKVM_END_STOP && !mk_exchange_only_echoes(a) ? "stop" : "length";
  a->running--;
  if (a->call == NULL) {
    return;
  }
  if (!whole) {
    fail_by_end(a, end);
    return;
  }
  a->reason = a->reason == NULL ? c->reason : a->reason;
  a->server->scratch.length = 0;
  if (mk_choice_put_end(c, &a->server->scratch) != MK_OK) {
    fail_for_memory(a);
  } else {
    (void)send_scratch(a);
  }
}

/* With log-probabilities each step is a launch of its own, and the machine would wait for what the engine's thread
 * writes to sockets. */
static mk_http_call *lend(mk_exchange *a) {
  const bool may = a->call != NULL && a->begun && !a->request.logprobs;
  return may && mk_http_lend(a->call) ? a->call : NULL;
}

void mk_exchange_listen(mk_exchange *a) {
  mk_http_watch(a->call, mk_exchange_gone, a);
  if (a->request.stream && !a->request.logprobs) {
    begin_stream(a);
  }
  a->lent = lend(a);
  atomic_fetch_sub_explicit(&a->told, 1, memory_order_release);
}

void mk_exchange_take(const mk_event *event) {
  mk_choice *c = event->to;
  mk_exchange *a = c->exchange;
  if (event->kind == MK_EVENT_END) {
    take_end(c, &event->end);
  } else if (event->kind == MK_EVENT_TOKEN) {
    take_token(c, event);
  } else if (event->kind == MK_EVENT_UNSENT && a->call != NULL) {
    mk_http_send(a->call, NULL, 0);
  } else if (event->kind == MK_EVENT_PROMPT && a->call != NULL && mk_choice_keep(c, &event->token) != MK_OK) {
    fail_for_memory(a);
  }
  if (a->running == 0) {
    finish(a);
    return;
  }
  a->lent = lend(a);
  atomic_fetch_sub_explicit(&a->told, 1, memory_order_release);
}
