/* Going through values: lists, dicts, strings, and generators, which make their elements when they are asked for. */
#include <string.h>

#include "text/template_internal.h"

bool mk_jinja_can_iterate(jinja_value v) {
  return v.kind == JINJA_STRING || v.kind == JINJA_LIST || v.kind == JINJA_DICT || v.kind == JINJA_UNDEFINED ||
         v.kind == JINJA_GENERATOR || v.kind == JINJA_LOOP;
}

mk_status mk_jinja_start(jinja *m, jinja_value value, jinja_iterator *out) {
  *out = (jinja_iterator){.source = value};
  if (value.kind == JINJA_LOOP) {
    return mk_jinja_fail(m->line, "going through 'loop' is not supported");
  }
  return mk_jinja_can_iterate(value) ? MK_OK
                                     : mk_jinja_fail(m->line, "'%s' object is not iterable", mk_jinja_type(value));
}

static mk_status next_of_generator(jinja *m, jinja_generator *generator, jinja_value *out) {
  if (generator->ended) {
    return MK_OK;
  }
  MK_TRY(mk_jinja_enter(m));
  if (!generator->started) {
    jinja_value source = generator->source.source;
    generator->started = true;
    generator->ended = generator->skips_false && !mk_jinja_truth(source);
    if (!generator->ended) {
      MK_TRY(mk_jinja_start(m, source, &generator->source));
    }
  }
  if (!generator->ended) {
    MK_TRY(generator->next(m, generator, out));
    generator->ended = out->kind == JINJA_MISSING;
  }
  m->depth--;
  return MK_OK;
}

mk_status mk_jinja_next(jinja *m, jinja_iterator *at, jinja_value *out) {
  const jinja_value v = at->source;
  jinja_value found = {.kind = JINJA_MISSING};
  MK_TRY(mk_jinja_step(m, 0));
  if (v.kind == JINJA_GENERATOR) {
    MK_TRY(next_of_generator(m, v.generator, &found));
  } else if (v.kind == JINJA_LIST && at->at < v.list->count) {
    found = v.list->items[at->at++];
  } else if (v.kind == JINJA_DICT && at->at < v.dict->count) {
    found = v.dict->pairs[at->at++].key;
  } else if (v.kind == JINJA_STRING && at->at < v.length) {
    size_t length;
    mk_jinja_decode(v.text + at->at, &length);
    found = mk_jinja_string(v.text + at->at, length);
    at->at += length;
  }
  *out = found;
  return MK_OK;
}

mk_status mk_jinja_new_generator(jinja *m, jinja_next next, jinja_value source, void *state, jinja_value *out) {
  jinja_generator *generator;
  MK_TRY(mk_jinja_alloc(&m->pool, 1, sizeof *generator, &generator));
  *generator = (jinja_generator){.next = next, .source = {.source = source}, .state = state};
  *out = (jinja_value){.kind = JINJA_GENERATOR, .generator = generator};
  return MK_OK;
}

mk_status mk_jinja_iterate(jinja *m, jinja_value v, const jinja_list **out) {
  jinja_value copy, item;
  jinja_iterator at;
  if (v.kind == JINJA_LIST) {
    *out = v.list;
    return MK_OK;
  }
  MK_TRY(mk_jinja_start(m, v, &at));
  size_t capacity = v.kind == JINJA_STRING ? mk_jinja_characters(v.text, v.length)
                    : v.kind == JINJA_DICT ? v.dict->count
                                           : 8;
  MK_TRY(mk_jinja_new_list(m, capacity, JINJA_IS_LIST, &copy));
  jinja_list *list = copy.list;
  list->count = 0;
  for (;;) {
    MK_TRY(mk_jinja_next(m, &at, &item));
    if (item.kind == JINJA_MISSING) {
      break;
    }
    if (list->count == capacity) {
      jinja_value *more;
      MK_TRY(mk_jinja_alloc(&m->pool, capacity * 2, sizeof *more, &more));
      memcpy(more, list->items, capacity * sizeof *more);
      list->items = more;
      capacity *= 2;
    }
    list->items[list->count++] = item;
  }
  *out = list;
  return MK_OK;
}

