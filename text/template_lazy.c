/* The filters that give a generator: map, select and their like make an element when it is asked for, so that what
 * nobody asks for can neither fail nor take time. */
#include <math.h>
#include <string.h>

#include "text/template_strings.h"

/* A test or a filter for every element. */
typedef struct lazy {
  const jinja_function *function;
  jinja_arguments rest;
  jinja_arguments given;
  jinja_value attribute, otherwise;
  bool wanted, of_attribute, prepared;
} lazy;

static mk_status new_lazy(jinja *m, jinja_next next, jinja_value v, const jinja_arguments *all, lazy **state,
                          jinja_value *out) {
  MK_TRY(mk_jinja_alloc(&m->pool, 1, sizeof **state, state));
  (*state)->given = *all;
  MK_TRY(mk_jinja_new_generator(m, next, v, *state, out));
  out->generator->skips_false = true;
  return MK_OK;
}

/* The test named by an argument, if any; without one, what is true passes. */
static mk_status prepare_test(jinja *m, lazy *l) {
  size_t skip = l->of_attribute ? 1 : 0;
  if (l->given.count < skip) {
    return mk_jinja_fail(m->line, "Missing parameter for attribute name");
  }
  l->attribute = l->of_attribute ? l->given.positional[0] : (jinja_value){0};
  if (l->given.count > skip) {
    jinja_value name = l->given.positional[skip++];
    l->function = mk_jinja_find_test(name);
    if (l->function == NULL) {
      MK_TRY(mk_jinja_str(m, name, &name));
      return mk_jinja_fail(m->line, "No test named '%.*s'", JINJA_SHOWN(name));
    }
  }
  l->rest = l->given;
  if (skip > 0) {
    l->rest.positional += skip;
    l->rest.count -= skip;
  }
  l->prepared = true;
  return MK_OK;
}

static mk_status next_chosen(jinja *m, jinja_generator *generator, jinja_value *out) {
  lazy *l = generator->state;
  if (!l->prepared) {
    MK_TRY(prepare_test(m, l));
  }
  for (;;) {
    jinja_value item, passes;
    MK_TRY(mk_jinja_next(m, &generator->source, out));
    if (out->kind == JINJA_MISSING) {
      return MK_OK;
    }
    MK_TRY(mk_jinja_path(m, *out, l->attribute, (jinja_value){0}, &item));
    passes = item;
    if (l->function != NULL) {
      MK_TRY(mk_jinja_apply(m, l->function, item, &l->rest, &passes));
    }
    if (mk_jinja_truth(passes) == l->wanted) {
      return MK_OK;
    }
  }
}

static mk_status choose(jinja *m, jinja_value v, const jinja_arguments *all, bool attribute, bool wanted,
                        jinja_value *out) {
  lazy *l;
  MK_TRY(new_lazy(m, next_chosen, v, all, &l, out));
  l->of_attribute = attribute;
  l->wanted = wanted;
  return MK_OK;
}
static mk_status select_items(JINJA_ARGUMENTS) { return choose(m, v, all, false, true, out); }
static mk_status reject_items(JINJA_ARGUMENTS) { return choose(m, v, all, false, false, out); }
static mk_status select_attribute(JINJA_ARGUMENTS) { return choose(m, v, all, true, true, out); }
static mk_status reject_attribute(JINJA_ARGUMENTS) { return choose(m, v, all, true, false, out); }

/* map(attribute=..., default=...), or map('filter', arguments...). */
static mk_status prepare_map(jinja *m, lazy *l) {
  l->prepared = true;
  if (l->given.count > 0) {
    jinja_value name = l->given.positional[0];
    l->function = mk_jinja_find_filter(name);
    if (l->function == NULL) {
      const char *why = mk_jinja_listed(mk_jinja_missing_filters, name) ? "is not supported" : "does not exist";
      MK_TRY(mk_jinja_str(m, name, &name));
      return mk_jinja_fail(m->line, "the filter '%.*s' %s", JINJA_SHOWN(name), why);
    }
    l->rest = (jinja_arguments){l->given.positional + 1, l->given.count - 1, l->given.named, l->given.named_count};
    return MK_OK;
  }
  for (size_t i = 0; i < l->given.named_count; i++) {
    bool attribute = mk_jinja_is(l->given.named[i].key, "attribute");
    if (!attribute && !mk_jinja_is(l->given.named[i].key, "default")) {
      return mk_jinja_fail(m->line, "Unexpected keyword argument '%.*s'", JINJA_SHOWN(l->given.named[i].key));
    }
    *(attribute ? &l->attribute : &l->otherwise) = l->given.named[i].value;
  }
  return l->attribute.kind != JINJA_MISSING ? MK_OK : mk_jinja_fail(m->line, "map requires a filter argument");
}

