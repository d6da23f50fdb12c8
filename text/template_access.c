/* Attributes, elements and slices of values, and arithmetic. */
#include <math.h>
#include <string.h>

#include "text/template_format.h"
#include "text/template_strings.h"

/* object.name: a method first, then an element. */
mk_status mk_jinja_attribute(jinja *m, jinja_value object, jinja_value name, jinja_value *out) {
  jinja_value found = {.kind = JINJA_MISSING};
  if (object.kind == JINJA_UNDEFINED) {
    return mk_jinja_fail_undefined(m, object);
  }
  if (object.kind != JINJA_NAMESPACE) {
    MK_TRY(mk_jinja_find_method(m, object, name, &found));
  }
  if (found.kind == JINJA_MISSING && (object.kind == JINJA_DICT || object.kind == JINJA_NAMESPACE)) {
    MK_TRY(mk_jinja_get(m, object.dict, name, &found));
  }
  *out = found;
  return found.kind != JINJA_MISSING ? MK_OK : mk_jinja_undefined(m, object, name, out);
}

static mk_status string_element(jinja *m, jinja_value object, int64_t at, jinja_value *out) {
  size_t byte = 0, length;
  for (int64_t i = 0;; i++, byte += length) {
    mk_jinja_decode(object.text + byte, &length);
    if (i == at) {
      break;
    }
  }
  *out = mk_jinja_string(object.text + byte, length);
  out->markup = object.markup;
  return mk_jinja_step(m, object.length);
}

mk_status mk_jinja_item(jinja *m, jinja_value object, jinja_value index, jinja_value *out) {
  int64_t at, count = 0;
  if (object.kind == JINJA_UNDEFINED) {
    return mk_jinja_fail_undefined(m, object);
  }
  if (object.kind == JINJA_DICT) {
    MK_TRY(mk_jinja_get(m, object.dict, index, out));
    if (out->kind != JINJA_MISSING) {
      return MK_OK;
    }
  } else if (mk_jinja_whole(index, &at) &&
             (object.kind == JINJA_STRING || (object.kind == JINJA_LIST && object.list->sequence < JINJA_IS_VIEW))) {
    MK_TRY(mk_jinja_length(m, object, &count));
    at += at < 0 ? count : 0;
    if (at >= 0 && at < count) {
      if (object.kind == JINJA_STRING) {
        return string_element(m, object, at, out);
      }
      *out = object.list->items[at];
      return MK_OK;
    }
  }
  return index.kind == JINJA_STRING ? mk_jinja_attribute(m, object, index, out)
                                    : mk_jinja_undefined(m, object, index, out);
}

/* Python's rules for start:stop:step on `count` elements. */
static mk_status slice_bounds(jinja *m, const jinja_value range[3], int64_t count, int64_t bounds[3]) {
  bool given[3];
  for (size_t i = 0; i < 3; i++) {
    given[i] = range[i].kind != JINJA_MISSING && range[i].kind != JINJA_NONE;
    if (given[i] && !mk_jinja_whole(range[i], &bounds[i])) {
      return mk_jinja_fail(m->line, "slice indices must be integers or None, not %s", mk_jinja_type(range[i]));
    }
  }
  int64_t step = bounds[2] = given[2] ? bounds[2] : 1;
  if (step == 0 || step < -INT32_MAX || step > INT32_MAX) {
    return mk_jinja_fail(m->line, step == 0 ? "slice step cannot be zero" : "the step of a slice is out of range");
  }
  for (size_t i = 0; i < 2; i++) {
    if (!given[i]) {
      bounds[i] = (i == 0) == (step > 0) ? (step > 0 ? 0 : -1) : (step > 0 ? count : count - 1);
      continue;
    }
    int64_t at = bounds[i] < 0 ? (bounds[i] < -count ? -1 : bounds[i] + count) : bounds[i];
    int64_t low = step > 0 ? 0 : -1, high = step > 0 ? count : count - 1;
    bounds[i] = at < low ? low : at > high ? high : at;
  }
  if (!given[0] && step < 0) {
    bounds[0] = count - 1;
  }
  if (!given[1] && step < 0) {
    bounds[1] = -1;
  }
  return MK_OK;
}

