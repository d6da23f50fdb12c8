/* See http.h. A connection: from the moment it is accepted until it is freed, the time it has, and what it sends before
 * a request is whole. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "serve/http_internal.h"

/* evhttp's own object, which it gives to every callback of the bufferevent. NULL: it has freed it. */
static struct evhttp_connection *evhttp_of(const mk_http_connection *c) {
  void *evhttp = NULL;
  bufferevent_getcb(c->bev, NULL, NULL, NULL, &evhttp);
  return evhttp;
}

static struct timeval timeval_of(double seconds) {
  const time_t whole = (time_t)seconds;
  return (struct timeval){.tv_sec = whole, .tv_usec = (suseconds_t)((seconds - (double)whole) * 1e6)};
}

/* ---- States ---- */

static void set_deadline(mk_http_connection *c, double seconds) {
  const struct timeval after = timeval_of(seconds);
  event_add(c->deadline, &after);
}

/* evhttp takes a body of known length, or a chunk, from the bufferevent when all of it is there, so until then the
 * bufferevent must be allowed to hold it. */
static size_t most_arriving(const mk_http *http) {
  return http->options.most_head + http->options.most_body + MK_HTTP_AHEAD;
}

static void idle(mk_http_connection *c) {
  c->state = MK_HTTP_IDLE;
  c->place = MK_HTTP_AT_FIRST;
  c->head_over = c->chunks = false;
  c->fault = NULL;
  c->taken = c->ahead = 0;
  bufferevent_setwatermark(c->bev, EV_READ, 0, most_arriving(c->http));
  set_deadline(c, c->http->options.idle_seconds);
}

static void arrive(mk_http_connection *c) {
  c->state = MK_HTTP_ARRIVING;
  set_deadline(c, c->http->options.arrive_seconds);
}

void mk_http_connection_called(mk_http_connection *c, mk_http_call *call) {
  c->state = MK_HTTP_CALLED;
  c->call = call;
  event_del(c->deadline);
  /* evhttp has stopped reading, but only who reads hears that the client has gone. What is read must not reach evhttp,
   * which ends the process when bytes come in this state. */
  bufferevent_event_cb on_event;
  bufferevent_data_cb on_write;
  void *evhttp;
  bufferevent_getcb(c->bev, NULL, &on_write, &on_event, &evhttp);
  bufferevent_setcb(c->bev, NULL, on_write, on_event, evhttp);
  bufferevent_setwatermark(c->bev, EV_READ, 0, MK_HTTP_AHEAD);
  bufferevent_enable(c->bev, EV_READ);
}

void mk_http_connection_done(struct evhttp_request *request, void *connection) {
  (void)request;
  mk_http_connection *c = connection;
  idle(c);
  if (evbuffer_get_length(bufferevent_get_input(c->bev)) > 0) { /* the next request is here already */
    arrive(c);
    mk_http_follow(c, 0);
  }
  if (c->http->stopping || c->cut) {
    mk_http_look_soon(c);
  }
}

/* ---- What evhttp does with the buffers ---- */

static void input_changed(struct evbuffer *buffer, const struct evbuffer_cb_info *info, void *connection) {
  (void)buffer;
  mk_http_connection *c = connection;
  if (info->n_added > 0 && c->state == MK_HTTP_IDLE) {
    arrive(c);
  }
  if (c->state == MK_HTTP_ARRIVING) {
    mk_http_follow(c, info->n_deleted);
  }
}

static void output_changed(struct evbuffer *buffer, const struct evbuffer_cb_info *info, void *connection) {
  mk_http_connection *c = connection;
  if (info->n_added > 0 && c->state != MK_HTTP_CALLED) {
    c->page = true;
    mk_http_look_soon(c);
  }
  if (c->torn != NULL && evbuffer_get_length(buffer) == 0) {
    mk_http_look_soon(c);
  }
}

