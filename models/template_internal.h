/* What the files of the template interpreter share: values, the syntax tree, the running machine.
 *
 * Private to models/template*.c. Values and nodes live in a pool and are freed with it as a whole; strings point into a
 * pool, the template's source or the caller's JSON. One thread per machine. */
#ifndef MK_TEMPLATE_INTERNAL_H
#define MK_TEMPLATE_INTERNAL_H

#include "models/template.h"

/* Memory that is freed at once. */
typedef struct jinja_pool {
  struct jinja_chunk *chunks;
  size_t used, limit; /* bytes */
} jinja_pool;

/* Zeroed memory in *out (a pointer to a pointer). */
mk_status mk_jinja_alloc(jinja_pool *pool, size_t count, size_t size, void *out);
void mk_jinja_pool_free(jinja_pool *pool);

typedef enum jinja_kind {
  JINJA_MISSING, /* no value: an argument that is not given */
  JINJA_UNDEFINED,
  JINJA_NONE,
  JINJA_BOOL,
  JINJA_INT,
  JINJA_FLOAT,
  JINJA_STRING,
  JINJA_LIST,
  JINJA_DICT,
  JINJA_NAMESPACE,
  JINJA_LOOP,
  JINJA_MACRO,
  JINJA_FUNCTION, /* of the environment */
  JINJA_METHOD,   /* of a value, bound to it */
} jinja_kind;

typedef enum jinja_sequence {
  JINJA_IS_LIST,
  JINJA_IS_TUPLE,
  JINJA_IS_RANGE,
  JINJA_IS_VIEW,      /* keys(), values(), items() of a dict: has a length, no elements by index */
  JINJA_IS_GENERATOR, /* what select, map and the like give: can be gone through once */
} jinja_sequence;

typedef struct jinja_value {
  uint8_t kind;    /* jinja_kind */
  uint32_t length; /* of a string, in bytes */
  union {
    bool boolean;
    int64_t integer;
    double real;
    const char *text; /* UTF-8, not terminated */
    struct jinja_list *list;
    struct jinja_dict *dict; /* a namespace too */
    struct jinja_loop *loop;
    const struct jinja_macro *macro;
    const struct jinja_function *function;
    const struct jinja_method *method;
    const struct jinja_undefined *undefined;
  };
} jinja_value;

typedef struct jinja_list {
  jinja_value *items;
  size_t count;
  size_t taken; /* of a generator */
  jinja_sequence sequence;
} jinja_list;

typedef struct jinja_pair {
  jinja_value key, value;
} jinja_pair;

typedef struct jinja_dict {
  jinja_pair *pairs; /* in the order of insertion */
  size_t count, capacity;
} jinja_dict;

/* Why there is no value. */
typedef struct jinja_undefined {
  jinja_value object; /* JINJA_MISSING: `name` is a variable */
  jinja_value name;
  const char *hint; /* instead of both */
} jinja_undefined;

typedef struct jinja_loop {
  const jinja_list *list;
  size_t index;
} jinja_loop;

typedef struct jinja_arguments {
  const jinja_value *positional;
  size_t count;
  const jinja_pair *named;
  size_t named_count;
} jinja_arguments;

typedef enum jinja_node_kind {
  /* expressions: kids */
  NODE_CONSTANT, /* value */
  NODE_NAME,     /* value: its name */
  NODE_LIST,     /* 0: elements */
  NODE_TUPLE,
  NODE_DICT,      /* 0: key, value, key, value... */
  NODE_ATTRIBUTE, /* 0: object; value: name */
  NODE_ITEM,      /* 0: object, 1: index */
  NODE_SLICE,     /* 0, 1, 2: start, stop, step, each or none */
  NODE_CALL,      /* 0: callee, 1: arguments */
  NODE_KEYWORD,   /* 0: expression; value: name; among arguments */
  NODE_FILTER,    /* 0: input, 1: arguments; filter */
  NODE_TEST,      /* 0: input, 1: arguments; filter */
  NODE_NOT,
  NODE_NEGATE,
  NODE_PLUS,
  NODE_BINARY, /* symbol */
  NODE_AND,
  NODE_OR,
  NODE_COMPARE, /* 0: first, 1: NODE_OPERANDs */
  NODE_OPERAND, /* 0: expression; symbol */
  NODE_CONCAT,  /* 0: parts */
  NODE_CHOICE,  /* 0: condition, 1: then, 2: else or none */
  /* statements */
  NODE_TEXT,      /* value */
  NODE_PRINT,     /* 0 */
  NODE_IF,        /* 0: condition, 1: body, 2: else */
  NODE_FOR,       /* 0: target, 1: iterable, 2: body, 3: else, 4: filter */
  NODE_SET,       /* 0: target, 1: expression */
  NODE_SET_BLOCK, /* 0: target, 1: body */
  NODE_MACRO,     /* 0: parameters (NODE_NAME with a default as kid 0), 1: body; value: name */
  NODE_SCOPE,     /* 0: body */
  NODE_BREAK,
  NODE_CONTINUE,
} jinja_node_kind;

