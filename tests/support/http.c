/* See http.h. */
#include "tests/support/http.h"

#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static void moment(void) {
  const struct timespec time = {.tv_nsec = 1000000};
  nanosleep(&time, NULL);
}

/* ---- The server ---- */

static void forget(mk_test_server *s, const mk_http_call *call) {
  for (size_t i = 0; i < s->waiting_count; i++) {
    if (s->waiting[i] == call) {
      s->waiting[i] = s->waiting[--s->waiting_count];
      return;
    }
  }
}

static void gone(void *user, mk_http_call *call) {
  mk_test_server *s = user;
  atomic_fetch_add(&s->gone, 1);
  if (strcmp(mk_http_path(call), "/late") == 0) {
    return; /* its reply comes all the same */
  }
  forget(s, call);
  mk_http_end(call, true);
}

static void flood(mk_http_call *call) {
  static const char piece[65536];
  for (int i = 0; i < 64; i++) {
    mk_http_send(call, piece, sizeof piece);
  }
}

static void wait_for(mk_test_server *s, mk_http_call *call) {
  cr_assert_lt(s->waiting_count, (size_t)MK_TEST_CALLS);
  s->waiting[s->waiting_count++] = call;
  mk_http_watch(call, gone, s);
}

static void describe(mk_http_call *call) {
  static const char *methods[] = {"GET", "HEAD", "POST", "OPTIONS", "OTHER"};
  size_t length;
  mk_http_body(call, &length);
  const char *header = mk_http_header(call, "X-Test");
  char text[4096];
  const int written = snprintf(text, sizeof text, "%s %s %s %zu %s", methods[mk_http_method_of(call)],
                               mk_http_path(call), mk_http_peer(call), length, header == NULL ? "-" : header);
  mk_http_reply(call, 200, "text/plain", text, (size_t)written);
}

/* Does a piece reach the socket before mk_http_send returns? The loop has no turn in between. */
static void answer_now(const mk_test_server *s, mk_http_call *call) {
  mk_http_begin(call, 200, "text/event-stream");
  for (int i = 0; i < 3; i++) {
    mk_http_send(call, "now!", 4);
    char *text = mk_test_hear(atomic_load(&s->client), "4\r\nnow!\r\n");
    cr_assert_not_null(strstr(text, "now!"));
    free(text);
  }
  mk_http_end(call, true);
}

static void on_call(void *user, mk_http_call *call) {
  mk_test_server *s = user;
  const char *path = mk_http_path(call);
  atomic_fetch_add(&s->calls, 1);
  if (strcmp(path, "/echo") == 0) {
    size_t length;
    const char *body = mk_http_body(call, &length);
    mk_http_reply(call, 200, "application/octet-stream", body, length);
  } else if (strcmp(path, "/wait") == 0 || strcmp(path, "/late") == 0) {
    wait_for(s, call);
  } else if (strcmp(path, "/stream") == 0 || strcmp(path, "/flood") == 0) {
    mk_http_begin(call, 200, "text/event-stream");
    mk_http_send(call, "one\n", 4);
    wait_for(s, call);
    if (strcmp(path, "/flood") == 0) {
      flood(call);
    }
  } else if (strcmp(path, "/torn") == 0) {
    mk_http_watch(call, gone, s);
    mk_http_begin(call, 200, "text/event-stream");
    mk_http_send(call, "half", 4);
    mk_http_end(call, false);
  } else if (strcmp(path, "/now") == 0) {
    answer_now(s, call);
  } else if (strcmp(path, "/none") == 0) {
    mk_http_add_header(call, "Access-Control-Allow-Origin", "*");
    mk_http_reply(call, 204, NULL, NULL, 0);
  } else {
    describe(call);
  }
}

static void release(mk_test_server *s) {
  for (size_t i = s->waiting_count; i-- > 0;) {
    mk_http_call *call = s->waiting[i];
    if (strcmp(mk_http_path(call), "/flood") == 0) {
      flood(call);
      continue;
    }
    forget(s, call);
    if (strcmp(mk_http_path(call), "/stream") == 0) {
      mk_http_send(call, "two\n", 4);
      mk_http_send(call, NULL, 0); /* nothing, and not the end */
      mk_http_send(call, "three\n", 6);
      mk_http_end(call, true);
    } else {
      mk_http_reply(call, 200, "text/plain", "waited", 6);
    }
  }
}

static void on_wake(void *user) {
  mk_test_server *s = user;
  atomic_fetch_add(&s->wakes, 1);
  if (atomic_exchange(&s->released, 0) > 0) {
    release(s);
  }
  if (atomic_load(&s->stop)) {
    mk_http_stop(s->http, s->stop_seconds);
  }
}

