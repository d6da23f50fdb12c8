/* The tests: `is defined` and the like. Also by name in select, selectattr and their opposites. */
#include <string.h>

#include "text/template_internal.h"

#define KIND_TEST(name, condition)         \
  static mk_status name(JINJA_ARGUMENTS) { \
    *out = mk_jinja_bool((condition));     \
    return MK_OK;                          \
  }

KIND_TEST(is_defined, v.kind != JINJA_UNDEFINED)
KIND_TEST(is_undefined, v.kind == JINJA_UNDEFINED)
KIND_TEST(is_none, v.kind == JINJA_NONE)
KIND_TEST(is_boolean, v.kind == JINJA_BOOL)
KIND_TEST(is_true, v.kind == JINJA_BOOL && v.boolean)
KIND_TEST(is_false, v.kind == JINJA_BOOL && !v.boolean)
KIND_TEST(is_integer, v.kind == JINJA_INT)
KIND_TEST(is_float, v.kind == JINJA_FLOAT)
KIND_TEST(is_number, v.kind == JINJA_INT || v.kind == JINJA_FLOAT || v.kind == JINJA_BOOL)
KIND_TEST(is_string, v.kind == JINJA_STRING)
KIND_TEST(is_mapping, v.kind == JINJA_DICT)
/* What Python says of jinja2's Undefined and loop, too. */
KIND_TEST(is_iterable, mk_jinja_can_iterate(v))
KIND_TEST(is_sequence, v.kind == JINJA_STRING || v.kind == JINJA_DICT || v.kind == JINJA_UNDEFINED ||
                           (v.kind == JINJA_LIST && v.list->sequence < JINJA_IS_VIEW))
KIND_TEST(is_callable, v.kind >= JINJA_JOINER || v.kind == JINJA_UNDEFINED || v.kind == JINJA_LOOP)

static mk_status is_equal(JINJA_ARGUMENTS) {
  bool equal;
  MK_TRY(mk_jinja_equal(m, v, slots[0], &equal));
  *out = mk_jinja_bool(equal);
  return MK_OK;
}

static mk_status is_different(JINJA_ARGUMENTS) {
  MK_TRY(is_equal(m, v, slots, all, out));
  out->boolean = !out->boolean;
  return MK_OK;
}

static mk_status order(jinja *m, jinja_value v, const jinja_value *slots, char symbol, bool or_equal,
                       jinja_value *out) {
  int result;
  MK_TRY(mk_jinja_order(m, v, slots[0], JINJA_OPERATOR(0, symbol), &result));
  *out = mk_jinja_bool((or_equal && result == 0) || (symbol == '<' ? result < 0 : result > 0));
  return MK_OK;
}
static mk_status is_less(JINJA_ARGUMENTS) { return order(m, v, slots, '<', false, out); }
static mk_status is_at_most(JINJA_ARGUMENTS) { return order(m, v, slots, '<', true, out); }
static mk_status is_greater(JINJA_ARGUMENTS) { return order(m, v, slots, '>', false, out); }
static mk_status is_at_least(JINJA_ARGUMENTS) { return order(m, v, slots, '>', true, out); }

static mk_status is_in(JINJA_ARGUMENTS) {
  bool contains;
  MK_TRY(mk_jinja_contains(m, slots[0], v, &contains));
  *out = mk_jinja_bool(contains);
  return MK_OK;
}

/* Identity, which Python has for numbers and strings only by accident. */
static mk_status is_same(JINJA_ARGUMENTS) {
  const jinja_value other = slots[0];
  if (v.kind == other.kind && (v.kind == JINJA_INT || v.kind == JINJA_FLOAT || v.kind == JINJA_STRING)) {
    return mk_jinja_fail(m->line, "'is sameas' is not supported between numbers or strings; use ==");
  }
  bool same = v.kind == other.kind;
  if (same && v.kind == JINJA_BOOL) {
    same = v.boolean == other.boolean;
  } else if (same && v.kind != JINJA_NONE) {
    same = v.dict == other.dict;
  }
  *out = mk_jinja_bool(same);
  return MK_OK;
}

