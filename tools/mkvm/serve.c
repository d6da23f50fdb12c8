/* mkvm serve: OpenAI's endpoints for a model directory. */
#include <arpa/inet.h>
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "serve/server.h"
#include "tools/mkvm/command.h"
#include "tools/mkvm/loading.h"
#include "tools/mkvm/process_option.h"

enum {
  KEY_HOST = 512,
  KEY_UNIX,
  KEY_API_KEY,
  KEY_API_KEY_FILE,
  KEY_NO_AUTH,
  KEY_NAME,
  KEY_CORS,
  KEY_NO_PAGE,
  KEY_WAITING,
  KEY_CONNECTIONS,
  KEY_BODY,
  KEY_SHUTDOWN,
  KEY_REQUEST,
  KEY_QUEUE,
  KEY_LOG_PROMPTS,
  KEY_NO_LOG,
  KEY_DEVICE,
  KEY_CACHE,
  KEY_BATCH,
  KEY_KV,
  KEY_FORM,
  KEY_PREFIX,
  KEY_PROMPT,
  KEY_DECODE,
  KEY_RANKS
};
enum { DEFAULT_PORT = 8080, MOST_NAMES = 16, MOST_SECONDS = 1000000 };

static const struct argp_option option_table[] = {
    {"model", 'm', "DIR", 0, "Model directory in Hugging Face layout (required)", 1},
    {"served-model-name", KEY_NAME, "NAME", 0,
     "Name under which the model answers; may be given again (DIR's last part)", 1},
    {NULL, 0, NULL, 0, "Address:", 2},
    {"host", KEY_HOST, "HOST", 0, "Name or address to listen on (127.0.0.1); one beyond this machine needs a key", 2},
    {"port", 'p', "PORT", 0, "Port; 0: any that is free (8080)", 2},
    {"unix", KEY_UNIX, "PATH", 0, "Listen on this unix socket; without --host and --port on nothing else", 2},
    {"cors", KEY_CORS, "ORIGIN", 0, "Let pages from ORIGIN ask, * from anywhere (none)", 2},
    {"no-page", KEY_NO_PAGE, NULL, 0, "No page at /", 2},
    {NULL, 0, NULL, 0, "Who may ask:", 3},
    {"api-key", KEY_API_KEY, "KEY", 0, "A key; may be given again. Others see it in the list of processes", 3},
    {"api-key-file", KEY_API_KEY_FILE, "FILE", 0, "Keys, one a line", 3},
    {"no-auth", KEY_NO_AUTH, NULL, 0, "Listen beyond this machine without a key", 3},
    {NULL, 0, NULL, 0, "Limits:", 4},
    {"max-waiting", KEY_WAITING, "N", 0, "Requests that may wait for their turn; more are told to come again (1024)",
     4},
    {"max-connections", KEY_CONNECTIONS, "N", 0, "Connections at a time (4096)", 4},
    {"max-body", KEY_BODY, "BYTES", 0, "Of a request (33554432)", 4},
    {"queue-timeout", KEY_QUEUE, "SECONDS", 0, "A request that has waited so long fails (no limit)", 4},
    {"request-timeout", KEY_REQUEST, "SECONDS", 0, "A request that has taken so long fails (no limit)", 4},
    {"shutdown-timeout", KEY_SHUTDOWN, "SECONDS", 0, "After SIGTERM what runs may go on for so long (30)", 4},
    {NULL, 0, NULL, 0, "Log, on standard error:", 5},
    {"log-prompts", KEY_LOG_PROMPTS, NULL, 0, "With prompts and answers", 5},
    {"no-log", KEY_NO_LOG, NULL, 0, "No line for each request", 5},
    {NULL, 0, NULL, 0, "Machine:", 6},
    {"device", KEY_DEVICE, "NAME", 0,
     "cpu, cuda, cuda:N, or GPUs that share a model, cuda:N-M (cuda:0 where it fits, else cpu)", 6},
    {"ctx-size", 'c', "T", 0, "Tokens of prompt and answer together (the model's limit, at most 4096)", 6},
    {"max-batch", KEY_BATCH, "N", 0,
     "Requests that share a step, where there are so many: 1, 2, 4, 8, 16, 32, 64 or 128 (16)", 6},
    {"kv-tokens", KEY_KV, "T", 0, "Tokens of KV cache that all share (max-batch whole contexts)", 6},
    {"kv", KEY_FORM, "FORM", 0, MK_KV_HELP, 6},
    {"prefix-tokens", KEY_PREFIX, "T", 0, "Of them, for beginnings that are known; 0: none (as there is room)", 6},
    {"prompt-tokens", KEY_PROMPT, "T", 0, "Tokens of prompts that are computed at a time while others generate (512)",
     6},
    {"decode-steps", KEY_DECODE, "N", 0, "Steps of others between them (8), fewer where more than 16 share a step", 6},
    {"threads", 't', "N", 0, MK_THREADS_HELP, 6},
    {"cache", KEY_CACHE, "FOLDER", 0,
     "Keep a packed copy of the weights in FOLDER (as large as they are), and load it the next time", 6},
    {"ranks", KEY_RANKS, "N", 0, "With --rendezvous: how many processes, each with a GPU, share the model", 6},
    {0}};

