/* Paths, and what each of them answers. See server_internal.h. */
#include <ctype.h>
#include <string.h>
#include <strings.h>

#include "serve/json_write.h"
#include "serve/page.h"
#include "serve/server_internal.h"

typedef struct route_call {
  mk_server *server;
  mk_http_call *call;
  const char *id, *path;
  mkvm_engine *engine; /* NULL: the model is being loaded */
} route_call;

typedef mk_status (*route_fn)(const route_call *r, mk_serve_error *error);

enum {
  GET = 1,
  POST = 2,
  OPEN = 4 /* needs no key */,
  MODEL = 8 /* needs the model */,
  BELOW = 16 /* paths under it, too */
};

/* ---- Replies ---- */

void mk_reply_headers(mk_server *server, mk_http_call *call, const char *id) {
  (void)mk_http_add_header(call, "X-Request-Id", id);
  if (server->options.origin != NULL) {
    (void)mk_http_add_header(call, "Access-Control-Allow-Origin", server->options.origin);
    (void)mk_http_add_header(call, "Access-Control-Expose-Headers", "X-Request-Id");
    (void)mk_http_add_header(call, "Vary", "Origin");
  }
}

void mk_reply_json(mk_server *server, mk_http_call *call, const char *id, int status, const mk_bytes *body) {
  mk_reply_headers(server, call, id);
  mk_http_reply(call, status, "application/json", body->bytes, body->length);
}

void mk_reply_error(mk_server *server, mk_http_call *call, const char *id, const mk_serve_error *error) {
  static const char no_memory[] =
      "{\"error\":{\"message\":\"out of memory\",\"type\":\"server_error\",\"param\":null,\"code\":null}}";
  mk_bytes body = {0};
  if (error->http_status == 429 || error->http_status == 503) {
    (void)mk_http_add_header(call, "Retry-After", "1");
  }
  if (error->http_status == 401) {
    (void)mk_http_add_header(call, "WWW-Authenticate", "Bearer");
  }
  if (mk_openai_write_error(&body, error) == MK_OK) {
    mk_reply_json(server, call, id, error->http_status, &body);
  } else {
    mk_reply_headers(server, call, id);
    mk_http_reply(call, 500, "application/json", no_memory, sizeof no_memory - 1);
  }
  mk_free(body.bytes);
}

static void log_reply(const route_call *r, const char *peer, int status, uint64_t start_ns) {
  mk_log_request(r->server,
                 &(mk_request_note){
                     .id = r->id, .path = r->path, .peer = peer, .status = status, .total_ns = mk_now_ns() - start_ns});
}

/* What a writer has written, or why it has not; frees it. */
static mk_status reply_written(const route_call *r, mk_status written, mk_bytes *body, const char *type,
                               mk_serve_error *error) {
  if (written == MK_OK) {
    mk_reply_headers(r->server, r->call, r->id);
    mk_http_reply(r->call, 200, type, body->bytes, body->length);
  }
  mk_free(body->bytes);
  return written == MK_OK ? MK_OK : mk_serve_fail(error, 500, NULL, NULL, "%s", mk_error_message());
}

static mk_status reply_text(const route_call *r, const char *text, mk_serve_error *error) {
  mk_bytes body = {0};
  return reply_written(r, mk_bytes_append(&body, text, strlen(text)), &body, "application/json", error);
}

/* ---- What is ---- */

static mk_status page(const route_call *r, mk_serve_error *error) {
  (void)error;
  mk_reply_headers(r->server, r->call, r->id);
  (void)mk_http_add_header(r->call, "Cache-Control", "no-cache");
  (void)mk_http_add_header(r->call, "X-Content-Type-Options", "nosniff");
  (void)mk_http_add_header(r->call, "X-Frame-Options", "DENY");
  mk_http_reply(r->call, 200, "text/html; charset=utf-8", mk_serve_page, mk_serve_page_size);
  return MK_OK;
}

static mk_status health(const route_call *r, mk_serve_error *error) {
  return reply_text(r, "{\"status\":\"ok\"}", error);
}

static mk_status ready(const route_call *r, mk_serve_error *error) {
  return reply_text(r, "{\"status\":\"ready\"}", error);
}

static mk_status version(const route_call *r, mk_serve_error *error) {
  mk_bytes body = {0};
  return reply_written(r, mk_openai_write_version(&body, mkvm_version()), &body, "application/json", error);
}

static mk_openai_served served(const mk_server *server, size_t name) {
  return (mk_openai_served){.id = server->options.names[name],
                            .root = server->options.names[0],
                            .created = server->created,
                            .max_context = server->info.max_context};
}

