/* Calls: arguments, and what they are bound to. */
#include <stdio.h>
#include <string.h>

#include "text/template_internal.h"

/* Arguments as they are gathered. */
typedef struct gathered {
  jinja_value *positional;
  jinja_pair *named;
  size_t count, capacity, named_count, named_capacity;
} gathered;

static mk_status add_positional(jinja *m, gathered *g, jinja_value value) {
  if (g->count == g->capacity) {
    jinja_value *more;
    size_t capacity = g->capacity == 0 ? 4 : 2 * g->capacity;
    MK_TRY(mk_jinja_alloc(&m->pool, capacity, sizeof *more, &more));
    if (g->count > 0) {
      memcpy(more, g->positional, g->count * sizeof *more);
    }
    g->positional = more;
    g->capacity = capacity;
  }
  g->positional[g->count++] = value;
  return MK_OK;
}

static bool same_name(jinja_value a, jinja_value b) {
  return a.length == b.length && memcmp(a.text, b.text, a.length) == 0;
}

static mk_status add_named(jinja *m, gathered *g, jinja_value name, jinja_value value) {
  MK_TRY(mk_jinja_step(m, g->named_count));
  for (size_t i = 0; i < g->named_count; i++) {
    if (same_name(g->named[i].key, name)) {
      return mk_jinja_fail(m->line, "keyword argument repeated: %.*s", JINJA_SHOWN(name));
    }
  }
  if (g->named_count == g->named_capacity) {
    jinja_pair *more;
    size_t capacity = g->named_capacity == 0 ? 4 : 2 * g->named_capacity;
    MK_TRY(mk_jinja_alloc(&m->pool, capacity, sizeof *more, &more));
    if (g->named_count > 0) {
      memcpy(more, g->named, g->named_count * sizeof *more);
    }
    g->named = more;
    g->named_capacity = capacity;
  }
  g->named[g->named_count++] = (jinja_pair){name, value};
  return MK_OK;
}

static mk_status add_all(jinja *m, gathered *g, jinja_value values) {
  jinja_iterator at;
  jinja_value item;
  MK_TRY(mk_jinja_start(m, values, &at));
  for (;;) {
    MK_TRY(mk_jinja_next(m, &at, &item));
    if (item.kind == JINJA_MISSING) {
      return MK_OK;
    }
    MK_TRY(add_positional(m, g, item));
  }
}

static mk_status add_all_named(jinja *m, gathered *g, jinja_value values) {
  if (values.kind != JINJA_DICT) {
    return values.kind == JINJA_UNDEFINED
               ? mk_jinja_fail_undefined(m, values)
               : mk_jinja_fail(m->line, "argument after ** must be a mapping, not %s", mk_jinja_type(values));
  }
  for (size_t i = 0; i < values.dict->count; i++) {
    const jinja_pair pair = values.dict->pairs[i];
    if (pair.key.kind != JINJA_STRING) {
      return mk_jinja_fail(m->line, "keywords must be strings");
    }
    MK_TRY(add_named(m, g, pair.key, pair.value));
  }
  return MK_OK;
}

static mk_status gather(jinja *m, const jinja_node *node, gathered *g) {
  for (; node != NULL; node = node->next) {
    bool wrapped = node->kind == NODE_KEYWORD || node->kind == NODE_STAR || node->kind == NODE_DOUBLE_STAR;
    jinja_value value;
    MK_TRY(mk_jinja_eval(m, wrapped ? node->kids[0] : node, &value));
    m->line = node->line;
    if (node->kind == NODE_KEYWORD) {
      MK_TRY(add_named(m, g, node->value, value));
    } else if (node->kind == NODE_DOUBLE_STAR) {
      MK_TRY(add_all_named(m, g, value));
    } else {
      MK_TRY(node->kind == NODE_STAR ? add_all(m, g, value) : add_positional(m, g, value));
    }
  }
  return MK_OK;
}

mk_status mk_jinja_eval_arguments(jinja *m, const jinja_node *node, jinja_arguments *out) {
  gathered g = {0};
  MK_TRY(gather(m, node, &g));
  *out = (jinja_arguments){g.positional, g.count, g.named, g.named_count};
  return MK_OK;
}

