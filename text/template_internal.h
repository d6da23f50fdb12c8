/* The running machine: what the files of the template interpreter share besides values (template_values.h) and the tree
 * (template_tree.h).
 *
 * Private to text/template*.c. One thread per machine. */
#ifndef MK_TEMPLATE_INTERNAL_H
#define MK_TEMPLATE_INTERNAL_H

#include "text/template_tree.h"

/* The variables of one run of a function: jinja_shape says which. A function sees the records that it was made in, as
 * they are when it runs. */
typedef struct jinja_record {
  jinja_value *slots;
  struct jinja_record *outer;
} jinja_record;

typedef struct jinja_macro {
  const jinja_node *node; /* NODE_MACRO or NODE_CALL_BLOCK */
  jinja_record *record;   /* where it was defined */
} jinja_macro;

typedef struct jinja_loop {
  jinja_iterator iterator;
  jinja_value iterable;
  int64_t index, length;                            /* length: -1 until it is asked for */
  jinja_value before, current, after, last_changed; /* JINJA_MISSING: none */
  const jinja_node *node;                           /* of a recursive loop */
  jinja_record *record;                             /* where that stands */
  int64_t depth;
} jinja_loop;

typedef enum jinja_flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE } jinja_flow;

struct jinja {
  jinja_pool pool;
  jinja_dict variables; /* the caller's */
  jinja_record *record;
  jinja_output *output;
  jinja_value captured; /* NODE_CAPTURED */
  const struct tm *now;
  jinja_flow flow;
  unsigned depth;
  uint32_t line; /* of what is being evaluated */
  uint64_t steps;
};

/* A filter, test, method or function. `parameters` are its names, separated by commas; those in front of a '/' cannot
 * be given by name; NULL: it takes any. Arguments arrive in slots in that order, JINJA_MISSING where not given. */
enum { JINJA_MAX_PARAMETERS = 4 };
typedef mk_status (*jinja_call)(jinja *m, jinja_value input, const jinja_value *slots, const jinja_arguments *all,
                                jinja_value *out);
#define JINJA_ARGUMENTS                                                                                     \
  __attribute__((unused)) jinja *m, __attribute__((unused)) jinja_value v,                                  \
      __attribute__((unused)) const jinja_value *slots, __attribute__((unused)) const jinja_arguments *all, \
      __attribute__((unused)) jinja_value *out
typedef struct jinja_function {
  const char *name, *parameters;
  unsigned required;
  jinja_call call;
} jinja_function;

typedef struct jinja_method {
  const jinja_function *function;
  jinja_value object;
} jinja_method;

/* NULL when there is none; tables end with a NULL name. */
const jinja_function *mk_jinja_find(const jinja_function *table, jinja_value name);
const jinja_function *mk_jinja_find_filter(jinja_value name);
const jinja_function *mk_jinja_find_test(jinja_value name);
const jinja_function *mk_jinja_find_global(jinja_value name);
/* Whether `name` is one of the words of a list, which have a space on both sides. */
bool mk_jinja_listed(const char *words, jinja_value name);
/* What jinja2 has and this does not, as such lists. */
extern const char mk_jinja_missing_filters[];
/* The tables of filters, by the file that has them. */
extern const jinja_function mk_jinja_text_filters[], mk_jinja_list_filters[], mk_jinja_lazy_filters[];
extern const jinja_function mk_jinja_string_methods[];

/* The method or other attribute `name` that Python's type of the value has: *out stays JINJA_MISSING when there is
 * none; one that jinja2's sandbox denies is undefined; one that Python has but not this is an error. */
mk_status mk_jinja_find_method(jinja *m, jinja_value object, jinja_value name, jinja_value *out);
mk_status mk_jinja_apply(jinja *m, const jinja_function *function, jinja_value input, const jinja_arguments *arguments,
                         jinja_value *out);
mk_status mk_jinja_call_value(jinja *m, jinja_value callee, const jinja_arguments *arguments, jinja_value *out);
mk_status mk_jinja_call_macro(jinja *m, const jinja_macro *macro, const jinja_arguments *arguments, jinja_value *out);
mk_status mk_jinja_loop_attribute(jinja *m, jinja_value object, jinja_value name, jinja_value *out);
mk_status mk_jinja_cycler_attribute(jinja *m, jinja_value object, jinja_value name, jinja_value *out);

mk_status mk_jinja_step(jinja *m, size_t bytes); /* counts one step, and more for that many bytes of work */
mk_status mk_jinja_enter(jinja *m);              /* one level deeper; m->depth-- leaves it */

/* Running. */
mk_status mk_jinja_eval(jinja *m, const jinja_node *node, jinja_value *out);
mk_status mk_jinja_eval_arguments(jinja *m, const jinja_node *node, jinja_arguments *out);
mk_status mk_jinja_eval_call(jinja *m, const jinja_node *node, const jinja_value *caller, jinja_value *out);
mk_status mk_jinja_assign(jinja *m, const jinja_node *target, jinja_value value);
mk_status mk_jinja_run(jinja *m, const jinja_node *list);
mk_status mk_jinja_capture(jinja *m, const jinja_node *body, jinja_value *out); /* what the body prints */
mk_status mk_jinja_run_for(jinja *m, const jinja_node *node);
/* The body of a recursive loop over `iterable`, as text. */
mk_status mk_jinja_recurse(jinja *m, const jinja_node *node, jinja_record *record, jinja_value iterable, int64_t depth,
                           jinja_value *out);

/* Scopes. */
mk_status mk_jinja_new_record(jinja *m, const jinja_shape *shape, jinja_record *outer, jinja_record **out);
mk_status mk_jinja_enter_frame(jinja *m, const jinja_frame *frame);
void mk_jinja_leave_frame(jinja *m, const jinja_frame *frame);
jinja_value *mk_jinja_slot(const jinja *m, jinja_place place);

#endif
