/* See http.h. The loop: begin, end, and what other threads and time may ask of it. */
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "serve/http_internal.h"

_Thread_local mk_http *mk_http_running;

void mk_http_defaults(mk_http_options *options) {
  *options = (mk_http_options){.most_body = (size_t)32 << 20,
                               .most_head = (size_t)32 << 10,
                               .most_connections = 4096,
                               .arrive_seconds = 30,
                               .idle_seconds = 120,
                               .send_seconds = 30,
                               .most_unsent = (size_t)4 << 20};
}

static mk_status check(const mk_http_options *o) {
  if (o->host == NULL && o->unix_path == NULL) {
    return mk_error(MK_ERR_USAGE, "There is no address to listen on: give a host or a path of a socket");
  }
  if (o->on_call == NULL) {
    return mk_error(MK_ERR_USAGE, "on_call is missing");
  }
  const double seconds[] = {o->arrive_seconds, o->idle_seconds, o->send_seconds};
  for (size_t i = 0; i < sizeof seconds / sizeof *seconds; i++) {
    if (!(seconds[i] > 0 && seconds[i] <= 1e9)) {
      return mk_error(MK_ERR_USAGE, "A time limit of a connection is %g s: give one above 0 and up to 1e9", seconds[i]);
    }
  }
  const size_t most = (size_t)1 << 40;
  if (o->most_head == 0 || o->most_head > most || o->most_body > most || o->most_unsent == 0 ||
      o->most_connections == 0) {
    return mk_error(MK_ERR_USAGE, "A limit of connections, heads, bodies or replies is 0, or above 2^40 bytes");
  }
  return MK_OK;
}

static void woken(evutil_socket_t fd, short what, void *user) {
  (void)what;
  mk_http *http = user;
  uint64_t count;
  if (read(fd, &count, sizeof count) == (ssize_t)sizeof count && http->options.on_wake != NULL) {
    http->options.on_wake(http->options.user);
  }
}

static void timed(evutil_socket_t fd, short what, void *user) {
  (void)fd, (void)what;
  mk_http *http = user;
  if (http->on_time != NULL) {
    http->on_time(http->options.user);
  }
}

static void stop_now(evutil_socket_t fd, short what, void *user) {
  (void)fd, (void)what;
  event_base_loopbreak(((mk_http *)user)->base);
}

static void ignore_log(int severity, const char *message) { (void)severity, (void)message; }

static mk_status prepare(mk_http *http) {
  event_set_log_callback(ignore_log); /* otherwise warnings about single connections go to stderr */
  http->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (http->wake_fd < 0) {
    return mk_error(MK_ERR_RUNTIME, "Cannot make an eventfd: %s", strerror(errno));
  }
  http->base = event_base_new();
  http->evhttp = http->base == NULL ? NULL : evhttp_new(http->base);
  if (http->evhttp == NULL) {
    return mk_error(MK_ERR_RUNTIME, "libevent cannot make a server: out of memory or of file descriptors");
  }
  http->woken = event_new(http->base, http->wake_fd, EV_READ | EV_PERSIST, woken, http);
  http->timer = event_new(http->base, -1, 0, timed, http);
  http->stop_timer = event_new(http->base, -1, 0, stop_now, http);
  if (http->woken == NULL || http->timer == NULL || http->stop_timer == NULL || event_add(http->woken, NULL) != 0) {
    return mk_error(MK_ERR_RUNTIME, "Out of memory for the server's events");
  }
  evhttp_set_max_headers_size(http->evhttp, (ev_ssize_t)http->options.most_head);
  evhttp_set_max_body_size(http->evhttp, (ev_ssize_t)http->options.most_body);
  /* Not CONNECT, whose replies evhttp frames otherwise, nor TRACE. */
  evhttp_set_allowed_methods(http->evhttp, EVHTTP_REQ_GET | EVHTTP_REQ_POST | EVHTTP_REQ_HEAD | EVHTTP_REQ_PUT |
                                               EVHTTP_REQ_DELETE | EVHTTP_REQ_OPTIONS | EVHTTP_REQ_PATCH);
  evhttp_set_bevcb(http->evhttp, mk_http_connect, http);
  evhttp_set_gencb(http->evhttp, mk_http_request, http);
  return mk_http_listen(http);
}

