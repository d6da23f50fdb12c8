/* Evaluation of expressions. */
#include <stdio.h>
#include <string.h>

#include "text/template_internal.h"

static mk_status eval_name(jinja *m, const jinja_node *node, jinja_value *out) {
  *out = *mk_jinja_slot(m, node->place);
  return out->kind != JINJA_MISSING ? MK_OK
                                    : mk_jinja_undefined(m, (jinja_value){.kind = JINJA_MISSING}, node->value, out);
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

static mk_status eval_filter(jinja *m, const jinja_node *node, jinja_value *out) {
  jinja_value input;
  jinja_arguments arguments;
  if (node->filter == NULL) {
    return mk_jinja_fail_unknown(node);
  }
  MK_TRY(mk_jinja_eval(m, node->kids[0], &input));
  MK_TRY(mk_jinja_eval_arguments(m, node->kids[1], &arguments));
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
done:
  return mk_jinja_written(m, status, &text, out);
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
  char *hint;
  MK_TRY(mk_jinja_alloc(&m->pool, 128, 1, &hint));
  snprintf(hint, 128, "the inline if-expression on line %u evaluated to false and no else section was defined.",
           node->line);
  return mk_jinja_new_undefined(m, hint, out);
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
      return eval_name(m, node, out);
    case NODE_CAPTURED:
      *out = m->captured;
      return MK_OK;
    case NODE_LIST:
      return eval_elements(m, node->kids[0], JINJA_IS_LIST, out);
    case NODE_TUPLE:
      return eval_elements(m, node->kids[0], JINJA_IS_TUPLE, out);
    case NODE_DICT:
      return eval_dict(m, node->kids[0], out);
    case NODE_ITEM:
      return eval_item(m, node, out);
    case NODE_CALL:
      return mk_jinja_eval_call(m, node, NULL, out);
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
