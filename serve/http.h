/* HTTP/1.1 for the server: connections, limits, deadlines and replies, over libevent's evhttp, which nothing else here
 * knows. What a path means is the caller's affair.
 *
 * A mk_http owns its sockets and calls. One thread, the loop's, calls everything but mk_http_wake, mk_http_count and
 * mk_http_push; callbacks come in it. A call (a request and its reply) lives from on_call until mk_http_reply or
 * mk_http_end, one of which is owed for each, also when its client is gone; what its accessors return lives as long as
 * the call.
 *
 * What never reaches on_call is answered here, with an error object (openai_error.h) and the end of the connection: a
 * request that is malformed, or whose end a proxy may see elsewhere (400), that took too long to arrive (408), a body
 * or a head over its limit (413, 431), a method that HTTP does not know, TRACE and CONNECT (405), an Expect other than
 * 100-continue (417), too many connections, and requests that are on their way at mk_http_stop (503).
 *
 * SIGPIPE is blocked in the loop's thread while mk_http_run works. Nothing else of the process is changed but
 * libevent's log, which is silenced.
 *
 * Failure: MK_ERR_RUNTIME for the system's refusals (the message names the address and what to do), also when libevent
 * is too old; MK_ERR_USAGE for options that cannot be. */
#ifndef MK_HTTP_H
#define MK_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "vm/status.h"

typedef struct mk_http mk_http;
typedef struct mk_http_call mk_http_call;

typedef struct mk_http_options {
  const char *host; /* name or address, each of its addresses is listened on; NULL: unix_path alone */
  uint16_t port;    /* 0: a free one */
  /* NULL: none. A socket file that nobody answers is replaced; the file goes at the stop, if it is ours. */
  const char *unix_path;
  size_t most_body;          /* bytes */
  size_t most_head;          /* bytes of the request line and headers */
  uint32_t most_connections; /* as many more may hear for a moment, while they are closed, that they are too many */
  double arrive_seconds;     /* from a request's first byte to its last */
  double idle_seconds;       /* of a connection between requests */
  double send_seconds;       /* with bytes to send of which the client takes none; then it is gone */
  size_t most_unsent;        /* bytes of mk_http_send that the socket has not taken; with more the client is gone */
  void (*on_call)(void *user, mk_http_call *call);
  void (*on_wake)(void *user); /* after mk_http_wake; several calls of it may come as one */
  void *user;
} mk_http_options;

/* Fills in everything but addresses and callbacks. */
void mk_http_defaults(mk_http_options *options);
/* Listens when it returns; copies what options point to. */
mk_status mk_http_open(const mk_http_options *options, mk_http **out);
/* The port that it listens on; 0 if it listens on none. */
uint16_t mk_http_port(const mk_http *http);
/* Works until mk_http_stop. */
mk_status mk_http_run(mk_http *http);
/* Makes on_wake come in the loop's thread. May be called from any thread, and from a signal handler. */
void mk_http_wake(mk_http *http);
/* No connection is accepted from now on, those without a call end; mk_http_run returns when all calls are over and what
 * was replied is sent, or when `seconds` are over: then the clients of what is left are gone. Again: another time. */
void mk_http_stop(mk_http *http, double seconds);
/* Calls on_time once, `seconds` from now, in the loop's thread. There is one timer per mk_http: a later call replaces
 * it; negative: none. */
void mk_http_timer(mk_http *http, double seconds, void (*on_time)(void *user));
/* Frees it, after mk_http_run, with all calls that were never ended; NULL is fine. */
void mk_http_close(mk_http *http);

typedef struct mk_http_counters {
  uint64_t connections;       /* open now */
  uint64_t accepted, refused; /* since the beginning; refused: answered here */
} mk_http_counters;

/* Fills in the counters; may be called from any thread. */
void mk_http_count(const mk_http *http, mk_http_counters *out);

/* ---- A call ---- */

typedef enum mk_http_method { MK_HTTP_GET, MK_HTTP_HEAD, MK_HTTP_POST, MK_HTTP_OPTIONS, MK_HTTP_OTHER } mk_http_method;

mk_http_method mk_http_method_of(const mk_http_call *call);
/* As it was sent, without the query (and of "http://host/path" the path alone): nothing is decoded, no ".." resolved,
 * so that a path is one of ours or none. */
const char *mk_http_path(const mk_http_call *call);
/* NULL: it has none. `name` in any case. */
const char *mk_http_header(const mk_http_call *call, const char *name);
const char *mk_http_body(const mk_http_call *call, size_t *length);
/* "127.0.0.1", "::1", or "unix" */
const char *mk_http_peer(const mk_http_call *call);

/* `gone` is called once, when the client goes away before the end of its reply, or is taken for gone; also while
 * nothing has been replied. It comes from the loop, not from within a function of this header but mk_http_close, and
 * may end the call. The reply that is owed goes nowhere. A client that closes only its sending half is taken for
 * gone. */
void mk_http_watch(mk_http_call *call, void (*gone)(void *user, mk_http_call *call), void *user);

/* Adds a header to the reply; before mk_http_reply or mk_http_begin. MK_ERR_USAGE: it has a line break. */
mk_status mk_http_add_header(mk_http_call *call, const char *name, const char *value);
/* Sends the whole reply, and ends the call; type: NULL for none. HEAD gets the head alone, with the length. */
void mk_http_reply(mk_http_call *call, int status, const char *type, const void *bytes, size_t length);
/* A reply in pieces. A piece is given to the socket before mk_http_send returns, if the socket takes it; what it does
 * not take is copied. The head goes out with the first piece, or with the end: one write and one packet for both. */
void mk_http_begin(mk_http_call *call, int status, const char *type);
/* Undoes mk_http_begin: the headers are gone, and the reply may be another one. false: its head is on its way. Whoever
 * has it lent may not be pushing. */
bool mk_http_take_back(mk_http_call *call);
void mk_http_send(mk_http_call *call, const void *bytes, size_t length);
/* Another thread may write pieces of a reply that is lent to it, so that they need not wait for the loop. Whose turn it
 * is, is the caller's affair: never call mk_http_push at the same time as mk_http_send or mk_http_end, nor after the
 * latter. The client may vanish at any time: what is pushed from then on goes nowhere.
 * false: not lent; the reply has not begun, has no body, its client has gone, or pieces of it still wait to be sent. */
bool mk_http_lend(mk_http_call *call);
/* From any thread, one at a time, after mk_http_lend was true. false: the socket has not taken all of it, or of an
 * earlier piece; the rest is kept, and goes out with the loop's next mk_http_send (which may be of no bytes). */
bool mk_http_push(mk_http_call *call, const void *bytes, size_t length);
/* The end of the call. complete: false cuts the connection when the pieces are sent, so that the client sees that the
 * reply is not whole. */
void mk_http_end(mk_http_call *call, bool complete);

#endif
