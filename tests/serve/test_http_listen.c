/* Where a server listens, what it says when it cannot, and how it ends. */
#include <arpa/inet.h>
#include <criterion/criterion.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "tests/support/http.h"
#include "vm/status.h"

TestSuite(http_listen, .timeout = MK_HANG_SECONDS);

static mk_test_server server, other;

static void begin(void) {
  mk_test_server_options(&server);
  mk_test_server_start(&server);
}

static void refused(mk_status status, const char *part) {
  mk_http *http = (mk_http *)&other;
  cr_assert_eq(mk_http_open(&other.options, &http), status, "%s", mk_error_message());
  cr_assert_null(http);
  cr_assert_not_null(strstr(mk_error_message(), part), "no %s in: %s", part, mk_error_message());
}

static void answers(int fd, const char *peer) {
  char last[64];
  snprintf(last, sizeof last, "GET /a %s 0 -", peer);
  mk_test_say(fd, "GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  char *text = mk_test_hear(fd, NULL);
  cr_assert_not_null(strstr(text, last), "%s", text);
  free(text);
  close(fd);
}

Test(http_listen, addresses) {
  static const struct {
    const char *host, *peer;
  } hosts[] = {{"127.0.0.1", "127.0.0.1"},
               {"::1", "::1"},
               {"::", "127.0.0.1"},
               {"0.0.0.0", "127.0.0.1"},
               {"localhost", "127.0.0.1"}};
  const int v6 = socket(AF_INET6, SOCK_STREAM, 0);
  const struct sockaddr_in6 loopback = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
  const bool has_v6 = v6 >= 0 && bind(v6, (const struct sockaddr *)&loopback, sizeof loopback) == 0;
  close(v6);
  for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
    if (strchr(hosts[i].host, ':') != NULL && !has_v6) {
      continue;
    }
    mk_test_server_options(&server);
    server.options.host = hosts[i].host;
    mk_test_server_start(&server);
    cr_assert_neq(mk_http_port(server.http), 0);
    answers(mk_test_connect(&server), hosts[i].peer);
    mk_test_server_stop(&server, 10);
  }
}

Test(http_listen, cannot) {
  begin();
  mk_test_server_options(&other);
  other.options.port = mk_http_port(server.http);
  char part[64];
  snprintf(part, sizeof part, "127.0.0.1, port %u: Address already in use", other.options.port);
  refused(MK_ERR_RUNTIME, part);
  other.options.port = 0;
  other.options.host = "203.0.113.7"; /* of no machine */
  refused(MK_ERR_RUNTIME, "203.0.113.7");
  other.options.host = "no such host.invalid";
  refused(MK_ERR_RUNTIME, "'no such host.invalid'");
  other.options.host = NULL;
  refused(MK_ERR_USAGE, "no address");
  other.options.host = "127.0.0.1";
  other.options.arrive_seconds = 0;
  refused(MK_ERR_USAGE, "0 s");
  mk_test_server_options(&other);
  other.options.most_connections = 0;
  refused(MK_ERR_USAGE, "is 0");
  mk_test_server_options(&other);
  other.options.on_call = NULL;
  refused(MK_ERR_USAGE, "on_call");
  mk_test_server_stop(&server, 10);
}

/* Every allocation of our own can fail; nothing leaks, and no port stays taken. */
Test(http_listen, memory) {
  char path[] = "/tmp/mk_http_XXXXXX/socket";
  path[strlen(path) - 7] = '\0';
  cr_assert_not_null(mkdtemp(path));
  path[strlen(path)] = '/';
  mk_test_server_options(&server);
  server.options.unix_path = path;
  mk_http *http = NULL;
  int failures = 0;
  for (uint64_t n = 1; http == NULL && n < 100; n++) {
    mk_alloc_fail_at(n, false);
    failures += mk_http_open(&server.options, &http) != MK_OK;
    mk_alloc_fail_at(0, false);
  }
  cr_assert_gt(failures, 0);
  cr_assert_not_null(http);
  mk_http_close(http);
  mk_http_close(NULL);
  cr_assert_eq(access(path, F_OK), -1);
  *strrchr(path, '/') = '\0';
  cr_assert_eq(rmdir(path), 0);
}

/* ---- Unix sockets ---- */

static char folder[32], path[64];

