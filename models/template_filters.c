/* The filters. `safe` leaves its input as it is: nothing is escaped in a chat template. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "models/template_strings.h"

static mk_status string(JINJA_ARGUMENTS) { return mk_jinja_str(m, v, out); }

static mk_status trim(JINJA_ARGUMENTS) {
  MK_TRY(mk_jinja_str(m, v, &v));
  return mk_jinja_strip(m, v, slots[0], SIDE_BOTH, out);
}

static mk_status change_case(jinja *m, jinja_value v, jinja_case how, jinja_value *out) {
  MK_TRY(mk_jinja_str(m, v, &v));
  return mk_jinja_case(m, v, how, out);
}
static mk_status upper(JINJA_ARGUMENTS) { return change_case(m, v, CASE_UPPER, out); }
static mk_status lower(JINJA_ARGUMENTS) { return change_case(m, v, CASE_LOWER, out); }
static mk_status capitalize(JINJA_ARGUMENTS) { return change_case(m, v, CASE_CAPITAL, out); }
static mk_status title(JINJA_ARGUMENTS) { return change_case(m, v, CASE_TITLE, out); }

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

static mk_status nothing_there(jinja *m, const char *hint, jinja_value *out) {
  jinja_undefined *why;
  MK_TRY(mk_jinja_alloc(&m->pool, 1, sizeof *why, &why));
  why->hint = hint;
  *out = (jinja_value){.kind = JINJA_UNDEFINED, .undefined = why};
  return MK_OK;
}

static mk_status first(JINJA_ARGUMENTS) {
  const jinja_list *list;
  if (v.kind == JINJA_LIST && v.list->sequence == JINJA_IS_GENERATOR && v.list->taken < v.list->count) {
    *out = v.list->items[v.list->taken++];
    return MK_OK;
  }
  MK_TRY(mk_jinja_iterate(m, v, &list));
  if (list->count == 0) {
    return nothing_there(m, "No first item, sequence was empty.", out);
  }
  *out = list->items[0];
  return MK_OK;
}

static mk_status last(JINJA_ARGUMENTS) {
  const jinja_list *list;
  if (v.kind == JINJA_LIST && v.list->sequence == JINJA_IS_GENERATOR) {
    return mk_jinja_fail(m->line, "'generator' object is not reversible");
  }
  MK_TRY(mk_jinja_iterate(m, v, &list));
  if (list->count == 0) {
    return nothing_there(m, "No last item, sequence was empty.", out);
  }
  *out = list->items[list->count - 1];
  return MK_OK;
}

static mk_status to_list(JINJA_ARGUMENTS) {
  const jinja_list *list;
  MK_TRY(mk_jinja_iterate(m, v, &list));
  MK_TRY(mk_jinja_new_list(m, list->count, JINJA_IS_LIST, out));
  if (list->count > 0) {
    memcpy(out->list->items, list->items, list->count * sizeof *list->items);
  }
  return MK_OK;
}

static mk_status reverse(JINJA_ARGUMENTS) {
  const jinja_list *list;
  if (v.kind == JINJA_STRING) {
    const jinja_value range[3] = {{0}, {0}, mk_jinja_int(-1)};
    return mk_jinja_slice(m, v, range, out);
  }
  MK_TRY(mk_jinja_iterate(m, v, &list));
  MK_TRY(mk_jinja_new_list(m, list->count, JINJA_IS_GENERATOR, out));
  for (size_t i = 0; i < list->count; i++) {
    out->list->items[i] = list->items[list->count - 1 - i];
  }
  return MK_OK;
}

static mk_status items(JINJA_ARGUMENTS) {
  if (v.kind != JINJA_DICT && v.kind != JINJA_UNDEFINED) {
    return mk_jinja_fail(m->line, "Can only get item pairs from a mapping.");
  }
  size_t count = v.kind == JINJA_DICT ? v.dict->count : 0;
  MK_TRY(mk_jinja_new_list(m, count, JINJA_IS_GENERATOR, out));
  for (size_t i = 0; i < count; i++) {
    MK_TRY(mk_jinja_new_list(m, 2, JINJA_IS_TUPLE, &out->list->items[i]));
    out->list->items[i].list->items[0] = v.dict->pairs[i].key;
    out->list->items[i].list->items[1] = v.dict->pairs[i].value;
  }
  return MK_OK;
}

static mk_status replace(JINJA_ARGUMENTS) {
  jinja_value from, to;
  int64_t count = -1;
  MK_TRY(mk_jinja_str(m, v, &v));
  MK_TRY(mk_jinja_str(m, slots[0], &from));
  MK_TRY(mk_jinja_str(m, slots[1], &to));
  if (slots[2].kind > JINJA_NONE && !mk_jinja_whole(slots[2], &count)) {
    return mk_jinja_fail(m->line, "replace: count is a whole number, not a %s", mk_jinja_type(slots[2]));
  }
  return mk_jinja_replace(m, v, from, to, count, out);
}

static mk_status to_json(JINJA_ARGUMENTS) { return mk_jinja_json(m, v, slots, out); }

/* Text as a number: 0 when it is none; 1 with the number in *real, and whether it is a whole one. */
static bool read_number(jinja_value v, double *real, int64_t *whole, bool *is_whole) {
  char text[64], *end;
  jinja_value bare;
  jinja quiet = {0};
  if (mk_jinja_strip(&quiet, v, (jinja_value){0}, SIDE_BOTH, &bare) != MK_OK || bare.length == 0 ||
      bare.length >= sizeof text) {
    return false;
  }
  memcpy(text, bare.text, bare.length);
  text[bare.length] = 0;
  if (strlen(text) != bare.length || strspn(text, "0123456789+-.eE") != bare.length) {
    return false;
  }
  *real = strtod(text, &end);
  *is_whole = strspn(text, "0123456789+-") == bare.length;
  *whole = strtoll(text, NULL, 10);
  return *end == 0 && isfinite(*real);
}

