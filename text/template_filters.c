/* The filters: finding them, and those that take any value. What is about text is in template_filters_text.c, what is
 * about lists in template_filters_list.c, and what gives its elements one by one in template_lazy.c. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/letters.h"
#include "text/template_format.h"
#include "text/template_strings.h"

static mk_status length(JINJA_ARGUMENTS) {
  int64_t count;
  MK_TRY(mk_jinja_length(m, v, &count));
  *out = mk_jinja_int(count);
  return MK_OK;
}

static mk_status fallback(JINJA_ARGUMENTS) {
  bool use = v.kind == JINJA_UNDEFINED || (mk_jinja_truth(slots[1]) && !mk_jinja_truth(v));
  *out = !use ? v : slots[0].kind == JINJA_MISSING ? mk_jinja_literal("") : slots[0];
  return MK_OK;
}

static mk_status to_json(JINJA_ARGUMENTS) { return mk_jinja_json(m, v, slots, out); }

/* The filter attr: gives the attribute alone, and no element of that name. */
static mk_status attribute(JINJA_ARGUMENTS) {
  jinja_value name, found = {.kind = JINJA_MISSING};
  MK_TRY(mk_jinja_check_text(m, slots[0], "attr"));
  name = slots[0];
  if (v.kind == JINJA_UNDEFINED) {
    return mk_jinja_fail_undefined(m, v);
  }
  if (v.kind == JINJA_NAMESPACE) {
    return mk_jinja_attribute(m, v, name, out);
  }
  MK_TRY(mk_jinja_find_method(m, v, name, &found));
  *out = found;
  return found.kind != JINJA_MISSING ? MK_OK : mk_jinja_undefined(m, v, name, out);
}

/* Text as a number of a base, as int() reads it: digits with single underscores between them. */
static bool read_whole(const char *text, int64_t base, int64_t *out) {
  static const char prefixes[] = "box";
  static const int bases[] = {2, 8, 16};
  bool negative = *text == '-', any = false, after_digit = false;
  uint64_t value = 0;
  text += *text == '-' || *text == '+';
  const char *prefix = text[0] == '0' && text[1] != 0 ? strchr(prefixes, text[1] | 32) : NULL;
  if (prefix != NULL && (text[1] | 32) == *prefix && (base == 0 || base == bases[prefix - prefixes])) {
    base = bases[prefix - prefixes];
    text += 2;
    after_digit = true; /* an underscore may follow */
  } else if (base == 0) {
    base = 10;
  }
  for (; *text != 0; text++) {
    if (*text == '_' && after_digit) {
      after_digit = false;
      continue;
    }
    int digit = *text >= '0' && *text <= '9'                 ? *text - '0'
                : (*text | 32) >= 'a' && (*text | 32) <= 'z' ? (*text | 32) - 'a' + 10
                                                             : 99;
    if (digit >= base || __builtin_mul_overflow(value, (uint64_t)base, &value) ||
        __builtin_add_overflow(value, (uint64_t)digit, &value) || value > INT64_MAX) {
      return false;
    }
    any = after_digit = true;
  }
  *out = negative ? -(int64_t)value : (int64_t)value;
  return any && after_digit;
}

/* Text as float() reads it. */
static bool read_real(const char *text, double *out) {
  char plain[64], *end;
  size_t count = 0;
  const char *word = text + (*text == '-' || *text == '+');
  for (const char *at = text; *at != 0; at++) {
    if (*at == '_' && (at == text || at[-1] < '0' || at[-1] > '9' || at[1] < '0' || at[1] > '9')) {
      return false;
    }
    plain[count] = *at;
    count += *at != '_';
  }
  plain[count] = 0;
  if (strspn(plain, "0123456789+-.eE") != count) {
    static const char *const words[] = {"inf", "infinity", "nan"};
    for (size_t i = 0; i < 3; i++) {
      size_t k = 0;
      while (words[i][k] != 0 && (word[k] | 32) == words[i][k]) {
        k++;
      }
      if (words[i][k] == 0 && word[k] == 0) {
        *out = i == 2 ? NAN : *text == '-' ? -INFINITY : INFINITY;
        return true;
      }
    }
    return false;
  }
  *out = strtod(plain, &end);
  return end != plain && *end == 0;
}

/* The text without white space around it, NUL-terminated; *plain: it may be a number. */
static mk_status bare(jinja *m, jinja_value v, char out[64], bool *plain) {
  MK_TRY(mk_jinja_strip(m, v, (jinja_value){0}, SIDE_BOTH, &v));
  *plain = v.length > 0 && v.length < 64 && memchr(v.text, 0, v.length) == NULL;
  for (size_t at = 0, length; *plain && at < v.length; at += length) {
    uint32_t c = mk_jinja_decode(v.text + at, &length);
    if (c >= 0x80 && (mk_letter_flags(c) & MK_LETTER_DECIMAL) != 0) {
      return mk_jinja_fail(m->line, "digits beyond ASCII are not supported in a number");
    }
    *plain = c < 0x80;
  }
  if (*plain) {
    memcpy(out, v.text, v.length);
    out[v.length] = 0;
  }
  return MK_OK;
}

