/* What the parts of the server's HTTP share. See http.h; one thread, but for what is lent of a call.
 *
 * evhttp parses requests and writes heads. A connection of it is followed from outside, by callbacks on the two buffers
 * of its bufferevent, since evhttp tells of neither a request's first byte nor of the error pages that it writes. */
#ifndef MK_HTTP_INTERNAL_H
#define MK_HTTP_INTERNAL_H

#include <event2/buffer.h>
#include <event2/bufferevent.h>
#include <event2/event.h>
#include <event2/http.h>
#include <pthread.h>
#include <sys/queue.h>
#include <sys/types.h>

#include "serve/http.h"
#include "text/bytes.h"

enum {
  MK_HTTP_LISTENERS = 16,   /* a host name may have several addresses */
  MK_HTTP_PEER = 64,        /* bytes of an address as text */
  MK_HTTP_AHEAD = 64 << 10, /* bytes that a client may send while it waits for a reply */
  MK_HTTP_LINGER_SECONDS = 2,
};

typedef enum mk_http_state { MK_HTTP_IDLE, MK_HTTP_ARRIVING, MK_HTTP_CALLED } mk_http_state;

/* Where evhttp is in a request that arrives. */
typedef enum mk_http_place {
  MK_HTTP_AT_FIRST,     /* before its first line */
  MK_HTTP_AT_HEAD,      /* before a line of its head */
  MK_HTTP_AT_BODY,      /* at the empty line that ends the head */
  MK_HTTP_AT_CHUNK,     /* before the size of a chunk */
  MK_HTTP_AT_CHUNK_END, /* before the end of line after a chunk's data */
  MK_HTTP_NOWHERE,      /* in what nobody looks at: a body of known length, or what comes after the last chunk */
} mk_http_place;

typedef struct mk_http_connection {
  LIST_ENTRY(mk_http_connection) link;
  mk_http *http;
  struct bufferevent *bev; /* evhttp's, as long as this */
  evutil_socket_t fd;      /* -1 until evhttp has it */
  struct event *deadline;  /* of the state it is in */
  struct event *look;      /* made active: mk_http_look comes from the loop, where the connection may be freed */
  mk_http_state state;
  bool over;                   /* there were too many connections when it came */
  bool cut;                    /* its client is taken for gone */
  bool page;                   /* evhttp has written something of its own */
  mk_http_place place;         /* in the request that arrives */
  bool head_over, chunks;      /* of it: evhttp has taken the head; the head has a Transfer-Encoding */
  const char *fault;           /* what is wrong with it; NULL: nothing yet */
  size_t taken, ahead;         /* bytes of it that evhttp has taken; takes before the next line is looked at */
  mk_http_call *call;          /* whose reply has not ended */
  struct evhttp_request *torn; /* whose reply is to be cut off when it is sent so far */
  char peer[MK_HTTP_PEER];
} mk_http_connection;

typedef struct mk_http_linger mk_http_linger;

struct mk_http_call {
  LIST_ENTRY(mk_http_call) link;
  mk_http_connection *connection; /* NULL: gone */
  struct evhttp_request *request;
  mk_http_method method;
  char *path;
  bool begun, chunked, bodiless; /* since mk_http_begin, before the call is lent for the first time */
  pthread_mutex_t lock;          /* of what follows, up to the next blank line */
  evutil_socket_t lent;          /* where pieces may be pushed to; -1: nowhere */
  mk_bytes head;                 /* of a reply in pieces, until the first of them is sent or pushed */
  mk_bytes rest;                 /* of pieces that were pushed; the loop takes it */
  bool rest_lost;                /* there was no memory for it */

  void (*gone)(void *user, mk_http_call *call);
  void *user;
  char peer[MK_HTTP_PEER];
};

struct mk_http {
  mk_http_options options;
  struct event_base *base;
  struct evhttp *evhttp;
  struct evhttp_bound_socket *listeners[MK_HTTP_LISTENERS];
  size_t listener_count;
  uint16_t port;
  char *unix_path; /* the file that is ours, and what it was when it was made */
  dev_t unix_device;
  ino_t unix_inode;
  int wake_fd;
  struct event *woken, *timer, *stop_timer, *accept_again;
  void (*on_time)(void *user);
  bool stopping;
  LIST_HEAD(, mk_http_connection) connections;
  LIST_HEAD(, mk_http_linger) lingers;
  LIST_HEAD(, mk_http_call) calls;
  size_t linger_count;
  void **by_fd; /* mk_http_connection */
  size_t by_fd_count;
  _Atomic uint64_t connection_count, accepted, refused;
};

/* The server whose loop this thread is in: evhttp keeps the only pointer of a listener's callbacks for itself. */
extern _Thread_local mk_http *mk_http_running;

/* ---- http_listen.c ---- */

mk_status mk_http_listen(mk_http *http);
/* Accepts no more connections, and removes the socket file. */
void mk_http_listen_no_more(mk_http *http);

/* ---- http_connection.c ---- */

/* evhttp asks for the bufferevent of a connection that it has accepted. */
struct bufferevent *mk_http_connect(struct event_base *base, void *http);
mk_http_connection *mk_http_connection_of(const mk_http *http, struct evhttp_request *request);
/* A whole request has arrived: nothing limits its time until its reply has ended. */
void mk_http_connection_called(mk_http_connection *connection, mk_http_call *call);
/* The request's reply is sent; evhttp waits for the next request. */
void mk_http_connection_done(struct evhttp_request *request, void *connection);
/* Makes the loop look at the connection again. */
void mk_http_look_soon(mk_http_connection *connection);
/* Frees the connection, as if its client had closed it. Called only from the loop, so not while evhttp works on it. */
void mk_http_drop(mk_http_connection *connection);
/* mk_http_run returns when it has been stopped and all is sent. */
void mk_http_stopped(mk_http *http);

/* ---- http_input.c ---- */

/* Called when more of a request has arrived, or when evhttp has taken `taken` bytes of it. */
void mk_http_follow(mk_http_connection *connection, size_t taken);

/* ---- http_refuse.c ---- */

/* Answers with an error object in place of evhttp, and drops the connection. Called only from the loop. */
void mk_http_refuse(mk_http_connection *connection, int status, const char *code, const char *message);
/* Forgets the connections whose last bytes were waited for. */
void mk_http_linger_no_more(mk_http *http);

/* ---- http_call.c ---- */

/* Called when evhttp has a whole request. */
void mk_http_request(struct evhttp_request *request, void *http);
/* Ends the call, whether anybody listens or not. */
void mk_http_call_free(mk_http_call *call);
/* "Not Found" */
const char *mk_http_reason(int status);

/* ---- http_pieces.c ---- */

/* Takes the head that evhttp has just written out of what waits to be sent, to go out with the first piece. */
void mk_http_hold_head(mk_http_call *call);
/* Puts a head that is held, or what a push has left, at the end of what waits to be sent. The call has a connection. */
void mk_http_take_head(mk_http_call *call);
void mk_http_take_rest(mk_http_call *call);
/* Called before the call's connection is closed: from then on no thread writes to it. */
void mk_http_call_parted(mk_http_call *call);

/* ---- http_probe.c ---- */

/* MK_ERR_RUNTIME when libevent is older than what is required. */
mk_status mk_http_probe(void);

#endif