static mk_status to_int(JINJA_ARGUMENTS) {
  int64_t whole = 0;
  double real = 0;
  bool known, is_whole = false;
  if (v.kind == JINJA_UNDEFINED) {
    return mk_jinja_fail_undefined(m, v);
  }
  if (v.kind == JINJA_STRING) {
    known = read_number(v, &real, &whole, &is_whole);
  } else {
    is_whole = known = mk_jinja_whole(v, &whole);
    real = (double)whole;
    if (v.kind == JINJA_FLOAT) {
      real = v.real;
      known = isfinite(real);
    }
  }
  if (known && fabs(real) >= 9.2e18) {
    return mk_jinja_fail(m->line, "int: the number exceeds 64 bits");
  }
  *out = known                            ? mk_jinja_int(is_whole ? whole : (int64_t)real)
         : slots[0].kind == JINJA_MISSING ? mk_jinja_int(0)
                                          : slots[0];
  return MK_OK;
}

static mk_status to_float(JINJA_ARGUMENTS) {
  int64_t whole;
  double real;
  bool is_whole;
  if (v.kind == JINJA_UNDEFINED) {
    return mk_jinja_fail_undefined(m, v);
  }
  bool known = v.kind == JINJA_STRING ? read_number(v, &real, &whole, &is_whole) : mk_jinja_number(v, &real);
  *out = known ? mk_jinja_float(real) : slots[0].kind == JINJA_MISSING ? mk_jinja_float(0) : slots[0];
  return MK_OK;
}

static mk_status absolute(JINJA_ARGUMENTS) {
  double real;
  if (v.kind == JINJA_UNDEFINED) {
    return mk_jinja_fail_undefined(m, v);
  }
  if (!mk_jinja_number(v, &real)) {
    return mk_jinja_fail(m->line, "bad operand type for abs(): '%s'", mk_jinja_type(v));
  }
  int64_t whole;
  bool is_whole = mk_jinja_whole(v, &whole);
  *out = is_whole ? mk_jinja_int(whole) : mk_jinja_float(fabs(real));
  return is_whole && whole < 0 ? mk_jinja_binary(m, JINJA_OPERATOR(0, '-'), mk_jinja_int(0), *out, out) : MK_OK;
}

