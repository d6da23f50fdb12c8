/* A filter of text that arrives in pieces: it gives the text up to the first stop string that becomes complete, however
 * the pieces are cut.
 *
 * What may still turn out to be the beginning of a stop string is held back until it is decided. The stop strings stay
 * the caller's and must outlive the filter; the filter owns its buffer until mk_stop_free. One thread. Failure:
 * MK_ERR_RUNTIME (memory). */
#ifndef MK_STOP_H
#define MK_STOP_H

#include "vm/status.h"

typedef struct mk_stop {
  const char *const *strings; /* none of them empty */
  size_t count;
  char *held;
  size_t held_length, held_capacity;
  size_t ready; /* bytes of held that the last call gave out */
  bool hit;     /* a stop string has come: everything from there on is dropped */
} mk_stop;

/* Adds a piece; *out and *out_length are what can be shown now, valid until the next call. */
mk_status mk_stop_push(mk_stop *stop, const char *text, size_t length, const char **out, size_t *out_length);
/* The last piece, possibly of no bytes: what is still held back comes with it. */
mk_status mk_stop_finish(mk_stop *stop, const char *text, size_t length, const char **out, size_t *out_length);
void mk_stop_free(mk_stop *stop);

#endif
