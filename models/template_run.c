/* Evaluation of the tree, and rendering as a whole. */
#include <stdio.h>
#include <string.h>

#include "models/template_internal.h"
#include "models/unicode.h"

/* The innermost variable of that name, then what the environment has. */
static mk_status lookup(jinja *m, jinja_value name, jinja_value *out) {
  for (const jinja_scope *scope = m->scope; scope != NULL; scope = scope->outer) {
    MK_TRY(mk_jinja_get(m, &scope->variables, name, out));
    if (out->kind != JINJA_MISSING) {
      return MK_OK;
    }
  }
  const jinja_function *function = mk_jinja_find_global(name);
  if (function != NULL) {
    *out = (jinja_value){.kind = JINJA_FUNCTION, .function = function};
    return MK_OK;
  }
  return mk_jinja_undefined(m, (jinja_value){.kind = JINJA_MISSING}, name, out);
}

mk_status mk_jinja_set(jinja *m, jinja_scope *scope, jinja_value name, jinja_value value) {
  return mk_jinja_put(m, &scope->variables, name, value);
}

static mk_status new_scope(jinja *m, jinja_scope *outer, jinja_scope **out) {
  MK_TRY(mk_jinja_alloc(&m->pool, 1, sizeof **out, out));
  (*out)->outer = outer;
  return MK_OK;
}

static size_t list_length(const jinja_node *node) {
  size_t count = 0;
  for (; node != NULL; node = node->next) {
    count++;
  }
  return count;
}

static mk_status eval_elements(jinja *m, const jinja_node *node, jinja_sequence sequence, jinja_value *out) {
  jinja_value list;
  MK_TRY(mk_jinja_new_list(m, list_length(node), sequence, &list));
  for (size_t i = 0; node != NULL; node = node->next, i++) {
    MK_TRY(mk_jinja_eval(m, node, &list.list->items[i]));
  }
  *out = list;
  return MK_OK;
}

static mk_status eval_dict(jinja *m, const jinja_node *node, jinja_value *out) {
  jinja_value dict;
  MK_TRY(mk_jinja_new_dict(m, JINJA_DICT, &dict));
  for (; node != NULL; node = node->next->next) {
    jinja_value key, value;
    MK_TRY(mk_jinja_eval(m, node, &key));
    MK_TRY(mk_jinja_eval(m, node->next, &value));
    MK_TRY(mk_jinja_put(m, dict.dict, key, value));
  }
  *out = dict;
  return MK_OK;
}

static mk_status eval_arguments(jinja *m, const jinja_node *node, jinja_arguments *out) {
  size_t total = list_length(node);
  jinja_value *positional;
  jinja_pair *named;
  *out = (jinja_arguments){0};
  if (total == 0) {
    return MK_OK;
  }
  MK_TRY(mk_jinja_alloc(&m->pool, total, sizeof *positional, &positional));
  MK_TRY(mk_jinja_alloc(&m->pool, total, sizeof *named, &named));
  *out = (jinja_arguments){.positional = positional, .named = named};
  for (; node != NULL; node = node->next) {
    if (node->kind != NODE_KEYWORD) {
      MK_TRY(mk_jinja_eval(m, node, &positional[out->count++]));
      continue;
    }
    for (size_t i = 0; i < out->named_count; i++) {
      if (named[i].key.length == node->value.length &&
          memcmp(named[i].key.text, node->value.text, node->value.length) == 0) {
        return mk_jinja_fail(node->line, "keyword argument repeated: %.*s", JINJA_SHOWN(node->value));
      }
    }
    named[out->named_count].key = node->value;
    MK_TRY(mk_jinja_eval(m, node->kids[0], &named[out->named_count++].value));
  }
  return MK_OK;
}

