/* Bytes that grow while a file is put together in memory.
 *
 * Ownership: the caller frees `data` with mk_free. One thread. Failure: the first one sticks in `status`
 * (MK_ERR_RUNTIME for memory), and whatever is put after it is dropped, so that one look at the end is enough. */
#ifndef MK_BYTES_H
#define MK_BYTES_H

#include "vm/status.h"

typedef struct mk_bytes {
  unsigned char *data;
  size_t length, capacity;
  mk_status status;
} mk_bytes;

void mk_bytes_put(mk_bytes *bytes, const void *from, size_t length);
void mk_bytes_text(mk_bytes *bytes, const char *text);
void mk_bytes_format(mk_bytes *bytes, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* A varint: seven bits a byte, the lowest first, the highest bit set in all bytes but the last. */
void mk_bytes_number(mk_bytes *bytes, uint64_t value);
/* The same for a signed number, as zigzag: 0, -1, 1, -2, ... are 0, 1, 2, 3, ... */
void mk_bytes_signed(mk_bytes *bytes, int64_t value);

#endif
