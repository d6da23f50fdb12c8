/* See http.h. A call: what was asked, and the reply, but for its pieces (http_pieces.c). Heads are written by evhttp.
 * */
#include <ctype.h>
#include <event2/http.h>
#include <event2/http_struct.h>
#include <event2/keyvalq_struct.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "serve/http_internal.h"

static const struct {
  int status;
  const char *reason;
} reasons[] = {{200, "OK"},
               {204, "No Content"},
               {400, "Bad Request"},
               {401, "Unauthorized"},
               {403, "Forbidden"},
               {404, "Not Found"},
               {405, "Method Not Allowed"},
               {408, "Request Timeout"},
               {413, "Content Too Large"},
               {417, "Expectation Failed"},
               {429, "Too Many Requests"},
               {431, "Request Header Fields Too Large"},
               {500, "Internal Server Error"},
               {503, "Service Unavailable"}};

const char *mk_http_reason(int status) {
  for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++) {
    if (reasons[i].status == status) {
      return reasons[i].reason;
    }
  }
  return "Unknown";
}

/* ---- What was asked ---- */

/* The path of a request's target, which is "/path?query" or, as to a proxy, "http://host/path?query". */
static mk_status path_of(const char *target, char **out) {
  const char *begin = target, *scheme = strstr(target, "://");
  if (*target != '/' && scheme != NULL) {
    begin = scheme + 3 + strcspn(scheme + 3, "/?#");
  }
  const size_t length = strcspn(begin, "?#");
  if (length == 0) {
    return mk_strdup("/", out);
  }
  MK_TRY(mk_alloc(length + 1, 1, out));
  memcpy(*out, begin, length);
  return MK_OK;
}

static mk_http_method method_of(const struct evhttp_request *request) {
  switch (evhttp_request_get_command(request)) {
    case EVHTTP_REQ_GET:
      return MK_HTTP_GET;
    case EVHTTP_REQ_HEAD:
      return MK_HTTP_HEAD;
    case EVHTTP_REQ_POST:
      return MK_HTTP_POST;
    case EVHTTP_REQ_OPTIONS:
      return MK_HTTP_OPTIONS;
    default:
      return MK_HTTP_OTHER;
  }
}

/* Whether the text has only characters that a host, an address in brackets, and a port may have. */
static bool is_host(const char *text) {
  static const char others[] = "-._~%!$&'()*+,;=:[]";
  for (; *text != '\0' && (isalnum((unsigned char)*text) || strchr(others, *text) != NULL); text++) {
  }
  return *text == '\0';
}

static bool is_length(const char *text) { return text[strspn(text, "0123456789")] == '\0'; }

static bool is_name(const char *text) { return text[0] != '\0' && text[strcspn(text, " \t\r\n\v\f")] == '\0'; }

/* What evhttp lets through, and a proxy before us may read otherwise, so that it and we would not agree whom a request
 * is for, or where it ends. NULL: nothing. The answer to it closes the connection. */
static const char *fault_of(struct evhttp_request *request) {
  const bool old = request->major < 1 || (request->major == 1 && request->minor == 0);
  size_t hosts = 0, lengths = 0, encodings = 0;
  bool names = true, host = true, length = true, encoding = true, body = false;
  const struct evkeyval *header;
  TAILQ_FOREACH(header, evhttp_request_get_input_headers(request), next) {
    names = names && is_name(header->key);
    if (strcasecmp(header->key, "Host") == 0) {
      hosts++;
      host = host && is_host(header->value);
    } else if (strcasecmp(header->key, "Content-Length") == 0) {
      lengths++;
      length = length && is_length(header->value);
      body = body || strcmp(header->value, "0") != 0;
    } else if (strcasecmp(header->key, "Transfer-Encoding") == 0) {
      encodings++;
      encoding = encoding && !old && strcasecmp(header->value, "chunked") == 0;
      body = true;
    }
  }
  const bool unread = body && evhttp_request_get_command(request) == EVHTTP_REQ_HEAD;
  return !names                         ? "A header's name is empty, or has a space in it."
         : hosts > 1 || !host           ? "The header Host may come once, with one host and port."
         : hosts == 0 && !old           ? "HTTP/1.1 needs a header Host."
         : !length || lengths > 1       ? "The header Content-Length may come once, with a number."
         : !encoding || encodings > 1   ? "The header Transfer-Encoding may come once, in HTTP/1.1, as 'chunked'."
         : encodings > 0 && lengths > 0 ? "A request may have a Content-Length or a Transfer-Encoding, not both."
         : unread                       ? "A HEAD may have no body."
                                        : NULL;
}