static mk_status to_int(JINJA_ARGUMENTS) {
  char text[64];
  int64_t whole = 0, base = 10;
  double real = NAN;
  bool known = mk_jinja_whole(v, &whole), plain;
  bool has_base =
      slots[1].kind == JINJA_MISSING || (mk_jinja_whole(slots[1], &base) && (base == 0 || (base >= 2 && base <= 36)));
  if (v.kind == JINJA_UNDEFINED) {
    return mk_jinja_fail_undefined(m, v);
  }
  if (v.kind == JINJA_STRING) {
    MK_TRY(bare(m, v, text, &plain));
    known = plain && has_base && read_whole(text, base, &whole);
    if (!known && (!plain || !read_real(text, &real))) {
      real = NAN;
    }
  } else if (v.kind == JINJA_FLOAT) {
    real = v.real;
  }
  if (!known && isfinite(real)) {
    if (fabs(real) >= 9.2e18) {
      return mk_jinja_fail(m->line, "int: the number exceeds 64 bits");
    }
    known = true;
    whole = (int64_t)real;
  }
  *out = known ? mk_jinja_int(whole) : slots[0].kind == JINJA_MISSING ? mk_jinja_int(0) : slots[0];
  return MK_OK;
}

static mk_status to_float(JINJA_ARGUMENTS) {
  char text[64];
  double real = 0;
  bool known = mk_jinja_number(v, &real), plain;
  if (v.kind == JINJA_UNDEFINED) {
    return mk_jinja_fail_undefined(m, v);
  }
  if (v.kind == JINJA_STRING) {
    MK_TRY(bare(m, v, text, &plain));
    known = plain && read_real(text, &real);
  }
  *out = known ? mk_jinja_float(real) : slots[0].kind == JINJA_MISSING ? mk_jinja_float(0) : slots[0];
  return MK_OK;
}

static mk_status absolute(JINJA_ARGUMENTS) {
  double real;
  int64_t whole;
  if (v.kind == JINJA_UNDEFINED) {
    return mk_jinja_fail_undefined(m, v);
  }
  if (!mk_jinja_number(v, &real)) {
    return mk_jinja_fail(m->line, "bad operand type for abs(): '%s'", mk_jinja_type(v));
  }
  bool is_whole = mk_jinja_whole(v, &whole);
  *out = is_whole ? mk_jinja_int(whole) : mk_jinja_float(fabs(real));
  return is_whole && whole < 0 ? mk_jinja_binary(m, JINJA_OPERATOR(0, '-'), mk_jinja_int(0), *out, out) : MK_OK;
}

/* Rounds to a multiple of 10^places, and a half to the even one, as round() does with negative precisions. */
static mk_status round_whole(jinja *m, int64_t whole, int64_t places, jinja_value *out) {
  int64_t unit = 1;
  for (int64_t i = 0; i < places && i < 19; i++) {
    if (__builtin_mul_overflow(unit, 10, &unit)) {
      *out = mk_jinja_int(0);
      return MK_OK;
    }
  }
  int64_t rest = whole % unit, base = whole - rest, twice = rest < 0 ? -rest : rest;
  bool up = twice > unit - twice || (twice == unit - twice && base / unit % 2 != 0);
  if (up && __builtin_add_overflow(base, rest < 0 ? -unit : unit, &base)) {
    return mk_jinja_fail(m->line, "a whole number exceeds 64 bits");
  }
  *out = mk_jinja_int(base);
  return MK_OK;
}

