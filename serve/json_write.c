/* See json_write.h. */
#include "serve/json_write.h"

#include <stdio.h>

#include "text/unicode.h"

mk_json_writer mk_json_begin(mk_bytes *out) { return (mk_json_writer){.out = out, .before = out->length}; }

mk_status mk_json_end(const mk_json_writer *w) {
  if (w->status != MK_OK) {
    w->out->length = w->before;
  }
  return w->status;
}

void mk_put_bytes(mk_json_writer *w, const char *bytes, size_t length) {
  if (w->status == MK_OK) {
    w->status = mk_bytes_append(w->out, bytes, length);
  }
}

void mk_put(mk_json_writer *w, const char *text) { mk_put_bytes(w, text, strlen(text)); }

void mk_put_uint(mk_json_writer *w, uint64_t value) {
  char text[20]; /* from its end on */
  size_t at = sizeof text;
  do {
    text[--at] = (char)('0' + value % 10);
    value /= 10;
  } while (value > 0);
  mk_put_bytes(w, text + at, sizeof text - at);
}

void mk_put_int(mk_json_writer *w, int64_t value) {
  mk_put(w, value < 0 ? "-" : "");
  mk_put_uint(w, value < 0 ? -(uint64_t)value : (uint64_t)value);
}

/* printf writes the decimal point of the locale, which may be several bytes. */
void mk_put_float(mk_json_writer *w, float value) {
  char text[40], out[44];
  const int length = snprintf(text, sizeof text, "%.9g", value == 0 ? 0.0 : (double)value); /* no -0 */
  size_t used = 0;
  bool fraction = false, point = false;
  for (int i = 0; i < length; i++) {
    const char c = text[i];
    const bool known = (c >= '0' && c <= '9') || c == '-' || c == '+' || c == 'e';
    if (known || !point) {
      out[used++] = known ? c : '.';
    }
    point |= !known;
    fraction |= !known || c == 'e';
  }
  mk_put_bytes(w, out, used);
  mk_put(w, fraction ? "" : ".0"); /* some readers tell integers from other numbers */
}

void mk_put_nanoseconds(mk_json_writer *w, uint64_t nanoseconds) {
  char text[40];
  int length = snprintf(text, sizeof text, "%llu.%09llu", (unsigned long long)(nanoseconds / 1000000000),
                        (unsigned long long)(nanoseconds % 1000000000));
  while (text[length - 1] == '0' && text[length - 2] != '.') {
    length--;
  }
  mk_put_bytes(w, text, (size_t)length);
}

static void put_escaped(mk_json_writer *w, uint8_t c) {
  static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
  const char *known = c == 0 ? NULL : strchr(from, c);
  char text[8];
  if (known != NULL) {
    snprintf(text, sizeof text, "\\%c", to[known - from]);
  } else {
    snprintf(text, sizeof text, "\\u%04x", c);
  }
  mk_put(w, text);
}

void mk_put_string(mk_json_writer *w, const char *text, size_t length) {
  if (text == NULL) {
    mk_put(w, "null");
    return;
  }
  const uint8_t *bytes = (const uint8_t *)text;
  size_t plain = 0; /* bytes [plain, at) are still to be written as they are */
  mk_put(w, "\"");
  for (size_t at = 0, step; at < length; at += step) {
    step = 1;
    const bool ascii = bytes[at] < 0x80;
    if (ascii && bytes[at] >= ' ' && bytes[at] != '"' && bytes[at] != '\\' && bytes[at] != 0x7f) {
      continue;
    }
    const bool valid = !ascii && mk_utf8_step(bytes + at, length - at, &step) == MK_UTF8_VALID;
    if (valid) {
      continue;
    }
    mk_put_bytes(w, text + plain, at - plain);
    plain = at + step;
    if (ascii) {
      put_escaped(w, bytes[at]);
    } else {
      mk_put(w, "\xef\xbf\xbd");
    }
  }
  mk_put_bytes(w, text + plain, length - plain);
  mk_put(w, "\"");
}

void mk_put_text(mk_json_writer *w, const char *text) { mk_put_string(w, text, text == NULL ? 0 : strlen(text)); }
