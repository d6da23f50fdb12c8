/* Numbers and text by a format specification. See template_format.h. */
#include "text/template_format.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_DIGITS = 1000, ROOM = 2 * MOST_DIGITS };

static mk_status fill(jinja *m, const jinja_spec *spec, int64_t count, jinja_output *o) {
  for (int64_t i = 0; i < count; i++) {
    MK_TRY(mk_jinja_write(m, o, spec->fill, spec->fill_length));
  }
  return MK_OK;
}

/* `head`: a sign and a prefix; an alignment of '=' fills after it. */
static mk_status align(jinja *m, const jinja_spec *spec, char otherwise, const char *head, jinja_value body,
                       jinja_output *o) {
  int64_t length = (int64_t)strlen(head) + (int64_t)mk_jinja_characters(body.text, body.length);
  int64_t more = spec->width > length ? spec->width - length : 0;
  char how = spec->align != 0 ? spec->align : otherwise;
  int64_t before = how == '>' ? more : how == '^' ? more / 2 : 0, between = how == '=' ? more : 0;
  if (more > MK_TEMPLATE_MAX_OUTPUT) {
    return mk_jinja_fail(m->line, "a width exceeds %d characters", MK_TEMPLATE_MAX_OUTPUT);
  }
  MK_TRY(fill(m, spec, before, o));
  MK_TRY(mk_jinja_write_literal(m, o, head));
  MK_TRY(fill(m, spec, between, o));
  MK_TRY(mk_jinja_write(m, o, body.text, body.length));
  return fill(m, spec, more - before - between, o);
}

/* Writes digits with a mark between groups, and then what follows the digits. */
static void group_digits(const char *digits, const char *rest, char mark, size_t each, char *out) {
  size_t count = strlen(digits);
  for (size_t i = 0; digits[i] != 0; i++) {
    if (mark != 0 && i > 0 && (count - i) % each == 0) {
      *out++ = mark;
    }
    *out++ = digits[i];
  }
  strcpy(out, rest);
}

static mk_status align_number(jinja *m, const jinja_spec *given, bool negative, const char *prefix, const char *digits,
                              const char *rest, size_t each, jinja_output *o) {
  char head[8], body[2 * ROOM];
  jinja_spec spec = *given;
  if (spec.zeros && spec.group != 0) {
    return mk_jinja_fail(m->line, "a format with zeros in front of grouped digits is not supported");
  }
  if (spec.zeros && spec.align == 0) {
    spec.align = '=';
    spec.fill[0] = '0';
    spec.fill_length = 1;
  }
  const char sign[2] = {negative ? '-' : spec.sign == '+' || spec.sign == ' ' ? spec.sign : 0, 0};
  snprintf(head, sizeof head, "%s%s", sign, prefix);
  group_digits(digits, rest, spec.group, each, body);
  return align(m, &spec, '>', head, mk_jinja_literal(body), o);
}

