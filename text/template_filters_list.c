/* The filters that go through a whole list, dict or other sequence. */
#include <string.h>

#include "text/template_strings.h"

static mk_status first(JINJA_ARGUMENTS) {
  jinja_iterator at;
  MK_TRY(mk_jinja_start(m, v, &at));
  MK_TRY(mk_jinja_next(m, &at, out));
  return out->kind != JINJA_MISSING ? MK_OK : mk_jinja_new_undefined(m, "No first item, sequence was empty.", out);
}

static mk_status last(JINJA_ARGUMENTS) {
  const jinja_list *list;
  if (v.kind == JINJA_GENERATOR) {
    return mk_jinja_fail(m->line, "'generator' object is not reversible");
  }
  MK_TRY(mk_jinja_iterate(m, v, &list));
  if (list->count == 0) {
    return mk_jinja_new_undefined(m, "No last item, sequence was empty.", out);
  }
  *out = list->items[list->count - 1];
  return MK_OK;
}

static mk_status to_list(JINJA_ARGUMENTS) { return mk_jinja_to_list(m, v, out); }

static mk_status next_of_list(jinja *m, jinja_generator *generator, jinja_value *out) {
  return mk_jinja_next(m, &generator->source, out);
}

/* A value that can be gone through from its end gives a generator, any other value gives a list. */
static mk_status reversed(JINJA_ARGUMENTS) {
  jinja_value list;
  if (v.kind == JINJA_STRING) {
    const jinja_value range[3] = {{0}, {0}, mk_jinja_int(-1)};
    return mk_jinja_slice(m, v, range, out);
  }
  MK_TRY(mk_jinja_to_list(m, v, &list));
  for (size_t i = 0, k = list.list->count; k > i + 1; i++) {
    jinja_value item = list.list->items[--k];
    list.list->items[k] = list.list->items[i];
    list.list->items[i] = item;
  }
  *out = list;
  return v.kind == JINJA_GENERATOR ? MK_OK : mk_jinja_new_generator(m, next_of_list, list, NULL, out);
}

/* Text in lower case, unless case matters. */
static mk_status without_case(jinja *m, jinja_value v, bool case_matters, jinja_value *out) {
  *out = v;
  return case_matters || v.kind != JINJA_STRING ? MK_OK : mk_jinja_case(m, v, CASE_LOWER, out);
}

static mk_status key_of(jinja *m, jinja_value item, jinja_value attribute, bool case_matters, jinja_value *out) {
  MK_TRY(mk_jinja_path(m, item, attribute, (jinja_value){0}, out));
  return without_case(m, *out, case_matters, out);
}

/* `reverse`: sorted() takes whole numbers and what is true or false, and nothing else. */
static mk_status take_reverse(jinja *m, jinja_value v, bool *out) {
  int64_t whole;
  MK_TRY(mk_jinja_take_whole(m, v, 0, &whole));
  *out = whole != 0;
  return MK_OK;
}

/* Sorts by the keys, which `<` compares; elements with equal keys keep their order, in reverse order too. */
static mk_status merge_sort(jinja *m, jinja_pair *pairs, jinja_pair *room, size_t count, bool reverse) {
  for (size_t width = 1; width < count; width *= 2) {
    for (size_t start = 0; start < count; start += 2 * width) {
      size_t middle = start + width < count ? start + width : count;
      size_t end = middle + width < count ? middle + width : count;
      for (size_t a = start, b = middle, to = start; to < end; to++) {
        int order = -1;
        if (a < middle && b < end) {
          MK_TRY(mk_jinja_order(m, pairs[b].key, pairs[a].key, JINJA_OPERATOR(0, '<'), &order));
          order = reverse ? -order : order;
        }
        bool second = a == middle || (b < end && order < 0);
        room[to] = second ? pairs[b++] : pairs[a++];
      }
    }
    memcpy(pairs, room, count * sizeof *pairs);
  }
  return MK_OK;
}

