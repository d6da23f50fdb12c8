/* The values of the template interpreter and what can be done with them.
 *
 * Private to text/template*.c. Values live in a pool and are freed with it as a whole; strings point into a pool, the
 * template's source or the caller's JSON. Functions that can fail set the error "chat template, line N: ...". */
#ifndef MK_TEMPLATE_VALUES_H
#define MK_TEMPLATE_VALUES_H

#include "text/template.h"

/* Memory that is freed at once. */
typedef struct jinja_pool {
  struct jinja_chunk *chunks;
  size_t used, limit; /* bytes */
} jinja_pool;

/* Zeroed memory in *out (a pointer to a pointer). */
mk_status mk_jinja_alloc(jinja_pool *pool, size_t count, size_t size, void *out);
void mk_jinja_pool_free(jinja_pool *pool);

typedef struct jinja jinja; /* the running machine: template_internal.h */

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
  JINJA_GENERATOR, /* what select, map and the like give: can be gone through once */
  JINJA_CYCLER,
  JINJA_JOINER,
  JINJA_MACRO,
  JINJA_FUNCTION, /* of the environment */
  JINJA_METHOD,   /* of a value, bound to it */
} jinja_kind;

typedef enum jinja_sequence {
  JINJA_IS_LIST,
  JINJA_IS_TUPLE,
  JINJA_IS_RANGE,
  JINJA_IS_KEYS, /* keys(), values(), items() of a dict: have a length, no elements by index */
  JINJA_IS_VALUES,
  JINJA_IS_ITEMS,
  JINJA_IS_VIEW = JINJA_IS_KEYS, /* it and what is above */
} jinja_sequence;

typedef struct jinja_value {
  uint8_t kind;    /* jinja_kind */
  bool markup;     /* a string that is marked as safe HTML: adding other text to it escapes that */
  uint32_t length; /* of a string, in bytes */
  union {
    bool boolean;
    int64_t integer;
    double real;
    const char *text; /* UTF-8, not terminated */
    struct jinja_list *list;
    struct jinja_dict *dict; /* a namespace too */
    struct jinja_loop *loop;
    struct jinja_generator *generator;
    struct jinja_cycler *cycler; /* a joiner too */
    const struct jinja_macro *macro;
    const struct jinja_function *function;
    const struct jinja_method *method;
    const struct jinja_undefined *undefined;
  };
} jinja_value;

