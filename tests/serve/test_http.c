/* HTTP as clients speak it: methods, bodies, streams, connections that go on; what is refused before it is a call. */
#include <criterion/criterion.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/support/http.h"

TestSuite(http, .timeout = MK_HANG_SECONDS);

static mk_test_server server;

/* How often a descriptor was still in the poll set when it was closed. By the time libevent takes it out, another
 * thread may have opened a file of the same number. */
static atomic_int closed_too_early;

#ifndef __SANITIZE_THREAD__ /* which has an epoll_ctl of its own, and finds the same by it */
int epoll_ctl(int set, int what, int fd, struct epoll_event *event) {
  const int result = (int)syscall(SYS_epoll_ctl, set, what, fd, event);
  if (result != 0 && errno == EBADF) {
    atomic_fetch_add(&closed_too_early, 1);
  }
  return result;
}
#endif

static void begin(void) {
  mk_test_server_options(&server);
  mk_test_server_start(&server);
  atomic_store(&closed_too_early, 0); /* what libevent did while it was tried out counts for nothing */
}

static void end(void) {
  mk_test_server_stop(&server, 10);
  cr_assert_eq(atomic_load(&closed_too_early), 0);
}

static void has(const char *text, const char *part) {
  cr_assert_not_null(strstr(text, part), "no %s in:\n%s", part, text);
}

static void lacks(const char *text, const char *part) { cr_assert_null(strstr(text, part), "%s in:\n%s", part, text); }

/* Asks, and expects a reply that begins so, and ends so. */
static void expect(const char *request, const char *first, const char *last) {
  char *text = mk_test_ask(&server, request);
  cr_assert_eq(strncmp(text, first, strlen(first)), 0, "%s, and not:\n%s", first, text);
  cr_assert_geq(strlen(text), strlen(last));
  cr_assert_str_eq(text + strlen(text) - strlen(last), last, "%s", text);
  free(text);
}

/* Asks, and expects an error object, which is the whole body, and the end of the connection. */
static void expect_error(const char *request, int status) {
  char *text = mk_test_ask(&server, request), first[32];
  snprintf(first, sizeof first, "HTTP/1.1 %d ", status);
  cr_assert_eq(strncmp(text, first, strlen(first)), 0, "%s, and not:\n%s\nto\n%.80s", first, text, request);
  has(text, "\r\nContent-Type: application/json\r\n");
  has(text, "\r\nConnection: close\r\n");
  lacks(text, "<");
  const char *body = strstr(text, "\r\n\r\n"), *length = strstr(text, "Content-Length: ");
  cr_assert(body != NULL && length != NULL);
  cr_assert_eq((size_t)atoi(length + 16), strlen(body + 4));
  cr_assert_eq(strncmp(body + 4, "{\"error\":{\"message\":\"", 21), 0, "%s", body);
  cr_assert_str_eq(body + strlen(body) - 2, "}}");
  free(text);
}

