/* A server over serve/http.h in a thread of its own, and a client of raw bytes.
 *
 * The server answers by path: "/echo" with the body; "/wait" after mk_test_release, "/late" too, also when its client
 * has gone; "/stream" in three pieces, of which two come after mk_test_release; "/flood" with 4 MiB, and as much at
 * each mk_test_release, for as long as the client is there; "/torn" with a piece, and is cut off; "/none" with 204;
 * "/now" with pieces, each of which it hears itself, at the socket `client`, before it sends the next; all else with
 * "METHOD PATH PEER BYTES X-TEST". */
#ifndef MK_TEST_HTTP_H
#define MK_TEST_HTTP_H

#include <pthread.h>
#include <stdatomic.h>

#include "serve/http.h"

enum { MK_TEST_CALLS = 2048 };

typedef struct mk_test_server {
  mk_http_options options;
  mk_http *http;
  pthread_t thread;
  atomic_int calls, gone, released, wakes;
  atomic_bool stop;
  _Atomic double stop_seconds;
  atomic_int client;
  mk_http_call *waiting[MK_TEST_CALLS]; /* the loop's thread's */
  size_t waiting_count;
} mk_test_server;

/* Limits that a test can reach; on loopback, any port. */
void mk_test_server_options(mk_test_server *server);
void mk_test_server_start(mk_test_server *server);
/* What waits is answered, or goes on. */
void mk_test_release(mk_test_server *server);
void mk_test_server_stop(mk_test_server *server, double seconds);
/* Waits until *count is at least `value`; fails the test after a while. */
void mk_test_until(atomic_int *count, int value);
/* Waits until there are as many connections. */
void mk_test_connections(const mk_test_server *server, uint64_t count);

/* A connection; reads that take ten minutes fail. */
int mk_test_connect(const mk_test_server *server);
int mk_test_connect_unix(const char *path);
int mk_test_dial(uint16_t port); /* 127.0.0.1 */
/* Writes to a socket, also to one that the other side has closed; false: the socket takes no more. */
bool mk_test_write(int fd, const void *bytes, size_t length);
bool mk_test_say(int fd, const char *text);
/* Reads until the text has `end` in it (NULL: until the end of the connection); closes nothing. The caller frees it. */
char *mk_test_hear(int fd, const char *end);
/* One connection, one request, all that comes. */
char *mk_test_ask(const mk_test_server *server, const char *request);

#endif
