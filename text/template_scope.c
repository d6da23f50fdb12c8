/* Where every variable of a template lies: jinja2's rules of scope, which are those of the Python function that it
 * would compile.
 *
 * A loop, a macro, a call, filter, with or set block opens a scope; an if does not. A name that a scope gives a value
 * anywhere in it is a variable of that scope, which starts with the value of the scope around (LOAD_ALIAS) or with
 * none; any other name is that of the scope around, or what the caller gave (LOAD_RESOLVE). A name that only some
 * branches of an if give a value starts, where no scope around has it, with what the caller gave.
 *
 * Each scope is gone through twice: what it says of names is collected (collect), then every name in it gets its place
 * (place), and only then the scopes inside are looked at; they see all of it. Private to the template's compilation;
 * memory is the template's pool. */
#include <string.h>

#include "text/template_names.h"

/* A function has a shape, and stands in another function. */
typedef struct function {
  uint64_t number;
  struct function *outer;
  jinja_shape *shape;
} function;

typedef struct variable {
  uint32_t name; /* its number */
  uint32_t slot;
  uint8_t load; /* jinja_load_kind */
  bool stored;  /* the scope gives it a value */
  const function *alias_function;
  uint32_t alias_slot;
} variable;

typedef struct scope {
  struct scope *outer;
  struct scope
      *whole; /* of a branch of an if: the scope that it is a part of; what it adds is kept apart until the if ends */
  function *function;
  uint64_t level;
  bool in_branch; /* what is being placed is inside of an if or an inline if of this very scope */
  variable *variables;
  size_t count, capacity;
  jinja_table by_name;
} scope;

typedef struct scoper {
  jinja_pool *pool;
  jinja_names names;
  jinja_table
      slots; /* by function, level and name: scopes side by side share the variables of their function, as in Python */
  uint64_t functions;
} scoper;

static mk_status slot_of(scoper *s, const function *f, uint64_t level, uint32_t name, uint32_t *out) {
  uint64_t key = f->number << 40 | level << 32 | name;
  const uint32_t *known = mk_jinja_table_find(&s->slots, key);
  if (known != NULL) {
    *out = *known;
    return MK_OK;
  }
  *out = f->shape->slots++;
  return mk_jinja_table_put(s->pool, &s->slots, key, *out);
}

static mk_status new_function(scoper *s, function *outer, jinja_shape *shape, function **out) {
  MK_TRY(mk_jinja_alloc(s->pool, 1, sizeof **out, out));
  **out = (function){.number = s->functions++, .outer = outer, .shape = shape};
  return MK_OK;
}

static mk_status new_scope(scoper *s, scope *outer, function *f, scope **out) {
  MK_TRY(mk_jinja_alloc(s->pool, 1, sizeof **out, out));
  (*out)->outer = outer;
  (*out)->function = f;
  (*out)->level = outer == NULL ? 0 : outer->level + 1;
  return MK_OK;
}

static bool own(const scope *at, uint32_t name, const variable **out) {
  for (; at != NULL; at = at->whole) {
    const uint32_t *index = mk_jinja_table_find(&at->by_name, name);
    if (index != NULL) {
      *out = &at->variables[*index];
      return true;
    }
  }
  return false;
}

static bool visible(const scope *at, uint32_t name, const scope **where, const variable **out) {
  for (; at != NULL; at = at->outer) {
    if (own(at, name, out)) {
      *where = at;
      return true;
    }
  }
  return false;
}

/* The variable in this very scope or branch, made if need be. */
static mk_status define(scoper *s, scope *at, uint32_t name, variable **out) {
  const uint32_t *index = mk_jinja_table_find(&at->by_name, name);
  if (index != NULL) {
    *out = &at->variables[*index];
    return MK_OK;
  }
  if (at->count == at->capacity) {
    variable *more;
    size_t capacity = at->capacity == 0 ? 4 : at->capacity * 2;
    MK_TRY(mk_jinja_alloc(s->pool, capacity, sizeof *more, &more));
    if (at->count > 0) {
      memcpy(more, at->variables, at->count * sizeof *more);
    }
    at->variables = more;
    at->capacity = capacity;
  }
  const variable *known;
  *out = &at->variables[at->count];
  if (own(at->whole, name, &known)) {
    **out = *known;
  } else {
    **out = (variable){.name = name};
    MK_TRY(slot_of(s, at->function, at->level, name, &(*out)->slot));
  }
  return mk_jinja_table_put(s->pool, &at->by_name, name, (uint32_t)at->count++);
}

