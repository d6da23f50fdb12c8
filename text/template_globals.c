/* The functions that every template can call. */
#include <string.h>

#include "text/template_strings.h"

static mk_status range(JINJA_ARGUMENTS) {
  enum { MOST = 100000 }; /* as in jinja2's sandbox */
  int64_t numbers[3] = {0, 0, 1};
  size_t given = slots[1].kind == JINJA_MISSING ? 1 : slots[2].kind == JINJA_MISSING ? 2 : 3;
  for (size_t i = 0; i < given; i++) {
    MK_TRY(mk_jinja_take_whole(m, slots[i], 0, &numbers[given == 1 ? 1 : i]));
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
  memcpy(out->list->range, numbers, sizeof numbers);
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
  static const char letters[] = "aAbBCdDeFgGhHIjmMnpRSTtuUVwWyY%", padded[] = "deHIjmMSUVWy";
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

static mk_status cycler(JINJA_ARGUMENTS) {
  jinja_cycler *made;
  if (all->count == 0 || all->named_count > 0) {
    return mk_jinja_fail(m->line, "at least one item has to be provided");
  }
  MK_TRY(mk_jinja_alloc(&m->pool, 1, sizeof *made, &made));
  MK_TRY(mk_jinja_new_list(m, all->count, JINJA_IS_TUPLE, &made->items));
  memcpy(made->items.list->items, all->positional, all->count * sizeof *all->positional);
  *out = (jinja_value){.kind = JINJA_CYCLER, .cycler = made};
  return MK_OK;
}

static mk_status joiner(JINJA_ARGUMENTS) {
  jinja_cycler *made;
  MK_TRY(mk_jinja_alloc(&m->pool, 1, sizeof *made, &made));
  made->items = slots[0].kind == JINJA_MISSING ? mk_jinja_literal(", ") : slots[0];
  *out = (jinja_value){.kind = JINJA_JOINER, .cycler = made};
  return MK_OK;
}

static const jinja_function globals[] = {
    {"cycler", NULL, 0, cycler},
    {"dict", NULL, 0, dict},
    {"joiner", "sep", 0, joiner},
    {"namespace", NULL, 0, namespace},
    {"raise_exception", "message", 1, raise_exception},
    {"range", "/start,stop,step", 1, range},
    {"strftime_now", "format", 1, strftime_now},
    {0},
};

const jinja_function *mk_jinja_find_global(jinja_value name) { return mk_jinja_find(globals, name); }
