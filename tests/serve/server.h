/* What the tests of the server share: a server of the tiny model in threads of its own, and a client of raw requests.
 *
 * One thread tests. Failure fails the running test. */
#ifndef MK_TEST_SERVER_H
#define MK_TEST_SERVER_H

#define _GNU_SOURCE /* asprintf */

#include <criterion/criterion.h>
#include <jansson.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "serve/server.h"
#include "tests/support/http.h"
#include "tests/support/model.h"

typedef struct rig {
  char directory[TEST_PATH], *log;
  size_t log_length;
  const char *names[2];
  mk_keys keys;
  mk_server_options options;
  mk_server *server;
  pthread_t thread;
  mk_status status; /* of mk_server_run */
  char message[512];
} rig;

/* Options, to be changed before start(). */
static inline void prepare(rig *r) {
  mk_config config = test_model_config(TEST_MODEL_TINY);
  config.max_position = 1 << 17;
  *r = (rig){.names = {"tiny", "other/name"}};
  test_model_write(&config, r->directory);
  mk_server_defaults(&r->options);
  r->options.directory = r->directory;
  r->options.names = r->names;
  r->options.name_count = 2;
  r->options.keys = &r->keys;
  r->options.http.host = "127.0.0.1";
  r->options.engine.device = "cpu";
  r->options.engine.max_context = 200;
  r->options.engine.threads = 2;
  r->options.log = open_memstream(&r->log, &r->log_length);
  signal(SIGPIPE, SIG_IGN);
}

static inline void *run_server(void *user) {
  rig *r = user;
  r->status = mk_server_run(r->server);
  snprintf(r->message, sizeof r->message, "%s", mk_error_message());
  return NULL;
}

static inline int dial(const rig *r) { return mk_test_dial(mk_server_port(r->server)); }

static inline char *ask_text(const rig *r, const char *text) {
  int fd = dial(r);
  cr_assert(mk_test_write(fd, text, strlen(text)));
  char *answer = mk_test_hear(fd, NULL);
  close(fd);
  return answer;
}

/* METHOD PATH with more headers ("" or lines with their ends) and a body, which may be NULL; all that comes. */
static inline char *ask_with(const rig *r, const char *method, const char *path, const char *headers,
                             const char *body) {
  char *text = NULL;
  cr_assert_geq(asprintf(&text, "%s %s HTTP/1.1\r\nHost: here\r\nConnection: close\r\n%sContent-Length: %zu\r\n\r\n%s",
                         method, path, headers, body == NULL ? 0 : strlen(body), body == NULL ? "" : body),
                0);
  char *answer = ask_text(r, text);
  free(text);
  return answer;
}

static inline int status_of(const char *answer) { return (int)strtol(answer + strlen("HTTP/1.1 "), NULL, 10); }
static inline const char *body_of(const char *answer) {
  const char *end = strstr(answer, "\r\n\r\n");
  cr_assert_not_null(end, "%s", answer);
  return end + 4;
}

/* An answer with that status; the caller frees it. */
static inline char *ask(const rig *r, const char *method, const char *path, const char *body, int status) {
  char *answer = ask_with(r, method, path, "", body);
  cr_assert_eq(status_of(answer), status, "%s %s: %s", method, path, answer);
  return answer;
}

/* The same, parsed as JSON. */
static inline json_t *ask_json(const rig *r, const char *method, const char *path, const char *body, int status) {
  char *answer = ask(r, method, path, body, status);
  json_t *json = json_loads(body_of(answer), 0, NULL);
  cr_assert_not_null(json, "%s", answer);
  free(answer);
  return json;
}

static inline bool answers(const rig *r, const char *path, int status) {
  char *answer = ask_with(r, "GET", path, "", NULL);
  const bool same = status_of(answer) == status;
  free(answer);
  return same;
}

enum { MK_PATIENCE = 100000 }; /* naps; only what hangs takes as many */

static inline void nap(void) { (void)poll(NULL, 0, 5); }

static inline void until(const rig *r, const char *path, int status) {
  for (unsigned i = 0; !answers(r, path, status); i++) {
    cr_assert_lt(i, MK_PATIENCE, "%s never is %d", path, status);
    nap();
  }
}

/* The value of a metric without labels in /metrics; NAN when it is not there. */
static inline double metric(const rig *r, const char *name) {
  char *answer = ask(r, "GET", "/metrics", NULL, 200), key[128];
  snprintf(key, sizeof key, "\n%s{model_name=\"tiny\"", name);
  const char *found = strstr(answer, key), *value = found == NULL ? NULL : strstr(found, "} ");
  const double number = value == NULL ? -1 : strtod(value + 2, NULL);
  free(answer);
  return number;
}

static inline void until_metric(const rig *r, const char *name, double low, double high) {
  for (unsigned i = 0; metric(r, name) < low || metric(r, name) > high; i++) {
    cr_assert_lt(i, MK_PATIENCE, "%s is %g", name, metric(r, name));
    nap();
  }
}

static inline void start(rig *r) {
  cr_assert_eq(mk_server_open(&r->options, &r->server), MK_OK, "%s", mk_error_message());
  cr_assert_eq(pthread_create(&r->thread, NULL, run_server, r), 0);
}

static inline void start_ready(rig *r) {
  start(r);
  until(r, "/ready", 200);
}

/* Waits until the server has ended by itself. */
static inline void join(rig *r) {
  pthread_join(r->thread, NULL);
  if (r->options.log != NULL) {
    fflush(r->options.log);
  }
}

static inline void end(rig *r) {
  mk_server_stop(r->server);
  join(r);
}

static inline void release(rig *r) {
  mk_server_free(r->server);
  if (r->options.log != NULL) {
    fclose(r->options.log);
  }
  free(r->log);
  mk_keys_free(&r->keys);
  test_model_remove(r->directory);
}

static inline void stop(rig *r) {
  end(r);
  cr_assert_eq(r->status, MK_OK, "%s", r->message);
  release(r);
}

#endif
