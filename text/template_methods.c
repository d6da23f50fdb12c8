/* The methods and other attributes of values: of dicts, lists, loops and what cycler and joiner give; those of strings
 * are in template_methods_text.c. */
#include <stdio.h>
#include <string.h>

#include "text/template_strings.h"

typedef enum part { PART_KEY, PART_VALUE, PART_BOTH } part;

static mk_status view(jinja *m, jinja_value v, part which, jinja_value *out) {
  MK_TRY(mk_jinja_new_list(m, v.dict->count,
                           which == PART_KEY     ? JINJA_IS_KEYS
                           : which == PART_VALUE ? JINJA_IS_VALUES
                                                 : JINJA_IS_ITEMS,
                           out));
  for (size_t i = 0; i < v.dict->count; i++) {
    jinja_value *item = &out->list->items[i];
    const jinja_pair pair = v.dict->pairs[i];
    if (which != PART_BOTH) {
      *item = which == PART_KEY ? pair.key : pair.value;
      continue;
    }
    MK_TRY(mk_jinja_new_pair(m, pair.key, pair.value, item));
  }
  return MK_OK;
}
static mk_status keys(JINJA_ARGUMENTS) { return view(m, v, PART_KEY, out); }
static mk_status values(JINJA_ARGUMENTS) { return view(m, v, PART_VALUE, out); }
static mk_status items(JINJA_ARGUMENTS) { return view(m, v, PART_BOTH, out); }

static mk_status get(JINJA_ARGUMENTS) {
  jinja_value found;
  MK_TRY(mk_jinja_check_key(m, slots[0]));
  MK_TRY(mk_jinja_get(m, v.dict, slots[0], &found));
  *out = found.kind != JINJA_MISSING ? found : slots[1].kind != JINJA_MISSING ? slots[1] : mk_jinja_none();
  return MK_OK;
}

static mk_status copy_dict(JINJA_ARGUMENTS) {
  MK_TRY(mk_jinja_new_dict(m, JINJA_DICT, out));
  for (size_t i = 0; i < v.dict->count; i++) {
    MK_TRY(mk_jinja_put(m, out->dict, v.dict->pairs[i].key, v.dict->pairs[i].value));
  }
  return MK_OK;
}

static mk_status from_keys(JINJA_ARGUMENTS) {
  const jinja_list *list;
  MK_TRY(mk_jinja_iterate(m, slots[0], &list));
  MK_TRY(mk_jinja_new_dict(m, JINJA_DICT, out));
  for (size_t i = 0; i < list->count; i++) {
    MK_TRY(mk_jinja_put(m, out->dict, list->items[i], slots[1].kind == JINJA_MISSING ? mk_jinja_none() : slots[1]));
  }
  return MK_OK;
}

static mk_status copy_list(JINJA_ARGUMENTS) { return mk_jinja_to_list(m, v, out); }

static mk_status count(JINJA_ARGUMENTS) {
  int64_t found = 0;
  for (size_t i = 0; i < v.list->count; i++) {
    bool equal;
    MK_TRY(mk_jinja_equal(m, v.list->items[i], slots[0], &equal));
    found += equal;
  }
  *out = mk_jinja_int(found);
  return MK_OK;
}

static mk_status index_of(JINJA_ARGUMENTS) {
  int64_t length = (int64_t)v.list->count, start, end;
  MK_TRY(mk_jinja_take_whole(m, slots[1], 0, &start));
  MK_TRY(mk_jinja_take_whole(m, slots[2], length, &end));
  start = start < -length ? 0 : start < 0 ? start + length : start;
  end = end < -length ? 0 : end < 0 ? end + length : end > length ? length : end;
  for (int64_t i = start; i < end; i++) {
    bool equal;
    MK_TRY(mk_jinja_equal(m, v.list->items[i], slots[0], &equal));
    if (equal) {
      *out = mk_jinja_int(i);
      return MK_OK;
    }
  }
  return mk_jinja_fail(m->line, "%s.index(x): x not in %s", mk_jinja_type(v), mk_jinja_type(v));
}

static mk_status cycle(JINJA_ARGUMENTS) {
  if (all->count == 0 || all->named_count > 0) {
    return mk_jinja_fail(m->line, "no items for cycling given");
  }
  *out = all->positional[(size_t)v.loop->index % all->count];
  return MK_OK;
}