/* The variable starts with the value that a scope around has, or else in the way `otherwise`. */
static void load_outer(const scope *at, variable *v, jinja_load_kind otherwise) {
  const scope *where;
  const variable *outer;
  v->load = (uint8_t)otherwise;
  if (visible(at->outer, v->name, &where, &outer)) {
    v->load = LOAD_ALIAS;
    v->alias_function = where->function;
    v->alias_slot = outer->slot;
  }
}

static mk_status read_name(scoper *s, scope *at, jinja_value text) {
  uint32_t name;
  const scope *where;
  const variable *seen;
  variable *v;
  MK_TRY(mk_jinja_number_of(s->pool, &s->names, text, &name));
  if (visible(at, name, &where, &seen)) {
    return MK_OK;
  }
  MK_TRY(define(s, at, name, &v));
  v->load = LOAD_RESOLVE;
  return MK_OK;
}

static mk_status store_name(scoper *s, scope *at, jinja_value text) {
  uint32_t name;
  const variable *before;
  variable *v;
  MK_TRY(mk_jinja_number_of(s->pool, &s->names, text, &name));
  bool known = own(at, name, &before);
  MK_TRY(define(s, at, name, &v));
  v->stored = true;
  if (!known) {
    load_outer(at, v, LOAD_MISSING);
  }
  return MK_OK;
}

static mk_status declare_parameter(scoper *s, scope *at, jinja_value text, uint32_t *slot) {
  uint32_t name;
  variable *v;
  MK_TRY(mk_jinja_number_of(s->pool, &s->names, text, &name));
  MK_TRY(define(s, at, name, &v));
  v->stored = true;
  v->load = LOAD_PARAMETER;
  if (slot != NULL) {
    *slot = v->slot;
  }
  return MK_OK;
}

static mk_status collect(scoper *s, scope *at, const jinja_node *list);

static mk_status collect_target(scoper *s, scope *at, const jinja_node *target, bool parameter) {
  if (target->kind == NODE_ATTRIBUTE) {
    return read_name(s, at, target->kids[0]->value);
  }
  if (target->kind == NODE_NAME) {
    return parameter ? declare_parameter(s, at, target->value, NULL) : store_name(s, at, target->value);
  }
  for (const jinja_node *part = target->kids[0]; part != NULL; part = part->next) {
    MK_TRY(collect_target(s, at, part, parameter));
  }
  return MK_OK;
}

/* What a branch added becomes part of the whole. */
static mk_status merge(scoper *s, scope *at, const scope *branch) {
  for (size_t i = 0; i < branch->count; i++) {
    const variable *added = &branch->variables[i];
    const variable *known;
    variable *v;
    if (own(at, added->name, &known) && (known->stored || !added->stored)) {
      continue;
    }
    MK_TRY(define(s, at, added->name, &v));
    *v = *added;
    if (added->stored) { /* the other branches need not give it a value */
      load_outer(at, v, LOAD_RESOLVE);
    }
  }
  return MK_OK;
}

static mk_status new_branch(scoper *s, scope *at, scope **out) {
  MK_TRY(new_scope(s, at->outer, at->function, out));
  (*out)->whole = at;
  (*out)->level = at->level;
  return MK_OK;
}

/* The body, all that stands in elifs, and the else are three branches. */
static mk_status collect_if(scoper *s, scope *at, const jinja_node *node) {
  scope *branches[3];
  MK_TRY(collect(s, at, node->kids[0]));
  for (size_t i = 0; i < 3; i++) {
    MK_TRY(new_branch(s, at, &branches[i]));
  }
  MK_TRY(collect(s, branches[0], node->kids[1]));
  const jinja_node *rest = node->kids[2];
  for (; rest != NULL && rest->is_elif; rest = rest->kids[2]) {
    scope *body;
    MK_TRY(collect(s, branches[1], rest->kids[0]));
    MK_TRY(new_branch(s, branches[1], &body));
    MK_TRY(collect(s, body, rest->kids[1]));
    MK_TRY(merge(s, branches[1], body));
  }
  MK_TRY(collect(s, branches[2], rest));
  for (size_t i = 0; i < 3; i++) {
    MK_TRY(merge(s, at, branches[i]));
  }
  return MK_OK;
}

