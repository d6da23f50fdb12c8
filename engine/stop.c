/* See stop.h. */
#include "engine/stop.h"

#include <string.h>

static void drop_ready(mk_stop *stop) {
  if (stop->ready != 0) {
    stop->held_length -= stop->ready;
    memmove(stop->held, stop->held + stop->ready, stop->held_length);
    stop->ready = 0;
  }
}

/* Of the stop strings that are held whole, the one that ends first (of those, the longest) counts: what is shown then
 * does not depend on how the text was cut. Returns the place from which on nothing can be shown now. */
static size_t find(mk_stop *stop) {
  size_t hold = stop->held_length, start = 0, end = SIZE_MAX;
  for (size_t i = 0; i < stop->count; i++) {
    size_t length = strlen(stop->strings[i]);
    for (size_t at = 0; at < stop->held_length; at++) {
      size_t left = stop->held_length - at;
      if (memcmp(stop->held + at, stop->strings[i], length < left ? length : left) != 0) {
        continue;
      }
      if (length > left) {
        hold = at < hold ? at : hold;
      } else if (at + length < end || (at + length == end && at < start)) {
        start = at;
        end = at + length;
      }
    }
  }
  stop->hit = end != SIZE_MAX;
  return stop->hit ? start : hold;
}

mk_status mk_stop_push(mk_stop *stop, const char *text, size_t length, const char **out, size_t *out_length) {
  *out = "";
  *out_length = 0;
  if (stop->hit) {
    return MK_OK;
  }
  drop_ready(stop);
  MK_TRY(mk_grow(&stop->held, &stop->held_capacity, stop->held_length + length + 1, 1));
  memcpy(stop->held + stop->held_length, text, length);
  stop->held_length += length;
  stop->ready = find(stop);
  *out = stop->held;
  *out_length = stop->ready;
  return MK_OK;
}

mk_status mk_stop_finish(mk_stop *stop, const char *text, size_t length, const char **out, size_t *out_length) {
  MK_TRY(mk_stop_push(stop, text, length, out, out_length));
  if (!stop->hit) {
    *out_length = stop->ready = stop->held_length;
  }
  return MK_OK;
}

void mk_stop_free(mk_stop *stop) {
  mk_free(stop->held);
  stop->held = NULL;
  stop->held_length = stop->held_capacity = stop->ready = 0;
}