mk_status mk_jinja_to_list(jinja *m, jinja_value value, jinja_value *out) {
  const jinja_list *list;
  MK_TRY(mk_jinja_iterate(m, value, &list));
  MK_TRY(mk_jinja_new_list(m, list->count, JINJA_IS_LIST, out));
  if (list->count > 0) {
    memcpy(out->list->items, list->items, list->count * sizeof *list->items);
  }
  return MK_OK;
}

bool mk_jinja_has_length(jinja_value v) {
  return v.kind == JINJA_UNDEFINED || v.kind == JINJA_STRING || v.kind == JINJA_DICT || v.kind == JINJA_LIST ||
         v.kind == JINJA_LOOP;
}

/* The length of a loop, for which a generator has to be gone through. */
static mk_status loop_length(jinja *m, jinja_loop *loop) {
  const jinja_list *rest;
  if (loop->length >= 0) {
    return MK_OK;
  }
  if (mk_jinja_has_length(loop->iterable)) {
    return mk_jinja_length(m, loop->iterable, &loop->length);
  }
  MK_TRY(mk_jinja_iterate(m, loop->iterator.source, &rest));
  loop->length = (int64_t)rest->count + loop->index + 1 + (loop->after.kind != JINJA_MISSING);
  loop->iterator = (jinja_iterator){.source = {.kind = JINJA_LIST, .list = (jinja_list *)(uintptr_t)rest}};
  return MK_OK;
}

mk_status mk_jinja_length(jinja *m, jinja_value v, int64_t *out) {
  switch (v.kind) {
    case JINJA_UNDEFINED:
      *out = 0;
      return MK_OK;
    case JINJA_STRING:
      *out = (int64_t)mk_jinja_characters(v.text, v.length);
      return mk_jinja_step(m, v.length);
    case JINJA_DICT:
      *out = (int64_t)v.dict->count;
      return MK_OK;
    case JINJA_LOOP:
      MK_TRY(loop_length(m, v.loop));
      *out = v.loop->length;
      return MK_OK;
    case JINJA_LIST:
      *out = (int64_t)v.list->count;
      return MK_OK;
    default:
      return mk_jinja_fail(m->line, "object of type '%s' has no len()", mk_jinja_type(v));
  }
}

/* The next item of a loop, looked at before it is its turn. */
static mk_status look_ahead(jinja *m, jinja_loop *loop) {
  return loop->after.kind == JINJA_MISSING ? mk_jinja_next(m, &loop->iterator, &loop->after) : MK_OK;
}

static mk_status loop_neighbour(jinja *m, jinja_loop *loop, bool next, jinja_value *out) {
  if (next) {
    MK_TRY(look_ahead(m, loop));
  }
  *out = next ? loop->after : loop->index == 0 ? (jinja_value){.kind = JINJA_MISSING} : loop->before;
  return out->kind != JINJA_MISSING
             ? MK_OK
             : mk_jinja_new_undefined(m, next ? "there is no next item" : "there is no previous item", out);
}

/* What `loop` has, besides its methods; *out stays JINJA_MISSING for what it does not. */
mk_status mk_jinja_loop_attribute(jinja *m, jinja_value object, jinja_value name, jinja_value *out) {
  static const char *const names[] = {"index",  "index0", "length",   "revindex", "revindex0", "depth",
                                      "depth0", "first",  "previtem", "nextitem", "last"};
  jinja_loop *loop = object.loop;
  size_t which = 0;
  while (which < 11 && !mk_jinja_is(name, names[which])) {
    which++;
  }
  if (which >= 2 && which <= 4) {
    MK_TRY(loop_length(m, loop));
  }
  const int64_t numbers[] = {
      loop->index + 1, loop->index, loop->length, loop->length - loop->index, loop->length - loop->index - 1,
      loop->depth + 1, loop->depth};
  if (which < 7) {
    *out = mk_jinja_int(numbers[which]);
  } else if (which == 7) {
    *out = mk_jinja_bool(loop->index == 0);
  } else if (which <= 9) {
    return loop_neighbour(m, loop, which == 9, out);
  } else if (which == 10) {
    MK_TRY(look_ahead(m, loop));
    *out = mk_jinja_bool(loop->after.kind == JINJA_MISSING);
  }
  return MK_OK;
}