/* What statements and expressions say of names, up to the scopes inside of them. */
static mk_status collect_one(scoper *s, scope *at, const jinja_node *node) {
  switch (node->kind) {
    case NODE_NAME:
      return read_name(s, at, node->value);
    case NODE_IF:
      return collect_if(s, at, node);
    case NODE_FOR:
    case NODE_WITH:
    case NODE_FILTER_BLOCK:
      return collect(s, at, node->kids[1]);
    case NODE_SET:
      MK_TRY(collect(s, at, node->kids[1]));
      return collect_target(s, at, node->kids[0], false);
    case NODE_SET_BLOCK:
      return collect_target(s, at, node->kids[0], false);
    case NODE_MACRO:
      return store_name(s, at, node->value);
    case NODE_CALL_BLOCK:
      return collect(s, at, node->kids[2]);
    default:
      for (size_t i = 0; i < sizeof node->kids / sizeof node->kids[0]; i++) {
        MK_TRY(collect(s, at, node->kids[i]));
      }
      return MK_OK;
  }
}

static mk_status collect(scoper *s, scope *at, const jinja_node *list) {
  for (; list != NULL; list = list->next) {
    MK_TRY(collect_one(s, at, list));
  }
  return MK_OK;
}

/* Which of some special names are read in a tree, scopes inside included, before anything there gives them a value. */
typedef struct special {
  const char *const *names;
  unsigned wanted, found; /* bit i: names[i] */
} special;

static void look_for(special *sought, const jinja_node *list);

static void look_at_name(special *sought, const jinja_node *node, bool is_read) {
  for (unsigned i = 0; sought->names[i] != NULL; i++) {
    unsigned bit = sought->wanted & 1u << i;
    if (bit != 0 && mk_jinja_is(node->value, sought->names[i])) {
      sought->found |= is_read ? bit : 0;
      sought->wanted &= is_read ? ~0u : ~bit;
    }
  }
}

static void look_at_target(special *sought, const jinja_node *target) {
  if (target->kind == NODE_NAME) {
    look_at_name(sought, target, false);
  } else if (target->kind == NODE_TUPLE) {
    for (const jinja_node *part = target->kids[0]; part != NULL; part = part->next) {
      look_at_target(sought, part);
    }
  }
}

static void look_at(special *sought, const jinja_node *node) {
  static const uint8_t orders[][5] = {[NODE_FOR] = {1, 2, 3, 4}, [NODE_SET] = {1}, [NODE_SET_BLOCK] = {2, 1}};
  switch (node->kind) {
    case NODE_NAME:
      look_at_name(sought, node, true);
      return;
    case NODE_MACRO:
    case NODE_CALL_BLOCK:
      look_for(sought, node->kind == NODE_MACRO ? NULL : node->kids[2]);
      for (const jinja_node *p = node->kids[0]; p != NULL; p = p->next) {
        look_at_name(sought, p, false);
      }
      for (const jinja_node *p = node->kids[0]; p != NULL; p = p->next) {
        look_for(sought, p->kids[0]);
      }
      look_for(sought, node->kids[1]);
      return;
    case NODE_FOR:
    case NODE_SET:
    case NODE_SET_BLOCK:
      look_at_target(sought, node->kids[0]);
      for (size_t i = 0; i < 5 && orders[node->kind][i] != 0; i++) {
        look_for(sought, node->kids[orders[node->kind][i]]);
      }
      return;
    case NODE_WITH:
      for (const jinja_node *part = node->kids[0]; part != NULL; part = part->next) {
        look_at_target(sought, part);
      }
      look_for(sought, node->kids[1]);
      look_for(sought, node->kids[2]);
      return;
    default:
      for (size_t i = 0; i < sizeof node->kids / sizeof node->kids[0]; i++) {
        look_for(sought, node->kids[i]);
      }
  }
}

static void look_for(special *sought, const jinja_node *list) {
  for (; list != NULL && sought->wanted != sought->found; list = list->next) {
    look_at(sought, list);
  }
}

static mk_status place(scoper *s, scope *at, jinja_node *list);

static mk_status make_place(const function *from, const function *to, uint32_t slot, jinja_place *out) {
  *out = (jinja_place){.slot = slot};
  for (; from != to; from = from->outer) {
    out->up++;
  }
  return MK_OK;
}

static mk_status place_name(scoper *s, const scope *at, jinja_node *node) {
  uint32_t name;
  const scope *where;
  MK_TRY(mk_jinja_number_of(s->pool, &s->names, node->value, &name));
  const variable *v;
  return visible(at, name, &where, &v)
             ? make_place(at->function, where->function, v->slot, &node->place)
             : mk_jinja_fail(node->line, "the name '%.*s' cannot be used here", JINJA_SHOWN(node->value));
}

