/* Bytes that a client sends to a server; at each 0xff the loop has a turn before more is sent. Every call is answered,
 * in one of several ways; whatever comes back begins as HTTP does. In the end the connection is over. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "serve/http.h"
#include "tests/fuzz/support.h"

static mk_http *http;
static const uint8_t *rest;
static size_t rest_size;
static int client;

static void on_call(void *user, mk_http_call *call) {
  (void)user;
  size_t length;
  const char *path = mk_http_path(call), *body = mk_http_body(call, &length);
  fuzz_require(path[strcspn(path, "?#")] == '\0' && *path != '\0', "the path %s", path);
  fuzz_require(strcmp(mk_http_peer(call), "unix") == 0, "the peer %s", mk_http_peer(call));
  switch (strlen(path) % 3) {
    case 0:
      mk_http_reply(call, 200, "text/plain", body, length);
      break;
    case 1:
      mk_http_begin(call, 200, "text/event-stream");
      if (length % 4 == 3 && mk_http_take_back(call)) {
        mk_http_reply(call, 503, "text/plain", body, length);
        break;
      }
      mk_http_send(call, body, length);
      mk_http_end(call, length % 2 == 0);
      break;
    default:
      mk_http_reply(call, mk_http_header(call, "Host") == NULL ? 204 : 404, NULL, NULL, 0);
  }
}

static void turn(void *user) {
  (void)user;
  if (rest_size > 0) {
    const uint8_t *mark = memchr(rest, 0xff, rest_size);
    const size_t now = mark == NULL ? rest_size : (size_t)(mark - rest);
    if (now > 0) {
      const ssize_t sent = send(client, rest, now, MSG_NOSIGNAL | MSG_DONTWAIT);
      (void)sent; /* it may have been refused already */
    }
    rest += now + (mark != NULL);
    rest_size -= now + (mark != NULL);
    mk_http_timer(http, 0, turn);
    return;
  }
  char reply[16] = "";
  const ssize_t got = recv(client, reply, sizeof reply - 1, MSG_DONTWAIT);
  fuzz_require(got <= 0 || strncmp(reply, "HTTP/", got < 5 ? (size_t)got : 5) == 0, "the reply begins with %s", reply);
  close(client);
  client = -1;
  mk_http_stop(http, 10);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static char path[64];
  if (path[0] == '\0') {
    snprintf(path, sizeof path, "/tmp/mk_fuzz_http_%ld", (long)getpid());
  }
  mk_http_options options;
  mk_http_defaults(&options);
  options.unix_path = path;
  options.most_head = 512;
  options.most_body = 4096;
  options.on_call = on_call;
  fuzz_require(mk_http_open(&options, &http) == MK_OK, "%s", mk_error_message());
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  memcpy(address.sun_path, path, sizeof path);
  client = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  fuzz_require(connect(client, (const struct sockaddr *)&address, sizeof address) == 0, "cannot connect");
  rest = data;
  rest_size = size;
  mk_http_timer(http, 0, turn);
  fuzz_require(mk_http_run(http) == MK_OK, "%s", mk_error_message());
  mk_http_counters counters;
  mk_http_count(http, &counters);
  fuzz_require(counters.connections == 0 && counters.accepted == 1, "%d connections", (int)counters.connections);
  mk_http_close(http);
  return 0;
}