static mk_status models(const route_call *r, mk_serve_error *error) {
  const size_t count = r->server->options.name_count;
  mk_openai_served *all;
  mk_bytes body = {0};
  mk_status status = mk_alloc(count, sizeof *all, &all);
  if (status == MK_OK) {
    for (size_t i = 0; i < count; i++) {
      all[i] = served(r->server, i);
    }
    status = mk_openai_write_models(&body, all, count);
    mk_free(all);
  }
  return reply_written(r, status, &body, "application/json", error);
}

static int hex_digit(char c) {
  return isdigit((unsigned char)c) ? c - '0' : isxdigit((unsigned char)c) ? tolower((unsigned char)c) - 'a' + 10 : -1;
}

/* Whether a part of a path, in which %2F and the like may stand, is `name`. */
static bool is_name(const char *part, const char *name) {
  for (; *part != '\0' && *name != '\0'; part++, name++) {
    const int high = *part == '%' ? hex_digit(part[1]) : -1, low = high < 0 ? -1 : hex_digit(part[2]);
    const char c = low < 0 ? *part : (char)(high * 16 + low);
    if (c != *name) {
      return false;
    }
    part += low < 0 ? 0 : 2;
  }
  return *part == '\0' && *name == '\0';
}

static size_t find_name(const mk_server *server, const char *name, bool in_path) {
  size_t i = 0;
  while (i < server->options.name_count &&
         !(in_path ? is_name(name, server->options.names[i]) : strcmp(name, server->options.names[i]) == 0)) {
    i++;
  }
  return i;
}

static mk_status no_such_model(const char *name, mk_serve_error *error) {
  return mk_serve_fail(error, 404, "model", "model_not_found",
                       "The model '%s' does not exist; /v1/models lists what does.", name);
}

static mk_status model(const route_call *r, mk_serve_error *error) {
  const char *name = r->path + strlen("/v1/models/");
  const size_t found = find_name(r->server, name, true);
  mk_bytes body = {0};
  if (found == r->server->options.name_count) {
    return no_such_model(name, error);
  }
  const mk_openai_served one = served(r->server, found);
  return reply_written(r, mk_openai_write_model(&body, &one), &body, "application/json", error);
}

static void add_since(mk_server *server, mk_counter counter, uint64_t now, uint64_t before) {
  mk_metrics_add(&server->metrics, counter, now - before);
}

static mk_status metrics(const route_call *r, mk_serve_error *error) {
  mk_server *s = r->server;
  mkvm_stats now;
  mk_bytes body = {0};
  if (r->engine != NULL && mkvm_get_stats(r->engine, &now) == MKVM_OK) {
    mk_metrics_set(&s->metrics, MK_REQUESTS_RUNNING, (double)now.running);
    mk_metrics_set(&s->metrics, MK_REQUESTS_WAITING, (double)now.waiting);
    mk_metrics_set(&s->metrics, MK_KV_CACHE_USAGE,
                   now.kv_tokens == 0 ? 0 : (double)now.kv_tokens_used / (double)now.kv_tokens);
    add_since(s, MK_PREEMPTIONS, now.preemptions, s->stats.preemptions);
    add_since(s, MK_CACHE_QUERIES, now.asked_tokens, s->stats.asked_tokens);
    add_since(s, MK_CACHE_HITS, now.cached_tokens, s->stats.cached_tokens);
    s->stats = now;
  }
  return reply_written(r, mk_metrics_write(&body, &s->metrics, s->options.names[0]), &body,
                       "text/plain; version=0.0.4; charset=utf-8", error);
}

/* ---- Text and ids ---- */

static mk_status reply_tokens(const route_call *r, const char *text, size_t length, bool add_special,
                              mk_serve_error *error) {
  uint32_t *tokens;
  size_t count;
  mk_bytes body = {0};
  mkvm_status status = mkvm_tokenize(r->engine, text, length, add_special, &tokens, &count);
  if (status != MKVM_OK) {
    return mk_serve_fail_as_libmkvm(error, status);
  }
  mk_status written = mk_openai_write_tokens(&body, tokens, count, r->server->info.max_context);
  mkvm_free(tokens);
  return reply_written(r, written, &body, "application/json", error);
}

static mk_status tokenize_request(const route_call *r, const mk_openai_request *request, mk_serve_error *error) {
  char *text;
  size_t length;
  if (request->turns == NULL) {
    return reply_tokens(r, request->prompts[0].text, request->prompts[0].length, request->add_special, error);
  }
  const char *variables = request->variables;
  mkvm_status status = mkvm_chat_text_with(r->engine, request->turns, request->turn_count, variables,
                                           variables == NULL ? 0 : strlen(variables), &text, &length);
  if (status != MKVM_OK) {
    return mk_serve_fail_as_libmkvm(error, status);
  }
  mk_status replied = reply_tokens(r, text, length, request->add_special, error);
  mkvm_free(text);
  return replied;
}