/* Parameters in `slots`, by position and then by name. */
static mk_status bind(jinja *m, const jinja_function *f, const jinja_arguments *given, jinja_value *slots) {
  const char *name = f->parameters;
  size_t used = 0, named = 0, slot = 0;
  for (; *name != 0 && slot < JINJA_MAX_PARAMETERS; slot++) {
    size_t length = strcspn(name, ",");
    slots[slot] = (jinja_value){.kind = JINJA_MISSING};
    if (slot < given->count) {
      slots[slot] = given->positional[slot];
      used++;
    }
    for (size_t i = 0; i < given->named_count; i++) {
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

static mk_status bind_macro(jinja *m, const jinja_macro *macro, const jinja_arguments *given) {
  size_t slot = 0, named = 0;
  for (const jinja_node *p = macro->node->kids[0]; p != NULL; p = p->next, slot++) {
    jinja_value value = {.kind = JINJA_MISSING}, name = p->value;
    if (slot < given->count) {
      value = given->positional[slot];
    }
    for (size_t i = 0; i < given->named_count; i++) {
      if (given->named[i].key.length == name.length && memcmp(given->named[i].key.text, name.text, name.length) == 0) {
        if (value.kind != JINJA_MISSING) {
          return mk_jinja_fail(m->line, "macro '%.*s': the argument '%.*s' is given twice",
                               JINJA_SHOWN(macro->node->value), JINJA_SHOWN(name));
        }
        value = given->named[i].value;
        named++;
      }
    }
    if (value.kind == JINJA_MISSING && p->kids[0] != NULL) {
      MK_TRY(mk_jinja_eval(m, p->kids[0], &value));
    }
    if (value.kind == JINJA_MISSING) {
      MK_TRY(mk_jinja_undefined(m, (jinja_value){.kind = JINJA_MISSING}, name, &value));
    }
    MK_TRY(mk_jinja_set(m, m->scope, name, value));
  }
  if (given->count > slot || named < given->named_count) {
    return mk_jinja_fail(m->line, "macro '%.*s' takes not more than %zu argument(s), or none of that name",
                         JINJA_SHOWN(macro->node->value), slot);
  }
  return MK_OK;
}

static mk_status call_macro(jinja *m, const jinja_macro *macro, const jinja_arguments *arguments, jinja_value *out) {
  jinja_scope *before = m->scope;
  MK_TRY(mk_jinja_enter(m));
  MK_TRY(new_scope(m, macro->scope, &m->scope));
  MK_TRY(bind_macro(m, macro, arguments));
  MK_TRY(mk_jinja_capture(m, macro->node->kids[1], out));
  m->scope = before;
  m->depth--;
  return MK_OK;
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
      return call_macro(m, callee.macro, arguments, out);
    default:
      return mk_jinja_fail(m->line, "'%s' object is not callable", mk_jinja_type(callee));
  }
}

static mk_status eval_call(jinja *m, const jinja_node *node, jinja_value *out) {
  jinja_value callee;
  jinja_arguments arguments;
  MK_TRY(mk_jinja_eval(m, node->kids[0], &callee));
  MK_TRY(eval_arguments(m, node->kids[1], &arguments));
  m->line = node->line;
  return mk_jinja_call_value(m, callee, &arguments, out);
}

static mk_status eval_filter(jinja *m, const jinja_node *node, jinja_value *out) {
  jinja_value input;
  jinja_arguments arguments;
  MK_TRY(mk_jinja_eval(m, node->kids[0], &input));
  MK_TRY(eval_arguments(m, node->kids[1], &arguments));
  m->line = node->line;
  return mk_jinja_apply(m, node->filter, input, &arguments, out);
}

static mk_status eval_item(jinja *m, const jinja_node *node, jinja_value *out) {
  const jinja_node *index = node->kids[1];
  jinja_value object, at, range[3] = {0};
  MK_TRY(mk_jinja_eval(m, node->kids[0], &object));
  if (index->kind != NODE_SLICE) {
    MK_TRY(mk_jinja_eval(m, index, &at));
    return mk_jinja_item(m, object, at, out);
  }
  for (size_t i = 0; i < 3; i++) {
    if (index->kids[i] != NULL) {
      MK_TRY(mk_jinja_eval(m, index->kids[i], &range[i]));
    }
  }
  return mk_jinja_slice(m, object, range, out);
}

static mk_status eval_compare(jinja *m, const jinja_node *node, jinja_value *out) {
  jinja_value left, right;
  bool holds = true;
  MK_TRY(mk_jinja_eval(m, node->kids[0], &left));
  for (const jinja_node *next = node->kids[1]; next != NULL && holds; next = next->next, left = right) {
    int order = 0;
    MK_TRY(mk_jinja_eval(m, next->kids[0], &right));
    m->line = next->line;
    switch (next->symbol) {
      case OPERATOR_EQUAL:
      case OPERATOR_DIFFERS:
        MK_TRY(mk_jinja_equal(m, left, right, &holds));
        holds = holds == (next->symbol == OPERATOR_EQUAL);
        break;
      case OPERATOR_IN:
      case OPERATOR_NOT_IN:
        MK_TRY(mk_jinja_contains(m, right, left, &holds));
        holds = holds == (next->symbol == OPERATOR_IN);
        break;
      default:
        MK_TRY(mk_jinja_order(m, left, right, next->symbol, &order));
        holds = (next->symbol >> 8 != 0 && order == 0) ||
                (next->symbol == OPERATOR_AT_MOST || next->symbol == JINJA_OPERATOR(0, '<') ? order < 0 : order > 0);
        break;
    }
  }
  *out = mk_jinja_bool(holds);
  return MK_OK;
}

static mk_status eval_concat(jinja *m, const jinja_node *node, jinja_value *out) {
  jinja_output text = {0};
  mk_status status = MK_OK;
  for (; node != NULL && status == MK_OK; node = node->next) {
    jinja_value part;
    MK_TRY_GOTO(mk_jinja_eval(m, node, &part), done);
    MK_TRY_GOTO(mk_jinja_str(m, part, &part), done);
    MK_TRY_GOTO(mk_jinja_write(m, &text, part.text, part.length), done);
  }
  status = mk_jinja_copy(m, text.text, text.length, out);
done:
  mk_free(text.text);
  return status;
}

static mk_status eval_sign(jinja *m, const jinja_node *node, jinja_value *out) {
  jinja_value v;
  int64_t whole;
  MK_TRY(mk_jinja_eval(m, node->kids[0], &v));
  if (v.kind == JINJA_UNDEFINED) {
    return mk_jinja_fail_undefined(m, v);
  }
  if (mk_jinja_whole(v, &whole)) {
    *out = mk_jinja_int(whole);
    return node->kind == NODE_PLUS
               ? MK_OK
               : mk_jinja_binary(m, JINJA_OPERATOR(0, '-'), mk_jinja_int(0), mk_jinja_int(whole), out);
  }
  if (v.kind != JINJA_FLOAT) {
    return mk_jinja_fail(m->line, "bad operand type for unary %c: '%s'", node->kind == NODE_PLUS ? '+' : '-',
                         mk_jinja_type(v));
  }
  *out = mk_jinja_float(node->kind == NODE_PLUS ? v.real : -v.real);
  return MK_OK;
}

static mk_status eval_choice(jinja *m, const jinja_node *node, jinja_value *out) {
  jinja_value condition;
  MK_TRY(mk_jinja_eval(m, node->kids[0], &condition));
  if (mk_jinja_truth(condition)) {
    return mk_jinja_eval(m, node->kids[1], out);
  }
  if (node->kids[2] != NULL) {
    return mk_jinja_eval(m, node->kids[2], out);
  }
  jinja_undefined *why;
  MK_TRY(mk_jinja_alloc(&m->pool, 1, sizeof *why, &why));
  char *hint;
  MK_TRY(mk_jinja_alloc(&m->pool, 128, 1, &hint));
  snprintf(hint, 128, "the inline if-expression on line %u evaluated to false and no else section was defined.",
           node->line);
  why->hint = hint;
  *out = (jinja_value){.kind = JINJA_UNDEFINED, .undefined = why};
  return MK_OK;
}

static mk_status eval_operation(jinja *m, const jinja_node *node, jinja_value *out) {
  jinja_value left, right;
  MK_TRY(mk_jinja_eval(m, node->kids[0], &left));
  switch (node->kind) {
    case NODE_ATTRIBUTE:
      return mk_jinja_attribute(m, left, node->value, out);
    case NODE_NOT:
      *out = mk_jinja_bool(!mk_jinja_truth(left));
      return MK_OK;
    case NODE_AND:
    case NODE_OR:
      if (mk_jinja_truth(left) == (node->kind == NODE_OR)) {
        *out = left;
        return MK_OK;
      }
      return mk_jinja_eval(m, node->kids[1], out);
    default: /* NODE_BINARY */
      MK_TRY(mk_jinja_eval(m, node->kids[1], &right));
      m->line = node->line;
      return mk_jinja_binary(m, node->symbol, left, right, out);
  }
}

static mk_status eval(jinja *m, const jinja_node *node, jinja_value *out) {
  switch (node->kind) {
    case NODE_CONSTANT:
      *out = node->value;
      return MK_OK;
    case NODE_NAME:
      return lookup(m, node->value, out);
    case NODE_LIST:
      return eval_elements(m, node->kids[0], JINJA_IS_LIST, out);
    case NODE_TUPLE:
      return eval_elements(m, node->kids[0], JINJA_IS_TUPLE, out);
    case NODE_DICT:
      return eval_dict(m, node->kids[0], out);
    case NODE_ITEM:
      return eval_item(m, node, out);
    case NODE_CALL:
      return eval_call(m, node, out);
    case NODE_FILTER:
    case NODE_TEST:
      return eval_filter(m, node, out);
    case NODE_NEGATE:
    case NODE_PLUS:
      return eval_sign(m, node, out);
    case NODE_COMPARE:
      return eval_compare(m, node, out);
    case NODE_CONCAT:
      return eval_concat(m, node->kids[0], out);
    case NODE_CHOICE:
      return eval_choice(m, node, out);
    default:
      return eval_operation(m, node, out);
  }
}

mk_status mk_jinja_eval(jinja *m, const jinja_node *node, jinja_value *out) {
  jinja_value result = {0};
  m->line = node->line;
  MK_TRY(mk_jinja_enter(m));
  MK_TRY(eval(m, node, &result));
  m->depth--;
  *out = result;
  return MK_OK;
}

/* A name, several names, or an attribute of a namespace. */
static mk_status assign(jinja *m, const jinja_node *target, jinja_value value) {
  const jinja_list *parts;
  size_t i = 0;
  jinja_value object;
  if (target->kind == NODE_NAME) {
    return mk_jinja_set(m, m->scope, target->value, value);
  }
  if (target->kind == NODE_ATTRIBUTE) {
    MK_TRY(mk_jinja_eval(m, target->kids[0], &object));
    if (object.kind != JINJA_NAMESPACE) {
      return mk_jinja_fail(target->line, "cannot assign attribute on non-namespace object");
    }
    if (target->value.length > 0 && target->value.text[0] == '_') {
      return mk_jinja_fail(target->line, "an attribute of a namespace may not start with an underscore: '%.*s'",
                           JINJA_SHOWN(target->value));
    }
    return mk_jinja_put(m, object.dict, target->value, value);
  }
  MK_TRY(mk_jinja_iterate(m, value, &parts));
  for (const jinja_node *name = target->kids[0]; name != NULL; name = name->next, i++) {
    if (i == parts->count) {
      return mk_jinja_fail(target->line, "not enough values to unpack: there are %zu", parts->count);
    }
    MK_TRY(mk_jinja_set(m, m->scope, name->value, parts->items[i]));
  }
  return i == parts->count ? MK_OK : mk_jinja_fail(target->line, "too many values to unpack (expected %zu)", i);
}

mk_status mk_jinja_capture(jinja *m, const jinja_node *body, jinja_value *out) {
  jinja_output output = {0}, *before = m->output;
  m->output = &output;
  mk_status status = mk_jinja_run(m, body);
  m->output = before;
  if (status == MK_OK) {
    status = mk_jinja_copy(m, output.text, output.length, out);
  }
  mk_free(output.text);
  return status;
}

/* The items that the loop's `if` lets pass. */
static mk_status filter_items(jinja *m, const jinja_node *node, const jinja_list **list) {
  jinja_value kept, condition;
  size_t count = 0;
  jinja_scope *before = m->scope;
  MK_TRY(mk_jinja_new_list(m, (*list)->count, JINJA_IS_LIST, &kept));
  for (size_t i = 0; i < (*list)->count; i++) {
    MK_TRY(new_scope(m, before, &m->scope));
    MK_TRY(assign(m, node->kids[0], (*list)->items[i]));
    MK_TRY(mk_jinja_eval(m, node->kids[4], &condition));
    if (mk_jinja_truth(condition)) {
      kept.list->items[count++] = (*list)->items[i];
    }
  }
  m->scope = before;
  kept.list->count = count;
  *list = kept.list;
  return MK_OK;
}

/* As in jinja2, `else` is run when no item came to the end of the body, break and continue included. */
static mk_status run_for(jinja *m, const jinja_node *node) {
  jinja_value iterable;
  const jinja_list *list;
  jinja_scope *before = m->scope;
  bool completed = false;
  MK_TRY(mk_jinja_eval(m, node->kids[1], &iterable));
  MK_TRY(mk_jinja_iterate(m, iterable, &list));
  if (node->kids[4] != NULL) {
    MK_TRY(filter_items(m, node, &list));
  }
  for (size_t i = 0; i < list->count && m->flow != FLOW_BREAK; i++) {
    jinja_loop *loop; /* of its own for each item: a macro or a namespace may keep it */
    MK_TRY(mk_jinja_step(m, 0));
    MK_TRY(mk_jinja_alloc(&m->pool, 1, sizeof *loop, &loop));
    *loop = (jinja_loop){.list = list, .index = i};
    MK_TRY(new_scope(m, before, &m->scope));
    MK_TRY(mk_jinja_set(m, m->scope, mk_jinja_literal("loop"), (jinja_value){.kind = JINJA_LOOP, .loop = loop}));
    MK_TRY(assign(m, node->kids[0], list->items[i]));
    m->flow = FLOW_NEXT;
    MK_TRY(mk_jinja_run(m, node->kids[2]));
    completed |= m->flow == FLOW_NEXT;
  }
  m->flow = FLOW_NEXT;
  if (!completed) {
    MK_TRY(new_scope(m, before, &m->scope));
    MK_TRY(mk_jinja_run(m, node->kids[3]));
  }
  m->scope = before;
  return MK_OK;
}

static mk_status run_if(jinja *m, const jinja_node *node) {
  jinja_value condition;
  MK_TRY(mk_jinja_eval(m, node->kids[0], &condition));
  return mk_jinja_run(m, node->kids[mk_jinja_truth(condition) ? 1 : 2]);
}

static mk_status run_scope(jinja *m, const jinja_node *node) {
  jinja_scope *before = m->scope;
  MK_TRY(new_scope(m, before, &m->scope));
  MK_TRY(mk_jinja_run(m, node->kids[0]));
  m->scope = before;
  return MK_OK;
}

static mk_status run_set_block(jinja *m, const jinja_node *node) {
  jinja_value value;
  jinja_scope *before = m->scope;
  MK_TRY(new_scope(m, before, &m->scope));
  MK_TRY(mk_jinja_capture(m, node->kids[1], &value));
  m->scope = before;
  return m->flow == FLOW_NEXT ? assign(m, node->kids[0], value) : MK_OK;
}

static mk_status run_macro(jinja *m, const jinja_node *node) {
  jinja_macro *macro;
  MK_TRY(mk_jinja_alloc(&m->pool, 1, sizeof *macro, &macro));
  *macro = (jinja_macro){.node = node, .scope = m->scope};
  return mk_jinja_set(m, m->scope, node->value, (jinja_value){.kind = JINJA_MACRO, .macro = macro});
}

static mk_status run_one(jinja *m, const jinja_node *node) {
  jinja_value value;
  switch (node->kind) {
    case NODE_TEXT:
      return mk_jinja_write(m, m->output, node->value.text, node->value.length);
    case NODE_PRINT:
      MK_TRY(mk_jinja_eval(m, node->kids[0], &value));
      MK_TRY(mk_jinja_str(m, value, &value));
      return mk_jinja_write(m, m->output, value.text, value.length);
    case NODE_IF:
      return run_if(m, node);
    case NODE_FOR:
      return run_for(m, node);
    case NODE_SET:
      MK_TRY(mk_jinja_eval(m, node->kids[1], &value));
      return assign(m, node->kids[0], value);
    case NODE_SET_BLOCK:
      return run_set_block(m, node);
    case NODE_MACRO:
      return run_macro(m, node);
    case NODE_SCOPE:
      return run_scope(m, node);
    default: /* NODE_BREAK, NODE_CONTINUE */
      m->flow = node->kind == NODE_BREAK ? FLOW_BREAK : FLOW_CONTINUE;
      return MK_OK;
  }
}

mk_status mk_jinja_run(jinja *m, const jinja_node *list) {
  MK_TRY(mk_jinja_enter(m));
  for (; list != NULL && m->flow == FLOW_NEXT; list = list->next) {
    m->line = list->line;
    MK_TRY(mk_jinja_step(m, 0));
    MK_TRY(run_one(m, list));
  }
  m->depth--;
  return MK_OK;
}

mk_status mk_template_compile(const char *text, size_t length, mk_template **out) {
  jinja_tokens tokens = {0};
  mk_template *made;
  mk_status status;
  if (length > MK_TEMPLATE_MAX_BYTES) {
    return mk_error(MK_ERR_FILE, "chat template: it has %zu bytes; at most %d are supported", length,
                    MK_TEMPLATE_MAX_BYTES);
  }
  size_t valid = length == 0 ? 0 : mk_utf8_valid_prefix((const uint8_t *)text, length);
  if (valid < length) {
    return mk_error(MK_ERR_FILE, "chat template: byte %zu is not UTF-8; save it as UTF-8", valid);
  }
  MK_TRY(mk_alloc(1, sizeof *made, &made));
  made->pool.limit = (size_t)8 * MK_TEMPLATE_MAX_MEMORY;
  MK_TRY_GOTO(mk_jinja_lex(&made->pool, text, length, &tokens), done);
  status = mk_jinja_parse(&made->pool, &tokens, &made->body);
done:
  mk_free(tokens.items);
  if (status != MK_OK) {
    mk_template_free(made);
    return status;
  }
  *out = made;
  return MK_OK;
}

void mk_template_free(mk_template *compiled) {
  if (compiled != NULL) {
    mk_jinja_pool_free(&compiled->pool);
    mk_free(compiled);
  }
}

static mk_status render(jinja *m, const mk_template *compiled, const json_t *variables) {
  jinja_scope *globals;
  const char *key;
  json_t *value, *object = (json_t *)(uintptr_t)variables; /* the iteration macro takes no const */
  MK_TRY(new_scope(m, NULL, &globals));
  json_object_foreach(object, key, value) {
    jinja_value converted;
    MK_TRY(mk_jinja_from_json(m, value, &converted));
    MK_TRY(mk_jinja_set(m, globals, mk_jinja_literal(key), converted));
  }
  MK_TRY(new_scope(m, globals, &m->scope));
  MK_TRY(mk_jinja_write(m, m->output, "", 0));
  return mk_jinja_run(m, compiled->body);
}

mk_status mk_template_render(const mk_template *compiled, const json_t *variables, const struct tm *now, char **text,
                             size_t *length) {
  jinja_output output = {0};
  jinja m = {.pool = {.limit = MK_TEMPLATE_MAX_MEMORY}, .output = &output, .now = now};
  mk_status status = render(&m, compiled, variables);
  mk_jinja_pool_free(&m.pool);
  if (status != MK_OK) {
    mk_free(output.text);
    return status;
  }
  *text = output.text;
  *length = output.length;
  return MK_OK;
}