static mk_status next_mapped(jinja *m, jinja_generator *generator, jinja_value *out) {
  lazy *l = generator->state;
  if (!l->prepared) {
    MK_TRY(prepare_map(m, l));
  }
  MK_TRY(mk_jinja_next(m, &generator->source, out));
  if (out->kind == JINJA_MISSING) {
    return MK_OK;
  }
  return l->function != NULL ? mk_jinja_apply(m, l->function, *out, &l->rest, out)
                             : mk_jinja_path(m, *out, l->attribute, l->otherwise, out);
}

static mk_status map(JINJA_ARGUMENTS) {
  lazy *l;
  return new_lazy(m, next_mapped, v, all, &l, out);
}

static mk_status next_pair(jinja *m, jinja_generator *generator, jinja_value *out) {
  const jinja_value dict = generator->source.source;
  jinja_value key, value;
  if (dict.kind != JINJA_DICT && dict.kind != JINJA_UNDEFINED) {
    return mk_jinja_fail(m->line, "Can only get item pairs from a mapping.");
  }
  MK_TRY(mk_jinja_next(m, &generator->source, &key));
  if (key.kind == JINJA_MISSING) {
    *out = key;
    return MK_OK;
  }
  value = dict.dict->pairs[generator->source.at - 1].value;
  return mk_jinja_new_pair(m, key, value, out);
}

static mk_status items(JINJA_ARGUMENTS) { return mk_jinja_new_generator(m, next_pair, v, NULL, out); }

typedef struct unique_state {
  jinja_value attribute;
  bool case_matters;
  jinja_value seen; /* a dict whose keys were there */
} unique_state;

static mk_status next_unique(jinja *m, jinja_generator *generator, jinja_value *out) {
  unique_state *u = generator->state;
  for (;;) {
    jinja_value key, known;
    MK_TRY(mk_jinja_next(m, &generator->source, out));
    if (out->kind == JINJA_MISSING) {
      return MK_OK;
    }
    MK_TRY(mk_jinja_path(m, *out, u->attribute, (jinja_value){0}, &key));
    if (!u->case_matters && key.kind == JINJA_STRING) {
      MK_TRY(mk_jinja_case(m, key, CASE_LOWER, &key));
    }
    MK_TRY(mk_jinja_check_key(m, key));
    MK_TRY(mk_jinja_get(m, u->seen.dict, key, &known));
    if (known.kind == JINJA_MISSING) {
      return mk_jinja_put(m, u->seen.dict, key, mk_jinja_bool(true));
    }
  }
}

static mk_status unique(JINJA_ARGUMENTS) {
  unique_state *u;
  MK_TRY(mk_jinja_alloc(&m->pool, 1, sizeof *u, &u));
  *u = (unique_state){.attribute = slots[1], .case_matters = mk_jinja_truth(slots[0])};
  MK_TRY(mk_jinja_new_dict(m, JINJA_DICT, &u->seen));
  return mk_jinja_new_generator(m, next_unique, v, u, out);
}

static mk_status append(jinja *m, jinja_list *list, size_t *capacity, jinja_value item) {
  if (list->count == *capacity) {
    jinja_value *more;
    MK_TRY(mk_jinja_alloc(&m->pool, *capacity * 2, sizeof *more, &more));
    memcpy(more, list->items, *capacity * sizeof *more);
    list->items = more;
    *capacity *= 2;
  }
  list->items[list->count++] = item;
  return mk_jinja_step(m, 0);
}

typedef struct portions {
  jinja_value size, fill;
  int64_t at;
  jinja_value held;       /* of batch: taken, and not yet given */
  const jinja_list *list; /* of slice: all elements */
} portions;

