/* Bytes that grow: freed with mk_free(bytes.bytes). Failure: MK_ERR_RUNTIME for memory. */
#ifndef MK_BYTES_H
#define MK_BYTES_H

#include <string.h>

#include "vm/status.h"

typedef struct mk_bytes {
  uint8_t *bytes;
  size_t length, capacity;
} mk_bytes;

static inline mk_status mk_bytes_append(mk_bytes *text, const void *bytes, size_t length) {
  MK_TRY(mk_grow(&text->bytes, &text->capacity, text->length + length + 1, 1)); /* never NULL, room for a NUL */
  if (length > 0) {
    memcpy(text->bytes + text->length, bytes, length);
  }
  text->length += length;
  return MK_OK;
}

#endif
