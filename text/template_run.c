/* Running statements. Loops: template_loop.c. */
#include <string.h>

#include "text/template_internal.h"

mk_status mk_jinja_new_record(jinja *m, const jinja_shape *shape, jinja_record *outer, jinja_record **out) {
  MK_TRY(mk_jinja_alloc(&m->pool, 1, sizeof **out, out));
  (*out)->outer = outer;
  return mk_jinja_alloc(&m->pool, shape->slots, sizeof *(*out)->slots, &(*out)->slots);
}

jinja_value *mk_jinja_slot(const jinja *m, jinja_place place) {
  jinja_record *record = m->record;
  for (uint32_t i = 0; i < place.up; i++) {
    record = record->outer;
  }
  return &record->slots[place.slot];
}

/* Finds a name in what the caller gave, or else in what the environment has. */
static mk_status resolve(jinja *m, jinja_value name, jinja_value *out) {
  MK_TRY(mk_jinja_get(m, &m->variables, name, out));
  const jinja_function *function = out->kind == JINJA_MISSING ? mk_jinja_find_global(name) : NULL;
  if (function != NULL) {
    *out = (jinja_value){.kind = JINJA_FUNCTION, .function = function};
  }
  return MK_OK;
}

mk_status mk_jinja_enter_frame(jinja *m, const jinja_frame *frame) {
  for (size_t i = 0; i < frame->count; i++) {
    const jinja_load *load = &frame->loads[i];
    jinja_value *slot = &m->record->slots[load->slot];
    if (load->kind == LOAD_RESOLVE) {
      MK_TRY(resolve(m, load->name, slot));
    } else if (load->kind == LOAD_ALIAS) {
      *slot = *mk_jinja_slot(m, load->from);
    } else if (load->kind == LOAD_MISSING) {
      *slot = (jinja_value){.kind = JINJA_MISSING};
    }
  }
  return mk_jinja_step(m, frame->count);
}

void mk_jinja_leave_frame(jinja *m, const jinja_frame *frame) {
  for (size_t i = 0; i < frame->count; i++) {
    m->record->slots[frame->loads[i].slot] = (jinja_value){.kind = JINJA_MISSING};
  }
}