/* The page that evhttp has written is about to be sent: 100 (Continue) may go, an error gets our text. */
static void replace_page(mk_http_connection *c) {
  c->page = false;
  struct evbuffer *output = bufferevent_get_output(c->bev), *input = bufferevent_get_input(c->bev);
  char line[16] = "";
  if (evbuffer_copyout(output, line, sizeof line - 1) < 12) { /* HTTP/1.1 400 */
    return;
  }
  const long status = strtol(line + 9, NULL, 10);
  const bool whole_line = evbuffer_search(input, "\n", 1, NULL).pos >= 0;
  const size_t most_head = c->http->options.most_head, held = evbuffer_get_length(input);
  char text[256];
  if (status < 400) {
    return;
  }
  if (c->fault != NULL) {
    mk_http_refuse(c, 400, NULL, c->fault);
  } else if (status == 413) {
    snprintf(text, sizeof text, "The body is larger than %zu bytes.", c->http->options.most_body);
    mk_http_refuse(c, 413, "request_too_large", text);
  } else if (status == 400 && !c->head_over && (c->taken > most_head || (!whole_line && c->taken + held > most_head))) {
    snprintf(text, sizeof text, "The request line and headers are larger than %zu bytes.", most_head);
    mk_http_refuse(c, 431, "headers_too_large", text);
  } else if (status == 501) {
    mk_http_refuse(c, 405, "method_not_allowed", "This method is not known here.");
  } else if (status == 417) {
    mk_http_refuse(c, 417, NULL, "The header Expect may only be '100-continue'.");
  } else if (status >= 500) {
    mk_http_refuse(c, 503, "out_of_memory", "The server has no memory for this request; try again later.");
  } else {
    mk_http_refuse(c, 400, NULL, "The request is not well-formed HTTP.");
  }
}

/* ---- From the loop ---- */

static void name_peer(mk_http_connection *c) {
  struct sockaddr_storage peer;
  socklen_t size = sizeof peer;
  snprintf(c->peer, sizeof c->peer, "unknown");
  if (getpeername(c->fd, (struct sockaddr *)&peer, &size) != 0) {
    return;
  }
  const struct in6_addr *v6 = &((struct sockaddr_in6 *)&peer)->sin6_addr;
  if (peer.ss_family == AF_UNIX) {
    snprintf(c->peer, sizeof c->peer, "unix");
  } else if (peer.ss_family == AF_INET) {
    inet_ntop(AF_INET, &((struct sockaddr_in *)&peer)->sin_addr, c->peer, sizeof c->peer);
  } else if (peer.ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(v6)) {
    inet_ntop(AF_INET, &v6->s6_addr[12], c->peer, sizeof c->peer);
  } else if (peer.ss_family == AF_INET6) {
    inet_ntop(AF_INET6, v6, c->peer, sizeof c->peer);
  }
}

static void forget(mk_http_connection *c) {
  mk_http *http = c->http;
  evbuffer_remove_cb(bufferevent_get_input(c->bev), input_changed, c);
  evbuffer_remove_cb(bufferevent_get_output(c->bev), output_changed, c);
  event_free(c->deadline);
  event_free(c->look);
  if (c->fd >= 0 && (size_t)c->fd < http->by_fd_count && http->by_fd[c->fd] == c) {
    http->by_fd[c->fd] = NULL;
  }
  LIST_REMOVE(c, link);
  http->connection_count--;
  mk_free(c);
  mk_http_stopped(http);
}

/* evhttp is about to free it: the client has closed, a time limit is over, or the last reply is sent. */
static void closed(struct evhttp_connection *evhttp, void *connection) {
  (void)evhttp;
  mk_http_connection *c = connection;
  mk_http_call *call = c->call;
  struct evhttp_request *torn = c->torn;
  /* evhttp closes the descriptor next, but the bufferevent lives until the callback that led here returns. Its events
   * must leave the poll set now: later, another thread may have opened a file of the same number. */
  bufferevent_disable(c->bev, EV_READ | EV_WRITE);
  if (call != NULL) {
    mk_http_call_parted(call);
  }
  forget(c);
  if (torn != NULL) {
    evhttp_send_reply_end(torn); /* evhttp has parted it from the connection: this frees it */
  }
  if (call != NULL) {
    call->connection = NULL;
    if (call->gone != NULL) {
      call->gone(call->user, call);
    }
  }
}

static mk_status know_by_fd(mk_http_connection *c) {
  mk_http *http = c->http;
  const size_t before = http->by_fd_count;
  MK_TRY(mk_grow(&http->by_fd, &http->by_fd_count, (size_t)c->fd + 1, sizeof(void *)));
  memset(http->by_fd + before, 0, (http->by_fd_count - before) * sizeof(void *));
  http->by_fd[c->fd] = c;
  return MK_OK;
}

