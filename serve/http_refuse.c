/* See http.h. Answers to what is no call, and what is left of their connections: a client that still sends when its
 * connection is closed loses the answer, so for a moment what it sends is read and thrown away. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "serve/http_internal.h"
#include "serve/openai_write.h"

struct mk_http_linger {
  LIST_ENTRY(mk_http_linger) link;
  mk_http *http;
  int fd;
  struct event *more;
  double until;
};

static double now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static void end(mk_http_linger *linger) {
  mk_http *http = linger->http;
  event_free(linger->more);
  close(linger->fd);
  LIST_REMOVE(linger, link);
  http->linger_count--;
  mk_free(linger);
}

static void more(evutil_socket_t fd, short what, void *user) {
  mk_http_linger *linger = user;
  mk_http *http = linger->http;
  char bytes[16384];
  ssize_t got = 1;
  for (int i = 0; i < 16 && got > 0; i++) {
    got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
  }
  const bool over = (what & EV_TIMEOUT) != 0 || got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR);
  if (over || now() > linger->until) {
    end(linger);
    mk_http_stopped(http);
  }
}

/* Without memory, or with too many of them, the connection just goes. */
static void linger_on(mk_http *http, int fd) {
  mk_http_linger *linger;
  if (http->linger_count >= http->options.most_connections || mk_alloc(1, sizeof *linger, &linger) != MK_OK) {
    return;
  }
  *linger = (mk_http_linger){.http = http, .fd = dup(fd), .until = now() + MK_HTTP_LINGER_SECONDS};
  const struct timeval most = {.tv_sec = MK_HTTP_LINGER_SECONDS};
  linger->more = linger->fd < 0 ? NULL : event_new(http->base, linger->fd, EV_READ | EV_PERSIST, more, linger);
  if (linger->more == NULL || event_add(linger->more, &most) != 0) {
    if (linger->more != NULL) {
      event_free(linger->more);
    }
    if (linger->fd >= 0) {
      close(linger->fd);
    }
    mk_free(linger);
    return;
  }
  LIST_INSERT_HEAD(&http->lingers, linger, link);
  http->linger_count++;
}

void mk_http_linger_no_more(mk_http *http) {
  for (mk_http_linger *linger = LIST_FIRST(&http->lingers), *next; linger != NULL; linger = next) {
    next = LIST_NEXT(linger, link);
    end(linger);
  }
}

void mk_http_refuse(mk_http_connection *c, int status, const char *code, const char *message) {
  mk_http *http = c->http;
  http->refused++;
  mk_serve_error error;
  mk_serve_fail(&error, status, NULL, code, "%s", message);
  mk_bytes body = {0};
  if (mk_openai_write_error(&body, &error) == MK_OK) {
    char text[1024];
    const int length = snprintf(text, sizeof text,
                                "HTTP/1.1 %d %s\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n"
                                "%sConnection: close\r\n\r\n%.*s",
                                status, mk_http_reason(status), body.length, status == 503 ? "Retry-After: 1\r\n" : "",
                                (int)body.length, (const char *)body.bytes);
    if (length > 0 && (size_t)length < sizeof text) {
      const ssize_t sent = send(c->fd, text, (size_t)length, MSG_NOSIGNAL | MSG_DONTWAIT);
      (void)sent; /* a client whose buffers are full does not hear of it */
    }
  }
  mk_free(body.bytes);
  shutdown(c->fd, SHUT_WR);
  linger_on(http, c->fd);
  mk_http_drop(c);
}
