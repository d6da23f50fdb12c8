/* HTTP as clients speak it: methods, bodies, streams, connections that go on, and what is refused before it is a call. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/http.h"

TestSuite(http, .timeout = MK_HANG_SECONDS);

static mk_test_server server;

static void begin(void) {
  mk_test_server_options(&server);
  mk_test_server_start(&server);
}

static void end(void) { mk_test_server_stop(&server, 10); }

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

Test(http, methods, .init = begin, .fini = end) {
  expect("GET /a?b=c HTTP/1.1\r\nHost: a\r\nx-TEST: 5\r\nConnection: close\r\n\r\n", "HTTP/1.1 200 OK\r\n",
         "\r\n\r\nGET /a 127.0.0.1 0 5");
  expect("POST /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc", "HTTP/1.1 200 OK\r\n",
         "\r\n\r\nPOST /a 127.0.0.1 3 -");
  expect("OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "HTTP/1.1 200 OK\r\n",
         "OPTIONS * 127.0.0.1 0 -");
  expect("OPTIONS /none HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "HTTP/1.1 204 No Content\r\n", "\r\n\r\n");
  expect("DELETE /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", "HTTP/1.1 200 OK\r\n", "OTHER /a 127.0.0.1 0 -");
  expect("GET /a HTTP/1.0\r\n\r\n", "HTTP/1.0 200 OK\r\n", "\r\n\r\nGET /a 127.0.0.1 0 -");
}

Test(http, head, .init = begin, .fini = end) {
  char *text = mk_test_ask(&server, "HEAD /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  has(text, "HTTP/1.1 200 OK\r\n");
  has(text, "\r\nContent-Length: 21\r\n"); /* of "HEAD /a 127.0.0.1 0 -" */
  cr_assert_str_eq(text + strlen(text) - 4, "\r\n\r\n");
  free(text);
}

Test(http, stream, .init = begin, .fini = end) {
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
}

Test(http, malformed, .init = begin, .fini = end) {
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
  expect_error("BREW /a HTTP/1.1\r\nHost: a\r\n\r\n", 405);
  expect_error("TRACE /a HTTP/1.1\r\nHost: a\r\n\r\n", 405);
  expect_error("CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n", 405);
  expect_error("POST /a HTTP/1.1\r\nHost: a\r\nExpect: wonders\r\nContent-Length: 1\r\n\r\n", 417);
  expect_error("POST /a HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 413);
  cr_assert_eq(atomic_load(&server.calls), 0);
}