static void make_folder(void) {
  snprintf(folder, sizeof folder, "/tmp/mk_http_XXXXXX");
  cr_assert_not_null(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/socket", folder);
}

static void remove_folder(void) {
  unlink(path);
  cr_assert_eq(rmdir(folder), 0);
}

static void begin_unix(void) {
  mk_test_server_options(&server);
  server.options.host = NULL;
  server.options.unix_path = path;
  mk_test_server_start(&server);
}

Test(http_listen, unix_socket) {
  make_folder();
  begin_unix();
  cr_assert_eq(mk_http_port(server.http), 0);
  answers(mk_test_connect_unix(path), "unix");
  answers(mk_test_connect_unix(path), "unix");
  mk_test_server_options(&other);
  other.options.unix_path = path;
  refused(MK_ERR_RUNTIME, "another process");
  answers(mk_test_connect_unix(path), "unix"); /* who was refused has not taken it away */
  mk_test_server_stop(&server, 10);
  cr_assert_eq(access(path, F_OK), -1);
  remove_folder();
}

Test(http_listen, unix_file) {
  make_folder();
  const int stale = socket(AF_UNIX, SOCK_STREAM, 0); /* a socket that nobody answers is replaced */
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
  cr_assert_eq(bind(stale, (const struct sockaddr *)&address, sizeof address), 0);
  close(stale);
  begin_unix();
  answers(mk_test_connect_unix(path), "unix");
  unlink(path); /* and what is there in the end belongs to somebody else */
  const int file = open(path, O_CREAT | O_WRONLY, 0600);
  cr_assert_geq(file, 0);
  close(file);
  mk_test_server_stop(&server, 10);
  cr_assert_eq(access(path, F_OK), 0);
  mk_test_server_options(&other);
  other.options.unix_path = path;
  refused(MK_ERR_RUNTIME, "is no socket");
  char too_long[200];
  memset(too_long, 'a', sizeof too_long - 1);
  too_long[sizeof too_long - 1] = '\0';
  other.options.unix_path = too_long;
  refused(MK_ERR_USAGE, "has 199");
  other.options.unix_path = "/no/such/folder/socket";
  refused(MK_ERR_RUNTIME, "/no/such/folder");
  remove_folder();
}

/* ---- The end ---- */

/* What is asked is answered to its end, what waits for a request goes, and nobody new is let in. */
Test(http_listen, stop) {
  begin();
  const uint16_t port = mk_http_port(server.http);
  const int idle = mk_test_connect(&server), half = mk_test_connect(&server), asked = mk_test_connect(&server);
  mk_test_say(half, "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhalf");
  mk_test_say(asked, "GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
  mk_test_until(&server.calls, 1);
  mk_test_connections(&server, 3);
  server.stop_seconds = 30;
  atomic_store(&server.stop, true);
  mk_http_wake(server.http);
  char *text = mk_test_hear(idle, NULL);
  cr_assert_str_eq(text, "");
  free(text);
  text = mk_test_hear(half, NULL);
  cr_assert(strncmp(text, "HTTP/1.1 503 ", 13) == 0 && strstr(text, "Retry-After: 1") != NULL, "%s", text);
  free(text);
  close(half);
  close(idle);
  const int late = socket(AF_INET, SOCK_STREAM, 0);
  const struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
  cr_assert_eq(connect(late, (const struct sockaddr *)&v4, sizeof v4), -1);
  close(late);
  mk_test_release(&server);
  text = mk_test_hear(asked, NULL); /* also says that it is the last */
  cr_assert(strstr(text, "Connection: close") != NULL && strstr(text, "waited") != NULL, "%s", text);
  free(text);
  close(asked);
  mk_test_server_stop(&server, 30);
  cr_assert_eq(atomic_load(&server.gone), 0);
}

/* When the time is over, those who still wait are gone; the calls that nobody ends go with the server. */
Test(http_listen, stop_in_time) {
  static const char *const paths[] = {"GET /wait HTTP/1.1\r\nHost: a\r\n\r\n", "GET /late HTTP/1.1\r\nHost: a\r\n\r\n",
                                      "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"};
  begin();
  int fds[3];
  for (int i = 0; i < 3; i++) {
    fds[i] = mk_test_connect(&server);
    mk_test_say(fds[i], paths[i]);
  }
  mk_test_until(&server.calls, 3);
  mk_test_server_stop(&server, 0.05);
  cr_assert_eq(atomic_load(&server.gone), 3);
  for (int i = 0; i < 3; i++) {
    free(mk_test_hear(fds[i], NULL)); /* ends */
    close(fds[i]);
  }
}

/* ---- Wake and timer ---- */

static void wake_by_signal(int number) {
  (void)number;
  mk_http_wake(server.http); /* NOLINT(bugprone-signal-handler,cert-sig30-c): it is made for this */
}

static void *wake_often(void *user) {
  for (int i = 0; i < 1000; i++) {
    mk_http_wake(server.http);
  }
  return user;
}

Test(http_listen, wake) {
  begin();
  signal(SIGUSR1, wake_by_signal);
  raise(SIGUSR1);
  mk_test_until(&server.wakes, 1);
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) {
    pthread_create(&threads[i], NULL, wake_often, NULL);
  }
  for (int i = 0; i < 4; i++) {
    pthread_join(threads[i], NULL);
  }
  const int before = atomic_load(&server.wakes); /* one after the last of them */
  mk_http_wake(server.http);
  mk_test_until(&server.wakes, before + 1);
  mk_test_server_stop(&server, 10);
}

static atomic_int rings;

static void ring(void *user) {
  mk_test_server *s = user;
  if (atomic_fetch_add(&rings, 1) == 0) {
    mk_http_timer(s->http, 0.001, ring); /* once, unless it is set again */
    mk_http_timer(s->http, 0.002, ring);
  } else {
    mk_http_timer(s->http, 0.001, ring);
    mk_http_timer(s->http, -1, NULL);
    mk_http_stop(s->http, 1);
  }
}

/* Opens, runs and stops in one thread; also a stop before the loop, and a server that never runs. */
Test(http_listen, timer) {
  mk_test_server_options(&server);
  cr_assert_eq(mk_http_open(&server.options, &server.http), MK_OK);
  mk_http_timer(server.http, 0, ring);
  cr_assert_eq(mk_http_run(server.http), MK_OK);
  cr_assert_eq(atomic_load(&rings), 2);
  mk_http_close(server.http);
  cr_assert_eq(mk_http_open(&server.options, &server.http), MK_OK);
  mk_http_stop(server.http, 1000);
  cr_assert_eq(mk_http_run(server.http), MK_OK);
  mk_http_close(server.http);
}