/* A call with what stands between its brackets and, from a call block, the `caller`. */
mk_status mk_jinja_eval_call(jinja *m, const jinja_node *node, const jinja_value *caller, jinja_value *out) {
  jinja_value callee;
  gathered g = {0};
  MK_TRY(mk_jinja_eval(m, node->kids[0], &callee));
  MK_TRY(gather(m, node->kids[1], &g));
  if (caller != NULL) {
    MK_TRY(add_named(m, &g, mk_jinja_literal("caller"), *caller));
  }
  m->line = node->line;
  return mk_jinja_call_value(m, callee, &(jinja_arguments){g.positional, g.count, g.named, g.named_count}, out);
}

/* Parameters in `slots`, by position and then by name. */
static mk_status bind(jinja *m, const jinja_function *f, const jinja_arguments *given, jinja_value *slots) {
  bool by_name = f->parameters[0] != '/';
  const char *name = f->parameters + !by_name;
  size_t used = 0, named = 0, slot = 0;
  for (; *name != 0 && slot < JINJA_MAX_PARAMETERS; slot++) {
    size_t length = strcspn(name, ",");
    slots[slot] = (jinja_value){.kind = JINJA_MISSING};
    if (slot < given->count) {
      slots[slot] = given->positional[slot];
      used++;
    }
    for (size_t i = 0; by_name && i < given->named_count; i++) {
      if (given->named[i].key.length == length && memcmp(given->named[i].key.text, name, length) == 0 &&
          slots[slot].kind == JINJA_MISSING) {
        slots[slot] = given->named[i].value;
        named++;
      }
    }
    if (slot < f->required && slots[slot].kind == JINJA_MISSING) {
      return mk_jinja_fail(m->line, "%s: the argument '%.*s' is missing", f->name, (int)length, name);
    }
    name += length + (name[length] == ',');
  }
  if (used < given->count || named < given->named_count) {
    return mk_jinja_fail(m->line, "%s: too many arguments, or one of a name it does not have", f->name);
  }
  return MK_OK;
}

mk_status mk_jinja_apply(jinja *m, const jinja_function *function, jinja_value input, const jinja_arguments *arguments,
                         jinja_value *out) {
  jinja_value slots[JINJA_MAX_PARAMETERS] = {0}, result = {0};
  if (function->parameters != NULL) {
    MK_TRY(bind(m, function, arguments, slots));
  }
  MK_TRY(function->call(m, input, slots, arguments, &result));
  *out = result;
  return MK_OK;
}

static void take_named(const jinja_arguments *given, bool *taken, jinja_value name, jinja_value *out) {
  for (size_t i = 0; i < given->named_count; i++) {
    if (!taken[i] && same_name(given->named[i].key, name)) {
      taken[i] = true;
      *out = given->named[i].value;
    }
  }
}

/* The arguments that no parameter took: an error, or what `varargs` and `kwargs` are. */
static mk_status bind_rest(jinja *m, const jinja_macro *macro, const jinja_arguments *given, const bool *taken) {
  const jinja_scoping *s = macro->node->scoping;
  size_t used = given->count < s->parameters ? given->count : s->parameters;
  jinja_value *slots = m->record->slots, rest;
  MK_TRY(mk_jinja_new_dict(m, JINJA_DICT, &rest));
  for (size_t i = 0; i < given->named_count; i++) {
    if (taken[i]) {
      continue;
    }
    if (s->kwargs == NO_SLOT) {
      return mk_jinja_fail(m->line, "macro '%.*s' takes no keyword argument '%.*s'", JINJA_SHOWN(macro->node->value),
                           JINJA_SHOWN(given->named[i].key));
    }
    MK_TRY(mk_jinja_put(m, rest.dict, given->named[i].key, given->named[i].value));
  }
  if (s->kwargs != NO_SLOT) {
    slots[s->kwargs] = rest;
  }
  if (s->varargs == NO_SLOT) {
    return given->count <= s->parameters ? MK_OK
                                         : mk_jinja_fail(m->line, "macro '%.*s' takes not more than %zu argument(s)",
                                                         JINJA_SHOWN(macro->node->value), s->parameters);
  }
  MK_TRY(mk_jinja_new_list(m, given->count - used, JINJA_IS_TUPLE, &rest));
  for (size_t i = used; i < given->count; i++) {
    rest.list->items[i - used] = given->positional[i];
  }
  slots[s->varargs] = rest;
  return MK_OK;
}