mk_status mk_http_open(const mk_http_options *options, mk_http **out) {
  *out = NULL;
  MK_TRY(check(options));
  MK_TRY(mk_http_probe());
  mk_http *http;
  MK_TRY(mk_alloc(1, sizeof *http, &http));
  http->options = *options;
  http->wake_fd = -1;
  const mk_status status = prepare(http);
  if (status != MK_OK) {
    mk_http_close(http);
    return status;
  }
  http->options.host = http->options.unix_path = NULL; /* these are the caller's, and not needed any more */
  *out = http;
  return MK_OK;
}

uint16_t mk_http_port(const mk_http *http) { return http->port; }

void mk_http_count(const mk_http *http, mk_http_counters *out) {
  *out =
      (mk_http_counters){.connections = http->connection_count, .accepted = http->accepted, .refused = http->refused};
}

mk_status mk_http_run(mk_http *http) {
  /* libevent writes with writev(), for which a client that has gone raises SIGPIPE in this thread. */
  sigset_t pipe_alone, before, pending;
  sigemptyset(&pipe_alone);
  sigaddset(&pipe_alone, SIGPIPE);
  sigpending(&pending);
  pthread_sigmask(SIG_BLOCK, &pipe_alone, &before);
  mk_http_running = http;
  const int result = event_base_loop(http->base, EVLOOP_NO_EXIT_ON_EMPTY);
  mk_http_running = NULL;
  while (!LIST_EMPTY(&http->connections)) {
    mk_http_drop(LIST_FIRST(&http->connections));
  }
  if (!sigismember(&pending, SIGPIPE)) {
    const struct timespec none = {0};
    while (sigtimedwait(&pipe_alone, NULL, &none) == SIGPIPE) {
    }
  }
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return result >= 0 ? MK_OK : mk_error(MK_ERR_RUNTIME, "libevent's loop has failed: %s", strerror(errno));
}

void mk_http_wake(mk_http *http) {
  const int kept = errno;
  const uint64_t one = 1;
  const ssize_t written = write(http->wake_fd, &one, sizeof one);
  (void)written; /* it can fail only where the counter is full, and then the loop wakes as well */
  errno = kept;
}

static struct timeval timeval_of(double seconds) {
  seconds = seconds < 0 ? 0 : seconds > 1e9 ? 1e9 : seconds;
  const time_t whole = (time_t)seconds;
  return (struct timeval){.tv_sec = whole, .tv_usec = (suseconds_t)((seconds - (double)whole) * 1e6)};
}

void mk_http_timer(mk_http *http, double seconds, void (*on_time)(void *user)) {
  http->on_time = on_time;
  if (seconds < 0) {
    event_del(http->timer);
    return;
  }
  const struct timeval after = timeval_of(seconds);
  event_add(http->timer, &after);
}

void mk_http_stopped(mk_http *http) {
  if (http->stopping && LIST_EMPTY(&http->connections) && LIST_EMPTY(&http->lingers)) {
    event_base_loopbreak(http->base);
  }
}

void mk_http_stop(mk_http *http, double seconds) {
  http->stopping = true;
  mk_http_listen_no_more(http);
  const struct timeval after = timeval_of(seconds);
  event_add(http->stop_timer, &after);
  if (LIST_EMPTY(&http->connections) && LIST_EMPTY(&http->lingers)) {
    event_active(http->stop_timer, EV_TIMEOUT, 1); /* also before mk_http_run, which forgets a loopbreak */
  }
  mk_http_connection *connection;
  LIST_FOREACH(connection, &http->connections, link) { mk_http_look_soon(connection); }
}

static void free_event(struct event *event) {
  if (event != NULL) {
    event_free(event);
  }
}

void mk_http_close(mk_http *http) {
  if (http == NULL) {
    return;
  }
  while (!LIST_EMPTY(&http->connections)) {
    mk_http_drop(LIST_FIRST(&http->connections));
  }
  while (!LIST_EMPTY(&http->calls)) {
    mk_http_call_free(LIST_FIRST(&http->calls));
  }
  if (http->evhttp != NULL) {
    mk_http_linger_no_more(http);
    mk_http_listen_no_more(http);
    evhttp_free(http->evhttp);
  }
  free_event(http->woken);
  free_event(http->timer);
  free_event(http->stop_timer);
  free_event(http->accept_again);
  if (http->base != NULL) {
    event_base_free(http->base);
  }
  if (http->wake_fd >= 0) {
    close(http->wake_fd);
  }
  mk_free(http->by_fd);
  mk_free(http->unix_path);
  mk_free(http);
}