typedef struct jinja_list {
  jinja_value *items;
  size_t count;
  jinja_sequence sequence;
  bool group;       /* a tuple whose elements are also `grouper` and `list` */
  int64_t range[3]; /* of a range: start, stop, step */
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

typedef struct jinja_cycler {
  jinja_value items; /* of a joiner: its separator */
  size_t at;
} jinja_cycler;

/* Goes through a value: a place in it. */
typedef struct jinja_iterator {
  jinja_value source;
  size_t at;
} jinja_iterator;

/* Gives one element at a time; *out is JINJA_MISSING after the last. */
typedef mk_status (*jinja_next)(jinja *m, struct jinja_generator *generator, jinja_value *out);
typedef struct jinja_generator {
  jinja_next next;
  jinja_iterator source;
  bool started, ended;
  bool skips_false; /* what is false need not be something to go through, and has no elements */
  void *state;      /* of `next` */
} jinja_generator;

typedef struct jinja_arguments {
  const jinja_value *positional;
  size_t count;
  const jinja_pair *named;
  size_t named_count;
} jinja_arguments;

mk_status mk_jinja_fail(uint32_t line, const char *format, ...) __attribute__((format(printf, 2, 3)));
#ifdef __clang_analyzer__ /* as mk_error in vm/status.h */
#define mk_jinja_fail(...) (mk_jinja_fail(__VA_ARGS__), MK_ERR_FILE)
#endif
#define JINJA_SHOWN(value) (int)((value).length < 80 ? (value).length : 80), (value).text

/* Making values. */
jinja_value mk_jinja_string(const char *text, size_t length);
jinja_value mk_jinja_literal(const char *text); /* of static storage */
jinja_value mk_jinja_int(int64_t integer);
jinja_value mk_jinja_bool(bool boolean);
jinja_value mk_jinja_float(double real);
jinja_value mk_jinja_none(void);
mk_status mk_jinja_copy(jinja *m, const char *text, size_t length, jinja_value *out);
mk_status mk_jinja_new_list(jinja *m, size_t count, jinja_sequence sequence, jinja_value *out); /* elements: zeroed */
mk_status mk_jinja_new_pair(jinja *m, jinja_value first, jinja_value second, jinja_value *out); /* a tuple */
mk_status mk_jinja_new_dict(jinja *m, jinja_kind kind, jinja_value *out);
mk_status mk_jinja_new_generator(jinja *m, jinja_next next, jinja_value source, void *state, jinja_value *out);
mk_status mk_jinja_new_undefined(jinja *m, const char *hint, jinja_value *out); /* hint: of static storage or a pool */
mk_status mk_jinja_undefined(jinja *m, jinja_value object, jinja_value name, jinja_value *out);
/* The error of using a value that is not defined. */
mk_status mk_jinja_fail_undefined(jinja *m, jinja_value value);

/* Dicts. */
mk_status mk_jinja_check_key(jinja *m, jinja_value key); /* fails for what Python cannot hash */
mk_status mk_jinja_put(jinja *m, jinja_dict *dict, jinja_value key, jinja_value value);
/* *out: JINJA_MISSING: not there. */
mk_status mk_jinja_get(jinja *m, const jinja_dict *dict, jinja_value key, jinja_value *out);

/* What Python says of them. */
bool mk_jinja_is(jinja_value string, const char *literal);
bool mk_jinja_truth(jinja_value value);
bool mk_jinja_number(jinja_value value, double *out); /* false: not a number; a bool is one, as in Python */
bool mk_jinja_whole(jinja_value value, int64_t *out); /* false: neither a whole number nor a bool */
const char *mk_jinja_type(jinja_value value);         /* Python's name of its type */
mk_status mk_jinja_equal(jinja *m, jinja_value left, jinja_value right, bool *out);
mk_status mk_jinja_order(jinja *m, jinja_value left, jinja_value right, uint16_t symbol, int *out); /* <0, 0, >0 */
mk_status mk_jinja_contains(jinja *m, jinja_value container, jinja_value item, bool *out);
bool mk_jinja_has_length(jinja_value value);
mk_status mk_jinja_length(jinja *m, jinja_value value, int64_t *out);
mk_status mk_jinja_binary(jinja *m, uint16_t symbol, jinja_value left, jinja_value right, jinja_value *out);

/* Going through a value. */
bool mk_jinja_can_iterate(jinja_value value);
mk_status mk_jinja_start(jinja *m, jinja_value value, jinja_iterator *out);
mk_status mk_jinja_next(jinja *m, jinja_iterator *at, jinja_value *out); /* JINJA_MISSING: the end */
/* All that iterating gives; a generator is empty afterwards. */
mk_status mk_jinja_iterate(jinja *m, jinja_value value, const jinja_list **out);
mk_status mk_jinja_to_list(jinja *m, jinja_value value, jinja_value *out); /* a new list */

/* Parts. */
mk_status mk_jinja_attribute(jinja *m, jinja_value object, jinja_value name, jinja_value *out);
mk_status mk_jinja_item(jinja *m, jinja_value object, jinja_value index, jinja_value *out);
mk_status mk_jinja_slice(jinja *m, jinja_value object, const jinja_value range[3], jinja_value *out);
/* a.b.0: element by element; whole numbers as such. `otherwise`: in place of what is undefined, unless missing or
 * none. */
mk_status mk_jinja_path(jinja *m, jinja_value object, jinja_value name, jinja_value otherwise, jinja_value *out);

/* Text. */
typedef struct jinja_output {
  char *text;
  size_t length, capacity;
} jinja_output;
mk_status mk_jinja_write(jinja *m, jinja_output *output, const char *text, size_t length);
mk_status mk_jinja_write_literal(jinja *m, jinja_output *output, const char *text);
/* What was written as a string, or `status` if that is an error; frees the output. */
mk_status mk_jinja_written(jinja *m, mk_status status, jinja_output *output, jinja_value *out);
mk_status mk_jinja_str(jinja *m, jinja_value value, jinja_value *out);  /* Python's str() */
mk_status mk_jinja_repr(jinja *m, jinja_value value, jinja_value *out); /* Python's repr() */
mk_status mk_jinja_json(jinja *m, jinja_value value, const jinja_value *slots, jinja_value *out);
mk_status mk_jinja_from_json(jinja *m, const json_t *json, jinja_value *out);
mk_status mk_jinja_escape(jinja *m, jinja_value value, jinja_value *out); /* for HTML; markup stays as it is */
/* Where `what`, not empty, first stands in text; NULL: nowhere. */
const char *mk_jinja_search(const char *text, size_t length, const char *what, size_t what_length);
void mk_jinja_real(double real, char out[40]); /* Python's repr() */
size_t mk_jinja_characters(const char *text, size_t length);
size_t mk_jinja_encode(uint32_t character, char out[4]);
/* The first character of text and, in *length, its bytes. */
uint32_t mk_jinja_decode(const char *text, size_t *length);
bool mk_jinja_is_space(uint32_t character); /* Python's isspace() */
/* The bytes of the first `count` characters, or of all. */
size_t mk_jinja_offset(jinja_value text, int64_t count);

#endif