static mk_status remainder_is(jinja *m, jinja_value v, int64_t divisor, int64_t wanted, jinja_value *out) {
  jinja_value rest;
  MK_TRY(mk_jinja_binary(m, JINJA_OPERATOR(0, '%'), v, mk_jinja_int(divisor), &rest));
  *out = mk_jinja_bool(rest.kind == JINJA_INT ? rest.integer == wanted : rest.real == (double)wanted);
  return MK_OK;
}
static mk_status is_even(JINJA_ARGUMENTS) { return remainder_is(m, v, 2, 0, out); }
static mk_status is_odd(JINJA_ARGUMENTS) { return remainder_is(m, v, 2, 1, out); }
static mk_status is_divisible(JINJA_ARGUMENTS) {
  int64_t divisor;
  if (!mk_jinja_whole(slots[0], &divisor)) {
    return mk_jinja_fail(m->line, "'is divisibleby' takes a whole number");
  }
  return remainder_is(m, v, divisor, 0, out);
}

static mk_status in_case(jinja *m, jinja_value v, const char *method, jinja_value *out) {
  const jinja_arguments none = {0};
  MK_TRY(mk_jinja_str(m, v, &v));
  return mk_jinja_apply(m, mk_jinja_find(mk_jinja_string_methods, mk_jinja_literal(method)), v, &none, out);
}
static mk_status is_lower(JINJA_ARGUMENTS) { return in_case(m, v, "islower", out); }
static mk_status is_upper(JINJA_ARGUMENTS) { return in_case(m, v, "isupper", out); }

KIND_TEST(is_escaped, v.kind == JINJA_STRING && v.markup)
KIND_TEST(is_filter, mk_jinja_find_filter(v) != NULL || mk_jinja_listed(mk_jinja_missing_filters, v))
KIND_TEST(is_test, mk_jinja_find_test(v) != NULL)

static const jinja_function tests[] = {
    {"defined", "", 0, is_defined},   {"undefined", "", 0, is_undefined},
    {"none", "", 0, is_none},         {"boolean", "", 0, is_boolean},
    {"true", "", 0, is_true},         {"false", "", 0, is_false},
    {"integer", "", 0, is_integer},   {"float", "", 0, is_float},
    {"number", "", 0, is_number},     {"string", "", 0, is_string},
    {"mapping", "", 0, is_mapping},   {"iterable", "", 0, is_iterable},
    {"sequence", "", 0, is_sequence}, {"callable", "", 0, is_callable},
    {"sameas", "other", 1, is_same},  {"in", "seq", 1, is_in},
    {"eq", "b", 1, is_equal},         {"equalto", "b", 1, is_equal},
    {"==", "b", 1, is_equal},         {"ne", "b", 1, is_different},
    {"!=", "b", 1, is_different},     {"lt", "b", 1, is_less},
    {"lessthan", "b", 1, is_less},    {"<", "b", 1, is_less},
    {"le", "b", 1, is_at_most},       {"<=", "b", 1, is_at_most},
    {"gt", "b", 1, is_greater},       {"greaterthan", "b", 1, is_greater},
    {">", "b", 1, is_greater},        {"ge", "b", 1, is_at_least},
    {">=", "b", 1, is_at_least},      {"even", "", 0, is_even},
    {"odd", "", 0, is_odd},           {"divisibleby", "num", 1, is_divisible},
    {"lower", "", 0, is_lower},       {"upper", "", 0, is_upper},
    {"escaped", "", 0, is_escaped},   {"filter", "", 0, is_filter},
    {"test", "", 0, is_test},         {0},
};

const jinja_function *mk_jinja_find_test(jinja_value name) { return mk_jinja_find(tests, name); }
