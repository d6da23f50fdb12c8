/* JSON written straight into bytes, without a tree, the same in every locale.
 *
 * A writer belongs to one thread. The bytes are the caller's (mk_free(out->bytes)), and what was in them stays. That
 * memory has run out is kept in `status`; all that follows then does nothing, so callers look once, at the end. */
#ifndef MK_JSON_WRITE_H
#define MK_JSON_WRITE_H

#include "text/bytes.h"

typedef struct mk_json_writer {
  mk_bytes *out;
  size_t before; /* bytes that were there */
  mk_status status;
} mk_json_writer;

mk_json_writer mk_json_begin(mk_bytes *out);
/* The status; when it is not MK_OK, nothing has been written. */
mk_status mk_json_end(const mk_json_writer *w);

void mk_put_bytes(mk_json_writer *w, const char *bytes, size_t length);
void mk_put(mk_json_writer *w, const char *text); /* as it is */
void mk_put_uint(mk_json_writer *w, uint64_t value);
void mk_put_int(mk_json_writer *w, int64_t value);
/* Writes 9 significant digits, which give the same float again: two numbers look the same only if they are. Not for NaN
 * and infinities, which JSON does not have. */
void mk_put_float(mk_json_writer *w, float value);
/* Writes seconds: "0.0025". */
void mk_put_nanoseconds(mk_json_writer *w, uint64_t nanoseconds);
/* A string in quotes: whatever the bytes are, it is valid; U+FFFD stands for what is not UTF-8. NULL: null. */
void mk_put_string(mk_json_writer *w, const char *text, size_t length);
void mk_put_text(mk_json_writer *w, const char *text); /* with a NUL at its end */

#endif
