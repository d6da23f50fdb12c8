/* See unicode.h. */
#include "text/unicode.h"

#include <string.h>

mk_utf8_kind mk_utf8_step(const uint8_t *text, size_t size, size_t *length) {
  const uint8_t lead = text[0];
  *length = 1;
  if (lead < 0x80) {
    return MK_UTF8_VALID;
  }
  size_t need = lead >= 0xc2 && lead <= 0xdf ? 2 : (lead & 0xf0) == 0xe0 ? 3 : lead >= 0xf0 && lead <= 0xf4 ? 4 : 0;
  if (need == 0) {
    return MK_UTF8_INVALID;
  }
  /* The second byte is the one whose range depends on the lead: no overlong forms, surrogates or values above
   * U+10FFFF. */
  uint8_t low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  uint8_t high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  while (*length < need && *length < size) {
    if (text[*length] < low || text[*length] > high) {
      return MK_UTF8_INVALID;
    }
    low = 0x80;
    high = 0xbf;
    (*length)++;
  }
  return *length == need ? MK_UTF8_VALID : MK_UTF8_INCOMPLETE;
}

size_t mk_utf8_valid_prefix(const uint8_t *text, size_t size) {
  size_t at = 0, length;
  while (at < size && mk_utf8_step(text + at, size - at, &length) == MK_UTF8_VALID) {
    at += length;
  }
  return at;
}

size_t mk_utf8_replace(const uint8_t *text, size_t size, bool final, uint8_t *out, size_t *consumed) {
  size_t at = 0, written = 0;
  while (at < size) {
    size_t length;
    mk_utf8_kind kind = mk_utf8_step(text + at, size - at, &length);
    if (kind == MK_UTF8_INCOMPLETE && !final) {
      break;
    }
    if (kind == MK_UTF8_VALID) {
      memcpy(out + written, text + at, length);
      written += length;
    } else {
      memcpy(out + written, "\xef\xbf\xbd", 3);
      written += 3;
    }
    at += length;
  }
  *consumed = at;
  return written;
}

static uint32_t code_point(const uint8_t *text, size_t length) {
  static const uint8_t lead_mask[] = {0, 0x7f, 0x1f, 0x0f, 0x07};
  uint32_t value = text[0] & lead_mask[length];
  for (size_t i = 1; i < length; i++) {
    value = value << 6 | (text[i] & 0x3fu);
  }
  return value;
}

static bool is_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0d) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

size_t mk_utf8_leading_space(const uint8_t *text, size_t size) {
  size_t at = 0, length;
  while (at < size && mk_utf8_step(text + at, size - at, &length) == MK_UTF8_VALID &&
         is_space(code_point(text + at, length))) {
    at += length;
  }
  return at;
}

size_t mk_utf8_trailing_space(const uint8_t *text, size_t size) {
  size_t end = size;
  while (end > 0) {
    size_t at = end - 1;
    while (at > 0 && (text[at] & 0xc0) == 0x80) {
      at--;
    }
    if (!is_space(code_point(text + at, end - at))) {
      break;
    }
    end = at;
  }
  return size - end;
}

static bool is_printable(uint32_t c) {
  return (c >= 0x21 && c <= 0x7e) || (c >= 0xa1 && c <= 0xac) || (c >= 0xae && c <= 0xff);
}

/* The bytes without a printable character of their own lie in three runs; they are numbered from U+0100 in order. */
static uint32_t byte_character(uint8_t byte) {
  if (is_printable(byte)) {
    return byte;
  }
  return byte <= 0x20 ? 0x100u + byte : byte <= 0xa0 ? 0x121u + (byte - 0x7fu) : 0x143u;
}

size_t mk_byte_to_utf8(uint8_t byte, uint8_t out[2]) {
  uint32_t c = byte_character(byte);
  if (c < 0x80) {
    out[0] = (uint8_t)c;
    return 1;
  }
  out[0] = (uint8_t)(0xc0 | c >> 6);
  out[1] = (uint8_t)(0x80 | (c & 0x3f));
  return 2;
}

bool mk_utf8_to_bytes(const uint8_t *text, size_t size, uint8_t *out, size_t *written) {
  *written = 0;
  for (size_t at = 0, length; at < size; at += length) {
    if (mk_utf8_step(text + at, size - at, &length) != MK_UTF8_VALID) {
      return false;
    }
    uint32_t c = code_point(text + at, length);
    uint32_t byte = c >= 0x100 && c <= 0x120   ? c - 0x100
                    : c >= 0x121 && c <= 0x142 ? c - 0x121 + 0x7f
                    : c == 0x143               ? 0xad
                                               : c;
    if (byte > 0xff || byte_character((uint8_t)byte) != c) {
      return false;
    }
    out[(*written)++] = (uint8_t)byte;
  }
  return true;
}