/* The elements, with keys that are there already. */
static mk_status sort_pairs(jinja *m, jinja_pair *pairs, size_t count, bool reverse, jinja_value *out) {
  jinja_pair *room;
  MK_TRY(mk_jinja_alloc(&m->pool, count, sizeof *room, &room));
  MK_TRY(merge_sort(m, pairs, room, count, reverse));
  MK_TRY(mk_jinja_new_list(m, count, JINJA_IS_LIST, out));
  for (size_t i = 0; i < count; i++) {
    out->list->items[i] = pairs[i].value;
  }
  return MK_OK;
}

/* Several attributes, with commas between them, make a list of keys. */
static mk_status keys_of(jinja *m, jinja_value item, jinja_value attributes, bool case_matters, jinja_value *out) {
  jinja_value names;
  if (attributes.kind == JINJA_STRING) {
    MK_TRY(mk_jinja_split(m, attributes, mk_jinja_literal(","), -1, false, &names));
  } else {
    MK_TRY(mk_jinja_new_list(m, 1, JINJA_IS_LIST, &names));
    names.list->items[0] = attributes;
  }
  MK_TRY(mk_jinja_new_list(m, names.list->count, JINJA_IS_LIST, out));
  for (size_t i = 0; i < names.list->count; i++) {
    MK_TRY(key_of(m, item, names.list->items[i], case_matters, &out->list->items[i]));
  }
  return MK_OK;
}

static mk_status sort(JINJA_ARGUMENTS) {
  const jinja_list *list;
  jinja_pair *pairs;
  bool reverse;
  MK_TRY(take_reverse(m, slots[0], &reverse));
  MK_TRY(mk_jinja_iterate(m, v, &list));
  MK_TRY(mk_jinja_alloc(&m->pool, list->count, sizeof *pairs, &pairs));
  for (size_t i = 0; i < list->count; i++) {
    pairs[i].value = list->items[i];
    MK_TRY(keys_of(m, list->items[i], slots[2], mk_jinja_truth(slots[1]), &pairs[i].key));
  }
  return sort_pairs(m, pairs, list->count, reverse, out);
}

static mk_status dict_sort(JINJA_ARGUMENTS) {
  jinja_pair *pairs;
  jinja_value by = slots[1].kind == JINJA_MISSING ? mk_jinja_literal("key") : slots[1];
  bool by_key = mk_jinja_is(by, "key"), reverse;
  MK_TRY(take_reverse(m, slots[2], &reverse));
  if (v.kind == JINJA_UNDEFINED) {
    return mk_jinja_fail_undefined(m, v);
  }
  if (v.kind != JINJA_DICT) {
    return mk_jinja_fail(m->line, "dictsort: a %s is given where a dict must be", mk_jinja_type(v));
  }
  if (!by_key && !mk_jinja_is(by, "value")) {
    return mk_jinja_fail(m->line, "You can only sort by either \"key\" or \"value\"");
  }
  MK_TRY(mk_jinja_alloc(&m->pool, v.dict->count, sizeof *pairs, &pairs));
  for (size_t i = 0; i < v.dict->count; i++) {
    const jinja_pair from = v.dict->pairs[i];
    MK_TRY(mk_jinja_new_pair(m, from.key, from.value, &pairs[i].value));
    MK_TRY(without_case(m, by_key ? from.key : from.value, mk_jinja_truth(slots[0]), &pairs[i].key));
  }
  return sort_pairs(m, pairs, v.dict->count, reverse, out);
}

static mk_status extreme(jinja *m, jinja_value v, const jinja_value *slots, bool most, jinja_value *out) {
  const jinja_list *list;
  jinja_value best, key;
  MK_TRY(mk_jinja_iterate(m, v, &list));
  if (list->count == 0) {
    return mk_jinja_new_undefined(m, "No aggregated item, sequence was empty.", out);
  }
  for (size_t i = 0; i < list->count; i++) {
    int order = 1;
    MK_TRY(key_of(m, list->items[i], slots[1], mk_jinja_truth(slots[0]), &key));
    if (i > 0) {
      MK_TRY(mk_jinja_order(m, key, best, JINJA_OPERATOR(0, most ? '>' : '<'), &order));
      order = most ? order : -order;
    }
    if (order > 0) {
      best = key;
      *out = list->items[i];
    }
  }
  return MK_OK;
}
static mk_status least(JINJA_ARGUMENTS) { return extreme(m, v, slots, false, out); }
static mk_status most(JINJA_ARGUMENTS) { return extreme(m, v, slots, true, out); }