/* a.b.0: attribute by attribute, whole numbers as elements. */
static mk_status path(jinja *m, jinja_value object, jinja_value name, jinja_value *out) {
  if (name.kind != JINJA_STRING) {
    return mk_jinja_item(m, object, name, out);
  }
  jinja_value parts;
  MK_TRY(mk_jinja_split(m, name, mk_jinja_literal("."), -1, &parts));
  for (size_t i = 0; i < parts.list->count; i++) {
    jinja_value part = parts.list->items[i];
    int64_t whole = 0;
    bool digits = part.length > 0 && part.length < 10;
    for (size_t k = 0; digits && k < part.length; k++) {
      digits = part.text[k] >= '0' && part.text[k] <= '9';
      whole = whole * 10 + (part.text[k] - '0');
    }
    MK_TRY(mk_jinja_item(m, object, digits ? mk_jinja_int(whole) : part, &object));
  }
  *out = object;
  return MK_OK;
}

static mk_status join(JINJA_ARGUMENTS) {
  const jinja_list *list;
  jinja_value separator = slots[0], mapped;
  MK_TRY(mk_jinja_iterate(m, v, &list));
  if (slots[1].kind > JINJA_NONE) {
    MK_TRY(mk_jinja_new_list(m, list->count, JINJA_IS_LIST, &mapped));
    for (size_t i = 0; i < list->count; i++) {
      MK_TRY(path(m, list->items[i], slots[1], &mapped.list->items[i]));
    }
    list = mapped.list;
  }
  if (separator.kind == JINJA_MISSING) {
    separator = mk_jinja_literal("");
  }
  MK_TRY(mk_jinja_str(m, separator, &separator));
  return mk_jinja_join(m, separator, list, true, out);
}

/* jinja2 does not even look whether what is false can be iterated. */
static mk_status iterate_if_true(jinja *m, jinja_value v, const jinja_list **list) {
  static const jinja_list empty;
  *list = &empty;
  return mk_jinja_truth(v) ? mk_jinja_iterate(m, v, list) : MK_OK;
}

/* Keeps the elements, or with `attribute` those whose attribute, pass the test named by the next argument; without one, those that
 * are true. */
static mk_status choose(jinja *m, jinja_value v, const jinja_arguments *all, bool attribute, bool wanted,
                        jinja_value *out) {
  const jinja_list *list;
  size_t skip = attribute ? 1 : 0, count = 0;
  const jinja_function *test = NULL;
  if (all->count < skip) {
    return mk_jinja_fail(m->line, "the name of the attribute is missing");
  }
  if (all->count > skip) {
    jinja_value name = all->positional[skip];
    test = mk_jinja_find_test(name);
    if (test == NULL) {
      MK_TRY(mk_jinja_str(m, name, &name));
      return mk_jinja_fail(m->line, "the test '%.*s' is not supported", JINJA_SHOWN(name));
    }
    skip++;
  }
  const jinja_arguments rest =
      test == NULL ? (jinja_arguments){0}
                   : (jinja_arguments){all->positional + skip, all->count - skip, all->named, all->named_count};
  MK_TRY(iterate_if_true(m, v, &list));
  MK_TRY(mk_jinja_new_list(m, list->count, JINJA_IS_GENERATOR, out));
  for (size_t i = 0; i < list->count; i++) {
    jinja_value item = list->items[i], passes;
    if (attribute) {
      MK_TRY(path(m, item, all->positional[0], &item));
    }
    passes = item;
    if (test != NULL) {
      MK_TRY(mk_jinja_apply(m, test, item, &rest, &passes));
    }
    if (mk_jinja_truth(passes) == wanted) {
      out->list->items[count++] = list->items[i];
    }
  }
  out->list->count = count;
  return MK_OK;
}
static mk_status choose_into(jinja *m, jinja_value v, const jinja_arguments *all, bool attribute, bool wanted,
                             jinja_value *out) {
  jinja_value result;
  MK_TRY(mk_jinja_enter(m));
  MK_TRY(choose(m, v, all, attribute, wanted, &result));
  m->depth--;
  *out = result;
  return MK_OK;
}
static mk_status select_items(JINJA_ARGUMENTS) { return choose_into(m, v, all, false, true, out); }
static mk_status reject_items(JINJA_ARGUMENTS) { return choose_into(m, v, all, false, false, out); }
static mk_status select_attribute(JINJA_ARGUMENTS) { return choose_into(m, v, all, true, true, out); }
static mk_status reject_attribute(JINJA_ARGUMENTS) { return choose_into(m, v, all, true, false, out); }

