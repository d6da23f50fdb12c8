/* Values as text: str() and repr() of Python, JSON both ways, and the characters of a string. */
#define _GNU_SOURCE /* memmem */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "models/template_internal.h"

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

/* Python's isprintable(), but for characters that no Unicode version has assigned. */
static bool printable(uint32_t c) {
  return c >= 0x20 && (c < 0x7f || c > 0xa0) && c != 0xad && (c == 0x20 || !mk_jinja_is_space(c)) &&
         !(c >= 0x600 && c <= 0x605) && c != 0x61c && c != 0x6dd && c != 0x70f && c != 0x180e &&
         !(c >= 0x200b && c <= 0x200f) && !(c >= 0x202a && c <= 0x202e) && !(c >= 0x2060 && c <= 0x206f) &&
         !(c >= 0xe000 && c <= 0xf8ff) && c != 0xfeff && !(c >= 0xfff0 && c <= 0xfffb) && (c & 0xfffe) != 0xfffe &&
         c < 0xe0000;
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

static mk_status write_literal(jinja *m, jinja_output *o, const char *text) {
  return mk_jinja_write(m, o, text, strlen(text));
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
    } else if (printable(c)) {
      MK_TRY(mk_jinja_write(m, o, v.text + at, length));
      continue;
    } else {
      snprintf(text, sizeof text, c < 0x100 ? "\\x%02x" : c < 0x10000 ? "\\u%04x" : "\\U%08x", c);
    }
    MK_TRY(write_literal(m, o, text));
  }
  return mk_jinja_write(m, o, &quote, 1);
}

static mk_status write_list(jinja *m, jinja_output *o, const jinja_list *list) {
  bool tuple = list->sequence == JINJA_IS_TUPLE;
  if (list->sequence > JINJA_IS_TUPLE) {
    return mk_jinja_fail(m->line, "printing a %s is not supported; make it a list first",
                         mk_jinja_type((jinja_value){.kind = JINJA_LIST, .list = (jinja_list *)(uintptr_t)list}));
  }
  MK_TRY(write_literal(m, o, tuple ? "(" : "["));
  for (size_t i = 0; i < list->count; i++) {
    MK_TRY(write_literal(m, o, i > 0 ? ", " : ""));
    MK_TRY(write_repr(m, o, list->items[i]));
  }
  return write_literal(m, o, !tuple ? "]" : list->count == 1 ? ",)" : ")");
}

static mk_status write_dict(jinja *m, jinja_output *o, const jinja_dict *dict) {
  MK_TRY(write_literal(m, o, "{"));
  for (size_t i = 0; i < dict->count; i++) {
    MK_TRY(write_literal(m, o, i > 0 ? ", " : ""));
    MK_TRY(write_repr(m, o, dict->pairs[i].key));
    MK_TRY(write_literal(m, o, ": "));
    MK_TRY(write_repr(m, o, dict->pairs[i].value));
  }
  return write_literal(m, o, "}");
}

/* What is written as str() and repr() alike. */
static mk_status write_plain(jinja *m, jinja_output *o, jinja_value v) {
  char text[40];
  switch (v.kind) {
    case JINJA_NONE:
      return write_literal(m, o, "None");
    case JINJA_BOOL:
      return write_literal(m, o, v.boolean ? "True" : "False");
    case JINJA_INT:
      snprintf(text, sizeof text, "%lld", (long long)v.integer);
      return write_literal(m, o, text);
    case JINJA_FLOAT:
      mk_jinja_real(v.real, text);
      return write_literal(m, o, text);
    default:
      return mk_jinja_fail(m->line, "printing a %s is not supported", mk_jinja_type(v));
  }
}

static mk_status write_repr(jinja *m, jinja_output *o, jinja_value v) {
  MK_TRY(mk_jinja_enter(m));
  if (v.kind == JINJA_STRING) {
    MK_TRY(write_quoted(m, o, v));
  } else if (v.kind == JINJA_LIST) {
    MK_TRY(write_list(m, o, v.list));
  } else if (v.kind == JINJA_DICT) {
    MK_TRY(write_dict(m, o, v.dict));
  } else if (v.kind == JINJA_UNDEFINED) {
    MK_TRY(write_literal(m, o, "Undefined"));
  } else {
    MK_TRY(write_plain(m, o, v));
  }
  m->depth--;
  return MK_OK;
}

mk_status mk_jinja_str(jinja *m, jinja_value v, jinja_value *out) {
  if (v.kind == JINJA_STRING) {
    *out = v;
    return MK_OK;
  }
  if (v.kind == JINJA_UNDEFINED) {
    *out = mk_jinja_literal("");
    return MK_OK;
  }
  jinja_output o = {0};
  mk_status status = write_repr(m, &o, v);
  if (status == MK_OK) {
    status = mk_jinja_copy(m, o.text, o.length, out);
  }
  mk_free(o.text);
  return status;
}