static mk_status sum(JINJA_ARGUMENTS) {
  const jinja_list *list;
  jinja_value total = slots[1].kind == JINJA_MISSING ? mk_jinja_int(0) : slots[1], item;
  MK_TRY(mk_jinja_iterate(m, v, &list));
  if (total.kind == JINJA_STRING) {
    return mk_jinja_fail(m->line, "sum() can't sum strings [use ''.join(seq) instead]");
  }
  for (size_t i = 0; i < list->count; i++) {
    MK_TRY(mk_jinja_path(m, list->items[i], slots[0], (jinja_value){0}, &item));
    MK_TRY(mk_jinja_binary(m, JINJA_OPERATOR(0, '+'), total, item, &total));
  }
  *out = total;
  return MK_OK;
}

/* One group: a tuple of what its elements have in common and of them. */
static mk_status new_group(jinja *m, jinja_value key, const jinja_pair *pairs, size_t count, jinja_value *out) {
  jinja_value list;
  MK_TRY(mk_jinja_new_list(m, count, JINJA_IS_LIST, &list));
  for (size_t i = 0; i < count; i++) {
    list.list->items[i] = pairs[i].value;
  }
  MK_TRY(mk_jinja_new_pair(m, key, list, out));
  out->list->group = true;
  return MK_OK;
}

static mk_status group_by(JINJA_ARGUMENTS) {
  const jinja_list *list;
  jinja_pair *pairs, *room;
  bool case_matters = mk_jinja_truth(slots[2]), equal;
  MK_TRY(mk_jinja_iterate(m, v, &list));
  MK_TRY(mk_jinja_alloc(&m->pool, list->count, sizeof *pairs, &pairs));
  MK_TRY(mk_jinja_alloc(&m->pool, list->count, sizeof *room, &room));
  for (size_t i = 0; i < list->count; i++) {
    pairs[i].value = list->items[i];
    MK_TRY(mk_jinja_path(m, list->items[i], slots[0], slots[1], &pairs[i].key));
    MK_TRY(without_case(m, pairs[i].key, case_matters, &pairs[i].key));
  }
  MK_TRY(merge_sort(m, pairs, room, list->count, false));
  MK_TRY(mk_jinja_new_list(m, list->count, JINJA_IS_LIST, out));
  size_t groups = 0;
  for (size_t start = 0, end; start < list->count; start = end) {
    for (end = start + 1; end < list->count; end++) {
      MK_TRY(mk_jinja_equal(m, pairs[start].key, pairs[end].key, &equal));
      if (!equal) {
        break;
      }
    }
    jinja_value key;
    MK_TRY(mk_jinja_path(m, pairs[start].value, slots[0], slots[1], &key)); /* as the first has it */
    MK_TRY(new_group(m, key, &pairs[start], end - start, &out->list->items[groups++]));
  }
  out->list->count = groups;
  return MK_OK;
}

const jinja_function mk_jinja_list_filters[] = {
    {"dictsort", "case_sensitive,by,reverse", 0, dict_sort},
    {"first", "", 0, first},
    {"groupby", "attribute,default,case_sensitive", 1, group_by},
    {"last", "", 0, last},
    {"list", "", 0, to_list},
    {"max", "case_sensitive,attribute", 0, most},
    {"min", "case_sensitive,attribute", 0, least},
    {"reverse", "", 0, reversed},
    {"sort", "reverse,case_sensitive,attribute", 0, sort},
    {"sum", "attribute,start", 0, sum},
    {0},
};
