/* The methods of strings, dicts and loops, and the functions that every template can call. */
#include <string.h>

#include "models/template_strings.h"

static mk_status strip(JINJA_ARGUMENTS) { return mk_jinja_strip(m, v, slots[0], SIDE_BOTH, out); }
static mk_status lstrip(JINJA_ARGUMENTS) { return mk_jinja_strip(m, v, slots[0], SIDE_LEFT, out); }
static mk_status rstrip(JINJA_ARGUMENTS) { return mk_jinja_strip(m, v, slots[0], SIDE_RIGHT, out); }
static mk_status upper(JINJA_ARGUMENTS) { return mk_jinja_case(m, v, CASE_UPPER, out); }
static mk_status lower(JINJA_ARGUMENTS) { return mk_jinja_case(m, v, CASE_LOWER, out); }
static mk_status capitalize(JINJA_ARGUMENTS) { return mk_jinja_case(m, v, CASE_CAPITAL, out); }
static mk_status title(JINJA_ARGUMENTS) { return mk_jinja_case(m, v, CASE_METHOD, out); }

static mk_status whole(jinja *m, jinja_value v, int64_t otherwise, int64_t *out) {
  *out = otherwise;
  if (v.kind != JINJA_MISSING && !mk_jinja_whole(v, out)) {
    return mk_jinja_fail(m->line, "'%s' object cannot be interpreted as an integer", mk_jinja_type(v));
  }
  return MK_OK;
}

static mk_status split(JINJA_ARGUMENTS) {
  int64_t most;
  MK_TRY(whole(m, slots[1], -1, &most));
  return mk_jinja_split(m, v, slots[0], most, out);
}

static mk_status replace(JINJA_ARGUMENTS) {
  int64_t count;
  MK_TRY(whole(m, slots[2], -1, &count));
  return mk_jinja_replace(m, v, slots[0], slots[1], count, out);
}

static mk_status join(JINJA_ARGUMENTS) {
  const jinja_list *list;
  MK_TRY(mk_jinja_iterate(m, slots[0], &list));
  return mk_jinja_join(m, v, list, false, out);
}

/* A string, or a tuple of several of which any will do. */
static mk_status affix(jinja *m, jinja_value v, jinja_value wanted, bool end, jinja_value *out) {
  const jinja_list one = {.items = &wanted, .count = 1};
  bool tuple = wanted.kind == JINJA_LIST && wanted.list->sequence == JINJA_IS_TUPLE;
  const jinja_list *list = tuple ? wanted.list : &one;
  bool has = false;
  for (size_t i = 0; i < list->count && !has; i++) {
    const jinja_value part = list->items[i];
    if (part.kind != JINJA_STRING) {
      return mk_jinja_fail(m->line, "%s: a %s is given where a string must be", end ? "endswith" : "startswith",
                           mk_jinja_type(part));
    }
    has = part.length <= v.length &&
          (part.length == 0 || memcmp(v.text + (end ? v.length - part.length : 0), part.text, part.length) == 0);
    MK_TRY(mk_jinja_step(m, part.length));
  }
  *out = mk_jinja_bool(has);
  return MK_OK;
}
static mk_status startswith(JINJA_ARGUMENTS) { return affix(m, v, slots[0], false, out); }
static mk_status endswith(JINJA_ARGUMENTS) { return affix(m, v, slots[0], true, out); }

static mk_status find(JINJA_ARGUMENTS) {
  if (slots[0].kind != JINJA_STRING) {
    return mk_jinja_fail(m->line, "find: a %s is given where a string must be", mk_jinja_type(slots[0]));
  }
  MK_TRY(mk_jinja_step(m, v.length));
  const char *hit = slots[0].length == 0 ? v.text : mk_jinja_search(v.text, v.length, slots[0].text, slots[0].length);
  *out = mk_jinja_int(hit == NULL ? -1 : (int64_t)mk_jinja_characters(v.text, (size_t)(hit - v.text)));
  return MK_OK;
}

typedef enum part { PART_KEY, PART_VALUE, PART_BOTH } part;