static mk_status tokenize(const route_call *r, mk_serve_error *error) {
  mk_openai_request request;
  size_t length;
  const char *body = mk_http_body(r->call, &length);
  MK_TRY(mk_openai_tokenize_parse(body, length, &request, error));
  mk_status status = tokenize_request(r, &request, error);
  mk_openai_request_free(&request);
  return status;
}

static mk_status detokenize(const route_call *r, mk_serve_error *error) {
  const mk_openai_model about = {.sampling = &r->server->sampling, .vocabulary = r->server->info.vocabulary};
  mk_openai_request request;
  size_t length, shown;
  char *text;
  mk_bytes answer = {0};
  const char *body = mk_http_body(r->call, &length);
  MK_TRY(mk_openai_detokenize_parse(body, length, &about, &request, error));
  mkvm_status status =
      mkvm_detokenize(r->engine, request.prompts[0].tokens, request.prompts[0].token_count, &text, &shown);
  mk_openai_request_free(&request);
  if (status != MKVM_OK) {
    return mk_serve_fail_as_libmkvm(error, status);
  }
  mk_status written = mk_openai_write_detokenized(&answer, text, shown);
  mkvm_free(text);
  return reply_written(r, written, &answer, "application/json", error);
}

static mk_status tokenizer_info(const route_call *r, mk_serve_error *error) {
  const mk_server *s = r->server;
  mk_openai_tokenizer about = s->about;
  mk_bytes body = {0};
  about.vocabulary = s->info.vocabulary;
  about.max_context = s->info.max_context;
  about.eos_ids = s->info.end_tokens;
  about.eos_count = s->info.end_token_count;
  return reply_written(r, mk_openai_write_tokenizer(&body, &about), &body, "application/json", error);
}

/* ---- What runs ---- */

static mk_status generate(const route_call *r, bool chat, mk_serve_error *error) {
  mk_server *s = r->server;
  const mk_openai_model about = {.sampling = &s->sampling, .vocabulary = s->info.vocabulary};
  mk_openai_request request;
  size_t length;
  const char *body = mk_http_body(r->call, &length);
  MK_TRY(chat ? mk_openai_chat_parse(body, length, &about, &request, error)
              : mk_openai_completion_parse(body, length, &about, &request, error));
  const bool named = request.model != NULL && request.model[0] != '\0'; /* an empty name: whatever is served */
  request.model = named ? request.model : NULL;
  mk_status status = named && find_name(s, request.model, false) == s->options.name_count
                         ? no_such_model(request.model, error)
                         : mk_exchange_begin(s, r->call, &request, r->id, error);
  mk_openai_request_free(&request);
  return status;
}

static mk_status chat_completions(const route_call *r, mk_serve_error *error) { return generate(r, true, error); }
static mk_status completions(const route_call *r, mk_serve_error *error) { return generate(r, false, error); }

/* ---- Paths ---- */

static const struct route {
  const char *path;
  unsigned is;
  route_fn answer;
} routes[] = {
    {"/", GET | OPEN, page},
    {"/health", GET | OPEN, health},
    {"/ready", GET | OPEN | MODEL, ready},
    {"/version", GET, version},
    {"/metrics", GET, metrics},
    {"/v1/models", GET | MODEL, models},
    {"/v1/models/", GET | MODEL | BELOW, model},
    {"/tokenize", POST | MODEL, tokenize},
    {"/detokenize", POST | MODEL, detokenize},
    {"/tokenizer_info", GET | MODEL, tokenizer_info},
    {"/v1/chat/completions", POST | MODEL, chat_completions},
    {"/v1/completions", POST | MODEL, completions},
};

static const struct route *find_route(const mk_server *server, const char *path) {
  for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
    const struct route *r = &routes[i];
    const size_t length = strlen(r->path);
    const bool same =
        (r->is & BELOW) != 0 ? strncmp(path, r->path, length) == 0 && path[length] != '\0' : strcmp(path, r->path) == 0;
    if (same && (r->answer != page || server->options.page)) {
      return r;
    }
  }
  return NULL;
}

static const char *allowed(const struct route *route) {
  return (route->is & POST) != 0 ? "POST, OPTIONS" : "GET, HEAD, OPTIONS";
}

static void answer_options(const route_call *r, const struct route *route) {
  mk_reply_headers(r->server, r->call, r->id);
  (void)mk_http_add_header(r->call, "Allow", allowed(route));
  if (r->server->options.origin != NULL) {
    (void)mk_http_add_header(r->call, "Access-Control-Allow-Methods", allowed(route));
    const char *asked = mk_http_header(r->call, "Access-Control-Request-Headers");
    (void)mk_http_add_header(r->call, "Access-Control-Allow-Headers", /* clients in a browser have some of their own */
                             asked != NULL ? asked : "Authorization, Content-Type, X-Request-Id");
    (void)mk_http_add_header(r->call, "Access-Control-Max-Age", "600");
  }
  mk_http_reply(r->call, 204, NULL, NULL, 0);
}

