/* What the engine's thread tells the loop's: tokens and ends of requests, in order.
 *
 * One thread puts, another one takes; a lock is held while bytes are copied in, and while two buffers change places. A
 * mk_events owns its memory until mk_events_free. Failure of putting: MK_ERR_RUNTIME for memory; what was put before
 * stays. */
#ifndef MK_EVENTS_H
#define MK_EVENTS_H

#include <pthread.h>

#include "include/mkvm.h"
#include "text/bytes.h"

typedef enum mk_event_kind {
  MK_EVENT_PROMPT, /* log-probabilities of a token of the prompt */
  MK_EVENT_TOKEN,
  MK_EVENT_UNSENT, /* the engine's thread has written to a socket that has not taken all */
  MK_EVENT_END,
} mk_event_kind;

typedef struct mk_event {
  mk_event_kind kind;
  void *to;         /* the exchange or choice that the event is of */
  uint64_t time_ns; /* of a token: when the engine told of it; CLOCK_MONOTONIC */
  union {
    mkvm_token token;
    mkvm_end end;
  };
} mk_event;

typedef struct mk_events {
  pthread_mutex_t lock;
  mk_bytes filling, taken;
  size_t at; /* in `taken` */
} mk_events;

void mk_events_init(mk_events *events);
void mk_events_free(mk_events *events);

uint64_t mk_now_ns(void);

/* Copies the event and what it points to. *first: nothing was waiting to be taken, so the other thread has to be woken.
 */
mk_status mk_events_put(mk_events *events, const mk_event *event, bool *first);
/* Takes the next event; false: there is none. What *out points to is valid until the next call. */
bool mk_events_take(mk_events *events, mk_event *out);

#endif