static mk_status map_attribute(jinja *m, const jinja_list *list, const jinja_arguments *all, jinja_value *out) {
  jinja_value name = {0}, otherwise = {0};
  for (size_t i = 0; i < all->named_count; i++) {
    if (mk_jinja_is(all->named[i].key, "attribute")) {
      name = all->named[i].value;
    } else if (mk_jinja_is(all->named[i].key, "default")) {
      otherwise = all->named[i].value;
    } else {
      return mk_jinja_fail(m->line, "map: unexpected argument '%.*s'", JINJA_SHOWN(all->named[i].key));
    }
  }
  if (name.kind == JINJA_MISSING) {
    return mk_jinja_fail(m->line, "map: a filter or an attribute is missing");
  }
  for (size_t i = 0; i < list->count; i++) {
    jinja_value *item = &out->list->items[i];
    MK_TRY(path(m, list->items[i], name, item));
    if (item->kind == JINJA_UNDEFINED && otherwise.kind != JINJA_MISSING) {
      *item = otherwise;
    }
  }
  return MK_OK;
}

static mk_status map_items(jinja *m, jinja_value v, const jinja_arguments *all, jinja_value *out) {
  const jinja_list *list;
  MK_TRY(iterate_if_true(m, v, &list));
  MK_TRY(mk_jinja_new_list(m, list->count, JINJA_IS_GENERATOR, out));
  if (all->count == 0) {
    return map_attribute(m, list, all, out);
  }
  const jinja_function *filter = mk_jinja_find_filter(all->positional[0]);
  if (filter == NULL) {
    jinja_value name;
    MK_TRY(mk_jinja_str(m, all->positional[0], &name));
    return mk_jinja_fail(m->line, "the filter '%.*s' is not supported", JINJA_SHOWN(name));
  }
  const jinja_arguments rest = {all->positional + 1, all->count - 1, all->named, all->named_count};
  for (size_t i = 0; i < list->count; i++) {
    MK_TRY(mk_jinja_apply(m, filter, list->items[i], &rest, &out->list->items[i]));
  }
  return MK_OK;
}

static mk_status map(JINJA_ARGUMENTS) {
  MK_TRY(mk_jinja_enter(m)); /* the filter may be map again */
  MK_TRY(map_items(m, v, all, out));
  m->depth--;
  return MK_OK;
}

static const jinja_function filters[] = {
    {"abs", "", 0, absolute},
    {"capitalize", "", 0, capitalize},
    {"count", "", 0, length},
    {"d", "default_value,boolean", 0, fallback},
    {"default", "default_value,boolean", 0, fallback},
    {"first", "", 0, first},
    {"float", "default", 0, to_float},
    {"int", "default", 0, to_int},
    {"items", "", 0, items},
    {"join", "d,attribute", 0, join},
    {"last", "", 0, last},
    {"length", "", 0, length},
    {"list", "", 0, to_list},
    {"lower", "", 0, lower},
    {"map", NULL, 0, map},
    {"reject", NULL, 0, reject_items},
    {"rejectattr", NULL, 0, reject_attribute},
    {"replace", "old,new,count", 2, replace},
    {"reverse", "", 0, reverse},
    {"safe", "", 0, string},
    {"select", NULL, 0, select_items},
    {"selectattr", NULL, 0, select_attribute},
    {"string", "", 0, string},
    {"title", "", 0, title},
    {"tojson", "ensure_ascii,indent,separators,sort_keys", 0, to_json},
    {"trim", "chars", 0, trim},
    {"upper", "", 0, upper},
};

const jinja_function *mk_jinja_find_filter(jinja_value name) {
  for (size_t i = 0; i < sizeof filters / sizeof filters[0]; i++) {
    if (mk_jinja_is(name, filters[i].name)) {
      return &filters[i];
    }
  }
  return NULL;
}
