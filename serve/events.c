/* See events.h. An event lies in a buffer as a mk_event, then its log-probabilities, then its text; each part aligned.
 */
#include "serve/events.h"

#include <time.h>

enum { ALIGNED = 8, KEPT_BYTES = 1 << 20 };

static size_t aligned(size_t bytes) { return (bytes + ALIGNED - 1) / ALIGNED * ALIGNED; }

uint64_t mk_now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
}

void mk_events_init(mk_events *events) {
  *events = (mk_events){0};
  (void)pthread_mutex_init(&events->lock, NULL); /* cannot fail with the default attributes */
}

void mk_events_free(mk_events *events) {
  mk_free(events->filling.bytes);
  mk_free(events->taken.bytes);
  (void)pthread_mutex_destroy(&events->lock);
}

static const char *text_of(const mk_event *event, size_t *length) {
  if (event->kind == MK_EVENT_END) {
    *length = strlen(event->end.message) + 1;
    return event->end.message;
  }
  *length = event->token.length;
  return event->token.text;
}

static size_t logprobs_of(const mk_event *event) {
  return event->kind == MK_EVENT_END ? 0 : event->token.top_count * sizeof(mkvm_logprob);
}

static mk_status append(mk_bytes *to, const mk_event *event) {
  size_t length, logprobs = logprobs_of(event);
  const char *text = text_of(event, &length);
  const size_t bytes = aligned(sizeof *event) + aligned(logprobs) + aligned(length);
  MK_TRY(mk_grow(&to->bytes, &to->capacity, to->length + bytes, 1));
  uint8_t *at = to->bytes + to->length;
  memcpy(at, event, sizeof *event);
  at += aligned(sizeof *event);
  if (logprobs != 0) {
    memcpy(at, event->token.top, logprobs);
  }
  if (length != 0) {
    memcpy(at + aligned(logprobs), text, length);
  }
  to->length += bytes;
  return MK_OK;
}

mk_status mk_events_put(mk_events *events, const mk_event *event, bool *first) {
  pthread_mutex_lock(&events->lock);
  *first = events->filling.length == 0;
  mk_status status = append(&events->filling, event);
  pthread_mutex_unlock(&events->lock);
  return status;
}

/* A buffer that a burst has made large is given back, so that the memory held stays what is needed. */
static void change_places(mk_events *events) {
  pthread_mutex_lock(&events->lock);
  mk_bytes empty = events->taken;
  events->taken = events->filling;
  if (empty.capacity > KEPT_BYTES) {
    mk_free(empty.bytes);
    empty = (mk_bytes){0};
  }
  empty.length = 0;
  events->filling = empty;
  pthread_mutex_unlock(&events->lock);
  events->at = 0;
}

bool mk_events_take(mk_events *events, mk_event *out) {
  if (events->at == events->taken.length) {
    change_places(events);
    if (events->taken.length == 0) {
      return false;
    }
  }
  const uint8_t *at = events->taken.bytes + events->at;
  size_t length, logprobs;
  memcpy(out, at, sizeof *out);
  at += aligned(sizeof *out);
  logprobs = logprobs_of(out);
  if (out->kind == MK_EVENT_END) {
    out->end.message = (const char *)at;
    length = strlen(out->end.message) + 1;
  } else {
    out->token.top = (const mkvm_logprob *)(const void *)at;
    out->token.text = (const char *)at + aligned(logprobs);
    length = out->token.length;
  }
  events->at += aligned(sizeof *out) + aligned(logprobs) + aligned(length);
  return true;
}