static mk_status view(jinja *m, jinja_value v, part which, jinja_value *out) {
  MK_TRY(mk_jinja_new_list(m, v.dict->count, JINJA_IS_VIEW, out));
  for (size_t i = 0; i < v.dict->count; i++) {
    jinja_value *item = &out->list->items[i];
    const jinja_pair pair = v.dict->pairs[i];
    if (which != PART_BOTH) {
      *item = which == PART_KEY ? pair.key : pair.value;
      continue;
    }
    MK_TRY(mk_jinja_new_list(m, 2, JINJA_IS_TUPLE, item));
    item->list->items[0] = pair.key;
    item->list->items[1] = pair.value;
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

static mk_status cycle(JINJA_ARGUMENTS) {
  if (all->count == 0 || all->named_count > 0) {
    return mk_jinja_fail(m->line, "no items for cycling given");
  }
  *out = all->positional[v.loop->index % all->count];
  return MK_OK;
}

static const jinja_function of_string[] = {
    {"strip", "chars", 0, strip},
    {"lstrip", "chars", 0, lstrip},
    {"rstrip", "chars", 0, rstrip},
    {"upper", "", 0, upper},
    {"lower", "", 0, lower},
    {"capitalize", "", 0, capitalize},
    {"title", "", 0, title},
    {"split", "sep,maxsplit", 0, split},
    {"join", "iterable", 1, join},
    {"replace", "old,new,count", 2, replace},
    {"find", "sub", 1, find},
    {"startswith", "prefix", 1, startswith},
    {"endswith", "suffix", 1, endswith},
    {0},
};
static const jinja_function of_dict[] = {
    {"keys", "", 0, keys}, {"values", "", 0, values}, {"items", "", 0, items}, {"get", "key,default", 1, get}, {0}};
static const jinja_function of_loop[] = {{"cycle", NULL, 0, cycle}, {0}};
static const jinja_function of_list[] = {{0}};

/* What Python's types have besides: refused rather than taken for an element that is not there. */
static const char other_of_string[] =
    " casefold center count encode expandtabs format format_map index isalnum isalpha isascii isdecimal isdigit "
    "isidentifier islower isnumeric isprintable isspace istitle isupper ljust maketrans partition removeprefix "
    "removesuffix rfind rindex rjust rpartition rsplit splitlines swapcase translate zfill ";
static const char other_of_list[] = " append clear copy count extend index insert pop remove reverse sort ";
static const char other_of_dict[] = " clear copy fromkeys pop popitem setdefault update ";
static const char other_of_loop[] = " changed ";

mk_status mk_jinja_find_method(jinja *m, jinja_value object, jinja_value name, jinja_value *out) {
  const jinja_function *table;
  const char *others;
  *out = (jinja_value){.kind = JINJA_MISSING};
  switch (object.kind) {
    case JINJA_STRING:
      table = of_string, others = other_of_string;
      break;
    case JINJA_LIST:
      table = of_list, others = other_of_list;
      break;
    case JINJA_DICT:
      table = of_dict, others = other_of_dict;
      break;
    case JINJA_LOOP:
      table = of_loop, others = other_of_loop;
      break;
    default:
      return MK_OK;
  }
  for (; table->name != NULL; table++) {
    if (mk_jinja_is(name, table->name)) {
      jinja_method *method;
      MK_TRY(mk_jinja_alloc(&m->pool, 1, sizeof *method, &method));
      *method = (jinja_method){table, object};
      *out = (jinja_value){.kind = JINJA_METHOD, .method = method};
      return MK_OK;
    }
  }
  char word[24];
  if (name.length + 3 <= sizeof word && memchr(name.text, ' ', name.length) == NULL && name.length > 0) {
    word[0] = ' ';
    memcpy(word + 1, name.text, name.length);
    memcpy(word + 1 + name.length, " ", 2);
    if (strlen(word) == name.length + 2 && strstr(others, word) != NULL) {
      return mk_jinja_fail(m->line, "the method '%.*s' of a %s is not supported", JINJA_SHOWN(name),
                           mk_jinja_type(object));
    }
  }
  return MK_OK;
}

static mk_status range(JINJA_ARGUMENTS) {
  enum { MOST = 100000 }; /* as in jinja2's sandbox */
  int64_t numbers[3] = {0, 0, 1};
  size_t given = slots[1].kind == JINJA_MISSING ? 1 : slots[2].kind == JINJA_MISSING ? 2 : 3;
  for (size_t i = 0; i < given; i++) {
    MK_TRY(whole(m, slots[i], 0, &numbers[given == 1 ? 1 : i]));
  }
  __int128 distance = (__int128)numbers[1] - numbers[0], step = numbers[2];
  if (step == 0) {
    return mk_jinja_fail(m->line, "range() arg 3 must not be zero");
  }
  __int128 count = step > 0 ? (distance + step - 1) / step : (distance + step + 1) / step;
  count = (step > 0) == (distance > 0) && distance != 0 ? count : 0;
  if (count > MOST) {
    return mk_jinja_fail(m->line, "Range too big. The sandbox blocks ranges larger than MAX_RANGE (%d).", MOST);
  }
  MK_TRY(mk_jinja_new_list(m, (size_t)count, JINJA_IS_RANGE, out));
  for (size_t i = 0; i < (size_t)count; i++) {
    out->list->items[i] = mk_jinja_int(numbers[0] + (int64_t)i * numbers[2]);
  }
  return MK_OK;
}

/* A dict from a dict or a list of pairs, and from named arguments. */
static mk_status fill(jinja *m, const jinja_arguments *all, jinja_value *out) {
  if (all->count > 1) {
    return mk_jinja_fail(m->line, "dict expected at most 1 argument, got %zu", all->count);
  }
  for (size_t k = 0; k < all->count; k++) {
    const jinja_value from = all->positional[k];
    const jinja_list *list, *pair;
    if (from.kind == JINJA_UNDEFINED) {
      return mk_jinja_fail_undefined(m, from);
    }
    if (from.kind == JINJA_DICT) {
      for (size_t i = 0; i < from.dict->count; i++) {
        MK_TRY(mk_jinja_put(m, out->dict, from.dict->pairs[i].key, from.dict->pairs[i].value));
      }
      continue;
    }
    MK_TRY(mk_jinja_iterate(m, from, &list));
    for (size_t i = 0; i < list->count; i++) {
      MK_TRY(mk_jinja_iterate(m, list->items[i], &pair));
      if (pair->count != 2) {
        return mk_jinja_fail(m->line, "dictionary update sequence element #%zu has length %zu; 2 is required", i,
                             pair->count);
      }
      MK_TRY(mk_jinja_put(m, out->dict, pair->items[0], pair->items[1]));
    }
  }
  for (size_t i = 0; i < all->named_count; i++) {
    MK_TRY(mk_jinja_put(m, out->dict, all->named[i].key, all->named[i].value));
  }
  return MK_OK;
}

static mk_status dict(JINJA_ARGUMENTS) {
  MK_TRY(mk_jinja_new_dict(m, JINJA_DICT, out));
  return fill(m, all, out);
}

static mk_status namespace(JINJA_ARGUMENTS) {
  MK_TRY(mk_jinja_new_dict(m, JINJA_NAMESPACE, out));
  MK_TRY(fill(m, all, out));
  for (size_t i = 0; i < out->dict->count; i++) {
    const jinja_value key = out->dict->pairs[i].key;
    if (key.kind == JINJA_STRING && key.length > 0 && key.text[0] == '_') {
      return mk_jinja_fail(m->line, "an attribute of a namespace may not start with an underscore: '%.*s'",
                           JINJA_SHOWN(key));
    }
  }
  return MK_OK;
}

static mk_status raise_exception(JINJA_ARGUMENTS) {
  jinja_value text;
  MK_TRY(mk_jinja_str(m, slots[0], &text));
  return mk_error(MK_ERR_USAGE, "chat template, line %u: %.*s", m->line, text.length < 1000 ? (int)text.length : 1000,
                  text.text);
}

static mk_status strftime_now(JINJA_ARGUMENTS) {
  static const char letters[] = "aAbBdeFHIjmMpSTuwyY%", padded[] = "deHIjmMSy";
  char format[128], shown[512];
  const jinja_value given = slots[0];
  if (given.kind != JINJA_STRING || given.length + 2 > sizeof format || memchr(given.text, 0, given.length) != NULL) {
    return mk_jinja_fail(m->line, "strftime_now: the format is a string of at most %zu bytes", sizeof format - 2);
  }
  for (size_t i = 0; i < given.length; i++) {
    if (given.text[i] != '%') {
      continue;
    }
    bool bare = i + 2 < given.length && given.text[i + 1] == '-';
    i += bare ? 2 : 1;
    if (i >= given.length || strchr(bare ? padded : letters, given.text[i]) == NULL) {
      return mk_jinja_fail(m->line, "strftime_now: '%.*s' holds a directive that is not supported (of %%%s)",
                           JINJA_SHOWN(given), letters);
    }
  }
  memcpy(format, given.text, given.length);
  memcpy(format + given.length, "x", 2); /* so that nothing to show differs from no room */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  size_t length = strftime(shown, sizeof shown, format, m->now);
#pragma GCC diagnostic pop
  if (length == 0) {
    return mk_jinja_fail(m->line, "strftime_now: the result exceeds %zu bytes", sizeof shown);
  }
  return mk_jinja_copy(m, shown, length - 1, out);
}

static const jinja_function globals[] = {
    {"dict", NULL, 0, dict},
    {"namespace", NULL, 0, namespace},
    {"raise_exception", "message", 1, raise_exception},
    {"range", "start,stop,step", 1, range},
    {"strftime_now", "format", 1, strftime_now},
};

const jinja_function *mk_jinja_find_global(jinja_value name) {
  for (size_t i = 0; i < sizeof globals / sizeof globals[0]; i++) {
    if (mk_jinja_is(name, globals[i].name)) {
      return &globals[i];
    }
  }
  return NULL;
}
