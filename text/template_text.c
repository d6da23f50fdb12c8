/* Values as text: str() and repr() of Python, and the characters of a string. */
#define _GNU_SOURCE /* memmem */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/letters.h"
#include "text/template_internal.h"

uint32_t mk_jinja_decode(const char *text, size_t *length) {
  const unsigned char *t = (const unsigned char *)text;
  *length = t[0] < 0x80 ? 1 : t[0] < 0xe0 ? 2 : t[0] < 0xf0 ? 3 : 4;
  uint32_t c = *length == 1 ? t[0] : t[0] & (0x7fu >> *length);
  for (size_t i = 1; i < *length; i++) {
    c = c << 6 | (t[i] & 0x3fu);
  }
  return c;
}

size_t mk_jinja_encode(uint32_t c, char out[4]) {
  if (c < 0x80) {
    out[0] = (char)c;
    return 1;
  }
  size_t length = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  for (size_t i = length - 1; i > 0; i--, c >>= 6) {
    out[i] = (char)(0x80 | (c & 0x3f));
  }
  out[0] = (char)((0xf00u >> length & 0xf0) | c);
  return length;
}

const char *mk_jinja_search(const char *text, size_t length, const char *what, size_t what_length) {
  return memmem(text, length, what, what_length);
}

size_t mk_jinja_characters(const char *text, size_t length) {
  size_t count = 0;
  for (size_t i = 0; i < length; i++) {
    count += ((unsigned char)text[i] & 0xc0) != 0x80;
  }
  return count;
}

bool mk_jinja_is_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0d) || (c >= 0x1c && c <= 0x20) || c == 0x85 || c == 0xa0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

mk_status mk_jinja_write(jinja *m, jinja_output *output, const char *text, size_t length) {
  if (length > MK_TEMPLATE_MAX_OUTPUT - output->length) {
    return mk_jinja_fail(m->line, "its output exceeds %d MiB", MK_TEMPLATE_MAX_OUTPUT >> 20);
  }
  MK_TRY(mk_jinja_step(m, length));
  MK_TRY(mk_grow(&output->text, &output->capacity, output->length + length + 1, 1));
  if (length > 0) {
    memcpy(output->text + output->length, text, length);
  }
  output->length += length;
  output->text[output->length] = 0;
  return MK_OK;
}

mk_status mk_jinja_write_literal(jinja *m, jinja_output *o, const char *text) {
  return mk_jinja_write(m, o, text, strlen(text));
}

mk_status mk_jinja_written(jinja *m, mk_status status, jinja_output *output, jinja_value *out) {
  if (status == MK_OK) {
    status = mk_jinja_copy(m, output->text, output->length, out);
  }
  mk_free(output->text);
  return status;
}

void mk_jinja_real(double real, char out[40]) {
  if (isnan(real) || isinf(real)) {
    strcpy(out, isnan(real) ? "nan" : real < 0 ? "-inf" : "inf");
    return;
  }
  char digits[40];
  int precision = 0;
  do { /* the fewest digits that read back as the same number */
    snprintf(digits, sizeof digits, "%.*e", precision, real);
  } while (strtod(digits, NULL) != real && ++precision < 17);
  int exponent = (int)strtol(strchr(digits, 'e') + 1, NULL, 10);
  if (exponent < -4 || exponent >= 16) {
    snprintf(out, 40, "%.*e", precision, real);
  } else {
    snprintf(out, 40, "%.*f", precision > exponent + 1 ? precision - exponent : 1, real);
  }
}

static mk_status write_repr(jinja *m, jinja_output *o, jinja_value v);