Test(http, methods) {
  begin();
  expect("GET /a?b=c HTTP/1.1\r\nHost: a\r\nx-TEST: 5\r\nConnection: close\r\n\r\n", "HTTP/1.1 200 OK\r\n",
         "\r\n\r\nGET /a 127.0.0.1 0 5");
  expect("POST /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 200 OK\r\n",
         "\r\n\r\nPOST /a 127.0.0.1 3 -");
  expect("OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "HTTP/1.1 200 OK\r\n",
         "OPTIONS * 127.0.0.1 0 -");
  expect("OPTIONS /none HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "HTTP/1.1 204 No Content\r\n", "\r\n\r\n");
  expect("DELETE /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "HTTP/1.1 200 OK\r\n", "OTHER /a 127.0.0.1 0 -");
  expect("GET /a HTTP/1.0\r\n\r\n", "HTTP/1.0 200 OK\r\n", "\r\n\r\nGET /a 127.0.0.1 0 -");
  end();
}

Test(http, head) {
  begin();
  char *text = mk_test_ask(&server, "HEAD /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  has(text, "HTTP/1.1 200 OK\r\n");
  has(text, "\r\nContent-Length: 21\r\n"); /* of "HEAD /a 127.0.0.1 0 -" */
  cr_assert_str_eq(text + strlen(text) - 4, "\r\n\r\n");
  free(text);
  end();
}

Test(http, stream) {
  begin();
  const int fd = mk_test_connect(&server);
  for (int i = 0; i < 3; i++) {
    mk_test_say(fd, "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n");
    char *first = mk_test_hear(fd, "one\n\r\n"); /* before the rest is there */
    has(first, "\r\nTransfer-Encoding: chunked\r\n");
    has(first, "\r\n\r\n4\r\none\n\r\n");
    mk_test_release(&server);
    char *rest = mk_test_hear(fd, "0\r\n\r\n");
    cr_assert_str_eq(rest, "4\r\ntwo\n\r\n6\r\nthree\n\r\n0\r\n\r\n");
    free(first);
    free(rest);
  }
  close(fd);
  end();
}

Test(http, malformed) {
  begin();
  expect_error("nonsense\r\n\r\n", 400);
  expect_error("GET /a HTTP/9.9\r\n\r\n", 400);
  expect_error("GET /a HTTP/1.1\r\nno colon\r\n\r\n", 400);
  expect_error("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: x\r\n\r\n", 400);
  expect_error("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400);
  expect_error("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na", 400);
  expect_error("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400);
  expect_error("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400);
  expect_error("POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 400);
  expect_error("POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n0\r\n\r\n", 400);
  expect_error("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: +1\r\n\r\na", 400);
  expect_error("POST /a HTTP/1.1\r\nHost: a\r\nContent-Length : 1\r\n\r\na", 400);
  expect_error("HEAD /a HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\na", 400);
  expect_error("GET /a HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400);
  expect_error("BREW /a HTTP/1.1\r\nHost: a\r\n\r\n", 405);
  expect_error("TRACE /a HTTP/1.1\r\nHost: a\r\n\r\n", 405);
  expect_error("CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 405);
  expect_error("POST /a HTTP/1.1\r\nHost: a\r\nExpect: wonders\r\nContent-Length: 1\r\n\r\n", 417);
  expect_error("POST /a HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400);
  static const char nul[] = "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: 1\0002\r\n\r\na";
  static const char tls[] = "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"; /* is not waited for to end */
  const struct {
    const char *bytes;
    size_t length;
    const char *answer;
  } binary[] = {{nul, sizeof nul - 1, "a NUL in it"}, {tls, sizeof tls - 1, "TLS"}};
  for (size_t i = 0; i < sizeof binary / sizeof *binary; i++) {
    const int fd = mk_test_connect(&server);
    mk_test_write(fd, binary[i].bytes, binary[i].length);
    char *text = mk_test_hear(fd, NULL);
    has(text, "HTTP/1.1 400 ");
    has(text, binary[i].answer);
    free(text);
    close(fd);
  }
  cr_assert_eq(atomic_load(&server.calls), 0);
  end();
}

/* HTTP/1.1 has a Host, one that can be one; which may be empty. */
Test(http, host) {
  begin();
  expect_error("GET /a HTTP/1.1\r\n\r\n", 400);
  expect_error("GET http://a/ HTTP/1.1\r\nX-Host: a\r\n\r\n", 400);
  static const char *const bad[] = {"a b", "a/b", "a?b", "a@b", "a#b", "a\\b", "a, b", "\"a\"", "<a>", "a\x80"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    char request[128];
    snprintf(request, sizeof request, "GET /a HTTP/1.1\r\nHost: %s\r\n\r\n", bad[i]);
    expect_error(request, 400);
  }
  cr_assert_eq(atomic_load(&server.calls), 0);
  static const char *const good[] = {"", "a", "a.example:8080", "127.0.0.1", "[::1]:80", "xn--a_b~c", "a%2Fb"};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    char request[128];
    snprintf(request, sizeof request, "GET /a HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n", good[i]);
    expect(request, "HTTP/1.1 200 OK\r\n", "GET /a 127.0.0.1 0 -");
  }
  end();
}

Test(http, paths) {
  begin();
  static const char *const paths[] = {
      "/../../etc/passwd", "/a/../v1/models", "//evil/v1/models", "/%2e%2e/a", "/v1%2fmodels", "/a%00b", "/a;b", "/A"};
  for (size_t i = 0; i < sizeof paths / sizeof *paths; i++) {
    char request[128], last[128];
    snprintf(request, sizeof request, "GET %s?q=/z HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", paths[i]);
    snprintf(last, sizeof last, "\r\n\r\nGET %s 127.0.0.1 0 -", paths[i]);
    expect(request, "HTTP/1.1 200 OK\r\n", last);
  }
  expect("GET http://a:80/v1/models?x HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "HTTP/1.1 200 OK\r\n",
         "GET /v1/models 127.0.0.1 0 -");
  expect("GET http://a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "HTTP/1.1 200 OK\r\n", "GET / 127.0.0.1 0 -");
  end();
}

Test(http, goes_on) {
  begin();
  const int fd = mk_test_connect(&server);
  for (int i = 0; i < 100; i++) {
    mk_test_say(fd, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nping");
    char *text = mk_test_hear(fd, "ping");
    lacks(text, "Connection: close");
    free(text);
  }
  mk_http_counters counters;
  mk_http_count(server.http, &counters);
  cr_assert_eq(counters.accepted, 1u);
  mk_test_say(fd, "GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  char *text = mk_test_hear(fd, NULL);
  has(text, "\r\nConnection: close\r\n");
  free(text);
  close(fd);
  end();
}

/* Requests that come before the one before them is answered: in order, whatever kind they are. */
Test(http, pipelining) {
  begin();
  const int fd = mk_test_connect(&server);
  mk_test_say(fd,
              "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"
              "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 6\r\n\r\nsecond"
              "GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
  free(mk_test_hear(fd, "one\n"));
  mk_test_say(fd, "GET /last HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  mk_test_until(&server.calls, 1);
  mk_test_release(&server);
  free(mk_test_hear(fd, "0\r\n\r\n"));
  free(mk_test_hear(fd, "second"));
  mk_test_until(&server.calls, 3);
  mk_test_say(fd, "GET /never HTTP/1.1\r\nHost: a\r\n\r\n"); /* while a call has no reply byte yet */
  usleep(20000);
  mk_test_release(&server);
  free(mk_test_hear(fd, "waited"));
  char *text = mk_test_hear(fd, NULL);
  has(text, "GET /last 127.0.0.1 0 -");
  lacks(text, "never");
  free(text);
  close(fd);
  cr_assert_eq(atomic_load(&server.calls), 4);
  cr_assert_eq(atomic_load(&server.gone), 0);
  end();
}

Test(http, chunked_upload) {
  begin();
  expect(
      "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
      "3\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n",
      "HTTP/1.1 200 OK\r\n", "\r\n\r\nabc0123456789");
  const int fd = mk_test_connect(&server); /* in pieces that cut through sizes and ends */
  mk_test_say(fd, "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: CHUNKED\r\nConnection: close\r\n\r\n");
  for (const char *at = "1\r\nx\r\n2\r\nyz\r\n0\r\nX-Trailer: 1\r\n\r\n"; *at != '\0'; at++) {
    mk_test_write(fd, at, 1);
    usleep(1000);
  }
  char *text = mk_test_hear(fd, NULL);
  cr_assert_str_eq(strstr(text, "\r\n\r\n"), "\r\n\r\nxyz", "%s", text);
  free(text);
  close(fd);
  end();
}

/* Extensions mean nothing to us, and the data of each chunk is what its size says, however the bytes come in. */
Test(http, chunk_extensions) {
  begin();
  static const char request[] =
      "POST /echo HTTP/1.1\r\nHost: a\r\nA:\r\nB:\r\nTransfer-Encoding: chunked\r\n\r\n"
      "5;name=value\r\nhello\r\n00001 ; a = \"b;c\"\r\n,\r\n2\t;x\r\n 5\r\n3  \r\n;\r\n\r\n0;last\r\nX-Trailer: "
      "5;a\r\n\r\n";
  const size_t length = sizeof request - 1;
  for (size_t step = 1; step <= length; step = step < 16 ? step + 1 : step * 2) {
    const int fd = mk_test_connect(&server);
    for (int again = 0; again < 2; again++) {
      for (size_t at = 0; at < length; at += step) {
        cr_assert(mk_test_write(fd, request + at, at + step < length ? step : length - at));
        usleep(step < 16 ? 200 : 2000);
      }
    }
    for (int again = 0; again < 2; again++) {
      char *text = mk_test_hear(fd, "hello, 5;\r\n");
      cr_assert_not_null(strstr(text, "HTTP/1.1 200 OK\r\n"), "%s", text);
      cr_assert_not_null(strstr(text, "\r\n\r\nhello, 5;\r\n"), "%s", text);
      free(text);
    }
    close(fd);
  }
  end();
}

/* What a proxy may read otherwise. */
Test(http, malformed_chunks) {
  begin();
  static const char head[] = "POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n";
  static const char *const bodies[] = {"zz\r\n",
                                       "\r\n5\r\nhello\r\n0\r\n\r\n",
                                       "0x5\r\nhello\r\n0\r\n\r\n",
                                       "+5\r\nhello\r\n0\r\n\r\n",
                                       "-5\r\n",
                                       " 5\r\nhello",
                                       "5 of them\r\nhello\r\n0\r\n\r\n",
                                       "5;a\rb\r\nhello\r\n0\r\n\r\n",
                                       "5\nhello\r\n",
                                       "5;a\nhello\r\n",
                                       "5\r\nhello0\r\n\r\n",
                                       "5\r\nhello5\r\nhello\r\n0\r\n\r\n",
                                       "5\r\nhello\n0\r\n\r\n",
                                       "5\r\nhelloworld",
                                       "5,a\r\nhello\r\n0\r\n\r\n",
                                       "5\v\r\nhello\r\n0\r\n\r\n",
                                       ";a\r\nhello\r\n0\r\n\r\n",
                                       "0\n\r\n"};
  char request[256];
  for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
    snprintf(request, sizeof request, "%s%s", head, bodies[i]);
    expect_error(request, 400);
  }
  static const char *const large[] = {"100001\r\n", "ffffffffffffffff\r\n",
                                      "fffffffffffffffffffffffffffffffffff;a\r\n"};
  for (size_t i = 0; i < sizeof large / sizeof *large; i++) {
    snprintf(request, sizeof request, "%s%s", head, large[i]);
    expect_error(request, 413);
  }
  char *endless = malloc(8192 + sizeof head); /* extensions without an end */
  for (size_t ends = 0; ends < 2; ends++) {
    snprintf(endless, 8192, "%s5;", head);
    const size_t begun = strlen(endless);
    memset(endless + begun, 'x', 5000);
    strcpy(endless + begun + 5000, ends ? "\r\nhello\r\n0\r\n\r\n" : "");
    expect_error(endless, 400);
  }
  free(endless);
  cr_assert_eq(atomic_load(&server.calls), 0);
  end();
}

Test(http, expect_continue) {
  begin();
  const int fd = mk_test_connect(&server);
  mk_test_say(fd, "POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
  char *text = mk_test_hear(fd, "\r\n\r\n");
  cr_assert_str_eq(text, "HTTP/1.1 100 Continue\r\n\r\n");
  free(text);
  mk_test_say(fd, "hello");
  text = mk_test_hear(fd, "hello");
  cr_assert_eq(strncmp(text, "HTTP/1.1 200 OK\r\n", 17), 0);
  free(text);
  close(fd);
  expect_error("POST /echo HTTP/1.1\r\nHost: a\r\nContent-Length: 1048577\r\nExpect: 100-continue\r\n\r\n", 413);
  end();
}

/* What a client may send, to the byte, and not a byte more; also far more, in one go, and the answer can be read. */
Test(http, large_bodies) {
  begin();
  const size_t most = server.options.most_body;
  char *body = malloc(4 * most), head[128];
  memset(body, 'x', 4 * most);
  for (int chunked = 0; chunked < 2; chunked++) {
    for (int i = 0; i < 3; i++) {
      const size_t size = i == 0 ? most : i == 1 ? most + 1 : 4 * most;
      const int fd = mk_test_connect(&server);
      const int length =
          chunked ? snprintf(head, sizeof head,
                             "POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n%zx\r\n", size)
                  : snprintf(head, sizeof head, "POST /a HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n", size);
      mk_test_write(fd, head, (size_t)length);
      cr_assert(mk_test_write(fd, body, size));
      mk_test_say(fd, chunked ? "\r\n0\r\n\r\n" : "");
      char *text = mk_test_hear(fd, i == 0 ? "POST /a 127.0.0.1 1048576 -" : NULL);
      cr_assert_eq(strncmp(text, i == 0 ? "HTTP/1.1 200 " : "HTTP/1.1 413 ", 13), 0, "%s", text);
      cr_assert(i == 0 || strstr(text, "1048576 bytes") != NULL);
      free(text);
      close(fd);
    }
  }
  free(body);
  end();
}

Test(http, large_heads) {
  begin();
  const size_t most = server.options.most_head;
  char *request = malloc(8 * most), *long_text = malloc(8 * most);
  memset(long_text, 'y', 8 * most);
  static const char *const heads[] = {"GET /%.*s HTTP/1.1\r\nHost: a\r\n\r\n",
                                      "GET /a HTTP/1.1\r\nHost: a\r\nX-Long: %.*s\r\n\r\n", "%.*s"};
  for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
    for (size_t times = 1; times < 8; times += 3) {
      snprintf(request, 8 * most, heads[i], (int)(times * most + 1), long_text);
      expect_error(request, 431);
    }
  }
  snprintf(request, 8 * most, "GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Long: %.*s\r\n\r\n",
           (int)(most - 100), long_text);
  expect(request, "HTTP/1.1 200 OK\r\n", "GET /a 127.0.0.1 0 -");
  size_t length = (size_t)snprintf(request, 64, "GET /a HTTP/1.1\r\nHost: a\r\n");
  for (int i = 0; length < 2 * most; i++) {
    length += (size_t)snprintf(request + length, 64, "X-%d: 1\r\n", i);
  }
  snprintf(request + length, 8, "\r\n");
  expect_error(request, 431);
  free(request);
  free(long_text);
  end();
}

Test(http, cut_off) {
  begin();
  char *text = mk_test_ask(&server, "GET /torn HTTP/1.1\r\nHost: a\r\n\r\n");
  has(text, "4\r\nhalf\r\n");
  lacks(text, "0\r\n\r\n");
  free(text);
  mk_test_connections(&server, 0);
  cr_assert_eq(atomic_load(&server.gone), 0);
  end();
}

Test(http, at_once) {
  begin();
  const int fd = mk_test_connect(&server);
  atomic_store(&server.client, fd);
  mk_test_say(fd, "GET /now HTTP/1.1\r\nHost: a\r\n\r\n");
  mk_test_until(&server.calls, 1);
  mk_test_say(fd, "GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  mk_test_connections(&server, 0);
  char *text = mk_test_hear(fd, NULL);
  cr_assert_eq(strncmp(text, "0\r\n\r\nHTTP/1.1 200 OK\r\n", 22), 0, "%s", text);
  free(text);
  close(fd);
  end();
}

/* No connection waits for the acknowledgment of the bytes before. */
Test(http, no_delay) {
  begin();
  const int fd = mk_test_connect(&server);
  mk_test_say(fd, "GET /wait HTTP/1.1\r\nHost: a\r\n\r\n");
  mk_test_until(&server.calls, 1);
  struct sockaddr_in mine, peer;
  socklen_t size = sizeof mine;
  cr_assert_eq(getsockname(fd, (struct sockaddr *)&mine, &size), 0);
  int found = 0;
  for (int other = 0; other < 256; other++) { /* the other end is in this process */
    int on = 0;
    socklen_t peer_size = sizeof peer, on_size = sizeof on;
    if (getpeername(other, (struct sockaddr *)&peer, &peer_size) == 0 && peer.sin_family == AF_INET &&
        peer.sin_port == mine.sin_port) {
      cr_assert_eq(getsockopt(other, IPPROTO_TCP, TCP_NODELAY, &on, &on_size), 0);
      cr_assert(on);
      found++;
    }
  }
  cr_assert_eq(found, 1);
  close(fd);
  end();
}

/* Without chunks a stream ends with its connection; and to HEAD it is a head. */
Test(http, stream_without_chunks) {
  begin();
  static const char *const asks[] = {"GET /stream HTTP/1.0\r\n\r\n",
                                     "HEAD /stream HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"};
  for (int i = 0; i < 2; i++) {
    const int fd = mk_test_connect(&server);
    mk_test_say(fd, asks[i]);
    mk_test_until(&server.calls, i + 1);
    mk_test_release(&server);
    char *text = mk_test_hear(fd, NULL), *body = strstr(text, "\r\n\r\n");
    cr_assert_not_null(body);
    cr_assert_str_eq(body + 4, i == 0 ? "one\ntwo\nthree\n" : "", "%s", text);
    lacks(text, "chunked");
    free(text);
    close(fd);
  }
  end();
}