/* What is to be done where the scope is entered and left. */
static mk_status finish(scoper *s, const scope *at, jinja_frame *out) {
  MK_TRY(mk_jinja_alloc(s->pool, at->count, sizeof *out->loads, &out->loads));
  for (; out->count < at->count; out->count++) {
    const variable *v = &at->variables[out->count];
    jinja_load *load = &out->loads[out->count];
    /* NOLINTNEXTLINE(clang-analyzer-core.NullDereference): every variable has a name of the table */
    *load = (jinja_load){.kind = v->load, .slot = v->slot, .name = s->names.texts[v->name]};
    if (v->load == LOAD_ALIAS) {
      MK_TRY(make_place(at->function, v->alias_function, v->alias_slot, &load->from));
    }
  }
  return MK_OK;
}

static mk_status copy_target(scoper *s, const jinja_node *target, jinja_node **out) {
  jinja_node **last;
  MK_TRY(mk_jinja_alloc(s->pool, 1, sizeof **out, out));
  **out = *target;
  (*out)->next = (*out)->kids[0] = NULL;
  last = &(*out)->kids[0];
  for (const jinja_node *part = target->kind == NODE_TUPLE ? target->kids[0] : NULL; part != NULL; part = part->next) {
    MK_TRY(copy_target(s, part, last));
    last = &(*last)->next;
  }
  return MK_OK;
}

/* The filter of a loop is a function of its own, which has the loop's target as a variable and sees what is around the
 * loop. */
static mk_status place_loop_filter(scoper *s, scope *at, jinja_node *node) {
  scope *test;
  function *f;
  MK_TRY(mk_jinja_alloc(s->pool, 1, sizeof *node->scoping->test_shape, &node->scoping->test_shape));
  MK_TRY(new_function(s, at->function, node->scoping->test_shape, &f));
  MK_TRY(new_scope(s, at, f, &test));
  MK_TRY(copy_target(s, node->kids[0], &node->scoping->test_target));
  MK_TRY(collect_target(s, test, node->kids[0], true));
  MK_TRY(collect(s, test, node->kids[4]));
  MK_TRY(finish(s, test, &node->scoping->test));
  MK_TRY(place(s, test, node->scoping->test_target));
  return place(s, test, node->kids[4]);
}

static mk_status place_loop(scoper *s, scope *at, jinja_node *node) {
  static const char *const names[] = {"loop", NULL};
  jinja_scoping *scoping = node->scoping;
  special sought = {.names = names, .wanted = 1};
  scope *body, *otherwise;
  function *f = at->function;
  MK_TRY(place(s, at, node->kids[1]));
  if (node->recursive) {
    MK_TRY(mk_jinja_alloc(s->pool, 1, sizeof *scoping->shape, &scoping->shape));
    MK_TRY(new_function(s, f, scoping->shape, &f));
  }
  MK_TRY(new_scope(s, at, f, &body));
  look_for(&sought, node->kids[2]);
  if (node->recursive || sought.found != 0) {
    MK_TRY(declare_parameter(s, body, mk_jinja_literal("loop"), &scoping->loop));
  }
  MK_TRY(collect_target(s, body, node->kids[0], true));
  MK_TRY(collect(s, body, node->kids[2]));
  MK_TRY(finish(s, body, &scoping->body));
  MK_TRY(place(s, body, node->kids[0]));
  MK_TRY(place(s, body, node->kids[2]));
  if (node->kids[3] != NULL) {
    MK_TRY(new_scope(s, at, f, &otherwise));
    MK_TRY(collect(s, otherwise, node->kids[3]));
    MK_TRY(finish(s, otherwise, &scoping->other));
    MK_TRY(place(s, otherwise, node->kids[3]));
  }
  return node->kids[4] == NULL ? MK_OK : place_loop_filter(s, at, node);
}

/* A macro, or the body of a call or generation block, which is one without a name. */
static mk_status place_macro(scoper *s, scope *at, jinja_node *node) {
  static const char *const names[] = {"caller", "kwargs", "varargs", NULL};
  jinja_scoping *scoping = node->scoping;
  uint32_t *const slots[] = {&scoping->caller, &scoping->kwargs, &scoping->varargs};
  special sought = {.names = names, .wanted = 7};
  scope *body;
  function *f;
  MK_TRY(place(s, at, node->kids[2]));
  MK_TRY(mk_jinja_alloc(s->pool, 1, sizeof *scoping->shape, &scoping->shape));
  MK_TRY(new_function(s, at->function, scoping->shape, &f));
  MK_TRY(new_scope(s, at, f, &body));
  look_for(&sought, node->kids[1]);
  scoping->accesses_caller = (sought.found & 1) != 0;
  for (const jinja_node *p = node->kids[0]; p != NULL; p = p->next, scoping->parameters++) {
    MK_TRY(declare_parameter(s, body, p->value, NULL));
    for (unsigned i = 0; i < 3; i++) {
      sought.found &= mk_jinja_is(p->value, names[i]) ? ~(1u << i) : ~0u;
    }
    scoping->has_caller |= mk_jinja_is(p->value, "caller");
    if (mk_jinja_is(p->value, "caller") && scoping->accesses_caller && p->kids[0] == NULL) {
      return mk_jinja_fail(p->line, "the parameter 'caller' needs a default");
    }
  }
  for (const jinja_node *p = node->kids[0]; p != NULL; p = p->next) {
    MK_TRY(collect(s, body, p->kids[0]));
  }
  MK_TRY(collect(s, body, node->kids[1]));
  for (unsigned i = 0; i < 3; i++) {
    if ((sought.found & 1u << i) != 0) {
      MK_TRY(declare_parameter(s, body, mk_jinja_literal(names[i]), slots[i]));
    }
  }
  MK_TRY(finish(s, body, &scoping->body));
  MK_TRY(place(s, body, node->kids[0]));
  return place(s, body, node->kids[1]);
}