static const char doc[] =
    "Serves a model over HTTP as OpenAI's API does: /v1/chat/completions and /v1/completions, streamed or not, "
    "/v1/models, "
    "/tokenize, /detokenize, /health, /ready, /metrics, and a page for a person at /. docs/SERVING.md has all of it."
    "\v"
    "The first SIGTERM or Ctrl-C drains: no new requests, and those that there are come to their ends, for "
    "--shutdown-timeout at most. A second one ends at once.\n\n"
    "Examples:\n"
    "  mkvm serve -m models/demo\n"
    "  mkvm serve -m DIR --host 0.0.0.0 --api-key-file keys.txt\n"
    "  curl localhost:8080/v1/completions -d '{\"prompt\": \"A database is\", \"max_tokens\": 16}'\n";

typedef struct options {
  mk_server_options server;
  const char *names[MOST_NAMES];
  mk_keys keys;
  bool has_host, has_port, no_auth;
  uint32_t ranks;
  mk_process_option process;
} options;

static double seconds_of(struct argp_state *state, const char *flag, const char *text) {
  char *end;
  double seconds = strtod(text, &end);
  if (end == text || *end != '\0' || !(seconds >= 0 && seconds <= MOST_SECONDS)) {
    argp_error(state, "%s: '%s' is not a number of seconds from 0 to %d", flag, text, MOST_SECONDS);
  }
  return seconds;
}

static void take_key(options *o, const char *key, struct argp_state *state) {
  if (mk_keys_add(&o->keys, key) != MK_OK) {
    argp_error(state, "--api-key: %s", mk_error_message());
  }
}

static void take_key_file(options *o, const char *path, struct argp_state *state) {
  bool open;
  if (mk_keys_load(&o->keys, path, &open) != MK_OK) {
    argp_error(state, "--api-key-file: %s", mk_error_message());
  }
  if (open) {
    fprintf(stderr, "%s: others can read %s; chmod 600 would keep the keys to you\n", state->name, path);
  }
}

/* "[::1]", as addresses stand in a URL, is "::1". */
static const char *without_brackets(char *host) {
  const size_t length = strlen(host);
  if (length < 2 || host[0] != '[' || host[length - 1] != ']') {
    return host;
  }
  host[length - 1] = '\0';
  return host + 1;
}

static bool is_loopback(const char *host) {
  struct in_addr four;
  struct in6_addr six;
  if (inet_pton(AF_INET, host, &four) == 1) {
    return ntohl(four.s_addr) >> 24 == 127;
  }
  if (inet_pton(AF_INET6, host, &six) == 1) {
    return memcmp(&six, &in6addr_loopback, sizeof six) == 0;
  }
  return strcasecmp(host, "localhost") == 0;
}

/* Of ranks that are processes rank 0 alone listens. */
static void check_process(options *o, struct argp_state *state) {
  mkvm_options *engine = &o->server.engine;
  const mk_group_options *group;
  mk_process_option_check(&o->process, o->ranks, engine->device, state);
  group = mk_process_option_group(&o->process);
  if (group != NULL) {
    engine->rendezvous = group->address;
    engine->rank = group->rank;
    engine->ranks = group->ranks;
    engine->rank_seconds = group->deadline_s;
  } else if (o->ranks != 0) {
    argp_error(state, "--ranks needs --rendezvous HOST:PORT; one process has several GPUs by --device cuda:0-3");
  }
}

