/* `%` of a string and str.format(). See template_format.h. */
#include <math.h>
#include <string.h>

#include "text/template_format.h"

/* What % takes its values from. */
typedef struct supply {
  jinja_value all;
  size_t used;
  bool named; /* one was asked for by its name */
} supply;

static mk_status next_value(jinja *m, supply *from, jinja_value *out) {
  bool tuple = from->all.kind == JINJA_LIST && from->all.list->sequence == JINJA_IS_TUPLE;
  if (from->used >= (tuple ? from->all.list->count : 1)) {
    return mk_jinja_fail(m->line, "not enough arguments for format string");
  }
  *out = tuple ? from->all.list->items[from->used] : from->all;
  from->used++;
  return MK_OK;
}

/* The width or precision at *at: a number, or * and the next value. */
static mk_status read_number(jinja *m, const char **at, const char *end, supply *from, int64_t *out) {
  jinja_value value;
  if (*at < end && **at == '*') {
    ++*at;
    MK_TRY(next_value(m, from, &value));
    return mk_jinja_whole(value, out) ? MK_OK : mk_jinja_fail(m->line, "* wants int");
  }
  for (*out = 0; *at < end && **at >= '0' && **at <= '9' && *out < INT32_MAX; ++*at) {
    *out = *out * 10 + (**at - '0');
  }
  return MK_OK;
}

/* Reads the (key) after a %, and finds its value. */
static mk_status read_key(jinja *m, const char **at, const char *end, supply *from, jinja_value *value) {
  const char *start = ++*at;
  size_t open = 1;
  for (; *at < end; ++*at) {
    open += (size_t)(**at == '(') - (size_t)(**at == ')');
    if (open == 0) {
      break;
    }
  }
  if (*at == end) {
    return mk_jinja_fail(m->line, "incomplete format key");
  }
  if (from->all.kind != JINJA_DICT) {
    return mk_jinja_fail(m->line, "format requires a mapping");
  }
  jinja_value key = mk_jinja_string(start, (size_t)(*at - start));
  ++*at;
  from->named = true;
  MK_TRY(mk_jinja_get(m, from->all.dict, key, value));
  return value->kind != JINJA_MISSING ? MK_OK : mk_jinja_fail(m->line, "the key '%.*s' is missing", JINJA_SHOWN(key));
}

static mk_status convert_text(jinja *m, bool markup, jinja_spec *spec, jinja_value value, jinja_output *o) {
  MK_TRY(spec->type == 'r' ? mk_jinja_repr(m, value, &value) : MK_OK);
  MK_TRY(markup ? mk_jinja_escape(m, value, &value) : mk_jinja_str(m, value, &value));
  return mk_jinja_format_text(m, spec, value, o);
}

static mk_status convert_character(jinja *m, jinja_spec *spec, jinja_value value, jinja_output *o) {
  int64_t code;
  char text[4];
  if (mk_jinja_whole(value, &code) && code >= 0 && code <= 0x10ffff && (code < 0xd800 || code > 0xdfff)) {
    value = mk_jinja_string(text, mk_jinja_encode((uint32_t)code, text));
  }
  if (value.kind != JINJA_STRING || mk_jinja_characters(value.text, value.length) != 1) {
    return mk_jinja_fail(m->line, "%%c requires int or char");
  }
  spec->precision = -1;
  return mk_jinja_format_text(m, spec, value, o);
}

static mk_status convert(jinja *m, bool markup, jinja_spec *spec, jinja_value value, jinja_output *o) {
  int64_t whole;
  double real;
  bool is_whole = mk_jinja_whole(value, &whole), is_number = mk_jinja_number(value, &real);
  switch (spec->type) {
    case 's':
    case 'r':
      return convert_text(m, markup, spec, value, o);
    case 'c':
      return convert_character(m, spec, value, o);
    case 'd':
    case 'i':
    case 'u':
    case 'o':
    case 'x':
    case 'X': {
      bool decimal = strchr("diu", spec->type) != NULL;
      if (value.kind == JINJA_UNDEFINED) {
        return mk_jinja_fail_undefined(m, value);
      }
      if (!is_whole && decimal && is_number && fabs(real) < 9.2e18) {
        whole = (int64_t)real;
      } else if (!is_whole) {
        return mk_jinja_fail(m->line, "%%%c format: %s is required, not %s", spec->type,
                             decimal ? "a real number" : "an integer", mk_jinja_type(value));
      }
      return mk_jinja_format_whole(m, spec, whole, o);
    }
    case 'e':
    case 'E':
    case 'f':
    case 'F':
    case 'g':
    case 'G':
      if (value.kind == JINJA_UNDEFINED) {
        return mk_jinja_fail_undefined(m, value);
      }
      return is_number ? mk_jinja_format_real(m, spec, real, o)
                       : mk_jinja_fail(m->line, "must be real number, not %s", mk_jinja_type(value));
    case 'a':
      return mk_jinja_fail(m->line, "%%a in a format is not supported");
    default:
      return mk_jinja_fail(m->line, "unsupported format character '%c'", spec->type);
  }
}