static mk_status write_quoted(jinja *m, jinja_output *o, jinja_value v) {
  bool single = memchr(v.text, '\'', v.length) != NULL, twice = memchr(v.text, '"', v.length) != NULL;
  char quote = single && !twice ? '"' : '\'';
  MK_TRY(mk_jinja_write(m, o, &quote, 1));
  for (size_t at = 0, length; at < v.length; at += length) {
    uint32_t c = mk_jinja_decode(v.text + at, &length);
    char text[16];
    if (c == (unsigned char)quote || c == '\\') {
      snprintf(text, sizeof text, "\\%c", (int)c);
    } else if (c == '\n' || c == '\r' || c == '\t') {
      snprintf(text, sizeof text, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
    } else if ((mk_letter_flags(c) & MK_LETTER_PRINTABLE) != 0) {
      MK_TRY(mk_jinja_write(m, o, v.text + at, length));
      continue;
    } else {
      snprintf(text, sizeof text, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
    }
    MK_TRY(mk_jinja_write_literal(m, o, text));
  }
  return mk_jinja_write(m, o, &quote, 1);
}

static mk_status write_range(jinja *m, jinja_output *o, const int64_t range[3]) {
  char text[80];
  int length = snprintf(text, sizeof text, "range(%lld, %lld", (long long)range[0], (long long)range[1]);
  if (range[2] != 1) {
    length += snprintf(text + length, sizeof text - (size_t)length, ", %lld", (long long)range[2]);
  }
  MK_TRY(mk_jinja_write(m, o, text, (size_t)length));
  return mk_jinja_write_literal(m, o, ")");
}

static mk_status write_list(jinja *m, jinja_output *o, const jinja_list *list) {
  static const char *const starts[] = {"[", "(", "", "dict_keys([", "dict_values([", "dict_items(["};
  static const char *const ends[] = {"]", ")", "", "])", "])", "])"};
  if (list->sequence == JINJA_IS_RANGE) {
    return write_range(m, o, list->range);
  }
  MK_TRY(mk_jinja_write_literal(m, o, starts[list->sequence]));
  for (size_t i = 0; i < list->count; i++) {
    MK_TRY(mk_jinja_write_literal(m, o, i > 0 ? ", " : ""));
    MK_TRY(write_repr(m, o, list->items[i]));
  }
  bool alone = list->sequence == JINJA_IS_TUPLE && list->count == 1;
  return mk_jinja_write_literal(m, o, alone ? ",)" : ends[list->sequence]);
}

static mk_status write_dict(jinja *m, jinja_output *o, const jinja_dict *dict) {
  MK_TRY(mk_jinja_write_literal(m, o, "{"));
  for (size_t i = 0; i < dict->count; i++) {
    MK_TRY(mk_jinja_write_literal(m, o, i > 0 ? ", " : ""));
    MK_TRY(write_repr(m, o, dict->pairs[i].key));
    MK_TRY(mk_jinja_write_literal(m, o, ": "));
    MK_TRY(write_repr(m, o, dict->pairs[i].value));
  }
  return mk_jinja_write_literal(m, o, "}");
}

static mk_status write_loop(jinja *m, jinja_output *o, jinja_value loop) {
  int64_t length;
  char text[80];
  MK_TRY(mk_jinja_length(m, loop, &length));
  snprintf(text, sizeof text, "<LoopContext %lld/%lld>", (long long)loop.loop->index + 1, (long long)length);
  return mk_jinja_write_literal(m, o, text);
}

/* Writes a value that str() and repr() write alike. */
static mk_status write_plain(jinja *m, jinja_output *o, jinja_value v) {
  char text[40];
  switch (v.kind) {
    case JINJA_NONE:
      return mk_jinja_write_literal(m, o, "None");
    case JINJA_BOOL:
      return mk_jinja_write_literal(m, o, v.boolean ? "True" : "False");
    case JINJA_INT:
      snprintf(text, sizeof text, "%lld", (long long)v.integer);
      return mk_jinja_write_literal(m, o, text);
    case JINJA_FLOAT:
      mk_jinja_real(v.real, text);
      return mk_jinja_write_literal(m, o, text);
    default:
      return mk_jinja_fail(m->line, "printing a %s is not supported", mk_jinja_type(v));
  }
}

static mk_status write_repr(jinja *m, jinja_output *o, jinja_value v) {
  MK_TRY(mk_jinja_enter(m));
  if (v.kind == JINJA_STRING) {
    MK_TRY(mk_jinja_write_literal(m, o, v.markup ? "Markup(" : ""));
    MK_TRY(write_quoted(m, o, v));
    MK_TRY(mk_jinja_write_literal(m, o, v.markup ? ")" : ""));
  } else if (v.kind == JINJA_LIST) {
    MK_TRY(write_list(m, o, v.list));
  } else if (v.kind == JINJA_DICT) {
    MK_TRY(write_dict(m, o, v.dict));
  } else if (v.kind == JINJA_NAMESPACE) {
    MK_TRY(mk_jinja_write_literal(m, o, "<Namespace "));
    MK_TRY(write_dict(m, o, v.dict));
    MK_TRY(mk_jinja_write_literal(m, o, ">"));
  } else if (v.kind == JINJA_LOOP) {
    MK_TRY(write_loop(m, o, v));
  } else if (v.kind == JINJA_MACRO && v.macro->node->kind == NODE_CALL_BLOCK) {
    MK_TRY(mk_jinja_write_literal(m, o, "<Macro anonymous>"));
  } else if (v.kind == JINJA_MACRO) {
    MK_TRY(mk_jinja_write_literal(m, o, "<Macro "));
    MK_TRY(write_quoted(m, o, v.macro->node->value));
    MK_TRY(mk_jinja_write_literal(m, o, ">"));
  } else if (v.kind == JINJA_UNDEFINED) {
    MK_TRY(mk_jinja_write_literal(m, o, "Undefined"));
  } else {
    MK_TRY(write_plain(m, o, v));
  }
  m->depth--;
  return MK_OK;
}

mk_status mk_jinja_repr(jinja *m, jinja_value v, jinja_value *out) {
  jinja_output o = {0};
  return mk_jinja_written(m, write_repr(m, &o, v), &o, out);
}

mk_status mk_jinja_str(jinja *m, jinja_value v, jinja_value *out) {
  if (v.kind == JINJA_STRING) {
    *out = v;
    out->markup = false;
    return MK_OK;
  }
  if (v.kind == JINJA_UNDEFINED) {
    *out = mk_jinja_literal("");
    return MK_OK;
  }
  return mk_jinja_repr(m, v, out);
}

static mk_status write_escaped(jinja *m, jinja_output *o, jinja_value text) {
  static const char special[] = "&<>'\"", *const entities[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
  size_t start = 0;
  for (size_t i = 0; i < text.length; i++) {
    const char *hit = text.text[i] == 0 ? NULL : strchr(special, text.text[i]);
    if (hit != NULL) {
      MK_TRY(mk_jinja_write(m, o, text.text + start, i - start));
      MK_TRY(mk_jinja_write_literal(m, o, entities[hit - special]));
      start = i + 1;
    }
  }
  return mk_jinja_write(m, o, text.text + start, text.length - start);
}

mk_status mk_jinja_escape(jinja *m, jinja_value v, jinja_value *out) {
  jinja_output o = {0};
  if (v.kind != JINJA_STRING || !v.markup) {
    MK_TRY(mk_jinja_str(m, v, &v));
    MK_TRY(mk_jinja_written(m, write_escaped(m, &o, v), &o, &v));
    v.markup = true;
  }
  *out = v;
  return MK_OK;
}

size_t mk_jinja_offset(jinja_value text, int64_t count) {
  size_t at = 0, length;
  for (int64_t i = 0; i < count && at < text.length; i++, at += length) {
    mk_jinja_decode(text.text + at, &length);
  }
  return at;
}