static void check_options(options *o, struct argp_state *state) {
  mk_server_options *s = &o->server;
  check_process(o, state);
  if (s->directory == NULL) {
    argp_error(state, "--model DIR is missing");
    return;
  }
  if (s->http.unix_path != NULL && !o->has_host && !o->has_port) {
    s->http.host = NULL;
  }
  if (s->http.host != NULL && !is_loopback(s->http.host) && o->keys.count == 0 && !o->no_auth) {
    argp_error(state,
               "--host %s can be reached from other machines: give --api-key-file, or --no-auth if everybody may ask",
               s->http.host);
  }
  if (s->log_prompts && s->log == NULL) {
    argp_error(state, "--log-prompts does not go with --no-log");
  }
}

static error_t parse(int key, char *text, struct argp_state *state) {
  options *o = state->input;
  mk_server_options *s = &o->server;
  switch (key) {
    case ARGP_KEY_INIT:
      state->child_inputs[0] = NULL;
      state->child_inputs[1] = &o->process;
      return 0;
    case 'm':
      s->directory = text;
      return 0;
    case KEY_NAME:
      if (s->name_count == MOST_NAMES || text[0] == '\0') {
        argp_error(state, "--served-model-name: at most %d, none of them empty", MOST_NAMES);
      }
      o->names[s->name_count++] = text;
      return 0;
    case KEY_HOST:
      s->http.host = without_brackets(text);
      o->has_host = true;
      return 0;
    case 'p':
      s->http.port = (uint16_t)mk_number(state, "--port", text, 0, 65535);
      o->has_port = true;
      return 0;
    case KEY_UNIX:
      s->http.unix_path = text;
      return 0;
    case KEY_CORS:
      s->origin = text;
      return 0;
    case KEY_NO_PAGE:
      s->page = false;
      return 0;
    case KEY_API_KEY:
      take_key(o, text, state);
      return 0;
    case KEY_API_KEY_FILE:
      take_key_file(o, text, state);
      return 0;
    case KEY_NO_AUTH:
      o->no_auth = true;
      return 0;
    case KEY_WAITING:
      s->engine.max_waiting = (uint32_t)mk_number(state, "--max-waiting", text, 1, 1000000);
      return 0;
    case KEY_CONNECTIONS:
      s->http.most_connections = (uint32_t)mk_number(state, "--max-connections", text, 1, 1000000);
      return 0;
    case KEY_BODY:
      s->http.most_body = (size_t)mk_number(state, "--max-body", text, 1024, 1 << 30);
      return 0;
    case KEY_QUEUE:
      s->queue_seconds = seconds_of(state, "--queue-timeout", text);
      return 0;
    case KEY_REQUEST:
      s->total_seconds = seconds_of(state, "--request-timeout", text);
      return 0;
    case KEY_SHUTDOWN:
      s->shutdown_seconds = seconds_of(state, "--shutdown-timeout", text);
      return 0;
    case KEY_LOG_PROMPTS:
      s->log_prompts = true;
      return 0;
    case KEY_NO_LOG:
      s->log = NULL;
      return 0;
    case KEY_DEVICE:
      s->engine.device = mk_device(state, text);
      return 0;
    case 'c':
      s->engine.max_context = (uint32_t)mk_number(state, "--ctx-size", text, 1, MK_MAX_POSITION);
      return 0;
    case KEY_BATCH:
      s->engine.max_batch = (uint32_t)mk_number(state, "--max-batch", text, 1, 128);
      return 0;
    case KEY_KV:
      s->engine.kv_tokens = mk_number(state, "--kv-tokens", text, 1, UINT32_MAX);
      return 0;
    case KEY_FORM:
      s->engine.kv = mk_kv(state, text) == MK_DTYPE_E4M3 ? MKVM_KV_FP8 : MKVM_KV_BF16;
      return 0;
    case KEY_PREFIX:
      s->engine.prefix_tokens = mk_number(state, "--prefix-tokens", text, 0, UINT32_MAX);
      return 0;
    case KEY_PROMPT:
      s->engine.prompt_tokens = (uint32_t)mk_number(state, "--prompt-tokens", text, 1, MK_MAX_POSITION);
      return 0;
    case KEY_DECODE:
      s->engine.decode_steps = (uint32_t)mk_number(state, "--decode-steps", text, 1, 1000);
      return 0;
    case 't':
      s->engine.threads = mk_threads(state, text);
      return 0;
    case KEY_CACHE:
      s->engine.cache_folder = text;
      return 0;
    case KEY_RANKS:
      o->ranks = (uint32_t)mk_number(state, "--ranks", text, 2, MK_GPU_MOST_RANKS);
      return 0;
    case ARGP_KEY_ARG:
      argp_error(state, "'%s' is one argument too many", text);
      return 0;
    case ARGP_KEY_END:
      check_options(o, state);
      return 0;
    default:
      return ARGP_ERR_UNKNOWN;
  }
}

