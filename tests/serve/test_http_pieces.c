/* Replies that are lent to another thread: its pieces reach the socket without the loop, in order, also when the socket
 * takes no more; and no byte goes to a socket that has been closed. */
#include <criterion/criterion.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/support/http.h"

TestSuite(http_pieces, .timeout = MK_HANG_SECONDS);

enum { PIECE = 1 << 16 };

typedef struct lent {
  mk_test_server server;
  mk_http_call *call;
  pthread_t thread;
  atomic_int pushed, unsent, taken, stop; /* taken: by the loop, after `unsent` */
  atomic_int client;
} lent;

static void begin(lent *l, void (*on_call)(void *user, mk_http_call *call), void (*on_wake)(void *user)) {
  mk_test_server_options(&l->server);
  l->server.options.most_unsent = (size_t)1 << 30;
  l->server.options.on_call = on_call;
  l->server.options.on_wake = on_wake;
  l->server.options.user = l;
  mk_test_server_start(&l->server);
}

/* mk_test_server_stop, whose on_wake these tests have replaced. */
static void stop_if_told(lent *l) {
  if (atomic_load(&l->server.stop)) {
    mk_http_stop(l->server.http, l->server.stop_seconds);
  }
}

/* ---- Without the loop ---- */

static void *push_three(void *user) {
  lent *l = user;
  for (int i = 0; i < 3; i++) {
    cr_assert(mk_http_push(l->call, "push", 4));
    char *text = mk_test_hear(atomic_load(&l->client), "4\r\npush\r\n");
    cr_assert_not_null(strstr(text, "push"));
    free(text);
  }
  cr_assert(mk_http_push(l->call, NULL, 0), "nothing is sent whole");
  return NULL;
}

/* The loop has no turn until all three have been heard. */
static void lend_at_once(void *user, mk_http_call *call) {
  lent *l = user;
  l->call = call;
  cr_expect_not(mk_http_lend(call), "there is no reply yet");
  mk_http_begin(call, 200, "text/event-stream");
  cr_assert(mk_http_lend(call));
  cr_assert_eq(pthread_create(&l->thread, NULL, push_three, l), 0);
  pthread_join(l->thread, NULL);
  mk_http_send(call, "loop", 4);
  mk_http_end(call, true);
  atomic_store(&l->taken, 1);
}

static void on_stop(void *user) { stop_if_told(user); }