/* Starts a connection, once, right after evhttp has accepted it. */
static bool start(mk_http_connection *c) {
  mk_http *http = c->http;
  struct bufferevent *bev = c->bev;
  struct evhttp_connection *evhttp = evhttp_of(c);
  c->fd = bufferevent_getfd(bev);
  if (evhttp == NULL || c->fd < 0 || know_by_fd(c) != MK_OK) {
    forget(c);
    if (evhttp != NULL) {
      evhttp_connection_free(evhttp);
    }
    bufferevent_decref(bev);
    return false;
  }
  evhttp_connection_set_closecb(evhttp, closed, c);
  bufferevent_decref(bev);
  name_peer(c);
  const struct timeval send = timeval_of(http->options.send_seconds);
  bufferevent_set_timeouts(bev, NULL, &send);
  idle(c);
  return true;
}

static void look(evutil_socket_t fd, short what, void *connection) {
  (void)fd, (void)what;
  mk_http_connection *c = connection;
  if (c->fd < 0 && !start(c)) {
    return;
  }
  if (c->over) {
    mk_http_refuse(c, 503, "too_many_connections", "The server has as many connections as it may; try again later.");
  } else if (c->cut || (c->torn != NULL && evbuffer_get_length(bufferevent_get_output(c->bev)) == 0) ||
             (c->http->stopping && c->state == MK_HTTP_IDLE)) {
    mk_http_drop(c);
  } else if (c->page) {
    replace_page(c);
  } else if (c->fault != NULL && c->state == MK_HTTP_ARRIVING) {
    mk_http_refuse(c, 400, NULL, c->fault);
  } else if (c->http->stopping && c->state == MK_HTTP_ARRIVING) {
    mk_http_refuse(c, 503, "shutting_down", "The server is about to end.");
  }
}

static void out_of_time(evutil_socket_t fd, short what, void *connection) {
  (void)fd, (void)what;
  mk_http_connection *c = connection;
  if (c->state == MK_HTTP_ARRIVING) {
    char text[128];
    snprintf(text, sizeof text, "The request has not arrived within %g seconds.", c->http->options.arrive_seconds);
    mk_http_refuse(c, 408, "request_timeout", text);
  } else {
    mk_http_drop(c);
  }
}

void mk_http_look_soon(mk_http_connection *c) { event_active(c->look, EV_TIMEOUT, 1); }

void mk_http_drop(mk_http_connection *c) {
  if (c->fd < 0 && !start(c)) {
    return;
  }
  bufferevent_trigger_event(c->bev, BEV_EVENT_READING | BEV_EVENT_ERROR, 0); /* closed() comes within */
}

/* ---- Accepting ---- */

struct bufferevent *mk_http_connect(struct event_base *base, void *user) {
  mk_http *http = user;
  http->accepted++;
  mk_http_connection *c;
  if (mk_alloc(1, sizeof *c, &c) != MK_OK) {
    return NULL; /* evhttp makes a connection of its own, whose requests mk_http_request refuses */
  }
  *c = (mk_http_connection){.http = http, .fd = -1, .over = http->connection_count >= http->options.most_connections};
  c->bev = bufferevent_socket_new(base, -1, 0);
  c->deadline = event_new(base, -1, 0, out_of_time, c);
  c->look = event_new(base, -1, 0, look, c);
  if (c->bev == NULL || c->deadline == NULL || c->look == NULL ||
      evbuffer_add_cb(bufferevent_get_input(c->bev), input_changed, c) == NULL ||
      evbuffer_add_cb(bufferevent_get_output(c->bev), output_changed, c) == NULL) {
    if (c->bev != NULL) {
      bufferevent_free(c->bev);
    }
    if (c->deadline != NULL) {
      event_free(c->deadline);
    }
    if (c->look != NULL) {
      event_free(c->look);
    }
    mk_free(c);
    return NULL;
  }
  LIST_INSERT_HEAD(&http->connections, c, link);
  http->connection_count++;
  bufferevent_incref(c->bev); /* until start(): evhttp may fail to make its part */
  mk_http_look_soon(c);
  return c->bev;
}

mk_http_connection *mk_http_connection_of(const mk_http *http, struct evhttp_request *request) {
  struct bufferevent *bev = evhttp_connection_get_bufferevent(evhttp_request_get_connection(request));
  const evutil_socket_t fd = bufferevent_getfd(bev);
  mk_http_connection *c = fd >= 0 && (size_t)fd < http->by_fd_count ? http->by_fd[fd] : NULL;
  return c != NULL && c->bev == bev ? c : NULL;
}
