/* Values as JSON, and JSON as values. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/template_internal.h"

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
  MK_TRY(mk_jinja_write_literal(m, o, "\n"));
  for (size_t i = 0; i < level; i++) {
    MK_TRY(mk_jinja_write(m, o, s->indent, s->indent_length));
  }
  return MK_OK;
}

static mk_status write_json_string(jinja *m, jinja_output *o, const json_style *s, jinja_value v) {
  static const char from[] = "\"\\\n\r\t\f\b", to[] = "\"\\nrtfb";
  MK_TRY(mk_jinja_write_literal(m, o, "\""));
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
    MK_TRY(mk_jinja_write_literal(m, o, text));
  }
  return mk_jinja_write_literal(m, o, "\"");
}

static mk_status json_value(jinja *m, jinja_output *o, const json_style *s, size_t level, jinja_value v);

static mk_status json_list(jinja *m, jinja_output *o, const json_style *s, size_t level, const jinja_list *list) {
  MK_TRY(mk_jinja_write_literal(m, o, "["));
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
  return mk_jinja_write_literal(m, o, "]");
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
  MK_TRY(mk_jinja_write_literal(m, o, "{"));
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
  return mk_jinja_write_literal(m, o, "}");
}

static mk_status write_number(jinja *m, jinja_output *o, jinja_value v) {
  MK_TRY(mk_jinja_str(m, v, &v));
  return mk_jinja_write(m, o, v.text, v.length);
}

static mk_status json_value(jinja *m, jinja_output *o, const json_style *s, size_t level, jinja_value v) {
  MK_TRY(mk_jinja_enter(m));
  if (v.kind == JINJA_NONE) {
    MK_TRY(mk_jinja_write_literal(m, o, "null"));
  } else if (v.kind == JINJA_BOOL) {
    MK_TRY(mk_jinja_write_literal(m, o, v.boolean ? "true" : "false"));
  } else if (v.kind == JINJA_FLOAT && !isfinite(v.real)) {
    MK_TRY(mk_jinja_write_literal(m, o, isnan(v.real) ? "NaN" : v.real < 0 ? "-Infinity" : "Infinity"));
  } else if (v.kind == JINJA_INT || v.kind == JINJA_FLOAT) {
    MK_TRY(write_number(m, o, v));
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
  return mk_jinja_written(m, json_value(m, &o, &style, 0, value), &o, out);
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