/* Operators are their one or two characters. */
#define JINJA_OPERATOR(first, second) ((uint16_t)((unsigned)(first) << 8 | (unsigned char)(second)))
enum {
  OPERATOR_IN = JINJA_OPERATOR('i', 'n'),
  OPERATOR_NOT_IN = JINJA_OPERATOR('n', 'i'),
  OPERATOR_POWER = JINJA_OPERATOR('*', '*'),
  OPERATOR_FLOOR = JINJA_OPERATOR('/', '/'),
  OPERATOR_EQUAL = JINJA_OPERATOR('=', '='),
  OPERATOR_DIFFERS = JINJA_OPERATOR('!', '='),
  OPERATOR_AT_MOST = JINJA_OPERATOR('<', '='),
  OPERATOR_AT_LEAST = JINJA_OPERATOR('>', '='),
};

typedef struct jinja_node {
  uint8_t kind; /* jinja_node_kind */
  uint16_t symbol;
  uint32_t line;
  uint32_t height; /* of the tree below */
  jinja_value value;
  const struct jinja_function *filter;
  struct jinja_node *kids[5];
  struct jinja_node *next; /* in the list that it is part of */
} jinja_node;

typedef enum jinja_token_kind {
  TOKEN_END,
  TOKEN_TEXT,
  TOKEN_PRINT,
  TOKEN_PRINT_END,
  TOKEN_BLOCK,
  TOKEN_BLOCK_END,
  TOKEN_NAME,
  TOKEN_STRING,
  TOKEN_INT,
  TOKEN_FLOAT,
  TOKEN_OPERATOR,
} jinja_token_kind;

typedef struct jinja_token {
  uint8_t kind; /* jinja_token_kind */
  uint16_t symbol;
  uint32_t line;
  jinja_value value; /* names and text as strings */
} jinja_token;

typedef struct jinja_tokens {
  jinja_token *items;
  size_t count, capacity;
} jinja_tokens;

struct mk_template {
  jinja_pool pool;
  jinja_node *body;
};

/* Tokens of a source; they are the caller's (mk_free items), their texts live in the pool. */
mk_status mk_jinja_lex(jinja_pool *pool, const char *text, size_t length, jinja_tokens *out);
mk_status mk_jinja_parse(jinja_pool *pool, const jinja_tokens *tokens, jinja_node **out);

/* Variables of one block; a block sees those of the blocks around it. */
typedef struct jinja_scope {
  jinja_dict variables;
  struct jinja_scope *outer;
} jinja_scope;

typedef struct jinja_macro {
  const jinja_node *node;
  jinja_scope *scope; /* where it was defined */
} jinja_macro;

typedef struct jinja_output {
  char *text;
  size_t length, capacity;
} jinja_output;

typedef enum jinja_flow { FLOW_NEXT, FLOW_BREAK, FLOW_CONTINUE } jinja_flow;

typedef struct jinja {
  jinja_pool pool;
  jinja_scope *scope;
  jinja_output *output;
  const struct tm *now;
  jinja_flow flow;
  unsigned depth;
  uint32_t line; /* of what is being evaluated */
  uint64_t steps;
} jinja;

/* A filter, test, method or function. `parameters` are its names, separated by commas; NULL: it takes any. Arguments arrive in
 * slots in that order, JINJA_MISSING where not given. */
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

/* NULL when there is none. */
const jinja_function *mk_jinja_find_filter(jinja_value name);
const jinja_function *mk_jinja_find_test(jinja_value name);
const jinja_function *mk_jinja_find_global(jinja_value name);
/* The method `name` of a value: *out stays JINJA_MISSING when its type has none; one that the type has in Python but not here is
 * an error. */
mk_status mk_jinja_find_method(jinja *m, jinja_value object, jinja_value name, jinja_value *out);
mk_status mk_jinja_apply(jinja *m, const jinja_function *function, jinja_value input, const jinja_arguments *arguments,
                         jinja_value *out);

