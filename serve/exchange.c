/* What runs for a request: one or more choices, each a request of libmkvm, and the reply that they become. See
 * server_internal.h. */
#include <sys/random.h>

#include "serve/server_internal.h"

/* A prompt that is echoed: its text, and its ids. */
typedef struct echo {
  const char *text;
  char *own_text; /* NULL: the text is the request's */
  size_t length;
  uint32_t *tokens;
  size_t count;
} echo;

typedef struct choice {
  mk_exchange *answer;
  uint32_t index;
  uint64_t id; /* of libmkvm */
  bool begun;  /* a part of it was sent, or its echo taken in */
  const char *reason;
  uint64_t prompt_tokens, tokens, first_ns, last_ns; /* prompt_tokens: known from the first token on */
  uint64_t offset;                                   /* characters of the tokens told */
  mk_bytes text;
  /* With log-probabilities: those of the prompt until they are sent, or of all when the reply is one piece. */
  mk_openai_token *kept;
  size_t kept_count, kept_capacity;
} choice;

struct mk_exchange {
  mk_server *server;
  mk_http_call *call; /* NULL: nobody listens any more */
  mk_http_call *owed; /* whose client has gone */
  mk_openai_request request;
  mk_openai_reply reply;
  char id[MK_REQUEST_ID], reply_id[MK_REQUEST_ID + 16], peer[64];
  echo *echoes; /* [prompt_count], of a request with echo */
  choice *choices;
  size_t count, running; /* running: of libmkvm, without an end yet */
  mk_openai_usage usage;
  bool head_sent;
  int status;
  const char *reason;
  uint64_t start_ns, queue_ns, first_ns;
};

/* ---- Tokens ---- */

static mk_openai_candidate candidate_of(const mk_server *server, uint32_t token, double logprob) {
  const mk_token_text text = mk_token_text_of(&server->tokens, token);
  return (mk_openai_candidate){.token = token, .text = text.bytes, .length = text.length, .logprob = (float)logprob};
}

/* top: [MKVM_MOST_LOGPROBS] */
static mk_openai_token token_of(const mk_server *server, const mkvm_token *token, mk_openai_candidate *top) {
  for (uint32_t i = 0; i < token->top_count; i++) {
    top[i] = candidate_of(server, token->top[i].token, token->top[i].logprob);
  }
  return (mk_openai_token){.chosen = candidate_of(server, token->token, token->logprob),
                           .top = top,
                           .top_count = token->top_count,
                           .unknown = token->rank == 0,
                           .unseen = mk_token_text_of(&server->tokens, token->token).special};
}

static void drop_kept(choice *c) {
  for (size_t i = 0; i < c->kept_count; i++) {
    mk_free((void *)(uintptr_t)c->kept[i].top);
  }
  c->kept_count = 0;
}

static mk_status keep_token(choice *c, const mkvm_token *token) {
  mk_openai_candidate *top = NULL;
  MK_TRY(mk_grow(&c->kept, &c->kept_capacity, c->kept_count + 1, sizeof *c->kept));
  if (token->top_count != 0) {
    MK_TRY(mk_alloc(token->top_count, sizeof *top, &top));
  }
  c->kept[c->kept_count++] = token_of(c->answer->server, token, top);
  return MK_OK;
}

/* ---- The end ---- */