/* Formats what comes after a %. */
static mk_status percent(jinja *m, bool markup, const char **at, const char *end, supply *from, jinja_output *o) {
  jinja_spec spec = {.fill = " ", .fill_length = 1, .width = -1, .precision = -1};
  jinja_value value = {.kind = JINJA_MISSING};
  bool left = false;
  if (*at < end && **at == '(') {
    MK_TRY(read_key(m, at, end, from, &value));
  }
  for (; *at < end && **at != 0 && strchr("-+ #0", **at) != NULL; ++*at) {
    left |= **at == '-';
    spec.sign = **at == '+' || (**at == ' ' && spec.sign == 0) ? **at : spec.sign;
    spec.alternate |= **at == '#';
    spec.zeros |= **at == '0';
  }
  MK_TRY(read_number(m, at, end, from, &spec.width));
  left |= spec.width < 0;
  spec.width = spec.width < 0 ? -spec.width : spec.width;
  if (*at < end && **at == '.') {
    ++*at;
    MK_TRY(read_number(m, at, end, from, &spec.precision));
    spec.precision = spec.precision < 0 ? 0 : spec.precision;
  }
  if (*at < end && **at != 0 && strchr("hlL", **at) != NULL) {
    ++*at;
  }
  if (*at == end) {
    return mk_jinja_fail(m->line, "incomplete format");
  }
  spec.type = *(*at)++;
  if (spec.type == '%') {
    return mk_jinja_write(m, o, "%", 1);
  }
  if (value.kind == JINJA_MISSING) {
    MK_TRY(next_value(m, from, &value));
  }
  bool number = spec.type != 's' && spec.type != 'r' && spec.type != 'c';
  spec.align = left ? '<' : number && spec.zeros ? 0 : '>';
  spec.zeros &= number && !left;
  return convert(m, markup, &spec, value, o);
}

static mk_status percent_all(jinja *m, jinja_value text, jinja_value right, jinja_output *o) {
  supply from = {.all = right};
  const char *at = text.text, *end = at + text.length;
  while (at < end) {
    const char *hit = memchr(at, '%', (size_t)(end - at));
    MK_TRY(mk_jinja_write(m, o, at, (size_t)((hit == NULL ? end : hit) - at)));
    if (hit == NULL) {
      break;
    }
    at = hit + 1;
    MK_TRY(percent(m, text.markup, &at, end, &from, o));
  }
  bool tuple = right.kind == JINJA_LIST && right.list->sequence == JINJA_IS_TUPLE;
  bool has_elements = (right.kind == JINJA_LIST && right.list->sequence < JINJA_IS_VIEW) || right.kind == JINJA_DICT ||
                      right.kind == JINJA_UNDEFINED;
  return from.used < (tuple ? right.list->count : 1) && (tuple || !has_elements)
             ? mk_jinja_fail(m->line, "not all arguments converted during string formatting")
             : MK_OK;
}

mk_status mk_jinja_format_percent(jinja *m, jinja_value text, jinja_value right, jinja_value *out) {
  jinja_output o = {0};
  mk_status status = percent_all(m, text, right, &o);
  MK_TRY(mk_jinja_written(m, status, &o, out));
  out->markup = text.markup;
  return MK_OK;
}

/* What {} takes its values from. */
typedef struct fields {
  const jinja_arguments *given;
  jinja_value map;
  int64_t next;           /* of {} without a number */
  bool counted, numbered; /* one was without a number, one with */
  bool markup;
} fields;

static mk_status first_value(jinja *m, fields *f, jinja_value name, jinja_value *out) {
  int64_t number = 0;
  bool digits = name.length > 0 && name.length < 10;
  for (size_t i = 0; digits && i < name.length; i++) {
    digits = name.text[i] >= '0' && name.text[i] <= '9';
    number = number * 10 + (name.text[i] - '0');
  }
  if (digits || name.length == 0) {
    f->counted |= !digits;
    f->numbered |= digits;
    number = digits ? number : f->next++;
    if (f->counted && f->numbered) {
      return mk_jinja_fail(m->line, "a format has fields with numbers and fields without");
    }
    if (number >= (int64_t)f->given->count) {
      return mk_jinja_fail(m->line, "Replacement index %lld out of range for positional args tuple", (long long)number);
    }
    *out = f->given->positional[number];
    return MK_OK;
  }
  *out = (jinja_value){.kind = JINJA_MISSING};
  if (f->map.kind == JINJA_DICT) {
    MK_TRY(mk_jinja_get(m, f->map.dict, name, out));
  }
  for (size_t i = 0; i < f->given->named_count; i++) {
    jinja_value key = f->given->named[i].key;
    if (key.length == name.length && memcmp(key.text, name.text, name.length) == 0) {
      *out = f->given->named[i].value;
    }
  }
  return out->kind != JINJA_MISSING ? MK_OK : mk_jinja_fail(m->line, "the key '%.*s' is missing", JINJA_SHOWN(name));
}