/* Errors: "chat template, line N: ...". */
mk_status mk_jinja_fail(uint32_t line, const char *format, ...) __attribute__((format(printf, 2, 3)));
mk_status mk_jinja_step(jinja *m, size_t bytes); /* counts one step, and more for that many bytes of work */
mk_status mk_jinja_enter(jinja *m);              /* one level deeper; m->depth-- leaves it */
#define JINJA_SHOWN(value) (int)((value).length < 80 ? (value).length : 80), (value).text

/* Values. */
jinja_value mk_jinja_string(const char *text, size_t length);
jinja_value mk_jinja_literal(const char *text); /* of static storage */
jinja_value mk_jinja_int(int64_t integer);
jinja_value mk_jinja_bool(bool boolean);
jinja_value mk_jinja_float(double real);
jinja_value mk_jinja_none(void);
mk_status mk_jinja_copy(jinja *m, const char *text, size_t length, jinja_value *out);
mk_status mk_jinja_new_list(jinja *m, size_t count, jinja_sequence sequence, jinja_value *out); /* elements: zeroed */
mk_status mk_jinja_new_dict(jinja *m, jinja_kind kind, jinja_value *out);
mk_status mk_jinja_check_key(jinja *m, jinja_value key); /* fails for what Python cannot hash */
mk_status mk_jinja_put(jinja *m, jinja_dict *dict, jinja_value key, jinja_value value);
mk_status mk_jinja_get(jinja *m, const jinja_dict *dict, jinja_value key,
                       jinja_value *out); /* JINJA_MISSING: not there */
mk_status mk_jinja_undefined(jinja *m, jinja_value object, jinja_value name, jinja_value *out);
/* The error of using a value that is not defined. */
mk_status mk_jinja_fail_undefined(jinja *m, jinja_value value);
bool mk_jinja_is(jinja_value string, const char *literal);
bool mk_jinja_truth(jinja_value value);
bool mk_jinja_number(jinja_value value, double *out); /* false: not a number; a bool is one, as in Python */
bool mk_jinja_whole(jinja_value value, int64_t *out); /* false: neither a whole number nor a bool */
const char *mk_jinja_type(jinja_value value);         /* Python's name of its type */
mk_status mk_jinja_equal(jinja *m, jinja_value left, jinja_value right, bool *out);
mk_status mk_jinja_order(jinja *m, jinja_value left, jinja_value right, uint16_t symbol, int *out); /* <0, 0, >0 */
mk_status mk_jinja_contains(jinja *m, jinja_value container, jinja_value item, bool *out);
/* All that iterating gives; a generator is empty afterwards. */
mk_status mk_jinja_iterate(jinja *m, jinja_value value, const jinja_list **out);
mk_status mk_jinja_length(jinja *m, jinja_value value, int64_t *out);
mk_status mk_jinja_attribute(jinja *m, jinja_value object, jinja_value name, jinja_value *out);
mk_status mk_jinja_item(jinja *m, jinja_value object, jinja_value index, jinja_value *out);
mk_status mk_jinja_slice(jinja *m, jinja_value object, const jinja_value range[3], jinja_value *out);
mk_status mk_jinja_binary(jinja *m, uint16_t symbol, jinja_value left, jinja_value right, jinja_value *out);

/* Text. */
mk_status mk_jinja_write(jinja *m, jinja_output *output, const char *text, size_t length);
mk_status mk_jinja_str(jinja *m, jinja_value value, jinja_value *out); /* Python's str() */
mk_status mk_jinja_json(jinja *m, jinja_value value, const jinja_value *slots, jinja_value *out);
mk_status mk_jinja_from_json(jinja *m, const json_t *json, jinja_value *out);
/* Where `what`, not empty, first stands in text; NULL: nowhere. */
const char *mk_jinja_search(const char *text, size_t length, const char *what, size_t what_length);
void mk_jinja_real(double real, char out[40]); /* Python's repr() */
size_t mk_jinja_characters(const char *text, size_t length);
size_t mk_jinja_encode(uint32_t character, char out[4]);
/* The first character of text and, in *length, its bytes. */
uint32_t mk_jinja_decode(const char *text, size_t *length);
bool mk_jinja_is_space(uint32_t character); /* Python's isspace() */

/* Running. */
mk_status mk_jinja_eval(jinja *m, const jinja_node *node, jinja_value *out);
mk_status mk_jinja_run(jinja *m, const jinja_node *list);
mk_status mk_jinja_capture(jinja *m, const jinja_node *body, jinja_value *out); /* what the body prints */
mk_status mk_jinja_call_value(jinja *m, jinja_value callee, const jinja_arguments *arguments, jinja_value *out);
mk_status mk_jinja_set(jinja *m, jinja_scope *scope, jinja_value name, jinja_value value);

#endif
