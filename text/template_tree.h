/* The syntax tree of a template and the tokens that it is made from.
 *
 * Private to text/template*.c. Nodes live in the pool of the compiled template; once it is compiled nothing changes
 * them. */
#ifndef MK_TEMPLATE_TREE_H
#define MK_TEMPLATE_TREE_H

#include "text/template_values.h"

typedef enum jinja_node_kind {
  /* expressions: kids */
  NODE_CONSTANT, /* value */
  NODE_NAME,     /* value: its name; up, slot: where it lies, see jinja_record */
  NODE_CAPTURED, /* what the filter of a block is applied to */
  NODE_LIST,     /* 0: elements */
  NODE_TUPLE,
  NODE_DICT,        /* 0: key, value, key, value... */
  NODE_ATTRIBUTE,   /* 0: object; value: name */
  NODE_ITEM,        /* 0: object, 1: index */
  NODE_SLICE,       /* 0, 1, 2: start, stop, step, each or none */
  NODE_CALL,        /* 0: callee, 1: arguments */
  NODE_KEYWORD,     /* 0: expression; value: name; among arguments */
  NODE_STAR,        /* 0: expression; among arguments: *expression */
  NODE_DOUBLE_STAR, /* 0: expression; among arguments: **expression */
  NODE_FILTER, /* 0: input, 1: arguments; value: name; filter: NULL where there is none and it may not be reached */
  NODE_TEST,   /* the same */
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
  NODE_TEXT,         /* value */
  NODE_PRINT,        /* 0 */
  NODE_IF,           /* 0: condition, 1: body, 2: else; is_elif: it stands alone in the else of the one before */
  NODE_FOR,          /* 0: target, 1: iterable, 2: body, 3: else, 4: filter; scoping */
  NODE_SET,          /* 0: target, 1: expression */
  NODE_SET_BLOCK,    /* 0: target, 1: body, 2: filter or none; scoping */
  NODE_MACRO,        /* 0: parameters (NODE_NAME with a default as kid 0), 1: body, 2: the NODE_NAME it is stored to;
                 scoping */
  NODE_CALL_BLOCK,   /* 0: parameters, 1: body, 2: NODE_CALL, or none in a generation block; scoping */
  NODE_FILTER_BLOCK, /* 0: body, 1: filter; scoping */
  NODE_WITH,         /* 0: targets, 1: as many expressions, 2: body; scoping */
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

/* Where a variable lies: in the record `up` levels out, at `slot`. */
typedef struct jinja_place {
  uint32_t up, slot;
} jinja_place;

/* What happens to a variable where its scope is entered; it is missing where the scope is left. */
typedef enum jinja_load_kind {
  LOAD_PARAMETER, /* whoever enters gives it its value */
  LOAD_RESOLVE,   /* the value that the caller's variables or the environment have by that name */
  LOAD_ALIAS,     /* the value of a variable of a scope around */
  LOAD_MISSING,
} jinja_load_kind;

typedef struct jinja_load {
  uint8_t kind; /* jinja_load_kind */
  uint32_t slot;
  jinja_place from; /* of LOAD_ALIAS */
  jinja_value name;
} jinja_load;

typedef struct jinja_frame {
  jinja_load *loads;
  size_t count;
} jinja_frame;

/* A piece of template with variables of its own: the template, a macro, the body of a call or generation block, a
 * recursive loop, the filter of a loop. Scopes within a function share its record. */
typedef struct jinja_shape {
  uint32_t slots;
} jinja_shape;

enum { NO_SLOT = UINT32_MAX };

/* What template_scope.c finds out of the scopes that a statement opens. */
typedef struct jinja_scoping {
  jinja_frame body, other; /* other: of a loop's else */
  jinja_frame test;        /* of a loop's filter */
  jinja_shape *shape;      /* of a macro, call block or recursive loop */
  jinja_shape *test_shape;
  struct jinja_node *test_target;   /* the target once more, as the filter has it */
  uint32_t loop;                    /* slot of `loop`, or NO_SLOT */
  uint32_t caller, kwargs, varargs; /* slots, NO_SLOT when the body does not ask for them */
  bool accesses_caller, has_caller; /* has_caller: `caller` is one of the parameters */
  size_t parameters;                /* how many */
} jinja_scoping;

typedef struct jinja_node {
  uint8_t kind; /* jinja_node_kind */
  bool is_elif, recursive;
  uint16_t symbol;
  uint32_t line;
  uint32_t height; /* of the tree below */
  jinja_place place;
  jinja_value value;
  const struct jinja_function *filter;
  jinja_scoping *scoping;
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
  jinja_frame frame;
  jinja_shape shape;
};

/* Tokens of a source; they are the caller's (mk_free items), their texts live in the pool. */
mk_status mk_jinja_lex(jinja_pool *pool, const char *text, size_t length, jinja_tokens *out);
mk_status mk_jinja_parse(jinja_pool *pool, const jinja_tokens *tokens, jinja_node **out);
/* Gives every variable of the parsed template its place. */
mk_status mk_jinja_place_variables(mk_template *made);
/* The error of a filter or test that is not there. */
mk_status mk_jinja_fail_unknown(const jinja_node *node);

#endif