static mk_status new_portions(jinja *m, jinja_next next, jinja_value v, const jinja_value *slots, jinja_value *out) {
  portions *p;
  MK_TRY(mk_jinja_alloc(&m->pool, 1, sizeof *p, &p));
  *p = (portions){.size = slots[0], .fill = slots[1]};
  return mk_jinja_new_generator(m, next, v, p, out);
}

/* Gives lists of so many elements, of which the last is filled up; or one list of all elements if there are fewer. */
static mk_status next_batch(jinja *m, jinja_generator *generator, jinja_value *out) {
  portions *p = generator->state;
  double real = 0;
  bool never = !mk_jinja_number(p->size, &real) || real < 0 || real != floor(real) || real > MK_TEMPLATE_MAX_OUTPUT;
  size_t size = never ? SIZE_MAX : (size_t)real, capacity = 8;
  jinja_value list, item = p->held;
  p->held = (jinja_value){.kind = JINJA_MISSING};
  if (item.kind == JINJA_MISSING) {
    MK_TRY(mk_jinja_next(m, &generator->source, &item));
  }
  if (item.kind == JINJA_MISSING) {
    *out = item;
    return MK_OK;
  }
  MK_TRY(mk_jinja_new_list(m, capacity, JINJA_IS_LIST, &list));
  list.list->count = 0;
  if (size == 0 && p->at == 0) { /* an empty one, then one of all: it never has so few again */
    p->at = 1;
    p->held = item;
    *out = list;
    return MK_OK;
  }
  size = size == 0 ? SIZE_MAX : size;
  while (item.kind != JINJA_MISSING) {
    MK_TRY(append(m, list.list, &capacity, item));
    if (list.list->count >= size) {
      break;
    }
    MK_TRY(mk_jinja_next(m, &generator->source, &item));
  }
  if (size == SIZE_MAX && p->fill.kind > JINJA_NONE) {
    return mk_jinja_fail(m->line, "batch: filling up batches of that size is not supported");
  }
  while (list.list->count < size && p->fill.kind > JINJA_NONE) {
    MK_TRY(append(m, list.list, &capacity, p->fill));
  }
  *out = list;
  return MK_OK;
}

/* Gives so many lists; if they do not come out even, the first ones have one element more than the others. */
static mk_status next_slice(jinja *m, jinja_generator *generator, jinja_value *out) {
  portions *p = generator->state;
  int64_t slices, length;
  if (p->list == NULL) {
    MK_TRY(mk_jinja_iterate(m, generator->source.source, &p->list));
  }
  MK_TRY(mk_jinja_take_whole(m, p->size, 0, &slices));
  if (slices == 0) {
    return mk_jinja_fail(m->line, "integer division or modulo by zero");
  }
  length = (int64_t)p->list->count;
  if (p->at >= slices) {
    *out = (jinja_value){.kind = JINJA_MISSING};
    return MK_OK;
  }
  int64_t each = length / slices, longer = length % slices, at = p->at++;
  int64_t start = at * each + (at < longer ? at : longer), count = each + (at < longer);
  bool filled = p->fill.kind > JINJA_NONE && at >= longer;
  MK_TRY(mk_jinja_new_list(m, (size_t)(count + filled), JINJA_IS_LIST, out));
  for (int64_t i = 0; i < count; i++) {
    out->list->items[i] = p->list->items[start + i];
  }
  if (filled) {
    out->list->items[count] = p->fill;
  }
  return MK_OK;
}

static mk_status batch(JINJA_ARGUMENTS) { return new_portions(m, next_batch, v, slots, out); }
static mk_status slice(JINJA_ARGUMENTS) { return new_portions(m, next_slice, v, slots, out); }

const jinja_function mk_jinja_lazy_filters[] = {
    {"batch", "linecount,fill_with", 1, batch},
    {"items", "", 0, items},
    {"map", NULL, 0, map},
    {"reject", NULL, 0, reject_items},
    {"rejectattr", NULL, 0, reject_attribute},
    {"select", NULL, 0, select_items},
    {"selectattr", NULL, 0, select_attribute},
    {"slice", "slices,fill_with", 1, slice},
    {"unique", "case_sensitive,attribute", 0, unique},
    {0},
};
