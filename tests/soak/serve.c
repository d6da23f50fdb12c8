/* The server of a tiny model under many short requests of all kinds, which tools/soak --serve builds and runs.
 *
 * mk_soak_serve [--requests N] [--streams N]: N requests, by default 100,000, from so many clients at a time (16),
 * among them ones that are refused and ones whose client goes away. Then streams alone, of which the time from the
 * engine's callback to the socket and the loop's CPU time are told. Exit code 1 when an answer is not as it should be,
 * when a request, descriptor or connection is left, or when memory is more than 8 MiB above what it was after the first
 * thousand requests. */
#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "models/synth.h"
#include "serve/server.h"
#include "tools/lib/clock.h"

enum { MOST_STREAMS = 64, WARM = 1000, MOST_BYTES = 8 << 20, STREAM_TOKENS = 180, ROUNDS = 60, ANSWER = 1 << 18 };

typedef struct soak {
  mk_server *server;
  pthread_t loop;
  uint64_t requests, streams;
  atomic_uint_least64_t next, wrong;
  bool measures; /* streams alone */
} soak;

typedef struct kind {
  const char *method, *path, *body, *words; /* words: in the answer; NULL: the client goes away before it comes */
} kind;

static const kind kinds[] = {
    {"POST", "/v1/completions", "{\"prompt\":\"abc\",\"max_tokens\":3,\"ignore_eos\":true}", "\"completion_tokens\":3"},
    {"POST", "/v1/completions", "{\"prompt\":\"ab\",\"max_tokens\":3,\"stream\":true,\"ignore_eos\":true}",
     "data: [DONE]"},
    {"POST", "/v1/completions", "{\"prompt\":[7,8,9],\"max_tokens\":2,\"logprobs\":3,\"echo\":true}", "token_logprobs"},
    {"POST", "/v1/completions", "{\"prompt\":\"a\",\"n\":3,\"max_tokens\":2,\"temperature\":1}", "\"index\":2"},
    {"POST", "/v1/completions", "{\"prompt\":\"abc\",\"max_tokens\":99,\"ignore_eos\":true,\"stream\":true}", NULL},
    {"POST", "/v1/completions", "{\"prompt\":\"abc\",\"max_tokens\":99,\"ignore_eos\":true}", NULL},
    {"POST", "/v1/completions", "{\"prompt\":", "invalid_request_error"},
    {"POST", "/v1/chat/completions", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"tools\":[1]}", "tools"},
    {"POST", "/tokenize", "{\"prompt\":\"some words\"}", "\"tokens\":["},
    {"GET", "/v1/models", "", "\"data\":["},
    {"GET", "/nothing", "", "There is nothing at"},
    {"GET", "/metrics", "", "vllm:num_requests_running"},
};

static const kind measured = {
    "POST", "/v1/completions",
    "{\"prompt\":\"abc\",\"max_tokens\":180,\"temperature\":0,\"stream\":true,\"ignore_eos\":true}", "data: [DONE]"};

/* ---- Clients ---- */

static int dial(const soak *s) {
  const struct sockaddr_in address = {
      .sin_family = AF_INET, .sin_port = htons(mk_server_port(s->server)), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd >= 0 && connect(fd, (const struct sockaddr *)(const void *)&address, sizeof address) != 0) {
    close(fd);
    fd = -1;
  }
  return fd;
}

/* Reads all that comes, up to the end of the connection, into `answer` [ANSWER]; false: the connection failed. */
static bool ask(const soak *s, const kind *k, char *answer) {
  char text[1024];
  size_t used = 0;
  ssize_t got = 0;
  const int length =
      snprintf(text, sizeof text, "%s %s HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: %zu\r\n\r\n%s",
               k->method, k->path, strlen(k->body), k->body);
  int fd = dial(s);
  if (fd < 0) {
    return false;
  }
  bool good = send(fd, text, (size_t)length, MSG_NOSIGNAL) == length;
  answer[0] = '\0';
  while (good && k->words != NULL && used < ANSWER - 1 && (got = read(fd, answer + used, ANSWER - 1 - used)) > 0) {
    used += (size_t)got;
    answer[used] = '\0';
  }
  close(fd);
  return good && got == 0;
}

static void *work(void *user) {
  soak *s = user;
  char *answer = malloc(ANSWER);
  for (uint64_t i; answer != NULL && (i = atomic_fetch_add(&s->next, 1)) < s->requests;) {
    const kind *k = s->measures ? &measured : &kinds[i % (sizeof kinds / sizeof kinds[0])];
    if (!ask(s, k, answer) || (k->words != NULL && strstr(answer, k->words) == NULL)) {
      atomic_fetch_add(&s->wrong, 1);
      fprintf(stderr, "request %llu, %s %s: %s\n", (unsigned long long)i, k->path, k->body, answer);
    }
  }
  free(answer);
  return NULL;
}

