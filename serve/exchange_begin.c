/* From a parsed body to requests of libmkvm: one for each choice. See exchange_internal.h. */
#include <sys/random.h>
#include <time.h>

#include "serve/exchange_internal.h"

static uint64_t any_seed(void) {
  uint64_t seed = 0;
  if (getrandom(&seed, sizeof seed, 0) != sizeof seed) {
    seed = mk_now_ns();
  }
  return seed;
}

static mk_status make_echo(mk_exchange *a, const mk_openai_prompt *prompt, mk_echo *e, mk_serve_error *error) {
  const mkvm_engine *engine = atomic_load(&a->server->engine);
  mkvm_status status = MKVM_OK;
  if (prompt->text != NULL) {
    *e = (mk_echo){.text = prompt->text, .length = prompt->length};
    status = mkvm_tokenize(engine, prompt->text, prompt->length, 1, &e->tokens, &e->count);
  } else {
    status = mkvm_detokenize(engine, prompt->tokens, prompt->token_count, &e->own_text, &e->length);
    e->text = e->own_text;
  }
  return status == MKVM_OK ? MK_OK : mk_serve_fail_as_libmkvm(error, status);
}

/* Keeps the first token of a prompt, which has no log-probability: no token comes before it. */
static mk_status keep_first(mk_choice *c, uint32_t token, mk_serve_error *error) {
  const mkvm_token first = {.token = token};
  return mk_choice_keep(c, &first) == MK_OK ? MK_OK : mk_serve_fail(error, 500, NULL, NULL, "%s", mk_error_message());
}

/* What libmkvm refuses of a request that was parsed is its prompt, unless there is no room for it. */
static mk_status refuse(const mk_choice *c, mkvm_status why, mk_serve_error *error) {
  const mk_openai_request *r = &c->exchange->request;
  const mk_status status = mk_serve_fail_as_libmkvm(error, why);
  if (error->http_status == 400 && !r->chat && r->prompt_count > 1) {
    snprintf(error->param, sizeof error->param, "prompt[%u]", c->index / r->n);
  } else if (error->http_status == 400) {
    snprintf(error->param, sizeof error->param, "%s", r->chat ? "messages" : "prompt");
  }
  return status;
}

static mk_status submit(mk_choice *c, mk_serve_error *error) {
  mk_exchange *a = c->exchange;
  const mk_openai_request *r = &a->request;
  const mk_openai_prompt *prompt = r->chat ? NULL : &r->prompts[c->index / r->n];
  const mk_echo *e = mk_choice_echo(c);
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
  request.max_tokens = mk_exchange_only_echoes(a) ? 1 : r->max_tokens;
  request.sampling = &sampling;
  request.stops = r->stops;
  request.stop_count = r->stop_count;
  request.ignore_end = r->ignore_eos;
  request.priority = r->priority;
  request.queue_seconds = a->server->options.queue_seconds;
  request.total_seconds = a->server->options.total_seconds;
  request.logprobs = r->logprobs;
  request.top_logprobs = r->top_logprobs;
  request.on_token = mk_choice_on_token;
  request.on_prompt = e != NULL && r->logprobs ? mk_choice_on_prompt : NULL;
  request.on_end = mk_choice_on_end;
  request.user = c;
  if (request.on_prompt != NULL && request.token_count != 0) {
    MK_TRY(keep_first(c, request.tokens[0], error));
  }
  mkvm_status status = mkvm_submit(atomic_load(&a->server->engine), &request, &c->id);
  if (status != MKVM_OK) {
    c->id = 0;
    return refuse(c, status, error);
  }
  a->running++;
  return MK_OK;
}

static mk_status submit_all(mk_exchange *a, mk_serve_error *error) {
  const mk_openai_request *r = &a->request;
  const uint32_t most = a->server->options.engine.max_waiting; /* 0: as many as a request may ask for */
  if (most != 0 && a->count > most) {                          /* trying again later would not help */
    return mk_serve_fail(error, 400, r->n > 1 ? "n" : "prompt", "invalid_value",
                         "The request asks for %zu answers, and this server lets at most %u wait (--max-waiting): ask "
                         "for fewer at a time.",
                         a->count, most);
  }
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
  a->told = 1; /* until mk_exchange_listen */
  a->call = call;
  a->count = count;
  a->status = 200;
  a->start_ns = mk_now_ns();
  snprintf(a->id, sizeof a->id, "%s", id);
  snprintf(a->reply_id, sizeof a->reply_id, "%s-%s", request->chat ? "chatcmpl" : "cmpl", id);
  snprintf(a->peer, sizeof a->peer, "%s", mk_http_peer(call));
  for (size_t i = 0; i < count; i++) {
    a->choices[i] = (mk_choice){.exchange = a, .index = (uint32_t)i};
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
    mk_exchange_listen(a);
    return MK_OK;
  }
  a->call = NULL; /* the caller says what is wrong */
  a->status = error->http_status;
  mk_exchange_cancel(a);
  if (a->running == 0) {
    mk_exchange_free(a);
  }
  return status;
}