static mk_status changed(JINJA_ARGUMENTS) {
  jinja_value values;
  bool equal = false;
  if (all->named_count > 0) {
    return mk_jinja_fail(m->line, "changed: it takes no arguments by name");
  }
  MK_TRY(mk_jinja_new_list(m, all->count, JINJA_IS_TUPLE, &values));
  if (all->count > 0) {
    memcpy(values.list->items, all->positional, all->count * sizeof *all->positional);
  }
  if (v.loop->last_changed.kind != JINJA_MISSING) {
    MK_TRY(mk_jinja_equal(m, v.loop->last_changed, values, &equal));
  }
  v.loop->last_changed = values;
  *out = mk_jinja_bool(!equal);
  return MK_OK;
}

static mk_status next_of_cycler(JINJA_ARGUMENTS) {
  *out = v.cycler->items.list->items[v.cycler->at];
  v.cycler->at = (v.cycler->at + 1) % v.cycler->items.list->count;
  return MK_OK;
}

static mk_status reset(JINJA_ARGUMENTS) {
  v.cycler->at = 0;
  *out = mk_jinja_none();
  return MK_OK;
}

static const jinja_function of_dict[] = {
    {"keys", "/", 0, keys},
    {"values", "/", 0, values},
    {"items", "/", 0, items},
    {"get", "/key,default", 1, get},
    {"copy", "/", 0, copy_dict},
    {"fromkeys", "/iterable,value", 1, from_keys},
    {0},
};
static const jinja_function of_dict_function[] = {{"fromkeys", "/iterable,value", 1, from_keys}, {0}};
static const jinja_function of_list[] = {
    {"count", "/value", 1, count}, {"index", "/value,start,stop", 1, index_of}, {"copy", "/", 0, copy_list}, {0}};
static const jinja_function of_tuple[] = {
    {"count", "/value", 1, count}, {"index", "/value,start,stop", 1, index_of}, {0}};
static const jinja_function of_loop[] = {{"cycle", NULL, 0, cycle}, {"changed", NULL, 0, changed}, {0}};
static const jinja_function of_cycler[] = {{"next", "/", 0, next_of_cycler}, {"reset", "/", 0, reset}, {0}};
static const jinja_function of_nothing[] = {{0}};

/* Attributes that Python's types have besides: those `denied` by the sandbox, since they change a value or reveal
 * what templates must not see, and those that are not supported, which are refused rather than taken for elements that
 * are not there. */
typedef struct attributes {
  const jinja_function *table;
  const char *denied, *refused;
} attributes;

static const attributes kNumber = {of_nothing, "",
                                   " as_integer_ratio bit_count bit_length conjugate denominator from_bytes fromhex "
                                   "hex imag is_integer numerator real "
                                   "to_bytes "};

static attributes attributes_of(jinja_value v) {
  static const attributes text = {mk_jinja_string_methods, "", " encode expandtabs isidentifier maketrans translate "};
  static const attributes sequences[] = {
      {of_list, " append clear extend insert pop remove reverse sort ", ""},
      {of_tuple, "", ""},
      {of_tuple, "", " start stop step "},
      {of_nothing, "", " isdisjoint mapping "},
      {of_nothing, "", " mapping "},
      {of_nothing, "", " isdisjoint mapping "},
  };
  switch (v.kind) {
    case JINJA_BOOL:
    case JINJA_INT:
    case JINJA_FLOAT:
      return kNumber;
    case JINJA_STRING:
      return text;
    case JINJA_LIST:
      return sequences[v.list->sequence];
    case JINJA_DICT:
      return (attributes){of_dict, " clear pop popitem setdefault update ", ""};
    case JINJA_LOOP:
      return (attributes){of_loop, "", ""};
    case JINJA_CYCLER:
      return (attributes){of_cycler, "", ""};
    case JINJA_GENERATOR:
      return (attributes){of_nothing, " gi_frame gi_code ", " close gi_running gi_suspended gi_yieldfrom send throw "};
    case JINJA_FUNCTION:
      return (attributes){mk_jinja_is(mk_jinja_literal(v.function->name), "dict") ? of_dict_function : of_nothing, "",
                          ""};
    default:
      return (attributes){of_nothing, "", ""};
  }
}