static void free_exchange(mk_exchange *a) {
  for (size_t i = 0; i < a->count; i++) {
    drop_kept(&a->choices[i]);
    mk_free(a->choices[i].kept);
    mk_free(a->choices[i].text.bytes);
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

static const char *path_of(const mk_exchange *a) {
  return a->request.chat ? "/v1/chat/completions" : "/v1/completions";
}

static void log_exchange(mk_exchange *a) {
  const mk_openai_request *r = &a->request;
  const bool prompts = a->server->options.log_prompts;
  mk_request_note note = {.id = a->id,
                          .path = path_of(a),
                          .peer = a->peer,
                          .reason = a->reason,
                          .status = a->status,
                          .prompt_tokens = a->usage.prompt_tokens,
                          .cached_tokens = a->usage.cached_tokens,
                          .tokens = a->usage.completion_tokens,
                          .queue_ns = a->queue_ns,
                          .first_ns = a->first_ns,
                          .total_ns = mk_now_ns() - a->start_ns};
  if (prompts) {
    note.prompt = r->chat ? r->turns[r->turn_count - 1].content : r->prompts[0].text;
    note.prompt_length = r->chat ? r->turns[r->turn_count - 1].content_length : r->prompts[0].length;
    note.prompt = note.prompt == NULL ? "" : note.prompt;
    note.answer = a->choices[0].text.bytes == NULL ? "" : (const char *)a->choices[0].text.bytes;
    note.answer_length = a->choices[0].text.length;
  }
  mk_log_request(a->server, &note);
}

static void cancel_all(mk_exchange *a) {
  mkvm_engine *engine = atomic_load(&a->server->engine);
  for (size_t i = 0; i < a->count; i++) {
    if (a->choices[i].id != 0 && a->choices[i].reason == NULL) {
      (void)mkvm_cancel(engine, a->choices[i].id);
    }
  }
}

static void send_scratch(mk_exchange *a) {
  mk_bytes *out = &a->server->scratch;
  if (a->call != NULL && out->length != 0) {
    mk_http_send(a->call, out->bytes, out->length);
  }
  out->length = 0;
}

/* The reply ends with an error; what still runs for it is cancelled. */
static void fail(mk_exchange *a, const mk_serve_error *error) {
  mk_http_call *call = a->call;
  a->status = error->http_status;
  a->reason = "error";
  cancel_all(a);
  if (call == NULL) {
    return;
  }
  if (!a->head_sent) {
    a->call = NULL;
    mk_reply_error(a->server, call, a->id, error);
    return;
  }
  a->server->scratch.length = 0;
  if (mk_openai_write_error_event(&a->server->scratch, error) == MK_OK) {
    send_scratch(a);
  }
  call = a->call; /* sending may have found that the client has gone */
  a->call = NULL;
  if (call != NULL) {
    mk_http_end(call, true);
  }
}

static void fail_for_memory(mk_exchange *a) {
  mk_serve_error error;
  (void)mk_serve_fail(&error, 500, NULL, NULL, "%s", mk_error_message());
  fail(a, &error);
}

static mk_status write_response(mk_exchange *a) {
  mk_openai_choice *choices;
  MK_TRY(mk_alloc(a->count, sizeof *choices, &choices));
  for (size_t i = 0; i < a->count; i++) {
    const choice *c = &a->choices[i];
    choices[i] = (mk_openai_choice){.index = c->index,
                                    .text = c->text.bytes == NULL ? "" : (const char *)c->text.bytes,
                                    .length = c->text.length,
                                    .tokens = c->kept,
                                    .token_count = c->kept_count,
                                    .finish_reason = c->reason};
  }
  a->server->scratch.length = 0;
  mk_status status = mk_openai_write_response(&a->server->scratch, &a->reply, choices, a->count, &a->usage);
  mk_free(choices);
  return status;
}

static void end_stream(mk_exchange *a) {
  mk_bytes *out = &a->server->scratch;
  out->length = 0;
  mk_status status = a->request.include_usage ? mk_openai_write_usage(out, &a->reply, &a->usage) : MK_OK;
  status = status == MK_OK ? mk_openai_write_done(out) : status;
  if (status != MK_OK) {
    fail_for_memory(a);
    return;
  }
  send_scratch(a);
  mk_http_call *call = a->call;
  a->call = NULL;
  if (call != NULL) {
    mk_http_end(call, true);
  }
}

/* All choices have ended. */
static void finish(mk_exchange *a) {
  if (a->call != NULL && a->request.stream) {
    end_stream(a);
  } else if (a->call != NULL && write_response(a) == MK_OK) {
    mk_http_call *call = a->call;
    a->call = NULL;
    mk_reply_json(a->server, call, a->id, 200, &a->server->scratch);
  } else if (a->call != NULL) {
    fail_for_memory(a);
  }
  if (a->owed != NULL) {
    mk_http_end(a->owed, false);
  }
  log_exchange(a);
  free_exchange(a);
}

static void on_gone(void *user, mk_http_call *call) {
  mk_exchange *a = user;
  enum { CLIENT_GONE = 499 }; /* as nginx logs it */
  a->owed = call;
  a->call = NULL;
  a->status = CLIENT_GONE;
  a->reason = "abort";
  cancel_all(a);
}

/* ---- Parts of a reply ---- */

static void begin_stream(mk_exchange *a) {
  if (!a->head_sent && a->call != NULL) {
    a->head_sent = true;
    mk_reply_headers(a->server, a->call, a->id);
    (void)mk_http_add_header(a->call, "Cache-Control", "no-cache");
    mk_http_begin(a->call, 200, "text/event-stream");
  }
}

static mk_openai_usage usage_so_far(const choice *c) {
  return (mk_openai_usage){.prompt_tokens = c->prompt_tokens, .completion_tokens = c->tokens};
}

/* An event of a stream: text, tokens, or an end. */
static mk_status send_part(choice *c, const char *text, size_t length, const mk_openai_token *tokens, size_t count,
                           const char *finish_reason) {
  mk_exchange *a = c->answer;
  const mk_openai_usage usage = usage_so_far(c);
  const mk_openai_choice part = {.index = c->index,
                                 .first = !c->begun,
                                 .text = text,
                                 .length = length,
                                 .tokens = tokens,
                                 .token_count = count,
                                 .offset = c->offset,
                                 .finish_reason = finish_reason,
                                 .usage = a->request.continuous_usage ? &usage : NULL};
  a->server->scratch.length = 0;
  MK_TRY(mk_openai_write_chunk(&a->server->scratch, &a->reply, &part));
  begin_stream(a);
  send_scratch(a);
  c->begun = true;
  c->offset += mk_openai_characters(tokens, count);
  return MK_OK;
}

static const echo *echo_of(const choice *c) {
  const mk_exchange *a = c->answer;
  return a->echoes == NULL ? NULL : &a->echoes[c->index / a->request.n];
}

/* Before anything else of a choice: the prompt, with what is known of its tokens. */
static mk_status put_echo(choice *c) {
  const mk_exchange *a = c->answer;
  const echo *e = echo_of(c);
  if (c->begun || e == NULL) {
    return MK_OK;
  }
  if (!a->request.stream || a->server->options.log_prompts) {
    MK_TRY(mk_bytes_append(&c->text, e->text, e->length));
  }
  if (a->request.stream) {
    MK_TRY(send_part(c, e->text, e->length, c->kept, c->kept_count, NULL));
    drop_kept(c);
  }
  c->begun = true;
  return MK_OK;
}

static mk_status put_token(choice *c, const mkvm_token *token) {
  const mk_exchange *a = c->answer;
  const bool told = a->request.logprobs && token->token != MKVM_NO_TOKEN;
  mk_openai_candidate top[MKVM_MOST_LOGPROBS];
  MK_TRY(put_echo(c));
  if (!a->request.stream || a->server->options.log_prompts) {
    MK_TRY(mk_bytes_append(&c->text, token->text, token->length));
  }
  if (!a->request.stream) {
    return told ? keep_token(c, token) : MK_OK;
  }
  if (token->length == 0 && !told && (c->begun || !a->request.chat)) {
    return MK_OK;
  }
  const mk_openai_token one = told ? token_of(a->server, token, top) : (mk_openai_token){.unknown = true};
  return send_part(c, token->text, token->length, told ? &one : NULL, told, NULL);
}

/* ---- Events ---- */

static bool generates(const mk_exchange *a) { return !a->request.has_max_tokens || a->request.max_tokens != 0; }

static void note_token(choice *c, uint64_t time_ns) {
  mk_exchange *a = c->answer;
  mk_metrics *m = &a->server->metrics;
  c->tokens++;
  mk_metrics_add(m, MK_GENERATION_TOKENS, 1);
  if (c->first_ns == 0) {
    c->first_ns = time_ns;
    a->first_ns = a->first_ns == 0 ? time_ns - a->start_ns : a->first_ns;
    mk_metrics_observe(m, MK_TIME_TO_FIRST_TOKEN, time_ns - a->start_ns);
  } else {
    mk_metrics_observe(m, MK_INTER_TOKEN, time_ns - c->last_ns);
  }
  c->last_ns = time_ns;
}

static void take_token(choice *c, const mk_event *event) {
  mk_exchange *a = c->answer;
  if (!generates(a)) {
    return;
  }
  c->prompt_tokens = event->token.prompt_tokens;
  if (event->token.token != MKVM_NO_TOKEN) {
    note_token(c, event->time_ns);
  }
  if (a->call == NULL) {
    return;
  }
  if (put_token(c, &event->token) != MK_OK) {
    fail_for_memory(a);
  } else if (a->request.stream) {
    mk_metrics_observe(&a->server->metrics, MK_TOKEN_WRITE, mk_now_ns() - event->time_ns);
  }
}

static uint64_t nanoseconds(double seconds) { return seconds > 0 ? (uint64_t)(seconds * 1e9) : 0; }

static void note_end(choice *c, const mkvm_end *end) {
  mk_exchange *a = c->answer;
  mk_metrics *m = &a->server->metrics;
  const uint64_t total = nanoseconds(end->queue_seconds + end->prompt_seconds + end->generate_seconds);
  const mk_counter counter = end->reason == MKVM_END_STOP     ? MK_ENDED_BY_STOP
                             : end->reason == MKVM_END_LENGTH ? MK_ENDED_BY_LENGTH
                             : end->reason == MKVM_END_ERROR  ? MK_ENDED_BY_ERROR
                                                              : MK_ENDED_BY_ABORT;
  mk_metrics_add(m, counter, 1);
  if (c->index % a->request.n == 0) {
    a->usage.prompt_tokens += end->prompt_tokens;
    a->usage.cached_tokens += end->cached_tokens;
  }
  a->usage.completion_tokens += c->tokens;
  a->queue_ns = a->queue_ns == 0 ? nanoseconds(end->queue_seconds) : a->queue_ns;
  if (end->reason != MKVM_END_STOP && end->reason != MKVM_END_LENGTH) {
    return;
  }
  mk_metrics_add(m, MK_PROMPT_TOKENS, end->prompt_tokens);
  mk_metrics_observe(m, MK_REQUEST_TIME, total);
  mk_metrics_observe(m, MK_QUEUE_TIME, nanoseconds(end->queue_seconds));
  mk_metrics_observe(m, MK_PREFILL_TIME, nanoseconds(end->prompt_seconds));
  mk_metrics_observe(m, MK_DECODE_TIME, nanoseconds(end->generate_seconds));
  mk_metrics_observe(m, MK_REQUEST_PROMPT_TOKENS, end->prompt_tokens);
  mk_metrics_observe(m, MK_REQUEST_GENERATION_TOKENS, c->tokens);
  if (c->tokens > 1) {
    mk_metrics_observe(m, MK_TIME_PER_OUTPUT_TOKEN, nanoseconds(end->generate_seconds) / (c->tokens - 1));
  }
}

static void fail_by_end(mk_exchange *a, const mkvm_end *end) {
  mk_serve_error error;
  if (end->reason == MKVM_END_LATE) {
    (void)mk_serve_fail(&error, 503, NULL, "timeout", "The time that this server gives a request was over.");
  } else if (end->reason == MKVM_END_CANCELLED) {
    (void)mk_serve_fail(&error, 503, NULL, "shutting_down", "The server is shutting down.");
  } else {
    (void)mk_serve_fail(&error, 500, NULL, NULL, "%s", end->message);
  }
  fail(a, &error);
}

static void take_end(choice *c, const mkvm_end *end) {
  mk_exchange *a = c->answer;
  const bool whole = end->reason == MKVM_END_STOP || end->reason == MKVM_END_LENGTH;
  note_end(c, end);
  c->prompt_tokens = end->prompt_tokens;
  c->reason = end->reason == MKVM_END_STOP && generates(a) ? "stop" : "length";
  a->running--;
  if (a->call != NULL && !whole) {
    fail_by_end(a, end);
  } else if (a->call != NULL) {
    a->reason = a->reason == NULL ? c->reason : a->reason;
    mk_status status = put_echo(c);
    if (status == MK_OK && a->request.stream) {
      status = send_part(c, NULL, 0, NULL, 0, c->reason);
    }
    if (status != MK_OK) {
      fail_for_memory(a);
    }
  }
  if (a->running == 0) {
    finish(a);
  }
}

void mk_exchange_take(const mk_event *event) {
  choice *c = event->to;
  if (event->kind == MK_EVENT_END) {
    take_end(c, &event->end);
  } else if (event->kind == MK_EVENT_TOKEN) {
    take_token(c, event);
  } else if (c->answer->call != NULL && keep_token(c, &event->token) != MK_OK) {
    fail_for_memory(c->answer);
  }
}

/* ---- In the engine's thread ---- */

static mk_status tell(choice *c, mk_event event) {
  mk_server *server = c->answer->server;
  bool first;
  event.to = c;
  event.time_ns = mk_now_ns();
  MK_TRY(mk_events_put(&server->events, &event, &first));
  if (first) {
    mk_http_wake(server->http);
  }
  return MK_OK;
}

static int on_token(void *user, const mkvm_token *token) {
  return tell(user, (mk_event){.kind = MK_EVENT_TOKEN, .token = *token}) != MK_OK;
}

static void on_prompt(void *user, const mkvm_token *token) {
  (void)tell(user, (mk_event){.kind = MK_EVENT_PROMPT, .token = *token});
}

static void on_end(void *user, const mkvm_end *end) {
  while (tell(user, (mk_event){.kind = MK_EVENT_END, .end = *end}) != MK_OK) {
    /* Without it the reply would never end, and the loop frees memory meanwhile. */
  }
}

/* ---- The beginning ---- */

static uint64_t any_seed(void) {
  uint64_t seed = 0;
  if (getrandom(&seed, sizeof seed, 0) != sizeof seed) {
    seed = mk_now_ns();
  }
  return seed;
}

static mk_status make_echo(mk_exchange *a, const mk_openai_prompt *prompt, echo *e, mk_serve_error *error) {
  const mkvm_engine *engine = atomic_load(&a->server->engine);
  mkvm_status status = MKVM_OK;
  if (prompt->text != NULL) {
    *e = (echo){.text = prompt->text, .length = prompt->length};
    status = mkvm_tokenize(engine, prompt->text, prompt->length, 1, &e->tokens, &e->count);
  } else {
    status = mkvm_detokenize(engine, prompt->tokens, prompt->token_count, &e->own_text, &e->length);
    e->text = e->own_text;
  }
  return status == MKVM_OK ? MK_OK : mk_serve_fail_as_libmkvm(error, status);
}

/* The first token of a prompt, of which nothing is known. */
static mk_status keep_first(choice *c, uint32_t token, mk_serve_error *error) {
  const mkvm_token first = {.token = token};
  return keep_token(c, &first) == MK_OK ? MK_OK : mk_serve_fail(error, 500, NULL, NULL, "%s", mk_error_message());
}

static mk_status submit(choice *c, mk_serve_error *error) {
  mk_exchange *a = c->answer;
  const mk_openai_request *r = &a->request;
  const mk_openai_prompt *prompt = r->chat ? NULL : &r->prompts[c->index / r->n];
  const echo *e = echo_of(c);
  mkvm_request request;
  mkvm_sampling sampling = r->sampling;
  mkvm_request_init(&request);
  sampling.seed = r->has_seed ? r->sampling.seed + c->index % r->n : any_seed();
  request.turns = r->turns;
  request.turn_count = r->turn_count;
  request.variables = r->variables;
  request.variables_length = r->variables == NULL ? 0 : strlen(r->variables);
  if (prompt != NULL) {
    request.text = e != NULL ? NULL : prompt->text;
    request.text_length = prompt->length;
    request.tokens = e != NULL && e->tokens != NULL ? e->tokens : prompt->tokens;
    request.token_count = e != NULL && e->tokens != NULL ? e->count : prompt->token_count;
  }
  request.max_tokens = generates(a) ? r->max_tokens : 1;
  request.sampling = &sampling;
  request.stops = r->stops;
  request.stop_count = r->stop_count;
  request.ignore_end = r->ignore_eos;
  request.priority = r->priority;
  request.queue_seconds = a->server->options.queue_seconds;
  request.total_seconds = a->server->options.total_seconds;
  request.logprobs = r->logprobs;
  request.top_logprobs = r->top_logprobs;
  request.on_token = on_token;
  request.on_prompt = e != NULL && r->logprobs ? on_prompt : NULL;
  request.on_end = on_end;
  request.user = c;
  if (request.on_prompt != NULL && request.token_count != 0) {
    MK_TRY(keep_first(c, request.tokens[0], error));
  }
  mkvm_status status = mkvm_submit(atomic_load(&a->server->engine), &request, &c->id);
  if (status != MKVM_OK) {
    c->id = 0;
    return mk_serve_fail_as_libmkvm(error, status);
  }
  a->running++;
  return MK_OK;
}

static mk_status submit_all(mk_exchange *a, mk_serve_error *error) {
  const mk_openai_request *r = &a->request;
  if (r->echo) {
    if (mk_alloc(r->prompt_count, sizeof *a->echoes, &a->echoes) != MK_OK) {
      return mk_serve_fail(error, 500, NULL, NULL, "%s", mk_error_message());
    }
    for (size_t i = 0; i < r->prompt_count; i++) {
      MK_TRY(make_echo(a, &r->prompts[i], &a->echoes[i], error));
    }
  }
  for (size_t i = 0; i < a->count; i++) {
    MK_TRY(submit(&a->choices[i], error));
  }
  return MK_OK;
}

static mk_status make(mk_server *server, mk_http_call *call, const mk_openai_request *request, const char *id,
                      mk_exchange **out) {
  MK_TRY(mk_alloc(1, sizeof **out, out));
  mk_exchange *a = *out;
  const size_t count = (request->chat ? 1 : request->prompt_count) * request->n;
  mk_status status = mk_alloc(count, sizeof *a->choices, &a->choices);
  if (status != MK_OK) {
    mk_free(a);
    return status;
  }
  a->server = server;
  a->call = call;
  a->count = count;
  a->status = 200;
  a->start_ns = mk_now_ns();
  snprintf(a->id, sizeof a->id, "%s", id);
  snprintf(a->reply_id, sizeof a->reply_id, "%s-%s", request->chat ? "chatcmpl" : "cmpl", id);
  snprintf(a->peer, sizeof a->peer, "%s", mk_http_peer(call));
  for (size_t i = 0; i < count; i++) {
    a->choices[i] = (choice){.answer = a, .index = (uint32_t)i};
  }
  server->exchanges++;
  return MK_OK;
}

mk_status mk_exchange_begin(mk_server *server, mk_http_call *call, mk_openai_request *request, const char *id,
                            mk_serve_error *error) {
  mk_exchange *a;
  if (make(server, call, request, id, &a) != MK_OK) {
    return mk_serve_fail(error, 500, NULL, NULL, "%s", mk_error_message());
  }
  a->request = *request;
  *request = (mk_openai_request){0};
  a->reply = (mk_openai_reply){.chat = a->request.chat,
                               .id = a->reply_id,
                               .created = (int64_t)time(NULL),
                               .model = a->request.model != NULL ? a->request.model : server->options.names[0],
                               .logprobs = a->request.logprobs,
                               .include_usage = a->request.include_usage};
  mk_status status = submit_all(a, error);
  if (status == MK_OK) {
    mk_http_watch(call, on_gone, a);
    return MK_OK;
  }
  a->call = NULL; /* the caller says what is wrong */
  a->status = error->http_status;
  cancel_all(a);
  if (a->running == 0) {
    free_exchange(a);
  }
  return status;
}