static mk_status set_attribute(jinja *m, const jinja_node *target, jinja_value value) {
  jinja_value object;
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

/* Assigns to a name, an attribute of a namespace, or several of them. */
mk_status mk_jinja_assign(jinja *m, const jinja_node *target, jinja_value value) {
  const jinja_list *parts;
  size_t i = 0;
  if (target->kind == NODE_NAME) {
    *mk_jinja_slot(m, target->place) = value;
    return MK_OK;
  }
  if (target->kind == NODE_ATTRIBUTE) {
    return set_attribute(m, target, value);
  }
  MK_TRY(mk_jinja_iterate(m, value, &parts));
  for (const jinja_node *part = target->kids[0]; part != NULL; part = part->next, i++) {
    if (i == parts->count) {
      return mk_jinja_fail(target->line, "not enough values to unpack: there are %zu", parts->count);
    }
    MK_TRY(mk_jinja_assign(m, part, parts->items[i]));
  }
  return i == parts->count ? MK_OK : mk_jinja_fail(target->line, "too many values to unpack (expected %zu)", i);
}

mk_status mk_jinja_capture(jinja *m, const jinja_node *body, jinja_value *out) {
  jinja_output output = {0}, *before = m->output;
  m->output = &output;
  mk_status status = mk_jinja_run(m, body);
  m->output = before;
  return mk_jinja_written(m, status, &output, out);
}

/* Puts what a block printed through its filter, if it has one. */
static mk_status filter_captured(jinja *m, const jinja_node *filter, jinja_value captured, jinja_value *out) {
  jinja_value before = m->captured;
  *out = captured;
  if (filter == NULL) {
    return MK_OK;
  }
  m->captured = captured;
  MK_TRY(mk_jinja_eval(m, filter, out));
  m->captured = before;
  return MK_OK;
}

static mk_status run_if(jinja *m, const jinja_node *node) {
  jinja_value condition;
  MK_TRY(mk_jinja_eval(m, node->kids[0], &condition));
  return mk_jinja_run(m, node->kids[mk_jinja_truth(condition) ? 1 : 2]);
}

/* Where `break` and `continue` lead out of a block, nothing more happens in it. */
static mk_status run_set_block(jinja *m, const jinja_node *node) {
  jinja_value value;
  MK_TRY(mk_jinja_enter_frame(m, &node->scoping->body));
  MK_TRY(mk_jinja_capture(m, node->kids[1], &value));
  if (m->flow != FLOW_NEXT) {
    return MK_OK;
  }
  MK_TRY(filter_captured(m, node->kids[2], value, &value));
  MK_TRY(mk_jinja_assign(m, node->kids[0], value));
  mk_jinja_leave_frame(m, &node->scoping->body);
  return MK_OK;
}

static mk_status write_value(jinja *m, jinja_value value) {
  MK_TRY(mk_jinja_str(m, value, &value));
  return mk_jinja_write(m, m->output, value.text, value.length);
}

static mk_status run_filter_block(jinja *m, const jinja_node *node) {
  jinja_value value;
  MK_TRY(mk_jinja_enter_frame(m, &node->scoping->body));
  MK_TRY(mk_jinja_capture(m, node->kids[0], &value));
  if (m->flow != FLOW_NEXT) {
    return MK_OK;
  }
  MK_TRY(filter_captured(m, node->kids[1], value, &value));
  MK_TRY(write_value(m, value));
  mk_jinja_leave_frame(m, &node->scoping->body);
  return MK_OK;
}

static mk_status run_with(jinja *m, const jinja_node *node) {
  const jinja_node *expression = node->kids[1];
  jinja_value value;
  MK_TRY(mk_jinja_enter_frame(m, &node->scoping->body));
  for (const jinja_node *target = node->kids[0]; target != NULL; target = target->next) {
    MK_TRY(mk_jinja_eval(m, expression, &value));
    MK_TRY(mk_jinja_assign(m, target, value));
    expression = expression->next;
  }
  MK_TRY(mk_jinja_run(m, node->kids[2]));
  if (m->flow == FLOW_NEXT) {
    mk_jinja_leave_frame(m, &node->scoping->body);
  }
  return MK_OK;
}

static mk_status new_macro(jinja *m, const jinja_node *node, jinja_value *out) {
  jinja_macro *macro;
  MK_TRY(mk_jinja_alloc(&m->pool, 1, sizeof *macro, &macro));
  *macro = (jinja_macro){.node = node, .record = m->record};
  *out = (jinja_value){.kind = JINJA_MACRO, .macro = macro};
  return MK_OK;
}

static mk_status run_macro(jinja *m, const jinja_node *node) {
  jinja_value macro;
  MK_TRY(new_macro(m, node, &macro));
  return mk_jinja_assign(m, node->kids[2], macro);
}

/* A generation block is called where it stands. */
static mk_status run_call_block(jinja *m, const jinja_node *node) {
  const jinja_arguments none = {0};
  jinja_value macro, value;
  MK_TRY(new_macro(m, node, &macro));
  MK_TRY(node->kids[2] != NULL ? mk_jinja_eval_call(m, node->kids[2], &macro, &value)
                               : mk_jinja_call_macro(m, macro.macro, &none, &value));
  return write_value(m, value);
}

static mk_status run_one(jinja *m, const jinja_node *node) {
  jinja_value value;
  switch (node->kind) {
    case NODE_TEXT:
      return mk_jinja_write(m, m->output, node->value.text, node->value.length);
    case NODE_PRINT:
      MK_TRY(mk_jinja_eval(m, node->kids[0], &value));
      return write_value(m, value);
    case NODE_IF:
      return run_if(m, node);
    case NODE_FOR:
      return mk_jinja_run_for(m, node);
    case NODE_SET:
      MK_TRY(mk_jinja_eval(m, node->kids[1], &value));
      return mk_jinja_assign(m, node->kids[0], value);
    case NODE_SET_BLOCK:
      return run_set_block(m, node);
    case NODE_MACRO:
      return run_macro(m, node);
    case NODE_CALL_BLOCK:
      return run_call_block(m, node);
    case NODE_FILTER_BLOCK:
      return run_filter_block(m, node);
    case NODE_WITH:
      return run_with(m, node);
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