/* false: no threads. */
static bool run_clients(soak *s, uint64_t requests) {
  pthread_t threads[MOST_STREAMS];
  uint64_t count = 0;
  s->requests = requests;
  atomic_store(&s->next, 0);
  while (count < s->streams && pthread_create(&threads[count], NULL, work, s) == 0) {
    count++;
  }
  for (uint64_t i = 0; i < count; i++) {
    pthread_join(threads[i], NULL);
  }
  return count == s->streams;
}

/* ---- What is left ---- */

static int open_descriptors(void) {
  int count = 0;
  DIR *folder = opendir("/proc/self/fd");
  while (folder != NULL && readdir(folder) != NULL) {
    count++;
  }
  if (folder != NULL) {
    closedir(folder);
  }
  return count;
}

static int64_t resident_bytes(void) {
  long all, resident = 0;
  FILE *file = fopen("/proc/self/statm", "r");
  if (file != NULL) {
    if (fscanf(file, "%ld %ld", &all, &resident) != 2) {
      resident = 0;
    }
    fclose(file);
  }
  return (int64_t)resident * sysconf(_SC_PAGESIZE);
}

/* A line of /metrics begins with `name`; its number, -1: there is none. */
static double metric(const char *metrics, const char *name) {
  const char *at = strstr(metrics, name), *value = at == NULL ? NULL : strstr(at, "} ");
  return value == NULL ? -1 : strtod(value + 2, NULL);
}

/* Waits until no request is left: those of clients that have gone take a moment to end. */
static bool until_idle(const soak *s) {
  static const kind ask_metrics = {"GET", "/metrics", "", ""};
  char *answer = malloc(ANSWER);
  bool idle = false;
  for (unsigned i = 0; answer != NULL && i < 1000 && !idle; i++) {
    idle = ask(s, &ask_metrics, answer) && metric(answer, "\nvllm:num_requests_running{") == 0 &&
           metric(answer, "\nvllm:num_requests_waiting{") == 0;
    (void)poll(NULL, 0, idle ? 100 : 10);
  }
  free(answer);
  return idle;
}

/* ---- How long it takes ---- */

static double loop_seconds(const soak *s) {
  clockid_t clock;
  struct timespec used = {0};
  if (pthread_getcpuclockid(s->loop, &clock) == 0) {
    clock_gettime(clock, &used);
  }
  return (double)used.tv_sec + (double)used.tv_nsec * 1e-9;
}

/* Observations in each bucket so far; the bounds are those of the text. */
enum { BUCKETS = 20, WITHIN_50 = 5 /* the bucket that ends at 50 us */ };
static size_t read_writes(const soak *s, double bounds[BUCKETS], double counts[BUCKETS]) {
  static const char name[] = "\nmkvm:token_write_seconds_bucket{";
  static const kind ask_metrics = {"GET", "/metrics", "", ""};
  char *answer = malloc(ANSWER);
  size_t count = 0;
  if (answer != NULL && ask(s, &ask_metrics, answer)) {
    for (const char *at = answer; count < BUCKETS && (at = strstr(at, name)) != NULL; at++) {
      const char *bound = strstr(at, "le=\"");
      bounds[count] = bound == NULL ? 0 : strtod(bound + 4, NULL); /* "+Inf" is a number, too */
      counts[count++] = metric(at, name);
    }
  }
  free(answer);
  return count;
}

static double percentile(const double *bounds, const double *counts, size_t buckets, double share) {
  size_t i = 0;
  while (i + 1 < buckets && counts[i] < share * counts[buckets - 1]) {
    i++;
  }
  return bounds[i];
}

static bool measure(soak *s) {
  double bounds[BUCKETS] = {0}, before[BUCKETS] = {0}, after[BUCKETS] = {0};
  s->measures = true;
  const size_t buckets = read_writes(s, bounds, before);
  const double cpu = loop_seconds(s), start = mk_seconds();
  const uint64_t streams = s->streams * ROUNDS;
  const bool ran = run_clients(s, streams);
  const double tokens = (double)streams * STREAM_TOKENS, used = loop_seconds(s) - cpu, took = mk_seconds() - start;
  if (!ran || buckets <= WITHIN_50 || read_writes(s, bounds, after) != buckets) {
    return false;
  }
  for (size_t i = 0; i < buckets; i++) {
    after[i] -= before[i];
  }
  printf("%llu streams at a time: %.0f tokens/s; the loop takes %.2f us of CPU time a token\n",
         (unsigned long long)s->streams, tokens / took, used / tokens * 1e6);
  printf("from the callback to the socket: p50 at most %.0f us, p90 %.0f us, p99 %.0f us; %.2f %% within 50 us\n",
         percentile(bounds, after, buckets, 0.5) * 1e6, percentile(bounds, after, buckets, 0.9) * 1e6,
         percentile(bounds, after, buckets, 0.99) * 1e6, 100 * after[WITHIN_50] / after[buckets - 1]);
  return true;
}