mk_status mk_jinja_format_whole(jinja *m, const jinja_spec *spec, int64_t value, jinja_output *o) {
  static const char types[] = "boxX", *const prefixes[] = {"0b", "0o", "0x", "0X"};
  static const unsigned bases[] = {2, 8, 16, 16};
  char digits[ROOM];
  size_t at = sizeof digits - 1;
  const char *which = spec->type == 0 ? NULL : strchr(types, spec->type);
  unsigned base = which == NULL ? 10 : bases[which - types];
  uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
  digits[at] = 0;
  do {
    digits[--at] = (spec->type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef")[rest % base];
    rest /= base;
  } while (rest > 0);
  if (spec->precision > MOST_DIGITS) {
    return mk_jinja_fail(m->line, "a precision above %d is not supported", MOST_DIGITS);
  }
  while ((int64_t)(sizeof digits - 1 - at) < spec->precision) { /* of %: so many digits at least */
    digits[--at] = '0';
  }
  return align_number(m, spec, value < 0, spec->alternate && which != NULL ? prefixes[which - types] : "", digits + at,
                      "", which == NULL ? 3 : 4, o);
}

/* A number without a type but with a precision: that many digits, at least one of them after the point. */
static void short_real(double value, int digits, char out[ROOM]) {
  char text[ROOM];
  digits = digits == 0 ? 1 : digits;
  snprintf(text, sizeof text, "%.*e", digits - 1, value);
  int exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
  bool short_form = exponent >= -4 && exponent + 1 < digits;
  if (short_form) {
    snprintf(out, ROOM, "%.*f", digits - 1 - exponent, value);
  } else {
    *strchr(text, 'e') = 0;
    strcpy(out, text);
  }
  size_t length = strlen(out);
  while (strchr(out, '.') != NULL && length > 0 && out[length - 1] == '0' && (!short_form || out[length - 2] != '.')) {
    out[--length] = 0;
  }
  if (!short_form) {
    length -= length > 0 && out[length - 1] == '.';
    snprintf(out + length, ROOM - length, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
  }
}

mk_status mk_jinja_format_real(jinja *m, const jinja_spec *spec, double value, jinja_output *o) {
  char text[ROOM], type = spec->type == 'n' ? 'g' : spec->type;
  const char format[] = {'%', spec->alternate ? '#' : '.', spec->alternate ? '.' : '*', spec->alternate ? '*' : 0, 0,
                         0};
  char full[8];
  double magnitude = fabs(type == '%' ? value * 100 : value);
  if (spec->precision > MOST_DIGITS) {
    return mk_jinja_fail(m->line, "a precision above %d is not supported", MOST_DIGITS);
  }
  if (isnan(value) || isinf(value)) {
    strcpy(text, isnan(value) ? "nan" : "inf");
    if (type == 'E' || type == 'F' || type == 'G') {
      strcpy(text, isnan(value) ? "NAN" : "INF");
    }
  } else if (type == 0 && spec->precision < 0) {
    mk_jinja_real(magnitude, text);
  } else if (type == 0) {
    short_real(magnitude, (int)spec->precision, text);
  } else {
    snprintf(full, sizeof full, "%s%c", format, type == '%' ? 'f' : type);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(text, sizeof text, full, spec->precision < 0 ? 6 : (int)spec->precision, magnitude);
#pragma GCC diagnostic pop
  }
  if (type == '%') {
    strcat(text, "%");
  }
  char rest[ROOM];
  size_t whole = strspn(text, "0123456789");
  strcpy(rest, text + whole);
  text[whole] = 0;
  return align_number(m, spec, signbit(value) && !isnan(value), "", text, rest, 3, o);
}

mk_status mk_jinja_format_text(jinja *m, const jinja_spec *spec, jinja_value text, jinja_output *o) {
  if (spec->precision >= 0) {
    text.length = (uint32_t)mk_jinja_offset(text, spec->precision);
  }
  jinja_spec copy = *spec;
  if (spec->zeros && spec->align == 0) {
    copy.fill[0] = '0';
    copy.fill_length = 1;
  }
  return align(m, &copy, '<', "", text, o);
}

static bool read_count(const char **at, const char *end, int64_t *out) {
  const char *start = *at;
  for (*out = 0; *at < end && **at >= '0' && **at <= '9' && *out < INT32_MAX; ++*at) {
    *out = *out * 10 + (**at - '0');
  }
  return *at > start;
}

/* [[fill]align][sign][#][0][width][grouping][.precision][type] */
static mk_status read_spec(jinja *m, jinja_value text, jinja_spec *out) {
  const char *at = text.text, *end = at + text.length;
  size_t length = 1;
  *out = (jinja_spec){.fill = " ", .fill_length = 1, .width = -1, .precision = -1};
  if (at < end) {
    mk_jinja_decode(at, &length);
  }
  if (at + length < end && at[length] != 0 && strchr("<>^=", at[length]) != NULL) {
    memcpy(out->fill, at, length);
    out->fill_length = length;
    out->align = at[length];
    at += length + 1;
  } else if (at < end && *at != 0 && strchr("<>^=", *at) != NULL) {
    out->align = *at++;
  }
  if (at < end && (*at == '+' || *at == '-' || *at == ' ')) {
    out->sign = *at++;
  }
  if (at < end && *at == '#') {
    out->alternate = true;
    at++;
  }
  if (at < end && *at == '0') {
    out->zeros = out->align == 0;
    if (out->align != 0 && out->fill_length == 1 && out->fill[0] == ' ' && text.text[0] == out->align) {
      out->fill[0] = '0'; /* an alignment without a fill of its own */
    }
    at++;
  }
  if (!read_count(&at, end, &out->width)) {
    out->width = -1;
  }
  if (at < end && (*at == ',' || *at == '_')) {
    out->group = *at++;
  }
  if (at < end && *at == '.') {
    at++;
    if (!read_count(&at, end, &out->precision)) {
      return mk_jinja_fail(m->line, "Format specifier missing precision");
    }
  }
  if (at < end) {
    out->type = *at++;
  }
  return at == end ? MK_OK : mk_jinja_fail(m->line, "Invalid format specifier '%.*s'", JINJA_SHOWN(text));
}

static mk_status format_character(jinja *m, const jinja_spec *spec, int64_t code, jinja_output *o) {
  char text[4];
  if (code < 0 || code > 0x10ffff || (code >= 0xd800 && code < 0xe000)) {
    return mk_jinja_fail(m->line, "%%c arg not in range(0x110000), or half of a pair");
  }
  return align(m, spec, '>', "", mk_jinja_string(text, mk_jinja_encode((uint32_t)code, text)), o);
}

mk_status mk_jinja_format_value(jinja *m, jinja_value value, jinja_value specification, jinja_output *o) {
  jinja_spec spec;
  int64_t whole;
  if (specification.length == 0) {
    MK_TRY(mk_jinja_str(m, value, &value));
    return mk_jinja_write(m, o, value.text, value.length);
  }
  MK_TRY(read_spec(m, specification, &spec));
  bool known_whole = mk_jinja_whole(value, &whole), real = value.kind == JINJA_FLOAT;
  if (value.kind == JINJA_STRING && (spec.type == 0 || spec.type == 's') && spec.sign == 0 && spec.group == 0 &&
      spec.align != '=' && !spec.alternate) {
    return mk_jinja_format_text(m, &spec, value, o);
  }
  if ((known_whole && spec.type != 0 && strchr("eEfFgG%", spec.type) != NULL) ||
      (real && (spec.type == 0 || strchr("eEfFgGn%", spec.type) != NULL))) {
    return mk_jinja_format_real(m, &spec, real ? value.real : (double)whole, o);
  }
  if (known_whole && spec.precision < 0 && spec.type == 'c' && spec.sign == 0 && spec.group == 0) {
    return format_character(m, &spec, whole, o);
  }
  if (known_whole && spec.precision < 0 && (spec.type == 0 || strchr("bdoxXn", spec.type) != NULL)) {
    return mk_jinja_format_whole(m, &spec, whole, o);
  }
  return mk_jinja_fail(m->line, "the format '%.*s' does not fit a %s", JINJA_SHOWN(specification),
                       mk_jinja_type(value));
}