typedef struct json_style {
  const char *indent; /* NULL: on one line */
  size_t indent_length;
  jinja_value item, key; /* separators */
  bool ascii, sorted;
} json_style;

static mk_status json_line(jinja *m, jinja_output *o, const json_style *s, size_t level) {
  if (s->indent == NULL) {
    return MK_OK;
  }
  MK_TRY(write_literal(m, o, "\n"));
  for (size_t i = 0; i < level; i++) {
    MK_TRY(mk_jinja_write(m, o, s->indent, s->indent_length));
  }
  return MK_OK;
}

static mk_status write_json_string(jinja *m, jinja_output *o, const json_style *s, jinja_value v) {
  static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
  MK_TRY(write_literal(m, o, "\""));
  for (size_t at = 0, length; at < v.length; at += length) {
    uint32_t c = mk_jinja_decode(v.text + at, &length);
    const char *known = c == 0 || c > 0x7f ? NULL : strchr(from, (int)c);
    char text[16];
    if (known != NULL) {
      snprintf(text, sizeof text, "\\%c", to[known - from]);
    } else if (c < 0x20 || (s->ascii && c > 0x7e && c < 0x10000)) {
      snprintf(text, sizeof text, "\\u%04x", c);
    } else if (s->ascii && c >= 0x10000) {
      snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10), 0xdc00 + ((c - 0x10000) & 0x3ff));
    } else {
      MK_TRY(mk_jinja_write(m, o, v.text + at, length));
      continue;
    }
    MK_TRY(write_literal(m, o, text));
  }
  return write_literal(m, o, "\"");
}

static mk_status json_value(jinja *m, jinja_output *o, const json_style *s, size_t level, jinja_value v);

static mk_status json_list(jinja *m, jinja_output *o, const json_style *s, size_t level, const jinja_list *list) {
  MK_TRY(write_literal(m, o, "["));
  for (size_t i = 0; i < list->count; i++) {
    if (i > 0) {
      MK_TRY(mk_jinja_write(m, o, s->item.text, s->item.length));
    }
    MK_TRY(json_line(m, o, s, level + 1));
    MK_TRY(json_value(m, o, s, level + 1, list->items[i]));
  }
  if (list->count > 0) {
    MK_TRY(json_line(m, o, s, level));
  }
  return write_literal(m, o, "]");
}

static mk_status json_key(jinja *m, jinja_output *o, const json_style *s, jinja_value key) {
  char real[40];
  jinja_value text = key;
  if (key.kind == JINJA_NONE || key.kind == JINJA_BOOL) {
    text = mk_jinja_literal(key.kind == JINJA_NONE ? "null" : key.boolean ? "true" : "false");
  } else if (key.kind == JINJA_FLOAT) {
    mk_jinja_real(key.real, real);
    text = mk_jinja_literal(real);
  } else if (key.kind == JINJA_INT) {
    MK_TRY(mk_jinja_str(m, key, &text));
  } else if (key.kind != JINJA_STRING) {
    return mk_jinja_fail(m->line, "keys must be str, int, float, bool or None, not %s", mk_jinja_type(key));
  }
  return write_json_string(m, o, s, text);
}

/* The order of a sorted object: an insertion sort, as objects are small; the steps are counted. */
static mk_status json_order(jinja *m, const jinja_dict *dict, jinja_pair **out) {
  MK_TRY(mk_jinja_alloc(&m->pool, dict->count, sizeof **out, out));
  for (size_t i = 0; i < dict->count; i++) {
    size_t at = i;
    for (; at > 0; at--) {
      int order;
      MK_TRY(mk_jinja_order(m, dict->pairs[i].key, (*out)[at - 1].key, JINJA_OPERATOR(0, '<'), &order));
      if (order >= 0) {
        break;
      }
      (*out)[at] = (*out)[at - 1];
    }
    (*out)[at] = dict->pairs[i];
  }
  return MK_OK;
}

static mk_status json_dict(jinja *m, jinja_output *o, const json_style *s, size_t level, const jinja_dict *dict) {
  jinja_pair *pairs = dict->pairs;
  if (s->sorted) {
    MK_TRY(json_order(m, dict, &pairs));
  }
  MK_TRY(write_literal(m, o, "{"));
  for (size_t i = 0; i < dict->count; i++) {
    if (i > 0) {
      MK_TRY(mk_jinja_write(m, o, s->item.text, s->item.length));
    }
    MK_TRY(json_line(m, o, s, level + 1));
    MK_TRY(json_key(m, o, s, pairs[i].key));
    MK_TRY(mk_jinja_write(m, o, s->key.text, s->key.length));
    MK_TRY(json_value(m, o, s, level + 1, pairs[i].value));
  }
  if (dict->count > 0) {
    MK_TRY(json_line(m, o, s, level));
  }
  return write_literal(m, o, "}");
}

