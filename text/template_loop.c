/* Running loops: with a filter, with `else`, and recursive ones. */
#include "text/template_internal.h"

/* The filter of a loop while it runs: a function of its own. */
typedef struct loop_filter {
  const jinja_node *node;
  jinja_record *record;
} loop_filter;

static mk_status next_filtered(jinja *m, jinja_generator *generator, jinja_value *out) {
  const loop_filter *filter = generator->state;
  jinja_record *before = m->record;
  jinja_value condition, item;
  do {
    MK_TRY(mk_jinja_next(m, &generator->source, &item));
    if (item.kind == JINJA_MISSING) {
      break;
    }
    m->record = filter->record;
    MK_TRY(mk_jinja_assign(m, filter->node->scoping->test_target, item));
    MK_TRY(mk_jinja_eval(m, filter->node->kids[4], &condition));
    m->record = before;
  } while (!mk_jinja_truth(condition));
  *out = item;
  return MK_OK;
}

/* Keeps the items that pass the loop's filter; `outer`: where the loop stands. */
static mk_status filter_items(jinja *m, const jinja_node *node, jinja_record *outer, jinja_value *inout) {
  loop_filter *filter;
  jinja_record *before = m->record;
  MK_TRY(mk_jinja_alloc(&m->pool, 1, sizeof *filter, &filter));
  filter->node = node;
  MK_TRY(mk_jinja_new_record(m, node->scoping->test_shape, outer, &filter->record));
  m->record = filter->record;
  MK_TRY(mk_jinja_enter_frame(m, &node->scoping->test));
  m->record = before;
  return mk_jinja_new_generator(m, next_filtered, *inout, filter, inout);
}

static mk_status next_item(jinja *m, jinja_loop *loop, jinja_value *out) {
  if (loop->after.kind != JINJA_MISSING) {
    *out = loop->after;
    loop->after = (jinja_value){.kind = JINJA_MISSING};
  } else {
    MK_TRY(mk_jinja_next(m, &loop->iterator, out));
  }
  if (out->kind != JINJA_MISSING) {
    loop->index++;
    loop->before = loop->current;
    loop->current = *out;
  }
  return MK_OK;
}

/* As in jinja2, `else` is run when no item came to the end of the body, break and continue included. */
static mk_status go_through(jinja *m, const jinja_node *node, jinja_loop *loop) {
  const jinja_scoping *scoping = node->scoping;
  bool completed = false;
  jinja_value item;
  while (m->flow != FLOW_BREAK) {
    m->flow = FLOW_NEXT;
    MK_TRY(mk_jinja_step(m, 0));
    MK_TRY(next_item(m, loop, &item));
    if (item.kind == JINJA_MISSING) {
      break;
    }
    if (scoping->loop != NO_SLOT) {
      m->record->slots[scoping->loop] = (jinja_value){.kind = JINJA_LOOP, .loop = loop};
    }
    MK_TRY(mk_jinja_assign(m, node->kids[0], item));
    MK_TRY(mk_jinja_enter_frame(m, &scoping->body));
    MK_TRY(mk_jinja_run(m, node->kids[2]));
    completed |= m->flow == FLOW_NEXT;
  }
  m->flow = FLOW_NEXT;
  mk_jinja_leave_frame(m, &scoping->body);
  if (!completed && node->kids[3] != NULL) {
    MK_TRY(mk_jinja_enter_frame(m, &scoping->other));
    MK_TRY(mk_jinja_run(m, node->kids[3]));
    if (m->flow == FLOW_NEXT) {
      mk_jinja_leave_frame(m, &scoping->other);
    }
  }
  return MK_OK;
}

static mk_status new_loop(jinja *m, jinja_value iterable, jinja_loop **out) {
  MK_TRY(mk_jinja_alloc(&m->pool, 1, sizeof **out, out));
  (*out)->iterable = iterable;
  (*out)->index = (*out)->length = -1;
  return mk_jinja_start(m, iterable, &(*out)->iterator);
}

mk_status mk_jinja_recurse(jinja *m, const jinja_node *node, jinja_record *record, jinja_value iterable, int64_t depth,
                           jinja_value *out) {
  jinja_record *before = m->record;
  jinja_output output = {0}, *output_before = m->output;
  jinja_loop *loop;
  MK_TRY(mk_jinja_enter(m));
  if (node->kids[4] != NULL) {
    MK_TRY(filter_items(m, node, record, &iterable));
  }
  MK_TRY(new_loop(m, iterable, &loop));
  loop->node = node;
  loop->record = record;
  loop->depth = depth;
  MK_TRY(mk_jinja_new_record(m, node->scoping->shape, record, &m->record));
  m->output = &output;
  mk_status status = go_through(m, node, loop);
  m->output = output_before;
  m->record = before;
  MK_TRY(mk_jinja_written(m, status, &output, out));
  m->depth--;
  return MK_OK;
}

mk_status mk_jinja_run_for(jinja *m, const jinja_node *node) {
  jinja_value iterable, text;
  jinja_loop *loop;
  MK_TRY(mk_jinja_eval(m, node->kids[1], &iterable));
  if (node->recursive) {
    MK_TRY(mk_jinja_recurse(m, node, m->record, iterable, 0, &text));
    return mk_jinja_write(m, m->output, text.text, text.length);
  }
  if (node->kids[4] != NULL) {
    MK_TRY(filter_items(m, node, m->record, &iterable));
  }
  MK_TRY(new_loop(m, iterable, &loop));
  return go_through(m, node, loop);
}