mk_status mk_jinja_slice(jinja *m, jinja_value object, const jinja_value range[3], jinja_value *out) {
  int64_t bounds[3] = {0}, count;
  const jinja_list *from;
  bool text = object.kind == JINJA_STRING;
  if (object.kind == JINJA_UNDEFINED) {
    return mk_jinja_fail_undefined(m, object);
  }
  if (!text && (object.kind != JINJA_LIST || object.list->sequence >= JINJA_IS_VIEW)) {
    return mk_jinja_fail(m->line, "a %s cannot be sliced; make it a list first", mk_jinja_type(object));
  }
  MK_TRY(mk_jinja_length(m, object, &count));
  MK_TRY(slice_bounds(m, range, count, bounds));
  MK_TRY(mk_jinja_iterate(m, object, &from));
  int64_t distance = bounds[2] > 0 ? bounds[1] - bounds[0] : bounds[0] - bounds[1];
  int64_t step = bounds[2] > 0 ? bounds[2] : -bounds[2];
  size_t taken = distance <= 0 ? 0 : (size_t)((distance + step - 1) / step);
  jinja_value list;
  MK_TRY(mk_jinja_new_list(m, taken, text ? JINJA_IS_LIST : object.list->sequence, &list));
  for (size_t i = 0; i < taken; i++) {
    list.list->items[i] = from->items[bounds[0] + (int64_t)i * bounds[2]];
  }
  if (!text && object.list->sequence == JINJA_IS_RANGE) {
    const int64_t *of = object.list->range;
    for (size_t i = 0; i < 3; i++) {
      list.list->range[i] = i < 2 ? of[0] + bounds[i] * of[2] : of[2] * bounds[2];
    }
  }
  if (!text) {
    *out = list;
    return MK_OK;
  }
  char *bytes;
  size_t length = 0;
  MK_TRY(mk_jinja_alloc(&m->pool, object.length, 1, &bytes));
  for (size_t i = 0; i < taken; i++) {
    memcpy(bytes + length, list.list->items[i].text, list.list->items[i].length);
    length += list.list->items[i].length;
  }
  *out = mk_jinja_string(bytes, length);
  out->markup = object.markup;
  return MK_OK;
}

mk_status mk_jinja_path(jinja *m, jinja_value object, jinja_value name, jinja_value otherwise, jinja_value *out) {
  if (name.kind == JINJA_NONE || name.kind == JINJA_MISSING) {
    *out = object;
    return MK_OK;
  }
  jinja_value parts;
  if (name.kind == JINJA_STRING) {
    MK_TRY(mk_jinja_split(m, name, mk_jinja_literal("."), -1, false, &parts));
  } else {
    MK_TRY(mk_jinja_new_list(m, 1, JINJA_IS_LIST, &parts));
    parts.list->items[0] = name;
  }
  for (size_t i = 0; i < parts.list->count; i++) {
    jinja_value part = parts.list->items[i];
    int64_t whole = 0;
    bool digits = part.kind == JINJA_STRING && part.length > 0 && part.length < 10;
    for (size_t k = 0; digits && k < part.length; k++) {
      digits = part.text[k] >= '0' && part.text[k] <= '9';
      whole = whole * 10 + (part.text[k] - '0');
    }
    MK_TRY(mk_jinja_item(m, object, digits ? mk_jinja_int(whole) : part, &object));
    if (object.kind == JINJA_UNDEFINED && otherwise.kind > JINJA_NONE) {
      object = otherwise;
    }
  }
  *out = object;
  return MK_OK;
}