/* The `caller` of a macro that asks for one without having it as a parameter. */
static mk_status bind_caller(jinja *m, const jinja_macro *macro, const jinja_arguments *given, bool *taken) {
  const jinja_scoping *s = macro->node->scoping;
  jinja_value caller = {.kind = JINJA_MISSING};
  if (s->caller == NO_SLOT) {
    return MK_OK;
  }
  take_named(given, taken, mk_jinja_literal("caller"), &caller);
  if (caller.kind == JINJA_MISSING || caller.kind == JINJA_NONE) {
    MK_TRY(mk_jinja_new_undefined(m, "No caller defined", &caller));
  }
  m->record->slots[s->caller] = caller;
  return MK_OK;
}

static mk_status bind_macro(jinja *m, const jinja_macro *macro, const jinja_arguments *given) {
  jinja_value *slots = m->record->slots;
  bool *taken;
  size_t at = 0;
  MK_TRY(mk_jinja_alloc(&m->pool, given->named_count, sizeof *taken, &taken));
  for (const jinja_node *p = macro->node->kids[0]; p != NULL; p = p->next, at++) {
    jinja_value *slot = &slots[p->place.slot];
    if (at < given->count) {
      *slot = given->positional[at];
    } else {
      take_named(given, taken, p->value, slot);
    }
  }
  MK_TRY(bind_caller(m, macro, given, taken));
  MK_TRY(bind_rest(m, macro, given, taken));
  MK_TRY(mk_jinja_enter_frame(m, &macro->node->scoping->body));
  for (const jinja_node *p = macro->node->kids[0]; p != NULL; p = p->next) {
    jinja_value *slot = &slots[p->place.slot], value;
    if (slot->kind != JINJA_MISSING) {
      continue;
    }
    if (p->kids[0] != NULL) {
      MK_TRY(mk_jinja_eval(m, p->kids[0], &value));
    } else {
      char *hint;
      MK_TRY(mk_jinja_alloc(&m->pool, p->value.length + 40u, 1, &hint));
      snprintf(hint, p->value.length + 40u, "parameter '%.*s' was not provided", (int)p->value.length, p->value.text);
      MK_TRY(mk_jinja_new_undefined(m, hint, &value));
    }
    *slot = value;
  }
  return MK_OK;
}

mk_status mk_jinja_call_macro(jinja *m, const jinja_macro *macro, const jinja_arguments *arguments, jinja_value *out) {
  jinja_record *before = m->record;
  MK_TRY(mk_jinja_enter(m));
  MK_TRY(mk_jinja_new_record(m, macro->node->scoping->shape, macro->record, &m->record));
  MK_TRY(bind_macro(m, macro, arguments));
  MK_TRY(mk_jinja_capture(m, macro->node->kids[1], out));
  m->record = before;
  m->depth--;
  return MK_OK;
}

static mk_status call_loop(jinja *m, const jinja_loop *loop, const jinja_arguments *arguments, jinja_value *out) {
  if (loop->node == NULL) {
    return mk_jinja_fail(m->line, "The loop must have the 'recursive' marker to be called recursively.");
  }
  if (arguments->count != 1 || arguments->named_count > 0) {
    return mk_jinja_fail(m->line, "loop() takes what to go through and nothing else");
  }
  return mk_jinja_recurse(m, loop->node, loop->record, arguments->positional[0], loop->depth + 1, out);
}

mk_status mk_jinja_call_value(jinja *m, jinja_value callee, const jinja_arguments *arguments, jinja_value *out) {
  switch (callee.kind) {
    case JINJA_UNDEFINED:
      return mk_jinja_fail_undefined(m, callee);
    case JINJA_FUNCTION:
      return mk_jinja_apply(m, callee.function, (jinja_value){.kind = JINJA_MISSING}, arguments, out);
    case JINJA_METHOD:
      return mk_jinja_apply(m, callee.method->function, callee.method->object, arguments, out);
    case JINJA_MACRO:
      return mk_jinja_call_macro(m, callee.macro, arguments, out);
    case JINJA_LOOP:
      return call_loop(m, callee.loop, arguments, out);
    case JINJA_JOINER:
      *out = callee.cycler->at > 0 ? callee.cycler->items : mk_jinja_literal("");
      callee.cycler->at = 1;
      return arguments->count + arguments->named_count == 0
                 ? MK_OK
                 : mk_jinja_fail(m->line, "what joiner() gives is called without arguments");
    default:
      return mk_jinja_fail(m->line, "'%s' object is not callable", mk_jinja_type(callee));
  }
}