/* ---- The run ---- */

static bool check(soak *s, uint64_t requests) {
  if (!run_clients(s, WARM) || !until_idle(s)) {
    fprintf(stderr, "the first %d requests have not come to their ends\n", WARM);
    return false;
  }
  const int64_t bytes = resident_bytes();
  const int descriptors = open_descriptors();
  if (!run_clients(s, requests) || !until_idle(s)) {
    fprintf(stderr, "not all requests have come to their ends\n");
    return false;
  }
  const int64_t more = resident_bytes() - bytes;
  const int left = open_descriptors() - descriptors;
  printf("%llu requests: %llu wrong; memory %+.2f MiB of %.1f, descriptors %+d\n", (unsigned long long)requests,
         (unsigned long long)atomic_load(&s->wrong), (double)more / (1 << 20), (double)bytes / (1 << 20), left);
  return atomic_load(&s->wrong) == 0 && more <= MOST_BYTES && left <= 0;
}

/* NULL: it has ended well. */
static void *serve(void *user) {
  const soak *s = user;
  if (mk_server_run(s->server) == MK_OK) {
    return NULL;
  }
  fprintf(stderr, "%s\n", mk_error_message());
  return user;
}

static bool run(const char *directory, soak *s, uint64_t requests) {
  static const char *const names[] = {"tiny"};
  mk_server_options options;
  void *failed;
  mk_server_defaults(&options);
  options.directory = directory;
  options.names = names;
  options.name_count = 1;
  options.http.host = "127.0.0.1";
  options.engine.device = "cpu";
  options.engine.max_context = 200;
  options.engine.threads = 1;
  options.log = NULL;
  if (mk_server_open(&options, &s->server) != MK_OK || pthread_create(&s->loop, NULL, serve, s) != 0) {
    fprintf(stderr, "%s\n", mk_error_message());
    return false;
  }
  static const kind ask_ready = {"GET", "/ready", "", ""};
  char *text = malloc(ANSWER);
  for (unsigned i = 0; text != NULL && i < 3000 && !(ask(s, &ask_ready, text) && strstr(text, " 200 ") != NULL); i++) {
    (void)poll(NULL, 0, 10);
  }
  free(text);
  bool good = check(s, requests);
  good = measure(s) && good;
  mk_server_stop(s->server);
  pthread_join(s->loop, &failed);
  mk_server_free(s->server);
  return good && failed == NULL;
}

static void remove_model(const char *directory) {
  static const char *const files[] = {"config.json", "generation_config.json", "tokenizer.json",
                                      "tokenizer_config.json", "model.safetensors"};
  char path[256];
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
    snprintf(path, sizeof path, "%s/%s", directory, files[i]);
    (void)unlink(path);
  }
  (void)rmdir(directory);
}

static uint64_t number(const char *text, uint64_t most) {
  char *end;
  errno = 0;
  const unsigned long long value = strtoull(text, &end, 10);
  if (errno != 0 || end == text || *end != '\0' || value == 0 || value > most) {
    fprintf(stderr, "mk_soak_serve: '%s' is not a number from 1 to %llu\n", text, (unsigned long long)most);
    exit(2);
  }
  return value;
}

int main(int argc, char **argv) {
  static const struct option options[] = {
      {"requests", required_argument, NULL, 'r'}, {"streams", required_argument, NULL, 's'}, {0}};
  static const mk_config config = {.hidden = 64,
                                   .intermediate = 64,
                                   .layers = 1,
                                   .heads = 1,
                                   .kv_heads = 1,
                                   .head_dim = 64,
                                   .vocab = 320,
                                   .eos = {319},
                                   .eos_count = 1,
                                   .tied = true,
                                   .max_position = 1024,
                                   .rms_eps = 1e-5f,
                                   .rope_theta = 10000};
  const mk_synth_options synth = {.seed = 3};
  char directory[] = "/tmp/mk-soak-XXXXXX";
  soak s = {.streams = 16};
  uint64_t requests = 100000;
  for (int key; (key = getopt_long(argc, argv, "", options, NULL)) != -1;) {
    if (key == 'r') {
      requests = number(optarg, 1000000000);
    } else if (key == 's') {
      s.streams = number(optarg, MOST_STREAMS);
    } else {
      return 2;
    }
  }
  signal(SIGPIPE, SIG_IGN);
  if (mkdtemp(directory) == NULL || mk_synth_write(directory, &config, &synth) != MK_OK) {
    fprintf(stderr, "%s\n", mk_error_message());
    return 1;
  }
  const bool good = run(directory, &s, requests);
  remove_model(directory);
  return good ? 0 : 1;
}