/* Python rounds quotients down and gives remainders the divisor's sign. */
static int64_t floor_divide(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

static bool whole_power(int64_t base, int64_t exponent, int64_t *out) {
  bool overflow = false;
  *out = 1;
  if (base == 1 || base == 0 || base == -1) {
    *out = exponent == 0 ? 1 : base == -1 && exponent % 2 == 0 ? 1 : base;
    return true;
  }
  for (int64_t i = 0; i < exponent && !overflow; i++) {
    overflow = __builtin_mul_overflow(*out, base, out);
  }
  return !overflow;
}

static mk_status whole_binary(jinja *m, uint16_t symbol, int64_t a, int64_t b, jinja_value *out) {
  int64_t result = 0;
  bool overflow = false;
  switch (symbol) {
    case JINJA_OPERATOR(0, '+'):
      overflow = __builtin_add_overflow(a, b, &result);
      break;
    case JINJA_OPERATOR(0, '-'):
      overflow = __builtin_sub_overflow(a, b, &result);
      break;
    case JINJA_OPERATOR(0, '*'):
      overflow = __builtin_mul_overflow(a, b, &result);
      break;
    case OPERATOR_POWER:
      overflow = !whole_power(a, b, &result);
      break;
    default: /* // and % */
      if (b == 0) {
        return mk_jinja_fail(m->line, "integer division or modulo by zero");
      }
      overflow = a == INT64_MIN && b == -1;
      if (!overflow) {
        result = symbol == OPERATOR_FLOOR ? floor_divide(a, b) : a - floor_divide(a, b) * b;
      }
      break;
  }
  if (overflow) {
    return mk_jinja_fail(m->line, "a whole number exceeds 64 bits");
  }
  *out = mk_jinja_int(result);
  return MK_OK;
}

/* Python's // and %: the rest has the divisor's sign, and zeros have signs. */
static double floor_or_rest(double a, double b, bool want_floor) {
  double rest = fmod(a, b);
  rest = rest == 0 ? copysign(0, b) : (rest < 0) != (b < 0) ? rest + b : rest;
  double quotient = round((a - rest) / b);
  return !want_floor ? rest : quotient == 0 ? copysign(0, a / b) : quotient;
}

static mk_status real_binary(jinja *m, uint16_t symbol, double a, double b, jinja_value *out) {
  double result = 0;
  switch (symbol) {
    case JINJA_OPERATOR(0, '+'):
      result = a + b;
      break;
    case JINJA_OPERATOR(0, '-'):
      result = a - b;
      break;
    case JINJA_OPERATOR(0, '*'):
      result = a * b;
      break;
    case OPERATOR_POWER:
      result = pow(a, b);
      if (!isfinite(result)) {
        return mk_jinja_fail(m->line, "a power is out of range");
      }
      break;
    default:
      if (b == 0) {
        return mk_jinja_fail(m->line, "float division by zero");
      }
      result = symbol == JINJA_OPERATOR(0, '/') ? a / b : floor_or_rest(a, b, symbol == OPERATOR_FLOOR);
      break;
  }
  *out = mk_jinja_float(result);
  return MK_OK;
}

static mk_status join_two(jinja *m, jinja_value a, jinja_value b, jinja_value *out) {
  if (a.kind == JINJA_STRING) {
    char *text;
    bool markup = a.markup || b.markup;
    if (markup) {
      MK_TRY(mk_jinja_escape(m, a, &a));
      MK_TRY(mk_jinja_escape(m, b, &b));
    }
    MK_TRY(mk_jinja_step(m, (size_t)a.length + b.length));
    MK_TRY(mk_jinja_alloc(&m->pool, (size_t)a.length + b.length, 1, &text));
    memcpy(text, a.text, a.length);
    memcpy(text + a.length, b.text, b.length);
    *out = mk_jinja_string(text, (size_t)a.length + b.length);
    out->markup = markup;
    return MK_OK;
  }
  MK_TRY(mk_jinja_new_list(m, a.list->count + b.list->count, a.list->sequence, out));
  for (size_t i = 0; i < out->list->count; i++) {
    out->list->items[i] = i < a.list->count ? a.list->items[i] : b.list->items[i - a.list->count];
  }
  return MK_OK;
}

static bool is_sequence(jinja_value v) {
  return v.kind == JINJA_STRING || (v.kind == JINJA_LIST && v.list->sequence <= JINJA_IS_TUPLE);
}

static mk_status repeat(jinja *m, jinja_value what, int64_t times, jinja_value *out) {
  size_t count = what.kind == JINJA_STRING ? what.length : what.list->count, total;
  times = times < 0 ? 0 : times;
  if (__builtin_mul_overflow(count, (uint64_t)times, &total) || total > MK_TEMPLATE_MAX_OUTPUT) {
    return mk_jinja_fail(m->line, "a repeated value exceeds %d elements", MK_TEMPLATE_MAX_OUTPUT);
  }
  if (what.kind == JINJA_STRING) {
    char *text;
    MK_TRY(mk_jinja_step(m, total));
    MK_TRY(mk_jinja_alloc(&m->pool, total, 1, &text));
    for (size_t i = 0; i < total; i++) {
      text[i] = what.text[i % count];
    }
    *out = mk_jinja_string(text, total);
    out->markup = what.markup;
    return MK_OK;
  }
  MK_TRY(mk_jinja_new_list(m, total, what.list->sequence, out));
  for (size_t i = 0; i < total; i++) {
    out->list->items[i] = what.list->items[i % count];
  }
  return MK_OK;
}

mk_status mk_jinja_binary(jinja *m, uint16_t symbol, jinja_value left, jinja_value right, jinja_value *out) {
  int64_t a, b;
  double x, y;
  if (symbol == JINJA_OPERATOR(0, '%') && left.kind == JINJA_STRING) {
    return mk_jinja_format_percent(m, left, right, out);
  }
  if (left.kind == JINJA_UNDEFINED || right.kind == JINJA_UNDEFINED) {
    return mk_jinja_fail_undefined(m, left.kind == JINJA_UNDEFINED ? left : right);
  }
  bool whole = mk_jinja_whole(left, &a);
  whole = mk_jinja_whole(right, &b) && whole;
  if (whole && symbol != JINJA_OPERATOR(0, '/') && !(symbol == OPERATOR_POWER && b < 0)) {
    return whole_binary(m, symbol, a, b, out);
  }
  if (mk_jinja_number(left, &x) && mk_jinja_number(right, &y)) {
    return real_binary(m, symbol, x, y, out);
  }
  if (symbol == JINJA_OPERATOR(0, '+') && is_sequence(left) && left.kind == right.kind &&
      (left.kind == JINJA_STRING || left.list->sequence == right.list->sequence)) {
    return join_two(m, left, right, out);
  }
  if (symbol == JINJA_OPERATOR(0, '*') && is_sequence(left) && mk_jinja_whole(right, &b)) {
    return repeat(m, left, b, out);
  }
  if (symbol == JINJA_OPERATOR(0, '*') && is_sequence(right) && mk_jinja_whole(left, &a)) {
    return repeat(m, right, a, out);
  }
  return mk_jinja_fail(m->line, "unsupported operand type(s) for %s%c: '%s' and '%s'",
                       symbol == OPERATOR_POWER   ? "*"
                       : symbol == OPERATOR_FLOOR ? "/"
                                                  : "",
                       symbol & 255, mk_jinja_type(left), mk_jinja_type(right));
}