/* first.attribute[element]... */
static mk_status field_value(jinja *m, fields *f, jinja_value name, jinja_value *out) {
  size_t end = 0;
  while (end < name.length && name.text[end] != '.' && name.text[end] != '[') {
    end++;
  }
  if (end == 0 && name.length > 0) {
    return mk_jinja_fail(m->line, "a field of a format without a name or number is not supported with what follows it");
  }
  MK_TRY(first_value(m, f, mk_jinja_string(name.text, end), out));
  while (end < name.length) {
    bool element = name.text[end] == '[';
    size_t start = ++end;
    int64_t number = 0;
    bool digits = element;
    while (end < name.length && (element ? name.text[end] != ']' : name.text[end] != '.' && name.text[end] != '[')) {
      digits = digits && name.text[end] >= '0' && name.text[end] <= '9' && end - start < 9;
      number = digits ? number * 10 + (name.text[end] - '0') : 0;
      end++;
    }
    if (end == start || (element && end == name.length)) {
      return mk_jinja_fail(m->line, "Empty attribute in format string, or a ']' is missing");
    }
    jinja_value part = mk_jinja_string(name.text + start, end - start);
    MK_TRY(!element ? mk_jinja_attribute(m, *out, part, out)
                    : mk_jinja_item(m, *out, digits ? mk_jinja_int(number) : part, out));
    end += element;
  }
  return MK_OK;
}

static mk_status braces(jinja *m, fields *f, jinja_value text, int depth, jinja_output *o);

/* name[!conversion][:specification], without the braces around it. */
static mk_status field(jinja *m, fields *f, jinja_value text, int depth, jinja_output *o) {
  size_t end = 0, open = 0;
  for (; end < text.length && (open > 0 || (text.text[end] != '!' && text.text[end] != ':')); end++) {
    open += text.text[end] == '[';
    open -= text.text[end] == ']' && open > 0;
  }
  jinja_value name = mk_jinja_string(text.text, end), value;
  char conversion = 0;
  if (end < text.length && text.text[end] == '!') {
    conversion = end + 1 < text.length ? text.text[end + 1] : 0;
    end += 2;
    if ((conversion != 'r' && conversion != 's') || (end < text.length && text.text[end] != ':')) {
      return mk_jinja_fail(m->line, "a format converts by '!%c', which is not supported", conversion);
    }
  }
  jinja_value spec = mk_jinja_literal("");
  MK_TRY(field_value(m, f, name, &value));
  if (end < text.length) {
    jinja_output made = {0};
    mk_status status = braces(m, f, mk_jinja_string(text.text + end + 1, text.length - end - 1), depth + 1, &made);
    MK_TRY(mk_jinja_written(m, status, &made, &spec));
  }
  if (conversion != 0) {
    MK_TRY(conversion == 'r' ? mk_jinja_repr(m, value, &value) : mk_jinja_str(m, value, &value));
  }
  if (!f->markup || depth > 0) {
    return mk_jinja_format_value(m, value, spec, o);
  }
  jinja_output made = {0};
  bool markup = value.kind == JINJA_STRING && value.markup;
  mk_status status = mk_jinja_format_value(m, value, spec, &made);
  MK_TRY(mk_jinja_written(m, status, &made, &value));
  value.markup = markup;
  MK_TRY(mk_jinja_escape(m, value, &value));
  return mk_jinja_write(m, o, value.text, value.length);
}

static mk_status braces(jinja *m, fields *f, jinja_value text, int depth, jinja_output *o) {
  if (depth > 1) {
    return mk_jinja_fail(m->line, "Max string recursion exceeded");
  }
  for (size_t at = 0; at < text.length;) {
    char c = text.text[at];
    size_t start = at;
    if ((c == '{' || c == '}') && at + 1 < text.length && text.text[at + 1] == c) {
      MK_TRY(mk_jinja_write(m, o, &c, 1));
      at += 2;
    } else if (c == '{') {
      size_t open = 1;
      for (at++; at < text.length; at++) {
        open += (size_t)(text.text[at] == '{') - (size_t)(text.text[at] == '}');
        if (open == 0) {
          break;
        }
      }
      if (at == text.length) {
        return mk_jinja_fail(m->line, "expected '}' before end of string");
      }
      MK_TRY(field(m, f, mk_jinja_string(text.text + start + 1, at - start - 1), depth, o));
      at++;
    } else if (c == '}') {
      return mk_jinja_fail(m->line, "Single '}' encountered in format string");
    } else {
      while (at < text.length && text.text[at] != '{' && text.text[at] != '}') {
        at++;
      }
      MK_TRY(mk_jinja_write(m, o, text.text + start, at - start));
    }
  }
  return MK_OK;
}

mk_status mk_jinja_format_braces(jinja *m, jinja_value text, const jinja_arguments *arguments, jinja_value map,
                                 jinja_value *out) {
  jinja_output o = {0};
  fields f = {.given = arguments, .map = map, .markup = text.markup};
  mk_status status = braces(m, &f, text, 0, &o);
  MK_TRY(mk_jinja_written(m, status, &o, out));
  out->markup = text.markup;
  return MK_OK;
}
