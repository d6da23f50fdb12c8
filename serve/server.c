/* Starts, loads, ends. See server.h. */
#include "serve/server.h"

#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "models/json.h"
#include "serve/server_internal.h"

enum { MOST_CONFIG = 64 << 20 };

void mk_server_defaults(mk_server_options *options) {
  enum { ROWS = 16, SHUTDOWN_SECONDS = 30 };
  *options = (mk_server_options){.page = true, .shutdown_seconds = SHUTDOWN_SECONDS, .log = stderr};
  mkvm_options_init(&options->engine);
  options->engine.max_batch = ROWS;
  mk_http_defaults(&options->http);
}

static void say(const mk_server *server, const char *line) {
  if (server->options.on_line != NULL) {
    server->options.on_line(line);
  }
}

/* ---- The engine's thread ---- */

static void on_log(void *user, mkvm_log_level level, const char *line) {
  (void)level;
  say(user, line);
}

static int on_progress(void *user, uint64_t done, uint64_t total) {
  const mk_server *server = user;
  if (server->options.on_loading != NULL) {
    server->options.on_loading(done, total);
  }
  return atomic_load(&server->stops) != 0;
}

/* The numbers are the same, and so is the place of the message. */
static mk_status from_libmkvm(mkvm_status status) { return (mk_status)status; }

/* The text of a member that is a string, or an object with "content", as a token is there; NULL: neither. */
static const char *token_text(const json_t *object, const char *key) {
  const json_t *value = mk_json_get(object, key);
  return json_string_value(json_is_object(value) ? mk_json_get(value, "content") : value);
}

/* What /tokenizer_info tells; a file that is not there, or is no JSON, tells nothing. */
static mk_status read_config(mk_server *s) {
  char *path, *text = NULL;
  size_t length;
  MK_TRY(mk_path_join(s->options.directory, "tokenizer_config.json", &path));
  mk_status status = mk_file_read(path, true, MOST_CONFIG, &text, &length);
  mk_free(path);
  if (status == MK_OK && text != NULL && mk_json_parse(text, length, &s->config) != MK_OK) {
    s->config = NULL;
  }
  mk_free(text);
  MK_TRY(status);
  s->about.tokenizer_class = json_string_value(mk_json_get(s->config, "tokenizer_class"));
  s->about.bos_token = token_text(s->config, "bos_token");
  s->about.eos_token = token_text(s->config, "eos_token");
  s->about.chat_template = json_string_value(mk_json_get(s->config, "chat_template"));
  MK_TRY(mk_path_join(s->options.directory, "chat_template.jinja", &path));
  status = mk_file_read(path, true, MOST_CONFIG, &s->chat_template, &length);
  mk_free(path);
  MK_TRY(status);
  s->about.chat_template = s->chat_template != NULL ? s->chat_template : s->about.chat_template;
  return MK_OK;
}

static mk_status load(mk_server *s) {
  mkvm_options options = s->options.engine;
  char line[256];
  options.on_log = on_log;
  options.on_progress = on_progress;
  options.user = s;
  MK_TRY(from_libmkvm(mkvm_open(s->options.directory, &options, &s->loaded)));
  mkvm_sampling_init(&s->sampling);
  MK_TRY(from_libmkvm(mkvm_get_info(s->loaded, &s->info)));
  MK_TRY(from_libmkvm(mkvm_sampling_of_model(s->loaded, &s->sampling)));
  MK_TRY(read_config(s));
  MK_TRY(mk_token_table_make(s->loaded, s->info.vocabulary, &s->tokens));
  atomic_store(&s->engine, s->loaded);
  snprintf(line, sizeof line, "ready: %s on %s, %u tokens of context, %u requests in a step; loaded in %.2f s",
           s->options.names[0], s->info.device, s->info.max_context, s->info.max_batch, s->info.load_seconds);
  say(s, line);
  return MK_OK;
}

static void *work(void *user) {
  mk_server *s = user;
  mk_status status = load(s);
  if (status == MK_OK) {
    status = from_libmkvm(mkvm_serve(s->loaded));
  }
  s->status = status;
  snprintf(s->message, sizeof s->message, "%s", status == MK_OK ? "" : mk_error_message());
  atomic_store(&s->finished, true);
  mk_http_wake(s->http);
  return NULL;
}

/* ---- The loop's thread ---- */