void mk_test_server_options(mk_test_server *s) {
  memset(s, 0, sizeof *s);
  mk_http_defaults(&s->options);
  s->options.host = "127.0.0.1";
  s->options.most_body = 1 << 20;
  s->options.most_head = 8192;
  s->options.on_call = on_call;
  s->options.on_wake = on_wake;
  s->options.user = s;
}

static void *run(void *user) {
  mk_test_server *s = user;
  return mk_http_run(s->http) == MK_OK ? s : NULL;
}

void mk_test_server_start(mk_test_server *s) {
  cr_assert_eq(mk_http_open(&s->options, &s->http), MK_OK, "%s", mk_error_message());
  cr_assert_eq(pthread_create(&s->thread, NULL, run, s), 0);
}

void mk_test_release(mk_test_server *s) {
  atomic_store(&s->released, 1);
  mk_http_wake(s->http);
}

void mk_test_server_stop(mk_test_server *s, double seconds) {
  s->stop_seconds = seconds;
  atomic_store(&s->stop, true);
  mk_http_wake(s->http);
  void *result;
  pthread_join(s->thread, &result);
  cr_assert_not_null(result);
  mk_http_counters counters;
  mk_http_count(s->http, &counters);
  cr_assert_eq(counters.connections, 0u);
  mk_http_close(s->http);
  s->http = NULL;
}

void mk_test_until(atomic_int *count, int value) {
  for (int i = 0; atomic_load(count) < value; i++) {
    cr_assert_lt(i, 60000, "%d, and %d are waited for", atomic_load(count), value);
    moment();
  }
}

void mk_test_connections(const mk_test_server *s, uint64_t count) {
  mk_http_counters counters;
  mk_http_count(s->http, &counters);
  for (int i = 0; counters.connections != count; i++) {
    cr_assert_lt(i, 60000, "%llu connections", (unsigned long long)counters.connections);
    moment();
    mk_http_count(s->http, &counters);
  }
}

/* ---- The client ---- */

static int connected(int fd, const void *address, socklen_t size) {
  cr_assert_geq(fd, 0);
  const struct timeval long_enough = {.tv_sec = 600}; /* for a slow machine */
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &long_enough, sizeof long_enough);
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &long_enough, sizeof long_enough);
  cr_assert_eq(connect(fd, (const struct sockaddr *)address, size), 0, "%s", strerror(errno));
  return fd;
}

int mk_test_dial(uint16_t port) {
  const struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  return connected(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), &v4, sizeof v4);
}

int mk_test_connect(const mk_test_server *s) {
  if (s->options.host != NULL && strcmp(s->options.host, "::1") == 0) {
    const struct sockaddr_in6 v6 = {
        .sin6_family = AF_INET6, .sin6_port = htons(mk_http_port(s->http)), .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    return connected(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0), &v6, sizeof v6);
  }
  return mk_test_dial(mk_http_port(s->http));
}

int mk_test_connect_unix(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
  return connected(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), &address, sizeof address);
}

bool mk_test_write(int fd, const void *bytes, size_t length) {
  for (size_t at = 0; at < length;) {
    const ssize_t sent = send(fd, (const char *)bytes + at, length - at, MSG_NOSIGNAL);
    if (sent <= 0) {
      return false;
    }
    at += (size_t)sent;
  }
  return true;
}

bool mk_test_say(int fd, const char *text) { return mk_test_write(fd, text, strlen(text)); }

char *mk_test_hear(int fd, const char *end) {
  size_t length = 0, capacity = 4096;
  char *text = malloc(capacity);
  cr_assert_not_null(text);
  text[0] = '\0';
  while (end == NULL || strstr(text, end) == NULL) {
    if (capacity - length < 2) {
      text = realloc(text, capacity *= 2);
      cr_assert_not_null(text);
    }
    const ssize_t got = recv(fd, text + length, end == NULL ? capacity - length - 1 : 1, 0);
    cr_assert(got >= 0 || errno == ECONNRESET, "after \"%s\": %s", text, strerror(errno));
    if (got <= 0) {
      break;
    }
    length += (size_t)got;
    text[length] = '\0';
  }
  return text;
}

char *mk_test_ask(const mk_test_server *s, const char *request) {
  const int fd = mk_test_connect(s);
  mk_test_say(fd, request);
  char *text = mk_test_hear(fd, NULL);
  close(fd);
  return text;
}