/* Filter, with and set blocks. */
static mk_status place_block(scoper *s, scope *at, jinja_node *node) {
  bool is_with = node->kind == NODE_WITH, is_set = node->kind == NODE_SET_BLOCK;
  jinja_node *body = node->kids[is_with ? 2 : is_set ? 1 : 0], *filter = is_with ? NULL : node->kids[is_set ? 2 : 1];
  scope *inside;
  MK_TRY(new_scope(s, at, at->function, &inside));
  for (const jinja_node *part = is_with ? node->kids[0] : NULL; part != NULL; part = part->next) {
    MK_TRY(collect_target(s, inside, part, true));
  }
  MK_TRY(collect(s, inside, body));
  MK_TRY(collect(s, inside, filter));
  MK_TRY(finish(s, inside, &node->scoping->body));
  MK_TRY(place(s, inside, body));
  MK_TRY(place(s, inside, filter));
  MK_TRY(place(s, is_with ? inside : at, is_with || is_set ? node->kids[0] : NULL));
  return place(s, at, is_with ? node->kids[1] : NULL);
}

static mk_status place_kids(scoper *s, scope *at, jinja_node *node) {
  for (size_t i = 0; i < sizeof node->kids / sizeof node->kids[0]; i++) {
    MK_TRY(place(s, at, node->kids[i]));
  }
  return MK_OK;
}

/* As in jinja2, a branch may name filters and tests that there are not, as long as it is not reached. */
static mk_status place_branches(scoper *s, scope *at, jinja_node *node) {
  bool before = at->in_branch;
  at->in_branch = true;
  MK_TRY(place_kids(s, at, node));
  at->in_branch = before;
  return MK_OK;
}

static mk_status place_one(scoper *s, scope *at, jinja_node *node) {
  if (node->kind >= NODE_FOR && node->kind <= NODE_WITH && node->kind != NODE_SET) {
    MK_TRY(mk_jinja_alloc(s->pool, 1, sizeof *node->scoping, &node->scoping));
    node->scoping->loop = node->scoping->caller = node->scoping->kwargs = node->scoping->varargs = NO_SLOT;
  }
  switch (node->kind) {
    case NODE_NAME:
      MK_TRY(place_name(s, at, node));
      return place(s, at, node->kids[0]); /* the default of a parameter */
    case NODE_FOR:
      return place_loop(s, at, node);
    case NODE_MACRO:
    case NODE_CALL_BLOCK:
      return place_macro(s, at, node);
    case NODE_SET_BLOCK:
    case NODE_FILTER_BLOCK:
    case NODE_WITH:
      return place_block(s, at, node);
    case NODE_IF:
    case NODE_CHOICE:
      return place_branches(s, at, node);
    case NODE_FILTER:
    case NODE_TEST:
      return node->filter == NULL && !at->in_branch ? mk_jinja_fail_unknown(node) : place_kids(s, at, node);
    default:
      return place_kids(s, at, node);
  }
}

static mk_status place(scoper *s, scope *at, jinja_node *list) {
  for (; list != NULL; list = list->next) {
    MK_TRY(place_one(s, at, list));
  }
  return MK_OK;
}

mk_status mk_jinja_place_variables(mk_template *made) {
  scoper s = {.pool = &made->pool};
  scope *root;
  function *f;
  MK_TRY(new_function(&s, NULL, &made->shape, &f));
  MK_TRY(new_scope(&s, NULL, f, &root));
  MK_TRY(collect(&s, root, made->body));
  MK_TRY(finish(&s, root, &made->frame));
  return place(&s, root, made->body);
}