void mk_http_request(struct evhttp_request *request, void *user) {
  mk_http *http = user;
  mk_http_connection *c = mk_http_connection_of(http, request);
  mk_http_call *call = NULL;
  const char *fault = c != NULL && c->fault != NULL ? c->fault : fault_of(request);
  if (fault != NULL && c != NULL) {
    c->fault = fault;
    evhttp_send_error(request, 400, NULL); /* replace_page puts our text in its place */
    return;
  }
  if (c == NULL || mk_alloc(1, sizeof *call, &call) != MK_OK ||
      path_of(evhttp_request_get_uri(request), &call->path) != MK_OK) {
    mk_free(call);
    evhttp_send_error(request, 503, NULL);
    return;
  }
  call->connection = c;
  call->request = request;
  call->method = method_of(request);
  call->lent = -1;
  (void)pthread_mutex_init(&call->lock, NULL); /* cannot fail with the default attributes */
  memcpy(call->peer, c->peer, sizeof call->peer);
  LIST_INSERT_HEAD(&http->calls, call, link);
  mk_http_connection_called(c, call);
  evhttp_request_set_on_complete_cb(request, mk_http_connection_done, c);
  http->options.on_call(http->options.user, call);
}

void mk_http_call_free(mk_http_call *call) {
  if (call->connection == NULL) {
    evhttp_send_reply_end(call->request); /* evhttp frees it, as it has no connection */
  }
  LIST_REMOVE(call, link);
  (void)pthread_mutex_destroy(&call->lock);
  mk_free(call->head.bytes);
  mk_free(call->rest.bytes);
  mk_free(call->path);
  mk_free(call);
}

mk_http_method mk_http_method_of(const mk_http_call *call) { return call->method; }

const char *mk_http_path(const mk_http_call *call) { return call->path; }

const char *mk_http_header(const mk_http_call *call, const char *name) {
  return evhttp_find_header(evhttp_request_get_input_headers(call->request), name);
}

const char *mk_http_body(const mk_http_call *call, size_t *length) {
  struct evbuffer *body = evhttp_request_get_input_buffer(call->request);
  *length = evbuffer_get_length(body);
  const char *bytes = (const char *)evbuffer_pullup(body, -1);
  *length = bytes == NULL ? 0 : *length;
  return bytes == NULL ? "" : bytes;
}

const char *mk_http_peer(const mk_http_call *call) { return call->peer; }

void mk_http_watch(mk_http_call *call, void (*gone)(void *user, mk_http_call *call), void *user) {
  call->gone = gone;
  call->user = user;
}

/* ---- The reply ---- */

/* Gives the socket what it takes. The rest is sent, and an error noticed, when it takes more. */
static void flush(const mk_http_connection *c) {
  struct evbuffer *output = bufferevent_get_output(c->bev);
  ssize_t sent = 1;
  while (sent > 0 && evbuffer_get_length(output) > 0) {
    struct evbuffer_iovec parts[16];
    const int count = evbuffer_peek(output, -1, NULL, parts, 16);
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)(count < 16 ? count : 16)};
    sent = sendmsg(c->fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      evbuffer_unfreeze(output, 1); /* a bufferevent freezes the beginning of its output, for its own use */
      evbuffer_drain(output, (size_t)sent);
      evbuffer_freeze(output, 1);
    }
  }
}