static mk_status round_number(JINJA_ARGUMENTS) {
  int64_t precision, whole;
  double real;
  char text[512];
  jinja_value method = slots[1].kind == JINJA_MISSING ? mk_jinja_literal("common") : slots[1];
  bool is_common = mk_jinja_is(method, "common"), is_ceil = mk_jinja_is(method, "ceil");
  bool to_whole = slots[0].kind == JINJA_NONE;
  MK_TRY(mk_jinja_take_whole(m, to_whole ? (jinja_value){0} : slots[0], 0, &precision));
  if (!is_common && !is_ceil && !mk_jinja_is(method, "floor")) {
    return mk_jinja_fail(m->line, "method must be common, ceil or floor");
  }
  if (!mk_jinja_number(v, &real)) {
    return v.kind == JINJA_UNDEFINED
               ? mk_jinja_fail_undefined(m, v)
               : mk_jinja_fail(m->line, "type %s doesn't define __round__ method", mk_jinja_type(v));
  }
  if (precision < -300 || precision > 300) {
    return mk_jinja_fail(m->line, "round: a precision beyond 300 digits is not supported");
  }
  if (!is_common) {
    double unit = pow(10, (double)precision), scaled = real * unit;
    if (!isfinite(scaled)) {
      return mk_jinja_fail(m->line, "cannot convert float infinity or NaN to integer");
    }
    *out = mk_jinja_float((is_ceil ? ceil(scaled) : floor(scaled)) / unit);
    return MK_OK;
  }
  if (mk_jinja_whole(v, &whole)) {
    *out = mk_jinja_int(whole);
    return precision >= 0 ? MK_OK : round_whole(m, whole, -precision, out);
  }
  if (to_whole) {
    *out = mk_jinja_int(fabs(real) < 9.2e18 ? (int64_t)rint(real) : 0);
    return fabs(real) < 9.2e18 ? MK_OK : mk_jinja_fail(m->line, "round: the number exceeds 64 bits");
  }
  if (precision < 0) {
    return mk_jinja_fail(m->line, "round: a negative precision is not supported for a float");
  }
  if (isfinite(real) && fabs(real) < 1e100) { /* Python rounds the exact decimal value, and so does printf */
    snprintf(text, sizeof text, "%.*f", (int)precision, real);
    real = strtod(text, NULL);
  }
  *out = mk_jinja_float(real);
  return MK_OK;
}

static mk_status file_size(JINJA_ARGUMENTS) {
  static const char *const prefixes[] = {"k", "M", "G", "T", "P", "E", "Z", "Y"};
  jinja_value number = {0};
  MK_TRY(to_float(m, v, (jinja_value[]){mk_jinja_none()}, all, &number));
  if (number.kind != JINJA_FLOAT) {
    return mk_jinja_fail(m->line, "filesizeformat: '%s' is no number", mk_jinja_type(v));
  }
  bool binary = mk_jinja_truth(slots[0]);
  double bytes = number.real, base = binary ? 1024 : 1000, unit = base * base;
  char text[400];
  if (bytes == 1) {
    strcpy(text, "1 Byte");
  } else if (bytes < base) {
    snprintf(text, sizeof text, "%lld Bytes", (long long)fmax(bytes, -9e18));
  } else {
    size_t i = 0;
    for (; i < 7 && bytes >= unit; i++) {
      unit *= base;
    }
    snprintf(text, sizeof text, "%.1f %s%sB", base * bytes / unit, binary && i == 0 ? "K" : prefixes[i],
             binary ? "i" : "");
  }
  return mk_jinja_copy(m, text, strlen(text), out);
}

static const jinja_function any_filters[] = {
    {"abs", "/", 0, absolute},
    {"attr", "name", 1, attribute},
    {"count", "/", 0, length},
    {"d", "default_value,boolean", 0, fallback},
    {"default", "default_value,boolean", 0, fallback},
    {"filesizeformat", "binary", 0, file_size},
    {"float", "default", 0, to_float},
    {"int", "default,base", 0, to_int},
    {"length", "/", 0, length},
    {"round", "precision,method", 0, round_number},
    {"tojson", "ensure_ascii,indent,separators,sort_keys", 0, to_json},
    {0},
};

const char mk_jinja_missing_filters[] = " pprint random striptags urlize wordwrap ";

mk_status mk_jinja_fail_unknown(const jinja_node *node) {
  return mk_jinja_fail(
      node->line, "the %s%.*s' %s", node->kind == NODE_TEST ? "test 'is " : "filter '", JINJA_SHOWN(node->value),
      node->kind == NODE_FILTER && mk_jinja_listed(mk_jinja_missing_filters, node->value) ? "is not supported"
                                                                                          : "does not exist");
}

const jinja_function *mk_jinja_find(const jinja_function *table, jinja_value name) {
  for (; table->name != NULL; table++) {
    if (mk_jinja_is(name, table->name)) {
      return table;
    }
  }
  return NULL;
}

const jinja_function *mk_jinja_find_filter(jinja_value name) {
  const jinja_function *const tables[] = {any_filters, mk_jinja_text_filters, mk_jinja_list_filters,
                                          mk_jinja_lazy_filters};
  const jinja_function *found = NULL;
  for (size_t i = 0; i < sizeof tables / sizeof tables[0] && found == NULL; i++) {
    found = mk_jinja_find(tables[i], name);
  }
  return found;
}

bool mk_jinja_listed(const char *words, jinja_value name) {
  char word[32];
  if (name.kind != JINJA_STRING || name.length == 0 || name.length + 3u > sizeof word ||
      memchr(name.text, ' ', name.length) != NULL || memchr(name.text, 0, name.length) != NULL) {
    return false;
  }
  word[0] = ' ';
  memcpy(word + 1, name.text, name.length);
  memcpy(word + 1 + name.length, " ", 2);
  return strstr(words, word) != NULL;
}
