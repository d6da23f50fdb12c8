/* See bytes.h. */
#include "tools/profiler/bytes.h"

#include <stdio.h>
#include <string.h>

void mk_bytes_put(mk_bytes *bytes, const void *from, size_t length) {
  if (bytes->status == MK_OK) {
    bytes->status = mk_grow(&bytes->data, &bytes->capacity, bytes->length + length, 1);
  }
  if (bytes->status == MK_OK && length != 0) {
    memcpy(bytes->data + bytes->length, from, length);
    bytes->length += length;
  }
}

void mk_bytes_text(mk_bytes *bytes, const char *text) { mk_bytes_put(bytes, text, strlen(text)); }

void mk_bytes_format(mk_bytes *bytes, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(NULL, 0, format, arguments);
  va_end(arguments);
  if (bytes->status == MK_OK && length >= 0) { /* vsnprintf ends the text with a zero, which is cut off again */
    bytes->status = mk_grow(&bytes->data, &bytes->capacity, bytes->length + (size_t)length + 1, 1);
  }
  if (bytes->status == MK_OK && length >= 0) {
    va_start(arguments, format);
    vsnprintf((char *)bytes->data + bytes->length, (size_t)length + 1, format, arguments);
    va_end(arguments);
    bytes->length += (size_t)length;
  }
}

void mk_bytes_number(mk_bytes *bytes, uint64_t value) {
  unsigned char coded[10];
  size_t length = 0;
  for (; value >= 0x80; value >>= 7) {
    coded[length++] = (unsigned char)(value | 0x80);
  }
  coded[length++] = (unsigned char)value;
  mk_bytes_put(bytes, coded, length);
}

void mk_bytes_signed(mk_bytes *bytes, int64_t value) {
  mk_bytes_number(bytes, (uint64_t)value << 1 ^ (uint64_t)(value < 0 ? -1 : 0));
}