Test(http_pieces, without_the_loop) {
  static lent l;
  begin(&l, lend_at_once, on_stop);
  const int fd = mk_test_connect(&l.server);
  atomic_store(&l.client, fd);
  mk_test_say(fd, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  mk_test_until(&l.taken, 1);
  char *text = mk_test_hear(fd, NULL);
  cr_expect_str_eq(text, "4\r\nloop\r\n0\r\n\r\n");
  free(text);
  close(fd);
  mk_test_server_stop(&l.server, 10);
}

/* A reply to HEAD has no pieces. */
static void lend_head(void *user, mk_http_call *call) {
  (void)user;
  mk_http_begin(call, 200, "text/plain");
  cr_expect_not(mk_http_lend(call));
  mk_http_end(call, true);
}

Test(http_pieces, not_of_a_head) {
  static lent l;
  begin(&l, lend_head, on_stop);
  free(mk_test_ask(&l.server, "HEAD / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"));
  mk_test_server_stop(&l.server, 10);
}

/* ---- The head ---- */

/* What one read gives, of a socket that has something. */
static void read_once(int fd, char text[1024]) {
  const ssize_t got = recv(fd, text, 1023, 0);
  text[got > 0 ? got : 0] = '\0';
}

static void begin_and_push(void *user, mk_http_call *call) {
  lent *l = user;
  struct pollfd client = {.fd = atomic_load(&l->client), .events = POLLIN};
  char text[1024];
  mk_http_begin(call, 200, "text/event-stream");
  cr_expect_eq(poll(&client, 1, 0), 0, "the head waits for the first piece");
  cr_assert(mk_http_lend(call));
  cr_assert(mk_http_push(call, "push", 4));
  read_once(client.fd, text);
  cr_expect(strncmp(text, "HTTP/1.1 200 OK\r\n", 17) == 0 && strstr(text, "\r\n\r\n4\r\npush\r\n") != NULL, "%s", text);
  cr_expect_not(mk_http_take_back(call), "it is on its way");
  mk_http_end(call, true);
  atomic_store(&l->taken, 1); /* the client may read from here on */
}

Test(http_pieces, head_and_first_piece_at_once) {
  static lent l;
  begin(&l, begin_and_push, on_stop);
  const int fd = mk_test_connect(&l.server);
  atomic_store(&l.client, fd);
  mk_test_say(fd, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  mk_test_until(&l.taken, 1);
  char *text = mk_test_hear(fd, NULL);
  cr_expect_str_eq(text, "0\r\n\r\n");
  free(text);
  close(fd);
  mk_test_server_stop(&l.server, 10);
}

/* A reply without pieces has its head all the same. */
static void begin_and_end(void *user, mk_http_call *call) {
  (void)user;
  mk_http_begin(call, 200, "text/event-stream");
  mk_http_end(call, true);
}

Test(http_pieces, a_head_alone) {
  static lent l;
  begin(&l, begin_and_end, on_stop);
  char *text = mk_test_ask(&l.server, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  cr_expect_not_null(strstr(text, "\r\n\r\n0\r\n\r\n"), "%s", text);
  free(text);
  mk_test_server_stop(&l.server, 10);
}

static void take_back(void *user, mk_http_call *call) {
  (void)user;
  cr_expect_not(mk_http_take_back(call), "there is no reply yet");
  (void)mk_http_add_header(call, "X-First", "1");
  mk_http_begin(call, 200, "text/event-stream");
  cr_assert(mk_http_lend(call));
  cr_assert(mk_http_take_back(call));
  cr_expect_not(mk_http_lend(call), "there is no reply any more");
  cr_expect(mk_http_push(call, "lost", 4));
  mk_http_reply(call, 503, "text/plain", "no", 2);
}

/* The reply that comes in its place is whole, and the connection goes on. */
Test(http_pieces, another_reply) {
  static lent l;
  begin(&l, take_back, on_stop);
  char *text = mk_test_ask(&l.server,
                           "GET /a HTTP/1.1\r\nHost: a\r\n\r\n"
                           "GET /b HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  cr_expect_eq(strncmp(text, "HTTP/1.1 503 ", 13), 0, "%s", text);
  const char *first = strstr(text, "\r\n\r\nno");
  cr_assert_not_null(first, "%s", text);
  cr_expect_eq(strncmp(first + 6, "HTTP/1.1 503 ", 13), 0, "%s", text);
  static const char *const never[] = {"200 OK", "X-First", "Transfer-Encoding", "event-stream", "lost"};
  for (size_t i = 0; i < sizeof never / sizeof never[0]; i++) {
    cr_expect_null(strstr(text, never[i]), "%s", text);
  }
  free(text);
  mk_test_server_stop(&l.server, 10);
}

/* ---- A client that does not read ---- */

static void fill(char piece[PIECE], int number) { memset(piece, 'a' + number % 26, PIECE); }

/* Sends until the socket takes no more, and then two more pieces, which are kept. */
static void *push_until_full(void *user) {
  static char piece[PIECE];
  lent *l = user;
  int number = 0;
  do {
    fill(piece, number++);
  } while (mk_http_push(l->call, piece, PIECE));
  for (int i = 0; i < 2; i++) {
    fill(piece, number++);
    cr_expect_not(mk_http_push(l->call, piece, PIECE));
  }
  atomic_store(&l->pushed, number);
  atomic_store(&l->unsent, 1);
  mk_http_wake(l->server.http);
  return NULL;
}

static void lend_and_go_on(void *user, mk_http_call *call) {
  lent *l = user;
  l->call = call;
  mk_http_begin(call, 200, "text/event-stream");
  cr_assert(mk_http_lend(call));
  cr_assert_eq(pthread_create(&l->thread, NULL, push_until_full, l), 0);
}

static void take_unsent(void *user) {
  lent *l = user;
  if (atomic_load(&l->unsent) == 1 && atomic_exchange(&l->taken, 1) == 0) {
    pthread_join(l->thread, NULL);
    cr_expect_not(mk_http_lend(l->call), "its rest has not been sent");
    mk_http_send(l->call, NULL, 0);
    cr_expect_not(mk_http_lend(l->call), "its rest waits to be sent");
    mk_http_send(l->call, "!", 1);
    mk_http_end(l->call, true);
  }
  stop_if_told(l);
}

/* The bytes of the chunks, in place. */
static size_t unchunk(char *text) {
  size_t length = 0;
  char *at = strstr(text, "\r\n\r\n") + 4;
  for (size_t size; (size = strtoul(at, &at, 16)) != 0; at += size + 2) {
    at += 2;
    memmove(text + length, at, size);
    length += size;
  }
  cr_expect_str_eq(at, "\r\n\r\n");
  return length;
}

Test(http_pieces, a_slow_reader) {
  static lent l;
  static char piece[PIECE];
  begin(&l, lend_and_go_on, take_unsent);
  const int fd = mk_test_connect(&l.server);
  mk_test_say(fd, "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
  mk_test_until(&l.taken, 1);
  char *text = mk_test_hear(fd, NULL);
  const size_t length = unchunk(text);
  const int count = atomic_load(&l.pushed);
  cr_assert_eq(length, (size_t)count * PIECE + 1);
  for (int i = 0; i < count; i++) {
    fill(piece, i);
    cr_assert_eq(memcmp(text + (size_t)i * PIECE, piece, PIECE), 0, "piece %d", i);
  }
  cr_expect_eq(text[length - 1], '!');
  free(text);
  close(fd);
  mk_test_server_stop(&l.server, 10);
}

/* ---- A client that goes away ---- */

static void *push_on(void *user) {
  lent *l = user;
  bool whole = true;
  while (!atomic_load(&l->stop)) {
    whole = whole && mk_http_push(l->call, "xxxxxxxx", 8);
    atomic_store(&l->pushed, 1);
  }
  return NULL;
}

static void on_gone(void *user, mk_http_call *call) {
  lent *l = user;
  cr_expect_eq(call, l->call);
  atomic_store(&l->taken, 1);
}

static void lend_or_answer(void *user, mk_http_call *call) {
  lent *l = user;
  if (l->call != NULL) {
    mk_http_reply(call, 200, "text/plain", "mine", 4);
    return;
  }
  l->call = call;
  mk_http_watch(call, on_gone, l);
  mk_http_begin(call, 200, "text/event-stream");
  cr_assert(mk_http_lend(call));
  cr_assert_eq(pthread_create(&l->thread, NULL, push_on, l), 0);
}

static void end_lent(void *user) {
  lent *l = user;
  if (atomic_exchange(&l->stop, 0) == 2) {
    mk_http_end(l->call, false);
  }
  stop_if_told(l);
}

/* The thread goes on while other clients come, whose sockets have the number of the one that is closed. */
Test(http_pieces, a_client_that_vanishes) {
  static lent l;
  begin(&l, lend_or_answer, end_lent);
  const int fd = mk_test_connect(&l.server);
  mk_test_say(fd, "GET / HTTP/1.1\r\nHost: a\r\n\r\n");
  mk_test_until(&l.pushed, 1);
  free(mk_test_hear(fd, "xxxxxxxx"));
  shutdown(fd, SHUT_WR);
  mk_test_until(&l.taken, 1);
  for (int i = 0; i < 50; i++) {
    char *text = mk_test_ask(&l.server, "GET /a HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    cr_expect_null(strstr(text, "xxx"), "%s", text);
    cr_expect_not_null(strstr(text, "\r\n\r\nmine"), "%s", text);
    free(text);
  }
  atomic_store(&l.stop, 1);
  pthread_join(l.thread, NULL);
  atomic_store(&l.stop, 2);
  mk_http_wake(l.server.http);
  close(fd);
  mk_test_server_stop(&l.server, 10);
}