/* The last part of a path, without slashes at its end. */
static const char *name_of(const char *directory, char *place, size_t size) {
  size_t end = strlen(directory);
  while (end > 1 && directory[end - 1] == '/') {
    end--;
  }
  size_t start = end;
  while (start > 0 && directory[start - 1] != '/') {
    start--;
  }
  snprintf(place, size, "%.*s", (int)(end - start), directory + start);
  return place[0] != '\0' ? place : "model";
}

static mk_server *running; /* for the handler */

static void on_signal(int number) {
  const int before = errno;
  (void)number;
  mk_server_stop(running);
  errno = before;
}

static void catch_signals(void (*handler)(int number)) {
  static const int ending[] = {SIGINT, SIGTERM, SIGHUP};
  for (size_t i = 0; i < sizeof ending / sizeof ending[0]; i++) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART}, before;
    if (sigaction(ending[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN) {
      sigaction(ending[i], &action, NULL);
    }
  }
  (void)signal(SIGPIPE, SIG_IGN); /* a client that has gone is no reason to end */
}

static void say(const char *line) {
  if (mk_server_may_say(stderr)) {
    fprintf(stderr, "mkvm serve: %s\n", line);
  }
}

static void tell_address(const options *o, const mk_server *server) {
  const char *host = o->server.http.host;
  if (host != NULL) {
    const bool six = strchr(host, ':') != NULL;
    printf("listening on http://%s%s%s:%u\n", six ? "[" : "", host, six ? "]" : "", mk_server_port(server));
  }
  if (o->server.http.unix_path != NULL) {
    printf("listening on unix:%s\n", o->server.http.unix_path);
  }
  (void)fflush(stdout); /* whoever starts it reads the port there */
}

static mk_status serve(options *o) {
  char name[256];
  mk_server *server;
  if (o->server.name_count == 0) {
    o->names[o->server.name_count++] = name_of(o->server.directory, name, sizeof name);
  }
  o->server.names = o->names;
  o->server.keys = &o->keys;
  o->server.on_line = say;
  o->server.on_loading = mk_show_loading;
  MK_TRY(mk_server_open(&o->server, &server));
  running = server;
  catch_signals(on_signal);
  tell_address(o, server);
  mk_status status = mk_server_run(server);
  (void)signal(SIGINT, SIG_IGN); /* from here on nothing is left to stop */
  (void)signal(SIGTERM, SIG_IGN);
  (void)signal(SIGHUP, SIG_IGN);
  mk_server_free(server);
  return status;
}

/* ---- Another rank than 0 ---- */

static void say_as_rank(void *user, mkvm_log_level level, const char *line) {
  const options *o = user;
  if (level == MKVM_LOG_WARNING && mk_server_may_say(stderr)) {
    fprintf(stderr, "mkvm serve: rank %u: %s\n", o->server.engine.rank, line);
  }
}

/* Who stops a server signals all its processes: rank 0 ends what runs, and then this one. A second one kills. */
static void leave_to_rank_0(int number) { (void)signal(number, SIG_DFL); }

static mk_status follow(options *o) {
  mkvm_engine *none;
  mkvm_options engine = o->server.engine;
  engine.on_log = say_as_rank;
  engine.user = o;
  catch_signals(leave_to_rank_0);
  return (mk_status)mkvm_open(o->server.directory, &engine, &none); /* the numbers, and the message, are the same */
}

mk_status mk_command_serve(int argc, char **argv) {
  const struct argp_child children[] = {
      mk_common_options[0], {&mk_process_argp, 0, "Ranks that are processes:", 7}, {0}};
  const struct argp argp = {option_table, parse, "", doc, children, mk_help_filter, NULL};
  options o = {0};
  mk_server_defaults(&o.server);
  o.server.http.host = "127.0.0.1";
  o.server.http.port = DEFAULT_PORT;
  argp_parse(&argp, argc, argv, ARGP_NO_HELP, NULL, &o);
  mk_status status = mk_process_option_is_silent(&o.process) ? follow(&o) : serve(&o);
  mk_keys_free(&o.keys);
  return status;
}