static void take_events(mk_server *s) {
  mk_event event;
  while (mk_events_take(&s->events, &event)) {
    mk_exchange_take(&event);
  }
}

/* The thread has ended: what still runs ends with the engine, and is told so. */
static void close_engine(mk_server *s) {
  (void)pthread_join(s->worker, NULL);
  s->working = false;
  take_events(s);
  atomic_store(&s->engine, NULL);
  (void)mkvm_close(s->loaded);
  s->loaded = NULL;
  take_events(s);
}

enum { LAST_SECONDS = 2 }; /* for replies to go out */

static void on_time(void *user) {
  mk_server *s = user;
  mkvm_engine *engine = atomic_load(&s->engine);
  say(s, "cutting off what still runs");
  if (engine != NULL) {
    (void)mkvm_shutdown(engine, MKVM_ABORT);
  }
}

static void look_at_stops(mk_server *s) {
  const int stops = atomic_load(&s->stops);
  mkvm_engine *engine = atomic_load(&s->engine);
  if (stops == s->stops_seen) {
    return;
  }
  if (stops > 1) {
    on_time(s);
  } else {
    say(s, "draining: no new requests; once more ends at once");
    if (engine != NULL) {
      (void)mkvm_shutdown(engine, MKVM_DRAIN);
    }
    mk_http_timer(s->http, s->options.shutdown_seconds, on_time);
  }
  s->stops_seen = stops;
}

static void on_wake(void *user) {
  mk_server *s = user;
  take_events(s);
  mk_log_flush(s);
  look_at_stops(s);
  if (atomic_load(&s->finished) && s->working) {
    close_engine(s);
    mk_http_stop(s->http, LAST_SECONDS);
  } else if (s->stops_seen != 0 && atomic_load(&s->engine) != NULL) {
    /* A model that came after the signal is told of it now. */
    (void)mkvm_shutdown(atomic_load(&s->engine), s->stops_seen > 1 ? MKVM_ABORT : MKVM_DRAIN);
  }
}

static void on_call(void *user, mk_http_call *call) { mk_route(user, call); }

/* ---- From outside ---- */

mk_status mk_server_open(const mk_server_options *options, mk_server **out) {
  mk_server *s;
  MK_TRY(mk_alloc(1, sizeof *s, &s));
  s->options = *options;
  s->created = (int64_t)time(NULL);
  mk_events_init(&s->events);
  if (getrandom(&s->random, sizeof s->random, 0) != sizeof s->random) {
    s->random = mk_now_ns();
  }
  mk_http_options http = options->http;
  http.on_call = on_call;
  http.on_wake = on_wake;
  http.user = s;
  mk_status status = mk_http_open(&http, &s->http);
  if (status != MK_OK) {
    mk_server_free(s);
    return status;
  }
  *out = s;
  return MK_OK;
}

uint16_t mk_server_port(const mk_server *server) { return mk_http_port(server->http); }

mk_status mk_server_run(mk_server *s) {
  if (pthread_create(&s->worker, NULL, work, s) != 0) {
    return mk_error(MK_ERR_RUNTIME, "no thread for the engine can be made");
  }
  s->working = true;
  mk_status status = mk_http_run(s->http);
  if (s->working) { /* the loop failed */
    mk_server_stop(s);
    mk_server_stop(s);
    if (atomic_load(&s->engine) != NULL) {
      (void)mkvm_shutdown(s->loaded, MKVM_ABORT);
    }
    close_engine(s);
  }
  MK_TRY(status);
  const bool cancelled = s->status != MK_OK && atomic_load(&s->stops) != 0 && s->info.max_context == 0;
  return s->status == MK_OK || cancelled ? MK_OK : mk_error(s->status, "%s", s->message);
}

void mk_server_stop(mk_server *server) {
  atomic_fetch_add(&server->stops, 1);
  mk_http_wake(server->http);
}

void mk_server_free(mk_server *s) {
  if (s == NULL) {
    return;
  }
  mk_http_close(s->http);
  mk_log_flush(s);
  mk_events_free(&s->events);
  mk_token_table_free(&s->tokens);
  json_decref(s->config);
  mk_free(s->chat_template);
  mk_free(s->scratch.bytes);
  mk_free(s->unlogged.bytes);
  mk_free(s->side.piece.bytes);
  mk_free(s);
}