static bool may(const mk_server *server, const struct route *route, const mk_http_call *call) {
  const mk_keys *keys = server->options.keys;
  return (route != NULL && (route->is & OPEN) != 0) || keys == NULL || keys->count == 0 ||
         mk_keys_accept(keys, mk_http_header(call, "Authorization"));
}

/* A packed body would be taken for JSON that is broken. */
static mk_status check_encoding(const mk_http_call *call, mk_serve_error *error) {
  const char *encoding = mk_http_header(call, "Content-Encoding");
  return encoding == NULL || encoding[0] == '\0' || strcasecmp(encoding, "identity") == 0
             ? MK_OK
             : mk_serve_fail(error, 400, NULL, "unsupported_encoding",
                             "The header Content-Encoding is '%.40s'; send the body as it is, without it.", encoding);
}

static mk_status check_model(const route_call *r, mk_serve_error *error) {
  if (atomic_load(&r->server->stops) != 0 || atomic_load(&r->server->finished)) {
    return mk_serve_fail(error, 503, NULL, "shutting_down", "The server is shutting down.");
  }
  return r->engine != NULL ? MK_OK : mk_serve_fail(error, 503, NULL, "loading", "The model is being loaded.");
}

static mk_status answer(const route_call *r, const struct route *route, mk_serve_error *error) {
  const mk_http_method method = mk_http_method_of(r->call);
  if (!may(r->server, route, r->call) && method != MK_HTTP_OPTIONS) { /* a browser asks for options without a key */
    return mk_serve_fail(error, 401, NULL, "invalid_api_key",
                         "An API key is needed, as 'Authorization: Bearer KEY', and a right one.");
  }
  if (route == NULL) {
    return mk_serve_fail(error, 404, NULL, NULL, "There is nothing at %s.", r->path);
  }
  if (method == MK_HTTP_OPTIONS) {
    answer_options(r, route);
    return MK_OK;
  }
  const unsigned need = method == MK_HTTP_POST ? POST : method == MK_HTTP_OTHER ? 0 : GET;
  if ((route->is & need) == 0) {
    (void)mk_http_add_header(r->call, "Allow", allowed(route));
    return mk_serve_fail(error, 405, NULL, NULL, "%s takes %s.", r->path, allowed(route));
  }
  MK_TRY((route->is & POST) != 0 ? check_encoding(r->call, error) : MK_OK);
  MK_TRY((route->is & MODEL) != 0 ? check_model(r, error) : MK_OK);
  return route->answer(r, error);
}

/* The client's own, if it is fit for logs and headers; else one that nobody else has. */
static void choose_id(mk_server *server, const mk_http_call *call, char id[MK_REQUEST_ID]) {
  const char *given = mk_http_header(call, "X-Request-Id");
  size_t length = given == NULL ? 0 : strlen(given);
  bool fit = length > 0 && length < MK_REQUEST_ID;
  for (size_t i = 0; fit && i < length; i++) {
    fit = isalnum((unsigned char)given[i]) || strchr("-_.:", given[i]) != NULL;
  }
  if (fit) {
    memcpy(id, given, length + 1);
  } else {
    snprintf(id, MK_REQUEST_ID, "%016llx%08llx", (unsigned long long)server->random,
             (unsigned long long)++server->last_id);
  }
}

void mk_route(mk_server *server, mk_http_call *call) {
  char id[MK_REQUEST_ID], peer[64], path[128];
  const uint64_t start_ns = mk_now_ns();
  const struct route *route = find_route(server, mk_http_path(call));
  choose_id(server, call, id);
  snprintf(peer, sizeof peer, "%s", mk_http_peer(call)); /* the call goes with its reply */
  snprintf(path, sizeof path, "%s", mk_http_path(call));
  const route_call r = {.server = server, .call = call, .id = id, .path = path, .engine = atomic_load(&server->engine)};
  mk_serve_error error;
  const size_t before = server->exchanges;
  const int good = mk_http_method_of(call) == MK_HTTP_OPTIONS ? 204 : 200;
  mk_status status = answer(&r, route, &error);
  if (status != MK_OK) {
    mk_reply_error(server, call, id, &error);
  }
  /* What is asked for every second by whoever watches. */
  const bool quiet = route != NULL && ((route->is & OPEN) != 0 || route->answer == metrics);
  if (!quiet && server->exchanges == before) {
    log_reply(&r, peer, status == MK_OK ? good : error.http_status, start_ns);
  }
}
