/* See http.h. A piece of a reply goes right to the socket, with its framing, while nothing waits to be sent before it;
 * else to the end of what waits. Of a reply that is lent another thread writes the pieces: the call's lock keeps the
 * socket open while it does. */
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "serve/http_internal.h"

/* A piece as it goes over the wire; parts[first] on is still to be sent. */
typedef struct framed {
  char size[20];
  struct iovec parts[4];
  size_t first, count;
} framed;

/* "c8\r\n". Returns its length. */
static size_t put_size(char out[20], size_t size) {
  size_t digits = 1;
  for (size_t rest = size >> 4; rest > 0; rest >>= 4) {
    digits++;
  }
  for (size_t i = digits; i-- > 0; size >>= 4) {
    out[i] = "0123456789abcdef"[size & 15];
  }
  memcpy(out + digits, "\r\n", 2);
  return digits + 2;
}

static void frame(const mk_http_call *call, const void *bytes, size_t length, framed *f) {
  f->first = f->count = 0;
  if (call->head.length != 0) {
    f->parts[f->count++] = (struct iovec){call->head.bytes, call->head.length};
  }
  if (call->chunked) {
    f->parts[f->count++] = (struct iovec){f->size, put_size(f->size, length)};
  }
  f->parts[f->count++] = (struct iovec){(void *)(uintptr_t)bytes, length};
  if (call->chunked) {
    f->parts[f->count++] = (struct iovec){(void *)(uintptr_t) "\r\n", 2};
  }
}

/* Gives the socket what it takes. An error is noticed when the rest is sent. */
static void give(evutil_socket_t fd, framed *f) {
  const struct msghdr message = {.msg_iov = f->parts, .msg_iovlen = f->count};
  const ssize_t result = sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  size_t sent = result > 0 ? (size_t)result : 0;
  for (; f->first < f->count && sent >= f->parts[f->first].iov_len; f->first++) {
    sent -= f->parts[f->first].iov_len;
  }
  if (f->first < f->count) {
    f->parts[f->first].iov_base = (char *)f->parts[f->first].iov_base + sent;
    f->parts[f->first].iov_len -= sent;
  }
}

static void take_for_gone(mk_http_connection *c) {
  c->cut = true;
  mk_http_look_soon(c);
}

/* Puts a piece at the end of what waits to be sent, unless that becomes too much. */
static void put_off(mk_http_connection *c, const struct iovec *parts, size_t count) {
  struct evbuffer *output = bufferevent_get_output(c->bev);
  size_t total = evbuffer_get_length(output);
  for (size_t i = 0; i < count; i++) {
    total += parts[i].iov_len;
  }
  bool good = total <= c->http->options.most_unsent;
  for (size_t i = 0; good && i < count; i++) {
    good = evbuffer_add(output, parts[i].iov_base, parts[i].iov_len) == 0;
  }
  if (!good) {
    take_for_gone(c);
  }
}

void mk_http_hold_head(mk_http_call *call) {
  struct evbuffer *output = bufferevent_get_output(call->connection->bev);
  const size_t length = evbuffer_get_length(output);
  const unsigned char *head = evbuffer_pullup(output, -1);
  pthread_mutex_lock(&call->lock);
  if (head != NULL && mk_bytes_append(&call->head, (const char *)head, length) == MK_OK) {
    evbuffer_unfreeze(output, 1); /* a bufferevent freezes the beginning of its output, for its own use */
    evbuffer_drain(output, length);
    evbuffer_freeze(output, 1);
  } /* else it is sent at the loop's next turn */
  pthread_mutex_unlock(&call->lock);
}

void mk_http_take_head(mk_http_call *call) {
  pthread_mutex_lock(&call->lock);
  const struct iovec head = {call->head.bytes, call->head.length};
  if (head.iov_len != 0) {
    put_off(call->connection, &head, 1);
  }
  call->head.length = 0;
  pthread_mutex_unlock(&call->lock);
}

void mk_http_take_rest(mk_http_call *call) {
  pthread_mutex_lock(&call->lock);
  const struct iovec rest = {call->rest.bytes, call->rest.length};
  if (call->rest_lost) {
    take_for_gone(call->connection);
  } else if (rest.iov_len != 0) {
    put_off(call->connection, &rest, 1);
  }
  call->rest.length = 0;
  pthread_mutex_unlock(&call->lock);
}

void mk_http_send(mk_http_call *call, const void *bytes, size_t length) {
  mk_http_connection *c = call->connection;
  if (c == NULL || c->cut || call->bodiless) {
    return;
  }
  mk_http_take_rest(call);
  if (c->cut || length == 0) { /* a chunk of no bytes would be the end */
    return;
  }
  framed f;
  frame(call, bytes, length, &f);
  if (evbuffer_get_length(bufferevent_get_output(c->bev)) == 0) {
    give(c->fd, &f);
  }
  put_off(c, f.parts + f.first, f.count - f.first);
  call->head.length = 0;
}

bool mk_http_lend(mk_http_call *call) {
  const mk_http_connection *c = call->connection;
  const bool can = c != NULL && !c->cut && call->begun && !call->bodiless &&
                   evbuffer_get_length(bufferevent_get_output(c->bev)) == 0;
  pthread_mutex_lock(&call->lock);
  const bool lends = can && call->rest.length == 0 && !call->rest_lost;
  call->lent = lends ? c->fd : -1;
  pthread_mutex_unlock(&call->lock);
  return lends;
}

static void keep_rest(mk_http_call *call, const framed *f) {
  for (size_t i = f->first; i < f->count && !call->rest_lost; i++) {
    call->rest_lost = mk_bytes_append(&call->rest, f->parts[i].iov_base, f->parts[i].iov_len) != MK_OK;
  }
}

bool mk_http_push(mk_http_call *call, const void *bytes, size_t length) {
  framed f = {.first = 0};
  pthread_mutex_lock(&call->lock);
  if (call->lent >= 0 && length != 0) {
    frame(call, bytes, length, &f);
    if (call->rest.length == 0 && !call->rest_lost) {
      give(call->lent, &f);
    }
    keep_rest(call, &f);
    call->head.length = 0;
  }
  pthread_mutex_unlock(&call->lock);
  return f.first == f.count;
}

void mk_http_call_parted(mk_http_call *call) {
  pthread_mutex_lock(&call->lock);
  call->lent = -1;
  pthread_mutex_unlock(&call->lock);
}
