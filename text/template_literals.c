/* See template_literals.h. */
#include "text/template_literals.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

static int digit_value(char c) {
  return is_digit(c) ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'z' ? (c | 32) - 'a' + 10 : 99;
}

/* Where digits of a base that start at text[at] end; one underscore may stand between two of them, and with `leading`
 * before them. */
static size_t digits_end(const char *text, size_t length, size_t at, int base, bool leading) {
  size_t end = at;
  while (end < length) {
    bool underscore = text[end] == '_' && (end > at || leading);
    size_t digit = end + underscore;
    if (digit >= length || digit_value(text[digit]) >= base) {
      break;
    }
    end = digit + 1;
  }
  return end;
}

/* Where a number with a point or an exponent ends; 0: it has neither. */
static size_t real_end(const char *text, size_t length) {
  size_t end = digits_end(text, length, 0, 10, false), whole = end;
  if (end + 1 < length && text[end] == '.' && is_digit(text[end + 1])) {
    end = digits_end(text, length, end + 1, 10, false);
  }
  if (end < length && (text[end] | 32) == 'e') {
    size_t digits = end + 1 + (end + 1 < length && (text[end + 1] == '+' || text[end + 1] == '-'));
    size_t last = digits_end(text, length, digits, 10, false);
    end = last > digits ? last : end;
  }
  return end > whole ? end : 0;
}

mk_status mk_jinja_read_number(uint32_t line, const char *text, size_t length, bool element, size_t *used,
                               jinja_value *out) {
  static const char prefixes[] = "box";
  static const int bases[] = {2, 8, 16};
  size_t end = element ? 0 : real_end(text, length), start = 0;
  bool real = end > 0;
  int base = 10;
  const char *prefix = !real && length > 1 && text[0] == '0' && text[1] != 0 ? strchr(prefixes, text[1] | 32) : NULL;
  if (prefix != NULL) {
    base = bases[prefix - prefixes];
    start = 2;
    end = digits_end(text, length, start, base, true);
  } else if (!real) {
    end = digits_end(text, length, 0, 10, false);
  }
  char digits[64];
  size_t count = 0;
  bool zeros = true;
  for (size_t i = start; i < end && count < sizeof digits - 1; i++) {
    zeros = zeros && (text[i] == '0' || text[i] == '_');
    digits[count] = text[i];
    count += text[i] != '_';
  }
  digits[count] = 0;
  if (end == start || end - start >= sizeof digits ||
      (end < length && (digit_value(text[end]) < 36 || text[end] == '_')) ||
      (!real && base == 10 && count > 1 && text[0] == '0' && !zeros)) {
    return mk_jinja_fail(line, "the number '%.*s' is malformed or too long",
                         (int)(end < 40 ? end + (end < length) : 40), text);
  }
  errno = 0;
  *out = real ? mk_jinja_float(strtod(digits, NULL)) : mk_jinja_int(strtoll(digits, NULL, base));
  if (errno == ERANGE) {
    return mk_jinja_fail(line, "the number %s is out of range", digits);
  }
  *used = end;
  return MK_OK;
}

static int hex_value(const char *text, size_t digits, uint32_t *out) {
  *out = 0;
  for (size_t i = 0; i < digits; i++) {
    int digit = digit_value(text[i]);
    if (digit > 15) {
      return -1;
    }
    *out = *out << 4 | (uint32_t)digit;
  }
  return 0;
}

/* One escape at text[0] == '\\'; *used bytes of it become *written bytes at out. */
static mk_status escape(uint32_t line, const char *text, size_t room, size_t *used, char *out, size_t *written) {
  static const char from[] = "ntrabfv\\'\"", to[] = "\n\t\r\a\b\f\v\\'\"";
  const char *known = text[1] == 0 ? NULL : strchr(from, text[1]);
  *used = 2;
  *written = 1;
  if (known != NULL) {
    *out = to[known - from];
    return MK_OK;
  }
  if (text[1] == '\n') {
    *written = 0;
    return MK_OK;
  }
  size_t digits = text[1] == 'x' ? 2 : text[1] == 'u' ? 4 : text[1] == 'U' ? 8 : 0;
  uint32_t character = 0;
  if (text[1] >= '0' && text[1] <= '7') {
    size_t n = 1;
    for (character = 0; n < 4 && n < room && text[n] >= '0' && text[n] <= '7'; n++) {
      character = character * 8 + (uint32_t)(text[n] - '0');
    }
    *used = n;
  } else if (digits > 0) {
    if (room < 2 + digits || hex_value(text + 2, digits, &character) != 0 || character > 0x10ffff ||
        (character >= 0xd800 && character < 0xe000)) {
      return mk_jinja_fail(line, "a string holds \\%c without the %zu hexadecimal digits of a character", text[1],
                           digits);
    }
    *used = 2 + digits;
  } else if (text[1] == 'N') {
    return mk_jinja_fail(line, "\\N{...} in a string is not supported; write the character itself");
  } else {
    *out = '\\'; /* an escape that Python does not know stays as it is */
    *used = 1;
    return MK_OK;
  }
  *written = mk_jinja_encode(character, out);
  return MK_OK;
}

mk_status mk_jinja_read_string(jinja_pool *pool, uint32_t line, const char *source, size_t source_length, size_t *used,
                               jinja_value *out) {
  size_t end = 1, length = 0;
  while (end < source_length && source[end] != source[0]) {
    end += source[end] == '\\' ? 2 : 1;
  }
  if (end >= source_length) {
    return mk_jinja_fail(line, "the string that starts here does not end");
  }
  char *text;
  MK_TRY(mk_jinja_alloc(pool, end, 1, &text));
  for (size_t i = 1; i < end;) {
    if (source[i] != '\\') {
      text[length++] = source[i++];
      continue;
    }
    char decoded[4];
    size_t taken, written;
    MK_TRY(escape(line, source + i, end - i, &taken, decoded, &written));
    memcpy(text + length, decoded, written);
    length += written;
    i += taken;
  }
  *out = mk_jinja_string(text, length);
  *used = end + 1;
  return MK_OK;
}