static struct evkeyvalq *headers_of(const mk_http_call *call) {
  return evhttp_request_get_output_headers(call->request);
}

mk_status mk_http_add_header(mk_http_call *call, const char *name, const char *value) {
  return evhttp_add_header(headers_of(call), name, value) == 0
             ? MK_OK
             : mk_error(MK_ERR_USAGE, "A header of a reply, %s, has a line break in it", name);
}

/* Headers that every reply has. */
static void add_headers(mk_http_call *call, const mk_http *http, const char *type) {
  if (type != NULL) {
    evhttp_add_header(headers_of(call), "Content-Type", type);
  }
  if (http->stopping) {
    evhttp_add_header(headers_of(call), "Connection", "close");
  }
}

void mk_http_reply(mk_http_call *call, int status, const char *type, const void *bytes, size_t length) {
  mk_http_connection *c = call->connection;
  if (c == NULL || c->cut) {
    mk_http_end(call, false);
    return;
  }
  add_headers(call, c->http, type);
  const bool empty = status < 200 || status == 204 || status == 304;
  char text[32];
  snprintf(text, sizeof text, "%zu", length);
  struct evbuffer *body = empty || call->method == MK_HTTP_HEAD ? NULL : evbuffer_new();
  if ((!empty && evhttp_add_header(headers_of(call), "Content-Length", text) != 0) ||
      (body != NULL && evbuffer_add(body, bytes, length) != 0)) {
    mk_http_end(call, false);
  } else {
    struct evhttp_request *request = call->request;
    c->call = NULL;
    mk_http_call_free(call);
    evhttp_send_reply(request, status, mk_http_reason(status), body);
    flush(c);
  }
  if (body != NULL) {
    evbuffer_free(body);
  }
}

void mk_http_begin(mk_http_call *call, int status, const char *type) {
  mk_http_connection *c = call->connection;
  if (c == NULL || c->cut) {
    return;
  }
  add_headers(call, c->http, type);
  evhttp_send_reply_start(call->request, status, mk_http_reason(status));
  call->begun = true;
  call->chunked = evhttp_find_header(headers_of(call), "Transfer-Encoding") != NULL;
  call->bodiless = call->method == MK_HTTP_HEAD || status < 200 || status == 204 || status == 304;
  mk_http_hold_head(call);
}

bool mk_http_take_back(mk_http_call *call) {
  pthread_mutex_lock(&call->lock);
  const bool held = call->head.length != 0;
  call->head.length = 0;
  call->lent = held ? -1 : call->lent;
  pthread_mutex_unlock(&call->lock);
  if (held) {
    evhttp_clear_headers(headers_of(call));
    call->request->chunked = 0; /* evhttp remembers that it began a reply by this alone */
    call->begun = call->chunked = false;
  }
  return held;
}

void mk_http_end(mk_http_call *call, bool complete) {
  mk_http_connection *c = call->connection;
  if (c == NULL) {
    mk_http_call_free(call);
    return;
  }
  if (complete) {
    mk_http_take_head(call);
  }
  mk_http_take_rest(call);
  struct evhttp_request *request = call->request;
  const bool chunked = call->chunked;
  c->call = NULL;
  mk_http_call_free(call);
  if (!complete || c->cut) {
    c->torn = request; /* evhttp still has to end it, and does when the connection is freed */
    if (evbuffer_get_length(bufferevent_get_output(c->bev)) == 0) {
      mk_http_look_soon(c);
    }
    return;
  }
  /* evhttp may be done with it at once, and even free the connection; then there is nothing left to flush. */
  const bool later = evbuffer_get_length(bufferevent_get_output(c->bev)) > 0 || chunked;
  evhttp_send_reply_end(request);
  if (later) {
    flush(c);
  }
}