static mk_status json_value(jinja *m, jinja_output *o, const json_style *s, size_t level, jinja_value v) {
  MK_TRY(mk_jinja_enter(m));
  if (v.kind == JINJA_NONE) {
    MK_TRY(write_literal(m, o, "null"));
  } else if (v.kind == JINJA_BOOL) {
    MK_TRY(write_literal(m, o, v.boolean ? "true" : "false"));
  } else if (v.kind == JINJA_FLOAT && !isfinite(v.real)) {
    MK_TRY(write_literal(m, o, isnan(v.real) ? "NaN" : v.real < 0 ? "-Infinity" : "Infinity"));
  } else if (v.kind == JINJA_INT || v.kind == JINJA_FLOAT) {
    MK_TRY(write_plain(m, o, v));
  } else if (v.kind == JINJA_STRING) {
    MK_TRY(write_json_string(m, o, s, v));
  } else if (v.kind == JINJA_LIST && v.list->sequence <= JINJA_IS_TUPLE) {
    MK_TRY(json_list(m, o, s, level, v.list));
  } else if (v.kind == JINJA_DICT) {
    MK_TRY(json_dict(m, o, s, level, v.dict));
  } else {
    return mk_jinja_fail(m->line, "Object of type %s is not JSON serializable", mk_jinja_type(v));
  }
  m->depth--;
  return MK_OK;
}

/* The parameters of transformers' tojson: ensure_ascii, indent, separators, sort_keys. */
static mk_status json_options(jinja *m, const jinja_value *slots, json_style *s) {
  static const char spaces[] = "                                ";
  int64_t width;
  *s = (json_style){.ascii = mk_jinja_truth(slots[0]), .sorted = mk_jinja_truth(slots[3])};
  if (slots[1].kind == JINJA_STRING) {
    s->indent = slots[1].text;
    s->indent_length = slots[1].length;
  } else if (slots[1].kind > JINJA_NONE) {
    if (!mk_jinja_whole(slots[1], &width) || width > (int64_t)sizeof spaces - 1) {
      return mk_jinja_fail(m->line, "tojson: indent is a text or a whole number of at most %zu", sizeof spaces - 1);
    }
    s->indent = spaces;
    s->indent_length = width < 0 ? 0 : (size_t)width;
  }
  s->item = mk_jinja_literal(s->indent != NULL ? "," : ", ");
  s->key = mk_jinja_literal(": ");
  if (slots[2].kind > JINJA_NONE) {
    const jinja_value given = slots[2];
    if (given.kind != JINJA_LIST || given.list->count != 2 || given.list->items[0].kind != JINJA_STRING ||
        given.list->items[1].kind != JINJA_STRING) {
      return mk_jinja_fail(m->line, "tojson: separators are two strings");
    }
    s->item = given.list->items[0];
    s->key = given.list->items[1];
  }
  return MK_OK;
}

mk_status mk_jinja_json(jinja *m, jinja_value value, const jinja_value *slots, jinja_value *out) {
  json_style style;
  jinja_output o = {0};
  MK_TRY(json_options(m, slots, &style));
  mk_status status = json_value(m, &o, &style, 0, value);
  if (status == MK_OK) {
    status = mk_jinja_copy(m, o.text, o.length, out);
  }
  mk_free(o.text);
  return status;
}

mk_status mk_jinja_from_json(jinja *m, const json_t *json, jinja_value *out) {
  size_t index = 0;
  MK_TRY(mk_jinja_enter(m));
  switch (json_typeof(json)) {
    case JSON_OBJECT: {
      const char *key;
      json_t *value, *object = (json_t *)(uintptr_t)json; /* the iteration macro takes no const */
      MK_TRY(mk_jinja_new_dict(m, JINJA_DICT, out));
      json_object_foreach(object, key, value) {
        jinja_value item;
        MK_TRY(mk_jinja_from_json(m, value, &item));
        MK_TRY(mk_jinja_put(m, out->dict, mk_jinja_literal(key), item));
      }
      break;
    }
    case JSON_ARRAY:
      MK_TRY(mk_jinja_new_list(m, json_array_size(json), JINJA_IS_LIST, out));
      for (; index < out->list->count; index++) {
        MK_TRY(mk_jinja_from_json(m, json_array_get(json, index), &out->list->items[index]));
      }
      break;
    case JSON_STRING:
      if (json_string_length(json) > MK_TEMPLATE_MAX_OUTPUT) {
        return mk_error(MK_ERR_USAGE, "a text of %zu bytes is too long for a chat template", json_string_length(json));
      }
      *out = mk_jinja_string(json_string_value(json), json_string_length(json));
      break;
    case JSON_INTEGER:
      *out = mk_jinja_int(json_integer_value(json));
      break;
    case JSON_REAL:
      *out = mk_jinja_float(json_real_value(json));
      break;
    case JSON_TRUE:
    case JSON_FALSE:
      *out = mk_jinja_bool(json_is_true(json));
      break;
    case JSON_NULL:
      *out = mk_jinja_none();
      break;
  }
  m->depth--;
  return MK_OK;
}
