/* See http.h. Is this libevent new enough? Its number does not tell: Debian's 2.1.12-stable-8+deb12u1 says the same as
 * the one before it, which takes a request that has both a length and chunks, so that a proxy and a server can be made
 * to see different requests. Such a request is sent to an evhttp of this library, through a socket that only this
 * process knows. */
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "serve/http_internal.h"

static const char both[] =
    "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n";

static void taken(struct evhttp_request *request, void *user) {
  (void)user;
  evhttp_send_reply(request, 200, "OK", NULL);
}

static void over(evutil_socket_t fd, short what, void *base) {
  (void)fd, (void)what;
  event_base_loopbreak(base);
}

/* A listening socket with a name that the kernel makes, and one that is connected to it. */
static bool make_pair(int *listening, int *client) {
  struct sockaddr_un name = {.sun_family = AF_UNIX};
  socklen_t size = sizeof name;
  *listening = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  *client = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  return *listening >= 0 && *client >= 0 && bind(*listening, (struct sockaddr *)&name, sizeof name.sun_family) == 0 &&
         listen(*listening, 1) == 0 && getsockname(*listening, (struct sockaddr *)&name, &size) == 0 &&
         connect(*client, (struct sockaddr *)&name, size) == 0;
}

/* Writes into reply what evhttp answers to `request`, at most 5 seconds from now. */
static bool answer(const char *request, char *reply, size_t size) {
  bool ok = false;
  int listening, client;
  struct event_base *base = event_base_new();
  struct evhttp *evhttp = base == NULL ? NULL : evhttp_new(base);
  const bool made = make_pair(&listening, &client);
  if (evhttp != NULL && made && evhttp_accept_socket_with_handle(evhttp, listening) != NULL) {
    listening = -1; /* evhttp's now */
    evhttp_set_gencb(evhttp, taken, NULL);
    const struct timeval most = {.tv_sec = 5};
    struct event *heard = event_new(base, client, EV_READ, over, base);
    if (heard != NULL && event_add(heard, &most) == 0 &&
        send(client, request, strlen(request), MSG_NOSIGNAL) == (ssize_t)strlen(request)) {
      event_base_dispatch(base);
      const ssize_t got = recv(client, reply, size - 1, MSG_DONTWAIT);
      ok = got > 0;
      reply[got > 0 ? got : 0] = '\0';
    }
    if (heard != NULL) {
      event_free(heard);
    }
  }
  if (evhttp != NULL) {
    evhttp_free(evhttp);
  }
  if (base != NULL) {
    event_base_free(base);
  }
  if (listening >= 0) {
    close(listening);
  }
  if (client >= 0) {
    close(client);
  }
  return ok;
}

mk_status mk_http_probe(void) {
  static _Atomic bool passed;
  if (passed) {
    return MK_OK;
  }
  if (event_get_version_number() < 0x02010c00) {
    return mk_error(MK_ERR_RUNTIME, "libevent is %s: install 2.1.12-stable-8+deb12u1 or newer", event_get_version());
  }
  char reply[512];
  if (!answer(both, reply, sizeof reply)) {
    return mk_error(MK_ERR_RUNTIME, "Cannot try libevent's HTTP: %s", strerror(errno));
  }
  if (strncmp(reply, "HTTP/1.1 400 ", 13) != 0) {
    return mk_error(
        MK_ERR_RUNTIME,
        "libevent %s takes a request with a length and chunks, which lets requests be smuggled past a proxy: "
        "install 2.1.12-stable-8+deb12u1 or newer",
        event_get_version());
  }
  passed = true;
  return MK_OK;
}