/* What a macro tells of itself. */
static mk_status macro_attribute(jinja *m, const jinja_macro *macro, jinja_value name, jinja_value *out) {
  const jinja_scoping *scoping = macro->node->scoping;
  if (mk_jinja_is(name, "name")) {
    *out = macro->node->kind == NODE_MACRO ? macro->node->value : mk_jinja_none();
  } else if (mk_jinja_is(name, "arguments")) {
    size_t i = 0;
    MK_TRY(mk_jinja_new_list(m, scoping->parameters, JINJA_IS_TUPLE, out));
    for (const jinja_node *p = macro->node->kids[0]; p != NULL; p = p->next) {
      out->list->items[i++] = p->value;
    }
  } else if (mk_jinja_is(name, "caller")) {
    *out = mk_jinja_bool(scoping->accesses_caller);
  } else if (mk_jinja_is(name, "catch_kwargs") || mk_jinja_is(name, "catch_varargs")) {
    *out = mk_jinja_bool((mk_jinja_is(name, "catch_kwargs") ? scoping->kwargs : scoping->varargs) != NO_SLOT);
  } else if (mk_jinja_is(name, "explicit_caller")) {
    *out = mk_jinja_bool(scoping->has_caller);
  }
  return MK_OK;
}

/* What is there without being called. */
static mk_status plain_attribute(jinja *m, jinja_value v, jinja_value name, jinja_value *out) {
  if (v.kind == JINJA_MACRO) {
    return macro_attribute(m, v.macro, name, out);
  }
  if (v.kind == JINJA_LOOP) {
    return mk_jinja_loop_attribute(m, v, name, out);
  }
  if (v.kind == JINJA_LIST && v.list->group && (mk_jinja_is(name, "grouper") || mk_jinja_is(name, "list"))) {
    *out = v.list->items[mk_jinja_is(name, "list")];
  } else if (v.kind == JINJA_CYCLER &&
             mk_jinja_is(name, "items")) { /* NOLINT(bugprone-branch-clone): as sep of a joiner */
    *out = v.cycler->items;
  } else if (v.kind == JINJA_CYCLER && mk_jinja_is(name, "pos")) {
    *out = mk_jinja_int((int64_t)v.cycler->at);
  } else if (v.kind == JINJA_CYCLER && mk_jinja_is(name, "current")) {
    *out = v.cycler->items.list->items[v.cycler->at];
  } else if (v.kind == JINJA_JOINER && mk_jinja_is(name, "sep")) {
    *out = v.cycler->items;
  } else if (v.kind == JINJA_JOINER && mk_jinja_is(name, "used")) {
    *out = mk_jinja_bool(v.cycler->at > 0);
  }
  return MK_OK;
}

static mk_status deny(jinja *m, jinja_value object, jinja_value name, jinja_value *out) {
  char *hint;
  size_t room = name.length + 100u;
  MK_TRY(mk_jinja_alloc(&m->pool, room, 1, &hint));
  snprintf(hint, room, "access to attribute '%.*s' of '%s' object is unsafe.", (int)name.length, name.text,
           mk_jinja_type(object));
  return mk_jinja_new_undefined(m, hint, out);
}

mk_status mk_jinja_find_method(jinja *m, jinja_value object, jinja_value name, jinja_value *out) {
  const attributes has = attributes_of(object);
  const jinja_function *found = mk_jinja_find(has.table, name);
  *out = (jinja_value){.kind = JINJA_MISSING};
  if (found != NULL) {
    jinja_method *method;
    MK_TRY(mk_jinja_alloc(&m->pool, 1, sizeof *method, &method));
    *method = (jinja_method){found, object};
    *out = (jinja_value){.kind = JINJA_METHOD, .method = method};
    return MK_OK;
  }
  if (mk_jinja_listed(has.denied, name)) {
    return deny(m, object, name, out);
  }
  if (mk_jinja_listed(has.refused, name)) {
    return mk_jinja_fail(m->line, "the method '%.*s' of a %s is not supported", JINJA_SHOWN(name),
                         mk_jinja_type(object));
  }
  return plain_attribute(m, object, name, out);
}
